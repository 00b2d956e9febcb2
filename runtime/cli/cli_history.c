/* SPDX-License-Identifier: MIT */
#include "cli_history.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <moe/files.h>

#include "cli_buffer.h"

enum {
    MOST_ENTRIES = 1000,         /* read from the file */
    LONGEST_ENTRY = 64 << 10,    /* a longer message is rather a document */
    LARGEST_FILE = 4 * (1 << 20) /* a larger file is cut to the newest MOST_ENTRIES */
};

static void tell(cli_history *history, const char *what, const char *why)
{
    if (!history->told) {
        fprintf(stderr,
                "(no history: it cannot be %s: %s; --history FILE names another file, --history "
                "none keeps none)\n",
                what, why);
    }
    history->told = true;
}

/* The path by the XDG base directory specification; NULL: there is no home folder. */
static char *default_path(void)
{
    char *path = NULL;
    const char *state = getenv("XDG_STATE_HOME");
    const char *home = getenv("HOME");
    int n = -1;
    if (state != NULL && state[0] == '/') {
        n = asprintf(&path, "%s/moe-offload/history", state);
    } else if (home != NULL && home[0] == '/') {
        n = asprintf(&path, "%s/.local/state/moe-offload/history", home);
    }
    return n < 0 ? NULL : path;
}

/* Makes the folders of the path, accessible to their owner only, as the specification says. */
static void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
}

/* ---- A message and its line ---- */

static bool append_line(cli_buffer *line, const char *message)
{
    for (const char *at = message; *at != '\0'; at++) {
        const char *code = *at == '\n' ? "\\n" : *at == '\r' ? "\\r" : *at == '\\' ? "\\\\" : NULL;
        if (!cli_buffer_append(line, code == NULL ? at : code, code == NULL ? 1 : 2)) {
            return false;
        }
    }
    return cli_buffer_append(line, "\n", 1);
}

static void decode(char *line)
{
    char *out = line;
    for (const char *at = line; *at != '\0'; at++) {
        if (*at == '\\' && at[1] != '\0') {
            at++;
            *out++ = (char)(*at == 'n' ? '\n' : *at == 'r' ? '\r' : *at);
        } else {
            *out++ = *at;
        }
    }
    *out = '\0';
}

bool cli_history_keeps(const char *message)
{
    return message[0] != '\0' && message[0] != ' ' && strlen(message) <= LONGEST_ENTRY;
}

/* ---- The file ---- */

/* Replaces the file by its newest entries. */
static void shorten(const cli_history *history)
{
    moe_atomic_file *file = NULL;
    cli_buffer text = {NULL, 0, 0};
    bool whole = true;
    for (size_t i = 0; whole && i < history->n_entries; i++) {
        whole = append_line(&text, history->entries[i]);
    }
    if (whole && text.size > 0 &&
        moe_atomic_file_open(&file, history->path, MOE_FILE_PRIVATE, NULL) == MOE_OK &&
        moe_atomic_file_write(file, text.data, text.size, NULL) == MOE_OK) {
        (void)moe_atomic_file_commit(&file, NULL);
    }
    moe_atomic_file_abandon(&file);
    cli_buffer_free(&text);
}

static void forget_oldest(cli_history *history)
{
    free(history->entries[0]);
    memmove(history->entries, history->entries + 1,
            (history->n_entries - 1) * sizeof *history->entries);
    history->n_entries--;
}

static bool read_entries(cli_history *history, FILE *file)
{
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    history->entries = calloc(MOST_ENTRIES + 1, sizeof *history->entries);
    while (history->entries != NULL && (length = getline(&line, &size, file)) > 0) {
        line[length - 1] = (char)(line[length - 1] == '\n' ? '\0' : line[length - 1]);
        decode(line);
        char *entry = cli_history_keeps(line) ? strdup(line) : NULL;
        if (entry != NULL) {
            history->entries[history->n_entries++] = entry;
        }
        if (history->n_entries > MOST_ENTRIES) {
            forget_oldest(history);
        }
    }
    free(line);
    return !ferror(file);
}

void cli_history_open(cli_history *history, const cli_options *options)
{
    struct stat status;
    const char *given = options->history;
    *history = (cli_history){.path = NULL};
    if (given == NULL || strcmp(given, "none") != 0) {
        history->path = given == NULL ? default_path() : strdup(given);
    }
    if (history->path == NULL || (access(history->path, F_OK) != 0 && errno == ENOENT)) {
        return;
    }
    int opened;
    moe_error err = {""};
    FILE *file = moe_input_stream(history->path, 0, &opened, &err);
    if (file == NULL) {
        tell(history, "read", err.message);
        return;
    }
    if (!read_entries(history, file)) {
        tell(history, "read", strerror(errno));
    } else if (fstat(fileno(file), &status) == 0 && status.st_size > LARGEST_FILE) {
        shorten(history);
    }
    fclose(file);
}

/* Appends the line by one write, so that two conversations do not mix their lines. */
void cli_history_keep(cli_history *history, const char *message)
{
    cli_buffer line = {NULL, 0, 0};
    if (history->path == NULL || history->told || !cli_history_keeps(message)) {
        return;
    }
    make_folders(history->path);
    int fd = open(history->path, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0600);
    bool whole = fd >= 0 && append_line(&line, message) &&
                 write(fd, line.data, line.size) == (ssize_t)line.size;
    if (!whole) {
        tell(history, "written", strerror(errno));
    }
    if (fd >= 0) {
        close(fd);
    }
    cli_buffer_free(&line);
}

void cli_history_close(cli_history *history)
{
    for (size_t i = 0; i < history->n_entries; i++) {
        free(history->entries[i]);
    }
    free(history->entries);
    free(history->path);
    *history = (cli_history){.path = NULL};
}
