/* SPDX-License-Identifier: MIT */
/* The engine's thread. It is the only thread that calls the engine, and decodes all active jobs
 * together as one batch. The session of a finished job stays as an idle session, so that a later
 * job whose prompt begins in the same way can continue from it. Active and idle sessions together
 * are never more than `parallel`, the number that memory is planned for. */
#ifndef SERVER_SCHEDULER_H
#define SERVER_SCHEDULER_H

#include <stdint.h>

#include <moe/moe.h>

#include "server_disk.h"
#include "server_queue.h"
#include "server_view.h"

typedef struct server_scheduler server_scheduler;

/* Starts the thread, which takes jobs from the queue. disk: the folder where evaluated prompts
 * are kept, or NULL. Returns NULL if memory is short or the thread cannot be created. */
server_scheduler *server_scheduler_start(moe_engine *engine, uint32_t parallel, server_queue *queue,
                                         server_disk *disk, server_view *view);
/* Ends the thread and closes all sessions. All jobs must be DONE. */
void server_scheduler_close(server_scheduler **scheduler);

#endif
