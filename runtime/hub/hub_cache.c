/* SPDX-License-Identifier: MIT */
#include "hub_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli_interrupt.h"
#include "cli_options.h"

#define MOST_DEPTH 8 /* deepest nesting of folders in a snapshot */
#define MODELS     "models--"
#define MAIN       "main"

/* Writes like snprintf(); false: it did not fit. */
__attribute__((format(printf, 3, 4))) static bool put(char *out, size_t size, const char *format,
                                                      ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(out, size, format, args);
    va_end(args);
    return n >= 0 && (size_t)n < size;
}

/* ---- The environment ---- */

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* HF_HOME, or ~/.cache/huggingface */
static bool home_folder(char *out, size_t size)
{
    const char *home = variable("HF_HOME");
    const char *caches = variable("XDG_CACHE_HOME");
    const char *user = variable("HOME");
    return home != NULL     ? put(out, size, "%s", home)
           : caches != NULL ? put(out, size, "%s/huggingface", caches)
           : user != NULL   ? put(out, size, "%s/.cache/huggingface", user)
                            : false;
}

static bool cache_folder(char *out, size_t size)
{
    char home[HUB_FOLDER_SIZE];
    const char *folder = variable("HF_HUB_CACHE");
    folder = folder != NULL ? folder : variable("HUGGINGFACE_HUB_CACHE");
    return folder != NULL ? put(out, size, "%s", folder)
                          : home_folder(home, sizeof home) && put(out, size, "%s/hub", home);
}

int hub_cache_open(hub_cache *cache, const char *repo)
{
    *cache = (hub_cache){0};
    const char *slash = strchr(repo, '/');
    /* Leaves room for the paths below the folder. */
    if (!cache_folder(cache->folder, sizeof cache->folder - 700) ||
        !put(cache->repo, sizeof cache->repo - 400, "%s/" MODELS "%.*s--%s", cache->folder,
             slash != NULL ? (int)(slash - repo) : 0, repo, slash != NULL ? slash + 1 : "")) {
        return cli_fail(CLI_EXIT_FAILURE, "there is no folder for models: set HF_HOME");
    }
    return CLI_EXIT_OK;
}

static bool read_line(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "r");
    bool read = file != NULL && fgets(out, (int)size, file) != NULL;
    if (file != NULL) {
        fclose(file);
    }
    out[read ? strcspn(out, " \t\r\n") : 0] = '\0';
    return read;
}

int hub_cache_token(char *token, size_t size)
{
    char path[HUB_FOLDER_SIZE] = "";
    char home[HUB_FOLDER_SIZE - 16];
    const char *given = variable("HF_TOKEN");
    given = given != NULL ? given : variable("HUGGING_FACE_HUB_TOKEN");
    token[0] = '\0';
    if (given == NULL) {
        const char *file = variable("HF_TOKEN_PATH");
        bool fits = file != NULL ? put(path, sizeof path, "%s", file)
                                 : home_folder(home, sizeof home) &&
                                       put(path, sizeof path, "%s/token", home);
        if (fits) {
            (void)read_line(path, token, size);
        }
    } else if (strpbrk(given, " \t\r\n") != NULL || !put(token, size, "%s", given)) {
        return cli_fail(CLI_EXIT_USAGE, "HF_TOKEN is no token: it has blanks or is too long");
    }
    return CLI_EXIT_OK;
}

/* ---- Paths ---- */

bool hub_cache_path(char *out, size_t size, const hub_cache *cache, const char *commit,
                    const char *path)
{
    return put(out, size, "%s/snapshots/%s%s%s", cache->repo, commit, path[0] == '\0' ? "" : "/",
               path);
}

bool hub_cache_blob(char *out, size_t size, const hub_cache *cache, const char *sum,
                    const char *ending)
{
    return put(out, size, "%s/blobs/%s%s", cache->repo, sum, ending);
}

int hub_make_parents(const char *path)
{
    char folder[PATH_MAX];
    if (!put(folder, sizeof folder, "%s", path)) {
        return cli_fail(CLI_EXIT_FAILURE, "%s: the path is too long", path);
    }
    for (char *at = strchr(folder + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        *at = '\0';
        if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
            return cli_fail(CLI_EXIT_FAILURE,
                            "%s cannot be made: %s (HF_HOME names another folder)", folder,
                            strerror(errno));
        }
        *at = '/';
    }
    return CLI_EXIT_OK;
}

/* ---- What is there ---- */

static int gather(const char *folder, const char *below, unsigned depth, hub_files *files)
{
    DIR *dir = opendir(folder);
    int code = CLI_EXIT_OK;
    for (struct dirent *entry;
         code == CLI_EXIT_OK && dir != NULL && (entry = readdir(dir)) != NULL;) {
        struct stat facts;
        char path[PATH_MAX], name[HUB_QUANT_SIZE];
        if (entry->d_name[0] == '.' || !put(path, sizeof path, "%s/%s", folder, entry->d_name) ||
            !put(name, sizeof name, "%s%s", below, entry->d_name) || stat(path, &facts) != 0) {
            continue; /* skips other entries, and links to blobs that are gone */
        }
        if (S_ISDIR(facts.st_mode) && depth < MOST_DEPTH &&
            put(name, sizeof name, "%s%s/", below, entry->d_name)) {
            code = gather(path, name, depth + 1, files);
        } else if (S_ISREG(facts.st_mode) && facts.st_size > 0 &&
                   !hub_files_add(files, name, (uint64_t)facts.st_size, "")) {
            code = cli_fail(CLI_EXIT_FAILURE, "out of memory for the list of models");
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return code;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const hub_file *)a)->path, ((const hub_file *)b)->path);
}

int hub_cache_files(const hub_cache *cache, const char *commit, hub_files *files)
{
    char folder[PATH_MAX];
    *files = (hub_files){0};
    snprintf(files->commit, sizeof files->commit, "%.40s", commit);
    if (!hub_cache_path(folder, sizeof folder, cache, commit, "")) {
        return CLI_EXIT_OK;
    }
    int code = gather(folder, "", 0, files);
    if (files->n > 0) {
        qsort(files->list, files->n, sizeof *files->list, by_path);
    }
    return code;
}

static bool ref_path(char *out, size_t size, const hub_cache *cache, const char *revision)
{
    return put(out, size, "%s/refs/%s", cache->repo, revision[0] == '\0' ? MAIN : revision);
}

static void read_ref(const char *path, char commit[HUB_COMMIT_SIZE])
{
    if (!read_line(path, commit, HUB_COMMIT_SIZE) || !hub_is_hex(commit, 40)) {
        commit[0] = '\0';
    }
}

void hub_cache_commit(const hub_cache *cache, const char *revision, char commit[HUB_COMMIT_SIZE])
{
    char path[PATH_MAX];
    commit[0] = '\0';
    if (hub_is_hex(revision, 40)) {
        memcpy(commit, revision, HUB_COMMIT_SIZE);
    } else if (ref_path(path, sizeof path, cache, revision)) {
        read_ref(path, commit);
    }
}

/* Calls the function for each file below refs/, with its revision and its commit ("": it has none),
 * and for each folder after its content, with NULL as commit. */
typedef void (*ref_call)(const hub_cache *cache, const char *path, const char *revision,
                         const char *commit, void *user);

static void walk_refs(const hub_cache *cache, const char *below, unsigned depth, ref_call call,
                      void *user)
{
    char folder[PATH_MAX];
    DIR *dir =
        put(folder, sizeof folder, "%s/refs/%s", cache->repo, below) ? opendir(folder) : NULL;
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        struct stat facts;
        char path[PATH_MAX], name[HUB_REVISION_SIZE], commit[HUB_COMMIT_SIZE];
        if (entry->d_name[0] == '.' || !put(path, sizeof path, "%s%s", folder, entry->d_name) ||
            !put(name, sizeof name - 1, "%s%s", below, entry->d_name) || lstat(path, &facts) != 0) {
            continue;
        }
        if (S_ISDIR(facts.st_mode) && depth < MOST_DEPTH) {
            strcat(name, "/");
            walk_refs(cache, name, depth + 1, call, user);
            call(cache, path, name, NULL, user);
        } else if (S_ISREG(facts.st_mode)) {
            read_ref(path, commit);
            call(cache, path, name, commit, user);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
}

typedef struct ref_search {
    const char *commit;
    char *revision; /* of HUB_REVISION_SIZE */
} ref_search;

static void compare_ref(const hub_cache *cache, const char *path, const char *revision,
                        const char *commit, void *user)
{
    const ref_search *s = user;
    (void)cache, (void)path;
    if (commit != NULL && strcmp(commit, s->commit) == 0 && strcmp(s->revision, MAIN) != 0 &&
        hub_is_revision(revision)) {
        snprintf(s->revision, HUB_REVISION_SIZE, "%s", revision);
    }
}

void hub_cache_revision(const hub_cache *cache, const char *commit,
                        char revision[HUB_REVISION_SIZE])
{
    ref_search s = {commit, revision};
    snprintf(revision, HUB_REVISION_SIZE, "%s", commit);
    walk_refs(cache, "", 0, compare_ref, &s);
}

int hub_cache_snapshots(const hub_cache *cache, hub_snapshot_call call, void *user)
{
    char folder[PATH_MAX];
    int code = CLI_EXIT_OK;
    DIR *dir = put(folder, sizeof folder, "%s/snapshots", cache->repo) ? opendir(folder) : NULL;
    for (struct dirent *entry;
         code == CLI_EXIT_OK && dir != NULL && (entry = readdir(dir)) != NULL;) {
        if (hub_is_hex(entry->d_name, 40)) {
            code = call(cache, entry->d_name, user);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return code;
}

typedef struct search {
    const hub_name *name;
    hub_files *chosen;
} search;

static int find_in(const hub_cache *cache, const char *commit, void *user)
{
    const search *s = user;
    hub_files files;
    if (s->chosen->n > 0) {
        return CLI_EXIT_OK;
    }
    int code = hub_cache_files(cache, commit, &files);
    if (code == CLI_EXIT_OK && !hub_files_choose(s->chosen, &files, s->name)) {
        code = cli_fail(CLI_EXIT_FAILURE, "out of memory for the list of models");
    }
    hub_files_free(&files);
    return code;
}

int hub_cache_find(const hub_cache *cache, const hub_name *name, bool any, hub_files *chosen)
{
    char commit[HUB_COMMIT_SIZE];
    search s = {name, chosen};
    *chosen = (hub_files){0};
    hub_cache_commit(cache, name->revision, commit);
    int code = commit[0] != '\0' ? find_in(cache, commit, &s) : CLI_EXIT_OK;
    any = any && name->revision[0] == '\0';
    return code == CLI_EXIT_OK && any ? hub_cache_snapshots(cache, find_in, &s) : code;
}

int hub_cache_repos(hub_repo_call call, void *user)
{
    hub_cache cache;
    int code = hub_cache_open(&cache, "a/b");
    DIR *dir = code == CLI_EXIT_OK ? opendir(cache.folder) : NULL;
    for (struct dirent *entry;
         code == CLI_EXIT_OK && dir != NULL && (entry = readdir(dir)) != NULL;) {
        char repo[HUB_REPO_SIZE];
        const char *owner = entry->d_name + strlen(MODELS);
        const char *dashes =
            strncmp(entry->d_name, MODELS, strlen(MODELS)) == 0 ? strstr(owner, "--") : NULL;
        if (dashes != NULL &&
            put(repo, sizeof repo, "%.*s/%s", (int)(dashes - owner), owner, dashes + 2)) {
            code = call(repo, user);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return code;
}

/* ---- Changes ---- */

int hub_cache_link(const hub_cache *cache, const char *commit, const hub_file *file)
{
    char path[PATH_MAX], target[PATH_MAX], blob[PATH_MAX];
    size_t n = 0;
    if (!hub_cache_path(path, sizeof path, cache, commit, file->path) ||
        !hub_cache_blob(blob, sizeof blob, cache, file->sum, "")) {
        return cli_fail(CLI_EXIT_FAILURE, "%s: the path is too long", file->path);
    }
    for (const char *at = file->path; (at = strchr(at, '/')) != NULL; at++) {
        n += (size_t)snprintf(target + n, sizeof target - n, "../");
    }
    snprintf(target + n, sizeof target - n, "../../blobs/%s", file->sum);
    int code = hub_make_parents(path);
    if (code != CLI_EXIT_OK || access(path, F_OK) == 0) {
        return code;
    }
    unlink(path); /* an old link, perhaps to a blob that is gone */
    /* On a file system without symbolic links, moves the file itself there, as the hub's own
     * programs do. */
    if (symlink(target, path) != 0 && rename(blob, path) != 0) {
        return cli_fail(CLI_EXIT_FAILURE, "%s cannot be made: %s", path, strerror(errno));
    }
    return CLI_EXIT_OK;
}

int hub_cache_set_ref(const hub_cache *cache, const char *revision, const char *commit)
{
    char path[PATH_MAX], new_path[PATH_MAX];
    if (strcmp(revision, commit) == 0) {
        return CLI_EXIT_OK;
    }
    if (!ref_path(path, sizeof path, cache, revision) ||
        !put(new_path, sizeof new_path, "%s.moe-%ld", path, (long)getpid())) {
        return cli_fail(CLI_EXIT_FAILURE, "%s: the path is too long", cache->repo);
    }
    int code = hub_make_parents(path);
    FILE *file = code == CLI_EXIT_OK ? fopen(new_path, "w") : NULL;
    if (code != CLI_EXIT_OK) {
        return code;
    }
    bool written = file != NULL && fputs(commit, file) >= 0;
    written = file != NULL && fclose(file) == 0 && written;
    if (!written || rename(new_path, path) != 0) {
        return cli_fail(CLI_EXIT_FAILURE, "%s cannot be written: %s", path, strerror(errno));
    }
    return CLI_EXIT_OK;
}

int hub_cache_lock(const hub_cache *cache, const char *sum, int *fd)
{
    char path[PATH_MAX];
    *fd = -1;
    if (!put(path, sizeof path, "%s/.locks%s/%s.lock", cache->folder,
             cache->repo + strlen(cache->folder), sum)) {
        return cli_fail(CLI_EXIT_FAILURE, "%s: the path is too long", cache->repo);
    }
    int code = hub_make_parents(path);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0664);
    if (*fd < 0) {
        return cli_fail(CLI_EXIT_FAILURE, "%s cannot be opened: %s", path, strerror(errno));
    }
    const struct timespec tick = {0, 100000000};
    for (unsigned i = 0; flock(*fd, LOCK_EX | LOCK_NB) != 0; i++) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            return CLI_EXIT_OK; /* goes on without locks: a blob is renamed only when it is
                                 * complete */
        }
        if (i == 10) {
            fprintf(stderr, "moe-offload: note: another program downloads the file; waiting\n");
        }
        if (cli_interrupted()) {
            return CLI_EXIT_INTERRUPTED;
        }
        nanosleep(&tick, NULL);
    }
    return CLI_EXIT_OK;
}

/* ---- Removal ---- */

/* Finds the blob to which a link of a snapshot leads; "": it is no link to a blob of this
 * repository. */
static void blob_of(const char *path, char *out, size_t size)
{
    char target[PATH_MAX];
    ssize_t n = readlink(path, target, sizeof target - 1);
    out[0] = '\0';
    if (n > 0) {
        target[n] = '\0';
        const char *base = strrchr(target, '/');
        if (base != NULL && (hub_is_hex(base + 1, 64) || hub_is_hex(base + 1, 40))) {
            snprintf(out, size, "%s", base + 1);
        }
    }
}

typedef struct reference {
    const char *sum;
    bool found;
} reference;

static int look_for(const hub_cache *cache, const char *commit, void *user)
{
    reference *r = user;
    hub_files files;
    int code = hub_cache_files(cache, commit, &files);
    for (size_t i = 0; code == CLI_EXIT_OK && !r->found && i < files.n; i++) {
        char path[PATH_MAX], sum[HUB_SUM_SIZE];
        if (hub_cache_path(path, sizeof path, cache, commit, files.list[i].path)) {
            blob_of(path, sum, sizeof sum);
            r->found = strcmp(sum, r->sum) == 0;
        }
    }
    hub_files_free(&files);
    return code;
}

/* Removes files whose names continue the model's stem: sidecar, checksums, low-bit copies. */
static void remove_beside(const char *path)
{
    static const char *const endings[] = {".moe-cal.gguf", ".moe-lowbit.gguf", ".moe-sums"};
    char beside[PATH_MAX];
    size_t stem = strlen(path) - strlen(".gguf");
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        if (put(beside, sizeof beside, "%.*s%s", (int)stem, path, endings[i])) {
            unlink(beside);
        }
    }
}

static int remove_file(const hub_cache *cache, const char *commit, const hub_file *file,
                       uint64_t *bytes)
{
    char path[PATH_MAX], sum[HUB_SUM_SIZE], blob[PATH_MAX];
    struct stat facts;
    if (!hub_cache_path(path, sizeof path, cache, commit, file->path)) {
        return CLI_EXIT_OK;
    }
    blob_of(path, sum, sizeof sum);
    remove_beside(path);
    if (unlink(path) != 0) {
        return cli_fail(CLI_EXIT_FAILURE, "%s cannot be removed: %s", path, strerror(errno));
    }
    for (char *slash = strrchr(path, '/'); slash != NULL; slash = strrchr(path, '/')) {
        *slash = '\0'; /* removes folders that are now empty, up to snapshots/ */
        if (strcmp(slash + 1, "snapshots") == 0 || rmdir(path) != 0) {
            break;
        }
    }
    if (sum[0] == '\0') {
        *bytes += file->size;
        return CLI_EXIT_OK;
    }
    reference r = {.sum = sum};
    int code = hub_cache_snapshots(cache, look_for, &r);
    if (code == CLI_EXIT_OK && !r.found && hub_cache_blob(blob, sizeof blob, cache, sum, "") &&
        lstat(blob, &facts) == 0 && unlink(blob) == 0) {
        *bytes += S_ISREG(facts.st_mode) ? (uint64_t)facts.st_size : 0;
    }
    return code;
}

int hub_cache_remove(const hub_cache *cache, const char *commit, const hub_files *model,
                     uint64_t *bytes)
{
    int code = CLI_EXIT_OK;
    for (size_t i = 0; i < model->n && code == CLI_EXIT_OK; i++) {
        code = remove_file(cache, commit, &model->list[i], bytes);
    }
    return code;
}

static void remove_idle_ref(const hub_cache *cache, const char *path, const char *revision,
                            const char *commit, void *user)
{
    char snapshot[PATH_MAX];
    (void)revision, (void)user;
    if (commit == NULL) {
        rmdir(path); /* if it is empty */
    } else if (commit[0] == '\0' || (hub_cache_path(snapshot, sizeof snapshot, cache, commit, "") &&
                                     access(snapshot, F_OK) != 0)) {
        unlink(path);
    }
}

void hub_cache_tidy(const hub_cache *cache)
{
    static const char *const rest[] = {"/snapshots", "/blobs", "/refs", ""};
    char path[PATH_MAX];
    walk_refs(cache, "", 0, remove_idle_ref, NULL);
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++) {
        if (!put(path, sizeof path, "%s%s", cache->repo, rest[i]) ||
            (remove(path) != 0 && errno != ENOENT)) {
            return;
        }
    }
}

unsigned hub_cache_remove_parts(const hub_cache *cache, uint64_t *bytes)
{
    char folder[PATH_MAX], path[PATH_MAX];
    unsigned n = 0;
    DIR *dir = put(folder, sizeof folder, "%s/blobs", cache->repo) ? opendir(folder) : NULL;
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        struct stat facts;
        const char *ending = strstr(entry->d_name, ".moe-p");
        if (ending != NULL && put(path, sizeof path, "%s/%s", folder, entry->d_name) &&
            stat(path, &facts) == 0 && unlink(path) == 0) {
            *bytes += 512 * (uint64_t)facts.st_blocks;
            n += strcmp(ending, ".moe-part") == 0;
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return n;
}
