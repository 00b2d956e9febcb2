/* SPDX-License-Identifier: MIT */
/* Opens copies of the model on other drives, checks that they are copies, and watches their files
 * for changes. */
#ifndef MOE_ENGINE_COPIES_H
#define MOE_ENGINE_COPIES_H

#include "runtime/engine/engine_state.h"

/* Fails with MOE_ERR_FORMAT unless the copy has the same parts with the same sizes, in other
 * files than the model's. */
int moe_copy_compare_files(const moe_gguf *model, const moe_gguf *copy, const char *path,
                           moe_error *err);
/* Opens options.model_copies, and checks that each is a copy of the model. Call it when the model's
 * identity is known. */
int moe_engine_open_copies(moe_engine *engine, const moe_engine_options *options, moe_error *err);
void moe_engine_close_copies(moe_engine *engine);
/* Calls moe_file_watch_look() for the files of the model and of its copies. */
int moe_engine_look_at_files(moe_engine *engine, bool now, moe_error *err);

#endif
