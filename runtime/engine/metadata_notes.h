/* SPDX-License-Identifier: MIT */
/* What a model's metadata require besides its dials: the longest context, and notes for the user
 * when the model is opened. */
#ifndef MOE_ENGINE_METADATA_NOTES_H
#define MOE_ENGINE_METADATA_NOTES_H

#include <moe/moe.h>

#include "runtime/engine/engine_internal.h"

/* Sets the sessions' context: the caller's, or (0) the model's. Attention is not scaled by
 * position, so that contexts of models that need it end before; a longer one is refused. */
int moe_choose_context(const moe_model_config *config, uint32_t wanted, uint32_t *context,
                       moe_error *err);

/* Tells options->log what the file leaves out or what is unknown: a line for each subject. */
void moe_metadata_notes(const moe_engine *engine, const moe_engine_options *options);

#endif
