/* SPDX-License-Identifier: MIT */
/* Finds stop strings in a text that comes in pieces. Text that may begin a stop string is held back
 * until more text decides. */
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

/* Takes the next piece, which has whole characters, and appends to out the text that cannot belong
 * to a stop string any more. */
server_stops_result server_stops_push(server_stops *stops, const char *text, size_t size,
                                      cli_buffer *out);
/* The text has ended: appends what was held back. False when memory is short. */
bool server_stops_finish(server_stops *stops, cli_buffer *out);
/* Begins a new text: drops the text that is held back. */
void server_stops_restart(server_stops *stops);
void server_stops_free(server_stops *stops);

#endif
