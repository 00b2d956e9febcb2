/* SPDX-License-Identifier: MIT */
#include "hub_net.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <json-c/json.h>
#include <moe/model_file.h>

#include "cli_engine.h"
#include "cli_format.h"
#include "cli_interrupt.h"
#include "hub_download.h"
#include "hub_pieces.h"

#define LISTING_BYTES (32u << 20)
#define MOST_FILES    10000u
#define SPARE_BYTES   (UINT64_C(64) << 20) /* free space that a download leaves on the drive */
#define HEADER_BYTES  (UINT64_C(2) << 20)  /* fetched at first; then twice as many each time */
#define HEADER_MOST   (UINT64_C(256) << 20)

/* ---- The list of files ---- */

static const char *text_of(struct json_object *object, const char *key)
{
    struct json_object *value;
    return json_object_is_type(object, json_type_object) &&
                   json_object_object_get_ex(object, key, &value) &&
                   json_object_is_type(value, json_type_string)
               ? json_object_get_string(value)
               : "";
}

static uint64_t number_of(struct json_object *object, const char *key)
{
    struct json_object *value;
    return json_object_is_type(object, json_type_object) &&
                   json_object_object_get_ex(object, key, &value) &&
                   json_object_is_type(value, json_type_int) && json_object_get_int64(value) > 0
               ? (uint64_t)json_object_get_int64(value)
               : 0;
}

/* {"rfilename": "a.gguf", "size": 9, "lfs": {"sha256": "...", "size": 9}} */
static int take_file(struct json_object *entry, const char *repo, hub_files *files)
{
    struct json_object *lfs = NULL;
    const char *path = text_of(entry, "rfilename");
    size_t n = strlen(path);
    if (n < 5 || strcasecmp(path + n - 5, ".gguf") != 0) {
        return CLI_EXIT_OK;
    }
    if (json_object_is_type(entry, json_type_object)) {
        json_object_object_get_ex(entry, "lfs", &lfs);
    }
    const char *sum = text_of(lfs, "sha256");
    uint64_t size = number_of(entry, "size");
    if (!hub_path_is_safe(path) || (sum[0] != '\0' && !hub_is_hex(sum, 64)) || size == 0 ||
        size > UINT64_C(1) << 50) {
        return cli_fail(CLI_EXIT_FAILURE,
                        "%s: the hub lists a file with a name, a size or a checksum that no file "
                        "can have: nothing is taken from this repository",
                        repo);
    }
    return hub_files_add(files, path, size, sum)
               ? CLI_EXIT_OK
               : cli_fail(CLI_EXIT_FAILURE, "out of memory for the list of files");
}

static int take_list(struct json_object *root, const char *repo, hub_files *files)
{
    struct json_object *list = NULL;
    const char *commit = text_of(root, "sha");
    if (json_object_is_type(root, json_type_object)) {
        json_object_object_get_ex(root, "siblings", &list);
    }
    if (!hub_is_hex(commit, 40) || !json_object_is_type(list, json_type_array)) {
        return cli_fail(CLI_EXIT_FAILURE, "%s: what the hub answers is no list of files", repo);
    }
    size_t n = json_object_array_length(list);
    if (n > MOST_FILES) {
        return cli_fail(CLI_EXIT_FAILURE, "%s has %zu files: more than %u are not looked through",
                        repo, n, MOST_FILES);
    }
    snprintf(files->commit, sizeof files->commit, "%s", commit);
    int code = CLI_EXIT_OK;
    for (size_t i = 0; i < n && code == CLI_EXIT_OK; i++) {
        code = take_file(json_object_array_get_idx(list, i), repo, files);
    }
    return code;
}

static int list_files(hub_http *http, const hub_name *name, hub_files *files)
{
    char url[1024 + 4 * HUB_REVISION_SIZE], revision[3 * HUB_REVISION_SIZE + 4];
    const char *repo = name->shown;
    hub_answer answer;
    (void)hub_escape(name->revision[0] != '\0' ? name->revision : "main", "", revision,
                     sizeof revision);
    snprintf(url, sizeof url, "%s/api/models/%s/revision/%s?blobs=true", http->endpoint, name->repo,
             revision);
    int code = hub_http_get(http, url, NULL, LISTING_BYTES, repo, &answer);
    if (code == CLI_EXIT_OK && !answer.whole) {
        code =
            cli_fail(CLI_EXIT_FAILURE, "%s: the hub's list of files is longer than 32 MiB", repo);
    }
    if (code == CLI_EXIT_OK) {
        struct json_object *root =
            answer.body.size > 0 ? json_tokener_parse(answer.body.data) : NULL;
        code = take_list(root, repo, files);
        json_object_put(root);
    }
    if (code == CLI_EXIT_OK && hub_is_hex(name->revision, 40) &&
        strcmp(name->revision, files->commit) != 0) {
        code = cli_fail(CLI_EXIT_FAILURE, "%s: the hub lists the files of commit %s instead", repo,
                        files->commit);
    }
    cli_buffer_free(&answer.body);
    return code;
}

static int choose(hub_http *http, const hub_name *name, hub_files *chosen)
{
    char quants[512];
    hub_files all = {0};
    *chosen = (hub_files){0};
    int code = list_files(http, name, &all);
    if (code == CLI_EXIT_OK && !hub_files_choose(chosen, &all, name)) {
        code = cli_fail(CLI_EXIT_FAILURE, "out of memory for the list of files");
    }
    if (code == CLI_EXIT_OK && chosen->n == 0) {
        hub_files_quants(&all, quants, sizeof quants);
        code = quants[0] == '\0'
                   ? cli_fail(CLI_EXIT_FAILURE,
                              "%s has no GGUF file: look for a repository whose name ends in -GGUF",
                              name->shown)
                   : cli_fail(CLI_EXIT_FAILURE, "%s has no whole model '%s'; it has %s",
                              name->shown, name->quant, quants);
    }
    hub_files_free(&all);
    return code;
}

/* ---- Downloading ---- */

static bool blob_is_there(const hub_cache *cache, const hub_file *file)
{
    char path[PATH_MAX];
    struct stat facts;
    return hub_cache_blob(path, sizeof path, cache, file->sum, "") && stat(path, &facts) == 0 &&
           (uint64_t)facts.st_size == file->size;
}

static bool is_linked(const hub_cache *cache, const char *commit, const hub_file *file)
{
    char path[PATH_MAX];
    struct stat facts;
    return hub_cache_path(path, sizeof path, cache, commit, file->path) &&
           stat(path, &facts) == 0 && (uint64_t)facts.st_size == file->size;
}

static int check_space(const hub_cache *cache, const hub_files *files, uint64_t needed)
{
    struct statvfs drive;
    char path[PATH_MAX], want[CLI_FORMAT_SIZE], have[CLI_FORMAT_SIZE];
    if (!hub_cache_blob(path, sizeof path, cache, "x", "") || hub_make_parents(path) != 0) {
        return CLI_EXIT_FAILURE;
    }
    path[strlen(path) - 2] = '\0';
    if (needed == 0 || statvfs(path, &drive) != 0) {
        return CLI_EXIT_OK;
    }
    uint64_t left = (uint64_t)drive.f_bavail * drive.f_frsize;
    if (left >= needed + SPARE_BYTES) {
        return CLI_EXIT_OK;
    }
    return cli_fail(CLI_EXIT_FAILURE,
                    "%s: %s are to be downloaded, and the drive of %s has %s left: free some, or "
                    "set HF_HOME to a folder of another drive",
                    files->list[0].path, cli_format_bytes(want, needed), cache->folder,
                    cli_format_bytes(have, left));
}

static int pull_one(hub_http *http, const hub_cache *cache, const hub_name *name, hub_files *files,
                    hub_file *file, hub_meter *meter)
{
    int lock = -1;
    if (is_linked(cache, files->commit, file)) {
        return CLI_EXIT_OK;
    }
    if (file->sum[0] == '\0') {
        hub_place place;
        int code = hub_locate(http, name->repo, files->commit, file, &place);
        if (code != CLI_EXIT_OK) {
            return code;
        }
    }
    int code = hub_cache_lock(cache, file->sum, &lock);
    if (code == CLI_EXIT_OK && !blob_is_there(cache, file)) {
        code = hub_download(http, cache, files->commit, name->repo, file, meter);
    }
    code = code == CLI_EXIT_OK ? hub_cache_link(cache, files->commit, file) : code;
    if (lock >= 0) {
        close(lock);
    }
    return code;
}

static bool is_missing(const hub_cache *cache, const char *commit, const hub_file *file)
{
    return !is_linked(cache, commit, file) && (file->sum[0] == '\0' || !blob_is_there(cache, file));
}

static int pull_all(hub_http *http, const hub_cache *cache, const hub_name *name,
                    const cli_options *options, hub_files *files, uint64_t *bytes)
{
    cli_progress progress;
    hub_meter meter = {.progress = &progress, .last_ns = cli_now_ns()};
    uint64_t left = 0;
    *bytes = 0;
    for (size_t i = 0; i < files->n; i++) {
        const hub_file *file = &files->list[i];
        if (is_missing(cache, files->commit, file)) {
            meter.all += file->size;
            left += file->sum[0] != '\0' ? hub_pieces_left(cache, file->sum) : 0;
        }
    }
    int code = check_space(cache, files, meter.all > left ? meter.all - left : 0);
    cli_progress_start(&progress, options, "downloading");
    meter.last_bytes = left;
    for (size_t i = 0; i < files->n && code == CLI_EXIT_OK; i++) {
        bool missing = is_missing(cache, files->commit, &files->list[i]);
        code = pull_one(http, cache, name, files, &files->list[i], &meter);
        meter.before += missing ? files->list[i].size : 0;
    }
    cli_progress_end(&progress);
    *bytes = meter.all > left ? meter.all - left : 0;
    return code == CLI_EXIT_OK ? hub_cache_set_ref(cache, name->revision, files->commit) : code;
}

int hub_net_files(const hub_name *name, hub_files *chosen)
{
    hub_http http;
    int code = hub_http_open(&http);
    code = code == CLI_EXIT_OK ? choose(&http, name, chosen) : code;
    hub_http_close(&http);
    return code;
}

int hub_net_pull(const hub_name *name, const hub_cache *cache, const cli_options *options,
                 hub_files *chosen, uint64_t *bytes)
{
    hub_http http;
    int code = hub_http_open(&http);
    code = code == CLI_EXIT_OK ? choose(&http, name, chosen) : code;
    code = code == CLI_EXIT_OK ? pull_all(&http, cache, name, options, chosen, bytes) : code;
    hub_http_close(&http);
    return code == CLI_EXIT_INTERRUPTED
               ? cli_fail(code, "%s: interrupted; 'moe-offload pull' goes on from here",
                          name->shown)
               : code;
}

int hub_net_address(const char *model, char *url, size_t size)
{
    hub_http http = {.curl = NULL};
    hub_name name;
    hub_files files = {0};
    int code = hub_name_parse(&name, model);
    code = code == CLI_EXIT_OK ? hub_http_open(&http) : code;
    code = code == CLI_EXIT_OK ? choose(&http, &name, &files) : code;
    if (code == CLI_EXIT_OK &&
        !hub_file_address(&http, name.repo, files.commit, files.list[0].path, url, size)) {
        code = cli_fail(CLI_EXIT_FAILURE, "%s: the name is too long", files.list[0].path);
    }
    hub_files_free(&files);
    hub_http_close(&http);
    return code;
}

/* ---- Headers alone ---- */

/* A file of which the first `there` bytes have been fetched. */
typedef struct header {
    char path[PATH_MAX];
    uint64_t there;
} header;

static int grow(hub_http *http, const hub_name *name, const char *commit, hub_file *file,
                header *head)
{
    hub_place place;
    hub_answer answer;
    char range[64];
    uint64_t to = head->there == 0 ? HEADER_BYTES : 2 * head->there;
    to = to < file->size ? to : file->size;
    int code = hub_locate(http, name->repo, commit, file, &place);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    if (!place.ranges) {
        return cli_fail(CLI_EXIT_FAILURE, "%s: the server gives no part of a file: 'pull' it whole",
                        file->path);
    }
    snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, head->there, to - 1);
    code = hub_http_get(http, place.url, range, (size_t)(to - head->there), file->path, &answer);
    int fd = code == CLI_EXIT_OK ? open(head->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;
    bool whole = code == CLI_EXIT_OK && answer.body.size == to - head->there && fd >= 0 &&
                 pwrite(fd, answer.body.data, answer.body.size, (off_t)head->there) ==
                     (ssize_t)answer.body.size &&
                 ftruncate(fd, (off_t)file->size) == 0;
    if (code == CLI_EXIT_OK && !whole) {
        code = cli_fail(CLI_EXIT_FAILURE, "%s: its header cannot be fetched to %s: %s", file->path,
                        head->path, strerror(errno));
    }
    if (fd >= 0) {
        close(fd);
    }
    cli_buffer_free(&answer.body);
    head->there = to;
    return code;
}

/* Fetches more of the file that an error names, until the header is whole. Holes read as zeros, so
 * a header that is not whole yet looks like a broken one. */
static int grow_until_whole(hub_http *http, const hub_name *name, hub_files *files, header *heads)
{
    int code = CLI_EXIT_OK;
    for (;;) {
        moe_file *file = NULL;
        moe_error err = {""};
        if (moe_file_open(&file, heads[0].path, &err) == MOE_OK) {
            moe_file_close(&file);
            return CLI_EXIT_OK;
        }
        size_t i = files->n - 1;
        while (i > 0 && strstr(err.message, strrchr(heads[i].path, '/') + 1) == NULL) {
            i--;
        }
        if (heads[i].there == files->list[i].size || heads[i].there >= HEADER_MOST) {
            return cli_fail(CLI_EXIT_FAILURE, "%s: %s", name->shown, err.message);
        }
        code = grow(http, name, files->commit, &files->list[i], &heads[i]);
        if (code != CLI_EXIT_OK) {
            return code;
        }
    }
}

static int fetch_headers(hub_http *http, const hub_name *name, hub_files *files, const char *folder)
{
    header *heads = calloc(files->n, sizeof *heads);
    int code =
        heads == NULL ? cli_fail(CLI_EXIT_FAILURE, "out of memory for headers") : CLI_EXIT_OK;
    for (size_t i = 0; i < files->n && code == CLI_EXIT_OK; i++) {
        const char *slash = strrchr(files->list[i].path, '/');
        snprintf(heads[i].path, sizeof heads[i].path, "%s/%s", folder,
                 slash == NULL ? files->list[i].path : slash + 1);
        code = grow(http, name, files->commit, &files->list[i], &heads[i]);
    }
    code = code == CLI_EXIT_OK ? grow_until_whole(http, name, files, heads) : code;
    free(heads);
    return code;
}

int hub_net_headers(const hub_name *name, const hub_cache *cache, hub_files *chosen, char *folder,
                    size_t size)
{
    hub_http http;
    folder[0] = '\0';
    int code = hub_http_open(&http);
    code = code == CLI_EXIT_OK ? choose(&http, name, chosen) : code;
    if (code == CLI_EXIT_OK) {
        snprintf(folder, size, "%s/moe-header-XXXXXX", cache->folder);
        code = hub_make_parents(folder);
    }
    if (code == CLI_EXIT_OK && mkdtemp(folder) == NULL) {
        code = cli_fail(CLI_EXIT_FAILURE, "%s cannot be made: %s", folder, strerror(errno));
        folder[0] = '\0';
    }
    code = code == CLI_EXIT_OK ? fetch_headers(&http, name, chosen, folder) : code;
    hub_http_close(&http);
    return code;
}
