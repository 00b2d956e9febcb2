/* SPDX-License-Identifier: MIT */
/* Drafts from the session's own text. */
#include "runtime/draft/drafters.h"

static void price(const moe_speculation *s, moe_session_draft *d)
{
    const moe_length_control *control = s->control[MOE_DRAFTER_NGRAM];
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

int moe_draft_ngram(const moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                    moe_error *err)
{
    int status = MOE_OK;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        moe_session_draft *d = drafts[i];
        if (!d->active) {
            continue;
        }
        status = moe_suffix_index_update(d->suffix, d->line.tokens, d->line.n_tokens, err);
        if (status != MOE_OK) {
            return status;
        }
        propose(s, d, d->max_depth);
        price(s, d);
    }
    if (status == MOE_OK) {
        moe_draft_cut_together(s, drafts, n);
    }
    return status;
}

int moe_draft_ngram_silently(const moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                             moe_error *err)
{
    int status = MOE_OK;
    if (!moe_length_wants_silent_drafts(s->control[MOE_DRAFTER_NGRAM])) {
        return MOE_OK;
    }
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        moe_session_draft *d = drafts[i];
        bool pending = moe_silent_is_pending(&d->silent[MOE_DRAFTER_NGRAM], &d->line);
        if (!d->active || d->max_nodes < 2 || pending) {
            continue;
        }
        status = moe_suffix_index_update(d->suffix, d->line.tokens, d->line.n_tokens, err);
        if (status == MOE_OK) {
            propose(s, d, MOE_SILENT_DRAFT);
            for (uint32_t k = 1; k < d->tree.n; k++) {
                d->confidence[k] = d->tree.nodes[k].q;
            }
            moe_silent_keep(d, MOE_DRAFTER_NGRAM);
        }
    }
    return status;
}
