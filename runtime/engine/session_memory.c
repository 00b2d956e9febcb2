/* SPDX-License-Identifier: MIT */
/* What a session takes of the memory budget, and how it gets and returns it. */
#include <string.h>

#include "cpu/kernels/vector_ops.h"
#include "runtime/engine/engine_state.h"

#define DEFAULT_DRAFT_MAX 8u
/* Arrays of tokens grow to one and a half times the need and a little more. */
#define GROWN(n) ((n) + (n) / 2 + 64)
/* Of the n-gram index, for each token: three arrays, of up to twice the tokens. */
#define SUFFIX_TOKEN_BYTES 24u

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
                          (2 * sizeof(void *) + MOE_KV_PAGE - 1) / MOE_KV_PAGE +
                          (drafts ? SUFFIX_TOKEN_BYTES : 0);
}

uint64_t moe_engine_session_state(const moe_engine *engine, uint64_t n_tokens)
{
    return engine->session_bytes + GROWN(n_tokens) * engine->token_bytes + MOE_SESSION_SLACK;
}

/* Takes idle pages of the KV cache before slots. */
static int take(moe_engine *engine, uint64_t bytes, moe_error *err)
{
    if (engine->border.ram_free < bytes) {
        moe_kv_pool_trim(&engine->kv);
    }
    return moe_memory_border_take(&engine->border, bytes, err);
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

/* The arrays grow in steps, and so do their grants, each in whole pages. */
static uint64_t tokens_bytes(const moe_session *session, uint64_t n_granted)
{
    return n_granted * session->engine->token_bytes;
}

int moe_session_grant(moe_session *session, uint64_t n_tokens, uint32_t end, moe_error *err)
{
    moe_engine *engine = session->engine;
    if (n_tokens > session->granted_tokens) {
        uint64_t n = GROWN(n_tokens);
        int status = take(engine, tokens_bytes(session, n), err);
        if (status != MOE_OK) {
            return status;
        }
        moe_memory_border_give(&engine->border, tokens_bytes(session, session->granted_tokens));
        session->granted_tokens = n;
    }
    int status = moe_state_table_reserve(&engine->states, &session->states, err);
    return status != MOE_OK
               ? status
               : moe_kv_table_promise(&engine->kv, &session->kv, session->n_evaluated, end, err);
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
