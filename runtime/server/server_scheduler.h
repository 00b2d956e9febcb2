/* SPDX-License-Identifier: MIT */
/* One thread owns the engine and decodes all active jobs as one batch. Sessions of finished jobs
 * stay idle, so that a job whose prompt begins likewise goes on from there. Active and idle ones
 * together are never more than `parallel`, for which memory is planned. */
#ifndef SERVER_SCHEDULER_H
#define SERVER_SCHEDULER_H

#include <stdint.h>

#include <moe/moe.h>

#include "server_disk.h"
#include "server_queue.h"
#include "server_view.h"

typedef struct server_scheduler server_scheduler;

/* Starts the engine's thread, which takes jobs from the queue. NULL when memory is short or no
 * thread can be had. disk: where finished prompts are kept, or NULL. */
server_scheduler *server_scheduler_start(moe_engine *engine, uint32_t parallel, server_queue *queue,
                                         server_disk *disk, server_view *view);
/* Every job must be DONE. Ends the thread and closes the sessions. */
void server_scheduler_close(server_scheduler **scheduler);

#endif
