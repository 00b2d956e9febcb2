/* SPDX-License-Identifier: MIT */
/* Chooses the context of an engine if the options do not: the largest context with which the
 * memory plan works and experts keep most of the memory that they share with sessions. */
#ifndef MOE_ENGINE_CONTEXT_FIT_H
#define MOE_ENGINE_CONTEXT_FIT_H

#include "runtime/engine/memory_plan.h"

/* Returns the bytes of RAM that one session with n_tokens tokens takes, without its KV cache. */
typedef uint64_t (*moe_session_bytes_fn)(const void *user, uint64_t n_tokens);

/* Returns a context of at most input->context tokens. If none fits, returns the smallest one; its
 * memory plan then says what is missing. */
uint32_t moe_fit_context(const moe_plan_input *input, moe_session_bytes_fn session_bytes,
                         const void *user);

#endif
