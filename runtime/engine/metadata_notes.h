/* SPDX-License-Identifier: MIT */
/* What a model's metadata ask for beside its dials: how long a context may be, and what the user is
 * told when the model is opened. */
#ifndef MOE_ENGINE_METADATA_NOTES_H
#define MOE_ENGINE_METADATA_NOTES_H

#include <moe/moe.h>

#include "runtime/engine/engine_internal.h"

/* The context of sessions: the caller's, or (0) the model's. Attention has no window yet, so that a
 * model with one runs while all of a context lies within it; a longer one is refused. */
int moe_choose_context(const moe_model_config *config, uint32_t wanted, uint32_t *context,
                       moe_error *err);

/* Tells options->log what the file does not say or what is not known: a line for each subject. */
void moe_metadata_notes(const moe_engine *engine, const moe_engine_options *options);

#endif
