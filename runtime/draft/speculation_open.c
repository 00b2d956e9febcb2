/* SPDX-License-Identifier: MIT */
/* Checks the options of speculation, and opens it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/moe.h>

#include "cache/expert_cache.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/draft/draft_head.h"
#include "runtime/draft/drafters.h"
#include "runtime/draft/lookahead.h"
#include "runtime/pass/runner.h"
#include "runtime/draft/miss_model.h"

#define DEFAULT_DRAFT_MAX 8u
#define SHUFFLE_SEED      0x5eedu
#define MOST_ITERATIONS   1000000u

bool moe_speculation_by_bytes(const moe_engine_options *o)
{
    return o->lab->cost_by_bytes;
}

static bool is_off(const moe_engine_options *o)
{
    return o->speculate == MOE_SPECULATE_OFF;
}

static bool is_table(moe_stand_in affinity)
{
    return affinity >= MOE_STAND_IN_OUTPUT && affinity <= MOE_STAND_IN_ROUTER;
}

/* Rejects options that only have an effect with speculation, if speculation is off. */
static int check_unused(const moe_engine_options *o, moe_error *err)
{
    const moe_lab_options *lab = o->lab;
    const char *name = o->draft_max != 0                              ? "options.draft_max"
                       : o->tree_nodes != 0                           ? "options.tree_nodes"
                       : o->acceptance != MOE_ACCEPTANCE_EXACT        ? "options.acceptance"
                       : lab->length_control != MOE_LENGTH_SURVIVAL   ? "options.lab.length_control"
                       : lab->draft_experts != 0                      ? "options.lab.draft_experts"
                       : lab->draft_pin != MOE_DRAFT_PIN_HOT_TEMPORAL ? "options.lab.draft_pin"
                       : lab->affinity != MOE_STAND_IN_TOPK           ? "options.lab.affinity"
                       : lab->foresight != MOE_SWITCH_AUTO            ? "options.lab.foresight"
                       : lab->verify_bytes != 0                       ? "options.lab.verify_bytes"
                                                                      : NULL;
    return name == NULL ? MOE_OK
                        : moe_fail(err, MOE_ERR_ARGUMENT,
                                   "%s acts on speculation, which is off%s; set options.speculate",
                                   name, o->lookahead > 0 ? " with options.lookahead" : "");
}

/* Checks the constants and rules of the controller cascade. */
static int check_cascade(const moe_lab_options *lab, moe_error *err)
{
    const struct {
        const char *field;
        uint32_t value;
    } counts[] = {{"trial_iterations", lab->trial_iterations},
                  {"test_trials", lab->test_trials},
                  {"set_iterations", lab->set_iterations},
                  {"refresh_iterations", lab->refresh_iterations}};
    bool any = lab->no_back_off || lab->no_early_exit || lab->no_disable || lab->no_climb;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        any |= counts[i].value != 0;
        if (counts[i].value > MOST_ITERATIONS) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "options.lab.%s must be 1 to %u, not %u",
                            counts[i].field, MOST_ITERATIONS, counts[i].value);
        }
    }
    return !any || lab->length_control == MOE_LENGTH_CASCADE
               ? MOE_OK
               : moe_fail(err, MOE_ERR_ARGUMENT,
                          "Cascade's constants and rules cannot act: they need "
                          "options.lab.length_control to be MOE_LENGTH_CASCADE");
}

static int check_lookahead(const moe_engine_options *o, moe_error *err)
{
    if (o->lookahead > MOE_MOST_AHEAD + 1) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "lookahead must be 0 (off) to %u, not %u",
                        MOE_MOST_AHEAD + 1, o->lookahead);
    }
    if (o->lookahead > 0 && !is_off(o) && o->speculate != MOE_SPECULATE_NGRAM) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.lookahead needs the keys and values behind the text's end for "
                        "itself: options.speculate must be MOE_SPECULATE_OFF or _NGRAM");
    }
    if (o->lookahead > 0 && o->lab->offload != MOE_OFFLOAD_AUTO) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.lookahead cannot act: options.lab.offload is a baseline, which "
                        "keeps nothing for what is coming");
    }
    if (o->lookahead > 0 && o->lab->route_trace != NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.lookahead cannot act on a replayed routing, which does not know "
                        "what a draft will hold");
    }
    if (o->lab->lookahead_overlap == MOE_SWITCH_ON && o->lookahead == 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.lab.lookahead_overlap acts on lookahead, which is off; set "
                        "options.lookahead");
    }
    return MOE_OK;
}

int moe_speculation_check_policy(const moe_engine_options *o, const moe_policy *policy,
                                 moe_error *err)
{
    return o->lookahead == 0 || moe_policy_looks_ahead(policy)
               ? MOE_OK
               : moe_fail(err, MOE_ERR_ARGUMENT,
                          "options.lookahead tells the cache policy what is coming, but '%.100s' "
                          "looks at the past alone; options.policy could be " MOE_POLICY_DEFAULT,
                          policy->name);
}

int moe_speculation_check(const moe_engine_options *o, moe_error *err)
{
    int status = check_cascade(o->lab, err);
    status = status == MOE_OK ? check_lookahead(o, err) : status;
    if (status != MOE_OK || is_off(o)) {
        return status != MOE_OK ? status : check_unused(o, err);
    }
    if (o->lab->offload == MOE_OFFLOAD_OVERLAP || o->lab->route_trace != NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "speculation cannot act in offload mode overlap or on a replayed routing: "
                        "neither knows what a draft will hold");
    }
    if (o->speculate == MOE_SPECULATE_MODEL &&
        (o->draft_model == NULL || o->draft_model[0] == '\0')) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.speculate is MOE_SPECULATE_MODEL, and options.draft_model names "
                        "no file");
    }
    if (o->draft_max > MOE_MOST_DRAFT) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "draft_max must be 1 to %u, not %u", MOE_MOST_DRAFT,
                        o->draft_max);
    }
    if (o->tree_nodes >= MOE_TREE_MAX_NODES) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "tree_nodes must be 1 to %u, not %u",
                        MOE_TREE_MAX_NODES - 1, o->tree_nodes);
    }
    return MOE_OK;
}

bool moe_speculation_may_self(const moe_engine_options *o, bool *has_affinity)
{
    *has_affinity = is_table(o->lab->affinity) || o->lab->affinity == MOE_STAND_IN_SHUFFLED;
    return o->speculate == MOE_SPECULATE_AUTO || o->speculate == MOE_SPECULATE_SELF;
}

uint32_t moe_speculation_kept_experts(const moe_engine_options *o)
{
    bool global = !is_off(o) && o->lab->draft_pin == MOE_DRAFT_PIN_HOT_GLOBAL;
    return global ? o->lab->draft_experts : 0;
}

/* Returns a table in which each expert's substitutes are in random order: the baseline that
 * affinities are compared with. */
static uint16_t *shuffled_table(const moe_model_config *c)
{
    moe_random random;
    moe_random_seed(&random, SHUFFLE_SEED);
    uint16_t *table = moe_calloc((size_t)c->n_layer * c->n_expert, c->n_expert * sizeof *table);
    for (size_t row = 0; table != NULL && row < (size_t)c->n_layer * c->n_expert; row++) {
        uint16_t *order = table + row * c->n_expert;
        for (uint32_t i = 0; i < c->n_expert; i++) {
            uint32_t at = (uint32_t)(moe_random_next(&random) % (i + 1));
            order[i] = order[at];
            order[at] = (uint16_t)i;
        }
    }
    return table;
}

static int choose_fill(moe_speculation *s, const moe_engine_options *o, moe_error *err)
{
    const moe_calibration *calibration = s->parts.calibration;
    static const struct {
        const char *name;
        int table; /* of the calibration */
    } tables[] = {[MOE_STAND_IN_OUTPUT] = {"output", MOE_AFFINITY_OUTPUT},
                  [MOE_STAND_IN_WEIGHT] = {"weight", MOE_AFFINITY_WEIGHT},
                  [MOE_STAND_IN_COACT] = {"coact", MOE_AFFINITY_COACT},
                  [MOE_STAND_IN_ROUTER] = {"router", MOE_AFFINITY_ROUTER}};
    moe_stand_in kind = o->lab->affinity;
    s->fill = kind == MOE_STAND_IN_RANDOM ? MOE_DRAFT_FILL_RANDOM
              : kind == MOE_STAND_IN_TOPK ? MOE_DRAFT_FILL_ROUTER
              : kind == MOE_STAND_IN_NONE ? MOE_DRAFT_FILL_NONE
                                          : MOE_DRAFT_FILL_AFFINITY;
    if (kind == MOE_STAND_IN_SHUFFLED) {
        s->shuffled = shuffled_table(s->runner->config);
        s->affinity = s->shuffled;
        return s->shuffled != NULL
                   ? MOE_OK
                   : moe_fail(err, MOE_ERR_MEMORY, "no memory for a shuffled affinity table");
    }
    if (s->fill != MOE_DRAFT_FILL_AFFINITY) {
        return MOE_OK;
    }
    if (calibration == NULL) {
        char what[64];
        snprintf(what, sizeof what, "options.lab.affinity '%s'", tables[kind].name);
        return moe_calibration_fail_missing(what, o, err);
    }
    s->affinity = calibration->affinity[tables[kind].table];
    return moe_calibration_need_tables(calibration, s->runner->model_path, "an affinity table",
                                       err);
}

static int check_draft_experts(const moe_speculation *s, const moe_engine_options *o,
                               moe_error *err)
{
    const moe_model_config *c = s->runner->config;
    uint64_t n_slots = s->runner->plan->expert_slots;
    if (s->draft_experts == 0) {
        return MOE_OK;
    }
    if (s->draft_experts < c->n_expert_used || s->draft_experts > c->n_expert) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.lab.draft_experts must be %u (what a token uses) to %u, not %u",
                        c->n_expert_used, c->n_expert, s->draft_experts);
    }
    uint32_t n_layer = 0;
    for (uint32_t l = 0; l < c->n_layer; l++) {
        n_layer += moe_layer_has_experts(c, l);
    }
    uint64_t kept = (uint64_t)s->draft_experts * n_layer;
    if (kept + c->n_expert_used > n_slots) {
        return moe_fail(err, MOE_ERR_BUDGET,
                        "%u experts of each of %u layers are to stay for the draft, but %llu slots "
                        "leave no room beside them; lower options.lab.draft_experts or raise "
                        "options.expert_cache_share",
                        s->draft_experts, n_layer, (unsigned long long)n_slots);
    }
    return s->pin == MOE_DRAFT_PIN_HOT_GLOBAL && s->parts.calibration == NULL
               ? moe_calibration_fail_missing("options.lab.draft_pin hot-global", o, err)
               : MOE_OK;
}

static void choose_drafters(moe_speculation *s, const moe_engine_options *o)
{
    if (is_off(o)) {
        return; /* only counts costs, drafts nothing */
    }
    bool is_auto = o->speculate == MOE_SPECULATE_AUTO;
    s->use[MOE_DRAFTER_NGRAM] = is_auto || o->speculate == MOE_SPECULATE_NGRAM;
    /* If every expert is in memory, a self draft costs as much as the model itself. */
    bool misses = s->runner->plan->expert_slots < s->runner->plan->experts;
    s->is_auto = is_auto;
    s->use[MOE_DRAFTER_SELF] = (is_auto && misses) || o->speculate == MOE_SPECULATE_SELF;
    s->use[MOE_DRAFTER_MODEL] = o->speculate == MOE_SPECULATE_MODEL;
    s->use[MOE_DRAFTER_HEAD] = s->parts.head != NULL;
}

static int allocate(moe_speculation *s, moe_error *err)
{
    const moe_model_config *c = s->runner->config;
    s->resident = moe_calloc(c->n_expert, sizeof *s->resident);
    s->score = moe_calloc(c->n_expert, sizeof *s->score);
    s->pinned = moe_calloc((size_t)c->n_layer * c->n_expert, sizeof *s->pinned);
    s->n_pinned = moe_calloc(c->n_layer, sizeof *s->n_pinned);
    uint32_t n_rows = s->max_rows;
    s->accepted_rows = moe_calloc(n_rows, sizeof *s->accepted_rows);
    s->accepted_of = moe_calloc(n_rows, sizeof *s->accepted_of);
    s->rows = moe_calloc(n_rows, sizeof *s->rows);
    s->pass_tokens = moe_calloc(n_rows, sizeof *s->pass_tokens);
    s->pass_depths = moe_calloc(n_rows, sizeof *s->pass_depths);
    s->pass_kv = moe_calloc(n_rows, sizeof *s->pass_kv);
    s->pass_logit_rows = moe_calloc(n_rows, sizeof *s->pass_logit_rows);
    s->pass_states = moe_calloc(n_rows, sizeof *s->pass_states);
    if (s->resident == NULL || s->score == NULL || s->pinned == NULL || s->n_pinned == NULL ||
        s->accepted_rows == NULL || s->accepted_of == NULL || s->rows == NULL ||
        s->pass_tokens == NULL || s->pass_depths == NULL || s->pass_kv == NULL ||
        s->pass_logit_rows == NULL || s->pass_states == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for speculation");
    }
    return moe_foresight_init(&s->foresees, c->n_layer, c->n_expert, err);
}

static void price_passes(moe_speculation *s, const moe_engine_options *o)
{
    const moe_draft_head *head = s->parts.head;
    s->by_bytes = moe_speculation_by_bytes(o);
    moe_byte_cost_init(&s->byte_cost, s->parts.map, s->runner->config->n_expert_used);
    if (head != NULL) {
        uint64_t own = head->map.output.size;
        s->byte_cost.head_layer_bytes = (double)head->layer_bytes;
        s->byte_cost.head_output_bytes = (double)(own > 0 ? own : s->parts.map->output.size);
    }
}

/* Returns the assumed cost of a drafter's pass, as a share of a plain pass's computing. For a
 * drafting layer it follows from its bytes. For the model itself, or a second model, it is 1
 * until a pass was measured. */
static double draft_pass_cost(const moe_speculation *s, moe_drafter drafter)
{
    const moe_byte_cost *cost = &s->byte_cost;
    return drafter == MOE_DRAFTER_NGRAM ? 0
           : drafter == MOE_DRAFTER_HEAD
               ? (cost->head_layer_bytes + cost->head_output_bytes) / cost->active_bytes
               : 1;
}

static int open_control(moe_speculation *s, const moe_engine_options *o, moe_error *err)
{
    const moe_lab_options *lab = o->lab;
    moe_length_options options = {.kind = lab->length_control,
                                  .max_draft = s->max_draft,
                                  .trial_iterations = lab->trial_iterations,
                                  .test_trials = lab->test_trials,
                                  .set_iterations = lab->set_iterations,
                                  .refresh_iterations = lab->refresh_iterations,
                                  .no_back_off = lab->no_back_off,
                                  .no_early_exit = lab->no_early_exit,
                                  .no_disable = lab->no_disable,
                                  .no_climb = lab->no_climb};
    const moe_calibration *calibration = s->parts.calibration;
    const moe_draft_habits *known = calibration != NULL ? calibration->drafts : NULL;
    bool all_fit = s->runner->plan->expert_slots >= s->runner->plan->experts;
    options.tier = all_fit                   ? MOE_DRAFT_TIER_NONE
                   : s->parts.is_behind_link ? MOE_DRAFT_TIER_LINK
                                             : MOE_DRAFT_TIER_DISK;
    for (int d = 0; d < MOE_DRAFTERS; d++) {
        if (s->use[d]) {
            options.draft_pass = draft_pass_cost(s, (moe_drafter)d);
            options.account = &s->account;
            options.habit = known != NULL ? &known->of[d] : NULL;
            MOE_TRY(moe_length_control_create(&s->control[d], &options, err));
        }
    }
    return MOE_OK;
}

/* With hot-global, the experts for drafts are fixed from the beginning. */
static void pin_hottest(moe_speculation *s)
{
    const moe_model_config *c = s->runner->config;
    for (uint32_t l = 0; l < c->n_layer; l++) {
        if (moe_layer_has_experts(c, l)) {
            moe_calibration_hottest(s->parts.calibration, l, s->pinned + (size_t)l * c->n_expert);
            s->n_pinned[l] = s->draft_experts;
        }
    }
}

/* If costs are modelled, misses are modelled with the policy LRU, so that they do not depend on a
 * calibration. */
static int open_costs(moe_speculation *s, moe_error *err)
{
    const moe_memory_plan *plan = s->runner->plan;
    uint32_t n_used = s->runner->config->n_expert_used;
    s->expert_bytes = plan->experts > 0 ? s->parts.map->expert_bytes / plan->experts : 0;
    if (!s->by_bytes && plan->expert_slots >= plan->experts) {
        return MOE_OK;
    }
    moe_miss_model_options options = {.map = s->parts.map,
                                      .n_expert_used = n_used,
                                      .max_rows = s->max_rows,
                                      .n_slots = plan->expert_slots,
                                      .policy = MOE_POLICY_DEFAULT,
                                      .hotness = s->by_bytes ? NULL : s->parts.hotness};
    return moe_miss_model_open(&s->misses, &options, err);
}

_Static_assert(MOE_MOST_DRAFT + 1 <= MOE_MOST_LOGGED, "a chain and its root have room in a log");
_Static_assert(MOE_MOST_AHEAD + 1 <= MOE_MOST_LOGGED, "so has a line of lookahead");

uint32_t moe_speculation_chain_rows(const moe_engine_options *o)
{
    return is_off(o) ? 0 : 1 + (o->draft_max != 0 ? o->draft_max : DEFAULT_DRAFT_MAX);
}

uint32_t moe_speculation_log_rows(const moe_engine_options *o)
{
    return moe_speculation_chain_rows(o) + MOE_AHEAD_LOG_LINES * o->lookahead;
}

static int check_layers(const moe_speculation *s, const moe_engine_options *o, moe_error *err)
{
    const bool states = s->runner->states->state_bytes > 0;
    if (o->tree_nodes > 0 && (states || s->runner->config->attention == MOE_ATTENTION_SHARED)) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "options.tree_nodes of %u cannot act: this model has %s; without it chains "
                        "are drafted",
                        o->tree_nodes,
                        states ? "recurrent layers, whose state does not branch"
                               : "compressed keys of blocks, which do not branch");
    }
    return MOE_OK;
}

static int open_parts(moe_speculation *s, const moe_engine_options *o, moe_error *err)
{
    s->pin = o->lab->draft_pin;
    choose_drafters(s, o);
    MOE_TRY(check_layers(s, o, err));
    MOE_TRY(allocate(s, err));
    MOE_TRY(check_draft_experts(s, o, err));
    if (o->lookahead > 0) {
        MOE_TRY(moe_lookahead_open(&s->ahead, s, o, err));
    }
    if (s->ahead != NULL) {
        s->ahead->log_at = moe_speculation_chain_rows(o);
    }
    MOE_TRY(choose_fill(s, o, err));
    price_passes(s, o);
    MOE_TRY(open_control(s, o, err));
    MOE_TRY(open_costs(s, err));
    if (s->draft_experts > 0 && s->pin == MOE_DRAFT_PIN_HOT_GLOBAL) {
        pin_hottest(s);
    }
    return MOE_OK;
}

int moe_speculation_open(moe_speculation **out, const moe_draft_parts *parts,
                         const moe_engine_options *options, moe_error *err)
{
    *out = NULL;
    if (is_off(options) && !moe_speculation_by_bytes(options) && options->lookahead == 0) {
        return MOE_OK;
    }
    moe_speculation *s = moe_calloc(1, sizeof *s);
    if (s == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for speculation");
    }
    s->parts = *parts;
    s->runner = parts->runner;
    s->max_rows = parts->max_rows;
    s->max_draft = options->draft_max != 0 ? options->draft_max : DEFAULT_DRAFT_MAX;
    s->tree_nodes = options->tree_nodes;
    s->draws = options->acceptance == MOE_ACCEPTANCE_REJECTION;
    s->draft_experts = options->lab->draft_experts;
    s->foresight =
        options->lab->foresight == MOE_SWITCH_ON ||
        (options->lab->foresight == MOE_SWITCH_AUTO && !moe_speculation_by_bytes(options));
    s->verify_bytes = options->lab->verify_bytes;
    moe_random_seed(&s->random, SHUFFLE_SEED);
    int status = open_parts(s, options, err);
    if (status != MOE_OK) {
        moe_speculation_close(&s);
        return status;
    }
    *out = s;
    return MOE_OK;
}

void moe_speculation_close(moe_speculation **speculation)
{
    moe_speculation *s = *speculation;
    if (s == NULL) {
        return;
    }
    for (int d = 0; d < MOE_DRAFTERS; d++) {
        moe_length_control_free(&s->control[d]);
    }
    moe_miss_model_close(&s->misses);
    moe_foresight_free(&s->foresees);
    moe_lookahead_close(&s->ahead, s->runner->device);
    free(s->shuffled);
    free(s->resident);
    free(s->score);
    free(s->pinned);
    free(s->n_pinned);
    free(s->accepted_rows);
    free(s->accepted_of);
    free(s->rows);
    free(s->pass_tokens);
    free(s->pass_depths);
    free(s->pass_kv);
    free(s->pass_logit_rows);
    free(s->pass_states);
    free(s);
    *speculation = NULL;
}
