/* SPDX-License-Identifier: MIT */
/* Grows trees by a model's logits, level by level (for self draft and second model).
 *
 * A chain adds one token for each level. At temperature 0 it is the likeliest token. Above 0 it is
 * the token that the session's sampler would choose with its next random number. A draft with the
 * right distribution then names the right token, and the text is what plain decoding writes with
 * that seed. With acceptance by rejection, the draft instead draws the token with its own random
 * numbers, and keeps the distribution.
 *
 * A branching tree adds the likeliest tokens of every node of the frontier (picked, not drawn),
 * continues from the nodes whose paths are most probable by the draft, and in the end keeps the
 * most probable nodes that fit.
 *
 * Every drawn token must be verified. If tokens were dropped because they or their successors are
 * unlikely, the remaining tokens would no longer have the draft's distribution q, and the emitted
 * tokens no longer the model's distribution p. So the decision to end a drawn chain is made before
 * the next token is drawn (extend_frontier), and no later cut depends on drawn tokens. */
#include <math.h>

#include "runtime/base/error.h"
#include "runtime/draft/drafters.h"
#include "runtime/pass/runner.h"

/* The most children of a node of a branching tree. */
#define MOST_CHILDREN 8u

void moe_draft_begin_frontier(moe_session_draft *d)
{
    d->frontier[0] = 0;
    d->n_frontier = d->active && d->max_nodes > 1 && d->max_depth > 0;
}

/* Computes ln(sum exp(logit - greatest)) and the greatest logit. */
static double log_sum(const float *logits, uint32_t n, float *greatest)
{
    float max = -INFINITY;
    double sum = 0.0;
    for (uint32_t t = 0; t < n; t++) {
        max = logits[t] > max ? logits[t] : max;
    }
    for (uint32_t t = 0; t < n; t++) {
        sum += exp((double)(logits[t] - max));
    }
    *greatest = max;
    return log(sum);
}

static uint32_t add_node(const moe_speculation *s, moe_session_draft *d, uint32_t parent,
                         int32_t token, float q, float confidence)
{
    const moe_length_control *control = s->control[d->drafter];
    uint32_t child = moe_token_tree_add(&d->tree, parent, token, q, d->drafter);
    if (child != MOE_NODE_NONE) {
        d->confidence[child] = confidence;
        d->survival[child] = d->survival[parent] *
                             moe_length_survival(control, d->tree.nodes[child].depth, confidence);
    }
    return child;
}

static void extend_frontier(const moe_speculation *s, moe_session_draft *d, uint32_t node)
{
    uint32_t depth = d->tree.nodes[node].depth;
    const moe_length_control *control = s->control[d->drafter];
    if (depth < d->max_depth && !moe_draft_is_end(s, d->tree.nodes[node].token) &&
        moe_length_continues(control, depth, d->survival[node], s->n_sharing)) {
        d->frontier[d->n_frontier++] = node;
    }
}

/* ---- Chains ---- */

/* Returns the token that the session's sampler would choose after `depth` drafted tokens if the
 * draft's distribution were the model's. The sampler will have used one random number for each of
 * those tokens. */
static int32_t predict_token(moe_sampler *sampler, uint32_t depth, const moe_distribution *draft)
{
    const moe_random now = sampler->random;
    for (uint32_t i = 0; i < depth; i++) {
        moe_sampler_skip(sampler);
    }
    int32_t token = moe_sampler_draw(sampler, draft);
    sampler->random = now;
    return token;
}

/* The draft's logits for the token after a node at `depth`: the distribution that the session's
 * sampler derives from them, and the values needed to turn a logit into a probability. */
typedef struct drafted_logits {
    const float *logits;
    moe_distribution distribution;
    float greatest;
    double log_total;
} drafted_logits;

static void read_logits(const moe_speculation *s, const moe_session_draft *d, uint32_t depth,
                        const float *logits, drafted_logits *read)
{
    read->logits = logits;
    read->log_total = log_sum(logits, s->runner->config->n_vocab, &read->greatest);
    moe_sampler_distribution(d->sampler, logits, d->line.tokens, d->line.n_tokens + depth,
                             &read->distribution);
}

static float confidence_in(const drafted_logits *read, int32_t token)
{
    return (float)exp((double)(read->logits[token] - read->greatest) - read->log_total);
}

int32_t moe_draft_predict_token(const moe_speculation *s, const moe_session_draft *d,
                                uint32_t depth, const float *logits, float *confidence)
{
    drafted_logits draft;
    read_logits(s, d, depth, logits, &draft);
    int32_t token = predict_token(d->sampler, depth, &draft.distribution);
    *confidence = confidence_in(&draft, token);
    return token;
}

static void add_link(const moe_speculation *s, moe_session_draft *d, uint32_t node, int32_t token,
                     float q, float confidence)
{
    uint32_t depth = d->tree.nodes[node].depth;
    uint32_t child = add_node(s, d, node, token, q, confidence);
    if (child != MOE_NODE_NONE && d->tree.n < d->max_nodes) {
        d->line.tokens[d->line.n_tokens + depth] = token; /* so that the next token's penalties see
                                                           * it */
        extend_frontier(s, d, child);
    }
}

bool moe_draft_takes_greatest(const moe_speculation *s, const moe_session_draft *d)
{
    return s->tree_nodes == 0 && moe_sampler_takes_greatest(d->sampler);
}

void moe_draft_expand_greatest(const moe_speculation *s, moe_session_draft *d, uint32_t node,
                               const moe_greatest *greatest)
{
    add_link(s, d, node, (int32_t)greatest->index, 1.0f, greatest->share);
}

static int extend_chain(const moe_speculation *s, moe_session_draft *d, uint32_t node,
                        const float *logits, moe_error *err)
{
    uint32_t depth = d->tree.nodes[node].depth;
    drafted_logits draft;
    read_logits(s, d, depth, logits, &draft);
    int32_t token;
    float q = 1.0f;
    if (d->sampler->settings.temperature == 0.0f || !s->draws) {
        token = predict_token(d->sampler, depth, &draft.distribution);
    } else {
        MOE_TRY(moe_distribution_copy(&d->drawn[depth], &d->drawn_capacity[depth],
                                      &draft.distribution, err));
        (void)moe_distribution_draw_distinct(&draft.distribution, 1, &d->random, &token, &q);
        d->is_drawn = true;
    }
    add_link(s, d, node, token, q, confidence_in(&draft, token));
    return MOE_OK;
}

/* ---- Branching trees ---- */

/* Finds the tokens with the n greatest logits, greatest first; of equal logits, the lower token
 * comes first. */
static uint32_t greatest_tokens(const float *logits, uint32_t n_vocab, uint32_t n, int32_t *tokens)
{
    uint32_t found = 0;
    for (uint32_t t = 0; t < n_vocab; t++) {
        if (found == n && !(logits[t] > logits[tokens[n - 1]])) {
            continue;
        }
        uint32_t at = found < n ? found++ : n - 1;
        while (at > 0 && logits[t] > logits[tokens[at - 1]]) {
            tokens[at] = tokens[at - 1];
            at--;
        }
        tokens[at] = (int32_t)t;
    }
    return found;
}

static void branch(const moe_speculation *s, moe_session_draft *d, uint32_t node,
                   const float *logits)
{
    int32_t tokens[MOST_CHILDREN];
    float greatest;
    double log_total = log_sum(logits, s->runner->config->n_vocab, &greatest);
    uint32_t n = greatest_tokens(logits, s->runner->config->n_vocab, MOST_CHILDREN, tokens);
    for (uint32_t i = 0; i < n; i++) {
        float p = (float)exp((double)(logits[tokens[i]] - greatest) - log_total);
        uint32_t child = add_node(s, d, node, tokens[i], p, p);
        if (child == MOE_NODE_NONE) {
            return;
        }
        extend_frontier(s, d, child);
    }
}

static bool is_surer(const moe_token_tree *tree, uint32_t a, uint32_t b)
{
    float pa = tree->nodes[a].path;
    float pb = tree->nodes[b].path;
    return pa > pb || (pa == pb && a < b);
}

void moe_draft_narrow_frontier(moe_session_draft *d, uint32_t most)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n_frontier; i++) {
        uint32_t node = d->frontier[i];
        uint32_t at = n < most ? n++ : most;
        while (at > 0 && is_surer(&d->tree, node, d->frontier[at - 1])) {
            if (at < most) {
                d->frontier[at] = d->frontier[at - 1];
            }
            at--;
        }
        if (at < most) {
            d->frontier[at] = node;
        }
    }
    d->n_frontier = n;
}

int moe_draft_expand(const moe_speculation *s, moe_session_draft *d, uint32_t node,
                     const float *logits, moe_error *err)
{
    if (s->tree_nodes == 0) {
        return extend_chain(s, d, node, logits, err);
    }
    branch(s, d, node, logits);
    return MOE_OK;
}

/* ---- Which nodes are worth verifying ---- */

/* Moves the data of the tree's nodes to their new indices after a renumbering. A new index is
 * never greater than the old one. */
static void renumber(moe_session_draft *d, const uint32_t *moved, uint32_t n_before)
{
    for (uint32_t i = 0; i < n_before; i++) {
        if (moved[i] != MOE_NODE_NONE) {
            d->survival[moved[i]] = d->survival[i];
            d->confidence[moved[i]] = d->confidence[i];
        }
    }
}

uint32_t moe_draft_cut_depth(moe_session_draft *d, uint32_t depth)
{
    bool keep[MOE_TREE_MAX_NODES] = {true};
    uint32_t moved[MOE_TREE_MAX_NODES];
    uint32_t before = d->tree.n;
    for (uint32_t i = 0; i < before; i++) {
        keep[i] = d->tree.nodes[i].depth <= depth;
    }
    moe_token_tree_keep(&d->tree, keep, moved);
    renumber(d, moved, before);
    return before - d->tree.n;
}

/* Removes the nodes of a branching tree whose expected gain does not pay for their rows. */
static void cut_branches(const moe_length_control *control, moe_session_draft *d)
{
    bool keep[MOE_TREE_MAX_NODES] = {true};
    uint32_t moved[MOE_TREE_MAX_NODES];
    uint32_t before = d->tree.n;
    for (uint32_t i = 0; i < before; i++) {
        keep[i] = i == 0 || moe_length_keeps(control, d->survival[i]);
    }
    moe_token_tree_keep(&d->tree, keep, moved);
    renumber(d, moved, before);
    before = d->tree.n;
    if (before > d->max_nodes) {
        moe_token_tree_prune(&d->tree, d->max_nodes, moved);
        renumber(d, moved, before);
    }
}

static void cut_one(const moe_speculation *s, moe_session_draft *d, const double *fetch_cost,
                    uint32_t n_sharing)
{
    const moe_length_control *control = s->control[d->drafter];
    uint32_t before = d->tree.n;
    if (before == 1 || d->is_drawn) {
        return;
    }
    if (s->tree_nodes == 0) {
        uint32_t kept = moe_length_cut(control, d->survival + 1, fetch_cost, before - 1, n_sharing);
        (void)moe_draft_cut_depth(d, kept);
    } else {
        cut_branches(control, d);
    }
}

void moe_draft_cut(const moe_speculation *s, moe_session_draft *d, const double *fetch_cost)
{
    cut_one(s, d, fetch_cost, 0);
}

/* The fewer sessions draft, the more each session's row costs. So if a round drops the draft of a
 * session, another round follows. */
void moe_draft_cut_together(const moe_speculation *s, moe_session_draft *const *drafts, size_t n)
{
    uint32_t before = 0, now = 0;
    do {
        before = now;
        now = 0;
        for (size_t i = 0; i < n; i++) {
            now += drafts[i]->active && drafts[i]->tree.n > 1;
        }
        for (size_t i = 0; i < n && now != before; i++) {
            if (drafts[i]->active) {
                cut_one(s, drafts[i], NULL, now);
            }
        }
    } while (now != before);
}
