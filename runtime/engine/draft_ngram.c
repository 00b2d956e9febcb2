/* SPDX-License-Identifier: MIT */
/* Drafting from the session's own text. */
#include "runtime/engine/engine_internal.h"

static void price(moe_engine *engine, moe_session_draft *d)
{
    const moe_length_control *control = engine->speculation->control[MOE_DRAFTER_NGRAM];
    for (uint32_t i = 1; i < d->tree.n; i++) {
        const moe_tree_node *node = &d->tree.nodes[i];
        d->confidence[i] = node->q;
        d->survival[i] =
            d->survival[node->parent] * moe_length_survival(control, node->depth, node->q);
    }
}

static void propose(const moe_speculation *s, moe_session_draft *d, uint32_t max_depth)
{
    moe_suffix_options options = {
        .max_depth = max_depth, .max_nodes = d->max_nodes - 1, .drafter = MOE_DRAFTER_NGRAM};
    if (s->tree_nodes == 0 && options.max_nodes > max_depth) {
        options.max_nodes = max_depth;
    }
    (void)moe_suffix_propose(d->suffix, &options, 0, &d->tree);
}

int moe_draft_ngram(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err)
{
    int status = MOE_OK;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        moe_session *session = sessions[i];
        moe_session_draft *d = session->draft;
        if (!d->active) {
            continue;
        }
        status = moe_suffix_index_update(d->suffix, session->tokens, session->n_tokens, err);
        if (status != MOE_OK) {
            return status;
        }
        propose(engine->speculation, d, d->max_depth);
        price(engine, d);
        moe_draft_cut(engine, session, NULL);
    }
    return status;
}

/* The first child of each node is the likeliest. */
static void keep_silent(moe_session *session)
{
    moe_session_draft *d = session->draft;
    d->silent_at = session->n_tokens;
    d->n_silent = d->silent_stood = 0;
    uint32_t node = d->tree.nodes[0].first_child;
    for (; node != MOE_NODE_NONE && d->n_silent < MOE_SILENT_DRAFT;
         node = d->tree.nodes[node].first_child) {
        d->silent[d->n_silent] = d->tree.nodes[node].token;
        d->silent_confidence[d->n_silent++] = d->tree.nodes[node].q;
    }
}

int moe_draft_ngram_silently(moe_engine *engine, moe_session *const *sessions, size_t n,
                             moe_error *err)
{
    int status = MOE_OK;
    if (!moe_length_listens(engine->speculation->control[MOE_DRAFTER_NGRAM])) {
        return MOE_OK;
    }
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        moe_session *session = sessions[i];
        moe_session_draft *d = session->draft;
        bool goes_on =
            d->silent_stood < d->n_silent && session->n_tokens == d->silent_at + d->silent_stood;
        if (!d->active || d->max_nodes < 2 || goes_on) {
            continue;
        }
        status = moe_suffix_index_update(d->suffix, session->tokens, session->n_tokens, err);
        if (status == MOE_OK) {
            propose(engine->speculation, d, MOE_SILENT_DRAFT);
            keep_silent(session);
            moe_token_tree_reset(&d->tree, session->tokens[session->n_tokens - 1]);
        }
    }
    return status;
}

void moe_draft_ngram_hear(moe_session *session, uint32_t position, int32_t token)
{
    moe_session_draft *d = session->draft;
    if (d->silent_stood == d->n_silent || position != d->silent_at + d->silent_stood) {
        return;
    }
    bool stood = token == d->silent[d->silent_stood];
    moe_length_note_token(session->engine->speculation->control[MOE_DRAFTER_NGRAM],
                          d->silent_stood + 1, d->silent_confidence[d->silent_stood], stood);
    d->silent_stood++;
    d->n_silent = stood ? d->n_silent : d->silent_stood;
}
