/* SPDX-License-Identifier: MIT */
#include "runtime/model/metadata_keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/model/gguf_internal.h"

/* Which families read a key, besides moe_family_keys: by other fields of moe_family. */
#define READ_BY_MLA   (UINT64_C(1) << 32)
#define READ_BY_GQA   (UINT64_C(1) << 33)
#define READ_BY_COUNT (UINT64_C(1) << 34) /* MOE_SHARED_COUNT */
#define READ_BY_GATED (UINT64_C(1) << 35) /* MOE_SHARED_GATED */
/* MOE_SHARED_TENSORS: such a family reads from the tensors what these keys would tell */
#define READ_BY_TENSORS   (UINT64_C(1) << 36)
#define READ_BY_DELTA     (UINT64_C(1) << 37)
#define READ_BY_CONV      (UINT64_C(1) << 38)
#define READ_BY_SPACE     (UINT64_C(1) << 39)
#define READ_BY_CHANNELS  (UINT64_C(1) << 40)
#define READ_BY_SCAN      (UINT64_C(1) << 41)
#define READ_BY_FINETUNED (UINT64_C(1) << 42) /* rope_if_finetuned */
#define READ_BY_STATES    (READ_BY_DELTA | READ_BY_SPACE)
#define READ_BY_SHARED    (UINT64_C(1) << 43)
#define READ_BY_ALL       UINT64_MAX

typedef enum key_rule {
    KEY_HARMLESS, /* has no effect in families that do not read it */
    KEY_NEUTRAL   /* is refused in families that do not read it, unless its value is neutral */
} key_rule;

typedef struct key_row {
    const char *suffix; /* after "{architecture}."; a trailing '*' stands for any end */
    uint64_t readers;
    key_rule otherwise;
    /* Values are neutral if they equal one of these numbers (in an array: every element does),
     * ... */
    float neutral, also_neutral;
    const char *texts;   /* ... one of these texts, separated by '|', ... */
    const char *same_as; /* ... or the value of this other key. */
    const char *why;
} key_row;

/* A row of the table. */
#define ROW(suffix, readers, otherwise, neutral, also, texts, same_as, why)                        \
    {                                                                                              \
        suffix, readers, otherwise, neutral, also, texts, same_as, why                             \
    }
/* A key that every family reads. */
#define READ(suffix, why) ROW(suffix, READ_BY_ALL, KEY_HARMLESS, 0, 0, NULL, NULL, why)
/* A key that some families read. For the others `otherwise` applies, and 0 and `also` are
 * neutral. */
#define READ_BY(suffix, readers, otherwise, also, why)                                             \
    ROW(suffix, readers, otherwise, 0, also, NULL, NULL, why)
/* A key that no family reads, and that has no effect. */
#define HARMLESS(suffix, why) ROW(suffix, 0, KEY_HARMLESS, 0, 0, NULL, NULL, why)
/* Keys that no family reads. They are refused unless the value is 0; 0 or 1; 1; ... */
#define ZERO(suffix, why)        ROW(suffix, 0, KEY_NEUTRAL, 0, 0, NULL, NULL, why)
#define ZERO_OR_ONE(suffix, why) ROW(suffix, 0, KEY_NEUTRAL, 0, 1, NULL, NULL, why)
#define ONE(suffix, why)         ROW(suffix, 0, KEY_NEUTRAL, 1, 1, NULL, NULL, why)
/* ... one of these words; the same as another key's value. */
#define WORDS(suffix, texts, why)     ROW(suffix, 0, KEY_NEUTRAL, 0, 0, texts, NULL, why)
#define SAME_AS(suffix, same_as, why) ROW(suffix, 0, KEY_NEUTRAL, 0, 0, NULL, same_as, why)

static const key_row rows[] = {
    /* The shape */
    READ("block_count", "the layers"),
    READ("nextn_predict_layers",
         "layers that predict further tokens stand behind the others and are not run"),
    READ("embedding_length", "the width of the layers"),
    READ("context_length", "the default context"),
    READ("vocab_size", "counts where the file has no embedding"),
    READ("feed_forward_length", "a dense layer's width"),
    READ_BY("leading_dense_block_count", MOE_KEY_DENSE_LEAD, KEY_NEUTRAL, 0,
            "leading layers without experts"),
    ZERO_OR_ONE("moe_every_n_layers", "experts in some layers only"),
    READ_BY("interleave_moe_layer_step", MOE_KEY_EVERY, KEY_NEUTRAL, 1,
            "experts in some layers only"),
    SAME_AS("embedding_length_out", "embedding_length", "an output of another width"),
    READ_BY("embedding_length_per_layer_input", MOE_KEY_NGRAMS, KEY_NEUTRAL, 0,
            "embeddings of each layer's own"),
    HARMLESS("ple.image_token_id", "which token stands for an image's parts; text has none"),
    READ_BY("ple.*", MOE_KEY_NGRAMS, KEY_NEUTRAL, 0, "embeddings of several tokens together"),
    WORDS("tensor_data_layout", "reference|Meta AI original pth", "the order of a matrix's rows"),
    WORDS("hidden_activation", "silu|swish", "the activation of feed-forward layers"),
    ZERO("use_parallel_residual", "attention and feed-forward side by side"),
    ZERO("norm_before_residual", "another place of the norms"),
    ZERO("swin_norm", "another place of the norms"),

    /* Scales */
    READ_BY("embedding_scale", MOE_KEY_SCALES, KEY_NEUTRAL, 1, "a scale of embeddings"),
    READ_BY("residual_scale", MOE_KEY_SCALES, KEY_NEUTRAL, 1, "a scale of what layers add"),
    READ_BY("logit_scale", MOE_KEY_SCALES, KEY_NEUTRAL, 1, "a scale of logits"),
    READ_BY("attn_logit_softcapping", MOE_KEY_CAPS, KEY_NEUTRAL, 0,
            "a soft limit of attention's scores"),
    READ_BY("final_logit_softcapping", MOE_KEY_CAPS, KEY_NEUTRAL, 0, "a soft limit of logits"),
    READ_BY("router_logit_softcapping", MOE_KEY_CAPS, KEY_NEUTRAL, 0,
            "a soft limit of the router's logits"),
    ZERO("rescale_every_n_layers", "a scale between layers"),
    ZERO("activation_sparsity_scale", "activations that are cut off"),
    READ_BY("swiglu_clamp_exp", MOE_KEY_LIMITS, KEY_NEUTRAL, 0, "a limit inside the experts"),
    READ_BY("swiglu_clamp_shexp", MOE_KEY_LIMITS, KEY_NEUTRAL, 0,
            "a limit inside the shared experts"),

    /* Experts */
    READ("expert_count", "experts of a layer"),
    READ("expert_used_count", "experts of a token"),
    READ("expert_feed_forward_length", "an expert's width"),
    READ("expert_gating_func", "how logits become weights"),
    READ("expert_weights_norm", "whether weights are divided by their sum"),
    READ("expert_weights_scale", "a scale of weights"),
    READ_BY("expert_shared_count", READ_BY_COUNT | READ_BY_TENSORS, KEY_NEUTRAL, 1,
            "several shared experts"),
    READ_BY("expert_shared_feed_forward_length", READ_BY_GATED, KEY_HARMLESS, 0,
            "the width is derived, and the shared experts' tensors are checked against it"),
    READ_BY("expert_group_count", MOE_KEY_GROUPS, KEY_NEUTRAL, 1, "groups of experts"),
    READ_BY("expert_group_used_count", MOE_KEY_GROUPS, KEY_HARMLESS, 0,
            "without expert_group_count there are no groups to choose from"),
    ZERO_OR_ONE("expert_group_scale", "experts that share a part"),
    ZERO_OR_ONE("experts_per_group", "experts that share a part"),
    ZERO("expert_chunk_feed_forward_length", "experts that share a part"),
    READ_BY("moe_latent_size", MOE_KEY_LATENT, KEY_NEUTRAL, 0,
            "experts that work on a narrower vector"),
    READ_BY("expert_latent_length", MOE_KEY_LATENT, KEY_NEUTRAL, 0,
            "experts that work on a narrower vector"),
    READ_BY("activation.situ_beta", MOE_KEY_SITU, KEY_NEUTRAL, 0, "the activation SiTU"),
    READ_BY("activation.situ_linear_beta", MOE_KEY_SITU, KEY_NEUTRAL, 0, "the activation SiTU"),
    READ_BY("hash_layer_count", READ_BY_SHARED, KEY_NEUTRAL, 0,
            "experts chosen by the token's number"),
    ZERO("engram.*", "embeddings of several tokens together (Engram)"),

    /* Attention */
    READ("attention.head_count", "heads"),
    READ_BY("attention.head_count_kv", READ_BY_GQA | READ_BY_CHANNELS, KEY_HARMLESS, 0,
            "latent attention keeps one row for all heads"),
    READ("attention.key_length", "a key's width"),
    READ("attention.value_length", "a value's width"),
    READ_BY("attention.key_length_mla", READ_BY_MLA, KEY_NEUTRAL, 0, "latent attention"),
    READ_BY("attention.value_length_mla", READ_BY_MLA, KEY_NEUTRAL, 0, "latent attention"),
    READ_BY("attention.q_lora_rank", READ_BY_MLA | READ_BY_SHARED, KEY_NEUTRAL, 0,
            "latent attention"),
    READ_BY("attention.kv_lora_rank", READ_BY_MLA, KEY_NEUTRAL, 0, "latent attention"),
    READ("attention.layer_norm_rms_epsilon", "a constant of the norms"),
    HARMLESS("attention.layer_norm_epsilon",
             "a constant of norms with a mean, read by the families that have them"),
    HARMLESS("attention.group_norm_epsilon",
             "a constant of norms of groups; these families have none"),
    ZERO("attention.group_norm_groups", "norms of groups"),
    READ("attention.scale", "the scale of q.k"),
    READ_BY("attention.output_scale", MOE_KEY_OUTPUT_SCALE, KEY_NEUTRAL, 1,
            "a scale of attention's output"),
    READ_BY("attention.value_scale", MOE_KEY_VALUE_SCALE, KEY_NEUTRAL, 1, "a scale of values"),
    READ_BY("attention.clamp_kqv", MOE_KEY_CLAMP_KQV, KEY_NEUTRAL, 0,
            "a limit of queries, keys and values"),
    ZERO("attention.max_alibi_bias", "a bias by distance"),
    ZERO("attention.relative_buckets_count", "a bias by distance"),
    ONE("attention.causal", "attention to later tokens"),
    READ_BY("attention.temperature_length", MOE_KEY_TEMPERATURE, KEY_NEUTRAL, 0,
            "a scale of attention by position"),
    READ_BY("attention.temperature_scale", MOE_KEY_TEMPERATURE, KEY_NEUTRAL, 0,
            "a scale of attention by position"),
    READ("attention.sliding_window", "how far layers with a window see"),
    READ("attention.sliding_window_pattern", "which layers have the window"),
    ROW("attention.rope_pattern", MOE_KEY_ROPE_LIST, KEY_NEUTRAL, 1, 1, NULL, NULL,
        "layers without rotary embedding"),
    READ_BY("attention.kv_lora_rank_swa", MOE_KEY_WINDOW_HEADS, KEY_NEUTRAL, 0,
            "other latents in layers with a window"),
    READ_BY("attention.key_length_mla_swa", MOE_KEY_WINDOW_HEADS, KEY_NEUTRAL, 0,
            "other latents in layers with a window"),
    READ_BY("attention.value_length_mla_swa", MOE_KEY_WINDOW_HEADS, KEY_NEUTRAL, 0,
            "other latents in layers with a window"),
    ROW("attention.key_length_swa", MOE_KEY_WINDOW_HEADS, KEY_NEUTRAL, 0, 0, NULL,
        "attention.key_length", "other widths in layers with a window"),
    ROW("attention.value_length_swa", MOE_KEY_WINDOW_HEADS, KEY_NEUTRAL, 0, 0, NULL,
        "attention.value_length", "other widths in layers with a window"),
    ZERO("attention.shared_kv_layers", "layers that share keys and values"),
    READ_BY("attention.recurrent_layers", READ_BY_DELTA, KEY_NEUTRAL, 0,
            "layers without attention"),
    READ_BY("full_attention_interval", READ_BY_DELTA, KEY_NEUTRAL, 1, "layers without attention"),
    HARMLESS("attention.indexer.types", "the tensors say which layers have an indexer"),
    READ_BY("attention.indexer.kpool", MOE_KEY_POOLED_INDEX, KEY_NEUTRAL, 1,
            "attention to chosen pools of positions"),
    READ_BY("attention.indexer.kpool_*", MOE_KEY_POOLED_INDEX, KEY_HARMLESS, 0,
            "without attention.indexer.kpool there are no pools"),
    READ_BY("attention.indexer.*", MOE_KEY_INDEXER, KEY_NEUTRAL, 0,
            "attention to chosen positions only"),
    READ_BY("attention.compress_ratios", READ_BY_SHARED | MOE_KEY_MEAN_INDEX, KEY_NEUTRAL, 0,
            "compressed attention"),
    READ_BY("attention.compress_rope_freq_base", READ_BY_SHARED, KEY_NEUTRAL, 0,
            "compressed attention"),
    ZERO("attention.compress_*", "compressed attention"),
    READ_BY("attention.output_group_count", READ_BY_SHARED, KEY_NEUTRAL, 1,
            "attention's output in groups"),
    READ_BY("attention.output_lora_rank", READ_BY_SHARED, KEY_NEUTRAL, 0,
            "attention's output in two steps"),
    ZERO("attention.*_lora_rank", "ranks of recurrent layers"),

    /* Rotary embedding */
    READ("rope.dimension_count", "elements that turn"),
    ROW("rope.dimension_count_swa", MOE_KEY_WINDOW_HEADS, KEY_NEUTRAL, 0, 0, NULL,
        "rope.dimension_count", "another rotary embedding in layers with a window"),
    READ_BY("rope.dimension_sections", MOE_KEY_SECTIONS, KEY_NEUTRAL, 0,
            "positions of several dimensions"),
    READ("rope.freq_base", "the slowest frequency"),
    ROW("rope.freq_base_swa", MOE_KEY_WINDOW_HEADS, KEY_NEUTRAL, 0, 0, NULL, "rope.freq_base",
        "another rotary embedding in layers with a window"),
    READ("rope.scale_linear", "the older factor"),
    READ("rope.scaling.type", "how it is scaled"),
    READ("rope.scaling.factor", "by how much"),
    READ("rope.scaling.original_context_length", "the context before scaling"),
    READ("rope.scaling.attn_factor", "a factor on cosine and sine"),
    READ("rope.scaling.yarn_attn_factor",
         "YaRN's factor on cosine and sine; it counts with YaRN alone"),
    READ("rope.scaling.yarn_beta_fast", "a bound of YaRN's"),
    READ("rope.scaling.yarn_beta_slow", "a bound of YaRN's"),
    READ_BY("rope.scaling.yarn_log_multiplier", MOE_KEY_YARN_LOG, KEY_NEUTRAL, 0,
            "YaRN's factor on attention's scale"),
    ONE("rope.scaling.yarn_ext_factor", "another blend of YaRN's frequencies"),
    ZERO_OR_ONE("rope.scaling.alpha", "another base of the frequencies"),
    READ_BY("rope.scaling.finetuned", READ_BY_FINETUNED, KEY_HARMLESS, 0,
            "it says how the model was trained, and asks for nothing"),

    /* Keys of other kinds of models. The tensors of such models would be refused, too. */
    READ_BY("ssm.conv_kernel", READ_BY_STATES | READ_BY_CHANNELS | READ_BY_SCAN, KEY_NEUTRAL, 0,
            "recurrent layers"),
    READ_BY("ssm.state_size", READ_BY_STATES | READ_BY_SCAN, KEY_NEUTRAL, 0, "recurrent layers"),
    READ_BY("ssm.group_count", READ_BY_STATES, KEY_NEUTRAL, 0, "recurrent layers"),
    READ_BY("ssm.time_step_rank", READ_BY_STATES | READ_BY_SCAN, KEY_NEUTRAL, 0,
            "recurrent layers"),
    READ_BY("ssm.inner_size", READ_BY_STATES | READ_BY_SCAN, KEY_NEUTRAL, 0, "recurrent layers"),
    ZERO("ssm.*", "recurrent layers"),
    READ_BY("kda.head_dim", READ_BY_CHANNELS, KEY_NEUTRAL, 0, "recurrent layers"),
    READ_BY("kda.gate_lower_bound", MOE_KEY_DECAY_BOUND, KEY_NEUTRAL, 0, "decays with a bound"),
    READ_BY("kda.safe_gate", MOE_KEY_DECAY_BOUND, KEY_NEUTRAL, 0, "decays with a bound"),
    ZERO("kda.*", "recurrent layers"),
    ZERO("wkv.*", "recurrent layers"),
    READ_BY("shortconv.l_cache", READ_BY_CONV, KEY_NEUTRAL, 0, "recurrent layers"),
    ZERO("shortconv.*", "recurrent layers"),
    ZERO("time_mix_extra_dim", "recurrent layers"),
    ZERO("time_decay_extra_dim", "recurrent layers"),
    ZERO("token_shift_count", "recurrent layers"),
    READ_BY("hyper_connection.count",
            MOE_KEY_STREAMS | MOE_KEY_MIXED_STREAMS | MOE_KEY_GATED_STREAMS, KEY_NEUTRAL, 1,
            "several residual streams"),
    READ_BY("hyper_connection.low_rank", MOE_KEY_GATED_STREAMS, KEY_NEUTRAL, 0,
            "residual streams with gates of elements"),
    READ_BY("hyper_connection.epsilon", MOE_KEY_STREAMS | MOE_KEY_MIXED_STREAMS, KEY_NEUTRAL, 0,
            "several residual streams"),
    READ_BY("hyper_connection.sinkhorn_iterations", MOE_KEY_MIXED_STREAMS, KEY_NEUTRAL, 0,
            "residual streams that are mixed"),
    READ_BY("hyper_connection.magnitude", MOE_KEY_STREAMS, KEY_NEUTRAL, 0,
            "several residual streams"),
    READ_BY("attn_res.block_size", MOE_KEY_STREAM_BLOCKS, KEY_NEUTRAL, 0,
            "attention to earlier layers' streams"),
    ZERO("hyper_connection.*", "several residual streams"),
    ZERO("altup.*", "several residual streams"),
    ZERO("posnet.*", "a model of sound"),
    ZERO("convnext.*", "a model of sound"),
    ZERO("features_length", "a model of sound"),
    HARMLESS("n_deepstack_layers", "where features of images go in; text has none"),
    HARMLESS("deepstack_mapping", "where features of images go in; text has none"),
    ZERO("target_layers", "a drafter on another model's states"),
    ZERO("target_hidden_size", "a drafter on another model's states"),
    ZERO("decoder_block_count", "an encoder and a decoder"),
    HARMLESS("decoder_start_token_id", "the first token of a decoder behind an encoder"),
    HARMLESS("pooling_type", "how a text's embedding is made; tokens are predicted without"),
    HARMLESS("classifier.output_labels", "names of classes; tokens are predicted without"),
    HARMLESS("dense_*", "sizes of layers behind a text's embedding; tokens are predicted without"),
};

#define N_ROWS (sizeof rows / sizeof rows[0])

const char *moe_metadata_key_at(size_t i, const char **why)
{
    if (i >= N_ROWS) {
        return NULL;
    }
    if (why != NULL) {
        *why = rows[i].why;
    }
    return rows[i].suffix;
}

/* Whether the text fits the pattern, in which '*' stands for any text without another '*'. */
static bool fits(const char *pattern, const char *text, size_t size)
{
    const char *star = strchr(pattern, '*');
    size_t n_head = star == NULL ? strlen(pattern) : (size_t)(star - pattern);
    size_t n_tail = star == NULL ? 0 : strlen(star + 1);
    if (star == NULL && n_head != size) {
        return false;
    }
    return size >= n_head + n_tail && memcmp(pattern, text, n_head) == 0 &&
           (n_tail == 0 || memcmp(star + 1, text + size - n_tail, n_tail) == 0);
}

static const key_row *find_row(const char *suffix, size_t size)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        if (fits(rows[i].suffix, suffix, size)) {
            return &rows[i];
        }
    }
    return NULL;
}

static uint64_t reads_of(const moe_family *family)
{
    uint64_t reads = family->keys;
    static const uint64_t of_attention[] = {[MOE_ATTENTION_GQA] = READ_BY_GQA,
                                            [MOE_ATTENTION_MLA] = READ_BY_MLA,
                                            [MOE_ATTENTION_SHARED] = READ_BY_SHARED};
    reads |= of_attention[family->attention];
    reads |= family->shared == MOE_SHARED_COUNT ? READ_BY_COUNT : 0;
    reads |= family->shared == MOE_SHARED_GATED ? READ_BY_GATED : 0;
    static const uint64_t of_states[MOE_RECURRENCES] = {
        [MOE_RECURRENCE_DELTA] = READ_BY_DELTA, [MOE_RECURRENCE_CONVOLUTION] = READ_BY_CONV,
        [MOE_RECURRENCE_SPACE] = READ_BY_SPACE, [MOE_RECURRENCE_CHANNELS] = READ_BY_CHANNELS,
        [MOE_RECURRENCE_SCAN] = READ_BY_SCAN,
    };
    reads |= of_states[family->recurrence];
    reads |= family->rope_if_finetuned ? READ_BY_FINETUNED : 0;
    bool tensors = family->shared == MOE_SHARED_TENSORS || family->shared == MOE_SHARED_DENSE;
    reads |= tensors ? READ_BY_TENSORS : 0;
    return reads;
}

static bool is_read(const key_row *row, const moe_family *family)
{
    return row->readers == READ_BY_ALL || (row->readers & reads_of(family)) != 0;
}

bool moe_metadata_key_is_read(size_t i, const moe_family *family)
{
    return i < N_ROWS && is_read(&rows[i], family);
}

static bool is_one_of(moe_string_view text, const char *texts)
{
    while (texts != NULL && *texts != '\0') {
        size_t n = strcspn(texts, "|");
        if (n == text.size && memcmp(texts, text.data, n) == 0) {
            return true;
        }
        texts += n + (texts[n] == '|');
    }
    return false;
}

/* Finds the first number of kv that is not neutral; NAN if its elements are not numbers. */
static bool find_not_neutral(const key_row *row, const moe_gguf_kv *kv, float other, float *value)
{
    for (uint64_t i = 0; i < kv->n_elements; i++) {
        if (moe_gguf_array_f32(kv, i, value) != MOE_OK) {
            *value = NAN;
            return true;
        }
        if (*value != other &&
            (row->same_as != NULL || (*value != row->neutral && *value != row->also_neutral))) {
            return true;
        }
    }
    return false;
}

/* The number in another key of the architecture; NAN if there is none. */
static float number_of(const moe_family *family, const moe_gguf *gguf, const char *suffix)
{
    char key[96];
    float value = NAN;
    if (suffix != NULL) {
        snprintf(key, sizeof key, "%s.%s", family->architecture, suffix);
        const moe_gguf_kv *kv = moe_gguf_find(gguf, key);
        if (kv == NULL || moe_gguf_array_f32(kv, 0, &value) != MOE_OK) {
            return NAN;
        }
    }
    return value;
}

static bool is_neutral(const key_row *row, const moe_family *family, const moe_gguf *gguf,
                       const moe_gguf_kv *kv, float *value)
{
    *value = NAN;
    if (kv->type == MOE_GGUF_STRING) {
        return is_one_of(kv->value.string, row->texts);
    }
    return !find_not_neutral(row, kv, number_of(family, gguf, row->same_as), value);
}

/* The part of the key behind the architecture's name and a dot; NULL if it does not begin so. */
static const char *suffix_of(const moe_family *family, const moe_gguf_kv *kv, size_t *size)
{
    size_t n = strlen(family->architecture);
    if (kv->key.size <= n || memcmp(kv->key.data, family->architecture, n) != 0 ||
        kv->key.data[n] != '.') {
        return NULL;
    }
    *size = kv->key.size - n - 1;
    return kv->key.data + n + 1;
}

bool moe_metadata_key_can_be_refused(const moe_family *family, const moe_gguf_kv *kv)
{
    size_t size = 0;
    const char *suffix = suffix_of(family, kv, &size);
    const key_row *row = suffix != NULL ? find_row(suffix, size) : NULL;
    return row != NULL && row->otherwise == KEY_NEUTRAL && !is_read(row, family);
}

static moe_key_use use_of(const moe_family *family, const moe_gguf *gguf, const moe_gguf_kv *kv,
                          const char **why, float *value)
{
    size_t size = 0;
    const char *suffix = suffix_of(family, kv, &size);
    *why = "";
    if (suffix == NULL) {
        return MOE_KEY_USE_NOT_OURS;
    }
    const key_row *row = find_row(suffix, size);
    if (row == NULL) {
        return MOE_KEY_USE_UNKNOWN;
    }
    *why = row->why;
    if (is_read(row, family)) {
        return MOE_KEY_USE_READ;
    }
    bool harmless = row->otherwise == KEY_HARMLESS || is_neutral(row, family, gguf, kv, value);
    return harmless ? MOE_KEY_USE_HARMLESS : MOE_KEY_USE_REFUSED;
}

moe_key_use moe_metadata_key_use(const moe_family *family, const moe_gguf *gguf,
                                 const moe_gguf_kv *kv, const char **why)
{
    const char *reason;
    float value;
    moe_key_use use = use_of(family, gguf, kv, &reason, &value);
    if (why != NULL) {
        *why = reason;
    }
    return use;
}

void moe_metadata_refuse_keys(moe_config_reader *r)
{
    for (size_t i = 0; r->status == MOE_OK && i < moe_gguf_n_kvs(r->gguf); i++) {
        const moe_gguf_kv *kv = moe_gguf_kv_at(r->gguf, i);
        const char *why;
        float value;
        if (use_of(r->family, r->gguf, kv, &why, &value) != MOE_KEY_USE_REFUSED) {
            continue;
        }
        char key[MOE_GGUF_SHOWN];
        char shown[MOE_GGUF_SHOWN + 16];
        char text[MOE_GGUF_SHOWN];
        if (kv->type == MOE_GGUF_STRING) {
            snprintf(shown, sizeof shown, "is '%s'", moe_gguf_show(kv->value.string, text));
        } else if (kv->type == MOE_GGUF_ARRAY) {
            snprintf(shown, sizeof shown, "is an array that has %g", (double)value);
        } else {
            snprintf(shown, sizeof shown, "is %g", (double)value);
        }
        r->status =
            moe_fail(r->err, MOE_ERR_UNSUPPORTED, "key '%s' %s: not supported for %s models (%s)",
                     moe_gguf_show(kv->key, key), shown, r->family->name, why);
    }
}
