/* SPDX-License-Identifier: MIT */
#ifndef MOE_MODEL_OVERRIDE_CHECK_H
#define MOE_MODEL_OVERRIDE_CHECK_H

#include "runtime/model/family.h"
#include "runtime/model/gguf.h"

/* Fails if nothing reads a key that the program overrides, and names the key and known ones that
 * are spelt much like it. Call it after moe_gguf_override(). family: the model's; NULL if only its
 * vocabulary is read. */
int moe_overrides_check(const moe_gguf *gguf, const moe_family *family,
                        const moe_metadata_override *overrides, size_t n, moe_error *err);

#endif
