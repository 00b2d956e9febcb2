/* SPDX-License-Identifier: MIT */
/* Counts the routers' choices while the engine is used, for the sidecar (moe/calibrate.h, learning
 * from use). */
#ifndef MOE_SIDECAR_LEARNING_H
#define MOE_SIDECAR_LEARNING_H

#include "runtime/pass/pass.h"
#include "runtime/sidecar/model_sidecar.h"

typedef struct moe_learning moe_learning;

/* Observes the runner's passes from now on, until it is freed. */
int moe_learning_open(moe_learning **out, moe_runner *runner, moe_error *err);
/* NULL is allowed. */
void moe_learning_free(moe_learning **learning);
/* Sets the counts to zero. */
void moe_learning_start_over(moe_learning *learning);
/* Adds the counts to the sidecar at `path`, or to a new one, then starts over. drafts: what is
 * known of drafts now, or NULL. *n_tokens: tokens counted. MOE_ERR_ARGUMENT if there are none, or
 * learning is NULL. */
int moe_learning_save(moe_learning *learning, const moe_sidecar_model *model,
                      const moe_draft_habits *drafts, const char *path, uint64_t *n_tokens,
                      moe_error *err);

#endif
