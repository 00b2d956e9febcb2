/* SPDX-License-Identifier: MIT */
#include "runtime/engine/session_panel.h"

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/program/op_forms.h"

/* A panel may take 1 / PANEL_SHARE of the memory for experts; slots lend it. */
#define PANEL_SHARE 8u
/* Of a cache that is smaller than a layer, whose experts pass through a few slots anyway, a block
 * may take this part. */
#define BLOCK_SHARE 2u

/* Positions that a row carries from layer to layer. */
static uint32_t n_carried(const moe_engine *engine)
{
    return moe_program_carries_choice(&engine->program) ? moe_most_chosen(&engine->config) : 0;
}

static uint64_t row_bytes(const moe_engine *engine)
{
    return engine->program.n_floats[MOE_VALUE_X] * sizeof(float) +
           n_carried(engine) * sizeof(uint32_t);
}

static bool misses_experts(const moe_engine *engine)
{
    return engine->plan.expert_slots < engine->plan.experts;
}

int moe_panel_plan(moe_engine *engine, uint32_t asked, moe_error *err)
{
    moe_memory_plan *plan = &engine->plan;
    uint64_t memory = plan->has_device_memory ? plan->host_cache : plan->expert_cache;
    uint64_t rows = asked;
    if (asked == 0) {
        rows = misses_experts(engine) ? memory / PANEL_SHARE / row_bytes(engine) : 0;
    }
    bool can = engine->offload == MOE_OFFLOAD_AUTO && moe_program_is_by_stream(&engine->program);
    if (asked > engine->prefill_chunk && !can) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "options.panel cannot act with %s: panels need layers that take over "
                        "nothing from those before but the residual stream, and an expert cache; "
                        "leave it out",
                        engine->model_path);
    }
    rows = rows < engine->context ? rows : engine->context;
    plan->panel_rows = can && rows > engine->prefill_chunk ? rows : 0;
    return MOE_OK;
}

static bool is_long(const moe_session *session)
{
    const moe_session_draft *d = session->draft;
    return moe_session_n_unevaluated(session) > session->engine->prefill_chunk &&
           (d == NULL || d->head == NULL);
}

bool moe_panel_is_awaited(const moe_session *session)
{
    const moe_engine *engine = session->engine;
    return engine->panel.session != NULL && engine->panel.session != session && is_long(session);
}

/* ---- Blocks ---- */

static void drop_block(moe_engine *engine)
{
    moe_panel *p = &engine->panel;
    if (p->block_bytes > 0) {
        moe_panel_block_close(&p->block);
        moe_memory_border_give(&engine->border, p->block_bytes);
        p->block_bytes = 0;
    }
}

/* Whether a layer's experts have slots all at once. */
static bool layer_fits(const moe_engine *engine)
{
    return engine->plan.expert_slots >= engine->config.n_expert;
}

/* Memory that a block may take: what is free, or a part of the memory for experts. */
static uint64_t memory_for_block(const moe_engine *engine)
{
    const moe_memory_plan *plan = &engine->plan;
    uint64_t share = plan->has_device_memory ? plan->host_cache : plan->expert_cache;
    share /= layer_fits(engine) ? PANEL_SHARE : BLOCK_SHARE;
    return engine->border.ram_free > share ? engine->border.ram_free : share;
}

/* As many rows of a panel as a block may have. */
static uint32_t most_block_rows(const moe_engine *engine)
{
    const uint64_t memory = memory_for_block(engine);
    const uint32_t chunk = engine->prefill_chunk;
    uint32_t n = engine->panel.n_rows;
    while (n > chunk && moe_panel_block_bytes(&engine->config, n, chunk) > memory) {
        n = (n / 2 + chunk - 1) / chunk * chunk;
    }
    return n;
}

/* Whether a block of so many rows reads less of the layer than chunks that take it at once. These
 * read the experts that lack slots once more, since others give up slots for them that are needed
 * later; or for each chunk, where the layer alone is too large. A block costs the slots whose
 * memory it takes, and reads what is missing for each of the layer's blocks. */
static bool block_pays(const moe_engine *engine, uint32_t n_rows)
{
    const moe_panel *p = &engine->panel;
    const moe_model_config *c = &engine->config;
    const uint64_t expert = engine->plan.expert_bytes / engine->plan.experts;
    const uint64_t lacks = moe_panel_lacks_slots(&engine->runner, p->layer);
    const uint64_t bytes = moe_panel_block_bytes(c, n_rows, engine->prefill_chunk);
    const uint64_t n_chunks = (p->n_rows + engine->prefill_chunk - 1) / engine->prefill_chunk;
    const uint64_t n_blocks = (p->n_rows + n_rows - 1) / n_rows;
    const uint64_t free = p->block_bytes + engine->border.ram_free;
    const uint64_t taken = bytes > free ? bytes - free : 0;
    return lacks > 0 && n_rows > engine->prefill_chunk &&
           taken + (n_blocks - 1) * lacks * expert <
               lacks * expert * (layer_fits(engine) ? 1 : n_chunks - 1);
}

/* The rows from `at` on begin a layer: decides whether they do so as a block. */
static void begin_block(moe_engine *engine)
{
    moe_panel *p = &engine->panel;
    const uint32_t n_rows = p->block_bytes > 0 ? p->block.max_rows : most_block_rows(engine);
    const bool can = moe_layer_has_experts(&engine->config, p->layer) &&
                     moe_program_resumes_by_stream(&engine->program, p->layer);
    p->part = MOE_PANEL_LAYER;
    if (!can || !block_pays(engine, n_rows)) {
        drop_block(engine);
        return;
    }
    const uint64_t bytes = moe_panel_block_bytes(&engine->config, n_rows, engine->prefill_chunk);
    if (p->block_bytes == 0 && moe_memory_border_take(&engine->border, bytes, NULL) == MOE_OK) {
        p->block_bytes = bytes;
        if (moe_panel_block_open(&p->block, &engine->config, n_rows, engine->prefill_chunk, NULL) !=
            MOE_OK) {
            drop_block(engine);
        }
    }
    if (p->block_bytes > 0) {
        const uint32_t left = p->n_rows - p->at;
        moe_panel_block_begin(&p->block, p->at, left < n_rows ? left : n_rows);
        p->part = MOE_PANEL_MIX;
    }
}

/* ---- Panels ---- */

/* Takes the memory for a panel of n_rows rows: their stream, their pages, a state. */
static bool take(moe_engine *engine, moe_session *session, uint32_t n_rows)
{
    moe_panel p = {.session = session, .n_rows = n_rows};
    uint32_t first = session->n_evaluated;
    p.bytes = moe_memory_border_cost(n_rows * row_bytes(engine));
    if (moe_memory_border_take(&engine->border, p.bytes, NULL) != MOE_OK) {
        return false;
    }
    p.x = moe_map_pages(p.bytes);
    engine->panel = p;
    if (p.x != NULL && moe_state_take(&engine->states, &engine->panel.state, NULL) == MOE_OK &&
        moe_kv_table_reserve(&engine->kv, &session->kv, first, first + n_rows, NULL) == MOE_OK) {
        return true;
    }
    moe_panel_drop(engine);
    return false;
}

/* Begins a panel for as many of the session's rows as there is memory for. If there is none, that
 * is not an error. */
static bool begin(moe_engine *engine, moe_session *session)
{
    uint32_t rows = moe_session_n_unevaluated(session);
    rows = rows < engine->plan.panel_rows ? rows : (uint32_t)engine->plan.panel_rows;
    while (rows > engine->prefill_chunk && !take(engine, session, rows)) {
        rows /= 2;
    }
    return rows > engine->prefill_chunk;
}

moe_session *moe_panel_find(moe_engine *engine, moe_session *const *sessions, size_t n)
{
    moe_session *first = NULL;
    for (size_t i = 0; i < n; i++) {
        if (engine->panel.session == sessions[i]) {
            return sessions[i];
        }
        first = first == NULL && is_long(sessions[i]) ? sessions[i] : first;
    }
    bool may = engine->plan.panel_rows > 0 && engine->panel.session == NULL && first != NULL &&
               moe_panel_is_possible(&engine->runner);
    if (!may || !begin(engine, first)) {
        return NULL;
    }
    begin_block(engine);
    return first;
}

bool moe_panel_is_done(const moe_engine *engine)
{
    return engine->panel.layer == engine->config.n_layer;
}

moe_panel_chunk moe_panel_next_chunk(moe_engine *engine)
{
    moe_panel *p = &engine->panel;
    const size_t at = p->at, n_x = engine->program.n_floats[MOE_VALUE_X];
    uint32_t *chosen = (uint32_t *)(p->x + (size_t)p->n_rows * n_x);
    MOE_ASSERT(p->session != NULL && p->at < p->n_rows && !moe_panel_is_done(engine));
    return (moe_panel_chunk){.layer = p->layer,
                             .part = p->part,
                             .block = p->part != MOE_PANEL_LAYER ? &p->block : NULL,
                             .first = p->at,
                             .n_rows = p->n_rows,
                             .x = p->x + at * n_x,
                             .chosen =
                                 n_carried(engine) > 0 ? chosen + at * n_carried(engine) : NULL};
}

/* The rows before `at` have the layer behind them. */
static void end_block(moe_engine *engine)
{
    moe_panel *p = &engine->panel;
    p->layer += p->at == p->n_rows;
    p->at = p->at == p->n_rows ? 0 : p->at;
    if (p->part == MOE_PANEL_REST || p->at == 0) {
        p->part = MOE_PANEL_LAYER;
        if (!moe_panel_is_done(engine)) {
            begin_block(engine);
        }
    }
}

void moe_panel_go_on(moe_engine *engine, uint32_t n_rows)
{
    moe_panel *p = &engine->panel;
    const uint32_t end = p->part == MOE_PANEL_LAYER ? p->n_rows : p->block.first + p->block.n_rows;
    p->at += p->part != MOE_PANEL_EXPERTS ? n_rows : 0;
    MOE_ASSERT(p->at <= end);
    if (p->part == MOE_PANEL_MIX && p->at == end) {
        p->part = MOE_PANEL_EXPERTS;
        p->at = p->block.first;
    } else if (p->part == MOE_PANEL_EXPERTS && moe_panel_block_is_served(&p->block)) {
        p->part = MOE_PANEL_REST;
    } else if (p->part == MOE_PANEL_LAYER || (p->part == MOE_PANEL_REST && p->at == end)) {
        end_block(engine);
    }
}

void moe_panel_drop(moe_engine *engine)
{
    moe_panel *p = &engine->panel;
    if (p->session != NULL) {
        if (p->x != NULL) {
            moe_unmap_pages(p->x, p->bytes);
        }
        drop_block(engine);
        moe_state_give(&engine->states, &p->state);
        moe_memory_border_give(&engine->border, p->bytes);
        *p = (moe_panel){.session = NULL};
        moe_pass_watch_end_panel(&engine->watch);
        moe_memory_border_give_back(&engine->border);
    }
}

void moe_panel_leave(moe_session *session)
{
    if (session->engine->panel.session == session) {
        moe_panel_drop(session->engine);
    }
}
