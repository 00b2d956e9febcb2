/* SPDX-License-Identifier: MIT */
/* Chooses the context of an engine whose options give none: the largest whose plan works and leaves
 * experts most of the memory that they share with sessions. */
#ifndef MOE_ENGINE_CONTEXT_FIT_H
#define MOE_ENGINE_CONTEXT_FIT_H

#include "runtime/engine/memory_plan.h"

/* RAM of one session with this many tokens, without its KV cache. */
typedef uint64_t (*moe_session_bytes_fn)(const void *user, uint64_t n_tokens);

/* Returns a context of at most input->context. If none works, returns the smallest, whose plan then
 * says what is missing. */
uint32_t moe_fit_context(const moe_plan_input *input, moe_session_bytes_fn session_bytes,
                         const void *user);

#endif
