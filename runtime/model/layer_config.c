/* SPDX-License-Identifier: MIT */
/* Determines the kind of each layer, from the config's dials and the keys about windows. */
#include "runtime/model/config_reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "runtime/base/error.h"

static moe_feed_forward_kind feed_forward_of(moe_config_reader *r, const moe_model_config *config,
                                             uint32_t layer)
{
    if (r->family->single_parts && moe_config_layer_u32(r, "feed_forward_length", layer, 0) == 0) {
        return MOE_FEED_FORWARD_NONE;
    }
    char router[48];
    snprintf(router, sizeof router, "blk.%" PRIu32 ".ffn_gate_inp.weight", layer);
    bool routed = r->family->experts_by_tensors
                      ? moe_gguf_find_tensor(r->gguf, router) != NULL
                      : layer >= config->n_dense_lead && (layer + 1) % config->moe_every == 0;
    return !routed                   ? MOE_FEED_FORWARD_DENSE
           : config->n_ff_shared > 0 ? MOE_FEED_FORWARD_BOTH
                                     : MOE_FEED_FORWARD_ROUTED;
}

/* Whether the layer has the window. Either a list has an entry for each layer, or a period decides:
 * the last layer of a period sees all positions. With a period of 0 or 1 all layers have the
 * window. */
static bool has_window(moe_config_reader *r, uint32_t layer)
{
    const moe_gguf_kv *pattern = moe_config_find(r, "attention.sliding_window_pattern");
    int64_t value = r->family->window_period;
    uint64_t at = pattern != NULL && pattern->type == MOE_GGUF_ARRAY ? layer : 0;
    if (pattern != NULL && moe_gguf_array_i64(pattern, at, &value) != MOE_OK) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT,
                             "key '%s' has no number for layer %" PRIu32
                             ": it is a period, or a list with 0 or 1 for each layer",
                             r->key, layer);
        return false;
    }
    if (pattern != NULL && pattern->type == MOE_GGUF_ARRAY) {
        return value != 0;
    }
    if (value <= 1) {
        return true;
    }
    return r->family->window_last ? layer % value > 0 : layer % value < value - 1;
}

/* Reads a layer's number of key heads from a list, in which 0 stands for a layer with a state. */
static void read_listed_heads(moe_config_reader *r, uint32_t l, moe_heads *heads)
{
    uint32_t n_kv = moe_config_layer_u32(r, "attention.head_count_kv", l, heads->n_kv);
    if (r->status == MOE_OK && n_kv != 0 && heads->n % n_kv != 0) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT,
                             "key '%s' is %" PRIu32 " in layer %" PRIu32
                             ", which does not divide the %" PRIu32 " heads",
                             r->key, n_kv, l, heads->n);
    }
    heads->n_kv = n_kv != 0 ? n_kv : heads->n_kv;
}

/* Layers with a window may have a latent and heads of other sizes. */
static void read_latent(moe_config_reader *r, const moe_model_config *config, uint32_t l,
                        bool inside, moe_layer_kind *layer)
{
    moe_latent *latent = &layer->latent;
    *latent = (moe_latent){config->kv_lora_rank, config->qk_nope_dim, config->v_head_dim,
                           config->attention_scale};
    if ((r->family->keys & MOE_KEY_WINDOW_HEADS) == 0) {
        return;
    }
    const uint32_t n_rot = config->n_rot, most = MOE_CONFIG_MAX_DIMENSION;
    layer->heads.n = moe_config_layer_u32(r, "attention.head_count", l, config->n_head);
    if (inside) {
        latent->rank = moe_config_size(r, "attention.kv_lora_rank_swa", 1, most - n_rot);
        const uint32_t key = moe_config_size(r, "attention.key_length_mla_swa", n_rot + 1, most);
        latent->v_dim = moe_config_size(r, "attention.value_length_mla_swa", 1, most);
        latent->nope = key - n_rot;
        latent->scale = 1.0f / sqrtf((float)key);
        layer->heads.k_dim = latent->rank + n_rot;
        layer->heads.v_dim = latent->rank;
    }
    const uint64_t n = layer->heads.n;
    const bool fits = n > 0 && n <= config->n_head && n * layer->heads.k_dim <= most &&
                      n * (latent->nope + n_rot) <= most && n * latent->v_dim <= most;
    if (r->status == MOE_OK && !fits) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT,
                             "layer %" PRIu32 " has %" PRIu32 " heads of %" PRIu32 " and %" PRIu32
                             " elements on a latent of %" PRIu32
                             " (keys '%s.attention.head_count', 'key_length_mla_swa', "
                             "'value_length_mla_swa', 'kv_lora_rank_swa')",
                             l, layer->heads.n, latent->nope + n_rot, latent->v_dim, latent->rank,
                             r->family->architecture);
    }
}

static void read_heads(moe_config_reader *r, const moe_model_config *config, uint32_t l,
                       bool inside, moe_heads *heads)
{
    *heads = (moe_heads){config->n_head, config->n_head_kv, config->head_dim_k, config->head_dim_v};
    if (moe_family_lists_states(r->family) && config->attention == MOE_ATTENTION_GQA) {
        read_listed_heads(r, l, heads);
    }
    if ((r->family->keys & MOE_KEY_WINDOW_HEADS) == 0 || config->attention == MOE_ATTENTION_MLA) {
        return;
    }
    uint32_t k = moe_config_u32(r, "attention.key_length", heads->k_dim);
    uint32_t v = moe_config_u32(r, "attention.value_length", heads->v_dim);
    heads->n = moe_config_layer_u32(r, "attention.head_count", l, heads->n);
    heads->n_kv = moe_config_layer_u32(r, "attention.head_count_kv", l, heads->n);
    heads->k_dim = inside ? moe_config_u32(r, "attention.key_length_swa", k) : k;
    heads->v_dim = inside ? moe_config_u32(r, "attention.value_length_swa", v) : v;
    uint32_t n_rot = inside ? config->window_n_rot : config->n_rot;
    bool fits = heads->n > 0 && heads->n_kv > 0 && heads->n % heads->n_kv == 0 &&
                heads->k_dim > 0 && heads->v_dim > 0 && n_rot > 0 && n_rot % 2 == 0 &&
                n_rot <= heads->k_dim;
    if (r->status == MOE_OK && !fits) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT,
                             "layer %" PRIu32 " has %" PRIu32 " heads of %" PRIu32 " and %" PRIu32
                             " elements, %" PRIu32 " of keys, of which %" PRIu32
                             " turn (keys '%s.attention.head_count', 'head_count_kv', "
                             "'key_length', 'rope.dimension_count' and their '_swa')",
                             l, heads->n, heads->k_dim, heads->v_dim, heads->n_kv, n_rot,
                             r->family->architecture);
    }
}

/* Reads a limit of activations inside a feed-forward network; limits are small numbers or
 * absent. */
static float read_limit(moe_config_reader *r, const char *suffix, uint32_t layer, float absent)
{
    bool reads = (r->family->keys & MOE_KEY_LIMITS) != 0;
    float limit = reads ? moe_config_layer_f32(r, suffix, layer, absent) : 0;
    if (r->status == MOE_OK && !(limit >= 0 && isfinite(limit))) {
        r->status =
            moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' is %g in layer %" PRIu32 ", not a limit",
                     r->key, (double)limit, layer);
    }
    return limit;
}

/* Whether the layer has a state instead of keys and values. A list says so, or a period, whose last
 * layer has attention; in other families layers without key heads have a state. */
static bool is_recurrent(moe_config_reader *r, uint32_t layer, uint32_t interval)
{
    if (moe_family_lists_states(r->family)) {
        return moe_config_layer_u32(r, "attention.head_count_kv", layer, 1) == 0;
    }
    if (r->family->recurrence == MOE_RECURRENCE_NONE) {
        return false;
    }
    const moe_gguf_kv *list = moe_config_find(r, "attention.recurrent_layers");
    int64_t value = 0;
    if (list == NULL || list->type != MOE_GGUF_ARRAY) {
        return (layer + 1) % interval != 0;
    }
    if (moe_gguf_array_i64(list, layer, &value) != MOE_OK) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT,
                             "key '%s' has no number for layer %" PRIu32
                             ": it is a list with 0 or 1 for each layer",
                             r->key, layer);
    }
    return value != 0;
}

/* Adds what a position of a layer with compressed keys stores behind its own key: the numbers and
 * gates of each series, for the layer and for its indexer. */
static void read_compression(moe_config_reader *r, const moe_model_config *config, uint32_t l,
                             moe_layer_kind *layer)
{
    static const uint32_t rates[] = {0, MOE_INDEXED_RATE, 128};
    const uint32_t rate = moe_config_layer_u32(r, "attention.compress_ratios", l, UINT32_MAX);
    bool known = false;
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        known = known || rate == rates[i];
    }
    if (r->status == MOE_OK && !known) {
        r->status =
            moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                     "key '%s.attention.compress_ratios' is %" PRIi64 " in layer %" PRIu32
                     ": supported are 0, 4 and 128",
                     config->architecture, rate == UINT32_MAX ? INT64_C(-1) : (int64_t)rate, l);
    }
    if (r->status != MOE_OK) {
        return;
    }
    const uint32_t series = moe_key_series(rate), block = series * rate;
    layer->rate = rate;
    layer->window = block > config->attention_window ? block : config->attention_window;
    layer->window_rope = rate == 0;
    layer->by_table = l < config->n_table_lead;
    layer->indexer = rate == MOE_INDEXED_RATE ? MOE_INDEXER_OWN : MOE_INDEXER_NONE;
    layer->heads.k_dim += rate > 0 ? 2 * series * config->head_dim_k : 0;
    layer->heads.k_dim += rate == MOE_INDEXED_RATE ? 2 * series * config->index_dim : 0;
}

void moe_config_read_layers(moe_config_reader *r, moe_model_config *config)
{
    bool no_rope = r->family->no_rope || (r->family->rope_if_finetuned &&
                                          !moe_config_bool(r, "rope.scaling.finetuned", true));
    bool latent = config->attention == MOE_ATTENTION_MLA;
    bool shared = config->attention == MOE_ATTENTION_SHARED;
    bool delta = r->family->recurrence == MOE_RECURRENCE_DELTA;
    bool indexed = false; /* an earlier layer has an indexer */
    uint32_t interval = delta ? moe_config_u32(r, "full_attention_interval", 4) : 0;
    if (r->status == MOE_OK && delta && interval == 0) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' is 0", r->key);
    }
    for (uint32_t l = 0; l < config->n_layer && r->status == MOE_OK; l++) {
        moe_layer_kind *layer = &config->layers[l];
        bool recurrent = is_recurrent(r, l, interval);
        layer->feed_forward = feed_forward_of(r, config, l);
        bool alone = r->family->single_parts && layer->feed_forward != MOE_FEED_FORWARD_NONE;
        layer->mixer = alone       ? MOE_MIXER_NONE
                       : recurrent ? MOE_MIXER_RECURRENT
                       : latent    ? MOE_MIXER_LATENT
                       : shared    ? MOE_MIXER_SHARED
                                   : MOE_MIXER_ATTENTION;
        bool windows = config->attention_window > 0;
        bool inside = windows && has_window(r, l);
        bool chunks = r->family->window_chunks;
        layer->window = inside && !chunks ? config->attention_window : 0;
        layer->chunk = inside && chunks ? config->attention_window : 0;
        bool leads = r->family->rope_in_dense_lead && l < config->n_dense_lead;
        bool listed = (r->family->keys & MOE_KEY_ROPE_LIST) != 0 &&
                      moe_config_layer_u32(r, "attention.rope_pattern", l, 1) == 0;
        layer->no_rope =
            no_rope || listed || (windows && r->family->rope_in_windows && !inside && !leads);
        layer->window_rope = config->window_rope && inside;
        layer->expert_limit = read_limit(r, "swiglu_clamp_exp", l, r->family->expert_limit);
        layer->shared_limit =
            read_limit(r, "swiglu_clamp_shexp", l, r->family->one_limit ? layer->expert_limit : 0);
        read_heads(r, config, l, inside, &layer->heads);
        if (layer->mixer == MOE_MIXER_LATENT) {
            read_latent(r, config, l, inside, layer);
        }
        if (config->index_top_k > 0 && layer->mixer == MOE_MIXER_LATENT && layer->window == 0) {
            bool own = !indexed || moe_config_has_indexer(r, config, l);
            layer->indexer = own ? MOE_INDEXER_OWN : MOE_INDEXER_BEFORE;
            layer->heads.k_dim += own ? moe_index_floats(config) : 0;
            indexed = true;
        }
        if (layer->mixer == MOE_MIXER_ATTENTION &&
            (config->index_means ||
             (config->index_block > 0 && layer->feed_forward != MOE_FEED_FORWARD_DENSE))) {
            layer->indexer = MOE_INDEXER_OWN;
            layer->side_dim = config->index_dim;
        }
        layer->keeps_tokens = config->ngrams.ngram_size > 0 && l == config->ngrams.layer;
        if (shared) {
            read_compression(r, config, l, layer);
        }
        layer->scales_queries = config->temperature_scale != 0 && (!chunks || layer->no_rope);
    }
}

/* Whether the drafting layer reads and writes several streams, as the model's layers do. */
static bool drafts_by_streams(const moe_model_config *config, const moe_gguf *gguf)
{
    char name[48];
    const char *part = config->stream_rank > 0 ? "norm" : "fn";
    snprintf(name, sizeof name, "blk.%" PRIu32 ".hc_attn_%s.weight", config->n_layer, part);
    return moe_gguf_find_tensor(gguf, name) != NULL;
}

/* What a drafting layer does without: an indexer, so that it attends to all positions (which can
 * change drafts, not the text), compressed keys, so that it has the window alone, and a table. */
static void leave_out(moe_model_config *config, moe_layer_kind *kind)
{
    if (kind->mixer == MOE_MIXER_SHARED) {
        *kind = (moe_layer_kind){.mixer = kind->mixer,
                                 .heads = kind->heads,
                                 .window = config->attention_window,
                                 .window_rope = true,
                                 .expert_limit = kind->expert_limit,
                                 .shared_limit = kind->shared_limit};
        kind->heads.k_dim = config->head_dim_k;
    } else if (kind->side_dim == 0 && kind->indexer == MOE_INDEXER_OWN) {
        kind->heads.k_dim -= moe_index_floats(config);
    }
    kind->side_dim = 0;
    kind->indexer = MOE_INDEXER_NONE;
    kind->keeps_tokens = false;
    config->ngrams = (moe_ngram_table){0};
}

/* The drafting layer has the kind of the model's last layer with attention, but the file says
 * whether its network is dense, and whether it has the model's streams. Without them it goes on
 * from what the model's head reads. */
int moe_model_config_draft(moe_model_config *config, const moe_gguf *gguf, moe_error *err)
{
    char name[48];
    const uint32_t index = config->n_layer;
    uint32_t last = index;
    while (last > 0 && !moe_mixer_has_heads(config->layers[last - 1].mixer)) {
        last--;
    }
    bool single = last > 0 && config->layers[last - 1].feed_forward == MOE_FEED_FORWARD_NONE;
    bool recalls = config->stream_block > 0;
    bool windows = config->attention_window > 0 && config->attention != MOE_ATTENTION_SHARED;
    if (last == 0 || single || recalls || windows) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "drafting layers of %s models are not run: %s; draft in another way",
                        config->family->name,
                        last == 0 ? "the model has no layer with attention"
                        : single  ? "their norms are other ones than the model's"
                        : recalls ? "which streams of earlier layers they read is in no key"
                                  : "which window they have is in no key");
    }
    moe_layer_kind kind = config->layers[last - 1];
    leave_out(config, &kind);
    if (config->n_streams > 1 && !drafts_by_streams(config, gguf)) {
        config->n_streams = 1;
        config->stream_rank = config->stream_mixings = 0;
    }
    snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_gate_inp.weight", index);
    bool routed = config->n_expert > 0 && moe_gguf_find_tensor(gguf, name) != NULL;
    snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_gate.weight", index);
    const moe_gguf_tensor *gate = moe_gguf_find_tensor(gguf, name);
    kind.feed_forward = !routed                   ? MOE_FEED_FORWARD_DENSE
                        : config->n_ff_shared > 0 ? MOE_FEED_FORWARD_BOTH
                                                  : MOE_FEED_FORWARD_ROUTED;
    if (!routed && gate != NULL && gate->dims[1] > 0 && gate->dims[1] <= UINT32_MAX / 2) {
        config->n_ff_dense = (uint32_t)gate->dims[1];
    }
    config->layers[0] = kind;
    config->n_layer = 1;
    config->tied_output = false;
    return MOE_OK;
}
