/* SPDX-License-Identifier: MIT */
/* A growing buffer of bytes; reads whole files into it. */
#ifndef CLI_BUFFER_H
#define CLI_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct cli_buffer {
    char *data; /* terminated once something was appended; NULL before */
    size_t size;
    size_t capacity;
} cli_buffer;

/* False when memory is short; the buffer is unchanged then. */
bool cli_buffer_append(cli_buffer *buffer, const void *bytes, size_t size);
/* Makes room for exactly this many bytes, the terminating one included. False when memory is short.
 */
bool cli_buffer_reserve(cli_buffer *buffer, size_t capacity);
void cli_buffer_free(cli_buffer *buffer);

/* Reads the whole file ("-": standard input; also <(COMMAND), but no named pipe). Returns an exit
 * code, after printing an error. An interrupted read gives CLI_EXIT_INTERRUPTED. */
int cli_read_file(cli_buffer *buffer, const char *path);

#endif
