/* SPDX-License-Identifier: MIT */
/* The memory that a session takes from the budget, and the growth of its timeline. */
#ifndef MOE_SESSION_TIMELINE_H
#define MOE_SESSION_TIMELINE_H

#include "runtime/engine/engine_state.h"

/* Computes what a session takes besides its KV pages: engine->session_bytes and token_bytes. */
void moe_engine_measure_session(moe_engine *engine, const moe_engine_options *options);
/* RAM of one session with n_tokens tokens, without KV pages. */
uint64_t moe_engine_session_state(const moe_engine *engine, uint64_t n_tokens);

/* Grants the memory that a new session takes before it has tokens. */
int moe_session_take_state(moe_engine *engine, moe_error *err);
/* Grants the memory for a timeline of n_tokens, evaluated up to `end`. If there is not enough,
 * returns MOE_ERR_BUDGET and changes nothing. */
int moe_session_grant(moe_session *session, uint64_t n_tokens, uint32_t end, moe_error *err);
/* Grants the memory that a session takes in addition while a grammar constrains its text; returns
 * it if not `wanted`. */
int moe_session_take_grammar(moe_session *session, bool wanted, moe_error *err);
/* Returns everything that the session was granted; its memory has been freed. */
void moe_session_give_memory(moe_session *session);
/* Returns idle KV pages and free memory to the slots. */
void moe_session_give_back_pages(moe_engine *engine);

/* Makes room in the arrays for n more tokens, so that moe_session_append_sampled() cannot fail for
 * them. Their memory must have been granted. */
int moe_session_make_room(moe_session *session, uint32_t n, moe_error *err);
/* Grants n more tokens and makes room for them. */
int moe_session_reserve(moe_session *session, uint32_t n, moe_error *err);
/* Makes room for the places of `needed` sampled tokens in total. */
int moe_session_grow_sampled(moe_session *session, uint64_t needed, moe_error *err);
/* moe_session_feed() of a session that is not parked. */
int moe_session_append(moe_session *session, const int32_t *tokens, size_t n, moe_error *err);
/* Appends one token that the sampler chose, for which there is room. It cannot fail: all that a
 * step needs is granted before its pass, because a step that fails leaves all timelines as they
 * were. */
void moe_session_append_sampled(moe_session *session, int32_t token);

#endif
