/* SPDX-License-Identifier: MIT */
/* Finds stop strings in a text that arrives in pieces. Text that may be the beginning of a stop
 * string is held back until the following text decides. */
#ifndef SERVER_STOPS_H
#define SERVER_STOPS_H

#include <stdbool.h>
#include <stddef.h>

#include "cli_buffer.h"

enum { SERVER_MOST_STOPS = 16, SERVER_LONGEST_STOP = 256 };

typedef struct server_stops {
    char texts[SERVER_MOST_STOPS][SERVER_LONGEST_STOP]; /* UTF-8, not terminated, never empty */
    size_t sizes[SERVER_MOST_STOPS];
    size_t n;
    size_t found; /* which string, with SERVER_STOPS_FOUND */
    cli_buffer held;
} server_stops;

typedef enum server_stops_result {
    SERVER_STOPS_GO_ON,
    SERVER_STOPS_FOUND, /* the text ends before a stop string; what came after it is dropped */
    SERVER_STOPS_NO_MEMORY
} server_stops_result;

/* Adds the next piece, which consists of whole characters. Appends to `out` all text that cannot
 * be part of a stop string any more. */
server_stops_result server_stops_push(server_stops *stops, const char *text, size_t size,
                                      cli_buffer *out);
/* Call when the text has ended: appends the text that is held back. False: memory is short. */
bool server_stops_finish(server_stops *stops, cli_buffer *out);
/* Starts a new text: drops the text that is held back. */
void server_stops_restart(server_stops *stops);
void server_stops_free(server_stops *stops);

#endif
