/* SPDX-License-Identifier: MIT */
/* Two walks over the same list of tensors: the first adds up the arena, the second fills it. */
#include "runtime/pass/weights.h"

#include <stdlib.h>
#include <string.h>

#include "cpu/kernels/matmul.h"
#include "offload/file_read.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

#define STAGING_BYTES (1u << 20)

typedef struct loader {
    moe_weights *weights;
    moe_device *device;
    const moe_gguf *gguf;
    const moe_model_config *config;
    const moe_weights_progress *progress;
    bool measure_only;
    uint8_t *staging; /* [STAGING_BYTES] */
    size_t offset;    /* in the arena */
    uint64_t bytes_done;
    moe_error *err;
} loader;

static int report(loader *load)
{
    if (load->progress->report == NULL) {
        return MOE_OK;
    }
    double fraction = (double)load->bytes_done / (double)load->weights->arena_bytes;
    if (!load->progress->report(fraction < 1.0 ? fraction : 1.0, load->progress->user)) {
        return moe_fail(load->err, MOE_ERR_CANCELLED, "opening was cancelled");
    }
    return MOE_OK;
}

/* Reserves room in the arena; false while measuring. */
static bool place(loader *load, moe_weight *weight, moe_dtype type, uint64_t n_in, uint64_t n_out,
                  uint64_t bytes)
{
    size_t offset = load->offset;
    load->offset += moe_align64(bytes);
    if (load->measure_only) {
        return false;
    }
    *weight = (moe_weight){.type = type,
                           .data = load->weights->arena + offset,
                           .n_in = (uint32_t)n_in,
                           .n_out = (uint32_t)n_out,
                           .row_bytes = moe_dtype_row_bytes(type, n_in)};
    return true;
}

static int copy_range(loader *load, const moe_tensor_ref *ref, uint64_t from, uint64_t size,
                      const void *dst)
{
    const moe_gguf_file *file = moe_gguf_file_at(load->gguf, ref->file_index);
    for (uint64_t done = 0; done < size;) {
        size_t n = size - done < STAGING_BYTES ? (size_t)(size - done) : STAGING_BYTES;
        int status = moe_file_read(file, ref->offset + from + done, load->staging, n, load->err);
        if (status == MOE_OK) {
            status = load->device->ops->upload(load->device, (uint8_t *)dst + done, load->staging,
                                               n, load->err);
        }
        done += n;
        load->bytes_done += n;
        if (status == MOE_OK) {
            status = report(load);
        }
        if (status != MOE_OK) {
            return status;
        }
    }
    return MOE_OK;
}

static int load_tensor(loader *load, moe_weight *weight, const moe_tensor_ref *ref)
{
    if (ref->size == 0 || !place(load, weight, ref->type, ref->n_in, ref->n_out, ref->size)) {
        return MOE_OK;
    }
    return copy_range(load, ref, 0, ref->size, weight->data);
}

/* Older MLA files hold [head][nope + v][rank] in one tensor. The values' rows are taken as they
 * are; the keys' are wanted transposed, [head][rank][nope], and become F32: no quantisation is
 * added. */
static int load_kv_b_values(loader *load, moe_weight *v_b, const moe_tensor_ref *kv_b)
{
    const moe_model_config *c = load->config;
    uint64_t row_bytes = moe_dtype_row_bytes(kv_b->type, kv_b->n_in);
    uint64_t head_bytes = row_bytes * c->v_head_dim;
    uint64_t n_out = (uint64_t)c->n_head * c->v_head_dim;
    if (!place(load, v_b, kv_b->type, kv_b->n_in, n_out, head_bytes * c->n_head)) {
        return MOE_OK;
    }
    int status = MOE_OK;
    for (uint32_t h = 0; h < c->n_head && status == MOE_OK; h++) {
        uint64_t from = ((uint64_t)h * (c->qk_nope_dim + c->v_head_dim) + c->qk_nope_dim);
        status = copy_range(load, kv_b, from * row_bytes, head_bytes,
                            (const uint8_t *)v_b->data + h * head_bytes);
    }
    return status;
}

static int transpose_kv_b_keys(loader *load, const moe_weight *k_b, const moe_tensor_ref *kv_b,
                               uint8_t *rows, float *row, float *out)
{
    const moe_model_config *c = load->config;
    const moe_gguf_file *file = moe_gguf_file_at(load->gguf, kv_b->file_index);
    moe_matmul_kernels kernels;
    moe_matmul_kernels_init(&kernels, 0);
    uint64_t row_bytes = moe_dtype_row_bytes(kv_b->type, kv_b->n_in);
    size_t out_bytes = (size_t)c->kv_lora_rank * c->qk_nope_dim * sizeof *out;
    int status = MOE_OK;
    for (uint32_t h = 0; h < c->n_head && status == MOE_OK; h++) {
        uint64_t from = (uint64_t)h * (c->qk_nope_dim + c->v_head_dim) * row_bytes;
        status =
            moe_file_read(file, kv_b->offset + from, rows, c->qk_nope_dim * row_bytes, load->err);
        for (uint32_t i = 0; i < c->qk_nope_dim && status == MOE_OK; i++) {
            kernels.dequantize[kv_b->type](rows + i * row_bytes, row, c->kv_lora_rank);
            for (uint32_t j = 0; j < c->kv_lora_rank; j++) {
                out[(size_t)j * c->qk_nope_dim + i] = row[j];
            }
        }
        if (status == MOE_OK) {
            status = load->device->ops->upload(load->device, (uint8_t *)k_b->data + h * out_bytes,
                                               out, out_bytes, load->err);
        }
    }
    return status;
}

static int load_kv_b_keys(loader *load, moe_weight *k_b, const moe_tensor_ref *kv_b)
{
    const moe_model_config *c = load->config;
    uint64_t n_out = (uint64_t)c->n_head * c->kv_lora_rank;
    if (!place(load, k_b, MOE_DTYPE_F32, c->qk_nope_dim, n_out,
               n_out * c->qk_nope_dim * sizeof(float))) {
        return MOE_OK;
    }
    uint8_t *rows = moe_calloc(c->qk_nope_dim, moe_dtype_row_bytes(kv_b->type, kv_b->n_in));
    float *row = moe_calloc(c->kv_lora_rank, sizeof *row);
    float *out = moe_calloc((size_t)c->kv_lora_rank * c->qk_nope_dim, sizeof *out);
    int status = MOE_ERR_MEMORY;
    if (rows != NULL && row != NULL && out != NULL) {
        status = transpose_kv_b_keys(load, k_b, kv_b, rows, row, out);
    } else {
        moe_fail(load->err, status, "no memory to split attn_kv_b");
    }
    free(rows);
    free(row);
    free(out);
    return status;
}

static int load_layer(loader *load, moe_layer_weights *layer, const moe_layer_map *map)
{
    for (int t = 0; t < MOE_LAYER_TENSOR_COUNT; t++) {
        if (t == MOE_LAYER_ATTN_KV_B) {
            continue;
        }
        int status = load_tensor(load, &layer->tensors[t], &map->tensors[t]);
        if (status != MOE_OK) {
            return status;
        }
    }
    const moe_tensor_ref *kv_b = &map->tensors[MOE_LAYER_ATTN_KV_B];
    if (kv_b->size == 0 || map->tensors[MOE_LAYER_ATTN_K_B].size != 0) {
        return MOE_OK;
    }
    int status = load_kv_b_values(load, &layer->tensors[MOE_LAYER_ATTN_V_B], kv_b);
    if (status == MOE_OK) {
        status = load_kv_b_keys(load, &layer->tensors[MOE_LAYER_ATTN_K_B], kv_b);
    }
    return status;
}

static int load_all(loader *load, const moe_tensor_map *map)
{
    moe_weights *w = load->weights;
    load->offset = 0;
    int status = load_tensor(load, &w->token_embedding, &map->token_embedding);
    if (status == MOE_OK) {
        status = load_tensor(load, &w->output_norm, &map->output_norm);
    }
    if (load->config->tied_output) {
        w->output = w->token_embedding;
    } else if (status == MOE_OK) {
        status = load_tensor(load, &w->output, &map->output);
    }
    for (uint32_t l = 0; l < load->config->n_layer && status == MOE_OK; l++) {
        moe_layer_weights unused;
        status = load_layer(load, load->measure_only ? &unused : &w->layers[l], &map->layers[l]);
    }
    return status;
}

static int load_rope_factors(loader *load, const moe_tensor_map *map)
{
    const moe_tensor_ref *ref = &map->rope_freqs;
    if (ref->size == 0) {
        return MOE_OK;
    }
    load->weights->rope_factors = moe_calloc(ref->n_in, sizeof(float));
    if (load->weights->rope_factors == NULL) {
        return moe_fail(load->err, MOE_ERR_MEMORY, "no memory for the rope factors");
    }
    return moe_file_read(moe_gguf_file_at(load->gguf, ref->file_index), ref->offset,
                         load->weights->rope_factors, ref->size, load->err);
}

uint64_t moe_weights_bytes(const moe_model_config *config, const moe_tensor_map *map)
{
    moe_weights weights = {0};
    loader load = {.weights = &weights, .config = config, .measure_only = true};
    (void)load_all(&load, map);
    return load.offset;
}

static int measure_and_load(loader *load, const moe_tensor_map *map)
{
    moe_weights *w = load->weights;
    w->layers = moe_calloc(load->config->n_layer, sizeof *w->layers);
    load->staging = moe_calloc_aligned(STAGING_BYTES, 1);
    if (w->layers == NULL || load->staging == NULL) {
        return moe_fail(load->err, MOE_ERR_MEMORY, "no memory to load weights");
    }
    w->arena_bytes = moe_weights_bytes(load->config, map);
    void *arena;
    int status = load->device->ops->alloc(load->device, w->arena_bytes, &arena, load->err);
    if (status != MOE_OK) {
        return status;
    }
    w->arena = arena;
    status = load_all(load, map);
    return status != MOE_OK ? status : load_rope_factors(load, map);
}

int moe_weights_load(moe_weights *weights, moe_device *device, const moe_gguf *gguf,
                     const moe_model_config *config, const moe_tensor_map *map,
                     const moe_weights_progress *progress, moe_error *err)
{
    *weights = (moe_weights){0};
    loader load = {.weights = weights,
                   .device = device,
                   .gguf = gguf,
                   .config = config,
                   .progress = progress,
                   .err = err};
    int status = measure_and_load(&load, map);
    free(load.staging);
    if (status != MOE_OK) {
        moe_weights_free(weights, device);
    }
    return status;
}

void moe_weights_free(moe_weights *weights, moe_device *device)
{
    if (weights->arena != NULL) {
        device->ops->free(device, weights->arena, weights->arena_bytes);
    }
    free(weights->layers);
    free(weights->rope_factors);
    *weights = (moe_weights){0};
}
