/* SPDX-License-Identifier: MIT */
#include "runtime/engine/worker_share.h"

#include <stdlib.h>

#include "runtime/base/error.h"
#include "runtime/base/part_source.h"

/* Deals each layer's experts out to the parts in turn, beginning at another part in each layer, so
 * that the parts have about the same size. */
static bool is_in_share(const moe_worker_options *o, uint32_t layer, uint32_t expert)
{
    return o->n_shares == 0 || (layer + expert) % o->n_shares == o->share - 1;
}

static int check_share(const moe_worker_options *o, uint32_t n_expert, moe_error *err)
{
    bool whole = o->share == 0 && o->n_shares == 0;
    if (o->experts != NULL && !whole) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.share has no effect beside options.experts: leave one out");
    }
    if (!whole && (o->share == 0 || o->share > o->n_shares || o->n_shares > n_expert)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.share is %u of %u: it counts from 1, and there are at most %u "
                        "parts, as many as a layer has experts",
                        o->share, o->n_shares, n_expert);
    }
    return MOE_OK;
}

/* Reads "A" or "A-B", with B < n. */
static bool read_range(const char **at, uint32_t n, uint32_t range[2])
{
    char *end;
    for (int i = 0; i < 2; i++) {
        if (**at < '0' || **at > '9') {
            return false;
        }
        const unsigned long number = strtoul(*at, &end, 10);
        if (number >= n) {
            return false;
        }
        *at = end;
        range[i] = range[1] = (uint32_t)number;
        if (i == 0 && **at != '-') {
            return true;
        }
        *at += i == 0;
    }
    return range[0] <= range[1];
}

/* Reads one item of the list: "[LAYERS:]EXPERTS". */
static bool read_item(const char **at, uint32_t n_layer, uint32_t n_expert, uint8_t *bits)
{
    const char *begin = *at;
    uint32_t layers[2] = {0, n_layer - 1}, experts[2];
    if (read_range(at, n_layer, layers) && **at == ':') {
        ++*at;
    } else {
        *at = begin;
        layers[0] = 0;
        layers[1] = n_layer - 1;
    }
    if (!read_range(at, n_expert, experts) || (**at != ',' && **at != '\0')) {
        return false;
    }
    for (uint32_t l = layers[0]; l <= layers[1]; l++) {
        for (uint32_t e = experts[0]; e <= experts[1]; e++) {
            const size_t bit = (size_t)l * n_expert + e;
            bits[bit / 8] |= (uint8_t)(1u << bit % 8);
        }
    }
    return true;
}

static int read_list(const char *list, uint32_t n_layer, uint32_t n_expert, uint8_t *bits,
                     moe_error *err)
{
    const char *at = list;
    do {
        const char *item = at;
        if (!read_item(&at, n_layer, n_expert, bits)) {
            return moe_fail(err, MOE_ERR_ARGUMENT,
                            "options.experts: '%.40s' is no list such as 0-31,64 or 3-5:0-7 (of "
                            "layers 3 to 5); the model has layers 0 to %u and experts 0 to %u",
                            item, n_layer - 1, n_expert - 1);
        }
    } while (*at++ == ',');
    return MOE_OK;
}

/* Whether the file has all parts of the expert. */
static bool file_has(const moe_engine *engine, const moe_expert_ref *expert)
{
    bool has = true;
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        const moe_tensor_ref *ref = &expert->parts[p];
        has = has && moe_part_source_has(moe_gguf_file_at(engine->gguf, ref->file_index)->source,
                                         ref->offset, ref->size);
    }
    return has;
}

int moe_worker_experts(const moe_engine *engine, const moe_worker_options *options, uint8_t *bits,
                       moe_error *err)
{
    const uint32_t n_layer = engine->config.n_layer, n_expert = engine->config.n_expert;
    MOE_TRY(check_share(options, n_expert, err));
    if (options->experts != NULL) {
        MOE_TRY(read_list(options->experts, n_layer, n_expert, bits, err));
    }
    for (uint32_t l = 0; l < n_layer; l++) {
        const moe_expert_ref *experts = engine->map.layers[l].experts;
        for (uint32_t e = 0; e < n_expert; e++) {
            const size_t bit = (size_t)l * n_expert + e;
            const uint8_t mask = (uint8_t)(1u << bit % 8);
            const bool named =
                options->experts != NULL ? (bits[bit / 8] & mask) != 0 : is_in_share(options, l, e);
            bits[bit / 8] &= (uint8_t)~mask;
            if (named && experts != NULL && file_has(engine, &experts[e])) {
                bits[bit / 8] |= mask;
            }
        }
    }
    return MOE_OK;
}
