/* SPDX-License-Identifier: MIT */
/* Finds out in which format the server's model writes tool calls, when the first request needs
 * it. */
#ifndef SERVER_TOOL_PROBE_H
#define SERVER_TOOL_PROBE_H

#include <pthread.h>
#include <stdbool.h>

#include <moe/moe.h>

#include "server.h"
#include "server_tool_format.h"

typedef struct server_tools {
    pthread_mutex_t lock;
    /* Protected by the lock until `known` is true; afterwards they do not change. */
    bool known;
    bool shown; /* the template describes the tools to the model */
    server_tool_format format;
} server_tools;

void server_tools_init(server_tools *tools);
/* Finds the format. Afterwards `format` and `shown` may be read without the lock. False: memory
 * is short. */
bool server_tools_find(server_tools *tools, const moe_engine *engine,
                       const server_options *options);
void server_tools_free(server_tools *tools);

#endif
