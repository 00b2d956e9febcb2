/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "offload/expert_store.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/pass.h"

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* The most floats of a row in any layer: of queries as projected (in MLA their length differs from
 * that in the cache), keys, values, and what attention gathers. */
typedef struct row_floats {
    size_t q, k, v, out;
} row_floats;

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static row_floats most_floats(const moe_model_config *c)
{
    row_floats most = {0};
    for (uint32_t l = 0; l < c->n_layer; l++) {
        const moe_heads *h = &c->layers[l].heads;
        bool mla = c->layers[l].mixer == MOE_MIXER_LATENT;
        size_t q_dim = mla ? c->qk_nope_dim + c->n_rot : h->k_dim;
        most.q = max_size(most.q, h->n * q_dim);
        most.k = max_size(most.k, (size_t)h->n_kv * h->k_dim);
        most.v = max_size(most.v, (size_t)h->n_kv * h->v_dim);
        most.out = max_size(most.out, (size_t)h->n * h->v_dim);
    }
    return most;
}

static uint32_t most_head_group(const moe_model_config *c)
{
    uint32_t most = 1;
    for (uint32_t l = 0; l < c->n_layer; l++) {
        const moe_heads *h = &c->layers[l].heads;
        most = h->n_kv > 0 ? max_u32(most, h->n / h->n_kv) : most;
    }
    return most;
}

static bool needs_ones(const moe_model_config *c)
{
    return c->qk_norm == MOE_QK_NORM_UNIT || c->values_normed;
}

static bool has_dense_layers(const moe_model_config *c)
{
    bool has = false;
    for (uint32_t l = 0; l < c->n_layer; l++) {
        has |= c->layers[l].feed_forward == MOE_FEED_FORWARD_DENSE;
    }
    return has;
}

void moe_pass_device_limits(const moe_model_config *c, uint32_t max_rows, moe_device_limits *limits)
{
    bool mla = c->attention == MOE_ATTENTION_MLA;
    uint32_t out_dim = mla ? c->n_head * c->v_head_dim : (uint32_t)most_floats(c).out;
    uint32_t longest = max_u32(max_u32(c->n_embd, out_dim), c->q_lora_rank);
    longest = max_u32(longest, (uint32_t)moe_recurrence_out_floats(&c->recurrence));
    /* A selective scan projects a draft's ancestors, too. */
    bool scans = c->recurrence.kind == MOE_RECURRENCE_SCAN;
    uint32_t linear_rows = scans ? max_u32(max_rows, MOE_MOST_LOGGED) : max_rows;
    *limits = (moe_device_limits){
        .linear = {linear_rows, max_u32(longest, c->recurrence.step_rank)},
        .head_linear = {mla ? max_rows * c->n_head : 0, max_u32(c->qk_nope_dim, c->kv_lora_rank)},
        .ff = {{max_rows * c->n_expert_used, c->n_ff_expert},
               {max_rows, c->n_ff_shared},
               {max_rows, has_dense_layers(c) ? c->n_ff_dense : 0}},
        .max_v_dim = c->head_dim_v,
        .max_head_group = most_head_group(c),
    };
}

typedef struct region {
    float **pointer;
    size_t n_floats;
} region;

#define MAX_REGIONS 38

static size_t list_delta_regions(moe_pass_buffers *b, const moe_recurrence *c, region *regions)
{
    size_t rows = b->max_rows;
    bool rule = c->kind != MOE_RECURRENCE_CONVOLUTION;
    size_t out = moe_recurrence_out_floats(c);
    size_t decays = c->kind == MOE_RECURRENCE_CHANNELS ? out : 0;
    size_t convolved = moe_delta_scratch_rows(b) * (c->conv_channels + decays);
    size_t n = 0;
    regions[n++] = (region){&b->mixed, rows * c->conv_channels};
    regions[n++] = (region){&b->convolved, rule ? convolved : 0};
    regions[n++] = (region){&b->delta_gates, rows * c->n_gates};
    regions[n++] = (region){&b->delta_z, rows * out};
    regions[n++] = (region){&b->delta_out, rows * out};
    size_t part_rows = c->kind == MOE_RECURRENCE_SCAN ? moe_delta_scratch_rows(b) : rows;
    regions[n++] = (region){&b->delta_parts, part_rows * moe_recurrence_part_floats(c)};
    return n;
}

/* Rows of logits at a time. */
static size_t logit_rows(uint32_t max_rows)
{
    return max_rows < MOE_LOGIT_ROWS ? max_rows : MOE_LOGIT_ROWS;
}

static size_t list_regions(moe_pass_buffers *b, const moe_model_config *c, region *regions)
{
    size_t rows = b->max_rows;
    size_t n_logits = logit_rows(b->max_rows);
    size_t n = 0;
    bool mla = c->attention == MOE_ATTENTION_MLA;
    regions[n++] = (region){&b->x, rows * c->n_embd};
    regions[n++] = (region){&b->norm, rows * c->n_embd};
    row_floats most = most_floats(c);
    regions[n++] = (region){&b->q, rows * most.q};
    regions[n++] = (region){&b->k, rows * most.k};
    regions[n++] = (region){&b->attention, rows * most.out};
    if (mla) {
        regions[n++] = (region){&b->q_latent, rows * c->n_head * c->head_dim_k};
        regions[n++] = (region){&b->q_a, rows * c->q_lora_rank};
        regions[n++] = (region){&b->values, rows * c->n_head * c->v_head_dim};
    } else {
        regions[n++] = (region){&b->v, rows * most.v};
    }
    if (c->attention_gate != MOE_ATTENTION_GATE_NONE) {
        bool joined = c->attention_gate == MOE_ATTENTION_GATE_JOINED;
        regions[n++] = (region){&b->gate, rows * most.out * (joined ? 2 : 1)};
    }
    if (c->experts_input == MOE_EXPERTS_LAYER_NORM) {
        regions[n++] = (region){&b->layer_norm, rows * c->n_embd};
    }
    if (needs_ones(c)) {
        regions[n++] = (region){&b->ones, c->head_dim_k};
    }
    if (moe_count_mixers(c, MOE_MIXER_RECURRENT) > 0) {
        n += list_delta_regions(b, &c->recurrence, regions + n);
    }
    if (c->index_top_k > 0) {
        regions[n++] = (region){&b->index_q, rows * c->index_heads * c->index_dim};
        regions[n++] = (region){&b->index_weights, rows * c->index_heads};
        regions[n++] = (region){&b->index_k, rows * c->index_dim};
        regions[n++] = (region){&b->indexed_k, rows * (c->head_dim_k + c->index_dim)};
        regions[n++] = (region){&b->index_block, (size_t)MOE_INDEX_BLOCK * c->index_dim};
        regions[n++] =
            (region){&b->index_products, (size_t)MOE_INDEX_ROWS * MOE_INDEX_BLOCK * c->index_heads};
        regions[n++] = (region){&b->index_chosen, rows * c->index_top_k};
    }
    if (moe_experts_are_latent(c)) {
        regions[n++] = (region){&b->latent, rows * c->n_expert_in};
        regions[n++] = (region){&b->latent_out, rows * c->n_expert_in};
    }
    regions[n++] = (region){&b->branch, rows * c->n_embd};
    regions[n++] = (region){&b->shared, rows * c->n_embd};
    regions[n++] = (region){&b->shared_gate, rows};
    regions[n++] = (region){&b->router_logits, rows * c->n_expert};
    regions[n++] = (region){&b->next_logits, rows * c->n_expert};
    regions[n++] = (region){&b->rank_out, rows * c->n_expert_used * c->n_expert_in};
    regions[n++] = (region){&b->selected, n_logits * c->n_embd};
    regions[n++] = (region){&b->logits, n_logits * c->n_vocab};
    regions[n++] = (region){&b->greatest, n_logits * sizeof(moe_greatest) / sizeof(float)};
    return n;
}

static size_t region_bytes(const region *r)
{
    return moe_align64(r->n_floats * sizeof(float));
}

static int fill_ones(moe_pass_buffers *b, moe_device *device, uint32_t n, moe_error *err)
{
    float *ones = moe_calloc(n, sizeof *ones);
    if (ones == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a norm of %u elements", n);
    }
    for (uint32_t i = 0; i < n; i++) {
        ones[i] = 1.0f;
    }
    int status = device->ops->upload(device, b->ones, ones, n * sizeof *ones, err);
    free(ones);
    return status;
}

static int init_device_part(moe_pass_buffers *b, moe_device *device, const moe_model_config *c,
                            moe_error *err)
{
    region regions[MAX_REGIONS];
    size_t n = list_regions(b, c, regions);
    for (size_t i = 0; i < n; i++) {
        b->arena_bytes += region_bytes(&regions[i]);
    }
    void *arena;
    int status = device->ops->alloc(device, b->arena_bytes, &arena, err);
    if (status != MOE_OK) {
        return status;
    }
    b->arena = arena;
    uint8_t *next = arena;
    for (size_t i = 0; i < n; i++) {
        MOE_ASSERT((uintptr_t)next % 64 == 0);
        *regions[i].pointer = (float *)next;
        next += region_bytes(&regions[i]);
    }
    MOE_ASSERT(next == b->arena + b->arena_bytes && n <= MAX_REGIONS);
    if (c->attention != MOE_ATTENTION_MLA) {
        b->q_latent = b->q;
        b->values = b->attention;
    }
    return b->ones != NULL ? fill_ones(b, device, c->head_dim_k, err) : MOE_OK;
}

static size_t index_floats(const moe_model_config *c)
{
    return (size_t)MOE_INDEX_BLOCK * max_u32(c->index_dim, MOE_INDEX_ROWS * c->index_heads);
}

static int init_index_part(moe_pass_buffers *b, const moe_model_config *c, moe_error *err)
{
    if (c->index_top_k == 0) {
        return MOE_OK;
    }
    b->index_host = moe_calloc(index_floats(c), sizeof *b->index_host);
    b->index_factors = moe_calloc(MOE_INDEX_ROWS, c->index_heads * sizeof *b->index_factors);
    b->index_rows = moe_calloc(b->max_rows, sizeof *b->index_rows);
    return b->index_host != NULL && b->index_rows != NULL && b->index_factors != NULL
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "no memory for the positions of %u rows",
                          b->max_rows);
}

static int init_host_part(moe_pass_buffers *b, const moe_model_config *c, moe_error *err)
{
    size_t rows = b->max_rows;
    size_t slots = rows * c->n_expert_used;
    size_t angles = rows * (c->n_rot / 2);
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
    b->host_views = moe_calloc(c->n_expert, sizeof *b->host_views);
    b->host_positions = moe_calloc(c->n_expert, sizeof *b->host_positions);
    b->n_rows_of = moe_calloc(c->n_expert, sizeof *b->n_rows_of);
    b->positions = moe_calloc(c->n_expert, sizeof *b->positions);
    b->was_predicted = moe_calloc(c->n_expert, sizeof *b->was_predicted);
    if (b->rope_cos == NULL || b->rope_sin == NULL || b->chosen == NULL ||
        b->chosen_weights == NULL || b->predicted == NULL || b->predicted_weights == NULL ||
        b->works == NULL || b->views == NULL || b->n_rows_of == NULL || b->positions == NULL ||
        b->was_predicted == NULL || b->host_views == NULL || b->host_positions == NULL ||
        b->gates == NULL || b->temperatures == NULL || b->input_scales == NULL ||
        b->output_weights == NULL || b->window_cos == NULL || b->window_sin == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a pass of %zu rows", rows);
    }
    int status = moe_layer_plan_init(&b->plan, b->max_rows, c->n_expert_used, c->n_expert, err);
    return status != MOE_OK ? status
                            : moe_layer_plan_init(&b->next_plan, b->max_rows, c->n_expert_used,
                                                  c->n_expert, err);
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
    int status = MOE_OK;
    b->logits_bytes = logits_bytes(c, b->max_rows);
    if (device->link != NULL) {
        status = device->link->host_alloc(device, b->logits_bytes, &memory, err);
    } else {
        memory = moe_calloc(1, b->logits_bytes);
        status = memory != NULL ? MOE_OK : moe_fail(err, MOE_ERR_MEMORY, "no memory for logits");
    }
    if (status == MOE_OK) {
        b->selected_host = memory;
        b->logits_host = b->selected_host + n_selected;
    }
    return status;
}

uint64_t moe_pass_buffers_device_bytes(const moe_model_config *c, uint32_t max_rows)
{
    moe_pass_buffers buffers = {.max_rows = max_rows};
    region regions[MAX_REGIONS];
    size_t n = max_rows > 0 ? list_regions(&buffers, c, regions) : 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        bytes += region_bytes(&regions[i]);
    }
    return bytes;
}

uint64_t moe_pass_buffers_host_bytes(const moe_model_config *c, uint32_t max_rows)
{
    uint64_t bytes = logits_bytes(c, max_rows);
    if (c->index_top_k > 0) {
        bytes += index_floats(c) * sizeof(float);
    }
    return bytes + (uint64_t)max_rows * (c->n_rot + c->window_n_rot + 1u + 10u * c->n_expert_used) *
                       sizeof(float);
}

int moe_pass_buffers_init(moe_pass_buffers *buffers, moe_device *device,
                          const moe_model_config *config, uint32_t max_rows, moe_error *err)
{
    *buffers = (moe_pass_buffers){.max_rows = max_rows};
    int status = init_device_part(buffers, device, config, err);
    if (status == MOE_OK) {
        status = init_host_part(buffers, config, err);
    }
    if (status == MOE_OK) {
        status = init_index_part(buffers, config, err);
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
    free(b->index_host);
    free(b->index_factors);
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
    free(b->host_views);
    free(b->host_positions);
    moe_layer_plan_free(&b->plan);
    moe_layer_plan_free(&b->next_plan);
    *b = (moe_pass_buffers){0};
}
