/* SPDX-License-Identifier: MIT */
/* Logs notes about a model's metadata when the model is opened. */
#ifndef MOE_ENGINE_METADATA_NOTES_H
#define MOE_ENGINE_METADATA_NOTES_H

#include <moe/moe.h>

#include "runtime/engine/engine_state.h"

/* Logs which metadata the file lacks and which are unknown, one line for each subject. */
void moe_metadata_notes(const moe_engine *engine, const moe_engine_options *options);
/* Logs, when a timeline first has more tokens than the model's indexers would choose, that the
 * file lacks them. */
void moe_note_missing_index(moe_engine *engine, uint64_t n_tokens);

#endif
