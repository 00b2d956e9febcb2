/* SPDX-License-Identifier: MIT */
/* Speculation's decisions in one step: which session drafts how much, with which drafter, and
 * what that cost. */
#include "runtime/draft/speculation.h"

#include "runtime/base/clock.h"
#include "runtime/draft/draft_head.h"
#include "runtime/draft/drafters.h"
#include "runtime/draft/lookahead.h"
#include "runtime/draft/miss_model.h"
#include "runtime/pass/runner.h"

/* Weight of the newest sample in the average cost of a missing expert. */
#define PLAIN_MEMORY     0.98 /* decay of the sums over plain passes */
#define MISS_COST_WEIGHT 0.1

/* `auto` drafts with the model itself only for this many sessions or more: with a cache it has not
 * paid for fewer (bench/results/speculation.md). */
#define SELF_LEAST_SESSIONS 4u

/* Returns how many rows drafts may take in the pass. They are divided evenly among the sessions
 * that write. */
static uint32_t rows_for_drafts(moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                                uint32_t n_busy)
{
    s->n_writing = 0;
    for (size_t i = 0; i < n; i++) {
        s->n_writing += drafts[i]->line.writes;
    }
    return s->n_writing == 0 || n_busy >= s->max_rows ? 0 : (s->max_rows - n_busy) / s->n_writing;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

uint32_t moe_speculation_room(const moe_speculation *s, const moe_draft_line *line)
{
    uint32_t most = s->max_draft;
    bool is_single = line->n_tokens == line->n_evaluated + 1;
    if (s->ahead != NULL && is_single && s->ahead->n_ahead + 1 > most) {
        most = s->ahead->n_ahead + 1;
    }
    bool drafts = line->writes || (s->ahead != NULL && is_single);
    return drafts && !line->ends ? min_u32(most, line->left) + 1 : 0;
}

/* Resets the tree of each session that writes to its root. */
static void reset_trees(const moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                        uint32_t rows)
{
    uint32_t wanted = s->tree_nodes > 0 ? s->tree_nodes : s->max_draft;
    for (size_t i = 0; i < n; i++) {
        moe_session_draft *d = drafts[i];
        const moe_draft_line *line = &d->line;
        d->active = false;
        d->tree.n = 0;
        if (!line->writes || line->ends) {
            continue;
        }
        moe_token_tree_reset(&d->tree, line->tokens[line->n_tokens - 1]);
        d->max_nodes = 1 + min_u32(min_u32(wanted, rows), line->left);
        d->room = min_u32(s->max_draft, line->left);
        d->max_depth = d->room;
        d->current = 0;
        d->decided = false;
        d->is_drawn = false;
        d->survival[0] = 1.0;
        d->active = true;
    }
}

static uint32_t n_drafted(moe_session_draft *const *drafts, size_t n)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += drafts[i]->active ? drafts[i]->tree.n - 1 : 0;
    }
    return sum;
}

/* Asks the length controller of this kind of drafter how many tokens to draft; 0: none now. */
static uint32_t begin_drafter(moe_speculation *s, moe_drafter kind)
{
    bool left_out = kind == MOE_DRAFTER_SELF && s->is_auto && s->n_writing < SELF_LEAST_SESSIONS;
    if (!s->use[kind] || left_out) {
        return 0;
    }
    s->begun[kind] = true;
    return moe_length_begin(s->control[kind], s->n_writing);
}

static void limit_depth(moe_session_draft *const *drafts, size_t n, uint32_t length)
{
    for (size_t i = 0; i < n; i++) {
        moe_session_draft *d = drafts[i];
        d->max_depth = min_u32(d->room, length);
    }
}

/* Whether a drafter needs a plain pass, to compare its costs with. */
static bool wants_plain(const moe_speculation *s)
{
    bool wants = false;
    for (int d = 0; d < MOE_DRAFTERS; d++) {
        wants |= s->begun[d] && moe_length_wants_plain(s->control[d]);
    }
    return wants;
}

/* Returns the length of a silent draft. Drafts whose tokens are drawn are never silent, because
 * their acceptance is drawn, too, and comparing tokens does not show it. */
static uint32_t listen_length(const moe_speculation *s, moe_drafter kind,
                              moe_session_draft *const *drafts, size_t n)
{
    bool pending = s->draws;
    for (size_t i = 0; i < n; i++) {
        const moe_session_draft *d = drafts[i];
        pending |= d->active && moe_silent_is_pending(&d->silent[kind], &d->line);
    }
    return pending ? 0 : moe_length_listen(s->control[kind]);
}

static int draft_with(moe_speculation *s, moe_drafter kind, moe_session_draft *const *drafts,
                      size_t n, bool silent, moe_error *err)
{
    s->is_silent = silent;
    int status = kind == MOE_DRAFTER_HEAD   ? moe_draft_by_head(s, drafts, n, err)
                 : kind == MOE_DRAFTER_SELF ? moe_draft_self(s, drafts, n, err)
                                            : s->parts.run_model(s->parts.model, s, drafts, n, err);
    s->is_silent = false;
    for (size_t i = 0; i < n && silent; i++) {
        if (drafts[i]->active) {
            moe_silent_keep(drafts[i], kind);
        }
    }
    return status;
}

static void take_drafter(moe_speculation *s, moe_drafter kind, moe_session_draft *const *drafts,
                         size_t n, uint32_t length)
{
    s->drafter = kind;
    for (size_t i = 0; i < n; i++) {
        drafts[i]->drafter = kind;
    }
    limit_depth(drafts, n, length);
}

/* Drafts from the sessions' texts. This comes first because it costs no pass; the other drafters
 * must then promise more. */
static int draft_from_text(moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                           moe_error *err)
{
    if (!s->use[MOE_DRAFTER_NGRAM]) {
        return MOE_OK;
    }
    uint32_t length = begin_drafter(s, MOE_DRAFTER_NGRAM);
    take_drafter(s, MOE_DRAFTER_NGRAM, drafts, n, length);
    return moe_draft_ngram(s, drafts, n, length, err);
}

static void drop_drafts(moe_session_draft *const *drafts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        moe_session_draft *d = drafts[i];
        if (d->active) {
            moe_token_tree_reset(&d->tree, d->line.tokens[d->line.n_tokens - 1]);
        }
    }
}

/* Uses, of the drafters that need passes, the one with the greatest expected gain, if that is
 * greater than the gain of the drafts from the text. If nothing is drafted, a drafter may draft
 * silently. */
static int draft_by_passes(moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                           moe_error *err)
{
    static const moe_drafter own[] = {MOE_DRAFTER_HEAD, MOE_DRAFTER_SELF, MOE_DRAFTER_MODEL};
    moe_drafter best = MOE_DRAFTER_NONE;
    uint32_t length = 0;
    bool found = n_drafted(drafts, n) > 0;
    double most = found ? moe_length_promise(s->control[MOE_DRAFTER_NGRAM]) : 0;
    for (int i = 0; i < 3; i++) {
        uint32_t now = begin_drafter(s, own[i]);
        double promise = now > 0 ? moe_length_promise(s->control[own[i]]) : 0;
        bool first = best == MOE_DRAFTER_NONE && !found;
        if (now > 0 && (first || promise > most)) {
            best = own[i];
            length = now;
            most = promise;
        }
    }
    bool silent = best == MOE_DRAFTER_NONE && !found;
    for (int i = 0; i < 2 && silent && length == 0; i++) {
        length = s->begun[own[i]] ? listen_length(s, own[i], drafts, n) : 0;
        best = length > 0 ? own[i] : best;
    }
    if (length == 0 || wants_plain(s)) {
        return MOE_OK;
    }
    drop_drafts(drafts, n);
    take_drafter(s, best, drafts, n, length);
    return draft_with(s, best, drafts, n, silent, err);
}

static int draft_all(moe_speculation *s, moe_session_draft *const *drafts, size_t n, moe_error *err)
{
    uint64_t begin = moe_now_ns();
    int status = draft_from_text(s, drafts, n, err);
    status = status == MOE_OK ? draft_by_passes(s, drafts, n, err) : status;
    uint64_t ns = moe_now_ns() - begin;
    s->stats.draft_ns += ns;
    if (!s->by_bytes && n_drafted(drafts, n) + s->n_draft_passes > 0) {
        s->draft_cost += (double)ns;
    }
    if (wants_plain(s)) {
        drop_drafts(drafts, n);
    }
    for (size_t i = 0; i < n; i++) { /* a verified draft needs no silent draft */
        moe_session_draft *d = drafts[i];
        if (d->active && d->tree.n > 1 && d->drafter == MOE_DRAFTER_NGRAM) {
            d->silent[MOE_DRAFTER_NGRAM].n = d->silent[MOE_DRAFTER_NGRAM].n_right;
        }
    }
    return status;
}

int moe_speculation_draft(moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                          uint32_t n_busy, moe_error *err)
{
    uint32_t rows = rows_for_drafts(s, drafts, n, n_busy);
    s->draft_cost = 0.0;
    s->n_draft_passes = 0;
    s->n_sharing = 0;
    s->head_work = (moe_head_work){0};
    s->n_recorded_passes = 0;
    s->drafter = MOE_DRAFTER_NONE;
    for (int d = 0; d < MOE_DRAFTERS; d++) {
        s->begun[d] = false;
    }
    moe_foresight_reset(&s->foresees);
    int status = s->ahead != NULL ? moe_lookahead_run(s, drafts, n, err) : MOE_OK;
    reset_trees(s, drafts, n, rows);
    if (rows > 0 && status == MOE_OK) {
        status = draft_all(s, drafts, n, err);
    }
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        if (drafts[i]->active) {
            moe_speculation_place(drafts[i]);
        }
    }
    return status;
}

/* Finds the row of the accepted path at this depth in a session's tree. False: the path is
 * shorter. */
static bool row_at_depth(const moe_session_draft *d, uint32_t depth, uint32_t first_row,
                         uint32_t *row)
{
    uint32_t node = d->current;
    if (d->tree.nodes[node].depth < depth) {
        return false;
    }
    while (d->tree.nodes[node].depth > depth) {
        node = d->tree.nodes[node].parent;
    }
    *row = first_row + node;
    return true;
}

/* Collects the accepted rows at one depth of all sequences that have trees. Returns their
 * number. */
static uint32_t rows_at_depth(moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                              uint32_t depth, const uint32_t *first_row, const uint32_t *n_rows_of)
{
    uint32_t n_rows = 0;
    for (size_t i = 0; i < n; i++) {
        if (drafts[i]->active && n_rows_of[i] > 0 &&
            row_at_depth(drafts[i], depth, first_row[i], &s->accepted_rows[n_rows])) {
            s->accepted_of[n_rows++] = (uint32_t)i;
        }
    }
    return n_rows;
}

/* Reports to the miss model which experts a pass with prompts has used. Such a pass tells nothing
 * about decoding. */
static void note_prompts(moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                         const uint32_t *first_row, const uint32_t *n_rows_of)
{
    uint32_t n_rows = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t depth = drafts[i]->active ? drafts[i]->tree.nodes[drafts[i]->current].depth : 0;
        for (uint32_t r = 0; !drafts[i]->active && r < n_rows_of[i]; r++) {
            s->accepted_rows[n_rows++] = first_row[i] + r;
        }
        for (uint32_t at = 0; drafts[i]->active && n_rows_of[i] > 0 && at <= depth; at++) {
            n_rows += row_at_depth(drafts[i], at, first_row[i], &s->accepted_rows[n_rows]);
        }
    }
    moe_miss_model_plain(s->misses, s->accepted_rows, n_rows);
}

void moe_speculation_note_accepted(moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                                   const uint32_t *first_row, const uint32_t *n_rows_of)
{
    if (s->misses == NULL) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (!drafts[i]->active && n_rows_of[i] > 0) {
            note_prompts(s, drafts, n, first_row, n_rows_of);
            return;
        }
    }
    uint32_t n_sequences = rows_at_depth(s, drafts, n, 0, first_row, n_rows_of);
    for (uint32_t depth = 0, n_rows = n_sequences; n_rows > 0;
         n_rows = rows_at_depth(s, drafts, n, ++depth, first_row, n_rows_of)) {
        moe_miss_model_accept(s->misses, s->accepted_rows, s->accepted_of, n_rows, n_sequences);
    }
}

void moe_speculation_begin_chunk(moe_speculation *s, uint32_t layer)
{
    moe_foresight_reset(&s->foresees);
    if (s->misses != NULL) {
        moe_miss_model_scan(s->misses, layer);
    }
}

void moe_speculation_end_chunk(moe_speculation *s, uint32_t n_rows)
{
    if (s->misses != NULL) {
        moe_miss_model_end_chunk(s->misses, n_rows);
    }
}

/* Updates the average cost of a missing expert, if the pass waited for experts. */
static void note_miss_cost(moe_speculation *s, double fetch_cost)
{
    moe_expert_store_stats now;
    moe_expert_store_get_stats(s->runner->experts, &now);
    uint64_t n = now.misses - s->misses_before;
    s->misses_before = now.misses;
    if (n > 0) {
        double cost = fetch_cost / (double)n;
        s->miss_cost += (s->miss_cost == 0.0 ? 1.0 : MISS_COST_WEIGHT) * (cost - s->miss_cost);
    }
}

/* Returns the cost of a modelled miss of plain decoding: the time that plain passes waited,
 * divided by their modelled misses. This includes the effect of prefetching without speculation. */
static double plain_miss_cost(moe_speculation *s, const moe_miss_counts *counts, double fetch,
                              bool is_plain)
{
    if (s->by_bytes) {
        return moe_byte_cost_miss(&s->byte_cost);
    }
    if (is_plain) {
        s->plain_wait = PLAIN_MEMORY * s->plain_wait + fetch;
        s->plain_missed = PLAIN_MEMORY * s->plain_missed + (double)counts->missed;
    }
    return s->plain_missed > 0 ? s->plain_wait / s->plain_missed : 0.0;
}

/* Returns the share of chosen experts that were in memory. Only the self draft depends on it;
 * unknown for other drafters. */
static double resident_share(const moe_miss_counts *counts, int drafter)
{
    bool known = drafter == MOE_DRAFTER_SELF && counts->plain_choices > 0;
    return known ? (double)counts->plain_resident / (double)counts->plain_choices : -1;
}

static double fresh_share(const moe_miss_counts *counts)
{
    bool known = counts->plain_missed > 0 && counts->plain_compared == counts->plain_passes;
    return known ? (double)counts->plain_fresh / (double)counts->plain_missed : -1;
}

/* Returns how long plain decoding of the tokens would have waited for experts. Tokens whose rows
 * are in no modelled plain pass yet are assumed to cost as much as the others. */
static double note_modelled(moe_speculation *s, const moe_miss_counts *counts, uint32_t n_emitted,
                            double miss_cost, double cost)
{
    double each = counts->plain_rows > 0 ? (double)n_emitted / (double)counts->plain_rows : 0.0;
    double plain_fetch = each * (double)counts->plain_missed * miss_cost;
    if (s->by_bytes) {
        s->stats.modelled_cost += cost;
        s->stats.modelled_plain_cost +=
            plain_fetch + each * moe_byte_cost_passes(&s->byte_cost, counts->plain_passes,
                                                      counts->plain_rows, counts->plain_used);
    }
    return plain_fetch;
}

void moe_speculation_end(moe_speculation *s, uint32_t n_rows, uint32_t n_emitted,
                         uint32_t n_tree_rows, uint64_t verify_ns, uint64_t wait_ns)
{
    double verify = (double)verify_ns;
    double fetch = (double)wait_ns;
    moe_miss_counts counts = {0};
    if (s->misses != NULL) {
        counts = moe_miss_model_take(s->misses);
    }
    if (s->by_bytes) {
        s->miss_cost = moe_byte_cost_miss(&s->byte_cost);
        fetch = (double)counts.missed * s->miss_cost;
        verify = fetch + moe_byte_cost_passes(&s->byte_cost, 1, n_rows, counts.used);
    } else {
        note_miss_cost(s, fetch);
    }
    if (s->n_writing == 0 || n_rows != n_tree_rows) {
        if (s->misses != NULL) {
            moe_miss_model_begin(s->misses);
        }
        return; /* a pass with prompts says nothing about decoding */
    }
    uint32_t n_drafted_rows = n_rows - s->n_writing;
    bool is_plain = n_drafted_rows == 0 && s->n_draft_passes == 0;
    double draft_cost = s->draft_cost;
    if (s->by_bytes) {
        draft_cost += moe_byte_cost_head(&s->byte_cost, &s->head_work);
    }
    double miss_cost = plain_miss_cost(s, &counts, fetch, is_plain);
    double plain_fetch = note_modelled(s, &counts, n_emitted, miss_cost, draft_cost + verify);
    if (n_drafted_rows > 0) {
        s->stats.passes++;
        s->stats.verify_ns += verify_ns;
    }
    s->stats.draft_passes += s->n_draft_passes;
    s->stats.draft_passes_recorded += s->n_recorded_passes;
    /* The drafter that was used in this step comes first, because only its cost is booked on the
     * account. */
    bool is_booked = false;
    for (int i = -1; i < MOE_DRAFTERS; i++) {
        int d = i < 0 ? (int)s->drafter : i;
        bool mine = s->drafter == (moe_drafter)d;
        bool done = d == MOE_DRAFTERS || (mine && i >= 0);
        if (done || !s->begun[d] || (!mine && n_drafted_rows > 0)) {
            continue;
        }
        moe_length_iteration iteration = {.n_sequences = s->n_writing,
                                          .n_drafted = mine ? n_drafted_rows : 0,
                                          .n_draft_passes = mine ? s->n_draft_passes : 0,
                                          .n_rows = n_rows,
                                          .n_emitted = n_emitted,
                                          .draft_cost = is_booked ? 0.0 : draft_cost,
                                          .verify_cost = verify,
                                          .fetch_cost = fetch,
                                          .is_booked = is_booked,
                                          .models_misses = s->misses != NULL && miss_cost > 0,
                                          .modelled_fetch = (double)counts.missed * miss_cost,
                                          .plain_fetch = plain_fetch,
                                          .fresh = fresh_share(&counts),
                                          .resident_share = resident_share(&counts, d)};
        moe_length_end(s->control[d], &iteration);
        is_booked = true;
    }
}

_Static_assert(MOE_HABIT_DRAFTERS == MOE_DRAFTERS, "a habit for each drafter");

bool moe_speculation_get_habits(const moe_speculation *s, moe_draft_habits *habits)
{
    *habits = (moe_draft_habits){0};
    if (s == NULL) {
        return false;
    }
    const moe_calibration *calibration = s->parts.calibration;
    if (calibration != NULL && calibration->drafts != NULL) {
        *habits = *calibration->drafts;
    }
    bool any = false;
    for (int d = 0; d < MOE_DRAFTERS; d++) {
        any |= s->control[d] != NULL && moe_length_get_habit(s->control[d], &habits->of[d]);
    }
    return any;
}

void moe_speculation_get_stats(const moe_speculation *s, const moe_expert_store_stats *experts,
                               moe_speculation_stats *stats)
{
    if (s == NULL) {
        return;
    }
    *stats = s->stats;
    moe_foresight_get_stats(&s->foresees, stats);
    stats->verify_bytes_ready = experts->bytes_verify[MOE_VERIFY_READY];
    stats->verify_bytes_loading = experts->bytes_verify[MOE_VERIFY_LOADING];
    stats->verify_bytes_queued = experts->bytes_verify[MOE_VERIFY_QUEUED];
    stats->verify_bytes_predicted = experts->bytes_verify[MOE_VERIFY_PREDICTED];
    stats->verify_bytes_missed = experts->bytes_verify[MOE_VERIFY_MISSED];
    stats->bytes_foresight = experts->bytes_foresight;
    stats->bytes_disk_foresight = experts->bytes_disk_foresight;
    stats->utility = stats->utility_mean = stats->utility_worst = 1.0;
    uint64_t most = 0;
    for (int d = 0; d < MOE_DRAFTERS; d++) {
        moe_length_report report;
        if (s->control[d] == NULL) {
            continue;
        }
        moe_length_get_report(s->control[d], &report);
        if (report.utility_worst < stats->utility_worst) {
            stats->utility_worst = report.utility_worst;
        }
        if (report.n_speculating > most) { /* the drafter that was used most */
            most = report.n_speculating;
            stats->utility_mean = report.utility_harmonic_mean;
        }
        if (report.draft_length >= stats->draft_length) {
            stats->draft_length = report.draft_length;
            stats->utility = report.utility;
        }
    }
}
