/* SPDX-License-Identifier: MIT */
/* Data for the web page about the engine at work: where each expert is, and the sessions. The
 * engine's thread takes a snapshot after a step, but only if somebody asked for one in the last
 * seconds, and at most a few times per second. */
#ifndef SERVER_VIEW_H
#define SERVER_VIEW_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <json-c/json.h>
#include <moe/moe.h>

#include "server.h"
#include "server_queue.h"

/* An active session. */
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
/* Takes a snapshot of the sessions only. It may be called within a step. */
void server_view_take_slots(server_view *view, server_job *const *active, uint32_t n_active);
/* Called by a connection's thread when the page asks for data. Returns true if the snapshot is so
 * old that the engine's thread should take a new one. */
bool server_view_ask(server_view *view);
/* Returns counters, the values from which rates are computed, the queue, and for each layer a
 * text with one digit for each expert: where it is (moe_tier). */
struct json_object *server_view_live(server_view *view, const server_counts *counts,
                                     const server_options *options, const moe_engine_info *info);
/* Returns the sessions: the active ones, then idle and free ones, --parallel in total. */
struct json_object *server_view_slots(server_view *view, const server_counts *counts,
                                      const server_options *options, uint32_t context);

#endif
