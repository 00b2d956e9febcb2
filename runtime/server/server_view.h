/* SPDX-License-Identifier: MIT */
/* What the page shows of the engine while it works: where experts are, and the sessions. The
 * engine's thread takes a picture after a step, if somebody has asked within the last seconds, and
 * not more often than a few times a second. */
#ifndef SERVER_VIEW_H
#define SERVER_VIEW_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <json-c/json.h>
#include <moe/moe.h>

#include "server.h"
#include "server_queue.h"

/* A session at work. */
typedef struct server_slot {
    uint64_t n_prompt, n_cached, n_read, n_written;
} server_slot;

typedef struct server_view {
    const moe_engine *engine; /* set at the start */
    uint32_t n_layer, n_expert;
    pthread_mutex_t lock;
    /* Under the lock. */
    uint64_t asked_ns;
    uint64_t taken_ns;
    uint8_t *tiers; /* [n_layer * n_expert]; NULL: memory was short, and the view has no grid */
    server_slot slots[SERVER_MOST_PARALLEL];
    uint32_t n_slots;
} server_view;

void server_view_init(server_view *view, const moe_engine *engine);
void server_view_free(server_view *view);
/* Takes a snapshot. Only the engine's thread calls it. */
void server_view_take(server_view *view, server_job *const *active, uint32_t n_active);
/* The sessions alone, within a step. */
void server_view_take_slots(server_view *view, server_job *const *active, uint32_t n_active);
/* Called by a connection's thread when somebody looks. Returns true if the snapshot is so old that
 * the engine's thread should take a new one. */
bool server_view_ask(server_view *view);
/* Counters, rates' sources, the queue, and a text for each layer with a digit for each expert (a
 * moe_tier). */
struct json_object *server_view_live(server_view *view, const server_counts *counts,
                                     const server_options *options, const moe_engine_info *info);
/* The sessions: those at work, then idle and free ones, --parallel together. */
struct json_object *server_view_slots(server_view *view, const server_counts *counts,
                                      const server_options *options, uint32_t context);

#endif
