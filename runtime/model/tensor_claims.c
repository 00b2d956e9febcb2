/* SPDX-License-Identifier: MIT */
/* Experts come in three layouts, which differ in the names of tensors:
 *
 *   ffn_{gate,up,down}_exps  one tensor for each part; slice e belongs to expert e
 *   ffn_gate_up_exps         gate and up in one tensor: a slice has the rows of gate, then of up
 *   ffn_{gate,up,down}.E     one tensor for each expert and part */
#include "runtime/model/tensor_claims.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/model/family.h"
#include "runtime/model/gguf_internal.h"

#define NAME_ROOM 64

/* ---- Names ---- */

static const char *const layer_names[MOE_LAYER_TENSOR_COUNT] = {
    [MOE_LAYER_ATTN_STREAMS] = "hc_attn_fn.weight",
    [MOE_LAYER_ATTN_STREAMS_BASE] = "hc_attn_base.weight",
    [MOE_LAYER_ATTN_STREAMS_SCALE] = "hc_attn_scale.weight",
    [MOE_LAYER_FFN_STREAMS] = "hc_ffn_fn.weight",
    [MOE_LAYER_FFN_STREAMS_BASE] = "hc_ffn_base.weight",
    [MOE_LAYER_FFN_STREAMS_SCALE] = "hc_ffn_scale.weight",
    [MOE_LAYER_ATTN_STREAMS_NORM] = "hc_attn_norm.weight",
    [MOE_LAYER_ATTN_STREAMS_DOWN] = "hc_attn_down.weight",
    [MOE_LAYER_ATTN_STREAMS_UP] = "hc_attn_up.weight",
    [MOE_LAYER_ATTN_STREAMS_INJECT] = "hc_attn_inject.weight",
    [MOE_LAYER_FFN_STREAMS_NORM] = "hc_ffn_norm.weight",
    [MOE_LAYER_FFN_STREAMS_DOWN] = "hc_ffn_down.weight",
    [MOE_LAYER_FFN_STREAMS_UP] = "hc_ffn_up.weight",
    [MOE_LAYER_FFN_STREAMS_INJECT] = "hc_ffn_inject.weight",
    [MOE_LAYER_ATTN_RECALL] = "attn_res_score.weight",
    [MOE_LAYER_FFN_RECALL] = "ffn_res_score.weight",
    [MOE_LAYER_NGRAM_KEY] = "ple_key.weight",
    [MOE_LAYER_NGRAM_VALUE] = "ple_value.weight",
    [MOE_LAYER_NGRAM_KEY_NORM] = "ple_norm_key.weight",
    [MOE_LAYER_NGRAM_QUERY_NORM] = "ple_norm_query.weight",
    [MOE_LAYER_NGRAM_CONV_NORM] = "ple_norm_conv.weight",
    [MOE_LAYER_NGRAM_CONV] = "ple_conv1d.weight",
    [MOE_LAYER_ATTN_NORM] = "attn_norm.weight",
    [MOE_LAYER_ATTN_NORM_BIAS] = "attn_norm.bias",
    [MOE_LAYER_ATTN_Q] = "attn_q.weight",
    [MOE_LAYER_ATTN_K] = "attn_k.weight",
    [MOE_LAYER_ATTN_V] = "attn_v.weight",
    [MOE_LAYER_ATTN_Q_BIAS] = "attn_q.bias",
    [MOE_LAYER_ATTN_K_BIAS] = "attn_k.bias",
    [MOE_LAYER_ATTN_V_BIAS] = "attn_v.bias",
    [MOE_LAYER_ATTN_OUT] = "attn_output.weight",
    [MOE_LAYER_ATTN_OUT_BIAS] = "attn_output.bias",
    [MOE_LAYER_ATTN_OUT_A] = "attn_output_a.weight",
    [MOE_LAYER_ATTN_OUT_B] = "attn_output_b.weight",
    [MOE_LAYER_ATTN_GATE] = "attn_gate.weight",
    [MOE_LAYER_ATTN_SINKS] = "attn_sinks.weight",
    [MOE_LAYER_ATTN_Q_NORM] = "attn_q_norm.weight",
    [MOE_LAYER_ATTN_K_NORM] = "attn_k_norm.weight",
    [MOE_LAYER_ATTN_Q_A] = "attn_q_a.weight",
    [MOE_LAYER_ATTN_Q_A_NORM] = "attn_q_a_norm.weight",
    [MOE_LAYER_ATTN_Q_B] = "attn_q_b.weight",
    [MOE_LAYER_ATTN_KV_A] = "attn_kv_a_mqa.weight",
    [MOE_LAYER_ATTN_KV_A_NORM] = "attn_kv_a_norm.weight",
    [MOE_LAYER_ATTN_KV_B] = "attn_kv_b.weight",
    [MOE_LAYER_ATTN_K_B] = "attn_k_b.weight",
    [MOE_LAYER_ATTN_V_B] = "attn_v_b.weight",
    [MOE_LAYER_INDEX_Q] = "indexer.attn_q_b.weight",
    [MOE_LAYER_INDEX_Q_NORM] = "indexer.q_norm.weight",
    [MOE_LAYER_INDEX_K] = "indexer.attn_k.weight",
    [MOE_LAYER_INDEX_K_NORM] = "indexer.k_norm.weight",
    [MOE_LAYER_INDEX_K_NORM_BIAS] = "indexer.k_norm.bias",
    [MOE_LAYER_INDEX_POOL_GATE] = "indexer.kpool_gate.weight",
    [MOE_LAYER_INDEX_POOL_PLACE] = "indexer.kpool_ape.weight",
    [MOE_LAYER_INDEX_WEIGHTS] = "indexer.proj.weight",
    [MOE_LAYER_COMPRESS_K] = "attn_compressor_kv.weight",
    [MOE_LAYER_COMPRESS_GATE] = "attn_compressor_gate.weight",
    [MOE_LAYER_COMPRESS_PLACE] = "attn_compressor_ape.weight",
    [MOE_LAYER_COMPRESS_NORM] = "attn_compressor_norm.weight",
    [MOE_LAYER_INDEX_COMPRESS_K] = "indexer_compressor_kv.weight",
    [MOE_LAYER_INDEX_COMPRESS_GATE] = "indexer_compressor_gate.weight",
    [MOE_LAYER_INDEX_COMPRESS_PLACE] = "indexer_compressor_ape.weight",
    [MOE_LAYER_INDEX_COMPRESS_NORM] = "indexer_compressor_norm.weight",
    [MOE_LAYER_DELTA_QKV] = "attn_qkv.weight",
    [MOE_LAYER_DELTA_Z] = "attn_gate.weight",
    [MOE_LAYER_DELTA_BA] = "ssm_ba.weight",
    [MOE_LAYER_DELTA_BETA] = "ssm_beta.weight",
    [MOE_LAYER_DELTA_ALPHA] = "ssm_alpha.weight",
    [MOE_LAYER_DELTA_CONV] = "ssm_conv1d.weight",
    [MOE_LAYER_DELTA_DECAY] = "ssm_a",
    [MOE_LAYER_DELTA_DT_BIAS] = "ssm_dt.bias",
    [MOE_LAYER_DELTA_NORM] = "ssm_norm.weight",
    [MOE_LAYER_DELTA_OUT] = "ssm_out.weight",
    [MOE_LAYER_SPACE_IN] = "ssm_in.weight",
    [MOE_LAYER_SPACE_CONV_BIAS] = "ssm_conv1d.bias",
    [MOE_LAYER_SPACE_DECAY] = "ssm_a",
    [MOE_LAYER_SPACE_SKIP] = "ssm_d",
    [MOE_LAYER_SPACE_NORM] = "ssm_norm.weight",
    [MOE_LAYER_CHANNEL_Q] = "attn_q.weight",
    [MOE_LAYER_CHANNEL_K] = "attn_k.weight",
    [MOE_LAYER_CHANNEL_V] = "attn_v.weight",
    [MOE_LAYER_CHANNEL_CONV_Q] = "ssm_conv1d_q.weight",
    [MOE_LAYER_CHANNEL_CONV_K] = "ssm_conv1d_k.weight",
    [MOE_LAYER_CHANNEL_CONV_V] = "ssm_conv1d_v.weight",
    [MOE_LAYER_CHANNEL_F_A] = "ssm_f_a.weight",
    [MOE_LAYER_CHANNEL_F_B] = "ssm_f_b.weight",
    [MOE_LAYER_CHANNEL_G_A] = "ssm_g_a.weight",
    [MOE_LAYER_CHANNEL_G_B] = "ssm_g_b.weight",
    [MOE_LAYER_CHANNEL_BETA] = "ssm_beta.weight",
    [MOE_LAYER_CHANNEL_DECAY] = "ssm_a",
    [MOE_LAYER_CHANNEL_DT_BIAS] = "ssm_dt.bias",
    [MOE_LAYER_CHANNEL_NORM] = "ssm_norm.weight",
    [MOE_LAYER_CHANNEL_OUT] = "attn_output.weight",
    [MOE_LAYER_SCAN_IN] = "ssm_in.weight",
    [MOE_LAYER_SCAN_CONV] = "ssm_conv1d.weight",
    [MOE_LAYER_SCAN_CONV_BIAS] = "ssm_conv1d.bias",
    [MOE_LAYER_SCAN_X] = "ssm_x.weight",
    [MOE_LAYER_SCAN_STEP] = "ssm_dt.weight",
    [MOE_LAYER_SCAN_STEP_BIAS] = "ssm_dt.bias",
    [MOE_LAYER_SCAN_STEP_NORM] = "ssm_dt_norm.weight",
    [MOE_LAYER_SCAN_K_NORM] = "ssm_b_norm.weight",
    [MOE_LAYER_SCAN_Q_NORM] = "ssm_c_norm.weight",
    [MOE_LAYER_SCAN_DECAY] = "ssm_a",
    [MOE_LAYER_SCAN_SKIP] = "ssm_d",
    [MOE_LAYER_SCAN_OUT] = "ssm_out.weight",
    [MOE_LAYER_CONV_IN] = "shortconv.in_proj.weight",
    [MOE_LAYER_CONV_TAPS] = "shortconv.conv.weight",
    [MOE_LAYER_CONV_OUT] = "shortconv.out_proj.weight",
    [MOE_LAYER_FFN_NORM] = "ffn_norm.weight",
    [MOE_LAYER_ATTN_POST_NORM] = "post_attention_norm.weight",
    [MOE_LAYER_FFN_POST_NORM] = "post_ffw_norm.weight",
    [MOE_LAYER_FFN_POST_NORM_OLDER] = "layer_output_norm.weight",
    [MOE_LAYER_EXPERTS_NORM] = "pre_ffw_norm_2.weight",
    [MOE_LAYER_FFN_NORM_BIAS] = "ffn_norm.bias",
    [MOE_LAYER_EXPERTS_POST_NORM] = "post_ffw_norm_2.weight",
    [MOE_LAYER_SHARED_POST_NORM] = "post_ffw_norm_1.weight",
    [MOE_LAYER_OUT_SCALE] = "layer_output_scale.weight",
    [MOE_LAYER_ROUTER_NORM] = "ffn_gate_inp.scale",
    [MOE_LAYER_EXPERTS_SCALE] = "ffn_down_exps.scale",
    [MOE_LAYER_FFN_GATE] = "ffn_gate.weight",
    [MOE_LAYER_FFN_UP] = "ffn_up.weight",
    [MOE_LAYER_FFN_DOWN] = "ffn_down.weight",
    [MOE_LAYER_ROUTER] = "ffn_gate_inp.weight",
    [MOE_LAYER_ROUTER_BIAS] = "ffn_gate_inp.bias",
    [MOE_LAYER_LATENT_IN] = "ffn_latent_down.weight",
    [MOE_LAYER_LATENT_NORM] = "ffn_routed_norm.weight",
    [MOE_LAYER_LATENT_OUT] = "ffn_latent_up.weight",
    [MOE_LAYER_EXPERTS_GATE_BIAS] = "ffn_gate_exps.bias",
    [MOE_LAYER_EXPERTS_UP_BIAS] = "ffn_up_exps.bias",
    [MOE_LAYER_EXPERTS_DOWN_BIAS] = "ffn_down_exps.bias",
    [MOE_LAYER_ROUTER_SELECTION_BIAS] = "exp_probs_b.bias",
    [MOE_LAYER_ROUTER_TABLE] = "ffn_gate_tid2eid.weight",
    [MOE_LAYER_SHARED_GATE] = "ffn_gate_shexp.weight",
    [MOE_LAYER_SHARED_UP] = "ffn_up_shexp.weight",
    [MOE_LAYER_SHARED_DOWN] = "ffn_down_shexp.weight",
    [MOE_LAYER_SHARED_ROUTER] = "ffn_gate_inp_shexp.weight",
};

const char *moe_tensor_name(const moe_model_config *config, moe_layer_tensor tensor)
{
    const moe_family *family = config->family;
    for (int i = 0; i < MOE_MOST_ALIASES && family->aliases[i].name != NULL; i++) {
        if (family->aliases[i].tensor == tensor) {
            return family->aliases[i].name;
        }
    }
    if (family->shared == MOE_SHARED_DENSE && tensor >= MOE_LAYER_SHARED_GATE &&
        tensor <= MOE_LAYER_SHARED_DOWN) {
        return layer_names[MOE_LAYER_FFN_GATE + (tensor - MOE_LAYER_SHARED_GATE)];
    }
    if (tensor == MOE_LAYER_ROUTER_SELECTION_BIAS) {
        return config->gate_bias_tensor;
    }
    return tensor == MOE_LAYER_DELTA_QKV && config->recurrence.in_groups ? "ssm_in.weight"
                                                                         : layer_names[tensor];
}

static void layer_name(const moe_tensor_claims *c, uint32_t layer, const char *end,
                       char name[NAME_ROOM])
{
    snprintf(name, NAME_ROOM, "blk.%" PRIu32 ".%s", c->first_layer + layer, end);
}

const moe_gguf_tensor *moe_claims_find(const moe_tensor_claims *c, uint32_t layer,
                                       moe_layer_tensor tensor)
{
    char name[NAME_ROOM];
    layer_name(c, layer, moe_tensor_name(c->config, tensor), name);
    return moe_gguf_find_tensor(c->gguf, name);
}

void moe_claims_ignore(moe_tensor_claims *c, const char *name)
{
    const moe_gguf_tensor *tensor = moe_gguf_find_tensor(c->gguf, name);
    if (tensor != NULL) {
        c->claimed[tensor - moe_gguf_tensor_at(c->gguf, 0)] = true;
    }
}

/* Whether the file may have NAME.scale beside NAME.weight, to scale the products of this matrix. */
static bool may_be_scaled(const char *name)
{
    static const char *const roles[] = {
        "attn_q",        "attn_k",         "attn_v",        "attn_qkv",
        "attn_output",   "attn_gate",      "ffn_gate",      "ffn_up",
        "ffn_down",      "ffn_gate_shexp", "ffn_up_shexp",  "ffn_down_shexp",
        "ffn_gate_exps", "ffn_up_exps",    "ffn_down_exps", "output"};
    const char *end = strrchr(name, '.');
    const char *role = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') + 1 : name;
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        size_t size = strlen(roles[i]);
        if ((size_t)(end - role) == size && memcmp(role, roles[i], size) == 0) {
            return strcmp(end, ".weight") == 0;
        }
    }
    return false;
}

/* ---- One tensor ---- */

/* n_out * n_slices rows of n_in elements in all. */
typedef struct sliced_shape {
    uint64_t n_in, n_out, n_slices;
    moe_tensor_form form;
} sliced_shape;

static int fail_missing(const moe_tensor_claims *c, const char *name)
{
    return moe_fail(c->err, MOE_ERR_FORMAT,
                    "tensor '%s' is missing: the file does not hold all of this %s model", name,
                    c->config->family->name);
}

static int fail_shape(const moe_tensor_claims *c, const char *name, const moe_gguf_tensor *tensor,
                      const sliced_shape *expected)
{
    char slices[32] = "";
    if (expected->n_slices > 1) {
        snprintf(slices, sizeof slices, ", %" PRIu64, expected->n_slices);
    }
    char rows[32] = "";
    if (expected->form != MOE_TENSOR_VECTOR) {
        snprintf(rows, sizeof rows, ", %" PRIu64, expected->n_out);
    }
    return moe_fail(c->err, MOE_ERR_FORMAT,
                    "tensor '%s' has shape [%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64
                    "], expected [%" PRIu64 "%s%s]",
                    name, tensor->dims[0], tensor->dims[1], tensor->dims[2], tensor->dims[3],
                    expected->n_in, rows, slices);
}

/* The per-head MLA tensors are three-dimensional in some files and flat, with the same bytes, in
 * others; so only row length and number of rows are compared. Stacked experts must be
 * three-dimensional. */
static bool has_shape(const moe_gguf_tensor *tensor, const sliced_shape *expected)
{
    if (expected->n_slices > 1) {
        return tensor->dims[0] == expected->n_in && tensor->dims[1] == expected->n_out &&
               tensor->dims[2] == expected->n_slices && tensor->dims[3] == 1;
    }
    uint64_t rows = tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
    return tensor->dims[0] == expected->n_in && rows == expected->n_out;
}

static int need_f32(const moe_tensor_claims *c, const char *name, uint32_t type)
{
    return type == MOE_DTYPE_F32
               ? MOE_OK
               : moe_fail(c->err, MOE_ERR_UNSUPPORTED,
                          "tensor '%s' is of type %s; norms and biases must be F32", name,
                          moe_dtype_name(type));
}

/* Claims the named tensor and writes its whole range to *ref; *found is false if there is none. */
static int take(moe_tensor_claims *c, const char *name, const sliced_shape *expected,
                moe_tensor_ref *ref, bool *found)
{
    const moe_gguf_tensor *tensor = moe_gguf_find_tensor(c->gguf, name);
    *found = tensor != NULL;
    if (tensor == NULL) {
        return MOE_OK;
    }
    if (!has_shape(tensor, expected)) {
        return fail_shape(c, name, tensor, expected);
    }
    const bool table = expected->form == MOE_TENSOR_TABLE;
    if (table ? tensor->type != MOE_TYPE_I32 : moe_dtype_info_of(tensor->type) == NULL) {
        return moe_fail(c->err, MOE_ERR_UNSUPPORTED,
                        "tensor '%s' is of type %s (%" PRIu32 "), which is not supported: %s", name,
                        moe_dtype_name(tensor->type), tensor->type, moe_dtype_advice(tensor->type));
    }
    if (expected->form != MOE_TENSOR_MATRIX && !table &&
        need_f32(c, name, tensor->type) != MOE_OK) {
        return MOE_ERR_UNSUPPORTED;
    }
    if (tensor->file_index >= moe_gguf_n_files(c->gguf) ||
        tensor->offset > moe_gguf_file_at(c->gguf, tensor->file_index)->size ||
        tensor->size > moe_gguf_file_at(c->gguf, tensor->file_index)->size - tensor->offset) {
        return moe_fail(c->err, MOE_ERR_FORMAT, "tensor '%s' lies beyond the end of its file",
                        name);
    }
    c->claimed[tensor - moe_gguf_tensor_at(c->gguf, 0)] = true;
    /* The numbers of a table are as wide as floats, and are loaded like floats. */
    *ref = (moe_tensor_ref){.type = table ? MOE_DTYPE_F32 : (moe_dtype)tensor->type,
                            .file_index = tensor->file_index,
                            .offset = tensor->offset,
                            .size = tensor->size,
                            .n_in = expected->n_in,
                            .n_out = expected->n_out * expected->n_slices};
    return MOE_OK;
}

/* Claims NAME.scale beside NAME.weight: one number, or one for each slice. NAME.input_scale tells
 * another program how to round activations, and is not used. */
static int take_scale(moe_tensor_claims *c, const char *name, const sliced_shape *expected,
                      moe_tensor_ref *ref)
{
    char beside[NAME_ROOM + 16];
    const int stem = (int)(strrchr(name, '.') - name);
    snprintf(beside, sizeof beside, "%.*s.input_scale", stem, name);
    moe_claims_ignore(c, beside);
    snprintf(beside, sizeof beside, "%.*s.scale", stem, name);
    const moe_gguf_tensor *tensor = moe_gguf_find_tensor(c->gguf, beside);
    if (tensor == NULL || c->claimed[tensor - moe_gguf_tensor_at(c->gguf, 0)]) {
        return MOE_OK; /* another claim may use it */
    }
    const sliced_shape wanted = {expected->n_slices, 1, 1, MOE_TENSOR_VECTOR};
    moe_tensor_ref scale;
    bool found;
    int status = take(c, beside, &wanted, &scale, &found);
    if (status != MOE_OK || !found) {
        return status;
    }
    moe_tensor_map *map = c->map;
    moe_scale_range *ranges =
        moe_realloc_array(map->scale_ranges, map->n_scale_ranges + 1u, sizeof *ranges);
    if (ranges == NULL) {
        return moe_fail(c->err, MOE_ERR_MEMORY, "out of memory for the scales of '%s'", name);
    }
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

/* Like take(), but also takes the matrix's scales if it has any. */
static int take_scaled(moe_tensor_claims *c, const char *name, const sliced_shape *expected,
                       moe_tensor_ref *ref, bool *found)
{
    MOE_TRY(take(c, name, expected, ref, found));
    return *found && may_be_scaled(name) ? take_scale(c, name, expected, ref) : MOE_OK;
}

static void count_resident(moe_tensor_claims *c, const moe_tensor_ref *ref)
{
    c->map->resident_bytes += ref->size;
    c->map->n_parameters += ref->n_in * ref->n_out;
}

int moe_claim_tensor(moe_tensor_claims *c, const char *name, moe_tensor_shape shape, bool optional,
                     moe_tensor_ref *ref)
{
    const sliced_shape expected = {shape.n_in, shape.n_out, 1, shape.form};
    bool found;
    MOE_TRY(take_scaled(c, name, &expected, ref, &found));
    if (!found && !optional) {
        return fail_missing(c, name);
    }
    if (found) {
        count_resident(c, ref);
    }
    return MOE_OK;
}

int moe_claim_layer_tensor(moe_tensor_claims *c, uint32_t layer, moe_layer_tensor tensor,
                           moe_tensor_shape shape, bool optional)
{
    char name[NAME_ROOM];
    layer_name(c, layer, moe_tensor_name(c->config, tensor), name);
    return moe_claim_tensor(c, name, shape, optional, &c->map->layers[layer].tensors[tensor]);
}

int moe_claim_ngrams(moe_tensor_claims *c)
{
    static const char name[] = "per_layer_token_embd.weight";
    const moe_ngram_table *t = &c->config->ngrams;
    const moe_gguf_tensor *tensor = moe_gguf_find_tensor(c->gguf, name);
    const bool enough = tensor != NULL && tensor->dims[1] >= (uint64_t)t->n_rows;
    const sliced_shape expected = {t->row_dim, enough ? tensor->dims[1] : (uint64_t)t->n_rows, 1,
                                   MOE_TENSOR_MATRIX};
    bool found;
    MOE_TRY(take(c, name, &expected, &c->map->ngrams, &found));
    return found ? MOE_OK : fail_missing(c, name);
}

int moe_claim_joined_qkv(moe_tensor_claims *c, uint32_t layer, const uint64_t n_rows[3], bool bias)
{
    static const moe_layer_tensor targets[2][3] = {
        {MOE_LAYER_ATTN_Q, MOE_LAYER_ATTN_K, MOE_LAYER_ATTN_V},
        {MOE_LAYER_ATTN_Q_BIAS, MOE_LAYER_ATTN_K_BIAS, MOE_LAYER_ATTN_V_BIAS},
    };
    char name[NAME_ROOM];
    uint64_t n = n_rows[0] + n_rows[1] + n_rows[2];
    sliced_shape expected = bias ? (sliced_shape){n, 1, 1, MOE_TENSOR_VECTOR}
                                 : (sliced_shape){c->config->n_embd, n, 1, MOE_TENSOR_MATRIX};
    moe_tensor_ref whole;
    bool found;
    layer_name(c, layer, bias ? "attn_qkv.bias" : "attn_qkv.weight", name);
    int status = take_scaled(c, name, &expected, &whole, &found);
    if (status != MOE_OK || !found) {
        return status;
    }
    count_resident(c, &whole);
    for (int p = 0; p < 3; p++) {
        moe_tensor_ref *ref = &c->map->layers[layer].tensors[targets[bias][p]];
        *ref = whole;
        ref->size =
            n_rows[p] * (bias ? sizeof(float) : moe_dtype_row_bytes(whole.type, whole.n_in));
        ref->n_in = bias ? n_rows[p] : whole.n_in;
        ref->n_out = bias ? 1 : n_rows[p];
        whole.offset += ref->size;
    }
    return MOE_OK;
}

/* ---- Experts ---- */

static const char *part_name(moe_expert_part part)
{
    static const char *const names[MOE_EXPERT_PARTS] = {"gate", "up", "down"};
    return names[part];
}

/* The shape of all experts of a layer. */
typedef struct expert_shape {
    uint64_t n_in, n_inner;
} expert_shape;

static sliced_shape part_shape(expert_shape s, moe_expert_part part, uint64_t n_slices)
{
    return part == MOE_EXPERT_DOWN ? (sliced_shape){s.n_inner, s.n_in, n_slices, MOE_TENSOR_MATRIX}
                                   : (sliced_shape){s.n_in, s.n_inner, n_slices, MOE_TENSOR_MATRIX};
}

/* In a stacked tensor, makes rows [first, first + n_out) of each expert's slice the expert's
 * part. */
static void slice_experts(moe_tensor_claims *c, moe_layer_map *layer, const moe_tensor_ref *stacked,
                          moe_expert_part part, uint64_t first, uint64_t n_out)
{
    uint64_t row_bytes = moe_dtype_row_bytes(stacked->type, stacked->n_in);
    uint64_t slice_rows = stacked->n_out / c->config->n_expert;
    for (uint32_t e = 0; e < c->config->n_expert; e++) {
        moe_tensor_ref *ref = &layer->experts[e].parts[part];
        *ref = *stacked;
        ref->offset += (e * slice_rows + first) * row_bytes;
        ref->size = n_out * row_bytes;
        ref->n_out = n_out;
        ref->scale = stacked->scale != 0 ? stacked->scale + e : 0;
    }
}

static int claim_fused(moe_tensor_claims *c, uint32_t index, expert_shape s, bool *found)
{
    char name[NAME_ROOM];
    moe_layer_map *layer = &c->map->layers[index];
    sliced_shape expected = {s.n_in, 2 * s.n_inner, c->config->n_expert, MOE_TENSOR_MATRIX};
    moe_tensor_ref stacked;
    layer_name(c, index, "ffn_gate_up_exps.weight", name);
    MOE_TRY(take(c, name, &expected, &stacked, found));
    if (*found) {
        slice_experts(c, layer, &stacked, MOE_EXPERT_GATE, 0, s.n_inner);
        slice_experts(c, layer, &stacked, MOE_EXPERT_UP, s.n_inner, s.n_inner);
    }
    return MOE_OK;
}

static int claim_stacked(moe_tensor_claims *c, uint32_t index, expert_shape s, moe_expert_part part,
                         bool *found)
{
    char name[NAME_ROOM];
    sliced_shape expected = part_shape(s, part, c->config->n_expert);
    moe_tensor_ref stacked;
    snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_%s_exps.weight", c->first_layer + index,
             part_name(part));
    MOE_TRY(take_scaled(c, name, &expected, &stacked, found));
    if (*found) {
        slice_experts(c, &c->map->layers[index], &stacked, part, 0, expected.n_out);
    }
    return MOE_OK;
}

static int claim_single(moe_tensor_claims *c, uint32_t index, expert_shape s, moe_expert_part part)
{
    char name[NAME_ROOM];
    sliced_shape expected = part_shape(s, part, 1);
    for (uint32_t e = 0; e < c->config->n_expert; e++) {
        bool found;
        snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_%s.%" PRIu32 ".weight",
                 c->first_layer + index, part_name(part), e);
        MOE_TRY(take(c, name, &expected, &c->map->layers[index].experts[e].parts[part], &found));
        if (!found) {
            if (e == 0) { /* the error names the tensor as current files do */
                snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_%s_exps.weight",
                         c->first_layer + index, part_name(part));
            }
            return fail_missing(c, name);
        }
    }
    return MOE_OK;
}

int moe_claim_experts(moe_tensor_claims *c, uint32_t index, uint64_t n_in, uint64_t n_inner,
                      bool gated)
{
    const expert_shape s = {n_in, n_inner};
    moe_layer_map *layer = &c->map->layers[index];
    layer->experts = moe_calloc(c->config->n_expert, sizeof *layer->experts);
    if (layer->experts == NULL) {
        return moe_fail(c->err, MOE_ERR_MEMORY, "out of memory for the experts of layer %" PRIu32,
                        index);
    }
    bool fused = false;
    int status = gated ? claim_fused(c, index, s, &fused) : MOE_OK;
    int first = fused ? MOE_EXPERT_DOWN : gated ? MOE_EXPERT_GATE : MOE_EXPERT_UP;
    for (int p = first; p < MOE_EXPERT_PARTS; p++) {
        bool found = false;
        if (status == MOE_OK) {
            status = claim_stacked(c, index, s, (moe_expert_part)p, &found);
        }
        if (status == MOE_OK && !found) {
            status = claim_single(c, index, s, (moe_expert_part)p);
        }
    }
    for (uint32_t e = 0; e < c->config->n_expert && status == MOE_OK; e++) {
        if (!gated) {
            layer->experts[e].parts[MOE_EXPERT_GATE] = layer->experts[e].parts[MOE_EXPERT_UP];
            layer->experts[e].parts[MOE_EXPERT_GATE].size = 0;
        }
        c->map->expert_bytes += moe_expert_ref_bytes(&layer->experts[e]);
        for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
            const moe_tensor_ref *ref = &layer->experts[e].parts[p];
            c->n_expert_elems += ref->size > 0 ? ref->n_in * ref->n_out : 0;
        }
    }
    return status;
}

/* ---- Beginning and end of a map's claims ---- */

int moe_claims_begin(moe_tensor_claims *c, moe_tensor_map *map, const moe_model_config *config,
                     const moe_gguf *gguf, moe_error *err)
{
    *map = (moe_tensor_map){.n_layer = config->n_layer, .n_expert = config->n_expert};
    *c = (moe_tensor_claims){.map = map, .config = config, .gguf = gguf, .err = err};
    c->claimed = moe_calloc(moe_gguf_n_tensors(gguf), sizeof *c->claimed);
    map->layers = moe_calloc(config->n_layer, sizeof *map->layers);
    return c->claimed != NULL && map->layers != NULL
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "out of memory for the map of %" PRIu32 " layers",
                          config->n_layer);
}

/* Whether a tensor that nothing claimed may be ignored: only other programs need it, or it belongs
 * to a layer that is not run, or to an indexer that drafts do without. */
static bool may_be_ignored(const moe_tensor_claims *c, const moe_gguf_tensor *tensor)
{
    static const char rotary[] = ".attn_rot_embd.weight"; /* in early llama files */
    size_t size = tensor->name.size;
    char text[32] = "";
    uint32_t layer;
    if (size >= sizeof rotary - 1 &&
        memcmp(tensor->name.data + size - (sizeof rotary - 1), rotary, sizeof rotary - 1) == 0) {
        return true;
    }
    memcpy(text, tensor->name.data, size < sizeof text - 1 ? size : sizeof text - 1);
    bool drafts = c->first_layer > 0;
    if (sscanf(text, "blk.%9" SCNu32 ".", &layer) != 1) {
        return drafts;
    }
    bool indexer = strstr(text, ".indexer") != NULL;
    return layer < c->first_layer || layer - c->first_layer >= c->config->n_layer ||
           (indexer && drafts);
}

static int refuse_unclaimed(const moe_tensor_claims *c)
{
    char shown[MOE_GGUF_SHOWN];
    for (size_t i = 0; i < moe_gguf_n_tensors(c->gguf); i++) {
        const moe_gguf_tensor *tensor = moe_gguf_tensor_at(c->gguf, i);
        if (c->claimed[i] || may_be_ignored(c, tensor)) {
            continue;
        }
        moe_gguf_show(tensor->name, shown);
        return c->first_layer > 0
                   ? moe_fail(c->err, MOE_ERR_UNSUPPORTED,
                              "tensor '%s' of the drafting layer is not known: ignoring it would "
                              "give wrong drafts; draft in another way",
                              shown)
                   : moe_fail(c->err, MOE_ERR_UNSUPPORTED,
                              "tensor '%s' is not one that %s models (architecture '%s') are known "
                              "to have: ignoring it would give wrong results",
                              shown, c->config->family->name, c->config->architecture);
    }
    return MOE_OK;
}

int moe_claims_end(moe_tensor_claims *c, int status)
{
    moe_tensor_map *map = c->map;
    status = status == MOE_OK ? refuse_unclaimed(c) : status;
    map->n_parameters_active =
        map->n_parameters + c->n_expert_elems / c->config->n_expert * c->config->n_expert_used;
    map->n_parameters_active += moe_ngram_floats(&c->config->ngrams);
    map->n_parameters += c->n_expert_elems + map->ngrams.n_in * map->ngrams.n_out;
    free(c->claimed);
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
