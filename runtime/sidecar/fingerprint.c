/* SPDX-License-Identifier: MIT */
/* Distinguishes models without reading all of their weights. The fingerprint is XXH3 over every
 * metadata entry, every row of the tensor table, the sizes of the files, and a sample of the
 * weights, because two trainings of one shape have everything else in common.
 *
 * The sample is the first and the last 4 KiB of 32 tensors: 256 KiB at most, however large the
 * model. The tensors are those at the multiples of the golden ratio, modulo 1, of the tensor table.
 * Such points are spread evenly for any number of tensors. Unlike every n-th, they cannot keep step
 * with the layers and meet the same kind of tensor each time. A copy that differs only in other
 * tensors has the same fingerprint: it guards against mistakes, not against forgery. */
#include "runtime/sidecar/fingerprint.h"

#include <xxhash.h>

#include "runtime/base/error.h"

/* The version of the fingerprint's definition. Changing it gives every model a new fingerprint.
 * Version 1 did not cover weights. */
#define FINGERPRINT_VERSION 2u
#define N_SAMPLED_TENSORS   MOE_IDENTITY_SAMPLES
#define SAMPLE_BYTES        MOE_IDENTITY_BYTES
#define GOLDEN_RATIO        2654435769u /* (sqrt(5) - 1) / 2, times 2^32 */

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

/* Lists the first and last bytes of the sampled tensors. Returns how many ranges. */
static uint32_t list_samples(const moe_gguf *gguf, moe_model_range *ranges, uint32_t *tensors)
{
    uint64_t n_tensors = moe_gguf_n_tensors(gguf);
    uint32_t n = n_tensors < N_SAMPLED_TENSORS ? (uint32_t)n_tensors : N_SAMPLED_TENSORS;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t at = n < N_SAMPLED_TENSORS ? i : (uint64_t)(i * GOLDEN_RATIO) * n_tensors >> 32;
        const moe_gguf_tensor *tensor = moe_gguf_tensor_at(gguf, at);
        tensors[i] = (uint32_t)at;
        uint64_t size = tensor->size < SAMPLE_BYTES ? tensor->size : SAMPLE_BYTES;
        uint64_t last = tensor->offset + tensor->size - size;
        ranges[2 * i] = (moe_model_range){tensor->file_index, tensor->offset, size};
        ranges[2 * i + 1] = (moe_model_range){tensor->file_index, last, size};
    }
    return 2 * n;
}

static int mix_weights(moe_model_identity *identity, const moe_model_reader_options *reading,
                       moe_error *err)
{
    moe_model_range ranges[2 * N_SAMPLED_TENSORS];
    uint8_t bytes[SAMPLE_BYTES];
    uint32_t n = list_samples(reading->gguf, ranges, identity->tensors);
    identity->n_samples = n / 2;
    moe_model_reader_options options = *reading;
    moe_model_reader *reader;
    options.buffered = true; /* small reads, spread over the files */
    int status = moe_model_reader_open(&reader, &options, err);
    if (status == MOE_OK) {
        status = moe_model_reader_begin(reader, ranges, n, err);
    }
    for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
        status = moe_model_reader_take(reader, bytes, ranges[i].size, err);
        if (status == MOE_OK) {
            uint64_t *sample = &identity->samples[i / 2];
            identity->fingerprint = mix(identity->fingerprint, bytes, ranges[i].size);
            *sample = mix(i % 2 == 0 ? 0 : *sample, bytes, ranges[i].size);
        }
    }
    moe_model_reader_close(&reader);
    return status;
}

int moe_model_identify(const moe_model_reader_options *reading, moe_model_identity *identity,
                       moe_error *err)
{
    const moe_gguf *gguf = reading->gguf;
    uint64_t hash = FINGERPRINT_VERSION;
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
    *identity = (moe_model_identity){.fingerprint = hash, .header = hash};
    return mix_weights(identity, reading, err);
}

int moe_model_fingerprint(const moe_model_reader_options *reading, uint64_t *fingerprint,
                          moe_error *err)
{
    moe_model_identity identity;
    int status = moe_model_identify(reading, &identity, err);
    *fingerprint = identity.fingerprint;
    return status;
}
