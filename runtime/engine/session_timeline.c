/* SPDX-License-Identifier: MIT */
/* The growth of a session's timeline: the memory that it takes from the budget, how it gets and
 * returns that memory, and how tokens are appended. */
#include "runtime/engine/session_timeline.h"

#include <string.h>

#include "cpu/kernels/vector_ops.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/draft/draft_head.h"
#include "runtime/engine/session_park.h"

#define DEFAULT_DRAFT_MAX 8u
/* Arrays of tokens grow to one and a half times the need and a little more. */
#define GROWN(n) ((n) + (n) / 2 + 64)
/* Bytes of the n-gram index for each token: three arrays, of up to twice the tokens. */
#define SUFFIX_TOKEN_BYTES 24u
/* Bytes for a page of the KV cache beside the page: two pointers in the table, and a moe_kv_page on
 * the heap. */
#define PAGE_ENTRY_BYTES (2 * sizeof(void *) + sizeof(moe_kv_page) + 16)

/* Bytes of moe_session_draft_create(), and of the distributions that drafts are drawn from. */
static uint64_t draft_bytes(const moe_engine *engine, const moe_engine_options *o)
{
    uint64_t depth = 1 + (o->draft_max != 0 ? o->draft_max : DEFAULT_DRAFT_MAX);
    uint64_t nodes = o->tree_nodes > 0 ? MOE_TREE_MAX_NODES : depth;
    uint64_t node = sizeof(moe_tree_node) + sizeof(double) + sizeof(float) + sizeof(uint32_t);
    uint64_t bytes = sizeof(moe_session_draft) + nodes * node;
    bytes += o->tree_nodes > 0 ? nodes * depth * sizeof(uint32_t) : 0;
    bool draws = o->acceptance == MOE_ACCEPTANCE_REJECTION;
    bytes += depth * (sizeof(moe_distribution) + sizeof(uint32_t));
    return bytes + (draws ? depth * engine->config.n_vocab * sizeof(moe_choice) : 0);
}

void moe_engine_measure_session(moe_engine *engine, const moe_engine_options *o)
{
    bool drafts = o->speculate != MOE_SPECULATE_OFF;
    uint64_t n_vocab = engine->config.n_vocab;
    engine->session_bytes = sizeof(moe_session) + n_vocab * sizeof(float) +
                            moe_sampler_bytes(engine->config.n_vocab) + MOE_SESSION_SLACK +
                            (drafts ? draft_bytes(engine, o) : 0);
    engine->token_bytes = sizeof(int32_t) + sizeof(uint32_t) +
                          (PAGE_ENTRY_BYTES * engine->kv.n_groups + MOE_KV_PAGE - 1) / MOE_KV_PAGE +
                          (drafts ? SUFFIX_TOKEN_BYTES : 0);
    if (engine->draft_head != NULL) {
        engine->session_bytes += moe_draft_head_session_bytes(engine->draft_head);
        engine->token_bytes += moe_draft_head_token_bytes(engine->draft_head);
    }
}

uint64_t moe_engine_session_state(const moe_engine *engine, uint64_t n_tokens)
{
    return moe_memory_border_cost(engine->session_bytes) +
           moe_memory_border_cost(GROWN(n_tokens) * engine->token_bytes);
}

/* Takes memory from idle pages of the KV cache first, then from slots, then from sessions that
 * wait. */
static int take(moe_engine *engine, uint64_t bytes, moe_error *err)
{
    int status;
    do {
        if (engine->border.ram_free < bytes) {
            moe_kv_pool_trim(&engine->kv);
        }
        status = moe_memory_border_take(&engine->border, bytes, err);
    } while (status == MOE_ERR_BUDGET && moe_park_one(engine));
    return status;
}

int moe_session_take_state(moe_engine *engine, moe_error *err)
{
    return take(engine, engine->session_bytes, err);
}

int moe_session_take_grammar(moe_session *session, bool wanted, moe_error *err)
{
    moe_engine *engine = session->engine;
    uint64_t bytes = wanted ? moe_token_constraint_bytes(engine->config.n_vocab) : 0;
    if (bytes <= session->grammar_bytes) {
        moe_memory_border_give(&engine->border, session->grammar_bytes - bytes);
        session->grammar_bytes = bytes;
        return MOE_OK;
    }
    int status = take(engine, bytes - session->grammar_bytes, err);
    session->grammar_bytes = status == MOE_OK ? bytes : session->grammar_bytes;
    return status;
}

/* The arrays grow in steps, and their grant grows with them, in whole pages. An array that moves
 * while it grows exists twice for a moment; the reserve covers that. */
static uint64_t tokens_bytes(const moe_session *session, uint64_t n_granted)
{
    return moe_memory_border_cost(n_granted * session->engine->token_bytes);
}

int moe_session_grant(moe_session *session, uint64_t n_tokens, uint32_t end, moe_error *err)
{
    moe_engine *engine = session->engine;
    if (n_tokens > session->granted_tokens) {
        uint64_t n = GROWN(n_tokens);
        uint64_t had = tokens_bytes(session, session->granted_tokens);
        int status = take(engine, tokens_bytes(session, n) - had, err);
        if (status != MOE_OK) {
            return status;
        }
        session->granted_tokens = n;
    }
    /* Pages of a parked session are read back first: moe_park_wake(). */
    uint32_t first = session->parked != NULL ? 0 : session->n_evaluated;
    int status;
    do {
        status = moe_state_table_reserve(&engine->states, &session->states, err);
        if (status == MOE_OK) {
            status = moe_kv_table_promise(&engine->kv, &session->kv, first, end, err);
        }
    } while (status == MOE_ERR_BUDGET && moe_park_one(engine));
    return status;
}

void moe_session_give_back_pages(moe_engine *engine)
{
    moe_kv_pool_trim(&engine->kv);
    moe_memory_border_give_back(&engine->border);
}

void moe_session_give_memory(moe_session *session)
{
    moe_engine *engine = session->engine;
    moe_memory_border_give(&engine->border, tokens_bytes(session, session->granted_tokens));
    moe_memory_border_give(&engine->border, engine->session_bytes);
    moe_memory_border_give(&engine->border, session->grammar_bytes);
    moe_session_give_back_pages(engine);
}

/* ---- Tokens ---- */

bool moe_session_is_full(const moe_session *session)
{
    return session != NULL && session->n_tokens >= session->engine->context;
}

/* Makes room for `needed` elements of 4 bytes and returns the array, which may have moved. Without
 * memory returns NULL and changes nothing. */
static void *grown(void *array, uint32_t *capacity, uint64_t needed, moe_error *err)
{
    if (array != NULL && needed <= *capacity) {
        return array;
    }
    uint64_t size = needed + needed / 2 + 64;
    void *bigger = size <= UINT32_MAX ? moe_realloc_array(array, size, 4) : NULL;
    if (bigger == NULL) {
        moe_fail(err, MOE_ERR_MEMORY, "no memory for a timeline of %llu tokens",
                 (unsigned long long)needed);
        return NULL;
    }
    *capacity = (uint32_t)size;
    return bigger;
}

static int grow_tokens(moe_session *session, uint64_t needed, moe_error *err)
{
    int32_t *tokens = grown(session->tokens, &session->n_tokens_capacity, needed, err);
    session->tokens = tokens != NULL ? tokens : session->tokens;
    if (session->draft != NULL) {
        session->draft->line.tokens = session->tokens; /* drafts are written behind its end */
    }
    return tokens != NULL ? MOE_OK : MOE_ERR_MEMORY;
}

int moe_session_grow_sampled(moe_session *session, uint64_t needed, moe_error *err)
{
    uint32_t *sampled = grown(session->sampled, &session->n_sampled_capacity, needed, err);
    session->sampled = sampled != NULL ? sampled : session->sampled;
    return sampled != NULL ? MOE_OK : MOE_ERR_MEMORY;
}

int moe_session_append(moe_session *session, const int32_t *tokens, size_t n, moe_error *err)
{
    const moe_engine *engine = session->engine;
    if (n > engine->context - session->n_tokens) {
        return moe_fail(err, MOE_ERR_CONTEXT_FULL,
                        "%zu more tokens after %u do not fit a context of %u; shorten the text or "
                        "open the model with a larger context",
                        n, session->n_tokens, engine->context);
    }
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= engine->config.n_vocab) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "token %d is outside the vocabulary of %u",
                            tokens[i], engine->config.n_vocab);
        }
    }
    uint32_t end = session->n_tokens + (uint32_t)n;
    MOE_TRY(moe_session_grant(session, end, end, err));
    MOE_TRY(grow_tokens(session, end, err));
    if (n > 0) {
        memcpy(session->tokens + session->n_tokens, tokens, n * sizeof *tokens);
        session->n_tokens += (uint32_t)n;
        session->states.begins_turn |= n > 1;
        session->kv.begins_turn |= n > 1;
    }
    return MOE_OK;
}

int moe_session_make_room(moe_session *session, uint32_t n, moe_error *err)
{
    MOE_TRY(moe_session_grow_sampled(session, (uint64_t)session->n_sampled + n, err));
    return grow_tokens(session, (uint64_t)session->n_tokens + n, err);
}

int moe_session_reserve(moe_session *session, uint32_t n, moe_error *err)
{
    uint32_t end = session->n_tokens;
    MOE_TRY(moe_session_grant(session, (uint64_t)end + n, end, err));
    return moe_session_make_room(session, n, err);
}

void moe_session_append_sampled(moe_session *session, int32_t token)
{
    MOE_ASSERT(session->n_tokens < session->n_tokens_capacity);
    MOE_ASSERT(session->n_sampled < session->n_sampled_capacity);
    MOE_ASSERT(session->n_tokens < session->granted_tokens && !moe_session_is_full(session));
    MOE_ASSERT(token >= 0 && (uint32_t)token < session->engine->config.n_vocab);
    session->sampled[session->n_sampled++] = session->n_tokens;
    session->tokens[session->n_tokens++] = token;
    session->n_sampled_pending = 1;
}
