/* SPDX-License-Identifier: MIT */
/* XXH3 over what tells two models apart without reading their weights: every metadata entry, every
 * row of the tensor table, and the sizes of the files. */
#include <xxhash.h>

#include "runtime/base/error.h"
#include "runtime/engine/engine_internal.h"

static uint64_t mix(uint64_t hash, const void *data, size_t size)
{
    return XXH3_64bits_withSeed(data, size, hash);
}

static uint64_t mix_text(uint64_t hash, moe_string_view text)
{
    return mix(hash, text.data, text.size);
}

static uint64_t mix_number(uint64_t hash, uint64_t number)
{
    return mix(hash, &number, sizeof number);
}

static size_t element_bytes(moe_gguf_type type)
{
    switch (type) {
    case MOE_GGUF_U8:
    case MOE_GGUF_I8:
    case MOE_GGUF_BOOL:
        return 1;
    case MOE_GGUF_U16:
    case MOE_GGUF_I16:
        return 2;
    case MOE_GGUF_U32:
    case MOE_GGUF_I32:
    case MOE_GGUF_F32:
        return 4;
    default:
        return 8;
    }
}

static uint64_t mix_kv(uint64_t hash, const moe_gguf_kv *kv)
{
    hash = mix_number(mix_text(hash, kv->key), kv->type);
    if (kv->type == MOE_GGUF_STRING) {
        return mix_text(hash, kv->value.string);
    }
    if (kv->type != MOE_GGUF_ARRAY) {
        return mix_number(hash, kv->value.u64);
    }
    if (kv->element_type != MOE_GGUF_STRING) {
        return mix(hash, kv->value.raw, kv->n_elements * element_bytes(kv->element_type));
    }
    for (uint64_t i = 0; i < kv->n_elements; i++) {
        hash = mix_text(hash, kv->value.strings[i]);
    }
    return hash;
}

uint64_t moe_model_fingerprint(const moe_gguf *gguf)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < moe_gguf_n_kvs(gguf); i++) {
        hash = mix_kv(hash, moe_gguf_kv_at(gguf, i));
    }
    for (size_t i = 0; i < moe_gguf_n_tensors(gguf); i++) {
        const moe_gguf_tensor *tensor = moe_gguf_tensor_at(gguf, i);
        hash = mix_number(mix_text(hash, tensor->name), tensor->type);
        hash = mix(hash, tensor->dims, sizeof tensor->dims);
        hash = mix_number(hash, tensor->offset);
    }
    for (size_t i = 0; i < moe_gguf_n_files(gguf); i++) {
        hash = mix_number(hash, moe_gguf_file_at(gguf, i)->size);
    }
    return hash;
}
