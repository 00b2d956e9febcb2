/* SPDX-License-Identifier: MIT */
/* Determines the kind of each layer, from the config's dials and the keys about windows. */
#include "runtime/model/config_reader.h"

#include <inttypes.h>

#include "runtime/base/error.h"

static moe_feed_forward_kind feed_forward_of(const moe_model_config *config, uint32_t layer)
{
    bool routed = config->n_expert > 0 && layer >= config->n_dense_lead &&
                  (layer + 1) % config->moe_every == 0;
    return !routed                   ? MOE_FEED_FORWARD_DENSE
           : config->n_ff_shared > 0 ? MOE_FEED_FORWARD_BOTH
                                     : MOE_FEED_FORWARD_ROUTED;
}

/* Whether the layer has the window. Either a list has an entry for each layer, or a period tells:
 * the last layer of a period sees everything. With a period of 0 or 1 all layers have the window.
 */
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
    return value <= 1 || layer % value < value - 1;
}

void moe_config_read_layers(moe_config_reader *r, moe_model_config *config)
{
    bool latent = config->attention == MOE_ATTENTION_MLA;
    for (uint32_t l = 0; l < config->n_layer && r->status == MOE_OK; l++) {
        moe_layer_kind *layer = &config->layers[l];
        layer->mixer = latent ? MOE_MIXER_LATENT : MOE_MIXER_ATTENTION;
        layer->feed_forward = feed_forward_of(config, l);
        bool windows = config->attention_window > 0;
        bool inside = windows && has_window(r, l);
        bool chunks = r->family->window_chunks;
        layer->window = inside && !chunks ? config->attention_window : 0;
        layer->chunk = inside && chunks ? config->attention_window : 0;
        layer->no_rope = windows && r->family->rope_in_windows && !inside;
        layer->tempered = config->temperature_scale != 0 && (!chunks || layer->no_rope);
    }
}
