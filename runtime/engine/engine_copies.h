/* SPDX-License-Identifier: MIT */
/* Copies of the model on other drives: opened, compared with the model, and watched. */
#ifndef MOE_ENGINE_COPIES_H
#define MOE_ENGINE_COPIES_H

#include "runtime/engine/engine_state.h"

/* MOE_ERR_FORMAT unless the copy has the model's parts and their sizes, in other files. */
int moe_copy_compare_files(const moe_gguf *model, const moe_gguf *copy, const char *path,
                           moe_error *err);
/* Opens options.model_copies, and checks that each is a copy of the model. Call it when the model's
 * identity is known. */
int moe_engine_open_copies(moe_engine *engine, const moe_engine_options *options, moe_error *err);
void moe_engine_close_copies(moe_engine *engine);
/* moe_file_watch_look() for the model's files and its copies'. */
int moe_engine_look_at_files(moe_engine *engine, bool now, moe_error *err);

#endif
