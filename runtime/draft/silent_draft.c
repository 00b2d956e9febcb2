/* SPDX-License-Identifier: MIT */
/* Silent drafts: drafts that are not verified, but kept and compared with the tokens that the
 * session then writes. They show length control how good a drafter is before a verification pays
 * for rows. */
#include "runtime/draft/drafters.h"

bool moe_silent_is_pending(const moe_silent_draft *silent, const moe_draft_line *line)
{
    return silent->n_right < silent->n && line->n_tokens == silent->at + silent->n_right;
}

/* Follows the first child of each node, which is the likeliest one. */
void moe_silent_note(moe_session_draft *d, moe_drafter drafter)
{
    moe_silent_draft *silent = &d->silent[drafter];
    *silent = (moe_silent_draft){.at = d->line.n_tokens};
    uint32_t node = d->tree.nodes[0].first_child;
    for (; node != MOE_NODE_NONE && silent->n < MOE_SILENT_DRAFT;
         node = d->tree.nodes[node].first_child) {
        silent->tokens[silent->n] = d->tree.nodes[node].token;
        silent->confidence[silent->n++] = d->confidence[node];
    }
}

void moe_silent_keep(moe_session_draft *d, moe_drafter drafter)
{
    moe_silent_note(d, drafter);
    moe_token_tree_reset(&d->tree, d->line.tokens[d->line.n_tokens - 1]);
}

void moe_silent_note_token(const moe_speculation *s, moe_session_draft *d, uint32_t position,
                           int32_t token)
{
    for (int kind = 0; kind < MOE_DRAFTERS; kind++) {
        moe_silent_draft *silent = &d->silent[kind];
        if (silent->n_right == silent->n || position != silent->at + silent->n_right) {
            continue;
        }
        bool is_right = token == silent->tokens[silent->n_right];
        moe_length_note_token(s->control[kind], silent->n_right + 1,
                              silent->confidence[silent->n_right], is_right);
        silent->n_right++;
        silent->n = is_right ? silent->n : silent->n_right;
    }
}
