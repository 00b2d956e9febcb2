/* SPDX-License-Identifier: MIT */
#include "runtime/pass/state_pool.h"

#include <stdlib.h>
#include <string.h>

#include "cpu/kernels/vector_ops.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"

#define WRITTEN_TO UINT32_MAX

int moe_state_pool_init(moe_state_pool *pool, moe_device *device, const moe_model_config *config,
                        uint32_t n_log_rows, moe_error *err)
{
    *pool = (moe_state_pool){.device = device, .n_layer = config->n_layer};
    const uint32_t n_all = config->n_streams * config->n_embd;
    pool->layers = moe_calloc(config->n_layer + 1u, sizeof *pool->layers);
    if (pool->layers == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the layout of layers' states");
    }
    size_t state = moe_recurrence_state_floats(&config->recurrence) * sizeof(float);
    size_t row = moe_align64(moe_recurrence_input_floats(&config->recurrence) * sizeof(float));
    for (uint32_t l = 0; l < config->n_layer; l++) {
        if (config->layers[l].mixer == MOE_MIXER_RECURRENT) {
            pool->layers[l] = (moe_state_layout){pool->state_bytes, state, pool->log_bytes, row};
            pool->state_bytes += moe_align64(state);
            pool->log_bytes += n_log_rows * row;
        }
    }
    state = moe_ngram_tail_floats(&config->ngrams, n_all) * sizeof(float);
    if (state > 0) {
        row = moe_align64(n_all * sizeof(float));
        pool->layers[config->n_layer] =
            (moe_state_layout){pool->state_bytes, state, pool->log_bytes, row};
        pool->state_bytes += moe_align64(state);
        pool->log_bytes += n_log_rows * row;
    }
    return MOE_OK;
}

void moe_state_pool_free(moe_state_pool *pool)
{
    free(pool->layers);
    *pool = (moe_state_pool){0};
}

uint64_t moe_state_pool_session_bytes(const moe_state_pool *pool)
{
    return MOE_STATES_MOST * moe_memory_border_page_cost(pool->device, pool->state_bytes) +
           moe_memory_border_page_cost(pool->device, pool->log_bytes);
}

/* ---- One state ---- */

static int new_state(moe_state_pool *pool, size_t bytes, moe_state **out, moe_error *err)
{
    moe_state *state = moe_calloc(1, sizeof *state);
    if (state == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a session's state");
    }
    int status =
        moe_memory_border_take_page(pool->border, bytes, &state->memory, &state->lent, err);
    if (status != MOE_OK) {
        free(state);
        return status;
    }
    state->n_users = 1;
    state->position = WRITTEN_TO;
    *out = state;
    return MOE_OK;
}

static void drop(moe_state_pool *pool, moe_state **state_ptr, size_t bytes)
{
    moe_state *state = *state_ptr;
    *state_ptr = NULL;
    MOE_ASSERT(state == NULL || state->n_users > 0);
    if (state != NULL && --state->n_users == 0) {
        moe_memory_border_give_page(pool->border, bytes, state->memory, state->lent);
        free(state);
    }
}

static moe_state *hold(moe_state *state)
{
    if (state != NULL) {
        state->n_users++;
    }
    return state;
}

/* ---- The states of a session ---- */

/* Frees a state for reuse: the next pass may write to it. */
static void recycle(moe_state_pool *pool, moe_state_table *t, moe_state *state)
{
    if (t->next == NULL && state != NULL && state->n_users == 1) {
        t->next = state;
        t->next->position = WRITTEN_TO;
    } else {
        drop(pool, &state, pool->state_bytes);
    }
}

/* Reserves `next`. Without memory for one more state, reuses the oldest snapshot. */
static int reserve_next(moe_state_pool *pool, moe_state_table *t, moe_error *err)
{
    int status = new_state(pool, pool->state_bytes, &t->next, err);
    while (status == MOE_ERR_BUDGET && t->next == NULL && t->n_snapshots > 0) {
        moe_state *oldest = t->snapshots[0];
        t->n_snapshots--;
        memmove(t->snapshots, t->snapshots + 1, t->n_snapshots * sizeof *t->snapshots);
        recycle(pool, t, oldest);
    }
    return t->next != NULL ? MOE_OK : status;
}

int moe_state_table_reserve(moe_state_pool *pool, moe_state_table *t, moe_error *err)
{
    if (pool->state_bytes == 0) {
        return MOE_OK;
    }
    if (t->next == NULL) {
        MOE_TRY(reserve_next(pool, t, err));
    }
    if (t->log == NULL && pool->log_bytes > 0) {
        MOE_TRY(new_state(pool, pool->log_bytes, &t->log, err));
    }
    return MOE_OK;
}

moe_state_run moe_state_table_run(moe_state_table *t, uint32_t first_row, uint32_t n_rows,
                                  bool logs)
{
    moe_state_run run = {.first_row = first_row, .n_rows = n_rows};
    if (t->next != NULL) {
        t->next->position = WRITTEN_TO;
        run.from = t->current != NULL ? t->current->memory : NULL;
        run.to = t->next->memory;
        run.log = logs && t->log != NULL ? t->log->memory : NULL;
    }
    return run;
}

moe_state_run moe_state_table_chunk(moe_state_table *t, const moe_state *other, uint32_t i,
                                    uint32_t n, uint32_t n_rows)
{
    moe_state_run run = moe_state_table_run(t, 0, n_rows, false);
    bool to_next = (n - 1 - i) % 2 == 0;
    if (t->next != NULL) {
        run.to = to_next ? t->next->memory : other->memory;
        run.from = i == 0 ? run.from : to_next ? other->memory : t->next->memory;
    }
    return run;
}

int moe_state_take(moe_state_pool *pool, moe_state **out, moe_error *err)
{
    *out = NULL;
    return pool->state_bytes > 0 ? new_state(pool, pool->state_bytes, out, err) : MOE_OK;
}

void moe_state_give(moe_state_pool *pool, moe_state **state)
{
    drop(pool, state, pool->state_bytes);
}

moe_state_run moe_state_table_draft_row(const moe_state_table *t, uint32_t row, uint32_t log_first,
                                        uint32_t n_logged)
{
    moe_state_run run = {.first_row = row, .n_rows = 1};
    if (t->log != NULL) {
        run.from = t->current != NULL ? t->current->memory : NULL;
        run.log = t->log->memory;
        run.log_first = log_first;
        run.n_logged = n_logged;
    }
    return run;
}

int moe_state_table_move_log(const moe_state_pool *pool, const moe_state_table *t, uint32_t from,
                             uint32_t to, uint32_t n, moe_error *err)
{
    MOE_ASSERT(t->log != NULL && (from >= to + n || to >= from + n));
    for (uint32_t l = 0; l <= pool->n_layer; l++) {
        const moe_state_layout *at = &pool->layers[l];
        if (at->bytes > 0) {
            uint8_t *rows = (uint8_t *)t->log->memory + at->log_offset;
            size_t n_floats = at->row_bytes / sizeof(float);
            MOE_TRY(pool->device->ops->copy_rows(
                pool->device, (const float *)(rows + from * at->row_bytes), n_floats,
                (float *)(rows + to * at->row_bytes), n_floats, n_floats, n, err));
        }
    }
    return MOE_OK;
}

/* Which of these n states can be dropped with the least loss: the one whose removal leaves the
 * others spaced most evenly. The last one and the latest beginning of a turn are never chosen. */
static uint32_t least_missed(moe_state *const *s, uint32_t n)
{
    uint32_t turn = n;
    for (uint32_t i = 0; i < n; i++) {
        turn = s[i]->begins_turn ? i : turn;
    }
    uint32_t least = 0;
    uint32_t least_gap = UINT32_MAX;
    for (uint32_t i = 0; i + 1 < n; i++) {
        uint32_t gap = s[i + 1]->position - (i > 0 ? s[i - 1]->position : 0);
        if (i != turn && gap < least_gap) {
            least = i;
            least_gap = gap;
        }
    }
    return least;
}

/* Makes the state a snapshot, with the session's reference to it. */
static void keep(moe_state_pool *pool, moe_state_table *t, moe_state *state)
{
    moe_state *all[MOE_STATE_SNAPSHOTS + 1];
    uint32_t n = t->n_snapshots;
    memcpy(all, t->snapshots, n * sizeof *all);
    all[n++] = state;
    if (n > MOE_STATE_SNAPSHOTS) {
        uint32_t gone = least_missed(all, n);
        recycle(pool, t, all[gone]);
        n--;
        memmove(all + gone, all + gone + 1, (n - gone) * sizeof *all);
    }
    memcpy(t->snapshots, all, n * sizeof *all);
    t->n_snapshots = n;
}

/* Whether to keep the state as a snapshot, so that cutting the timeline back to here is cheap. */
static bool is_wanted(const moe_state_table *t, const moe_state *state)
{
    uint32_t last = t->n_snapshots > 0 ? t->snapshots[t->n_snapshots - 1]->position : 0;
    return state->begins_turn ? state->position > last
                              : state->position - last >= MOE_STATE_INTERVAL;
}

void moe_state_table_commit(moe_state_pool *pool, moe_state_table *t, uint32_t position)
{
    moe_state *old = t->current;
    if (pool->state_bytes == 0) {
        return;
    }
    MOE_ASSERT(t->next != NULL && t->next->n_users == 1 && t->n_snapshots <= MOE_STATE_SNAPSHOTS);
    t->current = t->next;
    t->current->position = position;
    t->current->begins_turn = false;
    t->next = NULL;
    if (old != NULL && t->begins_turn) {
        old->begins_turn = true;
    }
    t->begins_turn = false;
    if (old != NULL && is_wanted(t, old)) {
        keep(pool, t, old);
    } else if (old != NULL && old->n_users == 1) {
        t->next = old; /* serves as a snapshot until a pass writes to it */
    } else {
        drop(pool, &old, pool->state_bytes);
    }
    MOE_ASSERT(moe_state_table_check(t, position));
}

uint32_t moe_state_table_rewind(moe_state_pool *pool, moe_state_table *t, uint32_t n)
{
    if (pool->state_bytes == 0 || (t->current != NULL && t->current->position <= n)) {
        return t->current != NULL ? t->current->position : n;
    }
    while (t->n_snapshots > 0 && t->snapshots[t->n_snapshots - 1]->position > n) {
        drop(pool, &t->snapshots[--t->n_snapshots], pool->state_bytes);
    }
    moe_state *snapshot = t->n_snapshots > 0 ? t->snapshots[t->n_snapshots - 1] : NULL;
    moe_state *found = snapshot;
    if (t->next != NULL && t->next->position <= n &&
        (found == NULL || t->next->position >= found->position)) {
        found = t->next;
        t->next = NULL;
    } else if (snapshot != NULL) {
        t->n_snapshots--;
    }
    moe_state *old = t->current;
    t->current = found;
    t->begins_turn = false;
    recycle(pool, t, old);
    MOE_ASSERT(moe_state_table_check(t, found != NULL ? found->position : 0));
    return found != NULL ? found->position : 0;
}

void moe_state_table_share(moe_state_table *out, const moe_state_table *t)
{
    *out = (moe_state_table){.current = hold(t->current), .n_snapshots = t->n_snapshots};
    for (uint32_t i = 0; i < t->n_snapshots; i++) {
        out->snapshots[i] = hold(t->snapshots[i]);
    }
    out->begins_turn = t->begins_turn;
}

void moe_state_table_free(moe_state_pool *pool, moe_state_table *t)
{
    while (t->n_snapshots > 0) {
        drop(pool, &t->snapshots[--t->n_snapshots], pool->state_bytes);
    }
    drop(pool, &t->current, pool->state_bytes);
    drop(pool, &t->next, pool->state_bytes);
    drop(pool, &t->log, pool->log_bytes);
}

bool moe_state_table_check(const moe_state_table *t, uint32_t n_evaluated)
{
    uint32_t position = t->current != NULL ? t->current->position : 0;
    bool holds = position == n_evaluated && t->n_snapshots <= MOE_STATE_SNAPSHOTS &&
                 (t->next == NULL || t->next->n_users == 1) &&
                 (t->log == NULL || t->log->n_users == 1);
    for (uint32_t i = 0; holds && i < t->n_snapshots; i++) {
        uint32_t before = i > 0 ? t->snapshots[i - 1]->position : 0;
        holds = t->snapshots[i]->position > before && t->snapshots[i]->position < position;
    }
    return holds;
}
