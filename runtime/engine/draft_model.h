/* SPDX-License-Identifier: MIT */
/* Drafts with a second, smaller model. It is an engine of its own on the CPU. For every session
 * it has a mirror: a session of the draft model that follows the timeline. */
#ifndef MOE_ENGINE_DRAFT_MODEL_H
#define MOE_ENGINE_DRAFT_MODEL_H

#include <moe/moe.h>

#include "runtime/draft/drafters.h"

typedef struct moe_draft_model moe_draft_model;

/* The functions that open and close an engine. The file that opens engines passes them in, because
 * it also opens the draft model. */
typedef struct moe_engine_calls {
    void (*options_init)(moe_engine_options *options, size_t struct_size);
    int (*open)(moe_engine **out, const moe_engine_options *options, moe_error *err);
    void (*close)(moe_engine **engine);
} moe_engine_calls;

/* Opens the draft model before the main model, so that its memory is known when the main model is
 * planned. options: the main model's; if they name no draft model, *out stays NULL. calls must
 * outlive the draft model. */
int moe_draft_model_open(moe_draft_model **out, const moe_engine_options *options,
                         const moe_engine_calls *calls, moe_error *err);
void moe_draft_model_close(moe_draft_model **model);
/* Returns the most memory that the draft model may take, in bytes. */
uint64_t moe_draft_model_bytes(const moe_draft_model *model);
/* Fails with MOE_ERR_MISMATCH unless both models have the same vocabulary. */
int moe_draft_model_check(const moe_draft_model *model, const moe_engine *engine, moe_error *err);

/* Drafts a chain for each session whose draft is active; with branching trees, also siblings along
 * the likeliest path. context: the draft model (moe_draft_parts.run_model). */
int moe_draft_model_run(void *context, moe_speculation *speculation,
                        moe_session_draft *const *drafts, size_t n, moe_error *err);

#endif
