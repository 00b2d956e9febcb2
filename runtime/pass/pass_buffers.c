/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "cpu/kernels/cpu_features.h"
#include "offload/expert_store.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/pass.h"

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* How many rows of logits are computed at a time. */
static size_t logit_rows(uint32_t max_rows)
{
    return max_rows < MOE_LOGIT_ROWS ? max_rows : MOE_LOGIT_ROWS;
}

/* ---- What a device must have room for ---- */

static moe_rows_limit at_least(moe_rows_limit limit, uint32_t n_rows, uint32_t n)
{
    return (moe_rows_limit){max_u32(limit.n_rows, n_rows), max_u32(limit.n, n)};
}

static void need_for(const moe_op *op, uint32_t max_rows, uint32_t n_used, moe_device_limits *l)
{
    switch (op->kind) {
    case MOE_OP_LINEAR:
        l->linear = at_least(l->linear, max_rows, op->n);
        break;
    case MOE_OP_HEAD_LINEAR:
        l->head_linear = at_least(l->head_linear, max_rows * op->each, op->n);
        break;
    case MOE_OP_ATTEND:
        l->max_v_dim = max_u32(l->max_v_dim, op->u.attend.v_dim);
        l->max_head_group = max_u32(l->max_head_group, op->each / op->u.attend.n_kv);
        break;
    case MOE_OP_EXPERTS:
        l->linear = at_least(l->linear, max_rows, op->n);
        l->ff[0] = at_least(l->ff[0], max_rows * n_used, op->u.experts.n_inner);
        break;
    case MOE_OP_NETWORK: {
        moe_rows_limit *ff = &l->ff[op->tensor == MOE_LAYER_SHARED_GATE ? 1 : 2];
        l->linear = at_least(l->linear, max_rows, op->n);
        *ff = at_least(*ff, max_rows, op->u.experts.n_inner);
        break;
    }
    default:
        break;
    }
}

void moe_pass_device_limits(const moe_program *program, uint32_t max_rows,
                            moe_device_limits *limits)
{
    *limits = (moe_device_limits){.max_head_group = 1};
    for (uint32_t i = 0; i < program->n_ops; i++) {
        need_for(&program->ops[i], max_rows, program->config->n_expert_used, limits);
    }
    /* A selective scan also projects the rows of a draft's ancestors. */
    if (program->n_floats[MOE_VALUE_STEPS] > 0) {
        limits->linear.n_rows = max_u32(max_rows, MOE_MOST_LOGGED);
    }
}

/* ---- The device's part ---- */

/* 0: the program does not use the value, or keeps it in another value's memory. */
static size_t value_bytes(const moe_program *program, moe_value value, uint32_t max_rows)
{
    const moe_pass_buffers buffers = {.max_rows = max_rows};
    const size_t rows[] = {
        [MOE_ROWS_OF_PASS] = max_rows,
        [MOE_ROWS_OF_STATES] = moe_delta_scratch_rows(&buffers),
        [MOE_ROWS_OF_RANKS] = (size_t)max_rows * program->config->n_expert_used,
        [MOE_ROWS_OF_LOGITS] = logit_rows(max_rows),
        [MOE_ROWS_ONCE] = 1,
    };
    size_t n = value == MOE_VALUE_WANTED ? 0 : program->n_floats[value];
    return moe_align64(rows[moe_value_info_of(value)->rows] * n * sizeof(float));
}

static int fill_ones(moe_pass_buffers *b, moe_device *device, size_t n, moe_error *err)
{
    float *ones = moe_calloc(n, sizeof *ones);
    if (ones == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a norm of %zu elements", n);
    }
    for (size_t i = 0; i < n; i++) {
        ones[i] = 1.0f;
    }
    int status =
        device->ops->upload(device, b->values[MOE_VALUE_ONES], ones, n * sizeof *ones, err);
    free(ones);
    return status;
}

static int init_device_part(moe_pass_buffers *b, moe_device *device, const moe_program *program,
                            moe_error *err)
{
    void *arena;
    b->arena_bytes = moe_pass_buffers_device_bytes(program, b->max_rows);
    MOE_TRY(device->ops->alloc(device, b->arena_bytes, &arena, err));
    b->arena = arena;
    uint8_t *next = arena;
    for (int v = 0; v < MOE_VALUES; v++) {
        size_t bytes = value_bytes(program, (moe_value)v, b->max_rows);
        MOE_ASSERT((uintptr_t)next % 64 == 0);
        b->values[v] = bytes > 0 ? (float *)next : NULL;
        next += bytes;
    }
    MOE_ASSERT(next == b->arena + b->arena_bytes);
    size_t n_ones = program->n_floats[MOE_VALUE_ONES];
    return n_ones > 0 ? fill_ones(b, device, n_ones, err) : MOE_OK;
}

static size_t index_floats(const moe_model_config *c)
{
    return (size_t)MOE_INDEX_BLOCK * max_u32(c->index_dim, MOE_INDEX_ROWS * c->index_heads);
}

/* Angles of a row's pool, at least one. */
static uint32_t index_angles(const moe_model_config *c)
{
    return c->index_means ? max_u32(c->n_rot, 1) : 1;
}

static size_t ngram_floats(const moe_model_config *c)
{
    return c->ngrams.ngram_size > 0
               ? (size_t)MOE_NGRAM_ROWS_AT_A_TIME * moe_ngram_floats(&c->ngrams)
               : 0;
}

static int init_ngram_part(moe_pass_buffers *b, const moe_model_config *c, moe_error *err)
{
    const size_t n = ngram_floats(c);
    b->ngram_host = n > 0 ? moe_calloc(n, sizeof *b->ngram_host) : NULL;
    return n == 0 || b->ngram_host != NULL
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "no memory for rows of a table");
}

static int init_index_part(moe_pass_buffers *b, const moe_model_config *c, moe_error *err)
{
    if (c->index_top_k == 0) {
        return MOE_OK;
    }
    b->index_host = moe_calloc(index_floats(c), sizeof *b->index_host);
    b->index_factors = moe_calloc(MOE_INDEX_ROWS, c->index_heads * sizeof *b->index_factors);
    b->index_rows = moe_calloc((size_t)b->max_rows * moe_choosing_groups(c), sizeof *b->index_rows);
    b->index_angles = moe_calloc(b->max_rows, index_angles(c) * sizeof *b->index_angles);
    return b->index_host != NULL && b->index_rows != NULL && b->index_factors != NULL &&
                   b->index_angles != NULL
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "no memory for the positions of %u rows",
                          b->max_rows);
}

/* How many floats the k, gates and sum of a block take, for the widest kind of key. */
static size_t block_floats(const moe_model_config *c)
{
    size_t most = 0;
    for (uint32_t l = 0; l < c->n_layer; l++) {
        const size_t n = (size_t)moe_key_series(c->layers[l].rate) * c->layers[l].rate;
        most = n > most ? n : most;
    }
    return (2 * most + 1) * max_u32(c->head_dim_k, c->index_dim);
}

static int init_block_part(moe_pass_buffers *b, const moe_model_config *c, moe_error *err)
{
    if (c->attention != MOE_ATTENTION_SHARED) {
        return MOE_OK;
    }
    b->block_rows = moe_calloc(block_floats(c), sizeof *b->block_rows);
    b->block_kv_rows = moe_calloc(b->max_rows, sizeof *b->block_kv_rows);
    b->rope_back = moe_calloc((size_t)b->max_rows * (c->n_rot / 2), sizeof *b->rope_back);
    return b->block_rows != NULL && b->block_kv_rows != NULL && b->rope_back != NULL
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "no memory for the keys of %u rows", b->max_rows);
}

static int init_host_part(moe_pass_buffers *b, const moe_model_config *c, moe_error *err)
{
    size_t rows = b->max_rows;
    size_t slots = rows * c->n_expert_used;
    size_t angles = rows * (c->n_rot / 2) + 1;
    b->predicted_layer = UINT32_MAX;
    b->routed_ahead_layer = UINT32_MAX;
    b->temperatures = moe_calloc(rows, sizeof *b->temperatures);
    b->input_scales = moe_calloc(slots, sizeof *b->input_scales);
    b->output_weights = moe_calloc(slots, sizeof *b->output_weights);
    b->rope_cos = moe_calloc(angles, sizeof(float));
    b->rope_sin = moe_calloc(angles, sizeof(float));
    b->window_cos = moe_calloc(rows * (c->window_n_rot / 2) + 1, sizeof(float));
    b->window_sin = moe_calloc(rows * (c->window_n_rot / 2) + 1, sizeof(float));
    b->chosen = moe_calloc(slots, sizeof *b->chosen);
    b->chosen_weights = moe_calloc(slots, sizeof *b->chosen_weights);
    b->gates = moe_calloc(c->n_expert, sizeof *b->gates);
    b->predicted = moe_calloc(slots, sizeof *b->predicted);
    b->predicted_weights = moe_calloc(slots, sizeof *b->predicted_weights);
    b->works = moe_calloc(c->n_expert, sizeof *b->works);
    b->views = moe_calloc(c->n_expert, sizeof *b->views);
    b->tiers = moe_calloc(c->n_expert, sizeof *b->tiers);
    b->on_host = moe_calloc(c->n_expert, sizeof *b->on_host);
    b->host_rows = moe_calloc(c->n_expert, sizeof *b->host_rows);
    b->host_positions = moe_calloc(c->n_expert, sizeof *b->host_positions);
    b->n_rows_of = moe_calloc(c->n_expert, sizeof *b->n_rows_of);
    b->positions = moe_calloc(c->n_expert, sizeof *b->positions);
    b->was_predicted = moe_calloc(c->n_expert, sizeof *b->was_predicted);
    if (b->rope_cos == NULL || b->rope_sin == NULL || b->chosen == NULL ||
        b->chosen_weights == NULL || b->predicted == NULL || b->predicted_weights == NULL ||
        b->works == NULL || b->views == NULL || b->n_rows_of == NULL || b->positions == NULL ||
        b->was_predicted == NULL || b->tiers == NULL || b->on_host == NULL ||
        b->host_rows == NULL || b->host_positions == NULL || b->gates == NULL ||
        b->temperatures == NULL || b->input_scales == NULL || b->output_weights == NULL ||
        b->window_cos == NULL || b->window_sin == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a pass of %zu rows", rows);
    }
    MOE_TRY(moe_layer_plan_init(&b->plan, b->max_rows, c->n_expert_used, c->n_expert, err));
    return moe_layer_plan_init(&b->next_plan, b->max_rows, c->n_expert_used, c->n_expert, err);
}

static size_t logits_bytes(const moe_model_config *c, uint32_t max_rows)
{
    return logit_rows(max_rows) * ((size_t)c->n_vocab + c->n_embd) * sizeof(float);
}

/* Logits are fetched for every token, so they are in memory that the link writes to directly. */
static int init_logits(moe_pass_buffers *b, moe_device *device, const moe_model_config *c,
                       moe_error *err)
{
    size_t n_selected = logit_rows(b->max_rows) * c->n_embd;
    void *memory = NULL;
    b->logits_bytes = logits_bytes(c, b->max_rows);
    if (device->link != NULL) {
        MOE_TRY(device->link->host_alloc(device, b->logits_bytes, &memory, err));
    } else {
        memory = moe_calloc(1, b->logits_bytes);
        MOE_TRY(memory != NULL ? MOE_OK : moe_fail(err, MOE_ERR_MEMORY, "no memory for logits"));
    }
    b->selected_host = memory;
    b->logits_host = b->selected_host + n_selected;
    return MOE_OK;
}

uint64_t moe_pass_buffers_device_bytes(const moe_program *program, uint32_t max_rows)
{
    uint64_t bytes = 0;
    for (int v = 0; v < MOE_VALUES && max_rows > 0; v++) {
        bytes += value_bytes(program, (moe_value)v, max_rows);
    }
    return bytes;
}

uint64_t moe_pass_buffers_host_bytes(const moe_program *program, uint32_t max_rows)
{
    const moe_model_config *c = program->config;
    uint64_t bytes = logits_bytes(c, max_rows) + ngram_floats(c) * sizeof(float);
    if (c->index_top_k > 0) {
        bytes += (index_floats(c) + (size_t)max_rows * index_angles(c)) * sizeof(float);
    }
    if (c->attention == MOE_ATTENTION_SHARED) {
        bytes += (block_floats(c) + (size_t)max_rows * (c->n_rot / 2)) * sizeof(float);
    }
    return bytes + (uint64_t)max_rows * (c->n_rot + c->window_n_rot + 1u + 10u * c->n_expert_used) *
                       sizeof(float);
}

int moe_pass_buffers_init(moe_pass_buffers *buffers, moe_device *device, const moe_program *program,
                          uint32_t max_rows, moe_error *err)
{
    const moe_model_config *config = program->config;
    *buffers = (moe_pass_buffers){.max_rows = max_rows};
    moe_vector_kernels_init(&buffers->vector, moe_cpu_features());
    int status = init_device_part(buffers, device, program, err);
    if (status == MOE_OK) {
        status = init_host_part(buffers, config, err);
    }
    if (status == MOE_OK) {
        status = init_index_part(buffers, config, err);
    }
    if (status == MOE_OK) {
        status = init_ngram_part(buffers, config, err);
    }
    if (status == MOE_OK) {
        status = init_block_part(buffers, config, err);
    }
    if (status == MOE_OK) {
        status = init_logits(buffers, device, config, err);
    }
    if (status != MOE_OK) {
        moe_pass_buffers_free(buffers, device);
    }
    return status;
}

int moe_pass_buffers_need_probs(moe_pass_buffers *b, uint32_t n_expert, moe_error *err)
{
    if (b->router_probs == NULL) {
        b->router_probs = moe_calloc(b->max_rows, n_expert * sizeof *b->router_probs);
    }
    return b->router_probs != NULL
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "no memory for router probabilities of %u rows",
                          b->max_rows);
}

void moe_pass_buffers_free(moe_pass_buffers *b, moe_device *device)
{
    if (b->arena != NULL) {
        device->ops->free(device, b->arena, b->arena_bytes);
    }
    if (b->selected_host != NULL && device->link != NULL) {
        device->link->host_free(device, b->selected_host, b->logits_bytes);
    } else {
        free(b->selected_host);
    }
    free(b->ngram_host);
    free(b->index_host);
    free(b->index_factors);
    free(b->index_angles);
    free(b->block_rows);
    free(b->block_kv_rows);
    free(b->block_path);
    free(b->rope_back);
    free(b->index_rows);
    free(b->index_scores);
    free(b->index_order);
    free(b->rope_cos);
    free(b->rope_sin);
    free(b->window_cos);
    free(b->window_sin);
    free(b->temperatures);
    free(b->input_scales);
    free(b->output_weights);
    free(b->chosen);
    free(b->chosen_weights);
    free(b->router_probs);
    free(b->gates);
    free(b->predicted);
    free(b->predicted_weights);
    free(b->n_rows_of);
    free(b->positions);
    free(b->was_predicted);
    free(b->works);
    free(b->views);
    free(b->tiers);
    free(b->on_host);
    free(b->host_rows);
    free(b->host_positions);
    moe_layer_plan_free(&b->plan);
    moe_layer_plan_free(&b->next_plan);
    *b = (moe_pass_buffers){0};
}
