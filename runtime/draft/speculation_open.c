/* SPDX-License-Identifier: MIT */
/* Speculation's options and its opening. */
#include <stdlib.h>
#include <string.h>

#include "cache/expert_cache.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/draft/speculation.h"
#include "runtime/pass/runner.h"
#include "runtime/draft/miss_model.h"
#include "runtime/base/named_value.h"

#define DEFAULT_DRAFT_MAX 8u
#define SHUFFLE_SEED      0x5eedu

static const moe_named_value cost_kinds[] = {{"time", 0}, {"bytes", 1}, {NULL, 0}};
static const moe_named_value acceptance_kinds[] = {{"exact", 0}, {"rejection", 1}, {NULL, 0}};
static const moe_named_value pin_kinds[] = {{"hot-temporal", MOE_DRAFT_PIN_HOT_TEMPORAL},
                                            {"hot-global", MOE_DRAFT_PIN_HOT_GLOBAL},
                                            {"random", MOE_DRAFT_PIN_RANDOM},
                                            {NULL, 0}};

/* Stand-ins beyond the calibration's tables. */
enum { FILL_SHUFFLED = MOE_AFFINITY_KINDS, FILL_RANDOM, FILL_TOPK, FILL_NONE };
static const moe_named_value affinity_kinds[] = {{"output", MOE_AFFINITY_OUTPUT},
                                                 {"weight", MOE_AFFINITY_WEIGHT},
                                                 {"coact", MOE_AFFINITY_COACT},
                                                 {"router", MOE_AFFINITY_ROUTER},
                                                 {"shuffled", FILL_SHUFFLED},
                                                 {"random", FILL_RANDOM},
                                                 {"topk", FILL_TOPK},
                                                 {"none", FILL_NONE},
                                                 {NULL, 0}};

bool moe_speculation_by_bytes(const moe_engine_options *o)
{
    return o->cost != NULL && strcmp(o->cost, "bytes") == 0;
}

static bool is_off(const moe_engine_options *o)
{
    return o->speculate == NULL || strcmp(o->speculate, "off") == 0;
}

static bool is_overlap(const moe_engine_options *o)
{
    return o->offload != NULL && strcmp(o->offload, "overlap") == 0;
}

static int check_mode(const moe_engine_options *o, moe_error *err)
{
    static const char *const modes[] = {"off", "auto", "ngram", "self"};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        if (strcmp(o->speculate, modes[i]) == 0) {
            return MOE_OK;
        }
    }
    return strncmp(o->speculate, "model:", 6) == 0 && o->speculate[6] != '\0'
               ? MOE_OK
               : moe_fail(err, MOE_ERR_ARGUMENT,
                          "speculate: '%s' is none of off, auto, ngram, self, model:FILE",
                          o->speculate);
}

/* Refuses an option that only has a meaning with speculation. */
static int check_unused(const moe_engine_options *o, moe_error *err)
{
    const char *name = o->draft_max != 0                                 ? "options.draft_max"
                       : o->tree_nodes != 0                              ? "options.tree_nodes"
                       : o->acceptance != NULL                           ? "options.acceptance"
                       : o->length_control != NULL                       ? "options.length_control"
                       : o->cost != NULL && !moe_speculation_by_bytes(o) ? "options.cost"
                       : o->draft_experts != 0                           ? "options.draft_experts"
                       : o->draft_pin != NULL                            ? "options.draft_pin"
                       : o->affinity != NULL                             ? "options.affinity"
                       : o->foresight != 0                               ? "options.foresight"
                       : o->verify_bytes != 0                            ? "options.verify_bytes"
                                                                         : NULL;
    return name == NULL
               ? MOE_OK
               : moe_fail(err, MOE_ERR_ARGUMENT,
                          "%s acts on speculation, which is off; set options.speculate", name);
}

int moe_speculation_check(const moe_engine_options *o, moe_error *err)
{
    if (is_off(o)) {
        return check_unused(o, err);
    }
    int value;
    int status = check_mode(o, err);
    if (status == MOE_OK && (is_overlap(o) || o->route_trace != NULL)) {
        status =
            moe_fail(err, MOE_ERR_ARGUMENT,
                     "speculation cannot act in offload mode overlap or on a replayed routing: "
                     "neither knows what a draft will hold");
    }
    if (status == MOE_OK && o->length_control != NULL) {
        moe_length_options length = {0};
        status = moe_length_options_parse(&length, o->length_control, err);
    }
    if (status == MOE_OK) {
        status = moe_named_value_find(cost_kinds, "cost", o->cost, &value, err);
    }
    if (status == MOE_OK) {
        status = moe_named_value_find(acceptance_kinds, "acceptance", o->acceptance, &value, err);
    }
    if (status == MOE_OK) {
        status = moe_named_value_find(pin_kinds, "draft pin", o->draft_pin, &value, err);
    }
    if (status == MOE_OK) {
        status = moe_named_value_find(affinity_kinds, "affinity", o->affinity, &value, err);
    }
    if (status == MOE_OK && o->draft_max > MOE_MOST_DRAFT) {
        status = moe_fail(err, MOE_ERR_ARGUMENT, "draft_max must be 1 to %u, not %u",
                          MOE_MOST_DRAFT, o->draft_max);
    }
    if (status == MOE_OK && o->tree_nodes >= MOE_TREE_MAX_NODES) {
        status = moe_fail(err, MOE_ERR_ARGUMENT, "tree_nodes must be 1 to %u, not %u",
                          MOE_TREE_MAX_NODES - 1, o->tree_nodes);
    }
    return status;
}

bool moe_speculation_may_self(const moe_engine_options *o, bool *has_affinity)
{
    int kind = FILL_TOPK;
    if (o->affinity != NULL) {
        (void)moe_named_value_find(affinity_kinds, "affinity", o->affinity, &kind, NULL);
    }
    *has_affinity = kind <= FILL_SHUFFLED;
    return !is_off(o) && (strcmp(o->speculate, "auto") == 0 || strcmp(o->speculate, "self") == 0);
}

uint32_t moe_speculation_kept_experts(const moe_engine_options *o)
{
    bool global = !is_off(o) && o->draft_pin != NULL && strcmp(o->draft_pin, "hot-global") == 0;
    return global ? o->draft_experts : 0;
}

/* A table of random orders: the baseline for affinities. */
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
    int kind = FILL_TOPK;
    if (o->affinity != NULL) {
        (void)moe_named_value_find(affinity_kinds, "affinity", o->affinity, &kind, NULL);
    }
    s->fill = kind == FILL_RANDOM ? MOE_DRAFT_FILL_RANDOM
              : kind == FILL_TOPK ? MOE_DRAFT_FILL_ROUTER
              : kind == FILL_NONE ? MOE_DRAFT_FILL_NONE
                                  : MOE_DRAFT_FILL_AFFINITY;
    if (kind == FILL_SHUFFLED) {
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
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "affinity '%s' is a table of the calibration, and there is none for this "
                        "model; make one: moe-offload calibrate -m %s -f TEXT",
                        o->affinity, o->model_path);
    }
    s->affinity = calibration->affinity[kind];
    return moe_calibration_need_tables(calibration, s->runner->model_path, "an affinity table",
                                       err);
}

static int check_draft_experts(const moe_speculation *s, moe_error *err)
{
    const moe_model_config *c = s->runner->config;
    uint64_t n_slots = s->runner->plan->expert_slots;
    if (s->draft_experts == 0) {
        return MOE_OK;
    }
    if (s->draft_experts < c->n_expert_used || s->draft_experts > c->n_expert) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "draft_experts must be %u (what a token uses) to %u, not %u",
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
                        "leave no room beside them; lower options.draft_experts or raise the cache",
                        s->draft_experts, n_layer, (unsigned long long)n_slots);
    }
    if (s->pin == MOE_DRAFT_PIN_HOT_GLOBAL && s->parts.calibration == NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "draft pin hot-global needs a calibration, and there is none for this "
                        "model (moe-offload calibrate)");
    }
    return MOE_OK;
}

static void choose_drafters(moe_speculation *s, const moe_engine_options *o)
{
    if (is_off(o)) {
        return; /* only counts costs, drafts nothing */
    }
    bool is_auto = strcmp(o->speculate, "auto") == 0;
    s->use[MOE_DRAFTER_NGRAM] = is_auto || strcmp(o->speculate, "ngram") == 0;
    /* If every expert is in memory, the self draft costs as much as the model. */
    bool misses = s->runner->plan->expert_slots < s->runner->plan->experts;
    s->use[MOE_DRAFTER_SELF] = (is_auto && misses) || strcmp(o->speculate, "self") == 0;
    s->use[MOE_DRAFTER_MODEL] = strncmp(o->speculate, "model:", 6) == 0;
}

static int allocate(moe_speculation *s, moe_error *err)
{
    const moe_model_config *c = s->runner->config;
    s->resident = moe_calloc(c->n_expert, sizeof *s->resident);
    s->score = moe_calloc(c->n_expert, sizeof *s->score);
    s->pinned = moe_calloc((size_t)c->n_layer * c->n_expert, sizeof *s->pinned);
    s->n_pinned = moe_calloc(c->n_layer, sizeof *s->n_pinned);
    uint32_t n_rows = s->max_rows;
    s->standing = moe_calloc(n_rows, sizeof *s->standing);
    s->rows = moe_calloc(n_rows, sizeof *s->rows);
    s->pass_tokens = moe_calloc(n_rows, sizeof *s->pass_tokens);
    s->pass_depths = moe_calloc(n_rows, sizeof *s->pass_depths);
    s->pass_kv = moe_calloc(n_rows, sizeof *s->pass_kv);
    s->pass_logit_rows = moe_calloc(n_rows, sizeof *s->pass_logit_rows);
    s->pass_states = moe_calloc(n_rows, sizeof *s->pass_states);
    if (s->resident == NULL || s->score == NULL || s->pinned == NULL || s->n_pinned == NULL ||
        s->standing == NULL || s->rows == NULL || s->pass_tokens == NULL ||
        s->pass_depths == NULL || s->pass_kv == NULL || s->pass_logit_rows == NULL ||
        s->pass_states == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for speculation");
    }
    return moe_foresight_init(&s->foresees, c->n_layer, c->n_expert, err);
}

static int open_control(moe_speculation *s, const moe_engine_options *o, moe_error *err)
{
    moe_length_options options = {.kind = MOE_LENGTH_SURVIVAL, .max_draft = s->max_draft};
    int status = MOE_OK;
    if (o->length_control != NULL) {
        status = moe_length_options_parse(&options, o->length_control, err);
    }
    for (int d = 0; d < MOE_DRAFTERS && status == MOE_OK; d++) {
        if (s->use[d]) {
            options.by_passes = d != MOE_DRAFTER_NGRAM;
            options.second = d > 0 && s->use[MOE_DRAFTER_NGRAM];
            status = moe_length_control_create(&s->control[d], &options, err);
        }
    }
    return status;
}

/* hot-global: the draft's experts are known from the beginning. */
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

/* If costs are modelled, so are misses, by LRU: a calibration must not change them. */
static int open_costs(moe_speculation *s, const moe_engine_options *o, moe_error *err)
{
    const moe_memory_plan *plan = s->runner->plan;
    uint32_t n_used = s->runner->config->n_expert_used;
    s->by_bytes = moe_speculation_by_bytes(o);
    s->expert_bytes = plan->experts > 0 ? s->parts.map->expert_bytes / plan->experts : 0;
    moe_byte_cost_init(&s->byte_cost, s->parts.map, n_used);
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

uint32_t moe_speculation_chain_rows(const moe_engine_options *o)
{
    return is_off(o) ? 0 : 1 + (o->draft_max != 0 ? o->draft_max : DEFAULT_DRAFT_MAX);
}

static int check_layers(const moe_speculation *s, const moe_engine_options *o, moe_error *err)
{
    if (o->tree_nodes > 0 && s->runner->states->state_bytes > 0) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "options.tree_nodes of %u cannot act: this model has recurrent layers, "
                        "whose state does not branch; without it chains are drafted",
                        o->tree_nodes);
    }
    return MOE_OK;
}

static int open_parts(moe_speculation *s, const moe_engine_options *o, moe_error *err)
{
    int value = MOE_DRAFT_PIN_HOT_TEMPORAL;
    if (o->draft_pin != NULL) {
        (void)moe_named_value_find(pin_kinds, "draft pin", o->draft_pin, &value, NULL);
    }
    s->pin = (moe_draft_pin)value;
    choose_drafters(s, o);
    int status = check_layers(s, o, err);
    if (status == MOE_OK) {
        status = allocate(s, err);
    }
    if (status == MOE_OK) {
        status = check_draft_experts(s, err);
    }
    if (status == MOE_OK) {
        status = choose_fill(s, o, err);
    }
    if (status == MOE_OK) {
        status = open_control(s, o, err);
    }
    if (status == MOE_OK) {
        status = open_costs(s, o, err);
    }
    if (status == MOE_OK && s->draft_experts > 0 && s->pin == MOE_DRAFT_PIN_HOT_GLOBAL) {
        pin_hottest(s);
    }
    return status;
}

int moe_speculation_open(moe_speculation **out, const moe_draft_parts *parts,
                         const moe_engine_options *options, moe_error *err)
{
    *out = NULL;
    if (is_off(options) && !moe_speculation_by_bytes(options)) {
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
    s->draws = options->acceptance != NULL && strcmp(options->acceptance, "rejection") == 0;
    s->draft_experts = options->draft_experts;
    s->foresight = options->foresight == MOE_SWITCH_ON ||
                   (options->foresight == MOE_SWITCH_AUTO && !moe_speculation_by_bytes(options));
    s->verify_bytes = options->verify_bytes;
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
    free(s->shuffled);
    free(s->resident);
    free(s->score);
    free(s->pinned);
    free(s->n_pinned);
    free(s->standing);
    free(s->rows);
    free(s->pass_tokens);
    free(s->pass_depths);
    free(s->pass_kv);
    free(s->pass_logit_rows);
    free(s->pass_states);
    free(s);
    *speculation = NULL;
}
