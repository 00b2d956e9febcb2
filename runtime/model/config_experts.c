/* SPDX-License-Identifier: MIT */
/* Reads the dials of experts: which layers have experts, how wide routed and shared experts are,
 * and the gate. */
#include "runtime/model/config_reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

/* How many layers come before the first one with a router. */
static uint32_t count_dense_lead(const moe_config_reader *r, const moe_model_config *config)
{
    uint32_t n = 0;
    for (; n < config->n_layer && n < MOE_MAX_LAYERS; n++) {
        char name[48];
        snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_gate_inp.weight", n);
        if (moe_gguf_find_tensor(r->gguf, name) != NULL) {
            return n;
        }
    }
    return 0;
}

/* The rows of the file's first shared expert; 0: the file has none. */
static uint32_t find_shared_width(const moe_config_reader *r, const moe_model_config *config)
{
    bool dense = r->family->shared == MOE_SHARED_DENSE;
    const char *tensor = dense ? "ffn_up.weight" : "ffn_up_shexp.weight";
    for (uint32_t i = config->n_dense_lead; i < config->n_layer && i < MOE_MAX_LAYERS; i++) {
        char name[48];
        snprintf(name, sizeof name, "blk.%" PRIu32 ".%s", i, tensor);
        const moe_gguf_tensor *up = moe_gguf_find_tensor(r->gguf, name);
        if (up != NULL) {
            return up->dims[1] <= UINT32_MAX ? (uint32_t)up->dims[1] : UINT32_MAX;
        }
    }
    return 0;
}

static void read_expert_widths(moe_config_reader *r, moe_model_config *config)
{
    const moe_family *family = r->family;
    bool all_stated = moe_config_has(r, "expert_feed_forward_length");
    bool dense_needed = config->n_dense_lead > 0 || config->moe_every > 1 ||
                        family->experts_by_tensors ||
                        (!all_stated && family->expert_width != MOE_EXPERT_WIDTH_STATED);
    config->n_ff_dense = family->single_parts ? moe_config_most_u32(r, "feed_forward_length", 0)
                         : dense_needed       ? moe_config_need_u32(r, "feed_forward_length")
                                              : moe_config_u32(r, "feed_forward_length", 0);
    if (all_stated || family->expert_width == MOE_EXPERT_WIDTH_STATED) {
        config->n_ff_expert = moe_config_need_u32(r, "expert_feed_forward_length");
    } else {
        uint32_t share = family->expert_width == MOE_EXPERT_WIDTH_SHARE && config->n_expert_used > 0
                             ? config->n_expert_used
                             : 1;
        config->n_ff_expert = config->n_ff_dense / share;
    }
    if (family->shared == MOE_SHARED_GATED) {
        config->shared_gated = true;
        config->n_ff_shared =
            moe_config_u32(r, "expert_shared_feed_forward_length", config->n_ff_dense);
    } else if (family->shared == MOE_SHARED_COUNT) {
        uint32_t count = moe_config_u32(r, "expert_shared_count", 0);
        if (__builtin_mul_overflow(count, config->n_ff_expert, &config->n_ff_shared)) {
            /* Too large, so the range check will fail and name it. */
            config->n_ff_shared = UINT32_MAX;
        }
    } else if (family->shared == MOE_SHARED_TENSORS || family->shared == MOE_SHARED_DENSE) {
        config->n_ff_shared = find_shared_width(r, config);
    }
}

/* Whether a file without expert_gating_func has the gate of DeepSeek-V3, a sigmoid with normalised
 * weights. Such files are older than the key. They have biases for the choice of experts; files of
 * V2, which has a softmax, do not. */
static bool gate_is_of_v3(const moe_config_reader *r, const moe_model_config *config)
{
    const moe_family *family = r->family;
    return family->sigmoid_n_expert > 0 &&
           (config->gate_selection_bias || (config->n_layer == family->sigmoid_n_layer &&
                                            config->n_expert == family->sigmoid_n_expert));
}

static void read_gate(moe_config_reader *r, moe_model_config *config)
{
    const moe_family *family = r->family;
    char name[48];
    uint64_t every = config->moe_every;
    /* The first layer with experts. */
    uint64_t first = (config->n_dense_lead + every) / every * every - 1;
    first += config->n_table_lead; /* skips layers whose experts a table chooses */
    first =
        family->single_parts || family->experts_by_tensors ? count_dense_lead(r, config) : first;
    snprintf(name, sizeof name, "blk.%" PRIu64 ".exp_probs_b.bias", first);
    config->gate_selection_bias = moe_gguf_find_tensor(r->gguf, name) != NULL;
    config->gate_bias_tensor = "exp_probs_b.bias";
    if (!config->gate_selection_bias) {
        *strrchr(name, '.') = '\0'; /* some files omit the ending */
        config->gate_selection_bias = moe_gguf_find_tensor(r->gguf, name) != NULL;
        config->gate_bias_tensor = "exp_probs_b";
    }
    uint32_t gate = moe_config_u32(r, "expert_gating_func", 0);
    if (r->status == MOE_OK && gate > MOE_GATE_SQRT_SOFTPLUS) {
        r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                             "key '%s' is %" PRIu32 "; supported are 1 (softmax), 2 (sigmoid), 3 "
                             "(softmax over the selected) and 4 (square root of softplus)",
                             r->key, gate);
    }
    config->gate_assumed = gate == 0 && gate_is_of_v3(r, config);
    if (r->status == MOE_OK && gate == 0 && config->gate_selection_bias && !config->gate_assumed &&
        !family->gate_takes_bias) {
        r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                             "key '%s' is missing: the file has biases for the choice of experts "
                             "('%s'), and %s models do not tell which gate they belong to",
                             r->key, name, family->name);
    }
    if (gate == 0) {
        gate = config->gate_assumed ? MOE_GATE_SIGMOID : family->gate;
    }
    config->gate = (moe_gate_kind)gate;
    config->gate_renormalise =
        moe_config_bool(r, "expert_weights_norm", config->gate_assumed || family->gate_renormalise);
    config->gate_scale = moe_config_f32(r, "expert_weights_scale", 1);
    config->gate_scale = config->gate_scale == 0 ? 1 : config->gate_scale;
    config->group_score = gate == MOE_GATE_SIGMOID ? MOE_GROUP_SCORE_TOP2_SUM : MOE_GROUP_SCORE_MAX;
    config->n_group = 1;
    if ((family->keys & MOE_KEY_GROUPS) != 0) {
        config->n_group = moe_config_u32(r, "expert_group_count", 1);
        config->n_group += config->n_group == 0;
    }
    config->n_group_used =
        config->n_group > 1 ? moe_config_need_u32(r, "expert_group_used_count") : 1;
}

static void read_situ(moe_config_reader *r, moe_model_config *config)
{
    if (moe_config_require(r, "activation.situ_beta")) {
        config->situ_beta = moe_config_f32(r, "activation.situ_beta", 0);
    }
    if (r->status == MOE_OK && !(config->situ_beta > 0 && isfinite(config->situ_beta))) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' is %g, not above 0", r->key,
                             (double)config->situ_beta);
    }
    /* Values of 0 and below mean that there is no limit. */
    const float linear = moe_config_f32(r, "activation.situ_linear_beta", 0);
    config->situ_linear_beta = linear > 0 ? linear : 0;
    if (r->status == MOE_OK && !isfinite(linear)) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' is %g, not a finite number", r->key,
                             (double)linear);
    }
}

void moe_config_read_experts(moe_config_reader *r, moe_model_config *config)
{
    config->n_expert = moe_config_u32(r, "expert_count", 0);
    if (r->status == MOE_OK && config->n_expert == 0) {
        r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                             "this '%s' model has no experts (key '%s'), it is dense: only "
                             "mixture-of-experts models are supported; llama.cpp runs this one",
                             config->architecture, r->key);
    }
    config->n_expert_used = moe_config_need_u32(r, "expert_used_count");
    config->moe_every = 1;
    if ((r->family->keys & MOE_KEY_DENSE_LEAD) != 0) {
        config->n_dense_lead =
            moe_config_u32(r, "leading_dense_block_count", count_dense_lead(r, config));
    }
    if ((r->family->keys & MOE_KEY_EVERY) != 0) {
        config->moe_every = moe_config_u32(r, "interleave_moe_layer_step", 1);
        config->moe_every += config->moe_every == 0;
    }
    if (r->family->attention == MOE_ATTENTION_SHARED) {
        config->n_table_lead = moe_config_u32(r, "hash_layer_count", 0);
    }
    read_expert_widths(r, config);
    config->n_expert_in = config->n_embd;
    if ((r->family->keys & MOE_KEY_LATENT) != 0) {
        const bool older = moe_config_has(r, "moe_latent_size");
        uint32_t latent = moe_config_u32(r, older ? "moe_latent_size" : "expert_latent_length", 0);
        config->n_expert_in = latent != 0 ? latent : config->n_embd;
        if (r->status == MOE_OK && latent > config->n_embd) {
            r->status =
                moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' is %" PRIu32 ", not 1 to %" PRIu32,
                         r->key, latent, config->n_embd);
        }
    }
    if ((r->family->keys & MOE_KEY_SITU) != 0) {
        read_situ(r, config);
    }
    read_gate(r, config);
}
