/* SPDX-License-Identifier: MIT */
/* A session's part of recurrent layers, beside its KV pages: states of fixed size, each covering
 * all such layers at one position of the timeline.
 *
 *    snapshots ... current          next
 *      p0 < p1 ...  n_evaluated     a pass writes its result here; it becomes current when the
 *                                   pass has succeeded
 *
 * A state cannot be cut back. To cut a timeline back, the session goes back to a snapshot before
 * the place and evaluates the tokens from there again. The bits are the same, since a state depends
 * on the tokens alone. A rejected draft costs less: its rows' inputs are in the log, and `current`
 * is advanced over those of the accepted rows (moe_advance_states).
 *
 * Memory is bounded: a session has at most MOE_STATES_MOST states and one log, which the memory
 * plan counts. Forks share states and never write to a shared one. */
#ifndef MOE_PASS_STATE_POOL_H
#define MOE_PASS_STATE_POOL_H

#include "runtime/device/device.h"
#include "runtime/model/model_config.h"
#include "offload/memory_border.h"
#include "runtime/pass/pass.h"

#define MOE_STATE_SNAPSHOTS 3u
#define MOE_STATES_MOST     (MOE_STATE_SNAPSHOTS + 2u)
/* The least number of positions between snapshots. The beginning of a turn gets a snapshot at any
 * distance. */
#define MOE_STATE_INTERVAL 256u

/* One layer's place in a state and in a log. */
typedef struct moe_state_layout {
    size_t offset, bytes; /* in the state; bytes 0: the layer has no state */
    /* In the log: where the layer's part is, and the bytes of one row of it. */
    size_t log_offset, row_bytes;
} moe_state_layout;

typedef struct moe_state_pool {
    moe_device *device;
    /* [n_layer], then that of the convolution behind a table of n-grams */
    moe_state_layout *layers;
    uint32_t n_layer;
    size_t state_bytes;        /* 0: no layer has a state, and the functions below do nothing */
    size_t log_bytes;          /* 0: no drafts */
    moe_memory_border *border; /* grants states */
} moe_state_pool;

typedef struct moe_state {
    void *memory; /* device */
    bool lent;    /* its memory is lent by expert slots */
    uint32_t n_users;
    uint32_t position; /* number of tokens in it; UINT32_MAX: a pass may have written to it */
    bool begins_turn;
} moe_state;

/* The states of one session. */
typedef struct moe_state_table {
    moe_state *current;                        /* NULL: the timeline is empty */
    moe_state *next;                           /* belongs to this session alone, once reserved */
    moe_state *snapshots[MOE_STATE_SNAPSHOTS]; /* ascending positions */
    uint32_t n_snapshots;
    moe_state *log;   /* the log; its memory has log_bytes, not state_bytes */
    bool begins_turn; /* current is where a turn begins */
} moe_state_table;

/* n_log_rows: the rows of a session's log; 0: there are no drafts. */
int moe_state_pool_init(moe_state_pool *pool, moe_device *device, const moe_model_config *config,
                        uint32_t n_log_rows, moe_error *err);
void moe_state_pool_free(moe_state_pool *pool);
/* The most device memory that one session takes. */
uint64_t moe_state_pool_session_bytes(const moe_state_pool *pool);

/* Reserves the states that a pass will write to. MOE_ERR_BUDGET: there is no memory, and nothing
 * has changed. */
int moe_state_table_reserve(moe_state_pool *pool, moe_state_table *table, moe_error *err);
/* Describes a session's rows to a pass. Drafts log their rows. Call after
 * moe_state_table_reserve(). */
moe_state_run moe_state_table_run(moe_state_table *table, uint32_t first_row, uint32_t n_rows,
                                  bool logs);
/* Describes chunk i of a panel's n chunks. Each chunk goes on from the state that the chunk before
 * has written. The chunks write to `next` and to `other` in turn, so that the last one writes to
 * `next`. */
moe_state_run moe_state_table_chunk(moe_state_table *table, const moe_state *other, uint32_t i,
                                    uint32_t n, uint32_t n_rows);
/* Takes the state `other` for that; does nothing if no layer has a state. */
int moe_state_take(moe_state_pool *pool, moe_state **out, moe_error *err);
void moe_state_give(moe_state_pool *pool, moe_state **state);
/* Describes one row of a draft, behind n_logged rows of the log from log_first on. The row's result
 * is for the draft alone. Changes nothing. */
moe_state_run moe_state_table_draft_row(const moe_state_table *table, uint32_t row,
                                        uint32_t log_first, uint32_t n_logged);
/* Copies n rows of the log from row `from` to row `to`; the two must be at least n rows apart. */
int moe_state_table_move_log(const moe_state_pool *pool, const moe_state_table *table,
                             uint32_t from, uint32_t to, uint32_t n, moe_error *err);
/* Call when the pass has succeeded: `next` is the state at this position. */
void moe_state_table_commit(moe_state_pool *pool, moe_state_table *table, uint32_t position);
/* Goes back to the latest state of at most n tokens; returns this state's number of tokens. */
uint32_t moe_state_table_rewind(moe_state_pool *pool, moe_state_table *table, uint32_t n);
/* Makes out share the states of table. */
void moe_state_table_share(moe_state_table *out, const moe_state_table *table);
void moe_state_table_free(moe_state_pool *pool, moe_state_table *table);
/* Checks for tests: positions ascend, counts are in range, no shared state is written to. */
bool moe_state_table_check(const moe_state_table *table, uint32_t n_evaluated);

#endif
