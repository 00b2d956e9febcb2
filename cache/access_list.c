/* SPDX-License-Identifier: MIT */
#include "cache/access_list.h"

#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

/* Finds the end of the pass whose rows begin at `first`. */
static uint64_t end_of_pass(const moe_trace *trace, uint64_t first)
{
    uint64_t end = first;
    while (end < trace->n_rows && trace->pass[end] == trace->pass[first]) {
        end++;
    }
    return end;
}

uint64_t moe_trace_count_accesses(const moe_trace *trace)
{
    uint64_t n = 0;
    for (uint64_t first = 0, end; first < trace->n_rows; first = end) {
        end = end_of_pass(trace, first);
        for (uint32_t layer = 0; layer < trace->n_layer; layer++) {
            uint8_t seen[MOE_TRACE_MAX_EXPERTS / 8] = {0};
            for (uint64_t row = first; row < end; row++) {
                moe_trace_list list = moe_trace_list_of(trace, row, layer);
                for (uint32_t i = 0; i < list.n; i++) {
                    uint8_t bit = (uint8_t)(1u << (list.ids[i] % 8));
                    n += (seen[list.ids[i] / 8] & bit) == 0;
                    seen[list.ids[i] / 8] |= bit;
                }
            }
        }
    }
    return n;
}

/* Counts by expert, for one layer of one pass. */
typedef struct layer_tally {
    uint32_t *n_rows;
    float *gate;
} layer_tally;

static size_t add_layer(moe_access_list *list, const moe_trace *trace, layer_tally *tally,
                        uint64_t first, uint64_t end, uint32_t layer, size_t at)
{
    for (uint64_t row = first; row < end; row++) {
        moe_trace_list chosen = moe_trace_list_of(trace, row, layer);
        for (uint32_t i = 0; i < chosen.n; i++) {
            tally->n_rows[chosen.ids[i]]++;
            tally->gate[chosen.ids[i]] += chosen.gates == NULL ? 0.0f : chosen.gates[i];
        }
    }
    for (uint32_t e = 0; e < trace->n_expert; e++) {
        if (tally->n_rows[e] > 0) {
            list->keys[at] = layer * trace->n_expert + e;
            list->accesses[at++] = (moe_policy_access){.pass = trace->pass[first],
                                                       .layer = layer,
                                                       .n_rows = tally->n_rows[e],
                                                       .gate = tally->gate[e]};
            tally->n_rows[e] = 0;
            tally->gate[e] = 0;
        }
    }
    return at;
}

static void fill(moe_access_list *list, const moe_trace *trace, layer_tally *tally)
{
    size_t at = 0;
    size_t index = 0;
    for (uint64_t first = 0, end; first < trace->n_rows; first = end) {
        end = end_of_pass(trace, first);
        list->rows_before[trace->pass[first]] = first;
        for (uint32_t layer = 0; layer < trace->n_layer; layer++) {
            list->start[index++] = at;
            at = add_layer(list, trace, tally, first, end, layer, at);
        }
    }
    list->start[index] = at;
    list->rows_before[list->n_passes] = trace->n_rows;
}

/* Fills in next uses by walking the accesses backwards. next: [n_layer * n_expert], zero-filled. */
static void fill_next_uses(moe_access_list *list, bool is_sequential, uint64_t *next)
{
    for (size_t i = list->start[list->n_passes * list->n_layer]; i-- > 0;) {
        uint32_t key = list->keys[i];
        moe_policy_access *access = &list->accesses[i];
        access->next_use = next[key] == 0 ? UINT64_MAX : next[key];
        next[key] = is_sequential ? i : access->pass * list->n_layer + access->layer;
    }
}

static void release(moe_access_list *list)
{
    free(list->start);
    free(list->keys);
    free(list->accesses);
    free(list->rows_before);
    *list = (moe_access_list){.n_layer = 0};
}

static int build(moe_access_list *list, const moe_trace *trace, bool is_sequential, moe_error *err)
{
    uint64_t n = moe_trace_count_accesses(trace);
    *list = (moe_access_list){.n_layer = trace->n_layer, .n_passes = trace->n_passes};
    list->start = moe_calloc(trace->n_passes * trace->n_layer + 1, sizeof *list->start);
    list->keys = moe_calloc(n, sizeof *list->keys);
    list->accesses = moe_calloc(n, sizeof *list->accesses);
    list->rows_before = moe_calloc(trace->n_passes + 1, sizeof *list->rows_before);
    layer_tally tally = {moe_calloc(trace->n_expert, sizeof *tally.n_rows),
                         moe_calloc(trace->n_expert, sizeof *tally.gate)};
    uint64_t *next = moe_calloc((size_t)trace->n_layer * trace->n_expert, sizeof *next);
    int status = MOE_OK;
    if (list->start == NULL || list->keys == NULL || list->accesses == NULL ||
        list->rows_before == NULL || tally.n_rows == NULL || tally.gate == NULL || next == NULL) {
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory for the accesses of a trace");
        release(list);
    } else {
        fill(list, trace, &tally);
        fill_next_uses(list, is_sequential, next);
    }
    free(tally.n_rows);
    free(tally.gate);
    free(next);
    return status;
}

static void release_kept(void *list)
{
    release(list);
    free(list);
}

int moe_access_list_of(const moe_access_list **list, const moe_trace *trace, bool is_sequential,
                       moe_error *err)
{
    moe_trace_kept *kept = trace->kept;
    int status = MOE_OK;
    pthread_mutex_lock(&kept->mutex);
    if (kept->lists[is_sequential] == NULL) {
        moe_access_list *made = moe_calloc(1, sizeof *made);
        status = made == NULL
                     ? moe_fail(err, MOE_ERR_MEMORY, "out of memory for the accesses of a trace")
                     : build(made, trace, is_sequential, err);
        if (status == MOE_OK) {
            kept->lists[is_sequential] = made;
            kept->release = release_kept;
        } else {
            free(made);
        }
    }
    *list = kept->lists[is_sequential];
    pthread_mutex_unlock(&kept->mutex);
    return status;
}
