/* SPDX-License-Identifier: MIT */
/* Panels: the rows of one or more long prompts, which go through a layer together before the next
 * layer begins (session_panel.h). In a layer whose experts are not all in memory, they go through
 * in blocks: a block takes as many rows as memory allows through the layer expert by expert
 * (runtime/pass/panel_block.h). Without blocks, the rows go through in chunks of a pass's rows. */
#include "runtime/engine/session_panel.h"

#include <stdlib.h>

#include "cache/expert_cache.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/program/op_forms.h"

/* A panel may always take 1 / PANEL_SHARE of the memory for experts, which slots lend to it. */
#define PANEL_SHARE 8u
/* A panel and a block leave 1 / BLOCK_REST of the slots. Experts are read through these. */
#define BLOCK_REST 4u
/* So few rows are a pass, not a panel. */
#define FEW_ROWS 32u

/* The number of chosen positions that a row carries from layer to layer. */
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

/* Whether there are slots for all experts of a layer at once. */
static bool layer_fits(const moe_engine *engine)
{
    return engine->plan.expert_slots >= engine->config.n_expert;
}

static uint64_t expert_bytes(const moe_engine *engine)
{
    return engine->plan.expert_bytes / engine->plan.experts;
}

/* The memory of the slots that can lend some to panels. */
static uint64_t host_slots_bytes(const moe_engine *engine)
{
    const moe_memory_plan *plan = &engine->plan;
    return plan->has_device_memory ? plan->host_cache : plan->expert_cache;
}

static uint64_t rows_of_share(const moe_engine *engine)
{
    return host_slots_bytes(engine) / PANEL_SHARE / row_bytes(engine);
}

/* Returns the memory that the plan gives to the streams and sums of a panel's rows. Each panel
 * reads the missing experts, and those whose slots its rows take. All rows of a prompt together
 * take slots of the same number of experts, however many panels they form; so fewer and larger
 * panels read less. If the cache holds a layer's experts, a panel takes no more than the missing
 * experts would, because its slots are also wanted after it. */
static uint64_t memory_of_rows(const moe_engine *engine, uint64_t fixed)
{
    const uint64_t cache = host_slots_bytes(engine);
    const uint64_t on_device = engine->plan.has_device_memory ? engine->plan.expert_cache : 0;
    const uint64_t present = cache + on_device;
    const uint64_t missing =
        engine->plan.expert_bytes > present ? engine->plan.expert_bytes - present : 0;
    const uint64_t most = cache / BLOCK_REST * (BLOCK_REST - 1);
    uint64_t memory = cache > fixed ? cache - fixed : 0;
    if (layer_fits(engine)) {
        memory = missing < most ? missing : most;
    }
    return memory;
}

/* Chooses a panel's rows. */
static uint64_t rows_by_memory(const moe_engine *engine)
{
    const uint32_t chunk = engine->prefill_chunk;
    const uint64_t one = moe_panel_block_bytes(&engine->program, chunk, chunk);
    const uint64_t sum = (moe_panel_block_bytes(&engine->program, 2 * chunk, chunk) - one) / chunk;
    const uint64_t fixed = one - sum * chunk + engine->config.n_expert_used * expert_bytes(engine);
    const uint64_t least = layer_fits(engine) ? rows_of_share(engine) : 0;
    const uint64_t rows = memory_of_rows(engine, fixed) / (row_bytes(engine) + sum);
    return rows > least ? rows : least;
}

int moe_panel_plan(moe_engine *engine, uint32_t asked, moe_error *err)
{
    moe_memory_plan *plan = &engine->plan;
    uint64_t rows = asked;
    if (asked == 0) {
        rows = misses_experts(engine) ? rows_by_memory(engine) : 0;
    }
    bool can = engine->offload == MOE_OFFLOAD_AUTO && moe_program_is_by_stream(&engine->program);
    if (asked > engine->prefill_chunk && !can) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "options.panel cannot act with %s: panels need layers that take over "
                        "nothing from those before but the residual stream, and an expert cache; "
                        "leave it out",
                        engine->model_path);
    }
    rows = can && rows > engine->prefill_chunk ? rows : 0;
    engine->panel_rows = (uint32_t)(rows < UINT32_MAX ? rows : UINT32_MAX);
    engine->panel_is_planned = asked == 0;
    rows = rows < engine->context ? rows : engine->context;
    plan->panel_rows = rows > engine->prefill_chunk ? rows : 0;
    return MOE_OK;
}

static bool has_more_rows(const moe_session *session, uint32_t n_rows)
{
    const moe_session_draft *d = session->draft;
    return moe_session_n_unevaluated(session) > n_rows && (d == NULL || d->head == NULL);
}

static bool is_long(const moe_session *session)
{
    return has_more_rows(session, session->engine->prefill_chunk);
}

/* Returns the number of rows that a prompt must exceed to be in the next panel: those of a pass; or
 * half as many, if these are not few, only such prompts wait and there are no workers. One pass
 * would read no expert twice either, but it would evict experts that its later layers need. */
static uint32_t least_rows(const moe_engine *engine, moe_session *const *sessions, size_t n)
{
    const uint32_t half = engine->prefill_chunk / 2;
    bool any_long = half < FEW_ROWS || engine->workers != NULL, only_prompts = true;
    for (size_t i = 0; i < n; i++) {
        any_long |= is_long(sessions[i]);
        only_prompts &=
            has_more_rows(sessions[i], half) || moe_session_n_unevaluated(sessions[i]) == 0;
    }
    return any_long || !only_prompts ? engine->prefill_chunk : half;
}

bool moe_panel_has(const moe_engine *engine, const moe_session *session)
{
    const moe_panel *p = &engine->panel;
    uint32_t i = 0;
    while (i < p->n_prompts && p->prompts[i].session != session) {
        i++;
    }
    return i < p->n_prompts;
}

bool moe_panel_is_awaited(const moe_session *session)
{
    const moe_engine *engine = session->engine;
    return engine->panel.n_prompts > 0 && !moe_panel_has(engine, session) && is_long(session);
}

/* The prompt that a row of the panel belongs to. */
static moe_panel_prompt *prompt_of_row(const moe_panel *p, uint32_t row)
{
    moe_panel_prompt *prompt = p->prompts;
    MOE_ASSERT(row < p->n_rows);
    while (row >= prompt->first + prompt->n_rows) {
        prompt++;
    }
    return prompt;
}

moe_panel_prompt *moe_panel_at_work(const moe_engine *engine)
{
    return prompt_of_row(&engine->panel, engine->panel.at);
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

/* Returns the memory that can be taken without further reads: that of empty slots, and of slots
 * with experts of earlier layers. */
static uint64_t memory_behind(const moe_engine *engine)
{
    const moe_panel_slots slots = moe_panel_count_slots(&engine->runner, engine->panel.layer);
    return slots.spare * expert_bytes(engine) / BLOCK_REST * (BLOCK_REST - 1);
}

/* The most memory that a block may take. */
static uint64_t memory_for_block(const moe_engine *engine)
{
    return engine->border.ram_free + host_slots_bytes(engine) / BLOCK_REST * (BLOCK_REST - 1);
}

/* The bytes that blocks of n_rows rows cause the layer to read in addition. A block takes memory of
 * slots: experts in these are read again, unless the panel no longer needs them. And each block
 * after the first reads the experts without slots (lacks) again. */
static uint64_t cost_of_blocks(const moe_engine *engine, uint32_t n_rows, uint64_t lacks)
{
    const moe_panel *p = &engine->panel;
    const uint64_t bytes = moe_panel_block_bytes(&engine->program, n_rows, engine->prefill_chunk);
    const uint64_t n_blocks = (p->n_rows + n_rows - 1) / n_rows;
    const uint64_t free = p->block_bytes + engine->border.ram_free + memory_behind(engine);
    return (bytes > free ? bytes - free : 0) + (n_blocks - 1) * lacks * expert_bytes(engine);
}

/* Returns about half as many rows; 0 if that is not more than a chunk. */
static uint32_t fewer_rows(const moe_engine *engine, uint32_t n_rows)
{
    const uint32_t chunk = engine->prefill_chunk;
    const uint32_t fewer = (n_rows / 2 + chunk - 1) / chunk * chunk;
    return fewer > chunk ? fewer : 0;
}

/* Chooses how many rows a block has; 0: no blocks, because chunks that take the whole layer read no
 * more. Such chunks read the experts without slots once more, because these take slots of experts
 * that are needed later; or once for each further chunk, if the layer alone is too large for the
 * slots. */
static uint32_t choose_rows(const moe_engine *engine)
{
    const moe_panel *p = &engine->panel;
    const uint32_t chunk = engine->prefill_chunk;
    const uint64_t lacks = moe_panel_count_slots(&engine->runner, p->layer).lacks;
    const uint64_t n_chunks = (p->n_rows + chunk - 1) / chunk;
    const uint64_t most = memory_for_block(engine);
    const uint64_t n_again = layer_fits(engine) || n_chunks == 1 ? 1 : n_chunks - 1;
    uint64_t least = lacks * expert_bytes(engine) * n_again;
    uint32_t best = 0;
    for (uint32_t n = p->n_rows; n > 0 && least > 0; n = fewer_rows(engine, n)) {
        const uint64_t cost = cost_of_blocks(engine, n, lacks);
        if (cost < least && moe_panel_block_bytes(&engine->program, n, chunk) <= most) {
            best = n;
            least = cost;
        }
    }
    return best;
}

/* Takes memory from the slots whose experts are needed last by a scan that is in this layer. */
static int take_memory(moe_engine *engine, uint32_t layer, uint64_t bytes)
{
    moe_expert_store *experts = engine->runner.experts;
    moe_expert_store_scan(experts, layer, 0);
    int status = moe_memory_border_take(&engine->border, bytes, NULL);
    moe_expert_store_scan(experts, MOE_NO_SCAN, 0);
    return status;
}

/* Returns the rows of a block that begins at p->at: at most n_rows, and whole chunks of a
 * prompt. */
static uint32_t rows_of_block(const moe_engine *engine, uint32_t n_rows)
{
    const moe_panel *p = &engine->panel;
    if (p->n_rows - p->at <= n_rows) {
        return p->n_rows - p->at;
    }
    const uint32_t end = p->at + n_rows;
    const uint32_t rows = n_rows - (end - prompt_of_row(p, end)->first) % engine->prefill_chunk;
    MOE_ASSERT(rows > 0 && rows <= n_rows);
    return rows;
}

/* Returns how many rows the blocks of the layer that begins now have; 0: no blocks. */
static uint32_t rows_of_layer(const moe_engine *engine)
{
    const moe_panel *p = &engine->panel;
    const bool can = moe_layer_has_experts(&engine->config, p->layer) &&
                     moe_program_resumes_by_stream(&engine->program, p->layer);
    if (p->block_bytes == 0) {
        return can ? choose_rows(engine) : 0;
    }
    const bool lacks = moe_panel_count_slots(&engine->runner, p->layer).lacks > 0;
    return can && lacks ? p->block.max_rows : 0;
}

static bool open_block(moe_engine *engine, uint32_t n_rows)
{
    moe_panel *p = &engine->panel;
    const uint32_t chunk = engine->prefill_chunk;
    const uint64_t bytes = moe_panel_block_bytes(&engine->program, n_rows, chunk);
    if (take_memory(engine, p->layer, bytes) == MOE_OK) {
        p->block_bytes = bytes;
        if (moe_panel_block_open(&p->block, &engine->program, n_rows, chunk, NULL) != MOE_OK) {
            drop_block(engine);
        }
    }
    return p->block_bytes > 0;
}

/* Decides whether the rows from p->at on go through the layer as a block, and begins the block. If
 * less memory can be taken than expected, begins a smaller block. */
static void begin_block(moe_engine *engine)
{
    moe_panel *p = &engine->panel;
    uint32_t n_rows = rows_of_layer(engine);
    p->part = MOE_PANEL_LAYER;
    if (n_rows == 0) {
        drop_block(engine);
    }
    while (n_rows > 0 && p->block_bytes == 0 && !open_block(engine, n_rows)) {
        n_rows = fewer_rows(engine, n_rows);
    }
    if (n_rows > 0) {
        moe_panel_block_begin(&p->block, p->at, rows_of_block(engine, n_rows));
        p->part = MOE_PANEL_MIX;
    }
}

/* ---- Panels ---- */

/* Lists the prompts of a panel of at most n_rows rows. A prompt that does not fit is cut to the
 * rows that are left, if these are at least a chunk. If memory is short, the list is empty. */
static void list_prompts(moe_panel *p, moe_session *const *sessions, size_t n, uint32_t n_rows)
{
    const uint32_t least = least_rows(sessions[0]->engine, sessions, n);
    p->prompts = moe_calloc(n, sizeof *p->prompts);
    for (size_t i = 0; i < n && p->prompts != NULL; i++) {
        const uint32_t left = n_rows - p->n_rows;
        const uint32_t rows =
            has_more_rows(sessions[i], least) ? moe_session_n_unevaluated(sessions[i]) : 0;
        if (rows > 0 && (rows <= left || left >= sessions[i]->engine->prefill_chunk)) {
            const uint32_t taken = rows < left ? rows : left;
            p->prompts[p->n_prompts++] =
                (moe_panel_prompt){.session = sessions[i], .first = p->n_rows, .n_rows = taken};
            p->n_rows += taken;
        }
    }
}

/* Begins a panel of at most *n_rows rows of the sessions' prompts: takes memory for the rows'
 * residual stream, and for the KV pages and recurrent states of the sessions. Sets *n_rows to the
 * number of rows that the prompts fill. Returns false if there is no such prompt, or too little
 * memory. */
static bool take(moe_engine *engine, moe_session *const *sessions, size_t n, uint32_t *n_rows)
{
    moe_panel p = {.n_rows = 0};
    list_prompts(&p, sessions, n, *n_rows);
    *n_rows = p.n_rows;
    p.bytes = moe_memory_border_cost(p.n_rows * row_bytes(engine));
    if (p.n_prompts == 0 || take_memory(engine, 0, p.bytes) != MOE_OK) {
        free(p.prompts);
        return false;
    }
    p.x = moe_map_pages(p.bytes);
    engine->panel = p;
    bool taken = p.x != NULL;
    for (uint32_t i = 0; i < p.n_prompts && taken; i++) {
        moe_panel_prompt *prompt = &p.prompts[i];
        const uint32_t first = prompt->session->n_evaluated;
        taken = moe_state_take(&engine->states, &prompt->state, NULL) == MOE_OK &&
                moe_kv_table_reserve(&engine->kv, &prompt->session->kv, first,
                                     first + prompt->n_rows, NULL) == MOE_OK;
    }
    if (!taken) {
        moe_panel_drop(engine);
    }
    return taken;
}

/* Returns the most rows of a panel that begins now. If other sessions write beside it, they keep
 * most of the slots, because each of their tokens would miss what the panel has taken. */
static uint32_t most_rows(const moe_engine *engine, moe_session *const *sessions, size_t n)
{
    const uint64_t few = rows_of_share(engine);
    bool writes = false;
    for (size_t i = 0; i < n; i++) {
        writes |= !is_long(sessions[i]) && moe_session_n_unevaluated(sessions[i]) > 0;
    }
    const bool leaves = writes && engine->panel_is_planned && layer_fits(engine);
    const bool may = few > engine->prefill_chunk && few < engine->panel_rows;
    return leaves && may ? (uint32_t)few : engine->panel_rows;
}

/* Begins a panel for as many of the sessions' rows as there is memory for. Without memory there is
 * no panel, which is not an error. */
static bool begin(moe_engine *engine, moe_session *const *sessions, size_t n)
{
    uint32_t rows = most_rows(engine, sessions, n);
    while (rows > engine->prefill_chunk && !take(engine, sessions, n, &rows)) {
        rows /= 2;
    }
    return engine->panel.n_prompts > 0;
}

bool moe_panel_find(moe_engine *engine, moe_session *const *sessions, size_t n)
{
    const uint32_t least = least_rows(engine, sessions, n);
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        if (moe_panel_has(engine, sessions[i])) {
            return true;
        }
        any |= has_more_rows(sessions[i], least);
    }
    bool may = engine->panel_rows > 0 && engine->panel.n_prompts == 0 && any &&
               moe_panel_is_possible(&engine->runner);
    if (!may || !begin(engine, sessions, n)) {
        return false;
    }
    begin_block(engine);
    return true;
}

bool moe_panel_is_done(const moe_engine *engine)
{
    return engine->panel.layer == engine->config.n_layer;
}

moe_panel_chunk moe_panel_next_chunk(moe_engine *engine)
{
    moe_panel *p = &engine->panel;
    MOE_ASSERT(p->n_prompts > 0 && !moe_panel_is_done(engine));
    const size_t at = p->at, n_x = engine->program.n_floats[MOE_VALUE_X];
    const moe_panel_prompt *prompt = moe_panel_at_work(engine);
    uint32_t *chosen = (uint32_t *)(p->x + (size_t)p->n_rows * n_x);
    MOE_ASSERT(prompt->session != NULL);
    return (moe_panel_chunk){.layer = p->layer,
                             .part = p->part,
                             .block = p->part != MOE_PANEL_LAYER ? &p->block : NULL,
                             .first = p->at,
                             .n_rows = p->n_rows,
                             .x = p->x + at * n_x,
                             .chosen =
                                 n_carried(engine) > 0 ? chosen + at * n_carried(engine) : NULL};
}

/* Called when the block's rows have left the layer. */
static void end_block(moe_engine *engine)
{
    moe_panel *p = &engine->panel;
    p->part = MOE_PANEL_LAYER;
    p->layer += p->at == p->n_rows;
    p->at = p->at == p->n_rows ? 0 : p->at;
    if (!moe_panel_is_done(engine)) {
        begin_block(engine);
    }
}

/* Skips rows, up to `end`, of sessions that have left the panel. */
static void pass_over(moe_panel *p, uint32_t end)
{
    while (p->at < end && prompt_of_row(p, p->at)->session == NULL) {
        const moe_panel_prompt *prompt = prompt_of_row(p, p->at);
        const uint32_t next = prompt->first + prompt->n_rows;
        p->at = next < end ? next : end;
    }
}

/* Finds the next chunk, from p->at on: in this part of the layer, or in the next one. */
static void find_chunk(moe_engine *engine)
{
    moe_panel *p = &engine->panel;
    while (!moe_panel_is_done(engine)) {
        const uint32_t end =
            p->part == MOE_PANEL_LAYER ? p->n_rows : p->block.first + p->block.n_rows;
        pass_over(p, end);
        MOE_ASSERT(p->at <= end);
        const bool experts = p->part == MOE_PANEL_EXPERTS;
        if (p->at < end && !(experts && moe_panel_block_is_served(&p->block))) {
            return;
        }
        if (p->part == MOE_PANEL_MIX || experts) {
            p->part = experts ? MOE_PANEL_REST : MOE_PANEL_EXPERTS;
            p->at = p->block.first;
        } else {
            end_block(engine);
        }
    }
}

void moe_panel_go_on(moe_engine *engine, uint32_t n_rows)
{
    engine->panel.at += engine->panel.part != MOE_PANEL_EXPERTS ? n_rows : 0;
    find_chunk(engine);
}

void moe_panel_drop(moe_engine *engine)
{
    moe_panel *p = &engine->panel;
    if (p->n_prompts > 0) {
        if (p->x != NULL) {
            moe_unmap_pages(p->x, p->bytes);
        }
        drop_block(engine);
        for (uint32_t i = 0; i < p->n_prompts; i++) {
            moe_state_give(&engine->states, &p->prompts[i].state);
        }
        free(p->prompts);
        moe_memory_border_give(&engine->border, p->bytes);
        *p = (moe_panel){.n_prompts = 0};
        moe_pass_watch_end_panel(&engine->watch);
        moe_memory_border_give_back(&engine->border);
    }
}

void moe_panel_leave(moe_session *session)
{
    moe_engine *engine = session->engine;
    moe_panel *p = &engine->panel;
    uint32_t n_left = 0;
    bool leaves = false;
    for (uint32_t i = 0; i < p->n_prompts; i++) {
        moe_panel_prompt *prompt = &p->prompts[i];
        if (prompt->session == session) {
            prompt->session = NULL;
            moe_state_give(&engine->states, &prompt->state);
            leaves = true;
        }
        n_left += prompt->session != NULL;
    }
    if (leaves && n_left == 0) {
        moe_panel_drop(engine);
    } else if (leaves) {
        find_chunk(engine);
    }
}
