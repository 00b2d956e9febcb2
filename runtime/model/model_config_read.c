/* SPDX-License-Identifier: MIT */
/* Turns metadata into dials. The family's row says which keys apply and what an absent key means. A
 * key that would change the result, but is not among the family's, is refused. In the end
 * everything is checked, so that later code need not check. */
#include "runtime/model/model_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/model/config_reader.h"
#include "runtime/model/gguf_internal.h"
#include "runtime/model/metadata_keys.h"

/* Takes the number of rows of the embedding, because vocabularies are often padded; falls back on
 * the keys. */
static uint32_t read_vocabulary(moe_config_reader *r)
{
    const moe_gguf_kv *tokens = moe_gguf_find(r->gguf, "tokenizer.ggml.tokens");
    const moe_gguf_tensor *embedding = moe_gguf_find_tensor(r->gguf, "token_embd.weight");
    uint64_t n_tokens = tokens != NULL && tokens->type == MOE_GGUF_ARRAY ? tokens->n_elements : 0;
    uint64_t n_vocab = embedding != NULL ? embedding->dims[1] : moe_config_u32(r, "vocab_size", 0);
    n_vocab = n_vocab == 0 ? n_tokens : n_vocab;
    if (r->status != MOE_OK) {
        return 0;
    }
    if (n_vocab == 0 || n_vocab > MOE_CONFIG_MAX_DIMENSION || n_tokens > n_vocab) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT,
                             "the vocabulary has %" PRIu64 " tokens (key 'tokenizer.ggml.tokens') "
                             "but 'token_embd.weight' or key '%s.vocab_size' has %" PRIu64,
                             n_tokens, r->family->architecture, n_vocab);
        return 0;
    }
    return (uint32_t)n_vocab;
}

/* Reads a scale or a cap; a value of 0 counts as absent. */
static float read_factor(moe_config_reader *r, const char *suffix, unsigned key, float absent)
{
    bool reads = (r->family->keys & key) != 0;
    float scale = reads ? moe_config_f32(r, suffix, absent) : absent;
    if (r->status == MOE_OK && !(isfinite(scale) && scale >= 0)) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' is %g, not a positive number",
                             r->key, (double)scale);
    }
    return scale == 0 ? absent : scale;
}

static void read_scales(moe_config_reader *r, moe_model_config *config)
{
    const moe_family *f = r->family;
    float embedding = f->embedding_scale != 0 ? f->embedding_scale : 1;
    float logit = f->logit_scale != 0 ? f->logit_scale : 1;
    config->embedding_scale = read_factor(r, "embedding_scale", MOE_KEY_SCALES, embedding);
    config->residual_scale = read_factor(r, "residual_scale", MOE_KEY_SCALES, 1);
    config->logit_scale = read_factor(r, "logit_scale", MOE_KEY_SCALES, logit);
    config->logit_cap = read_factor(r, "final_logit_softcapping", MOE_KEY_CAPS, 0);
    config->attention_cap =
        read_factor(r, "attn_logit_softcapping", MOE_KEY_CAPS, f->attention_cap);
    config->router_cap = read_factor(r, "router_logit_softcapping", MOE_KEY_CAPS, f->router_cap);
    config->attention_out_scale = read_factor(r, "attention.value_scale", MOE_KEY_VALUE_SCALE, 1);
}

static void read_norm(moe_config_reader *r, moe_model_config *config)
{
    static const char rms[] = "attention.layer_norm_rms_epsilon";
    static const char mean[] = "attention.layer_norm_epsilon";
    bool has_rms = moe_config_has(r, rms);
    bool by_mean = r->family->norm == MOE_NORM_MEAN && !(r->family->norm_by_key && has_rms);
    bool under_mean = by_mean || (r->family->norm_key_of_means && !has_rms);
    const char *key = under_mean && (!has_rms || moe_config_has(r, mean)) ? mean : rms;
    config->norm = by_mean ? MOE_NORM_MEAN : MOE_NORM_RMS;
    if (moe_config_require(r, key)) {
        config->norm_eps = moe_config_f32(r, key, 0);
    }
}

/* The number of streams: one kept for every stream_block layers, and the one that layers add to. */
static void read_stream_blocks(moe_config_reader *r, moe_model_config *config)
{
    config->stream_block = moe_config_size(r, "attn_res.block_size", 1, MOE_MAX_LAYERS);
    if (r->status != MOE_OK) {
        return;
    }
    config->n_streams = moe_streams_before(config, config->n_layer);
    if (config->n_streams > MOE_MAX_STREAMS) {
        r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                             "key '%s' (%" PRIu32 ") divides %" PRIu32 " layers into more than %u "
                             "blocks",
                             r->key, config->stream_block, config->n_layer, MOE_MAX_STREAMS - 1);
    }
}

static void read_streams(moe_config_reader *r, moe_model_config *config)
{
    const bool mixed = (r->family->keys & MOE_KEY_MIXED_STREAMS) != 0;
    const unsigned keys = MOE_KEY_STREAMS | MOE_KEY_MIXED_STREAMS;
    const bool gated = (r->family->keys & MOE_KEY_GATED_STREAMS) != 0;
    config->n_streams = 1;
    if ((r->family->keys & MOE_KEY_STREAM_BLOCKS) != 0) {
        read_stream_blocks(r, config);
    }
    if ((r->family->keys & keys) == 0 && !gated) {
        return;
    }
    config->n_streams = moe_config_size(r, "hyper_connection.count", 2, MOE_MAX_STREAMS);
    if (gated) {
        config->stream_rank =
            moe_config_size(r, "hyper_connection.low_rank", 1, MOE_CONFIG_MAX_DIMENSION);
        config->stream_magnitude = 2;
        return;
    }
    if (moe_config_require(r, "hyper_connection.epsilon")) {
        config->stream_eps = read_factor(r, "hyper_connection.epsilon", keys, 0);
    }
    if (mixed) {
        config->stream_mixings =
            moe_config_size(r, "hyper_connection.sinkhorn_iterations", 1, MOE_MAX_STREAM_MIXINGS);
        config->stream_magnitude = 2;
    } else if (moe_config_require(r, "hyper_connection.magnitude")) {
        config->stream_magnitude = read_factor(r, "hyper_connection.magnitude", keys, 0);
        config->stream_write_eps = config->stream_eps;
    }
}

static void read_shape(moe_config_reader *r, moe_model_config *config)
{
    config->n_layer = moe_config_need_u32(r, "block_count");
    /* Layers that predict further tokens come after the others, and are not run. */
    uint32_t n_predict = moe_config_u32(r, "nextn_predict_layers", 0);
    if (r->status == MOE_OK && n_predict > 0 && n_predict >= config->n_layer) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT,
                             "key '%s' (%" PRIu32 ") is not below block_count (%" PRIu32 ")",
                             r->key, n_predict, config->n_layer);
    }
    config->n_layer -= n_predict;
    config->n_embd = moe_config_need_u32(r, "embedding_length");
    config->n_context_train = moe_config_need_u32(r, "context_length");
    config->n_vocab = read_vocabulary(r);
    read_norm(r, config);
    read_scales(r, config);
    read_streams(r, config);
    moe_config_read_ngrams(r, config);
    config->tied_output = moe_gguf_find_tensor(r->gguf, "output.weight") == NULL;
}

/* Reads the scale of q.k; a value of 0 counts as absent. */
static void read_attention_scale(moe_config_reader *r, moe_model_config *config, uint32_t key)
{
    bool other = (r->family->keys & MOE_KEY_OUTPUT_SCALE) != 0;
    float scale = moe_config_f32(r, other ? "attention.output_scale" : "attention.scale", 0);
    scale = scale != 0 ? scale : r->family->attention_scale;
    config->attention_scale = scale != 0 ? scale : 1.0f / sqrtf((float)key);
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Layers with a window may have heads of other lengths. */
static void read_window_heads(moe_config_reader *r, moe_model_config *config)
{
    uint32_t k_dim = moe_config_u32(r, "attention.key_length_swa", config->head_dim_k);
    uint32_t v_dim = moe_config_u32(r, "attention.value_length_swa", config->head_dim_v);
    config->window_n_rot = moe_config_u32(r, "rope.dimension_count_swa",
                                          k_dim != config->head_dim_k ? k_dim : config->n_rot);
    config->head_dim_k = max_u32(config->head_dim_k, k_dim);
    config->head_dim_v = max_u32(config->head_dim_v, v_dim);
}

static void read_grouped_heads(moe_config_reader *r, moe_model_config *config)
{
    bool differ = (r->family->keys & MOE_KEY_WINDOW_HEADS) != 0;
    bool listed = differ || moe_family_lists_states(r->family);
    config->n_head_kv = listed ? moe_config_most_u32(r, "attention.head_count_kv", config->n_head)
                               : moe_config_u32(r, "attention.head_count_kv", config->n_head);
    bool stated =
        moe_config_has(r, "attention.key_length") && moe_config_has(r, "attention.value_length");
    if (r->status == MOE_OK && !stated && config->n_embd % config->n_head != 0) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT,
                             "the embedding, %" PRIu32 ", is not a multiple of the %" PRIu32
                             " heads and key '%s.attention.key_length' is missing",
                             config->n_embd, config->n_head, r->family->architecture);
        return;
    }
    uint32_t derived = config->n_head == 0 ? 0 : config->n_embd / config->n_head;
    config->head_dim_k = moe_config_u32(r, "attention.key_length", derived);
    config->head_dim_v = moe_config_u32(r, "attention.value_length", derived);
    config->n_rot = moe_config_u32(r, "rope.dimension_count", config->head_dim_k);
    read_attention_scale(r, config, config->head_dim_k);
    if (differ) {
        read_window_heads(r, config);
    }
    config->n_rope_factors = config->n_rot / 2;
}

/* In older files key_length and value_length are the lengths of a head. In newer files they
 * describe the compressed cache, and the lengths of a head are key_length_mla and
 * value_length_mla. */
static void read_latent_heads(moe_config_reader *r, moe_model_config *config)
{
    bool newer = moe_config_has(r, "attention.key_length_mla");
    uint32_t key =
        moe_config_need_u32(r, newer ? "attention.key_length_mla" : "attention.key_length");
    config->v_head_dim =
        moe_config_need_u32(r, newer ? "attention.value_length_mla" : "attention.value_length");
    config->kv_lora_rank = moe_config_need_u32(r, "attention.kv_lora_rank");
    config->q_lora_rank = moe_config_u32(r, "attention.q_lora_rank", 0);
    config->n_rot = r->family->no_rope ? moe_config_u32(r, "rope.dimension_count", 0)
                                       : moe_config_need_u32(r, "rope.dimension_count");
    if (r->status == MOE_OK && key <= config->n_rot) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT,
                             "a head's key length, %" PRIu32 ", is not above key '%s', %" PRIu32,
                             key, r->key, config->n_rot);
    }
    if (r->status == MOE_OK &&
        (config->kv_lora_rank > MOE_CONFIG_MAX_DIMENSION || key > MOE_CONFIG_MAX_DIMENSION)) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT,
                             "keys '%s.attention.kv_lora_rank' (%" PRIu32
                             ") and '.key_length' (%" PRIu32 ") are not sizes of a model",
                             r->family->architecture, config->kv_lora_rank, key);
    }
    if (r->status != MOE_OK) {
        return;
    }
    config->n_rope_factors = config->n_rot / 2;
    config->qk_nope_dim = key - config->n_rot;
    config->head_dim_k = config->kv_lora_rank + config->n_rot;
    config->head_dim_v = config->kv_lora_rank;
    config->n_head_kv = 1;
    config->window_n_rot = (r->family->keys & MOE_KEY_WINDOW_HEADS) != 0 ? config->n_rot : 0;
    read_attention_scale(r, config, key);
}

/* There is one head, whose keys are also its values. The output is projected by groups of heads. */
static void read_shared_heads(moe_config_reader *r, moe_model_config *config)
{
    config->head_dim_k = config->head_dim_v =
        moe_config_size(r, "attention.key_length", 2, MOE_CONFIG_MAX_DIMENSION);
    config->n_head_kv = 1;
    config->n_rot = moe_config_need_u32(r, "rope.dimension_count");
    config->n_rope_factors = config->n_rot / 2;
    config->q_lora_rank = moe_config_size(r, "attention.q_lora_rank", 1, MOE_CONFIG_MAX_DIMENSION);
    config->out_groups = moe_config_size(r, "attention.output_group_count", 1,
                                         r->status == MOE_OK ? config->n_head : 1);
    config->out_rank =
        moe_config_size(r, "attention.output_lora_rank", 1, MOE_CONFIG_MAX_DIMENSION);
    uint32_t v_dim = moe_config_u32(r, "attention.value_length", config->head_dim_k);
    if (r->status == MOE_OK &&
        (v_dim != config->head_dim_k || config->n_head % config->out_groups != 0)) {
        r->status = moe_fail(
            r->err, MOE_ERR_FORMAT,
            "key '%s.attention.value_length' (%" PRIu32 ") is not key_length (%" PRIu32
            "), or output_group_count (%" PRIu32 ") does not divide head_count (%" PRIu32 ")",
            r->family->architecture, v_dim, config->head_dim_k, config->out_groups, config->n_head);
    }
    read_attention_scale(r, config, config->head_dim_k);
}

static void read_temperature(moe_config_reader *r, moe_model_config *config)
{
    /* The numbers of Llama-4, if the file has none. */
    bool chunks = r->family->window_chunks;
    if ((r->family->keys & MOE_KEY_TEMPERATURE) == 0) {
        return;
    }
    config->temperature_scale =
        moe_config_f32(r, "attention.temperature_scale", chunks ? 0.1f : 0.0f);
    uint32_t original =
        chunks ? 8192 : moe_config_u32(r, "rope.scaling.original_context_length", 0);
    config->temperature_length = moe_config_u32(r, "attention.temperature_length", original);
    config->temperature_offset = chunks;
    if (r->status == MOE_OK && config->temperature_scale != 0 && config->temperature_length == 0) {
        r->status =
            moe_fail(r->err, MOE_ERR_FORMAT,
                     "key '%s' is 0 or missing, but queries are scaled by position", r->key);
    }
}

static void read_attention(moe_config_reader *r, moe_model_config *config)
{
    config->attention = r->family->attention;
    if (moe_config_require(r, "attention.head_count")) {
        bool differ = (r->family->keys & MOE_KEY_WINDOW_HEADS) != 0;
        config->n_head = differ ? moe_config_most_u32(r, "attention.head_count", 0)
                                : moe_config_u32(r, "attention.head_count", 0);
    }
    if (r->status == MOE_OK && (config->n_head == 0 || config->n_head > MOE_CONFIG_MAX_HEADS)) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' is %" PRIu32 ", not 1 to %u", r->key,
                             config->n_head, MOE_CONFIG_MAX_HEADS);
    }
    if (config->attention == MOE_ATTENTION_MLA) {
        read_latent_heads(r, config);
    } else if (config->attention == MOE_ATTENTION_SHARED) {
        read_shared_heads(r, config);
    } else {
        read_grouped_heads(r, config);
    }
    moe_config_read_indexer(r, config);
    config->attention_window =
        moe_config_u32(r, "attention.sliding_window", r->family->window_default);
    read_temperature(r, config);
    if ((r->family->keys & MOE_KEY_CLAMP_KQV) != 0) {
        config->clip_qkv = moe_config_f32(r, "attention.clamp_kqv", 0);
        if (r->status == MOE_OK && config->clip_qkv < 0) {
            r->status = moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' is negative", r->key);
        }
    }
}

static moe_rope_scaling_kind read_scaling_kind(moe_config_reader *r)
{
    static const struct {
        const char *name;
        moe_rope_scaling_kind kind;
    } kinds[] = {
        {"none", MOE_ROPE_SCALING_NONE},
        {"linear", MOE_ROPE_SCALING_LINEAR},
        {"yarn", MOE_ROPE_SCALING_YARN},
        {"longrope", MOE_ROPE_SCALING_NONE}, /* the file has the factors of each frequency */
    };
    moe_string_view name = {"linear", 6};
    if (moe_config_find(r, "rope.scaling.type") != NULL) {
        r->status = moe_gguf_get_string(r->gguf, r->key, &name, r->err);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strlen(kinds[i].name) == name.size &&
            memcmp(kinds[i].name, name.data, name.size) == 0) {
            return kinds[i].kind;
        }
    }
    if (r->status == MOE_OK) {
        char shown[MOE_GGUF_SHOWN];
        r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                             "key '%s' is '%s'; supported are none, linear, yarn and longrope",
                             r->key, moe_gguf_show(name, shown));
    }
    return MOE_ROPE_SCALING_NONE;
}

/* YaRN multiplies the logits by (0.1 ln(factor) + 1)^2. Most families multiply cos and sin, for
 * queries and keys alike, by the root of this. DeepSeek-V2 instead multiplies the attention
 * scale, with a weight mscale_all_dim before the logarithm; its cos and sin are multiplied by a
 * ratio of two such factors, one with mscale and one with mscale_all_dim. Files hold only 0.1 *
 * mscale_all_dim. In DeepSeek-V2's models the two weights are equal, so the ratio is 1.
 *
 * yarn_attn_factor is what a model's own configuration calls attention_factor. It replaces 0.1
 * ln(factor) + 1 (or that ratio): a model that states attention_factor means exactly this
 * number. */
static void read_yarn(moe_config_reader *r, moe_model_config *config)
{
    float log_factor = logf(config->rope_factor);
    float magnitude = 1 + 0.1f * log_factor;
    config->yarn_beta_fast = moe_config_f32(r, "rope.scaling.yarn_beta_fast", 32);
    config->yarn_beta_slow = moe_config_f32(r, "rope.scaling.yarn_beta_slow", 1);
    if ((r->family->keys & MOE_KEY_YARN_LOG) != 0) {
        float multiplier = moe_config_f32(r, "rope.scaling.yarn_log_multiplier", 0);
        if (multiplier != 0) {
            float mscale = 1 + multiplier * log_factor;
            config->attention_scale *= mscale * mscale;
            magnitude = 1;
        }
    }
    config->yarn_magnitude *= moe_config_f32(r, "rope.scaling.yarn_attn_factor", magnitude);
    if (r->status == MOE_OK &&
        !(config->yarn_beta_slow > 0 && config->yarn_beta_fast > config->yarn_beta_slow)) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT,
                             "keys '%s.rope.scaling.yarn_beta_fast' and '..._slow' are %g and %g: "
                             "the first must be larger, and both above 0",
                             r->family->architecture, (double)config->yarn_beta_fast,
                             (double)config->yarn_beta_slow);
    }
}

/* Layers with compressed keys have a rotary base of their own, and alone have the scaling. YaRN
 * does not change magnitudes here. */
static void read_rope_of_compressed(moe_config_reader *r, moe_model_config *config)
{
    config->window_rope = true;
    config->window_n_rot = config->n_rot;
    config->window_freq_base = config->rope_freq_base;
    config->yarn_magnitude = 1;
    if (moe_config_require(r, "attention.compress_rope_freq_base")) {
        config->rope_freq_base = moe_config_f32(r, "attention.compress_rope_freq_base", 0);
    }
    if (r->status == MOE_OK && !(config->rope_freq_base > 1)) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' is %g, not above 1", r->key,
                             (double)config->rope_freq_base);
    }
}

static void read_rope(moe_config_reader *r, moe_model_config *config)
{
    config->rope = r->family->rope;
    config->rope_freq_base = moe_config_f32(r, "rope.freq_base", 10000);
    config->rope_scaling = read_scaling_kind(r);
    config->rope_factor =
        moe_config_f32(r, "rope.scaling.factor", moe_config_f32(r, "rope.scale_linear", 1));
    if (config->rope_factor == 0) {
        config->rope_factor = 1;
    }
    config->rope_original_context =
        moe_config_u32(r, "rope.scaling.original_context_length", config->n_context_train);
    config->yarn_magnitude = moe_config_f32(r, "rope.scaling.attn_factor", 1);
    config->yarn_beta_fast = 32;
    config->yarn_beta_slow = 1;
    if (r->status == MOE_OK && !(config->rope_factor >= 1 && config->rope_freq_base > 1)) {
        r->status = moe_fail(
            r->err, MOE_ERR_FORMAT,
            "rotary embedding: keys '%s.rope.scaling.factor' (%g) and '.freq_base' "
            "(%g) must be at least 1 and above 1",
            r->family->architecture, (double)config->rope_factor, (double)config->rope_freq_base);
    }
    if (r->status == MOE_OK && config->rope_scaling == MOE_ROPE_SCALING_YARN) {
        read_yarn(r, config);
    }
    config->window_rope =
        (r->family->keys & MOE_KEY_WINDOW_HEADS) != 0 && config->attention_window > 0;
    if (config->window_rope) {
        config->window_freq_base = moe_config_f32(r, "rope.freq_base_swa", config->rope_freq_base);
    }
    if (config->attention == MOE_ATTENTION_SHARED) {
        read_rope_of_compressed(r, config);
    }
    if (config->rope_factor == 1 || config->rope_scaling == MOE_ROPE_SCALING_NONE) {
        config->rope_scaling = MOE_ROPE_SCALING_NONE;
        config->rope_factor = 1;
    }
}

int moe_model_config_read_as(moe_model_config *config, const moe_family *family,
                             const moe_gguf *gguf, moe_error *err)
{
    *config = (moe_model_config){.family = family};
    snprintf(config->architecture, sizeof config->architecture, "%s", family->architecture);
    moe_config_reader r = {.gguf = gguf, .family = family, .err = err};
    read_shape(&r, config);
    read_attention(&r, config);
    read_rope(&r, config);
    moe_config_read_experts(&r, config);
    moe_config_read_recurrence(&r, config);
    moe_metadata_refuse_keys(&r);
    if (r.status == MOE_OK && family->adjust != NULL) {
        family->adjust(config);
    }
    int status = r.status == MOE_OK ? moe_config_check(config, err) : r.status;
    if (status != MOE_OK) {
        return status;
    }
    moe_config_read_layers(&r, config); /* the number of layers has been checked before this */
    return r.status;
}
