/* SPDX-License-Identifier: MIT */
#include "runtime/sidecar/model_parts.h"

#include <stdlib.h>
#include <xxhash.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

static int compare_parts(const void *a, const void *b)
{
    const moe_model_range *x = &((const moe_model_part *)a)->range;
    const moe_model_range *y = &((const moe_model_part *)b)->range;
    if (x->file != y->file) {
        return x->file < y->file ? -1 : 1;
    }
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static bool lies_in(const moe_gguf_tensor *tensor, const moe_tensor_ref *ref)
{
    return tensor->file_index == ref->file_index && ref->offset >= tensor->offset &&
           ref->offset - tensor->offset < tensor->size;
}

/* Returns the tensor that contains the expert's part. `guess` is the tensor of the expert before,
 * which is usually the right one. */
static uint32_t find_tensor(const moe_gguf *gguf, const moe_tensor_ref *ref, uint32_t guess)
{
    uint32_t n = (uint32_t)moe_gguf_n_tensors(gguf);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = (guess + i) % n;
        if (lies_in(moe_gguf_tensor_at(gguf, at), ref)) {
            return at;
        }
    }
    return 0;
}

static size_t n_expert_parts(const moe_tensor_map *map)
{
    size_t n = 0;
    for (uint32_t l = 0; map != NULL && l < map->n_layer; l++) {
        n += map->layers[l].experts != NULL ? (size_t)map->n_expert * MOE_EXPERT_PARTS : 0;
    }
    return n;
}

/* Marks the tensors that contain routed experts. */
static size_t add_experts(const moe_gguf *gguf, const moe_tensor_map *map, moe_model_part *parts,
                          bool *is_of_experts)
{
    size_t n = 0;
    uint32_t tensors[MOE_EXPERT_PARTS] = {0};
    for (uint32_t l = 0; map != NULL && l < map->n_layer; l++) {
        const moe_expert_ref *experts = map->layers[l].experts;
        for (uint32_t e = 0; experts != NULL && e < map->n_expert; e++) {
            for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
                const moe_tensor_ref *ref = &experts[e].parts[p];
                if (ref->size == 0) {
                    continue;
                }
                tensors[p] = find_tensor(gguf, ref, tensors[p]);
                is_of_experts[tensors[p]] = true;
                parts[n++] = (moe_model_part){.range = {ref->file_index, ref->offset, ref->size},
                                              .tensor = tensors[p],
                                              .is_expert = true,
                                              .layer = l,
                                              .expert = e,
                                              .part = (moe_expert_part)p};
            }
        }
    }
    return n;
}

int moe_model_parts_list(const moe_gguf *gguf, const moe_tensor_map *map, moe_model_part **parts,
                         size_t *n, moe_error *err)
{
    size_t n_tensors = moe_gguf_n_tensors(gguf);
    bool *is_of_experts = moe_calloc(n_tensors + 1, sizeof *is_of_experts);
    *parts = moe_calloc(n_expert_parts(map) + n_tensors + 1, sizeof **parts);
    *n = 0;
    if (is_of_experts == NULL || *parts == NULL) {
        free(is_of_experts);
        free(*parts);
        *parts = NULL;
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to list %zu tensors", n_tensors);
    }
    *n = add_experts(gguf, map, *parts, is_of_experts);
    for (uint32_t i = 0; i < n_tensors; i++) {
        const moe_gguf_tensor *t = moe_gguf_tensor_at(gguf, i);
        if (!is_of_experts[i]) {
            (*parts)[(*n)++] =
                (moe_model_part){.range = {t->file_index, t->offset, t->size}, .tensor = i};
        }
    }
    free(is_of_experts);
    qsort(*parts, *n, sizeof **parts, compare_parts);
    return MOE_OK;
}

bool moe_calibration_tells_damage(const moe_calibration *c, const moe_model_identity *identity,
                                  size_t *tensor)
{
    uint32_t n_changed = 0;
    if (c->tensor_checksums == NULL || c->header != identity->header ||
        c->n_samples != identity->n_samples) {
        return false;
    }
    for (uint32_t i = 0; i < c->n_samples; i++) {
        if (c->samples[i] != identity->samples[i]) {
            *tensor = identity->tensors[i];
            n_changed++;
        }
    }
    return n_changed > 0 && 2 * n_changed < c->n_samples;
}

static int checksum_part(moe_model_reader *reader, const moe_model_part *part, XXH3_state_t *hash,
                         uint64_t *checksum, moe_error *err)
{
    int status = MOE_OK;
    XXH3_64bits_reset(hash);
    for (uint64_t done = 0; done < part->range.size && status == MOE_OK;) {
        const uint8_t *bytes;
        size_t n;
        status = moe_model_reader_next(reader, SIZE_MAX, &bytes, &n, err);
        if (status == MOE_OK) {
            XXH3_64bits_update(hash, bytes, n);
            done += n;
        }
    }
    *checksum = XXH3_64bits_digest(hash);
    return status;
}

int moe_model_checksums(moe_model_reader *reader, const moe_gguf *gguf, const moe_tensor_map *map,
                        uint64_t *checksums, moe_error *err)
{
    moe_model_part *parts;
    size_t n_all;
    size_t n = 0;
    int status = moe_model_parts_list(gguf, map, &parts, &n_all, err);
    if (status != MOE_OK) {
        return status;
    }
    for (size_t i = 0; i < n_all; i++) {
        parts[n] = parts[i];
        n += !parts[i].is_expert;
    }
    XXH3_state_t *hash = XXH3_createState();
    moe_model_range *ranges = moe_calloc(n + 1, sizeof *ranges);
    if (hash == NULL || ranges == NULL) {
        status = moe_fail(err, MOE_ERR_MEMORY, "no memory for checksums");
    }
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        ranges[i] = parts[i].range;
    }
    if (status == MOE_OK) {
        status = moe_model_reader_begin(reader, ranges, n, err);
    }
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        status = checksum_part(reader, &parts[i], hash, &checksums[parts[i].tensor], err);
    }
    XXH3_freeState(hash);
    free(ranges);
    free(parts);
    return status;
}
