/* SPDX-License-Identifier: MIT */
/* What the user is told of a model's metadata when the model is opened. */
#ifndef MOE_ENGINE_METADATA_NOTES_H
#define MOE_ENGINE_METADATA_NOTES_H

#include <moe/moe.h>

#include "runtime/engine/engine_state.h"

/* Tells options->log what the file leaves out or what is unknown: a line for each subject. */
void moe_metadata_notes(const moe_engine *engine, const moe_engine_options *options);

#endif
