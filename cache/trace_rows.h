/* SPDX-License-Identifier: MIT */
/* A trace in memory: rows in the order in which they were evaluated, each with a list of experts
 * per layer.
 *
 *    ids:   [ row 0: layer 0 | layer 1 | ... | row 1: layer 0 | ... ]
 *    start: [n_rows * n_layer + 1] where each list begins
 *
 * Lists may differ in length, since layers without experts have empty ones, so memory grows with
 * the file's content.
 */
#ifndef MOE_CACHE_TRACE_ROWS_H
#define MOE_CACHE_TRACE_ROWS_H

#include <pthread.h>

#include <moe/trace.h>

/* Limits for trace files: larger than any model needs, and small enough that a key fits into 32
 * bits. */
#define MOE_TRACE_MAX_LAYERS  4096u
#define MOE_TRACE_MAX_EXPERTS 4096u
#define MOE_TRACE_MAX_KEYS    (1u << 22) /* layers x experts */
#define MOE_TRACE_MOST_AHEAD  31u        /* passes that a forecast looks ahead */

/* A forecast, made before a pass, that this pass or a later one will use an expert. */
typedef struct moe_trace_forecast {
    uint32_t passes_ahead; /* 0: the pass before which it was made */
    uint16_t layer;
    uint16_t expert;
    float chance;
} moe_trace_forecast;

/* What was computed from a trace and is kept with it (access_list.c). */
typedef struct moe_trace_kept {
    pthread_mutex_t mutex;
    void *lists[2]; /* NULL: not made yet */
    void (*release)(void *list);
} moe_trace_kept;

struct moe_trace {
    moe_trace_kept *kept;
    uint32_t n_layer; /* 0: not known yet (no row) */
    uint32_t n_expert;
    uint32_t n_expert_used;
    bool has_gates;
    uint64_t n_rows;
    uint64_t n_passes;
    uint32_t n_sequences;
    size_t n_ids;
    uint64_t *pass;     /* [n_rows] ascending from 0, without gaps */
    uint64_t *token;    /* [n_rows] position in its sequence, as the file gives it */
    uint32_t *sequence; /* [n_rows] */
    size_t *start;      /* [n_rows * n_layer + 1] */
    uint16_t *ids;      /* ascending within a list */
    float *gates;       /* [n_ids] or NULL */
    moe_trace_forecast *forecasts;
    uint64_t *forecast_pass; /* for each forecast, ascending: the pass before which it was made */
    size_t n_forecasts;
    size_t forecast_capacity;
    uint32_t n_lists;    /* lists that the last row has so far */
    size_t row_capacity; /* of the arrays by row, in rows; the same for start */
    size_t id_capacity;
};

typedef struct moe_trace_list {
    const uint16_t *ids;
    const float *gates; /* NULL when not recorded */
    uint32_t n;
} moe_trace_list;

static inline moe_trace_list moe_trace_list_of(const moe_trace *trace, uint64_t row, uint32_t layer)
{
    size_t at = row * trace->n_layer + layer;
    size_t first = trace->start[at];
    return (moe_trace_list){trace->ids + first, trace->gates == NULL ? NULL : trace->gates + first,
                            (uint32_t)(trace->start[at + 1] - first)};
}

/* Creates an empty trace for a model of this size. If n_expert is 0, the number of experts
 * follows from the ids. NULL: memory is short. */
moe_trace *moe_trace_new(uint32_t n_layer, uint32_t n_expert, bool has_gates);
/* Begins a row. It belongs to the current pass (n_passes - 1), or, if new_pass, to the next one. */
int moe_trace_add_row(moe_trace *trace, bool new_pass, uint64_t token, uint32_t sequence);
/* Adds the experts of the row's next layer, sorted by id; every row needs all layers. gates may
 * be NULL if the trace has none. Fails with MOE_ERR_FORMAT if an id occurs twice or is out of
 * range, or with MOE_ERR_MEMORY. */
int moe_trace_add_list(moe_trace *trace, const uint16_t *ids, const float *gates, uint32_t n);
/* Adds a forecast that was made before the pass of the last row. Fails with MOE_ERR_FORMAT if it
 * is out of range, or with MOE_ERR_MEMORY. */
int moe_trace_add_forecast(moe_trace *trace, const moe_trace_forecast *forecast);
/* Call after the last row: sets the fields that depend on all rows. */
int moe_trace_finish(moe_trace *trace, moe_error *err);

#endif
