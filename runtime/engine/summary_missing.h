/* SPDX-License-Identifier: MIT */
#ifndef MOE_ENGINE_SUMMARY_MISSING_H
#define MOE_ENGINE_SUMMARY_MISSING_H

#include <moe/model_file.h>

#include "runtime/model/gguf.h"

/* If the file's family is known but cannot run, fills in the figures that the header gives;
 * otherwise leaves the summary unchanged. names: those of all tensors, in the file's order. */
void moe_summarize_missing(moe_file_summary *summary, const moe_gguf *gguf, char *const *names,
                           moe_tensor_kind (*kind_of)(const char *name));

#endif
