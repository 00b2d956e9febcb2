/* SPDX-License-Identifier: MIT */
#ifndef MOE_MODEL_OVERRIDE_CHECK_H
#define MOE_MODEL_OVERRIDE_CHECK_H

#include "runtime/model/family.h"
#include "runtime/model/gguf.h"

/* Fails if nothing reads a key that the caller overrides. The error names the key, and known keys
 * with a similar spelling. Call after moe_gguf_override(). family: the model's; NULL if only the
 * model's vocabulary is read. */
int moe_overrides_check(const moe_gguf *gguf, const moe_family *family,
                        const moe_metadata_override *overrides, size_t n, moe_error *err);

#endif
