/* SPDX-License-Identifier: MIT */
/* Hidden states of positions, and embeddings of texts that are made of them.
 *
 * The hidden state of a position is what the head computes its logits from: n_embd floats behind
 * the last layer and the output norm, no unit. Like logits it depends on the model and the tokens
 * up to the position, and on nothing else (Exactness in moe.h), so embeddings are the same to the
 * bit with every chunk, panel, batch, cache and device.
 *
 * Threads (the groups are explained in moe.h):
 *   in turn: moe_session_watch, moe_embed
 *   own:     moe_pool_add, moe_pool_finish */
#ifndef MOE_EMBEDDING_H
#define MOE_EMBEDDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>
#include <moe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Gets hidden: [n_embd] and logits: [n_vocab] of a position of the timeline; both are valid until
 * the function returns. It runs within a step, and must not call the engine or its sessions. */
typedef void (*moe_position_fn)(size_t position, const float *hidden, const float *logits,
                                void *user);

/* From now on steps call visit, in order, for each position that they evaluate of the tokens that
 * the program fed; NULL: none. They skip positions that are evaluated already and tokens that the
 * session samples. If the step fails afterwards, the positions come again, with the same values.
 * Forks and saved sessions do not inherit visit. This takes no memory, but the logits of all
 * positions are computed, which takes a few percent of a prompt's time. */
MOE_API int moe_session_watch(moe_session *session, moe_position_fn visit, void *user,
                              moe_error *err);

typedef enum moe_pooling {
    MOE_POOLING_MEAN, /* of all positions; each sum is made in double, in the order of positions */
    MOE_POOLING_LAST  /* the last position's hidden state */
} moe_pooling;

/* One text's embedding in the making, for programs that step by themselves. */
typedef struct moe_pool {
    double *sums; /* [n_embd], the caller's */
    uint32_t n_embd;
    moe_pooling pooling;
    size_t n; /* positions so far; 0 at the beginning */
} moe_pool;

/* Adds a position's hidden state, from moe_position_fn. Positions count from 0. A position that was
 * added before, which comes again after a failed step, changes nothing. */
MOE_API void moe_pool_add(moe_pool *pool, size_t position, const float *hidden);
/* Writes embedding: [n_embd], of the positions so far, and starts empty again; normalize: scales it
 * to length 1. */
MOE_API void moe_pool_finish(moe_pool *pool, bool normalize, float *embedding);

/* Computes the embeddings of n texts. embeddings: [n][n_embd], the caller's. tokens: those of all
 * texts, one text after the other; lengths: [n], each at least 1 and at most the context.
 * normalize: scales each embedding to length 1. Evaluates up to 64 texts in one pass if they fit
 * into it. Each text takes a session's memory meanwhile; if memory is short, the texts are
 * evaluated one by one. After an error (of feeding or of a step) only some of the embeddings are
 * set. */
MOE_API int moe_embed(moe_engine *engine, const int32_t *tokens, const size_t *lengths, size_t n,
                      moe_pooling pooling, bool normalize, float *embeddings, moe_error *err);

#ifdef __cplusplus
}
#endif

#endif
