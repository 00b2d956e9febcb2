/* SPDX-License-Identifier: MIT */
/* Finds every tensor that the config requires, checks it against its row, and notes where its bytes
 * are. Experts come in three layouts, which the file's names distinguish:
 *
 *  ffn_{gate,up,down}_exps     one tensor for each part; expert e is its e-th slice
 *  ffn_gate_up_exps            likewise; a slice holds the rows of gate, then those of up
 *  ffn_{gate,up,down}.E        one tensor for each expert and part
 *
 * Unused tensors are refused: they would be weights that the result ignores. */
#include "runtime/model/tensor_map.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/model/gguf_internal.h"
#include "runtime/model/tensor_map_rows.h"

#define NAME_ROOM 64

typedef struct builder {
    moe_tensor_map *map;
    const moe_model_config *config;
    const moe_gguf *gguf;
    moe_error *err;
    bool *claimed; /* of each of the file's tensors */
    uint64_t dims[MOE_DIM_COUNT];
    uint64_t n_expert_elems;
} builder;

/* The shape that a tensor must have: n_out * n_slices rows of n_in elements in all. */
typedef struct shape {
    uint64_t n_in;
    uint64_t n_out;
    uint64_t n_slices;
    bool vector; /* one-dimensional, and F32 */
} shape;

static int fail_missing(const builder *b, const char *name)
{
    return moe_fail(b->err, MOE_ERR_FORMAT,
                    "tensor '%s' is missing: the file does not hold all of this %s model", name,
                    b->config->family);
}

static int fail_shape(const builder *b, const char *name, const moe_gguf_tensor *tensor,
                      const shape *expected)
{
    char slices[32] = "";
    if (expected->n_slices > 1) {
        snprintf(slices, sizeof slices, ", %" PRIu64, expected->n_slices);
    }
    char rows[32] = "";
    if (!expected->vector) {
        snprintf(rows, sizeof rows, ", %" PRIu64, expected->n_out);
    }
    return moe_fail(b->err, MOE_ERR_FORMAT,
                    "tensor '%s' has shape [%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64
                    "], expected [%" PRIu64 "%s%s]",
                    name, tensor->dims[0], tensor->dims[1], tensor->dims[2], tensor->dims[3],
                    expected->n_in, rows, slices);
}

/* The per-head MLA tensors are three-dimensional in some files and flat in others with the same
 * bytes, so only row length and number of rows are compared. Stacked experts must be stacked. */
static bool has_shape(const moe_gguf_tensor *tensor, const shape *expected)
{
    if (expected->n_slices > 1) {
        return tensor->dims[0] == expected->n_in && tensor->dims[1] == expected->n_out &&
               tensor->dims[2] == expected->n_slices && tensor->dims[3] == 1;
    }
    uint64_t rows = tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
    return tensor->dims[0] == expected->n_in && rows == expected->n_out;
}

static int need_f32(const builder *b, const char *name, uint32_t type)
{
    return type == MOE_DTYPE_F32
               ? MOE_OK
               : moe_fail(b->err, MOE_ERR_UNSUPPORTED,
                          "tensor '%s' is of type %s; norms and biases must be F32", name,
                          moe_dtype_name(type));
}

/* Claims the named tensor and writes its whole range; *found is false if there is none. */
static int take(builder *b, const char *name, const shape *expected, moe_tensor_ref *ref,
                bool *found)
{
    const moe_gguf_tensor *tensor = moe_gguf_find_tensor(b->gguf, name);
    *found = tensor != NULL;
    if (tensor == NULL) {
        return MOE_OK;
    }
    if (!has_shape(tensor, expected)) {
        return fail_shape(b, name, tensor, expected);
    }
    if (moe_dtype_info_of(tensor->type) == NULL) {
        return moe_fail(b->err, MOE_ERR_UNSUPPORTED,
                        "tensor '%s' is of type %s (%" PRIu32 "), which is not supported: %s", name,
                        moe_dtype_name(tensor->type), tensor->type, moe_dtype_advice(tensor->type));
    }
    if (expected->vector && need_f32(b, name, tensor->type) != MOE_OK) {
        return MOE_ERR_UNSUPPORTED;
    }
    if (tensor->file_index >= moe_gguf_n_files(b->gguf) ||
        tensor->offset > moe_gguf_file_at(b->gguf, tensor->file_index)->size ||
        tensor->size > moe_gguf_file_at(b->gguf, tensor->file_index)->size - tensor->offset) {
        return moe_fail(b->err, MOE_ERR_FORMAT, "tensor '%s' lies beyond the end of its file",
                        name);
    }
    b->claimed[tensor - moe_gguf_tensor_at(b->gguf, 0)] = true;
    *ref = (moe_tensor_ref){.type = (moe_dtype)tensor->type,
                            .file_index = tensor->file_index,
                            .offset = tensor->offset,
                            .size = tensor->size,
                            .n_in = expected->n_in,
                            .n_out = expected->n_out * expected->n_slices};
    return MOE_OK;
}

/* Claims NAME.scale of NAME.weight: a number, or one for each slice. NAME.input_scale says how
 * another program may round activations, and is not used. */
static int take_scale(builder *b, const char *name, const shape *expected, moe_tensor_ref *ref)
{
    char beside[NAME_ROOM + 16];
    const int stem = (int)(strrchr(name, '.') - name);
    snprintf(beside, sizeof beside, "%.*s.input_scale", stem, name);
    const moe_gguf_tensor *tensor = moe_gguf_find_tensor(b->gguf, beside);
    if (tensor != NULL) {
        b->claimed[tensor - moe_gguf_tensor_at(b->gguf, 0)] = true;
    }
    snprintf(beside, sizeof beside, "%.*s.scale", stem, name);
    const shape wanted = {expected->n_slices, 1, 1, true};
    moe_tensor_ref scale;
    bool found;
    int status = take(b, beside, &wanted, &scale, &found);
    if (status != MOE_OK || !found) {
        return status;
    }
    moe_tensor_map *map = b->map;
    moe_scale_range *ranges =
        moe_realloc_array(map->scale_ranges, map->n_scale_ranges + 1u, sizeof *ranges);
    if (ranges == NULL) {
        return moe_fail(b->err, MOE_ERR_MEMORY, "out of memory for the scales of '%s'", name);
    }
    tensor = moe_gguf_find_tensor(b->gguf, beside);
    map->scale_ranges = ranges;
    ranges[map->n_scale_ranges++] = (moe_scale_range){.file_index = scale.file_index,
                                                      .offset = scale.offset,
                                                      .first = map->n_scales,
                                                      .n = (uint32_t)expected->n_slices,
                                                      .name = tensor->name.data,
                                                      .name_size = tensor->name.size};
    ref->scale = map->n_scales + 1;
    map->n_scales += (uint32_t)expected->n_slices;
    return MOE_OK;
}

/* Like take(); with the matrix's scales, if it has some. A family with factors of experts' weights
 * has them under the name of the down matrices' scales. */
static int take_scaled(builder *b, const char *name, const shape *expected, moe_tensor_ref *ref,
                       bool *found)
{
    int status = take(b, name, expected, ref, found);
    bool taken = (b->config->family_traits & MOE_TRAIT_EXPERT_SCALES) != 0 &&
                 strstr(name, ".ffn_down_exps.") != NULL;
    return status == MOE_OK && *found && !taken && moe_tensor_may_be_scaled(name)
               ? take_scale(b, name, expected, ref)
               : status;
}

static void count_resident(builder *b, const moe_tensor_ref *ref)
{
    b->map->resident_bytes += ref->size;
    b->map->n_parameters += ref->n_in * ref->n_out;
}

static int take_resident(builder *b, const char *name, const shape *expected, bool optional,
                         moe_tensor_ref *ref)
{
    bool found;
    int status = take_scaled(b, name, expected, ref, &found);
    if (status == MOE_OK && !found && !optional) {
        return fail_missing(b, name);
    }
    if (status == MOE_OK && found) {
        count_resident(b, ref);
    }
    return status;
}

/* Finds the model's optional tensors: biases, and factors of rotary frequencies. */
static int map_optional_globals(builder *b, const moe_model_config *config)
{
    moe_tensor_map *map = b->map;
    bool means = config->norm == MOE_NORM_MEAN;
    shape factors = {config->n_rope_factors, 1, 1, true};
    shape embedding = {config->n_embd, 1, 1, true};
    shape vocabulary = {config->n_vocab, 1, 1, true};
    const struct {
        const char *name;
        const shape *expected;
        moe_tensor_ref *ref;
        bool known;
    } rows[] = {
        {"rope_freqs.weight", &factors, &map->rope_freqs, true},
        {"rope_factors_short.weight", &factors, &map->rope_freqs,
         moe_gguf_find_tensor(b->gguf, "rope_freqs.weight") == NULL},
        {"rope_factors_long.weight", &factors, &map->rope_freqs_long, true},
        {"output_norm.bias", &embedding, &map->output_norm_bias, means},
        {"output.bias", &vocabulary, &map->output_bias, means},
    };
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && status == MOE_OK; i++) {
        if (rows[i].known) {
            status = take_resident(b, rows[i].name, rows[i].expected, true, rows[i].ref);
        }
    }
    if (status == MOE_OK && map->rope_freqs_long.size > 0 && map->rope_freqs.size == 0) {
        return fail_missing(b, "rope_factors_short.weight");
    }
    return status;
}

static int map_globals(builder *b, moe_model_config *config)
{
    moe_tensor_map *map = b->map;
    shape matrix = {config->n_embd, config->n_vocab, 1, false};
    shape norm = {config->n_embd, 1, 1, true};
    int status = take_resident(b, "token_embd.weight", &matrix, false, &map->token_embedding);
    if (status == MOE_OK) {
        status = take_resident(b, config->output_norm_tensor, &norm, false, &map->output_norm);
    }
    if (status == MOE_OK) {
        status = take_resident(b, "output.weight", &matrix, true, &map->output);
    }
    if (status == MOE_OK) {
        status = map_optional_globals(b, config);
    }
    config->tied_output = map->output.size == 0;
    if (config->tied_output) {
        map->output = map->token_embedding;
    }
    return status;
}

static const char *part_name(moe_expert_part part)
{
    static const char *const names[MOE_EXPERT_PARTS] = {"gate", "up", "down"};
    return names[part];
}

static shape part_shape(const moe_model_config *config, moe_expert_part part, uint64_t n_slices)
{
    uint64_t n_ff = config->n_ff_expert;
    return part == MOE_EXPERT_DOWN ? (shape){n_ff, config->n_expert_in, n_slices, false}
                                   : (shape){config->n_expert_in, n_ff, n_slices, false};
}

/* Rows [first, first + n_out) of each expert's slice of a stacked tensor become its part. */
static void slice_experts(builder *b, moe_layer_map *layer, const moe_tensor_ref *stacked,
                          moe_expert_part part, uint64_t first, uint64_t n_out)
{
    uint64_t row_bytes = moe_dtype_row_bytes(stacked->type, stacked->n_in);
    uint64_t slice_rows = stacked->n_out / b->config->n_expert;
    for (uint32_t e = 0; e < b->config->n_expert; e++) {
        moe_tensor_ref *ref = &layer->experts[e].parts[part];
        *ref = *stacked;
        ref->offset += (e * slice_rows + first) * row_bytes;
        ref->size = n_out * row_bytes;
        ref->n_out = n_out;
        ref->scale = stacked->scale != 0 ? stacked->scale + e : 0;
    }
}

static int map_fused_experts(builder *b, uint32_t index, moe_layer_map *layer, bool *found)
{
    char name[NAME_ROOM];
    uint64_t n_ff = b->config->n_ff_expert;
    shape expected = {b->config->n_expert_in, 2 * n_ff, b->config->n_expert, false};
    moe_tensor_ref stacked;
    snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_gate_up_exps.weight", index);
    int status = take(b, name, &expected, &stacked, found);
    if (status == MOE_OK && *found) {
        slice_experts(b, layer, &stacked, MOE_EXPERT_GATE, 0, n_ff);
        slice_experts(b, layer, &stacked, MOE_EXPERT_UP, n_ff, n_ff);
    }
    return status;
}

static int map_stacked_experts(builder *b, uint32_t index, moe_layer_map *layer,
                               moe_expert_part part, bool *found)
{
    char name[NAME_ROOM];
    shape expected = part_shape(b->config, part, b->config->n_expert);
    moe_tensor_ref stacked;
    snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_%s_exps.weight", index, part_name(part));
    int status = take_scaled(b, name, &expected, &stacked, found);
    if (status == MOE_OK && *found) {
        slice_experts(b, layer, &stacked, part, 0, expected.n_out);
    }
    return status;
}

static int map_single_experts(builder *b, uint32_t index, moe_layer_map *layer,
                              moe_expert_part part)
{
    char name[NAME_ROOM];
    shape expected = part_shape(b->config, part, 1);
    for (uint32_t e = 0; e < b->config->n_expert; e++) {
        bool found;
        snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_%s.%" PRIu32 ".weight", index,
                 part_name(part), e);
        int status = take(b, name, &expected, &layer->experts[e].parts[part], &found);
        if (status != MOE_OK) {
            return status;
        }
        if (!found) {
            if (e == 0) { /* the error names the tensor of today's files */
                snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_%s_exps.weight", index,
                         part_name(part));
            }
            return fail_missing(b, name);
        }
    }
    return MOE_OK;
}

static int map_experts(builder *b, uint32_t index, moe_layer_map *layer)
{
    layer->experts = moe_calloc(b->config->n_expert, sizeof *layer->experts);
    if (layer->experts == NULL) {
        return moe_fail(b->err, MOE_ERR_MEMORY, "out of memory for the experts of layer %" PRIu32,
                        index);
    }
    bool fused = false;
    bool gated = !b->config->no_gate_matrix;
    int status = gated ? map_fused_experts(b, index, layer, &fused) : MOE_OK;
    int first = fused ? MOE_EXPERT_DOWN : gated ? MOE_EXPERT_GATE : MOE_EXPERT_UP;
    for (int p = first; p < MOE_EXPERT_PARTS; p++) {
        bool found = false;
        if (status == MOE_OK) {
            status = map_stacked_experts(b, index, layer, (moe_expert_part)p, &found);
        }
        if (status == MOE_OK && !found) {
            status = map_single_experts(b, index, layer, (moe_expert_part)p);
        }
    }
    for (uint32_t e = 0; e < b->config->n_expert && status == MOE_OK; e++) {
        if (!gated) {
            layer->experts[e].parts[MOE_EXPERT_GATE] = layer->experts[e].parts[MOE_EXPERT_UP];
            layer->experts[e].parts[MOE_EXPERT_GATE].size = 0;
        }
        b->map->expert_bytes += moe_expert_ref_bytes(&layer->experts[e]);
        for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
            const moe_tensor_ref *ref = &layer->experts[e].parts[p];
            b->n_expert_elems += ref->size > 0 ? ref->n_in * ref->n_out : 0;
        }
    }
    return status;
}

/* If a file holds attn_kv_b beside its halves, the same weights are in it twice; the halves are
 * used. */
static unsigned kv_trait(builder *b, uint32_t index)
{
    char name[NAME_ROOM];
    snprintf(name, sizeof name, "blk.%" PRIu32 ".attn_k_b.weight", index);
    bool split = moe_gguf_find_tensor(b->gguf, name) != NULL;
    snprintf(name, sizeof name, "blk.%" PRIu32 ".attn_kv_b.weight", index);
    const moe_gguf_tensor *joined = moe_gguf_find_tensor(b->gguf, name);
    if (split && joined != NULL) {
        b->claimed[joined - moe_gguf_tensor_at(b->gguf, 0)] = true;
    }
    return split || joined == NULL ? MOE_TRAIT_KV_SPLIT : MOE_TRAIT_KV_JOINED;
}

/* The rows of attn_qkv, weight or bias, are those of attn_q, attn_k and attn_v, one after the
 * other. *found is false when the file has none. */
static int map_joined_qkv(builder *b, uint32_t index, moe_layer_map *layer, bool bias, bool *found)
{
    static const moe_layer_tensor targets[2][3] = {
        {MOE_LAYER_ATTN_Q, MOE_LAYER_ATTN_K, MOE_LAYER_ATTN_V},
        {MOE_LAYER_ATTN_Q_BIAS, MOE_LAYER_ATTN_K_BIAS, MOE_LAYER_ATTN_V_BIAS},
    };
    static const moe_dim parts[3] = {MOE_DIM_QUERIES, MOE_DIM_KEYS, MOE_DIM_VALUES};
    char name[NAME_ROOM];
    uint64_t n_rows = b->dims[parts[0]] + b->dims[parts[1]] + b->dims[parts[2]];
    shape expected =
        bias ? (shape){n_rows, 1, 1, true} : (shape){b->config->n_embd, n_rows, 1, false};
    moe_tensor_ref whole;
    snprintf(name, sizeof name, "blk.%" PRIu32 ".attn_qkv.%s", index, bias ? "bias" : "weight");
    int status = take_scaled(b, name, &expected, &whole, found);
    if (status != MOE_OK || !*found) {
        return status;
    }
    count_resident(b, &whole);
    for (int p = 0; p < 3; p++) {
        moe_tensor_ref *ref = &layer->tensors[targets[bias][p]];
        uint64_t n = b->dims[parts[p]];
        *ref = whole;
        ref->size = bias ? n * sizeof(float) : n * moe_dtype_row_bytes(whole.type, whole.n_in);
        ref->n_in = bias ? n : whole.n_in;
        ref->n_out = bias ? 1 : n;
        whole.offset += ref->size;
    }
    return MOE_OK;
}

static int map_layer(builder *b, uint32_t index)
{
    char name[NAME_ROOM];
    moe_layer_map *layer = &b->map->layers[index];
    uint64_t traits = moe_layer_traits(b->config, index);
    moe_tensor_dims(b->config, index, b->dims);
    if (b->config->layers[index].mixer == MOE_MIXER_LATENT) {
        traits |= kv_trait(b, index);
    }
    for (int bias = 0; bias < 2 && (traits & MOE_TRAIT_GQA) != 0; bias++) {
        bool found;
        int status = map_joined_qkv(b, index, layer, bias, &found);
        if (status != MOE_OK) {
            return status;
        }
    }
    for (int t = 0; t < MOE_LAYER_TENSOR_COUNT; t++) {
        const moe_tensor_row *row = &moe_tensor_rows[t];
        bool optional = moe_tensor_is_optional(b->config, (moe_layer_tensor)t);
        bool mapped = layer->tensors[t].size > 0; /* a part of attn_qkv */
        uint64_t needed = row->traits & ~(uint64_t)(MOE_TRAIT_OPTIONAL | MOE_TRAIT_F32);
        if (mapped || (needed & ~traits) != 0) {
            continue;
        }
        shape expected = {b->dims[row->n_in], b->dims[row->n_out], 1, row->n_out == MOE_DIM_NONE};
        snprintf(name, sizeof name, "blk.%" PRIu32 ".%s", index,
                 moe_tensor_name(b->config, (moe_layer_tensor)t));
        int status = take_resident(b, name, &expected, optional, &layer->tensors[t]);
        if (status == MOE_OK && (row->traits & MOE_TRAIT_F32) != 0) {
            status = need_f32(b, name, layer->tensors[t].type);
        }
        if (status != MOE_OK) {
            return status;
        }
    }
    return (traits & MOE_TRAIT_EXPERTS) != 0 ? map_experts(b, index, layer) : MOE_OK;
}

/* Tensors that only other programs need, or that belong to layers which are not run. */
static bool may_be_ignored(const builder *b, const moe_gguf_tensor *tensor)
{
    static const char rotary[] = ".attn_rot_embd.weight"; /* of early llama files */
    size_t size = tensor->name.size;
    char text[32] = "";
    uint32_t layer;
    if (size >= sizeof rotary - 1 &&
        memcmp(tensor->name.data + size - (sizeof rotary - 1), rotary, sizeof rotary - 1) == 0) {
        return true;
    }
    memcpy(text, tensor->name.data, size < sizeof text - 1 ? size : sizeof text - 1);
    if (sscanf(text, "blk.%9" SCNu32 ".", &layer) != 1) {
        return false;
    }
    bool indexer = strstr(text, ".indexer.") != NULL;
    return layer >= b->config->n_layer || (indexer && b->config->indexer_unused);
}

static int refuse_unclaimed(const builder *b)
{
    char shown[MOE_GGUF_SHOWN];
    for (size_t i = 0; i < moe_gguf_n_tensors(b->gguf); i++) {
        const moe_gguf_tensor *tensor = moe_gguf_tensor_at(b->gguf, i);
        if (!b->claimed[i] && !may_be_ignored(b, tensor)) {
            return moe_fail(b->err, MOE_ERR_UNSUPPORTED,
                            "tensor '%s' is not one that %s models (architecture '%s') are known "
                            "to have: ignoring it would give wrong results",
                            moe_gguf_show(tensor->name, shown), b->config->family,
                            b->config->architecture);
        }
    }
    return MOE_OK;
}

int moe_tensor_map_build(moe_tensor_map *map, moe_model_config *config, const moe_gguf *gguf,
                         moe_error *err)
{
    *map = (moe_tensor_map){.n_layer = config->n_layer, .n_expert = config->n_expert};
    builder b = {.map = map, .config = config, .gguf = gguf, .err = err};
    b.claimed = moe_calloc(moe_gguf_n_tensors(gguf), sizeof *b.claimed);
    map->layers = moe_calloc(config->n_layer, sizeof *map->layers);
    int status = MOE_OK;
    if (b.claimed == NULL || map->layers == NULL) {
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory for the map of %" PRIu32 " layers",
                          config->n_layer);
    }
    if (status == MOE_OK) {
        status = map_globals(&b, config);
    }
    for (uint32_t i = 0; i < config->n_layer && status == MOE_OK; i++) {
        status = map_layer(&b, i);
    }
    if (status == MOE_OK) {
        status = refuse_unclaimed(&b);
    }
    map->n_parameters_active =
        map->n_parameters + b.n_expert_elems / config->n_expert * config->n_expert_used;
    map->n_parameters += b.n_expert_elems;
    free(b.claimed);
    if (status != MOE_OK) {
        moe_tensor_map_free(map);
    }
    return status;
}

/* ---- The drafting layer ---- */

/* The layer's kind: that of the model's last layer with attention; the file says whether its
 * network is dense. */
static int draft_kind(const moe_model_config *config, const moe_gguf *gguf, moe_layer_kind *kind,
                      uint32_t *n_ff_dense, moe_error *err)
{
    char name[NAME_ROOM];
    uint32_t last = config->n_layer;
    while (last > 0 && !moe_mixer_has_heads(config->layers[last - 1].mixer)) {
        last--;
    }
    bool single = last > 0 && config->layers[last - 1].feed_forward == MOE_FEED_FORWARD_NONE;
    if (last == 0 || single || config->attention_window > 0) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "drafting layers of %s models are not run: %s; draft in another way",
                        config->family,
                        last == 0 ? "the model has no layer with attention"
                        : single  ? "their norms are other ones than the model's"
                                  : "which window they have is in no key");
    }
    *kind = config->layers[last - 1];
    /* It attends to all positions: that changes drafts, not the text. */
    kind->heads.k_dim -= kind->indexer == MOE_INDEXER_OWN ? config->index_dim : 0;
    kind->indexer = MOE_INDEXER_NONE;
    snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_gate_inp.weight", config->n_layer);
    bool routed = config->n_expert > 0 && moe_gguf_find_tensor(gguf, name) != NULL;
    snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_gate.weight", config->n_layer);
    const moe_gguf_tensor *gate = moe_gguf_find_tensor(gguf, name);
    kind->feed_forward = !routed                   ? MOE_FEED_FORWARD_DENSE
                         : config->n_ff_shared > 0 ? MOE_FEED_FORWARD_BOTH
                                                   : MOE_FEED_FORWARD_ROUTED;
    if (!routed && gate != NULL && gate->dims[1] > 0 && gate->dims[1] <= UINT32_MAX / 2) {
        *n_ff_dense = (uint32_t)gate->dims[1];
    }
    return MOE_OK;
}

static int map_draft_tensors(builder *b, uint32_t index)
{
    moe_tensor_map *map = b->map;
    const uint64_t n = b->config->n_embd;
    const struct {
        const char *name;
        shape expected;
        moe_tensor_ref *ref;
        bool optional;
    } rows[] = {
        {"eh_proj", {2 * n, n, 1, false}, &map->draft[MOE_DRAFT_JOIN], false},
        {"enorm", {n, 1, 1, true}, &map->draft[MOE_DRAFT_TOKEN_NORM], false},
        {"hnorm", {n, 1, 1, true}, &map->draft[MOE_DRAFT_HIDDEN_NORM], false},
        {"shared_head_norm", {n, 1, 1, true}, &map->output_norm, true},
        {"embed_tokens", {n, b->config->n_vocab, 1, false}, &map->token_embedding, true},
        {"shared_head_head", {n, b->config->n_vocab, 1, false}, &map->output, true},
    };
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && status == MOE_OK; i++) {
        char name[NAME_ROOM];
        snprintf(name, sizeof name, "blk.%" PRIu32 ".nextn.%s.weight", index, rows[i].name);
        status = take_resident(b, name, &rows[i].expected, rows[i].optional, rows[i].ref);
    }
    return status;
}

/* Tensors of this layer alone must be known; others are the model's, or of layers behind it. */
static int refuse_unclaimed_draft(const builder *b, uint32_t index)
{
    char prefix[NAME_ROOM], shown[MOE_GGUF_SHOWN];
    int size = snprintf(prefix, sizeof prefix, "blk.%" PRIu32 ".", index);
    for (size_t i = 0; i < moe_gguf_n_tensors(b->gguf); i++) {
        const moe_gguf_tensor *tensor = moe_gguf_tensor_at(b->gguf, i);
        bool mine = tensor->name.size > (size_t)size &&
                    memcmp(tensor->name.data, prefix, (size_t)size) == 0;
        bool indexer = mine && tensor->name.size > (size_t)size + 8 &&
                       memcmp(tensor->name.data + size, "indexer.", 8) == 0;
        if (mine && !b->claimed[i] && !indexer) {
            return moe_fail(b->err, MOE_ERR_UNSUPPORTED,
                            "tensor '%s' of the drafting layer is not known: ignoring it would "
                            "give wrong drafts; draft in another way",
                            moe_gguf_show(tensor->name, shown));
        }
    }
    return MOE_OK;
}

int moe_tensor_map_build_draft(moe_tensor_map *map, moe_model_config *config, const moe_gguf *gguf,
                               moe_error *err)
{
    uint32_t index = config->n_layer;
    *map = (moe_tensor_map){.n_layer = index + 1, .n_expert = config->n_expert};
    int status = index + 1 < MOE_MAX_LAYERS
                     ? draft_kind(config, gguf, &config->layers[index], &config->n_ff_dense, err)
                     : moe_fail(err, MOE_ERR_UNSUPPORTED,
                                "the drafting layer would be the %" PRIu32 "th layer", index + 1);
    if (status != MOE_OK) {
        return status;
    }
    builder b = {.map = map, .config = config, .gguf = gguf, .err = err};
    b.claimed = moe_calloc(moe_gguf_n_tensors(gguf), sizeof *b.claimed);
    map->layers = moe_calloc(map->n_layer, sizeof *map->layers);
    if (b.claimed == NULL || map->layers == NULL) {
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory for the map of a drafting layer");
    }
    status = status == MOE_OK ? map_draft_tensors(&b, index) : status;
    status = status == MOE_OK ? map_layer(&b, index) : status;
    status = status == MOE_OK ? refuse_unclaimed_draft(&b, index) : status;
    free(b.claimed);
    if (status != MOE_OK) {
        moe_tensor_map_free(map);
        return status;
    }
    map->layers[0] = map->layers[index];
    map->n_layer = config->n_layer = 1;
    config->layers[0] = config->layers[index];
    config->tied_output = false;
    return MOE_OK;
}

/* ---- An EAGLE-3 head ---- */

static int map_eagle_tensors(builder *b, const moe_eagle_config *eagle)
{
    const moe_model_config *c = &eagle->config;
    moe_tensor_map *map = b->map;
    moe_tensor_ref *layer = map->layers[0].tensors;
    const uint64_t n = c->n_embd, n_ff = c->n_ff_dense;
    const uint64_t n_features = (uint64_t)MOE_EAGLE_TAPS * eagle->n_embd_target;
    const uint64_t q_rows = (uint64_t)c->n_head * c->head_dim_k;
    const uint64_t kv_rows = (uint64_t)c->n_head_kv * c->head_dim_k;
    const struct {
        const char *name;
        shape expected;
        moe_tensor_ref *ref;
        bool absent, optional;
    } rows[] = {
        {"fc.weight", {n_features, n, 1, false}, &map->draft[MOE_DRAFT_JOIN], false, false},
        {"enc.output_norm.weight",
         {n_features, 1, 1, true},
         &map->draft[MOE_DRAFT_FEATURES_NORM],
         !eagle->norm_before_fc,
         false},
        {"blk.0.attn_norm.weight",
         {n, 1, 1, true},
         &map->draft[MOE_DRAFT_TOKEN_NORM],
         false,
         false},
        {"blk.0.attn_norm_2.weight",
         {n, 1, 1, true},
         &map->draft[MOE_DRAFT_HIDDEN_NORM],
         false,
         false},
        {"blk.0.attn_q.weight", {2 * n, q_rows, 1, false}, &layer[MOE_LAYER_ATTN_Q], false, false},
        {"blk.0.attn_k.weight", {2 * n, kv_rows, 1, false}, &layer[MOE_LAYER_ATTN_K], false, false},
        {"blk.0.attn_v.weight", {2 * n, kv_rows, 1, false}, &layer[MOE_LAYER_ATTN_V], false, false},
        {"blk.0.attn_output.weight",
         {q_rows, n, 1, false},
         &layer[MOE_LAYER_ATTN_OUT],
         false,
         false},
        {"blk.0.ffn_norm.weight", {n, 1, 1, true}, &layer[MOE_LAYER_FFN_NORM], false, false},
        {"blk.0.ffn_gate.weight", {n, n_ff, 1, false}, &layer[MOE_LAYER_FFN_GATE], false, false},
        {"blk.0.ffn_up.weight", {n, n_ff, 1, false}, &layer[MOE_LAYER_FFN_UP], false, false},
        {"blk.0.ffn_down.weight", {n_ff, n, 1, false}, &layer[MOE_LAYER_FFN_DOWN], false, false},
        {"output_norm.weight", {n, 1, 1, true}, &map->output_norm, false, false},
        {"output.weight", {n, c->n_vocab, 1, false}, &map->output, false, !eagle->needs_output},
        {"token_embd.weight",
         {n, eagle->n_vocab_target, 1, false},
         &map->token_embedding,
         false,
         !eagle->needs_embedding},
        {"rope_freqs.weight", {c->n_rope_factors, 1, 1, true}, &map->rope_freqs, false, true},
    };
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && status == MOE_OK; i++) {
        if (!rows[i].absent) {
            status =
                take_resident(b, rows[i].name, &rows[i].expected, rows[i].optional, rows[i].ref);
        }
    }
    return status;
}

int moe_tensor_map_build_eagle(moe_tensor_map *map, const moe_eagle_config *eagle,
                               const moe_gguf *gguf, moe_error *err)
{
    *map = (moe_tensor_map){.n_layer = 1, .n_expert = eagle->config.n_expert};
    builder b = {.map = map, .config = &eagle->config, .gguf = gguf, .err = err};
    b.claimed = moe_calloc(moe_gguf_n_tensors(gguf), sizeof *b.claimed);
    map->layers = moe_calloc(map->n_layer, sizeof *map->layers);
    int status = b.claimed != NULL && map->layers != NULL
                     ? map_eagle_tensors(&b, eagle)
                     : moe_fail(err, MOE_ERR_MEMORY, "out of memory for the map of a head");
    const moe_gguf_tensor *tokens = moe_gguf_find_tensor(gguf, MOE_EAGLE_TOKENS);
    if (status == MOE_OK && tokens != NULL) {
        b.claimed[tokens - moe_gguf_tensor_at(gguf, 0)] = true; /* moe_eagle_config.tokens */
    }
    status = status == MOE_OK ? refuse_unclaimed(&b) : status;
    free(b.claimed);
    if (status != MOE_OK) {
        moe_tensor_map_free(map);
    }
    return status;
}

void moe_tensor_map_free(moe_tensor_map *map)
{
    for (uint32_t i = 0; map->layers != NULL && i < map->n_layer; i++) {
        free(map->layers[i].experts);
    }
    free(map->layers);
    free(map->scale_ranges);
    free(map->scales);
    *map = (moe_tensor_map){0};
}
