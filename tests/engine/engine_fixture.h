/* SPDX-License-Identifier: MIT */
/* Opening models and writing greedy tokens, for the tests of engine and sessions. */
#ifndef MOE_TESTS_ENGINE_FIXTURE_H
#define MOE_TESTS_ENGINE_FIXTURE_H

#include <moe/moe.h>

/* A prompt of ids that look drawn at random, the same for the same seed. */
void make_prompt(int32_t *tokens, size_t n, uint32_t n_vocab, uint32_t seed);

/* Options for two threads. path must live until the engine is open. */
moe_engine_options fixture_options(const char *path, uint32_t prefill_chunk, uint32_t context);
/* Options for FOLDER/NAME/model.gguf: two threads, a context of 512, chunks of 64. path holds 1024
 * bytes and must live until the engine is open. */
moe_engine_options oracle_options(char *path, const char *folder, const char *name);
/* Opens, or fails the test with the message. */
moe_engine *open_engine(const moe_engine_options *options);
moe_session *greedy_session(moe_engine *engine);
void feed(moe_session *session, const int32_t *tokens, size_t n);

/* Steps until n tokens are sampled; writes them to out. */
void decode(moe_engine *engine, moe_session *session, int32_t *out, size_t n);

#endif
