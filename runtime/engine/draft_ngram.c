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
        moe_suffix_options options = {
            .max_depth = d->max_depth, .max_nodes = d->max_nodes - 1, .drafter = MOE_DRAFTER_NGRAM};
        if (engine->speculation->tree_nodes == 0 && options.max_nodes > d->max_depth) {
            options.max_nodes = d->max_depth;
        }
        (void)moe_suffix_propose(d->suffix, &options, 0, &d->tree);
        price(engine, d);
        moe_draft_cut(engine, session, NULL);
    }
    return status;
}
