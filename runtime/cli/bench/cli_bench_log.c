/* SPDX-License-Identifier: MIT */
#include "cli_bench_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "cli_buffer.h"
#include "cli_options.h"

struct cli_bench_log {
    cli_bench_log_options options; /* columns and identity are not used after open */
    int fd;                        /* -1: none */
    char ***rows;                  /* [n_rows][n_columns]; a row and its texts are one block */
    size_t n_rows, capacity;
    bool created; /* this run created the file */
};

/* ---- Rows in memory ---- */

static int keep_row(cli_bench_log *log, const char *const *cells)
{
    size_t n = log->options.n_columns;
    size_t bytes = n * sizeof(char *);
    for (size_t i = 0; i < n; i++) {
        bytes += strlen(cells[i]) + 1;
    }
    if (log->n_rows == log->capacity) {
        size_t capacity = log->capacity > 0 ? 2 * log->capacity : 64;
        char ***bigger = realloc(log->rows, capacity * sizeof *bigger);
        if (bigger == NULL) {
            return cli_fail(CLI_EXIT_FAILURE, "out of memory for %zu measurements", capacity);
        }
        log->rows = bigger;
        log->capacity = capacity;
    }
    char **row = malloc(bytes);
    if (row == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for a measurement");
    }
    char *text = (char *)(row + n);
    for (size_t i = 0; i < n; i++) {
        size_t size = strlen(cells[i]) + 1;
        row[i] = memcpy(text, cells[i], size);
        text += size;
    }
    log->rows[log->n_rows++] = row;
    return CLI_EXIT_OK;
}

const char *const *cli_bench_log_find(const cli_bench_log *log, const char *const *keys)
{
    for (size_t r = 0; r < log->n_rows; r++) {
        size_t k = 0;
        while (k < log->options.n_keys && strcmp(log->rows[r][k], keys[k]) == 0) {
            k++;
        }
        if (k == log->options.n_keys) {
            return (const char *const *)log->rows[r];
        }
    }
    return NULL;
}

/* ---- Lines ---- */

static bool append_text(cli_buffer *line, const char *text)
{
    return cli_buffer_append(line, text, strlen(text));
}

/* Quotes a cell if necessary. A line break, which would end the row, becomes a blank. */
static bool append_cell(cli_buffer *line, const char *cell)
{
    if (strpbrk(cell, ",\"\r\n") == NULL) {
        return append_text(line, cell);
    }
    bool ok = append_text(line, "\"");
    for (; *cell != '\0' && ok; cell++) {
        bool is_break = *cell == '\n' || *cell == '\r';
        ok = (*cell != '"' || append_text(line, "\"")) &&
             cli_buffer_append(line, is_break ? " " : cell, 1);
    }
    return ok && append_text(line, "\"");
}

static bool append_row(cli_buffer *line, const char *const *cells, size_t n)
{
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++) {
        ok = (i == 0 || append_text(line, ",")) && append_cell(line, cells[i]);
    }
    return ok && append_text(line, "\n");
}

/* Splits a line, without its end, in place. Returns the number of cells, or capacity + 1 for too
 * many. */
static size_t split_row(char *line, const char **cells, size_t capacity)
{
    size_t n = 0;
    for (;; line++) {
        if (n == capacity) {
            return capacity + 1;
        }
        char *out = line;
        cells[n++] = line;
        if (*line == '"') {
            for (line++; *line != '\0' && (*line != '"' || line[1] == '"'); line++) {
                line += *line == '"';
                *out++ = *line;
            }
            line += *line == '"';
        } else {
            line += strcspn(line, ",");
            out = line;
        }
        bool is_last = *line != ',';
        *out = '\0';
        if (is_last) {
            return n;
        }
    }
}

/* ---- The file ---- */

static int write_all(const cli_bench_log *log, const cli_buffer *bytes)
{
    size_t done = 0;
    while (done < bytes->size) {
        ssize_t n = write(log->fd, bytes->data + done, bytes->size - done);
        if (n < 0 && errno != EINTR) {
            return cli_fail(CLI_EXIT_FAILURE, "%s: %s", log->options.path, strerror(errno));
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return fdatasync(log->fd) == 0 || errno == EINVAL
               ? CLI_EXIT_OK
               : cli_fail(CLI_EXIT_FAILURE, "%s: %s", log->options.path, strerror(errno));
}

int cli_bench_log_append(cli_bench_log *log, const char *const *cells)
{
    cli_buffer line = {0};
    int code = keep_row(log, cells);
    if (code == CLI_EXIT_OK && log->fd >= 0) {
        code = append_row(&line, cells, log->options.n_columns)
                   ? write_all(log, &line)
                   : cli_fail(CLI_EXIT_FAILURE, "out of memory for a measurement");
    }
    cli_buffer_free(&line);
    return code;
}

/* Whether the entry is compared. Names of files are not: their content has an entry of its own. */
static bool is_compared(const char *key)
{
    const char *end = strstr(key, "_file");
    return strcmp(key, "model") != 0 && (end == NULL || strcmp(end, "_file") != 0);
}

/* Checks that every setting of this run equals the file's. */
static int check_identity(const cli_bench_log *log, const char *line, struct json_object *identity)
{
    struct json_object *found = line[0] == '#' ? json_tokener_parse(line + 1) : NULL;
    int code = CLI_EXIT_OK;
    if (found == NULL || !json_object_is_type(found, json_type_object)) {
        code = cli_fail(CLI_EXIT_FAILURE, "%s: not a file of measurements that can be resumed",
                        log->options.path);
    }
    json_object_object_foreach(identity, key, value)
    {
        struct json_object *other = NULL;
        if (code != CLI_EXIT_OK) {
            break;
        }
        const char *now = json_object_get_string(value);
        const char *then = json_object_object_get_ex(found, key, &other) && other != NULL
                               ? json_object_get_string(other)
                               : "";
        if (is_compared(key) && strcmp(now, then) != 0) {
            code = cli_fail(CLI_EXIT_FAILURE,
                            "%s: measured with %s '%s', and now it is '%s': give another --csv "
                            "FILE",
                            log->options.path, key, then, now);
        }
    }
    json_object_put(found);
    return code;
}

/* Reads lines from the third on. A malformed last row counts as torn and is dropped: *good is where
 * the file ends. */
static int read_rows(cli_bench_log *log, char *text, size_t size, size_t *good)
{
    size_t capacity = log->options.n_columns;
    const char **cells = calloc(capacity, sizeof *cells);
    int code = cells != NULL ? CLI_EXIT_OK : cli_fail(CLI_EXIT_FAILURE, "out of memory");
    size_t number = 3;
    for (size_t at = *good; at < size && code == CLI_EXIT_OK; number++) {
        char *end = memchr(text + at, '\n', size - at);
        size_t next = (size_t)(end - text) + 1;
        *end = '\0';
        size_t n = split_row(text + at, cells, capacity);
        if (n == capacity) {
            code = keep_row(log, cells);
            *good = next;
        } else if (next < size) {
            code = cli_fail(CLI_EXIT_FAILURE, "%s, line %zu: %zu values, not %zu",
                            log->options.path, number, n, capacity);
        }
        at = next;
    }
    free(cells);
    return code;
}

/* Continues an older run's file: keeps whole lines, cuts off a torn one. */
static int continue_log(cli_bench_log *log, cli_buffer *head, size_t identity_bytes,
                        cli_buffer *text, struct json_object *identity)
{
    char *last = text->size > 0 ? memrchr(text->data, '\n', text->size) : NULL;
    size_t whole = last != NULL ? (size_t)(last - text->data) + 1 : 0;
    size_t good = head->size;
    int code = CLI_EXIT_OK;
    bool torn_head = text->size < head->size && memcmp(text->data, head->data, text->size) == 0;
    if (torn_head) {
        good = 0;
    } else {
        char *line = text->data;
        char *end = memchr(line, '\n', whole);
        if (end == NULL) {
            return cli_fail(CLI_EXIT_FAILURE, "%s: not a file of measurements that can be resumed",
                            log->options.path);
        }
        *end = '\0';
        size_t at = (size_t)(end - line) + 1;
        size_t columns_bytes = head->size - identity_bytes;
        code = check_identity(log, line, identity);
        if (code == CLI_EXIT_OK &&
            (whole - at < columns_bytes ||
             memcmp(line + at, head->data + identity_bytes, columns_bytes) != 0)) {
            code = cli_fail(CLI_EXIT_FAILURE,
                            "%s: other columns than this version's: give "
                            "another --csv FILE",
                            log->options.path);
        }
        good = at + columns_bytes;
        if (code == CLI_EXIT_OK) {
            code = read_rows(log, text->data, whole, &good);
        }
    }
    if (code == CLI_EXIT_OK && (ftruncate(log->fd, (off_t)good) != 0)) {
        code = cli_fail(CLI_EXIT_FAILURE, "%s: %s", log->options.path, strerror(errno));
    }
    return code == CLI_EXIT_OK && good == 0 ? write_all(log, head) : code;
}

static int open_file(cli_bench_log *log, bool *exists)
{
    const char *path = log->options.path;
    *exists = access(path, F_OK) == 0;
    if (*exists && !log->options.resume) {
        return cli_fail(CLI_EXIT_FAILURE, "%s exists: --resume goes on with it", path);
    }
    log->created = !*exists;
    log->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log->fd < 0) {
        return cli_fail(CLI_EXIT_FAILURE, "%s: %s", path, strerror(errno));
    }
    if (flock(log->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        return cli_fail(CLI_EXIT_FAILURE, "%s: another run is writing it", path);
    }
    return CLI_EXIT_OK;
}

static int open_path(cli_bench_log *log, struct json_object *identity)
{
    const cli_bench_log_options *o = &log->options;
    cli_buffer head = {0};
    cli_buffer text = {0};
    bool exists;
    int code = open_file(log, &exists);
    const char *json = json_object_to_json_string_ext(identity, JSON_C_TO_STRING_PLAIN |
                                                                    JSON_C_TO_STRING_NOSLASHESCAPE);
    bool ok = json != NULL && append_text(&head, "# ") && append_text(&head, json) &&
              append_text(&head, "\n");
    size_t identity_bytes = head.size;
    ok = ok && append_row(&head, o->columns, o->n_columns);
    if (code == CLI_EXIT_OK && !ok) {
        code = cli_fail(CLI_EXIT_FAILURE, "out of memory");
    }
    if (code == CLI_EXIT_OK && exists) {
        code = cli_read_file(&text, o->path);
        code =
            code == CLI_EXIT_OK ? continue_log(log, &head, identity_bytes, &text, identity) : code;
    } else if (code == CLI_EXIT_OK) {
        code = write_all(log, &head);
    }
    cli_buffer_free(&head);
    cli_buffer_free(&text);
    return code;
}

int cli_bench_log_open(cli_bench_log **out, const cli_bench_log_options *options)
{
    cli_bench_log *log = calloc(1, sizeof *log);
    *out = log;
    if (log == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory");
    }
    log->options = *options;
    log->fd = -1;
    int code = options->path != NULL ? open_path(log, options->identity) : CLI_EXIT_OK;
    log->options.columns = NULL; /* belongs to the caller, like the identity */
    log->options.identity = NULL;
    if (code != CLI_EXIT_OK) {
        cli_bench_log_close(out);
    }
    return code;
}

void cli_bench_log_close(cli_bench_log **log)
{
    if (*log == NULL) {
        return;
    }
    for (size_t r = 0; r < (*log)->n_rows; r++) {
        free((*log)->rows[r]);
    }
    free((*log)->rows);
    if ((*log)->fd >= 0) {
        /* Removes a file without measurements, which would only hinder the next attempt. */
        if ((*log)->created && (*log)->n_rows == 0) {
            (void)unlink((*log)->options.path);
        }
        close((*log)->fd);
    }
    free(*log);
    *log = NULL;
}
