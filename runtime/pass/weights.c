/* SPDX-License-Identifier: MIT */
/* The loader walks three times over the same list of tensors. The first walk adds up the size of
 * the arena. The second lists the reads in order, so that the reader can run ahead. The third fills
 * the arena. */
#include "runtime/pass/weights.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cpu/kernels/matmul_reference.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/finite_blocks.h"
#include "offload/model_tensors.h"
#include "runtime/host/pages_ahead.h"

#define UPLOAD_BYTES (1u << 20)

typedef enum walk { WALK_MEASURE, WALK_LIST, WALK_LOAD } walk;

typedef struct loader {
    moe_weights *weights;
    moe_device *device;
    const moe_weights_source *source;
    const moe_model_config *config;
    bool experts_only;
    walk walk;
    size_t offset;           /* in the arena */
    moe_model_range *ranges; /* [n_ranges]: one for each tensor to read */
    size_t n_ranges, capacity;
    size_t at; /* the current range */
    moe_model_reader *reader;
    moe_pages_ahead *ahead; /* touches the arena's pages ahead; NULL: nothing does */
    XXH3_state_t *hash;     /* of the current range's bytes so far; NULL: no checksums are made */
    size_t sum;             /* index of the current range's checksum in the source's */
    bool is_known;          /* this checksum is known */
    moe_finite_scan scan;   /* scans the same bytes if their checksum is not known */
    uint64_t bytes_all, bytes_done;
    moe_error *err;
} loader;

static bool report(const loader *load)
{
    const moe_weights_source *s = load->source;
    double fraction = (double)load->bytes_done / (double)load->bytes_all;
    return s->progress == NULL || s->progress(fraction < 1.0 ? fraction : 1.0, s->user);
}

/* The reader calls this while it waits. */
static bool is_cancelled(void *user)
{
    return !report(user);
}

/* Reserves room in the arena. */
static void place(loader *load, moe_weight *weight, moe_dtype type, uint64_t n_in, uint64_t n_out,
                  uint64_t bytes)
{
    size_t offset = load->offset;
    load->offset += moe_align64(bytes);
    if (load->walk == WALK_LOAD) {
        *weight = (moe_weight){.type = type,
                               .data = load->weights->arena + offset,
                               .n_in = (uint32_t)n_in,
                               .n_out = (uint32_t)n_out,
                               .row_bytes = moe_dtype_row_bytes(type, n_in)};
    }
}

/* ---- One tensor's bytes ---- */

static int list_range(loader *load, const moe_tensor_ref *ref)
{
    if (load->n_ranges == load->capacity) {
        size_t capacity = load->capacity > 0 ? 2 * load->capacity : 256;
        moe_model_range *larger = moe_realloc_array(load->ranges, capacity, sizeof *load->ranges);
        if (larger == NULL) {
            return moe_fail(load->err, MOE_ERR_MEMORY, "no memory to load weights");
        }
        load->ranges = larger;
        load->capacity = capacity;
    }
    load->ranges[load->n_ranges++] = (moe_model_range){ref->file_index, ref->offset, ref->size};
    load->bytes_all += ref->size;
    return MOE_OK;
}

/* Gets the next bytes of the tensor, as many as have arrived. */
static int next_bytes(loader *load, size_t most, const uint8_t **bytes, size_t *n)
{
    MOE_TRY(moe_model_reader_next(load->reader, most, bytes, n, load->err));
    if (*n == 0) {
        return moe_fail(load->err, MOE_ERR_INTERNAL, "weights end before their tensors do");
    }
    load->bytes_done += *n;
    if (load->hash != NULL) {
        XXH3_64bits_update(load->hash, *bytes, *n);
    }
    if (!load->is_known) {
        moe_finite_scan_bytes(&load->scan, *bytes, *n);
    }
    return MOE_OK;
}

/* Copies exactly this many bytes to host memory. */
static int take_bytes(loader *load, uint8_t *dst, size_t size)
{
    while (size > 0) {
        const uint8_t *bytes;
        size_t n;
        MOE_TRY(next_bytes(load, size, &bytes, &n));
        memcpy(dst, bytes, n);
        dst += n;
        size -= n;
    }
    return MOE_OK;
}

/* Copies exactly this many bytes to the device. */
static int upload_bytes(loader *load, const void *dst, uint64_t size)
{
    uint8_t *to = (uint8_t *)dst;
    int status = MOE_OK;
    while (size > 0 && status == MOE_OK) {
        const uint8_t *bytes;
        size_t n;
        status = next_bytes(load, size < UPLOAD_BYTES ? (size_t)size : UPLOAD_BYTES, &bytes, &n);
        if (status == MOE_OK) {
            status = load->device->ops->upload(load->device, to, bytes, n, load->err);
            to += n;
            moe_pages_ahead_filled(load->ahead, 0, (size_t)(to - load->weights->arena));
            size -= n;
        }
    }
    return status;
}

/* MOE_OK: the tensor's bytes match their checksum or, if they have none, its values are finite.
 * Without that check a NaN could stay unnoticed, because it is lost when activations are converted
 * to blocks of 8 bits. */
static int verify(const loader *load)
{
    const moe_weights_source *s = load->source;
    size_t index;
    if (!moe_model_tensor_at(s->gguf, &load->ranges[load->at], &index)) {
        return MOE_OK;
    }
    if (!load->is_known && !load->scan.finite) {
        return moe_fail_infinite_tensor(load->err, s->gguf, index);
    }
    return load->hash == NULL ||
                   moe_weight_sums_check(s->sums, load->sum, XXH3_64bits_digest(load->hash))
               ? MOE_OK
               : moe_fail_damaged_tensor(load->err, s->gguf, index);
}

/* Finds the checksum of the current range. */
static void find_sum(loader *load)
{
    const moe_weights_source *s = load->source;
    size_t index;
    load->is_known = false;
    if (load->hash != NULL && moe_model_tensor_at(s->gguf, &load->ranges[load->at], &index)) {
        load->sum = moe_weight_sum_of_tensor(s->sums, index);
        load->is_known = moe_weight_sums_get(s->sums, load->sum) != 0;
    }
}

/* Reads the tensor with `fill`, and a second time if its bytes do not match the checksum. */
static int load_by(loader *load, const moe_tensor_ref *ref, int (*fill)(loader *, void *),
                   void *context)
{
    if (load->walk != WALK_LOAD) {
        return load->walk == WALK_LIST ? list_range(load, ref) : MOE_OK;
    }
    int status = MOE_OK;
    find_sum(load);
    for (int tries = 0; tries < 2; tries++) {
        if (load->hash != NULL) {
            XXH3_64bits_reset(load->hash);
        }
        moe_finite_scan_begin(&load->scan, ref->type, ref->n_in);
        if (tries > 0) {
            load->bytes_done -= ref->size;
            status = moe_model_reader_begin(load->reader, load->ranges + load->at,
                                            load->n_ranges - load->at, load->err);
        }
        status = status == MOE_OK ? fill(load, context) : status;
        if (status != MOE_OK) {
            return status;
        }
        status = verify(load);
        if (status == MOE_OK) {
            break;
        }
    }
    if (status == MOE_ERR_IO && load->source->sums != NULL) {
        moe_weight_sums_tell_damage(load->source->sums);
    }
    load->at++;
    return status;
}

/* ---- Tensors ---- */

typedef struct plain_tensor {
    const void *dst;
    uint64_t size;
} plain_tensor;

static int fill_plain(loader *load, void *context)
{
    const plain_tensor *t = context;
    return upload_bytes(load, t->dst, t->size);
}

static int load_tensor(loader *load, moe_weight *weight, const moe_tensor_ref *ref)
{
    if (ref->size == 0) {
        return MOE_OK;
    }
    moe_weight placed = {0};
    place(load, &placed, ref->type, ref->n_in, ref->n_out, ref->size);
    if (load->walk == WALK_LOAD) {
        placed.scale = moe_tensor_scale_of(load->source->map, ref);
        *weight = placed;
    }
    plain_tensor t = {placed.data, ref->size};
    return load_by(load, ref, fill_plain, &t);
}

/* Older MLA files hold [head][nope + v][rank] in one tensor. The values' rows are used unchanged.
 * The keys' rows are needed transposed, [head][rank][nope], and become F32, so that no quantisation
 * is added. */
typedef struct split_tensor {
    const moe_tensor_ref *kv_b;
    const moe_layer_kind *kind;
    moe_weight k_b, v_b;
    moe_dequantize_fn dequantize;
    uint8_t *rows; /* of the keys of a head */
    float *row, *transposed;
} split_tensor;

static int fill_split(loader *load, void *context)
{
    split_tensor *t = context;
    const moe_latent *c = &t->kind->latent;
    uint64_t row_bytes = moe_dtype_row_bytes(t->kv_b->type, t->kv_b->n_in);
    size_t k_bytes = (size_t)c->rank * c->nope * sizeof(float);
    uint64_t v_bytes = row_bytes * c->v_dim;
    for (uint32_t h = 0; h < t->kind->heads.n; h++) {
        MOE_TRY(take_bytes(load, t->rows, c->nope * row_bytes));
        for (uint32_t i = 0; i < c->nope; i++) {
            t->dequantize(t->rows + i * row_bytes, t->row, c->rank);
            for (uint32_t j = 0; j < c->rank; j++) {
                t->transposed[(size_t)j * c->nope + i] = t->row[j];
            }
        }
        MOE_TRY(load->device->ops->upload(load->device, (uint8_t *)t->k_b.data + h * k_bytes,
                                          t->transposed, k_bytes, load->err));
        MOE_TRY(upload_bytes(load, (const uint8_t *)t->v_b.data + h * v_bytes, v_bytes));
    }
    return MOE_OK;
}

static int load_split(loader *load, moe_layer_weights *layer, const moe_layer_kind *kind,
                      const moe_tensor_ref *kv_b)
{
    const moe_latent *c = &kind->latent;
    split_tensor t = {.kv_b = kv_b, .kind = kind, .dequantize = moe_dequantize_of(kv_b->type)};
    uint64_t row_bytes = moe_dtype_row_bytes(kv_b->type, kv_b->n_in);
    uint64_t k_rows = (uint64_t)kind->heads.n * c->rank;
    uint64_t v_rows = (uint64_t)kind->heads.n * c->v_dim;
    place(load, &t.v_b, kv_b->type, kv_b->n_in, v_rows, v_rows * row_bytes);
    place(load, &t.k_b, MOE_DTYPE_F32, c->nope, k_rows, k_rows * c->nope * sizeof(float));
    if (load->walk != WALK_LOAD) {
        return load_by(load, kv_b, NULL, NULL);
    }
    layer->tensors[MOE_LAYER_ATTN_V_B] = t.v_b;
    layer->tensors[MOE_LAYER_ATTN_K_B] = t.k_b;
    t.rows = moe_calloc(c->nope, row_bytes);
    t.row = moe_calloc(c->rank, sizeof *t.row);
    t.transposed = moe_calloc((size_t)c->rank * c->nope, sizeof *t.transposed);
    int status = t.rows != NULL && t.row != NULL && t.transposed != NULL
                     ? load_by(load, kv_b, fill_split, &t)
                     : moe_fail(load->err, MOE_ERR_MEMORY, "no memory to split attn_kv_b");
    free(t.rows);
    free(t.row);
    free(t.transposed);
    return status;
}

static int fill_host_float(loader *load, void *context)
{
    return take_bytes(load, context, sizeof(float));
}

static int load_out_scale(loader *load, moe_layer_weights *layer, const moe_tensor_ref *ref)
{
    layer->out_scale = 1.0f;
    return ref->size == 0 ? MOE_OK : load_by(load, ref, fill_host_float, &layer->out_scale);
}

static int load_expert_biases(loader *load, moe_layer_weights *layer, const moe_layer_map *map)
{
    static const int biases[] = {MOE_LAYER_EXPERTS_GATE_BIAS, MOE_LAYER_EXPERTS_UP_BIAS,
                                 MOE_LAYER_EXPERTS_DOWN_BIAS};
    for (size_t i = 0; i < sizeof biases / sizeof biases[0]; i++) {
        MOE_TRY(load_tensor(load, &layer->tensors[biases[i]], &map->tensors[biases[i]]));
    }
    return MOE_OK;
}

static int load_layer(loader *load, moe_layer_weights *layer, const moe_layer_kind *kind,
                      const moe_layer_map *map)
{
    if (load->experts_only) {
        return load_expert_biases(load, layer, map);
    }
    for (int t = 0; t < MOE_LAYER_TENSOR_COUNT; t++) {
        if (t == MOE_LAYER_ATTN_KV_B || t == MOE_LAYER_OUT_SCALE) {
            continue;
        }
        MOE_TRY(load_tensor(load, &layer->tensors[t], &map->tensors[t]));
    }
    MOE_TRY(load_out_scale(load, layer, &map->tensors[MOE_LAYER_OUT_SCALE]));
    const moe_tensor_ref *kv_b = &map->tensors[MOE_LAYER_ATTN_KV_B];
    bool is_split = kv_b->size != 0 && map->tensors[MOE_LAYER_ATTN_K_B].size == 0;
    return is_split ? load_split(load, layer, kind, kv_b) : MOE_OK;
}

typedef struct host_floats {
    float *values;
    uint64_t bytes;
} host_floats;

static int fill_host_floats(loader *load, void *context)
{
    const host_floats *to = context;
    return take_bytes(load, (uint8_t *)to->values, to->bytes);
}

static int load_rope_factors(loader *load, const moe_tensor_ref *ref, float **factors)
{
    if (ref->size == 0) {
        return MOE_OK;
    }
    if (load->walk == WALK_LOAD) {
        *factors = moe_calloc(ref->n_in, sizeof(float));
        if (*factors == NULL) {
            return moe_fail(load->err, MOE_ERR_MEMORY, "no memory for the rope factors");
        }
    }
    host_floats to = {*factors, ref->size};
    return load_by(load, ref, fill_host_floats, &to);
}

/* The tensors that belong to no layer and stand before the layers. */
static int walk_front(loader *load, const moe_tensor_map *map)
{
    moe_weights *w = load->weights;
    MOE_TRY(load_tensor(load, &w->token_embedding, &map->token_embedding));
    MOE_TRY(load_tensor(load, &w->output_norm, &map->output_norm));
    MOE_TRY(load_tensor(load, &w->output_norm_bias, &map->output_norm_bias));
    MOE_TRY(load_tensor(load, &w->output_bias, &map->output_bias));
    if (load->config->tied_output) {
        w->output = w->token_embedding;
    } else {
        MOE_TRY(load_tensor(load, &w->output, &map->output));
    }
    for (int t = 0; t < MOE_DRAFT_TENSORS; t++) {
        MOE_TRY(load_tensor(load, &w->draft[t], &map->draft[t]));
    }
    for (int t = 0; t < MOE_STREAMS_TENSORS; t++) {
        MOE_TRY(load_tensor(load, &w->streams[t], &map->streams[t]));
    }
    return MOE_OK;
}

static int walk_all(loader *load, const moe_tensor_map *map, walk kind)
{
    moe_weights *w = load->weights;
    load->walk = kind;
    load->offset = 0;
    if (!load->experts_only) {
        MOE_TRY(walk_front(load, map));
    }
    for (uint32_t l = 0; l < load->config->n_layer; l++) {
        moe_layer_weights unused;
        MOE_TRY(load_layer(load, kind == WALK_LOAD ? &w->layers[l] : &unused,
                           &load->config->layers[l], &map->layers[l]));
    }
    if (load->experts_only) {
        return MOE_OK;
    }
    MOE_TRY(load_rope_factors(load, &map->rope_freqs, &w->rope_factors));
    return load_rope_factors(load, &map->rope_freqs_long, &w->rope_factors_long);
}

uint64_t moe_weights_bytes(const moe_model_config *config, const moe_tensor_map *map,
                           bool experts_only)
{
    moe_weights weights = {0};
    loader load = {.weights = &weights, .config = config, .experts_only = experts_only};
    (void)walk_all(&load, map, WALK_MEASURE);
    return load.offset;
}

static int open_reader(loader *load)
{
    const moe_weights_source *s = load->source;
    moe_model_reader_options options = s->reader;
    options.gguf = s->gguf;
    options.is_cancelled = is_cancelled;
    options.cancel_user = load;
    if (s->sums != NULL) {
        load->hash = XXH3_createState();
        if (load->hash == NULL) {
            return moe_fail(load->err, MOE_ERR_MEMORY, "no memory to verify weights");
        }
    }
    MOE_TRY(moe_model_reader_open(&load->reader, &options, load->err));
    return moe_model_reader_begin(load->reader, load->ranges, load->n_ranges, load->err);
}

/* Refuses a table if one of its numbers is no expert, or is there twice for a token. */
static int check_table(const loader *load, uint32_t layer, const moe_weight *table)
{
    const uint32_t *experts = (const uint32_t *)table->data;
    for (size_t i = 0; i < (size_t)table->n_in * table->n_out; i++) {
        bool wrong = experts[i] >= load->config->n_expert;
        for (size_t k = i - i % table->n_in; k < i; k++) {
            wrong = wrong || experts[k] == experts[i];
        }
        if (wrong) {
            return moe_fail(load->err, MOE_ERR_FORMAT,
                            "the table of experts of layer %u says %u for token %zu, which is no "
                            "expert of %u, or stands twice",
                            layer, experts[i], i / table->n_in, load->config->n_expert);
        }
    }
    return MOE_OK;
}

static int check_tables(const loader *load)
{
    const bool readable = (load->device->features & MOE_DEVICE_READABLE) != 0;
    for (uint32_t l = 0; l < load->config->n_layer && readable; l++) {
        MOE_TRY(check_table(load, l, &load->weights->layers[l].tensors[MOE_LAYER_ROUTER_TABLE]));
    }
    return MOE_OK;
}

static int measure_and_load(loader *load)
{
    moe_weights *w = load->weights;
    const moe_tensor_map *map = load->source->map;
    w->layers = moe_calloc(load->config->n_layer, sizeof *w->layers);
    if (w->layers == NULL) {
        return moe_fail(load->err, MOE_ERR_MEMORY, "no memory to load weights");
    }
    w->arena_bytes = moe_weights_bytes(load->config, map, load->experts_only);
    if (w->arena_bytes == 0) { /* a model of experts alone, without biases */
        return MOE_OK;
    }
    void *arena;
    MOE_TRY(load->device->ops->alloc(load->device, w->arena_bytes, &arena, load->err));
    w->arena = arena;
    if ((load->device->features & MOE_DEVICE_READABLE) != 0) {
        const moe_pages_region all = {.memory = arena, .bytes = w->arena_bytes};
        load->ahead = moe_pages_ahead_start(&all, 1, SIZE_MAX, load->source->n_threads);
    }
    MOE_TRY(walk_all(load, map, WALK_LIST));
    MOE_TRY(open_reader(load));
    MOE_TRY(walk_all(load, map, WALK_LOAD));
    return check_tables(load);
}

int moe_weights_load(moe_weights *weights, moe_device *device, const moe_weights_source *source,
                     moe_error *err)
{
    *weights = (moe_weights){0};
    loader load = {.weights = weights,
                   .device = device,
                   .source = source,
                   .config = source->config,
                   .experts_only = source->experts_only,
                   .err = err};
    int status = measure_and_load(&load);
    moe_pages_ahead_stop(&load.ahead);
    moe_model_reader_close(&load.reader);
    XXH3_freeState(load.hash);
    free(load.ranges);
    if (status == MOE_ERR_CANCELLED) {
        moe_fail(err, status, "opening was cancelled");
    }
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
    free(weights->rope_factors_long);
    *weights = (moe_weights){0};
}
