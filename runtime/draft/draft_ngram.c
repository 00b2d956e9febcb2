/* SPDX-License-Identifier: MIT */
/* Drafts from the session's own text: looks for earlier occurrences of its last tokens. */
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

/* Reports to the length controller how many tokens of all sessions' drafts together are expected
 * to be accepted. */
static void note_expected(const moe_speculation *s, moe_session_draft *const *drafts, size_t n)
{
    double n_tokens = 0;
    uint32_t n_rows = 0;
    for (size_t i = 0; i < n; i++) {
        for (uint32_t k = 1; drafts[i]->active && k < drafts[i]->tree.n; k++) {
            n_tokens += drafts[i]->survival[k];
            n_rows++;
        }
    }
    moe_length_note_drafts(s->control[MOE_DRAFTER_NGRAM], n_tokens, n_rows);
}

int moe_draft_ngram(const moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                    uint32_t length, moe_error *err)
{
    int status = MOE_OK;
    bool hears = moe_length_hears_silent_drafts(s->control[MOE_DRAFTER_NGRAM]);
    for (size_t i = 0; i < n && status == MOE_OK && (hears || length > 0); i++) {
        moe_session_draft *d = drafts[i];
        if (!d->active || d->max_nodes < 2) {
            continue;
        }
        status = moe_suffix_index_update(d->suffix, d->line.tokens, d->line.n_tokens, err);
        if (status != MOE_OK) {
            return status;
        }
        propose(s, d, length > 0 ? d->max_depth : MOE_SILENT_DRAFT);
        price(s, d);
        if (hears && !moe_silent_is_pending(&d->silent[MOE_DRAFTER_NGRAM], &d->line)) {
            moe_silent_note(d, MOE_DRAFTER_NGRAM);
        }
        if (length == 0) {
            moe_token_tree_reset(&d->tree, d->line.tokens[d->line.n_tokens - 1]);
        }
    }
    if (length > 0) {
        moe_draft_cut_together(s, drafts, n);
        note_expected(s, drafts, n);
    }
    return status;
}
