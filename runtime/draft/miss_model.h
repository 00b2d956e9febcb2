/* SPDX-License-Identifier: MIT */
/* Models the effect of speculation on expert misses. Two directories of keys (without bytes), as
 * large as the engine's cache: one receives all experts that passes use; the other receives those
 * that plain decoding of the accepted rows would have used, one token at a time. The difference
 * between them shows the experts that rejected drafts loaded, those that these evicted, and the
 * misses of later passes that follow. Comparing a speculating pass with a plain pass of another
 * time would not show it, because misses come in bursts. Neither directory depends on when reads
 * arrive.
 *
 * Plain decoding of a batch has a row of every sequence in each pass, and the rows share experts.
 * Drafts are accepted to different depths. So an accepted row waits here until as many rows wait as
 * there are sequences, and these become a plain pass. Passes of only the sequences that were
 * accepted to the same depth would cost more than any plain pass, and every draft would look like a
 * gain. */
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
    const char *policy;   /* a built-in policy that needs neither gates nor the future */
    const float *hotness; /* [n_layer * n_expert], or NULL */
} moe_miss_model_options;

/* Counts since they were last taken, first those of the passes themselves. */
typedef struct moe_miss_counts {
    uint64_t used, missed; /* distinct experts of its layers; those of them not in the directory */
    /* Counts of the plain passes that would have written the accepted rows. */
    uint64_t plain_passes, plain_rows, plain_used, plain_missed;
    /* The experts that their rows chose, counted for each row, and how many of these were in the
     * directory. */
    uint64_t plain_choices, plain_resident;
    /* Of plain_missed, those that the plain pass before neither used nor evicted, and how many of
     * the passes could be compared with one since moe_miss_model_begin(). */
    uint64_t plain_fresh, plain_compared;
} moe_miss_counts;

int moe_miss_model_open(moe_miss_model **out, const moe_miss_model_options *options,
                        moe_error *err);
void moe_miss_model_close(moe_miss_model **model);
/* Later plain passes are compared with each other, and not with the earlier ones. */
void moe_miss_model_begin(moe_miss_model *model);
/* Notes a layer of a pass that is not a draft. */
void moe_miss_model_layer(moe_miss_model *model, const moe_layer_request *request);
/* Notes the experts that its rows chose: [n_rows][n_expert_used]. */
void moe_miss_model_keep_routes(moe_miss_model *model, uint32_t layer, uint32_t n_rows,
                                const uint32_t *chosen);
/* Models one plain pass of these rows of the last pass. */
void moe_miss_model_plain(moe_miss_model *model, const uint32_t *rows, uint32_t n);
/* Notes rows of the last pass that plain decoding of n_sequences would have had, at most one of
 * each sequence. They wait together with rows of earlier passes, and whenever n_sequences rows
 * wait, these become a plain pass. owners[i]: the place in the batch whose row it is. */
void moe_miss_model_accept(moe_miss_model *model, const uint32_t *rows, const uint32_t *owners,
                           uint32_t n, uint32_t n_sequences);
/* Notes that a chunk of a panel goes through a layer: both directories scan, and get the experts
 * that its rows chose ([n_rows][n_expert_used]). It is not counted. */
void moe_miss_model_scan(moe_miss_model *model, uint32_t layer);
void moe_miss_model_chunk(moe_miss_model *model, uint32_t layer, uint32_t n_rows,
                          const uint32_t *chosen);
void moe_miss_model_end_chunk(moe_miss_model *model, uint32_t n_rows);
moe_miss_counts moe_miss_model_take(moe_miss_model *model);

#endif
