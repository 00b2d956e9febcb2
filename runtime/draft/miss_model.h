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

/* Counts since they were last taken. The first members count the real passes. */
typedef struct moe_miss_counts {
    uint64_t used, missed; /* distinct experts of its layers; those of them not in the directory */
    /* Counts of the modelled plain passes that would have written the accepted rows. */
    uint64_t plain_passes, plain_rows, plain_used, plain_missed;
    /* How many experts the rows of the plain passes chose, counted once for each row, and how
     * many of these were in the directory. */
    uint64_t plain_choices, plain_resident;
    /* Of plain_missed: the experts that the previous plain pass neither used nor evicted.
     * plain_compared: how many passes had a previous pass to be compared with, since
     * moe_miss_model_begin(). */
    uint64_t plain_fresh, plain_compared;
} moe_miss_counts;

int moe_miss_model_open(moe_miss_model **out, const moe_miss_model_options *options,
                        moe_error *err);
void moe_miss_model_close(moe_miss_model **model);
/* Starts anew: later plain passes are compared only with each other. */
void moe_miss_model_begin(moe_miss_model *model);
/* Records a layer of a pass that is not a draft. */
void moe_miss_model_layer(moe_miss_model *model, const moe_layer_request *request);
/* Records the experts that the rows of the pass chose: [n_rows][n_expert_used]. */
void moe_miss_model_keep_routes(moe_miss_model *model, uint32_t layer, uint32_t n_rows,
                                const uint32_t *chosen);
/* Models one plain pass with these n rows of the last real pass. */
void moe_miss_model_plain(moe_miss_model *model, const uint32_t *rows, uint32_t n);
/* Records which rows of the last pass were accepted, at most one of each of the n_sequences
 * sequences. owners[i]: the place of row i's sequence in the batch. Rows wait together with those
 * of earlier passes; as soon as n_sequences rows wait, they become a plain pass. */
void moe_miss_model_accept(moe_miss_model *model, const uint32_t *rows, const uint32_t *owners,
                           uint32_t n, uint32_t n_sequences);
/* Records that a chunk of a panel (a long prompt) goes through a layer: both directories treat it
 * as a scan. moe_miss_model_chunk() adds the experts that its rows chose
 * ([n_rows][n_expert_used]). Neither changes the counts. */
void moe_miss_model_scan(moe_miss_model *model, uint32_t layer);
void moe_miss_model_chunk(moe_miss_model *model, uint32_t layer, uint32_t n_rows,
                          const uint32_t *chosen);
void moe_miss_model_end_chunk(moe_miss_model *model, uint32_t n_rows);
moe_miss_counts moe_miss_model_take(moe_miss_model *model);

#endif
