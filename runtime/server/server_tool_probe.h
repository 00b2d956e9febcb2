/* SPDX-License-Identifier: MIT */
/* The format of tool calls of the server's model, found out at the first request that needs it. */
#ifndef SERVER_TOOL_PROBE_H
#define SERVER_TOOL_PROBE_H

#include <pthread.h>
#include <stdbool.h>

#include <moe/moe.h>

#include "server.h"
#include "server_tool_format.h"

typedef struct server_tools {
    pthread_mutex_t lock;
    /* Under the lock; not changed once known. */
    bool known;
    bool shown; /* the template tells the model what tools there are */
    server_tool_format format;
} server_tools;

void server_tools_init(server_tools *tools);
/* False when memory is short. Afterwards format and shown may be read without the lock. */
bool server_tools_find(server_tools *tools, const moe_engine *engine,
                       const server_options *options);
void server_tools_free(server_tools *tools);

#endif
