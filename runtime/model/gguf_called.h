/* SPDX-License-Identifier: MIT */
#ifndef MOE_MODEL_GGUF_CALLED_H
#define MOE_MODEL_GGUF_CALLED_H

#include "runtime/base/called_source.h"
#include "runtime/model/gguf.h"

/* From now on `read` reads the files' bytes. Call before anything else holds their sources. */
int moe_gguf_read_by(moe_gguf *gguf, moe_called_read_fn read, void *user, moe_error *err);

#endif
