/* SPDX-License-Identifier: MIT */
#include "server_stops.h"

#include <stdint.h>
#include <string.h>

/* Returns where the first stop string begins in the text that is held back; SIZE_MAX: it contains
 * none. */
static size_t find_first(server_stops *stops)
{
    size_t first = SIZE_MAX;
    for (size_t i = 0; i < stops->n && stops->held.size > 0; i++) {
        const char *at =
            memmem(stops->held.data, stops->held.size, stops->texts[i], stops->sizes[i]);
        if (at != NULL && (size_t)(at - stops->held.data) < first) {
            first = (size_t)(at - stops->held.data);
            stops->found = i;
        }
    }
    return first;
}

/* Returns the number of bytes at the end of the held text that may be the beginning of a stop
 * string. Stop strings begin with a whole character, so the text before those bytes consists of
 * whole characters, too. */
static size_t longest_beginning(const server_stops *stops)
{
    size_t longest = 0;
    for (size_t i = 0; i < stops->n; i++) {
        size_t most = stops->sizes[i] - 1;
        for (size_t size = most < stops->held.size ? most : stops->held.size; size > longest;
             size--) {
            if (memcmp(stops->held.data + stops->held.size - size, stops->texts[i], size) == 0) {
                longest = size;
            }
        }
    }
    return longest;
}

/* Moves the first `size` bytes of the text that is held back to `out`. */
static bool let_go(server_stops *stops, size_t size, cli_buffer *out)
{
    if (size == 0) {
        return true;
    }
    if (!cli_buffer_append(out, stops->held.data, size)) {
        return false;
    }
    stops->held.size -= size;
    memmove(stops->held.data, stops->held.data + size, stops->held.size);
    return true;
}

server_stops_result server_stops_push(server_stops *stops, const char *text, size_t size,
                                      cli_buffer *out)
{
    if (stops->n == 0) {
        return cli_buffer_append(out, text, size) ? SERVER_STOPS_GO_ON : SERVER_STOPS_NO_MEMORY;
    }
    if (!cli_buffer_append(&stops->held, text, size)) {
        return SERVER_STOPS_NO_MEMORY;
    }
    size_t first = find_first(stops);
    if (first != SIZE_MAX) {
        bool stored = let_go(stops, first, out);
        stops->held.size = 0;
        return stored ? SERVER_STOPS_FOUND : SERVER_STOPS_NO_MEMORY;
    }
    return let_go(stops, stops->held.size - longest_beginning(stops), out) ? SERVER_STOPS_GO_ON
                                                                           : SERVER_STOPS_NO_MEMORY;
}

bool server_stops_finish(server_stops *stops, cli_buffer *out)
{
    return let_go(stops, stops->held.size, out);
}

void server_stops_restart(server_stops *stops)
{
    stops->held.size = 0;
}

void server_stops_free(server_stops *stops)
{
    cli_buffer_free(&stops->held);
}
