/* SPDX-License-Identifier: MIT */
/* The self-assisted draft (SpecMoE): the model itself, restricted to resident experts. All sessions
 * draft together: every level is one pass over the frontiers of all of them. The keys and values
 * that it writes are provisional: verification overwrites them and cuts off those that it does not
 * accept. */
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/draft/drafters.h"
#include "runtime/pass/runner.h"

typedef struct level {
    moe_speculation *speculation;
    moe_draft_row *rows;
    uint32_t n_rows;
    int status;
    moe_error *err;
} level;

static bool expand_row(uint32_t row, const float *hidden, const float *logits, void *user)
{
    (void)hidden;
    level *l = user;
    const moe_draft_row *at = &l->rows[row];
    l->status = moe_draft_expand(l->speculation, at->draft, at->node, logits, l->err);
    return l->status == MOE_OK;
}

static bool expand_greatest(uint32_t row, const moe_greatest *greatest, void *user)
{
    const level *l = user;
    moe_draft_expand_greatest(l->speculation, l->rows[row].draft, l->rows[row].node, greatest);
    return true;
}

static bool is_cancelled(void *user)
{
    const level *l = user;
    bool cancelled = false;
    for (uint32_t i = 0; i < l->n_rows; i++) {
        cancelled |= atomic_load_explicit(l->rows[i].draft->cancelled, memory_order_relaxed);
    }
    return cancelled;
}

/* Collects the frontiers of all sessions as the rows of the next draft pass. The pass will then
 * grow new frontiers. */
static int collect_rows(const moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                        level *l, moe_error *err)
{
    l->n_rows = 0;
    for (size_t i = 0; i < n; i++) {
        moe_session_draft *d = drafts[i];
        if (!d->active || d->n_frontier == 0) {
            continue;
        }
        if (s->tree_nodes > 0) {
            moe_draft_narrow_frontier(d, MOE_DRAFT_FRONTIER);
        }
        moe_speculation_place(d);
        for (uint32_t f = 0; f < d->n_frontier && l->n_rows < s->max_rows; f++) {
            l->rows[l->n_rows++] = (moe_draft_row){d, d->frontier[f]};
        }
        d->n_frontier = 0;
        MOE_TRY(moe_kv_table_reserve(s->runner->kv, d->kv, d->line.n_evaluated,
                                     d->line.n_evaluated + d->tree.n, err));
    }
    return MOE_OK;
}

static int run_level(moe_speculation *s, level *l, moe_error *err)
{
    bool greatest = true;
    for (uint32_t r = 0; r < l->n_rows; r++) {
        const moe_draft_row *row = &l->rows[r];
        greatest = greatest && moe_draft_takes_greatest(s, row->draft);
        const moe_tree_node *node = &row->draft->tree.nodes[row->node];
        s->pass_tokens[r] = node->token;
        s->pass_depths[r] = node->depth;
        s->pass_kv[r] = moe_speculation_row(row->draft, row->node);
        s->pass_logit_rows[r] = r;
        s->pass_states[r] = moe_state_table_run(row->draft->states, r, 1, true);
        s->pass_states[r].n_logged = node->depth;
        s->pass_states[r].to = NULL;
    }
    moe_pass pass = {.kind = MOE_PASS_DRAFT,
                     .n_rows = l->n_rows,
                     .tokens = s->pass_tokens,
                     .kv_rows = s->pass_kv,
                     .depths = s->pass_depths,
                     .state_runs = s->pass_states,
                     .n_state_runs = l->n_rows,
                     .logit_rows = s->pass_logit_rows,
                     .n_logit_rows = l->n_rows,
                     .on_logits = expand_row,
                     .on_greatest = greatest ? expand_greatest : NULL,
                     .user = l,
                     .is_cancelled = is_cancelled,
                     .cancel_user = l};
    s->n_draft_experts = 0;
    s->n_sharing = s->tree_nodes == 0 ? l->n_rows : 0;
    int status = moe_pass_run_draft(s->runner, &pass, err);
    s->n_draft_passes++;
    if (s->by_bytes) {
        s->draft_cost += moe_byte_cost_draft(&s->byte_cost, l->n_rows, s->n_draft_experts);
    }
    return status != MOE_OK ? status : l->status;
}

/* ---- Cutting drafts by the experts that their verification would have to load ---- */

typedef struct cut_point {
    const moe_foresight *foresight;
    uint32_t depth;
} cut_point;

static bool is_still_foreseen(uint32_t layer, uint32_t expert, void *user)
{
    const cut_point *cut = user;
    return moe_foresight_has(cut->foresight, layer, expert, cut->depth);
}

/* missing[i]: how many distinct experts that are not in memory were chosen by rows up to depth
 * i. */
static void count_missing(const moe_speculation *s, uint32_t max_depth, uint32_t *missing)
{
    const moe_model_config *c = s->runner->config;
    const moe_foresight *f = &s->foresees;
    memset(missing, 0, (max_depth + 1) * sizeof *missing);
    for (uint32_t l = 0; l < c->n_layer; l++) {
        if (!moe_layer_has_experts(c, l)) {
            continue;
        }
        moe_expert_store_residents(s->runner->experts, l, s->resident);
        for (uint32_t e = 0; e < c->n_expert; e++) {
            uint32_t first = f->depth[(size_t)l * c->n_expert + e];
            if (first != 0 && first - 1 <= max_depth && !s->resident[e]) {
                missing[first - 1]++;
            }
        }
    }
    for (uint32_t i = 1; i <= max_depth; i++) {
        missing[i] += missing[i - 1];
    }
}

/* Returns how many drafted tokens can be verified if verification may load at most verify_bytes.
 * The last token has not been through the draft's routers, so it is assumed to add as many
 * experts as the token before it. The decision about a token uses only the tokens before it: a
 * drawn token must not be judged by its value. */
static uint32_t affordable(const moe_speculation *s, const uint32_t *missing, uint32_t n)
{
    for (uint32_t i = 0; i < n && s->verify_bytes > 0; i++) {
        uint32_t last = i > 0 ? missing[i] - missing[i - 1] : missing[i];
        if ((missing[i] + last) * s->expert_bytes > s->verify_bytes) {
            return i;
        }
    }
    return n;
}

static uint32_t cut_drafts(moe_speculation *s, moe_session_draft *const *drafts, size_t n)
{
    uint32_t missing[MOE_MOST_DRAFT + 2];
    double fetch_cost[MOE_MOST_DRAFT + 2];
    count_missing(s, s->max_draft, missing);
    for (uint32_t i = 0; i <= s->max_draft; i++) {
        fetch_cost[i] = missing[i] * s->miss_cost;
    }
    uint32_t deepest = 0;
    for (size_t i = 0; i < n; i++) {
        moe_session_draft *d = drafts[i];
        if (!d->active) {
            continue;
        }
        moe_draft_cut(s, d, s->foresight ? fetch_cost : NULL);
        uint32_t depth = 0;
        for (uint32_t k = 0; k < d->tree.n; k++) {
            depth = d->tree.nodes[k].depth > depth ? d->tree.nodes[k].depth : depth;
        }
        uint32_t afford = affordable(s, missing, depth);
        if (afford < depth) {
            s->stats.cut_by_budget += moe_draft_cut_depth(d, afford);
            depth = afford;
        }
        deepest = depth > deepest ? depth : deepest;
    }
    return deepest;
}

/* Returns how many experts were requested on demand or by prediction. Requests of foresight are
 * not counted. */
static uint64_t n_moves(const moe_speculation *s)
{
    moe_expert_store_stats stats;
    moe_expert_store_get_stats(s->runner->experts, &stats);
    return stats.n_asked[MOE_CAUSE_DEMAND] + stats.n_asked[MOE_CAUSE_PREFETCH];
}

static int grow_trees(moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                      moe_error *err)
{
    level l = {.speculation = s, .rows = s->rows, .status = MOE_OK, .err = err};
    for (size_t i = 0; i < n; i++) {
        moe_draft_begin_frontier(drafts[i]);
    }
    int status = collect_rows(s, drafts, n, &l, err);
    while (status == MOE_OK && l.n_rows > 0) {
        status = run_level(s, &l, err);
        if (status == MOE_OK) {
            status = collect_rows(s, drafts, n, &l, err);
        }
    }
    return status;
}

int moe_draft_self(moe_speculation *s, moe_session_draft *const *drafts, size_t n, moe_error *err)
{
    uint64_t moves_before = n_moves(s);
    int status = grow_trees(s, drafts, n, err);
    if (status == MOE_OK && !s->is_silent) {
        cut_point cut = {&s->foresees, cut_drafts(s, drafts, n)};
        moe_expert_store_forget(s->runner->experts, is_still_foreseen, &cut);
    }
    s->stats.draft_moves += n_moves(s) - moves_before;
    return status;
}
