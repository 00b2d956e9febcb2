/* SPDX-License-Identifier: MIT */
#include "runtime/sidecar/calibration_tables.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

static uint64_t element_bytes(uint32_t type)
{
    return type == MOE_GGUF_TYPE_I64 ? 8 : type == MOE_GGUF_TYPE_I16 ? 2 : 4;
}

void moe_calibration_list_tables(moe_calibration *c, moe_calibration_table *tables)
{
    uint64_t n = c->shape.n_expert;
    uint64_t l = c->shape.n_layer;
    uint64_t e = c->shape.n_embd;
    uint64_t p = MOE_PERCENTILES;
    const moe_calibration_table list[MOE_CALIBRATION_TABLES_CHECKED + 1] = {
        {"counts", MOE_GGUF_TYPE_I64, 2, {n, l, 1}, (void **)&c->counts, 0},
        {"coactivation", MOE_GGUF_TYPE_F32, 3, {n, n, l}, (void **)&c->coactivation, 0},
        {"coactivation.weighted",
         MOE_GGUF_TYPE_F32,
         3,
         {n, n, l},
         (void **)&c->coactivation_weighted,
         0},
        {"tae.percentiles", MOE_GGUF_TYPE_F32, 2, {p, l, 1}, (void **)&c->tae, 0},
        {"margin.percentiles", MOE_GGUF_TYPE_F32, 2, {p, l, 1}, (void **)&c->margin, 0},
        {"affinity.output", MOE_GGUF_TYPE_I16, 3, {n, n, l}, (void **)&c->affinity[0], 0},
        {"affinity.weight", MOE_GGUF_TYPE_I16, 3, {n, n, l}, (void **)&c->affinity[1], 0},
        {"affinity.coact", MOE_GGUF_TYPE_I16, 3, {n, n, l}, (void **)&c->affinity[2], 0},
        {"affinity.router", MOE_GGUF_TYPE_I16, 3, {n, n, l}, (void **)&c->affinity[3], 0},
        {"checksums", MOE_GGUF_TYPE_I64, 3, {MOE_EXPERT_PARTS, n, l}, (void **)&c->checksums, 0},
        {"gram", MOE_GGUF_TYPE_F32, 3, {e, e, l}, (void **)&c->gram, 0},
    };
    memcpy(tables, list, sizeof list);
    for (uint32_t i = 0; i <= MOE_CALIBRATION_TABLES_CHECKED; i++) {
        moe_calibration_table *t = &tables[i];
        t->bytes = t->dims[0] * t->dims[1] * t->dims[2] * element_bytes(t->type);
    }
}

static uint32_t n_tables_of(moe_calibration_extent extent)
{
    return extent == MOE_CALIBRATION_HOTNESS  ? 1
           : extent == MOE_CALIBRATION_TABLES ? MOE_CALIBRATION_TABLES_CHECKED
                                              : MOE_CALIBRATION_TABLES_CHECKED + 1;
}

bool moe_calibration_has_tables(const moe_calibration *calibration)
{
    return calibration->checksums != NULL;
}

int moe_calibration_create(moe_calibration **out, const moe_calibration_shape *shape,
                           const char *text_name, moe_calibration_extent extent, moe_error *err)
{
    *out = NULL;
    moe_calibration *c = moe_calloc(1, sizeof *c);
    bool complete = c != NULL;
    if (complete) {
        moe_calibration_table tables[MOE_CALIBRATION_TABLES_CHECKED + 1];
        c->shape = *shape;
        c->text_name = moe_strdup(text_name);
        complete = c->text_name != NULL;
        moe_calibration_list_tables(c, tables);
        for (uint32_t i = 0; i < n_tables_of(extent); i++) {
            *tables[i].memory = moe_calloc(tables[i].bytes, 1);
            complete &= *tables[i].memory != NULL;
        }
    }
    if (!complete) {
        moe_calibration_free(&c);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for calibration tables");
    }
    *out = c;
    return MOE_OK;
}

void moe_calibration_free(moe_calibration **calibration)
{
    moe_calibration *c = *calibration;
    if (c != NULL) {
        moe_calibration_table tables[MOE_CALIBRATION_TABLES_CHECKED + 1];
        moe_calibration_list_tables(c, tables);
        for (uint32_t i = 0; i <= MOE_CALIBRATION_TABLES_CHECKED; i++) {
            free(*tables[i].memory);
        }
        free(c->tensor_checksums);
        free(c->drafts);
        free(c->text_name);
        free(c);
    }
    *calibration = NULL;
}

moe_calibration_table moe_calibration_drafts_table(moe_calibration *c)
{
    return (moe_calibration_table){"drafts",
                                   MOE_GGUF_TYPE_F32,
                                   2,
                                   {MOE_HABIT_FLOATS, MOE_HABIT_DRAFTERS, 1},
                                   (void **)&c->drafts,
                                   sizeof *c->drafts};
}

uint64_t moe_calibration_mix_table(uint64_t hash, const moe_calibration_table *t)
{
    return XXH3_64bits_withSeed(*t->memory, t->bytes, hash);
}

int moe_calibration_make_tensors(moe_calibration *c, uint32_t n_tensors, moe_error *err)
{
    c->tensor_checksums = moe_calloc(n_tensors, sizeof *c->tensor_checksums);
    c->n_tensors = n_tensors;
    return c->tensor_checksums != NULL
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "no memory for checksums of %u tensors", n_tensors);
}

uint64_t moe_calibration_mix_integrity(const moe_calibration *c)
{
    const uint64_t numbers[] = {c->header, c->n_samples, c->n_tensors};
    uint64_t hash = XXH3_64bits_withSeed(numbers, sizeof numbers, c->shape.fingerprint);
    hash = XXH3_64bits_withSeed(c->samples, c->n_samples * sizeof *c->samples, hash);
    return XXH3_64bits_withSeed(c->tensor_checksums, c->n_tensors * sizeof *c->tensor_checksums,
                                hash);
}
