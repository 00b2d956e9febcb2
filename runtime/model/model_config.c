/* SPDX-License-Identifier: MIT */
/* From metadata to dials: the family's row says which keys apply and what an absent key means; then
 * everything is checked against everything, so that later code need not. A key that would change
 * the result but that the family's row does not use is refused rather than ignored. */
#include "runtime/model/model_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/model/families.h"
#include "runtime/model/gguf_internal.h"

/* Far above any model, and small enough that products of two dimensions fit in 64 bits. */
#define MAX_DIMENSION (1u << 24)
#define MAX_HEADS     (1u << 14)
#define MAX_CONTEXT   (1u << 30)

/* Reads keys "{architecture}.{suffix}"; after the first failure it reads no more. */
typedef struct key_reader {
    const moe_gguf *gguf;
    const moe_family *family;
    moe_error *err;
    int status;
    char key[128];
} key_reader;

static const moe_gguf_kv *find(key_reader *r, const char *suffix)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->family->architecture, suffix);
    return r->status == MOE_OK ? moe_gguf_find(r->gguf, r->key) : NULL;
}

static bool has_key(key_reader *r, const char *suffix)
{
    return find(r, suffix) != NULL;
}

/* The one value of an array that has an element a layer. */
static uint32_t uniform_u32(key_reader *r, const moe_gguf_kv *kv, uint32_t absent)
{
    int64_t first = 0;
    for (uint64_t i = 0; i < kv->n_elements; i++) {
        int64_t value = 0;
        if (moe_gguf_array_i64(kv, i, &value) != MOE_OK || value < 0 || value > UINT32_MAX) {
            r->status =
                moe_fail(r->err, MOE_ERR_FORMAT,
                         "key '%s': element %" PRIu64 " is not an integer of 32 bits", r->key, i);
            return absent;
        }
        first = i == 0 ? value : first;
        if (value != first) {
            r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                                 "key '%s' differs between layers (%" PRId64 " and, in layer "
                                 "%" PRIu64 ", %" PRId64 "): only uniform models are supported",
                                 r->key, first, i, value);
            return absent;
        }
    }
    if (kv->n_elements == 0) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' is an empty array", r->key);
    }
    return (uint32_t)first;
}

static uint32_t read_u32(key_reader *r, const char *suffix, uint32_t absent)
{
    const moe_gguf_kv *kv = find(r, suffix);
    uint32_t value = absent;
    if (kv == NULL) {
        return absent;
    }
    if (kv->type == MOE_GGUF_ARRAY) {
        return uniform_u32(r, kv, absent);
    }
    r->status = moe_gguf_get_u32(r->gguf, r->key, &value, r->err);
    return value;
}

static bool require(key_reader *r, const char *suffix)
{
    if (r->status == MOE_OK && !has_key(r, suffix)) {
        r->status =
            moe_fail(r->err, MOE_ERR_FORMAT, "key '%s', which every %s model has, is missing",
                     r->key, r->family->name);
    }
    return r->status == MOE_OK;
}

static uint32_t require_u32(key_reader *r, const char *suffix)
{
    return require(r, suffix) ? read_u32(r, suffix, 0) : 0;
}

static float read_f32(key_reader *r, const char *suffix, float absent)
{
    float value = absent;
    if (find(r, suffix) != NULL) {
        r->status = moe_gguf_get_f32(r->gguf, r->key, &value, r->err);
    }
    return value;
}

static bool read_bool(key_reader *r, const char *suffix, bool absent)
{
    bool value = absent;
    if (find(r, suffix) != NULL) {
        r->status = moe_gguf_get_bool(r->gguf, r->key, &value, r->err);
    }
    return value;
}

static int fail_unknown(moe_string_view architecture, moe_error *err)
{
    char known[160] = "";
    char shown[MOE_GGUF_SHOWN];
    for (size_t i = 0; i < moe_family_count(); i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : ", ",
                 moe_family_at(i)->architecture);
    }
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "architecture '%s' (key 'general.architecture') is not supported; supported "
                    "are %s",
                    moe_gguf_show(architecture, shown), known);
}

static int find_family(moe_model_config *config, const moe_gguf *gguf, const moe_family **family,
                       moe_error *err)
{
    moe_string_view name = {0};
    int status = moe_gguf_get_string(gguf, "general.architecture", &name, err);
    if (status != MOE_OK) {
        return status;
    }
    if (name.data == NULL) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "key 'general.architecture' is missing: this is not a model");
    }
    if (name.size >= sizeof config->architecture) {
        return fail_unknown(name, err);
    }
    memcpy(config->architecture, name.data, name.size);
    config->architecture[name.size] = '\0';
    *family = moe_family_find(config->architecture);
    if (*family == NULL || strlen(config->architecture) != name.size) {
        return fail_unknown(name, err);
    }
    config->family = (*family)->name;
    return MOE_OK;
}

/* Metadata of other families that would change the result, unless it has a neutral value. */
static void refuse_unused_keys(key_reader *r)
{
    static const struct {
        const char *suffix;
        float neutral, also_neutral;
        unsigned used_by; /* families with this flag read it */
    } rows[] = {
        {"attention.clamp_kqv", 0, 0, MOE_KEY_CLAMP_KQV},
        {"leading_dense_block_count", 0, 0, MOE_KEY_DENSE_LEAD},
        {"expert_group_count", 0, 1, MOE_KEY_GROUPS},
        {"rope.scaling.yarn_log_multiplier", 0, 0, MOE_KEY_YARN_LOG},
        {"rope.scaling.yarn_ext_factor", 1, 1, 0},
        {"embedding_scale", 0, 1, 0},
        {"residual_scale", 0, 1, 0},
        {"logit_scale", 0, 1, 0},
        {"attn_logit_softcapping", 0, 0, 0},
        {"final_logit_softcapping", 0, 0, 0},
        {"router_logit_softcapping", 0, 0, 0},
        {"attention.max_alibi_bias", 0, 0, 0},
        {"attention.temperature_length", 0, 0, 0},
        {"attention.temperature_scale", 0, 0, 0},
        {"attention.causal", 1, 1, 0},
        {"moe_every_n_layers", 0, 1, 0},
        {"interleave_moe_layer_step", 0, 1, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if ((r->family->keys & rows[i].used_by) != 0) {
            continue;
        }
        float value = read_f32(r, rows[i].suffix, rows[i].neutral);
        if (r->status == MOE_OK && value != rows[i].neutral && value != rows[i].also_neutral) {
            r->status =
                moe_fail(r->err, MOE_ERR_UNSUPPORTED, "key '%s' is %g: not supported for %s models",
                         r->key, (double)value, r->family->name);
        }
    }
}

/* Rows of the embedding; the keys are only a fallback, since vocabularies are often padded. */
static uint32_t read_vocabulary(key_reader *r)
{
    const moe_gguf_kv *tokens = moe_gguf_find(r->gguf, "tokenizer.ggml.tokens");
    const moe_gguf_tensor *embedding = moe_gguf_find_tensor(r->gguf, "token_embd.weight");
    uint64_t n_tokens = tokens != NULL && tokens->type == MOE_GGUF_ARRAY ? tokens->n_elements : 0;
    uint64_t n_vocab = embedding != NULL ? embedding->dims[1] : read_u32(r, "vocab_size", 0);
    n_vocab = n_vocab == 0 ? n_tokens : n_vocab;
    if (r->status != MOE_OK) {
        return 0;
    }
    if (n_vocab == 0 || n_vocab > MAX_DIMENSION || n_tokens > n_vocab) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT,
                             "the vocabulary has %" PRIu64 " tokens (key 'tokenizer.ggml.tokens') "
                             "but 'token_embd.weight' or key '%s.vocab_size' has %" PRIu64,
                             n_tokens, r->family->architecture, n_vocab);
        return 0;
    }
    return (uint32_t)n_vocab;
}

static void read_shape(key_reader *r, moe_model_config *config)
{
    uint32_t n_predict = read_u32(r, "nextn_predict_layers", 0);
    config->n_layer = require_u32(r, "block_count");
    /* Layers that predict further tokens stand behind the others and are not run. */
    config->n_layer -= n_predict < config->n_layer ? n_predict : 0;
    config->n_embd = require_u32(r, "embedding_length");
    config->n_context_train = require_u32(r, "context_length");
    config->n_vocab = read_vocabulary(r);
    if (require(r, "attention.layer_norm_rms_epsilon")) {
        config->norm_eps = read_f32(r, "attention.layer_norm_rms_epsilon", 0);
    }
    config->embedding_scale = 1;
    config->residual_scale = 1;
    config->logit_scale = 1;
    config->tied_output = moe_gguf_find_tensor(r->gguf, "output.weight") == NULL;
}

static void read_grouped_heads(key_reader *r, moe_model_config *config)
{
    config->n_head_kv = read_u32(r, "attention.head_count_kv", config->n_head);
    bool stated = has_key(r, "attention.key_length") && has_key(r, "attention.value_length");
    if (r->status == MOE_OK && !stated && config->n_embd % config->n_head != 0) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT,
                             "the embedding, %" PRIu32 ", is not a multiple of the %" PRIu32
                             " heads and key '%s.attention.key_length' is missing",
                             config->n_embd, config->n_head, r->family->architecture);
        return;
    }
    uint32_t derived = config->n_head == 0 ? 0 : config->n_embd / config->n_head;
    config->head_dim_k = read_u32(r, "attention.key_length", derived);
    config->head_dim_v = read_u32(r, "attention.value_length", derived);
    config->n_rot = read_u32(r, "rope.dimension_count", config->head_dim_k);
    config->attention_scale =
        read_f32(r, "attention.scale", 1.0f / sqrtf((float)config->head_dim_k));
}

/* Of older files key_length and value_length are those of a head; of newer ones those of the
 * compressed cache, and key_length_mla and value_length_mla a head's. */
static void read_latent_heads(key_reader *r, moe_model_config *config)
{
    bool newer = has_key(r, "attention.key_length_mla");
    uint32_t key = require_u32(r, newer ? "attention.key_length_mla" : "attention.key_length");
    config->v_head_dim =
        require_u32(r, newer ? "attention.value_length_mla" : "attention.value_length");
    config->kv_lora_rank = require_u32(r, "attention.kv_lora_rank");
    config->q_lora_rank = read_u32(r, "attention.q_lora_rank", 0);
    config->n_rot = require_u32(r, "rope.dimension_count");
    if (r->status == MOE_OK && key <= config->n_rot) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT,
                             "a head's key length, %" PRIu32 ", is not above key '%s', %" PRIu32,
                             key, r->key, config->n_rot);
    }
    if (r->status != MOE_OK || config->kv_lora_rank > MAX_DIMENSION || key > MAX_DIMENSION) {
        config->kv_lora_rank = 0; /* the range check names it */
        return;
    }
    config->qk_nope_dim = key - config->n_rot;
    config->head_dim_k = config->kv_lora_rank + config->n_rot;
    config->head_dim_v = config->kv_lora_rank;
    config->n_head_kv = 1;
    config->attention_scale = read_f32(r, "attention.scale", 1.0f / sqrtf((float)key));
}

static void read_attention(key_reader *r, moe_model_config *config)
{
    config->attention = r->family->attention;
    config->qk_norm = r->family->qk_norm;
    config->n_head = require_u32(r, "attention.head_count");
    if (r->status == MOE_OK && (config->n_head == 0 || config->n_head > MAX_HEADS)) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' is %" PRIu32 ", not 1 to %u", r->key,
                             config->n_head, MAX_HEADS);
    }
    if (config->attention == MOE_ATTENTION_MLA) {
        read_latent_heads(r, config);
    } else {
        read_grouped_heads(r, config);
    }
    if ((r->family->keys & MOE_KEY_CLAMP_KQV) != 0) {
        config->clip_qkv = read_f32(r, "attention.clamp_kqv", 0);
        if (r->status == MOE_OK && config->clip_qkv < 0) {
            r->status = moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' is negative", r->key);
        }
    }
}

static moe_rope_scaling_kind read_scaling_kind(key_reader *r)
{
    static const struct {
        const char *name;
        moe_rope_scaling_kind kind;
    } kinds[] = {
        {"none", MOE_ROPE_SCALING_NONE},
        {"linear", MOE_ROPE_SCALING_LINEAR},
        {"yarn", MOE_ROPE_SCALING_YARN},
    };
    moe_string_view name = {"linear", 6};
    if (find(r, "rope.scaling.type") != NULL) {
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
                             "key '%s' is '%s'; supported are none, linear and yarn", r->key,
                             moe_gguf_show(name, shown));
    }
    return MOE_ROPE_SCALING_NONE;
}

/* YaRN lengthens the logits by (0.1 ln(factor) + 1)^2. Most families put its root on cos and sin of
 * queries and keys alike. DeepSeek-V2 multiplies the attention scale instead, with a weight
 * mscale_all_dim before the logarithm, and cos and sin by the ratio of mscale's and
 * mscale_all_dim's factors; files hold 0.1 * mscale_all_dim alone, since its models have the two
 * equal, so the ratio is 1. */
static void read_yarn(key_reader *r, moe_model_config *config)
{
    float log_factor = logf(config->rope_factor);
    float attention_factor = read_f32(r, "rope.scaling.attn_factor", 1);
    config->yarn_magnitude = attention_factor * (1 + 0.1f * log_factor);
    config->yarn_beta_fast = read_f32(r, "rope.scaling.yarn_beta_fast", 32);
    config->yarn_beta_slow = read_f32(r, "rope.scaling.yarn_beta_slow", 1);
    if ((r->family->keys & MOE_KEY_YARN_LOG) != 0) {
        float multiplier = read_f32(r, "rope.scaling.yarn_log_multiplier", 0);
        if (multiplier != 0) {
            float mscale = 1 + multiplier * log_factor;
            config->attention_scale *= mscale * mscale;
            config->yarn_magnitude = attention_factor;
        }
    }
    if (r->status == MOE_OK &&
        !(config->yarn_beta_slow > 0 && config->yarn_beta_fast > config->yarn_beta_slow)) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT,
                             "keys '%s.rope.scaling.yarn_beta_fast' and '..._slow' are %g and %g: "
                             "the first must be larger, and both above 0",
                             r->family->architecture, (double)config->yarn_beta_fast,
                             (double)config->yarn_beta_slow);
    }
}

static void read_rope(key_reader *r, moe_model_config *config)
{
    config->rope = r->family->rope;
    config->rope_freq_base = read_f32(r, "rope.freq_base", 10000);
    config->rope_scaling = read_scaling_kind(r);
    config->rope_factor = read_f32(r, "rope.scaling.factor", read_f32(r, "rope.scale_linear", 1));
    if (config->rope_factor == 0) {
        config->rope_factor = 1;
    }
    config->rope_original_context =
        read_u32(r, "rope.scaling.original_context_length", config->n_context_train);
    config->yarn_magnitude = 1;
    config->yarn_beta_fast = 32;
    config->yarn_beta_slow = 1;
    if (r->status == MOE_OK && !(config->rope_factor >= 1 && config->rope_freq_base > 1)) {
        r->status = moe_fail(
            r->err, MOE_ERR_FORMAT,
            "rotary embedding: keys '%s.rope.scaling.factor' (%g) and '.freq_base' "
            "(%g) must be at least 1 and above 1",
            r->family->architecture, (double)config->rope_factor, (double)config->rope_freq_base);
    }
    if (config->rope_factor == 1 || config->rope_scaling == MOE_ROPE_SCALING_NONE) {
        config->rope_scaling = MOE_ROPE_SCALING_NONE;
        config->rope_factor = 1;
    }
    if (r->status == MOE_OK && config->rope_scaling == MOE_ROPE_SCALING_YARN) {
        read_yarn(r, config);
    }
}

static void read_expert_widths(key_reader *r, moe_model_config *config)
{
    const moe_family *family = r->family;
    bool all_stated = has_key(r, "expert_feed_forward_length");
    bool dense_needed = config->n_dense_lead > 0 ||
                        (!all_stated && family->expert_width != MOE_EXPERT_WIDTH_STATED);
    config->n_ff_dense = dense_needed ? require_u32(r, "feed_forward_length")
                                      : read_u32(r, "feed_forward_length", 0);
    if (all_stated || family->expert_width == MOE_EXPERT_WIDTH_STATED) {
        config->n_ff_expert = require_u32(r, "expert_feed_forward_length");
    } else {
        uint32_t share = family->expert_width == MOE_EXPERT_WIDTH_SHARE && config->n_expert_used > 0
                             ? config->n_expert_used
                             : 1;
        config->n_ff_expert = config->n_ff_dense / share;
    }
    if (family->shared == MOE_SHARED_GATED) {
        config->shared_gated = true;
        config->n_ff_shared = read_u32(r, "expert_shared_feed_forward_length", config->n_ff_dense);
    } else if (family->shared == MOE_SHARED_COUNT) {
        uint32_t count = read_u32(r, "expert_shared_count", 0);
        if (__builtin_mul_overflow(count, config->n_ff_expert, &config->n_ff_shared)) {
            config->n_ff_shared = UINT32_MAX; /* the range check names it */
        }
    }
}

static void read_gate(key_reader *r, moe_model_config *config)
{
    const moe_family *family = r->family;
    bool old_sigmoid = family->sigmoid_n_expert > 0 && !has_key(r, "expert_gating_func") &&
                       config->n_layer == family->sigmoid_n_layer &&
                       config->n_expert == family->sigmoid_n_expert;
    uint32_t absent = old_sigmoid ? MOE_GATE_SIGMOID : family->gate;
    uint32_t gate = read_u32(r, "expert_gating_func", absent);
    gate = gate == 0 ? family->gate : gate;
    if (r->status == MOE_OK && gate > MOE_GATE_SOFTMAX_SELECTED) {
        r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                             "key '%s' is %" PRIu32 "; supported are 1 (softmax), 2 (sigmoid) and "
                             "3 (softmax over the selected)",
                             r->key, gate);
    }
    config->gate = (moe_gate_kind)gate;
    config->gate_renormalise =
        read_bool(r, "expert_weights_norm", old_sigmoid || family->gate_renormalise);
    config->gate_scale = read_f32(r, "expert_weights_scale", 1);
    config->gate_scale = config->gate_scale == 0 ? 1 : config->gate_scale;
    config->group_score = gate == MOE_GATE_SIGMOID ? MOE_GROUP_SCORE_TOP2_SUM : MOE_GROUP_SCORE_MAX;
    config->n_group = 1;
    if ((family->keys & MOE_KEY_GROUPS) != 0) {
        config->n_group = read_u32(r, "expert_group_count", 1);
        config->n_group += config->n_group == 0;
    }
    config->n_group_used = config->n_group > 1 ? require_u32(r, "expert_group_used_count") : 1;
    char name[48];
    snprintf(name, sizeof name, "blk.%" PRIu32 ".exp_probs_b.bias", config->n_dense_lead);
    config->gate_selection_bias = moe_gguf_find_tensor(r->gguf, name) != NULL;
}

static void read_feed_forward(key_reader *r, moe_model_config *config)
{
    config->n_expert = read_u32(r, "expert_count", 0);
    if (r->status == MOE_OK && config->n_expert == 0) {
        r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                             "this '%s' model has no experts (key '%s'): only mixture-of-experts "
                             "models are supported",
                             config->architecture, r->key);
    }
    config->n_expert_used = require_u32(r, "expert_used_count");
    config->moe_every = 1;
    if ((r->family->keys & MOE_KEY_DENSE_LEAD) != 0) {
        config->n_dense_lead = read_u32(r, "leading_dense_block_count", 0);
    }
    read_expert_widths(r, config);
    read_gate(r, config);
}

typedef struct range_row {
    uint64_t value;
    uint64_t least;
    uint64_t most;
    const char *what;
} range_row;

static int check_ranges(const moe_model_config *config, moe_error *err)
{
    bool mla = config->attention == MOE_ATTENTION_MLA;
    uint32_t least_dense = config->n_dense_lead > 0;
    const range_row rows[] = {
        {config->n_layer, 1, MOE_MAX_LAYERS, "block_count"},
        {config->n_embd, 1, MAX_DIMENSION, "embedding_length"},
        {config->n_context_train, 1, MAX_CONTEXT, "context_length"},
        {config->rope_original_context, 1, MAX_CONTEXT, "rope.scaling.original_context_length"},
        {config->n_head_kv, 1, config->n_head, "attention.head_count_kv"},
        {config->kv_lora_rank, mla, MAX_DIMENSION, "attention.kv_lora_rank"},
        {config->q_lora_rank, 0, MAX_DIMENSION, "attention.q_lora_rank"},
        {config->v_head_dim, mla, MAX_DIMENSION, "attention.value_length"},
        {(uint64_t)config->n_head * config->v_head_dim, mla, MAX_DIMENSION,
         "attention.value_length (times the heads)"},
        {(uint64_t)config->n_head * (config->qk_nope_dim + config->n_rot), 1, MAX_DIMENSION,
         "attention.key_length (times the heads)"},
        {(uint64_t)config->n_head * config->head_dim_k, 1, MAX_DIMENSION,
         "attention.key_length (times the heads)"},
        {(uint64_t)config->n_head * config->head_dim_v, 1, MAX_DIMENSION,
         "attention.value_length (times the heads)"},
        {config->n_rot, 2, config->head_dim_k, "rope.dimension_count"},
        {config->n_expert, 1, MOE_MAX_EXPERTS, "expert_count"},
        {config->n_expert_used, 1, MOE_MAX_EXPERTS_USED, "expert_used_count"},
        {config->n_expert_used, 1, config->n_expert, "expert_used_count"},
        {config->n_ff_expert, 1, MAX_DIMENSION, "expert_feed_forward_length"},
        {config->n_ff_dense, least_dense, MAX_DIMENSION, "feed_forward_length"},
        {config->n_ff_shared, config->shared_gated, MAX_DIMENSION,
         "expert_shared_feed_forward_length (or expert_shared_count)"},
        {config->n_dense_lead, 0, config->n_layer - 1, "leading_dense_block_count"},
        {config->n_group, 1, config->n_expert, "expert_group_count"},
        {config->n_group_used, 1, config->n_group, "expert_group_used_count"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].value < rows[i].least || rows[i].value > rows[i].most) {
            return moe_fail(
                err, MOE_ERR_FORMAT, "key '%s.%s' is %" PRIu64 ", not %" PRIu64 " to %" PRIu64,
                config->architecture, rows[i].what, rows[i].value, rows[i].least, rows[i].most);
        }
    }
    return MOE_OK;
}

static int check_relations(const moe_model_config *config, moe_error *err)
{
    const char *architecture = config->architecture;
    if (config->attention == MOE_ATTENTION_GQA && config->n_head % config->n_head_kv != 0) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "key '%s.attention.head_count' (%" PRIu32 ") is not a multiple of "
                        "head_count_kv (%" PRIu32 ")",
                        architecture, config->n_head, config->n_head_kv);
    }
    if (config->n_rot % 2 != 0) {
        return moe_fail(err, MOE_ERR_FORMAT, "key '%s.rope.dimension_count' (%" PRIu32 ") is odd",
                        architecture, config->n_rot);
    }
    if (config->n_expert % config->n_group != 0) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "key '%s.expert_group_count' (%" PRIu32 ") does not divide expert_count "
                        "(%" PRIu32 ")",
                        architecture, config->n_group, config->n_expert);
    }
    uint32_t group_size = config->n_expert / config->n_group;
    if (config->n_expert_used > config->n_group_used * group_size ||
        (config->group_score == MOE_GROUP_SCORE_TOP2_SUM && group_size < 2)) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%" PRIu32 " experts cannot be chosen from %" PRIu32 " groups of %" PRIu32
                        " (keys '%s.expert_used_count', 'expert_group_used_count')",
                        config->n_expert_used, config->n_group_used, group_size, architecture);
    }
    if (!(config->norm_eps > 0) || config->norm_eps > 1) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "key '%s.attention.layer_norm_rms_epsilon' is %g, not above 0 and up to 1",
                        architecture, (double)config->norm_eps);
    }
    if (!(config->attention_scale > 0) || !isfinite(config->attention_scale) ||
        !(config->yarn_magnitude > 0) || !isfinite(config->yarn_magnitude)) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "attention scale %g (keys '%s.attention.scale', 'rope.scaling.*') is not a "
                        "positive number",
                        (double)config->attention_scale, architecture);
    }
    return MOE_OK;
}

int moe_model_config_read(moe_model_config *config, const moe_gguf *gguf, moe_error *err)
{
    *config = (moe_model_config){0};
    key_reader r = {.gguf = gguf, .err = err};
    int status = find_family(config, gguf, &r.family, err);
    if (status != MOE_OK) {
        return status;
    }
    read_shape(&r, config);
    read_attention(&r, config);
    read_rope(&r, config);
    read_feed_forward(&r, config);
    refuse_unused_keys(&r);
    if (r.status == MOE_OK) {
        r.status = check_ranges(config, err);
    }
    if (r.status == MOE_OK) {
        r.status = check_relations(config, err);
    }
    return r.status;
}
