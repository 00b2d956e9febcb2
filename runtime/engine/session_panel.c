/* SPDX-License-Identifier: MIT */
#include "runtime/engine/session_panel.h"

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/program/op_forms.h"

/* A panel may take 1 / PANEL_SHARE of the memory for experts; slots lend it. */
#define PANEL_SHARE 8u

/* Positions that a row carries from layer to layer. */
static uint32_t n_carried(const moe_engine *engine)
{
    return moe_program_carries_choice(&engine->program) ? engine->config.index_top_k : 0;
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
    return may && begin(engine, first) ? first : NULL;
}

bool moe_panel_is_done(const moe_engine *engine)
{
    return engine->panel.layer == engine->config.n_layer;
}

moe_panel_chunk moe_panel_next_chunk(const moe_engine *engine)
{
    const moe_panel *p = &engine->panel;
    const size_t at = p->at, n_x = engine->program.n_floats[MOE_VALUE_X];
    uint32_t *chosen = (uint32_t *)(p->x + (size_t)p->n_rows * n_x);
    MOE_ASSERT(p->session != NULL && p->at < p->n_rows && !moe_panel_is_done(engine));
    return (moe_panel_chunk){.layer = p->layer,
                             .first = p->at,
                             .n_rows = p->n_rows,
                             .x = p->x + at * n_x,
                             .chosen =
                                 n_carried(engine) > 0 ? chosen + at * n_carried(engine) : NULL};
}

void moe_panel_go_on(moe_engine *engine, uint32_t n_rows)
{
    moe_panel *p = &engine->panel;
    p->at += n_rows;
    MOE_ASSERT(p->at <= p->n_rows);
    p->layer += p->at == p->n_rows;
    p->at = p->at == p->n_rows ? 0 : p->at;
}

void moe_panel_drop(moe_engine *engine)
{
    moe_panel *p = &engine->panel;
    if (p->session != NULL) {
        if (p->x != NULL) {
            moe_unmap_pages(p->x, p->bytes);
        }
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
