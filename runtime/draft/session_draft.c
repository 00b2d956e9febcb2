/* SPDX-License-Identifier: MIT */
/* A session's part of speculation: its token tree, and the walk through the tree that accepts
 * tokens while the logits of verification arrive.
 *
 * The rows of a tree are stored at the positions n_evaluated, n_evaluated + 1, ... in the order
 * of the nodes; a node's logical position is n_evaluated + its depth. In a chain the two are
 * equal. The walk writes accepted tokens behind the end of the timeline, where the sampler's
 * penalties find them; they become part of the timeline when the engine commits it. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/draft/draft_head.h"
#include "runtime/draft/drafters.h"
#include "runtime/pass/program_run.h"
#include "runtime/pass/runner.h"

/* ---- Rows ---- */

static bool is_chain(const moe_token_tree *tree)
{
    return tree->n == 0 || tree->nodes[tree->n - 1].depth == tree->n - 1;
}

void moe_speculation_place(moe_session_draft *d)
{
    d->is_chain = is_chain(&d->tree);
    if (d->is_chain) {
        return;
    }
    for (uint32_t i = 0; i < d->tree.n; i++) {
        const moe_tree_node *node = &d->tree.nodes[i];
        uint32_t *path = d->path + (size_t)i * d->path_stride;
        if (i > 0) {
            memcpy(path, d->path + (size_t)node->parent * d->path_stride,
                   node->depth * sizeof *path);
        }
        path[node->depth] = d->line.n_evaluated + i;
    }
}

moe_kv_row moe_speculation_row(const moe_session_draft *d, uint32_t node)
{
    uint32_t base = d->line.n_evaluated;
    moe_kv_row row = moe_kv_row_at(d->kv->addresses, base + d->tree.nodes[node].depth);
    if (!d->is_chain) {
        row.stored = base + node;
        row.path_first = base;
        row.path = d->path + (size_t)node * d->path_stride;
    }
    return row;
}

/* ---- The walk through the tree ---- */

static void note_children(moe_speculation *s, const moe_session_draft *d, uint32_t node,
                          uint32_t accepted)
{
    moe_length_control *control = s->control[d->drafter];
    for (uint32_t c = d->tree.nodes[node].first_child; c != MOE_NODE_NONE;
         c = d->tree.nodes[c].next_sibling) {
        uint32_t depth = d->tree.nodes[c].depth;
        uint32_t at = depth - 1 < MOE_DRAFT_POSITIONS ? depth - 1 : MOE_DRAFT_POSITIONS - 1;
        s->stats.drafted_at[at]++;
        s->stats.accepted_at[at] += c == accepted;
        moe_length_note_token(control, depth, d->confidence[c], c == accepted);
    }
}

bool moe_speculation_visit(moe_speculation *s, moe_session_draft *d, uint32_t node,
                           const float *logits)
{
    if (d->decided || node != d->current) {
        return false;
    }
    uint32_t depth = d->tree.nodes[node].depth;
    uint32_t n_timeline = d->line.n_tokens + depth;
    moe_distribution target;
    moe_sampler_distribution(d->sampler, logits, d->line.tokens, n_timeline, &target);
    uint32_t child = MOE_NODE_NONE;
    int32_t token;
    if (d->is_drawn && d->tree.nodes[node].first_child != MOE_NODE_NONE) {
        child = moe_accept_rejection(&d->tree, node, &target, &d->drawn[depth], &d->sampler->random,
                                     &token);
        token = child != MOE_NODE_NONE ? d->tree.nodes[child].token : token;
    } else {
        token = moe_sampler_draw(d->sampler, &target);
        child = moe_accept_exact(&d->tree, node, token);
    }
    moe_token_reports_add(&d->sampler->reports, logits, d->sampler->n_vocab, n_timeline, token);
    note_children(s, d, node, child);
    if (child != MOE_NODE_NONE && !moe_draft_is_end(s, token)) {
        d->line.tokens[n_timeline] = token;
        d->current = child;
    } else {
        d->next = token;
        d->decided = true;
    }
    return true;
}

/* Moves the keys and values of a branching tree's accepted rows to their places in the timeline. */
static int move_accepted(const moe_speculation *s, const moe_session_draft *d, moe_error *err)
{
    uint32_t n = d->tree.nodes[d->current].depth;
    if (d->is_chain || n == 0) {
        return MOE_OK;
    }
    const uint32_t *from = d->path + (size_t)d->current * d->path_stride;
    uint32_t to[MOE_TREE_MAX_NODES];
    for (uint32_t i = 0; i <= n; i++) {
        to[i] = d->line.n_evaluated + i;
    }
    return moe_kv_table_move(s->runner->kv, d->kv, from, to, n + 1, err);
}

/* For recurrent layers: the pass left their state at the end of the whole chain. If fewer tokens
 * were accepted, takes the state before the pass and advances it over the accepted rows. */
static int commit_states(const moe_speculation *s, moe_session_draft *d, uint32_t n_accepted,
                         moe_error *err)
{
    const moe_model_config *c = s->runner->config;
    bool is_whole = n_accepted == d->tree.n;
    moe_state_run run = moe_state_table_run(d->states, 0, n_accepted, true);
    for (uint32_t l = 0; l < c->n_layer && !is_whole; l++) {
        MOE_TRY(moe_advance_states(s->runner, &run, l, err));
    }
    moe_state_table_commit(s->runner->states, d->states, d->line.n_evaluated + n_accepted);
    return MOE_OK;
}

int moe_speculation_keep_states(moe_speculation *s, moe_session_draft *d, uint32_t first_row,
                                uint32_t n_rows, moe_error *err)
{
    uint32_t rows[MOE_HEAD_ROWS];
    uint32_t node = d->current;
    uint32_t n_path = d->active ? 1 + d->tree.nodes[node].depth : 0;
    if (s->parts.head == NULL || d->head == NULL || n_rows == 0) {
        return MOE_OK;
    }
    MOE_ASSERT(n_path <= MOE_HEAD_ROWS);
    for (uint32_t i = n_path; i > 0; i--) {
        rows[i - 1] = first_row + node;
        node = d->tree.nodes[node].parent;
    }
    int status = n_path > 0 ? moe_head_line_keep(s, d, rows, n_path, err) : MOE_OK;
    uint32_t end = d->active ? 0 : n_rows;
    for (uint32_t done = 0; done < end && status == MOE_OK;) {
        uint32_t n = end - done < MOE_HEAD_ROWS ? end - done : MOE_HEAD_ROWS;
        for (uint32_t i = 0; i < n; i++) {
            rows[i] = first_row + done + i;
        }
        status = moe_head_line_keep(s, d, rows, n, err);
        d->line.n_evaluated += n; /* of the next rows */
        done += n;
    }
    return status;
}

int moe_speculation_commit(moe_speculation *s, moe_session_draft *d, uint32_t *n_accepted,
                           moe_error *err)
{
    moe_speculation_stats *stats = &s->stats;
    const moe_draft_line *line = &d->line;
    uint32_t depth = d->tree.nodes[d->current].depth;
    MOE_TRY(move_accepted(s, d, err));
    MOE_TRY(commit_states(s, d, depth + 1, err));
    for (uint32_t i = 0; i <= depth; i++) {
        uint32_t position = line->n_tokens + i;
        moe_silent_note_token(s, d, position, i < depth ? line->tokens[position] : d->next);
    }
    stats->drafted += d->tree.n - 1;
    stats->accepted += depth;
    if (d->tree.n > 1) {
        bool is_head = d->drafter == MOE_DRAFTER_HEAD;
        *(is_head ? &stats->drafted_by_head : &stats->drafted_by[d->drafter]) += d->tree.n - 1;
        *(is_head ? &stats->accepted_by_head : &stats->accepted_by[d->drafter]) += depth;
        stats->sequences++;
        stats->emitted += depth + 1;
    }
    d->active = false;
    *n_accepted = depth;
    return MOE_OK;
}
