/* SPDX-License-Identifier: MIT */
/* Checks a config as a whole, so that code that uses it need not check again. */
#include "runtime/model/config_reader.h"

#include <inttypes.h>
#include <math.h>

#include "runtime/base/error.h"

typedef struct range_row {
    uint64_t value;
    uint64_t least;
    uint64_t most;
    const char *what;
} range_row;

static int check_ranges(const moe_model_config *config, moe_error *err)
{
    bool mla = config->attention == MOE_ATTENTION_MLA;
    uint32_t least_dense = config->n_dense_lead > 0 || config->moe_every > 1;
    const range_row rows[] = {
        {config->n_layer, 1, MOE_MAX_LAYERS, "block_count"},
        {config->n_embd, 1, MOE_CONFIG_MAX_DIMENSION, "embedding_length"},
        {config->n_context_train, 1, MOE_CONFIG_MAX_CONTEXT, "context_length"},
        {config->rope_original_context, 1, MOE_CONFIG_MAX_CONTEXT,
         "rope.scaling.original_context_length"},
        {config->n_head_kv, 1, config->n_head, "attention.head_count_kv"},
        {config->kv_lora_rank, mla, MOE_CONFIG_MAX_DIMENSION, "attention.kv_lora_rank"},
        {config->head_dim_k, 2, MOE_CONFIG_MAX_DIMENSION, "attention.key_length"},
        {config->window_n_rot, 0, config->head_dim_k, "rope.dimension_count_swa"},
        {config->n_rot, config->family->no_rope ? 0 : 2, config->head_dim_k,
         "rope.dimension_count"},
        {(uint64_t)config->out_groups * config->out_rank, 0, MOE_CONFIG_MAX_DIMENSION,
         "attention.output_lora_rank (times the groups)"},
        {config->attention_window, config->attention == MOE_ATTENTION_SHARED,
         MOE_CONFIG_MAX_CONTEXT, "attention.sliding_window"},
        {config->n_table_lead, 0, config->n_layer, "hash_layer_count"},
        {config->q_lora_rank, 0, MOE_CONFIG_MAX_DIMENSION, "attention.q_lora_rank"},
        {config->v_head_dim, mla, MOE_CONFIG_MAX_DIMENSION, "attention.value_length"},
        {(uint64_t)config->n_head * config->v_head_dim, mla, MOE_CONFIG_MAX_DIMENSION,
         "attention.value_length (times the heads)"},
        {(uint64_t)config->n_head * (config->qk_nope_dim + config->n_rot), 1,
         MOE_CONFIG_MAX_DIMENSION, "attention.key_length (times the heads)"},
        {(uint64_t)config->n_head * config->head_dim_k, 1, MOE_CONFIG_MAX_DIMENSION,
         "attention.key_length (times the heads)"},
        {(uint64_t)config->n_head * config->head_dim_v, 1, MOE_CONFIG_MAX_DIMENSION,
         "attention.value_length (times the heads)"},
        {config->n_expert, 1, MOE_MAX_EXPERTS, "expert_count"},
        {config->n_expert_used, 1, MOE_MAX_EXPERTS_USED, "expert_used_count"},
        {config->n_expert_used, 1, config->n_expert, "expert_used_count"},
        {config->n_ff_expert, 1, MOE_CONFIG_MAX_DIMENSION, "expert_feed_forward_length"},
        {config->n_ff_dense, least_dense, MOE_CONFIG_MAX_DIMENSION, "feed_forward_length"},
        {config->n_ff_shared, config->shared_gated, MOE_CONFIG_MAX_DIMENSION,
         "expert_shared_feed_forward_length (or expert_shared_count)"},
        {config->n_dense_lead, 0, config->n_layer - 1, "leading_dense_block_count"},
        {config->moe_every, 1, config->n_layer, "interleave_moe_layer_step"},
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
    if (config->attention == MOE_ATTENTION_GQA && !config->window_rope &&
        config->n_head % config->n_head_kv != 0) {
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
    if (config->window_rope && !(config->window_freq_base > 1)) {
        return moe_fail(err, MOE_ERR_FORMAT, "key '%s.rope.freq_base_swa' is %g, not above 1",
                        architecture, (double)config->window_freq_base);
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

int moe_config_check(const moe_model_config *config, moe_error *err)
{
    MOE_TRY(check_ranges(config, err));
    return check_relations(config, err);
}
