/* SPDX-License-Identifier: MIT */
/* Reports hidden states of positions, and computes embeddings of texts. Each text gets a session,
 * which evaluates it and is then closed. */
#include <math.h>
#include <stddef.h>

#include <moe/embedding.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/engine/engine_state.h"

/* The largest number of texts that are evaluated together. */
enum { MOST_AT_ONCE = 64 };

int moe_session_watch(moe_session *session, moe_position_fn visit, void *user, moe_error *err)
{
    if (session == NULL) {
        return moe_fail_null(err, "moe_session_watch", "session");
    }
    session->watch = visit;
    session->watch_user = user;
    return MOE_OK;
}

void moe_pool_add(moe_pool *pool, size_t position, const float *hidden)
{
    if (pool == NULL || pool->sums == NULL || hidden == NULL || position != pool->n) {
        return;
    }
    for (uint32_t i = 0; i < pool->n_embd; i++) {
        bool adds = pool->pooling == MOE_POOLING_MEAN && pool->n > 0;
        pool->sums[i] = (adds ? pool->sums[i] : 0.0) + (double)hidden[i];
    }
    pool->n++;
}

void moe_pool_finish(moe_pool *pool, bool normalize, float *embedding)
{
    if (pool == NULL || pool->sums == NULL || embedding == NULL) {
        return;
    }
    double squares = 0.0;
    for (uint32_t i = 0; i < pool->n_embd; i++) {
        squares += pool->sums[i] * pool->sums[i];
    }
    double scale = pool->pooling == MOE_POOLING_MEAN && pool->n > 0 ? 1.0 / (double)pool->n : 1.0;
    scale = !normalize ? scale : squares > 0.0 ? 1.0 / sqrt(squares) : 0.0;
    for (uint32_t i = 0; i < pool->n_embd; i++) {
        embedding[i] = pool->n == 0 ? 0.0f : (float)(pool->sums[i] * scale);
    }
    pool->n = 0;
}

/* Texts that are evaluated together. */
typedef struct embedding_batch {
    moe_engine *engine;
    moe_session *sessions[MOST_AT_ONCE];
    moe_pool pools[MOST_AT_ONCE];
    size_t n;
} embedding_batch;

static void pool_position(size_t position, const float *hidden, const float *logits, void *user)
{
    (void)logits;
    moe_pool_add(user, position, hidden);
}

static int begin(embedding_batch *b, const int32_t *tokens, const size_t *lengths, size_t n,
                 moe_error *err)
{
    moe_session_options options;
    moe_session_options_init(&options);
    options.evaluate_only = true;
    int status = MOE_OK;
    for (b->n = 0; b->n < n && status == MOE_OK; b->n++) {
        moe_session **session = &b->sessions[b->n];
        status = moe_session_create(session, b->engine, &options, err);
        if (status != MOE_OK) {
            break;
        }
        (void)moe_session_watch(*session, pool_position, &b->pools[b->n], err);
        status = moe_session_feed(*session, tokens, lengths[b->n], err);
        tokens += lengths[b->n];
    }
    return status;
}

static int evaluate(const embedding_batch *b, moe_error *err)
{
    size_t n_pending = 0;
    int status = MOE_OK;
    do {
        status = moe_step(b->engine, b->sessions, b->n, err);
        n_pending = 0;
        for (size_t i = 0; i < b->n && status == MOE_OK; i++) {
            n_pending += moe_session_n_pending(b->sessions[i]);
        }
    } while (n_pending > 0);
    return status;
}

static int embed_together(embedding_batch *b, const int32_t *tokens, const size_t *lengths,
                          size_t n, moe_error *err)
{
    for (size_t i = 0; i < n; i++) {
        b->pools[i].n = 0;
    }
    int status = begin(b, tokens, lengths, n, err);
    status = status == MOE_OK ? evaluate(b, err) : status;
    for (size_t i = 0; i < b->n; i++) {
        moe_session_close(&b->sessions[i]);
    }
    return status;
}

/* Returns how many of the texts fit into one pass, at least 1. */
static size_t count_fitting(const moe_engine *engine, const size_t *lengths, size_t n)
{
    size_t most = n < MOST_AT_ONCE ? n : MOST_AT_ONCE, n_fitting = 0;
    for (size_t left = engine->prefill_chunk; n_fitting < most && lengths[n_fitting] <= left;) {
        left -= lengths[n_fitting++];
    }
    return n_fitting > 0 ? n_fitting : 1;
}

static int check_lengths(const size_t *lengths, size_t n, moe_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (lengths[i] == 0) {
            return moe_fail(err, MOE_ERR_ARGUMENT,
                            "text %zu has no tokens: an embedding needs at least one", i);
        }
    }
    return MOE_OK;
}

static int embed_all(embedding_batch *b, const int32_t *tokens, const size_t *lengths, size_t n,
                     bool normalize, float *embeddings, moe_error *err)
{
    int status = MOE_OK;
    for (size_t first = 0; first < n && status == MOE_OK;) {
        size_t n_now = count_fitting(b->engine, lengths + first, n - first);
        status = embed_together(b, tokens, lengths + first, n_now, err);
        if (status == MOE_ERR_BUDGET && n_now > 1) {
            n_now = 1;
            status = embed_together(b, tokens, lengths + first, n_now, err);
        }
        for (size_t i = 0; i < n_now && status == MOE_OK; i++, first++) {
            moe_pool_finish(&b->pools[i], normalize, embeddings + first * b->pools[i].n_embd);
            tokens += lengths[first];
        }
    }
    return status;
}

int moe_embed(moe_engine *engine, const int32_t *tokens, const size_t *lengths, size_t n,
              moe_pooling pooling, bool normalize, float *embeddings, moe_error *err)
{
    if (engine == NULL || (n > 0 && (tokens == NULL || lengths == NULL || embeddings == NULL))) {
        return moe_fail_null(err, "moe_embed", "engine, tokens, lengths or embeddings");
    }
    if (pooling != MOE_POOLING_MEAN && pooling != MOE_POOLING_LAST) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "pooling must be MOE_POOLING_MEAN or MOE_POOLING_LAST, not %d",
                        (int)pooling);
    }
    int status = check_lengths(lengths, n, err);
    if (status != MOE_OK || n == 0) {
        return status;
    }
    const uint32_t n_embd = engine->config.n_embd;
    const size_t n_pools = n < MOST_AT_ONCE ? n : MOST_AT_ONCE;
    const uint64_t bytes =
        moe_memory_border_cost(sizeof(embedding_batch) + n_pools * n_embd * sizeof(double));
    status = moe_engine_need_model(engine, "an embedding", err);
    status = status == MOE_OK ? moe_memory_border_take(&engine->border, bytes, err) : status;
    if (status != MOE_OK) {
        return status;
    }
    embedding_batch *b = moe_map_pages(bytes);
    if (b == NULL) {
        status = moe_fail(err, MOE_ERR_MEMORY, "no memory for embeddings");
    } else {
        b->engine = engine;
        for (size_t i = 0; i < n_pools; i++) {
            double *sums = (double *)(void *)(b + 1) + i * n_embd;
            b->pools[i] = (moe_pool){sums, n_embd, pooling, 0};
        }
        status = embed_all(b, tokens, lengths, n, normalize, embeddings, err);
        moe_unmap_pages(b, bytes);
    }
    moe_memory_border_give(&engine->border, bytes);
    return status;
}
