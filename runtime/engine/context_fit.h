/* SPDX-License-Identifier: MIT */
/* The context of an engine whose options name none: the largest whose plan works and leaves most of
 * the memory that experts and sessions share to experts. */
#ifndef MOE_ENGINE_CONTEXT_FIT_H
#define MOE_ENGINE_CONTEXT_FIT_H

#include "runtime/engine/memory_plan.h"

/* RAM of one session with so many tokens, KV cache apart. */
typedef uint64_t (*moe_session_bytes_fn)(const void *user, uint64_t n_tokens);

/* At most input->context; a context that works where there is one, else the least, whose plan then
 * says what lacks. */
uint32_t moe_fit_context(const moe_plan_input *input, moe_session_bytes_fn session_bytes,
                         const void *user);

#endif
