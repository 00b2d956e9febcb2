/* SPDX-License-Identifier: MIT */
/* What speculation does to the misses of experts. Two directories of keys (no bytes) of the
 * engine's size: one is asked for all that passes use, the other for what plain decoding of the
 * rows that stood would have asked for, a token at a time. Their difference is what drafts that
 * were refused brought in, what that evicted, and what later passes then miss; comparing a
 * speculating pass with a plain one of another moment tells nothing of this, as misses come in
 * bursts. Neither depends on when reads arrive. */
#ifndef MOE_DRAFT_MISS_MODEL_H
#define MOE_DRAFT_MISS_MODEL_H

#include "offload/expert_store.h"
#include "runtime/model/tensor_map.h"

typedef struct moe_miss_model moe_miss_model;

typedef struct moe_miss_model_options {
    const moe_tensor_map *map;
    uint32_t n_expert_used;
    uint32_t max_rows; /* of a pass */
    uint64_t n_slots;
    const char *policy;   /* a built-in one that needs no gates and no future */
    const float *hotness; /* [n_layer * n_expert], or NULL */
} moe_miss_model_options;

/* Of the pass since the last take. */
typedef struct moe_miss_counts {
    uint64_t used, missed; /* distinct experts of its layers, and of them not in the directory */
    /* Of the plain passes that would have brought the rows that stood. */
    uint64_t plain_passes, plain_rows, plain_used, plain_missed;
} moe_miss_counts;

int moe_miss_model_open(moe_miss_model **out, const moe_miss_model_options *options,
                        moe_error *err);
void moe_miss_model_close(moe_miss_model **model);
/* A layer of a pass that is no draft's. */
void moe_miss_model_layer(moe_miss_model *model, const moe_layer_request *request);
/* What its rows chose: [n_rows][n_expert_used]. */
void moe_miss_model_keep_routes(moe_miss_model *model, uint32_t layer, uint32_t n_rows,
                                const uint32_t *chosen);
/* A plain pass of these rows of the last one, in the order of plain decoding. */
void moe_miss_model_plain(moe_miss_model *model, const uint32_t *rows, uint32_t n);
moe_miss_counts moe_miss_model_take(moe_miss_model *model);

#endif
