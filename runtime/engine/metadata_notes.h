/* SPDX-License-Identifier: MIT */
/* Logs notes about a model's metadata when the model is opened. */
#ifndef MOE_ENGINE_METADATA_NOTES_H
#define MOE_ENGINE_METADATA_NOTES_H

#include <moe/moe.h>

#include "runtime/engine/engine_state.h"

/* Logs, one line for each subject, which metadata the file lacks and which are unknown. */
void moe_metadata_notes(const moe_engine *engine, const moe_engine_options *options);
/* Logs, when a timeline first has more tokens than the model's indexers would choose, that the
 * file lacks them. */
void moe_note_missing_index(moe_engine *engine, uint64_t n_tokens);

#endif
