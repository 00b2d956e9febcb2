/* SPDX-License-Identifier: MIT */
#include "cli_buffer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <moe/files.h>

#include "cli_interrupt.h"
#include "cli_options.h"

bool cli_buffer_append(cli_buffer *buffer, const void *bytes, size_t size)
{
    if (size >= (size_t)-1 / 4 - buffer->size) {
        return false;
    }
    size_t needed = buffer->size + size + 1;
    if (needed > buffer->capacity) {
        size_t capacity = needed < 256 ? 256 : needed * 2;
        char *data = realloc(buffer->data, capacity);
        if (data == NULL) {
            return false;
        }
        buffer->data = data;
        buffer->capacity = capacity;
    }
    if (size > 0) {
        memcpy(buffer->data + buffer->size, bytes, size);
    }
    buffer->size += size;
    buffer->data[buffer->size] = '\0';
    return true;
}

bool cli_buffer_reserve(cli_buffer *buffer, size_t capacity)
{
    if (capacity <= buffer->capacity) {
        return true;
    }
    char *data = realloc(buffer->data, capacity);
    if (data != NULL) {
        buffer->data = data;
        buffer->capacity = capacity;
        buffer->data[buffer->size] = '\0';
    }
    return data != NULL;
}

void cli_buffer_free(cli_buffer *buffer)
{
    free(buffer->data);
    memset(buffer, 0, sizeof *buffer);
}

static int read_all(cli_buffer *buffer, int fd, const char *name)
{
    char chunk[65536];
    for (;;) {
        ssize_t got = read(fd, chunk, sizeof chunk);
        if (got < 0 && errno == EINTR) {
            if (cli_interrupted()) {
                return CLI_EXIT_INTERRUPTED;
            }
            continue;
        }
        if (got < 0) {
            return cli_fail(CLI_EXIT_FAILURE, "%s: %s", name, strerror(errno));
        }
        if (!cli_buffer_append(buffer, chunk, (size_t)got)) {
            return cli_fail(CLI_EXIT_FAILURE, "%s: out of memory reading it", name);
        }
        if (got == 0) {
            return CLI_EXIT_OK;
        }
    }
}

int cli_read_file(cli_buffer *buffer, const char *path)
{
    if (strcmp(path, "-") == 0) {
        return read_all(buffer, STDIN_FILENO, "standard input");
    }
    int fd;
    moe_error err = {""};
    if (moe_input_open(&fd, path, MOE_INPUT_PIPES, &err) != MOE_OK) {
        return cli_fail(CLI_EXIT_FAILURE, "%s", err.message);
    }
    int code = read_all(buffer, fd, path);
    close(fd);
    return code;
}
