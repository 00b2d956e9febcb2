/* SPDX-License-Identifier: MIT */
#include "runtime/model/config_reader.h"

#include <inttypes.h>
#include <stdio.h>

#include "runtime/base/error.h"

const moe_gguf_kv *moe_config_find(moe_config_reader *r, const char *suffix)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->family->architecture, suffix);
    return r->status == MOE_OK ? moe_gguf_find(r->gguf, r->key) : NULL;
}

bool moe_config_has(moe_config_reader *r, const char *suffix)
{
    return moe_config_find(r, suffix) != NULL;
}

/* The value of an array that has an element for each layer, all of them equal. */
static uint32_t uniform_u32(moe_config_reader *r, const moe_gguf_kv *kv, uint32_t absent)
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

uint32_t moe_config_u32(moe_config_reader *r, const char *suffix, uint32_t absent)
{
    const moe_gguf_kv *kv = moe_config_find(r, suffix);
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

uint32_t moe_config_layer_u32(moe_config_reader *r, const char *suffix, uint32_t layer,
                              uint32_t absent)
{
    const moe_gguf_kv *kv = moe_config_find(r, suffix);
    int64_t value = absent;
    if (kv == NULL || kv->type != MOE_GGUF_ARRAY) {
        return moe_config_u32(r, suffix, absent);
    }
    if (moe_gguf_array_i64(kv, layer, &value) != MOE_OK || value < 0 || value > UINT32_MAX) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' has no number for layer %" PRIu32,
                             r->key, layer);
        return absent;
    }
    return (uint32_t)value;
}

float moe_config_layer_f32(moe_config_reader *r, const char *suffix, uint32_t layer, float absent)
{
    const moe_gguf_kv *kv = moe_config_find(r, suffix);
    float value = absent;
    if (kv == NULL || kv->type != MOE_GGUF_ARRAY) {
        return moe_config_f32(r, suffix, absent);
    }
    if (moe_gguf_array_f32(kv, layer, &value) != MOE_OK) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' has no number for layer %" PRIu32,
                             r->key, layer);
    }
    return value;
}

uint32_t moe_config_most_u32(moe_config_reader *r, const char *suffix, uint32_t absent)
{
    const moe_gguf_kv *kv = moe_config_find(r, suffix);
    if (kv == NULL || kv->type != MOE_GGUF_ARRAY) {
        return moe_config_u32(r, suffix, absent);
    }
    uint32_t most = 0;
    for (uint64_t i = 0; i < kv->n_elements && i < UINT32_MAX; i++) {
        uint32_t value = moe_config_layer_u32(r, suffix, (uint32_t)i, 0);
        most = value > most ? value : most;
    }
    return most;
}

bool moe_config_require(moe_config_reader *r, const char *suffix)
{
    if (r->status == MOE_OK && !moe_config_has(r, suffix)) {
        r->status =
            moe_fail(r->err, MOE_ERR_FORMAT, "key '%s', which every %s model has, is missing",
                     r->key, r->family->name);
    }
    return r->status == MOE_OK;
}

uint32_t moe_config_need_u32(moe_config_reader *r, const char *suffix)
{
    return moe_config_require(r, suffix) ? moe_config_u32(r, suffix, 0) : 0;
}

uint32_t moe_config_size(moe_config_reader *r, const char *suffix, uint32_t least, uint32_t most)
{
    uint32_t value = moe_config_need_u32(r, suffix);
    if (r->status == MOE_OK && (value < least || value > most)) {
        r->status =
            moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' is %" PRIu32 ", not %" PRIu32 " to %" PRIu32,
                     r->key, value, least, most);
    }
    return value;
}

float moe_config_f32(moe_config_reader *r, const char *suffix, float absent)
{
    float value = absent;
    if (moe_config_find(r, suffix) != NULL) {
        r->status = moe_gguf_get_f32(r->gguf, r->key, &value, r->err);
    }
    return value;
}

bool moe_config_bool(moe_config_reader *r, const char *suffix, bool absent)
{
    bool value = absent;
    if (moe_config_find(r, suffix) != NULL) {
        r->status = moe_gguf_get_bool(r->gguf, r->key, &value, r->err);
    }
    return value;
}
