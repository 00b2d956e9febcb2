/* SPDX-License-Identifier: MIT */
#include "server_disk.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <moe/files.h>

#define ENDING ".moe-session"

enum {
    LEAST_TOKENS = 64, /* a shorter timeline gets no file */
    USE_DIGITS = 16,
    MOST_FILES = 4096
};

typedef struct disk_file {
    char *path;
    int32_t *tokens; /* NULL: the file has another model, other weights or another KV cache type */
    size_t n;
    uint64_t bytes;
    uint64_t use;     /* the counter when the file was last used; 0: its name has no counter */
    uint64_t written; /* nanoseconds since 1970: orders files whose names have no counter */
} disk_file;

struct server_disk {
    moe_engine *engine;
    const server_options *options;
    uint64_t fingerprint;
    uint64_t bytes_per_token;
    uint64_t bytes; /* of all files */
    uint64_t n_uses;
    disk_file files[MOST_FILES];
    size_t n_files;
};

static void tell(const server_disk *disk, const char *what, const char *why)
{
    char line[700];
    snprintf(line, sizeof line, "cache: %s: %.500s", what, why);
    if (disk->options->log != NULL) {
        disk->options->log(line, disk->options->user);
    }
}

static uint64_t nanoseconds(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * 1000000000 + (uint64_t)time->tv_nsec;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return nanoseconds(&now);
}

/* ---- The list of files ---- */

static void forget(server_disk *disk, size_t i)
{
    disk->bytes -= disk->files[i].bytes;
    free(disk->files[i].path);
    moe_free(disk->files[i].tokens);
    disk->files[i] = disk->files[--disk->n_files];
}

static void drop(server_disk *disk, size_t i)
{
    (void)unlink(disk->files[i].path);
    forget(disk, i);
}

static bool is_older(const disk_file *a, const disk_file *b)
{
    return a->use != b->use ? a->use < b->use : a->written < b->written;
}

/* Deletes the files that were used longest ago until a new file of this size fits below the limit.
 * False: the file alone is larger than the limit. */
static bool make_room(server_disk *disk, uint64_t bytes)
{
    uint64_t most = disk->options->cache_bytes;
    while (bytes <= most && (disk->bytes > most - bytes || disk->n_files == MOST_FILES) &&
           disk->n_files > 0) {
        size_t oldest = 0;
        for (size_t i = 1; i < disk->n_files; i++) {
            oldest = is_older(&disk->files[i], &disk->files[oldest]) ? i : oldest;
        }
        drop(disk, oldest);
    }
    return bytes <= most;
}

/* ---- Names ---- */

static bool ends_with(const char *name, const char *ending)
{
    size_t size = strlen(name);
    size_t n = strlen(ending);
    return size > n && strcmp(name + size - n, ending) == 0;
}

/* Returns the length of the part of a path that identifies the model and the tokens: all before
 * ".USE" and the ending. */
static size_t stem_of(const char *path)
{
    size_t size = strlen(path) - strlen(ENDING);
    size_t digits = size > USE_DIGITS ? strspn(path + size - USE_DIGITS, "0123456789abcdef") : 0;
    return digits == USE_DIGITS && path[size - USE_DIGITS - 1] == '.' ? size - USE_DIGITS - 1
                                                                      : size;
}

static uint64_t use_of(const char *path)
{
    size_t stem = stem_of(path);
    return strcmp(path + stem, ENDING) != 0 ? strtoull(path + stem + 1, NULL, 16) : 0;
}

/* Returns a file's path with a new counter of uses, which makes it the one that was used last.
 * NULL: memory is short. */
static char *path_of_use(server_disk *disk, const char *stem, size_t size)
{
    char *path = NULL;
    int n = asprintf(&path, "%.*s.%016" PRIx64 ENDING, (int)size, stem, ++disk->n_uses);
    return n < 0 ? NULL : path;
}

/* Adds a file to the list; the list then owns `path`. Files of other models count towards the limit
 * on disk space but are never read. Links and pipes are ignored. */
static void add(server_disk *disk, char *path)
{
    struct stat status;
    moe_error err = {""};
    disk_file file = {.path = path};
    int read = MOE_ERR_IO;
    if (disk->n_files < MOST_FILES && lstat(path, &status) == 0 && S_ISREG(status.st_mode)) {
        read = moe_session_file_tokens(path, disk->engine, &file.tokens, &file.n, &err);
        file.bytes = (uint64_t)status.st_size;
        file.written = nanoseconds(&status.st_mtim);
        file.use = use_of(path);
        disk->n_uses = file.use > disk->n_uses ? file.use : disk->n_uses;
    }
    if (read == MOE_ERR_FORMAT) {
        tell(disk, "a file is removed", err.message);
        (void)unlink(path);
    }
    if (read != MOE_OK && read != MOE_ERR_MISMATCH && read != MOE_ERR_CONTEXT_FULL) {
        free(path);
        return;
    }
    disk->bytes += file.bytes;
    disk->files[disk->n_files++] = file;
}

/* Returns why the folder must not be used, or NULL. Nobody else may be able to write to it: whoever
 * can could give the server wrong keys and values for a prompt, or redirect its writes by links. */
static const char *fault_of(DIR *list, const char *folder, moe_error *err)
{
    struct stat about;
    char probe[4096];
    moe_atomic_file *file = NULL;
    if (list == NULL || fstat(dirfd(list), &about) != 0) {
        return strerror(errno);
    }
    if (about.st_uid != geteuid()) {
        return "it belongs to another user";
    }
    if ((about.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        return "others may write to it ('chmod 700' it)";
    }
    if ((size_t)snprintf(probe, sizeof probe, "%s/probe", folder) >= sizeof probe) {
        return strerror(ENAMETOOLONG);
    }
    /* Tries whether files can be written. The probe file is abandoned, so it never appears under
     * its name. Opening it also removes temporary files that killed processes have left. */
    int status = moe_atomic_file_open(&file, probe, MOE_FILE_PRIVATE, err);
    moe_atomic_file_abandon(&file);
    return status == MOE_OK ? NULL : err->message;
}

static bool scan(server_disk *disk, char *error, size_t error_size)
{
    const char *folder = disk->options->cache_folder;
    struct dirent *entry;
    moe_error err = {""};
    DIR *list = mkdir(folder, 0700) != 0 && errno != EEXIST ? NULL : opendir(folder);
    const char *fault = fault_of(list, folder, &err);
    if (fault != NULL) {
        snprintf(error, error_size,
                 "--cache-dir %.200s: %.300s; name a folder of your own that nobody else can write "
                 "to, or leave it out",
                 folder, fault);
        if (list != NULL) {
            closedir(list);
        }
        return false;
    }
    while ((entry = readdir(list)) != NULL) {
        char *path = NULL;
        if (ends_with(entry->d_name, ENDING) &&
            asprintf(&path, "%s/%s", folder, entry->d_name) >= 0) {
            add(disk, path);
        }
    }
    closedir(list);
    return true;
}

server_disk *server_disk_open(moe_engine *engine, const server_options *options, char *error,
                              size_t error_size)
{
    moe_engine_info info = {.struct_size = sizeof info};
    server_disk *disk = calloc(1, sizeof *disk);
    if (disk == NULL) {
        snprintf(error, error_size, "out of memory for --cache-dir");
        return NULL;
    }
    moe_engine_get_info(engine, &info);
    disk->engine = engine;
    disk->options = options;
    disk->fingerprint = info.fingerprint;
    disk->bytes_per_token = info.kv_bytes_per_token;
    if (!scan(disk, error, error_size)) {
        free(disk);
        return NULL;
    }
    (void)make_room(disk, 0);
    return disk;
}

void server_disk_close(server_disk **disk)
{
    if (*disk != NULL) {
        while ((*disk)->n_files > 0) {
            forget(*disk, 0);
        }
        free(*disk);
        *disk = NULL;
    }
}

/* ---- Finding, reading, writing ---- */

static size_t shared_with(const disk_file *file, const int32_t *tokens, size_t n)
{
    size_t most = file->tokens == NULL ? 0 : file->n < n ? file->n : n;
    size_t shared = 0;
    while (shared < most && file->tokens[shared] == tokens[shared]) {
        shared++;
    }
    return shared;
}

/* Returns the index of the file whose tokens have the longest common beginning with the given ones,
 * and that length in *shared. Returns n_files if no file begins with the same token. */
static size_t most_alike(const server_disk *disk, const int32_t *tokens, size_t n, size_t *shared)
{
    size_t best = disk->n_files;
    *shared = 0;
    for (size_t i = 0; i < disk->n_files; i++) {
        size_t now = shared_with(&disk->files[i], tokens, n);
        best = now > *shared ? i : best;
        *shared = now > *shared ? now : *shared;
    }
    return best;
}

size_t server_disk_shared(const server_disk *disk, const int32_t *tokens, size_t n)
{
    size_t shared = 0;
    if (disk != NULL) {
        (void)most_alike(disk, tokens, n, &shared);
    }
    return shared;
}

static void touch(server_disk *disk, disk_file *file)
{
    char *path = path_of_use(disk, file->path, stem_of(file->path));
    file->use = disk->n_uses;
    if (path != NULL && rename(file->path, path) == 0) {
        free(file->path);
        file->path = path;
    } else {
        free(path);
    }
}

int server_disk_load(server_disk *disk, const int32_t *tokens, size_t n, moe_session **out)
{
    moe_error err = {""};
    size_t shared;
    char line[160];
    uint64_t begin = now_ns();
    size_t i = most_alike(disk, tokens, n, &shared);
    *out = NULL;
    if (i == disk->n_files) {
        return MOE_ERR_ARGUMENT;
    }
    int32_t *kept = NULL; /* weights may have been found damaged since the file was listed */
    size_t n_kept;
    int status = moe_session_file_tokens(disk->files[i].path, disk->engine, &kept, &n_kept, &err);
    moe_free(kept);
    status =
        status == MOE_OK ? moe_session_load(out, disk->engine, disk->files[i].path, &err) : status;
    if (status == MOE_OK) {
        touch(disk, &disk->files[i]);
        snprintf(line, sizeof line, "%zu of %zu tokens in %.3f s", shared, n,
                 (double)(now_ns() - begin) / 1e9);
        tell(disk, "read from the disk", line);
    } else if (status == MOE_ERR_FORMAT) {
        tell(disk, "a file is removed", err.message);
        drop(disk, i);
    } else if (status == MOE_ERR_MISMATCH) {
        tell(disk, "a file is not used", err.message);
        moe_free(disk->files[i].tokens); /* the file counts for the limit, but is never read */
        disk->files[i].tokens = NULL;
    } else if (status == MOE_ERR_IO) {
        tell(disk, "a file is no longer used", err.message);
        forget(disk, i);
    }
    return status;
}

static uint64_t hash_of(const int32_t *tokens, size_t n)
{
    uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a */
    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ (uint32_t)tokens[i]) * UINT64_C(1099511628211);
    }
    return hash;
}

/* Deletes the old file at the same place, and all files whose tokens are a beginning of the new
 * file's tokens. */
static void drop_replaced(server_disk *disk, const char *path, const int32_t *tokens, size_t n)
{
    size_t stem = stem_of(path);
    for (size_t i = disk->n_files; i-- > 0;) {
        const disk_file *file = &disk->files[i];
        bool begins =
            file->tokens != NULL && file->n < n && shared_with(file, tokens, n) == file->n;
        if (begins || (stem_of(file->path) == stem && strncmp(file->path, path, stem) == 0)) {
            drop(disk, i);
        }
    }
}

void server_disk_keep(server_disk *disk, const moe_session *session)
{
    moe_error err = {""};
    size_t shared;
    char *stem = NULL;
    size_t n = disk == NULL ? 0 : moe_session_n_tokens(session) - moe_session_n_pending(session);
    const int32_t *tokens = moe_session_tokens(session);
    if (n < LEAST_TOKENS) {
        return;
    }
    size_t best = most_alike(disk, tokens, n, &shared);
    if (shared + shared / 8 >= n) {
        touch(disk, &disk->files[best]);
        return;
    }
    uint64_t estimate = n * disk->bytes_per_token + n * 16 + (1 << 20);
    if (!make_room(disk, estimate)) {
        return;
    }
    int size = asprintf(&stem, "%s/%016" PRIx64 "-%016" PRIx64, disk->options->cache_folder,
                        disk->fingerprint, hash_of(tokens, n));
    char *path = size > 0 ? path_of_use(disk, stem, (size_t)size) : NULL;
    if (size > 0) {
        free(stem);
    }
    if (path == NULL) {
        return;
    }
    if (moe_session_save(session, path, &err) != MOE_OK) {
        tell(disk, "a prompt is not kept", err.message);
        free(path);
        return;
    }
    drop_replaced(disk, path, tokens, n);
    add(disk, path);
    (void)make_room(disk, 0);
}
