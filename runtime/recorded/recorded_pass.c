/* SPDX-License-Identifier: MIT */
/* Before a pass, the host brings the table (recorded_table.h) up to date, from which the device
 * reads where the resident experts are. No new move of an expert begins while the pass runs,
 * because only this thread requests moves, and it waits for the results. A move that is still under
 * way goes to a slot whose expert the table does not list. So slots need no pins.
 *
 * The results include the routers' choices (picks). A draft's picks go to foresight. After any
 * other pass that missed no expert, this file reports the layers to the store and the observers as
 * if the host had routed them.
 *
 * If an exact pass misses an expert, it computes no experts from that layer on, and keeps the
 * layer's inputs. The host then reports the layers before, computes that layer, and plays a tail: a
 * recording of the pass from some later layer to its end. For this the table is brought up to date
 * again. Tails begin at every layer, or in deep models at every few layers; the host computes the
 * layers up to the next tail. If a tail stops in its first half, the host computes twice as many
 * layers as before until it plays another.
 *
 * For lossy passes the host edits the routers' choice once more, for its counts; if the device
 * edited differently (entropies may differ in their last bits), the pass runs again. If the result
 * of a pass cannot be used, or the pass stopped early more than once, the host routes the next
 * passes, twice as many each time that this happens in a row. */
#include "runtime/recorded/recorded_pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/routing.h"
#include "runtime/pass/runner.h"
#include "runtime/pass/expert_form.h"
#include "runtime/program/op_forms.h"
#include "runtime/recorded/recorded_table.h"

#define MOST_SKIPPED 256u
/* The most tails. A tail has half of the layers in the mean, so all tails together are as long as
 * half as many recordings of whole passes. */
#define MOST_TAILS 16u
/* The additional cost of a layer that the host routes over one in a recording: a wait for the
 * device, and some twenty launches. A nominal figure, not measured on a GPU. */
#define ROUND_TRIP_NS 20e3
/* Weight of the newest pass among the numbers of experts that passes need from host memory. */
#define NEWEST_WEIGHT 0.125
/* Slots offered to a pass for experts that it reads in host memory: OFFERS_A_HIT times the average
 * number of such experts, plus OFFERS_MORE. Most passes fill fewer. */
#define OFFERS_A_HIT 2.0
#define OFFERS_MORE  16.0
/* The most slots offered, as a share of the device's slots; or OFFERS_MORE, if that is more. */
#define OFFERS_OF_SLOTS 0.5
/* If no more than this share of the slots is offered, slots of later layers may be among them. */
#define EARLY_OF_SLOTS 0.125

typedef struct moe_recorded_pass {
    moe_pass_hook hook;
    const moe_recorded_parts *parts;
    moe_runner *runner;
    moe_recorded_kind kind;
    uint32_t number; /* number of the recording */
    moe_resident_fill fill;
    moe_recorded_table table;
    uint32_t first; /* first layer of the recording that is played, or was played last */
    uint32_t refused, tails_refused; /* bit n: the device could not record steps of n rows */
    uint32_t stride;                 /* layers between the beginnings of two tails */
    uint32_t skip;                   /* passes until the next attempt */
    uint32_t skipped;
    uint64_t n_played, n_missed, n_resumed;
    /* Used by exact passes. */
    bool in_place;         /* this pass reads experts in host memory */
    double host_hits;      /* experts that a pass needs from host memory, an average */
    uint64_t hits_before;  /* the store's host hits when the last pass began */
    uint64_t counted_pass; /* the runner's number of the last pass */
    double most_in_place;  /* with this many experts, reading in place takes as long as round
                            * trips */
} moe_recorded_pass;

struct moe_recorded_passes {
    moe_recorded_parts parts;
    moe_recorded_pass *kinds[MOE_RECORDED_KINDS]; /* NULL: the host routes */
};

/* ---- All recorded passes ---- */

uint64_t moe_recorded_passes_bytes(const moe_device *device, const moe_program *program,
                                   const moe_engine_options *options, bool keeps_experts)
{
    const moe_model_config *config = program->config;
    static const uint16_t some;
    moe_recorded_table_options lossy = {.max_rows = 1,
                                        .longest_list = moe_lossy_longest_list(options)};
    uint64_t bytes = 0;
    bool has_affinity;
    if (!moe_program_is_recordable(program, device)) {
        return 0;
    }
    moe_recorded_table_options exact = {.stops = true, .max_rows = device->recording->max_rows};
    if (moe_speculation_may_self(options, &has_affinity)) {
        moe_recorded_table_options draft = {.max_rows = 1, .affinity = has_affinity ? &some : NULL};
        bytes += moe_recorded_table_bytes(config, &draft);
    }
    if (keeps_experts) {
        bytes += moe_recorded_table_bytes(config, &exact);
        bytes += lossy.longest_list > 0 ? moe_recorded_table_bytes(config, &lossy) : 0;
    }
    return bytes;
}

void moe_recorded_passes_close(moe_recorded_passes **passes)
{
    moe_recorded_passes *p = *passes;
    for (int kind = 0; p != NULL && kind < MOE_RECORDED_KINDS; kind++) {
        if (p->kinds[kind] != NULL) {
            moe_recorded_table_close(&p->kinds[kind]->table, p->parts.runner->device);
            free(p->kinds[kind]);
        }
    }
    free(p);
    *passes = NULL;
}

bool moe_recorded_passes_has(const moe_recorded_passes *passes, moe_recorded_kind kind)
{
    return passes != NULL && passes->kinds[kind] != NULL;
}

void moe_recorded_pass_counts(const moe_recorded_passes *passes, uint64_t *n, uint64_t *n_missed,
                              uint64_t *n_resumed)
{
    *n = *n_missed = *n_resumed = 0;
    for (int kind = MOE_RECORDED_EXACT; kind < MOE_RECORDED_KINDS; kind++) {
        const moe_recorded_pass *r = passes != NULL ? passes->kinds[kind] : NULL;
        *n += r != NULL ? r->n_played - r->n_missed - r->n_resumed : 0;
        *n_missed += r != NULL ? r->n_missed : 0;
        *n_resumed += r != NULL ? r->n_resumed : 0;
    }
}

/* ---- Recording ---- */

static moe_weight shape_of(const moe_tensor_map *map, uint32_t layer, moe_expert_part part)
{
    const moe_tensor_ref *ref = &map->layers[layer].experts[0].parts[part];
    return (moe_weight){.type = ref->type,
                        .n_in = (uint32_t)ref->n_in,
                        .n_out = (uint32_t)ref->n_out,
                        .row_bytes = moe_dtype_row_bytes(ref->type, ref->n_in)};
}

/* Computes the routed experts of a layer while it is being recorded. */
static int serve_layer(void *user, moe_runner *runner, uint32_t layer, const float **mixed,
                       moe_error *err)
{
    const moe_recorded_pass *r = user;
    moe_pass_buffers *b = &runner->buffers;
    moe_device *device = runner->device;
    moe_substitution substitution = {0};
    const moe_op *op = moe_experts_op(runner, layer);
    moe_resident_experts experts = {.route = moe_route_of_layer(runner, layer),
                                    .fill = r->fill,
                                    .gate = shape_of(r->parts->map, layer, MOE_EXPERT_GATE),
                                    .up = shape_of(r->parts->map, layer, MOE_EXPERT_UP),
                                    .down = shape_of(r->parts->map, layer, MOE_EXPERT_DOWN),
                                    .activation = op->u.experts.activation,
                                    .x = b->values[op->x.value],
                                    .outs = b->values[op->y.value],
                                    .mixed = mixed};
    static const int biases[] = {MOE_LAYER_EXPERTS_GATE_BIAS, MOE_LAYER_EXPERTS_UP_BIAS,
                                 MOE_LAYER_EXPERTS_DOWN_BIAS};
    for (int p = 0; p < 3; p++) {
        const moe_weight *bias = moe_layer_weight(runner, layer, biases[p]);
        experts.biases[p] = bias->data;
        experts.bias_bytes[p] = bias->row_bytes;
    }
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        experts.keep.bytes[p] = r->parts->map->layers[layer].experts[0].parts[p].size;
    }
    if (r->kind != MOE_RECORDED_EXACT) { /* in an exact pass the weights are already the router's */
        experts.renormalise = r->parts->rules->mixing[layer].renormalise;
    }
    if (r->kind == MOE_RECORDED_LOSSY) {
        substitution = moe_lossy_substitution(r->parts->lossy, layer);
    }
    moe_recorded_table_fill(&r->table, runner, layer, r->first, &experts, &substitution);
    return device->recording->resident_experts(device, &experts, err);
}

static uint32_t number_of(const moe_recorded_pass *r)
{
    return r->first == 0 ? r->number
                         : r->runner->config->n_layer + MOE_RECORDED_KINDS + r->first / r->stride;
}

static int record(moe_recorded_pass *r, const moe_pass *pass, moe_error *err)
{
    moe_device *device = r->runner->device;
    MOE_TRY(device->recording->record(device, number_of(r), err));
    int status = moe_pass_queue_whole(r->runner, pass, r->first, serve_layer, r, err);
    status = device->recording->record_end(device, status, err);
    if (r->kind == MOE_RECORDED_DRAFT) {
        r->parts->speculation->stats.draft_recordings += status == MOE_OK;
    }
    return status;
}

/* Plays the pass from r->first on, and records it first if necessary. MOE_ERR_UNSUPPORTED: the
 * device cannot record it. *fits: such a step can be recorded; if not, does nothing. */
static int launch(moe_recorded_pass *r, const moe_pass *pass, bool *fits, moe_error *err)
{
    moe_device *device = r->runner->device;
    moe_step_inputs inputs;
    bool played = false;
    int status = moe_pass_begin_step(r->runner, pass, &inputs, err);
    *fits = status == MOE_OK && device->recording->takes_step(device);
    if (*fits) {
        status = device->recording->play(device, number_of(r), &played, err);
    }
    if (*fits && status == MOE_OK && !played) {
        status = record(r, pass, err);
    }
    return moe_pass_end_step(r->runner, status, err);
}

/* ---- A pass ---- */

static void foresee(const moe_recorded_pass *r, const moe_pass *pass)
{
    const moe_model_config *c = r->runner->config;
    for (uint32_t l = 0; l < c->n_layer; l++) {
        if (moe_layer_has_experts(c, l)) {
            moe_draft_foresee(r->parts->speculation, pass, l, 0,
                              moe_recorded_table_results(&r->table, l).picks);
        }
    }
}

static bool has_missed(const moe_recorded_pass *r)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < r->runner->config->n_layer; l++) {
        n += *moe_recorded_table_results(&r->table, l).missing;
    }
    return n > 0;
}

/* show_choice() copies the choice of the pass's rows in a layer to the pass's buffers,
 * keep_choice() that of one row back. */
static void show_choice(const moe_recorded_pass *r, const moe_recorded_results *results)
{
    moe_runner *runner = r->runner;
    moe_pass_buffers *b = &runner->buffers;
    size_t n = (size_t)r->table.n_rows * runner->config->n_expert_used;
    memcpy(b->chosen, results->picks, n * sizeof *b->chosen);
    memcpy(b->chosen_weights, results->weights, n * sizeof *b->chosen_weights);
    if (results->probs != NULL) {
        memcpy(b->router_probs, results->probs, runner->config->n_expert * sizeof *b->router_probs);
    }
}

static void keep_choice(const moe_runner *runner, moe_recorded_results *results)
{
    const moe_pass_buffers *b = &runner->buffers;
    uint32_t n_used = runner->config->n_expert_used;
    memcpy(results->picks, b->chosen, n_used * sizeof *b->chosen);
    memcpy(results->weights, b->chosen_weights, n_used * sizeof *b->chosen_weights);
}

/* Replaces the routers' choice by the host's edit of it. False if the device's edit differs. */
static bool edit_again(const moe_recorded_pass *r, const moe_pass *pass)
{
    moe_runner *runner = r->runner;
    const moe_model_config *c = runner->config;
    bool same = true;
    for (uint32_t l = 0; l < c->n_layer && same; l++) {
        moe_recorded_results results = moe_recorded_table_results(&r->table, l);
        if (!moe_layer_has_experts(c, l)) {
            continue;
        }
        show_choice(r, &results);
        if (r->parts->speculation != NULL) {
            moe_draft_note_routes(r->parts->speculation, pass, l);
        }
        moe_lossy_edit_routes(r->parts->lossy, pass, l, moe_recorded_table_residents(&r->table, l));
        same = results.chosen == NULL || memcmp(results.chosen, runner->buffers.chosen,
                                                c->n_expert_used * sizeof *results.chosen) == 0;
        keep_choice(runner, &results);
    }
    return same;
}

/* Reports the layers that have been played, up to `end`, as if the host had routed them. */
static int make_up_for(moe_recorded_pass *r, const moe_pass *pass, uint32_t end, moe_error *err)
{
    const moe_model_config *c = r->runner->config;
    for (uint32_t l = r->first; l < end; l++) {
        if (moe_layer_has_experts(c, l)) {
            moe_recorded_results results = moe_recorded_table_results(&r->table, l);
            moe_played_layer played = {.reach = moe_recorded_table_reach(&r->table, l),
                                       .offered = r->table.offered};
            show_choice(r, &results);
            played.kept = moe_recorded_table_take_kept(&r->table, r->runner, l, &played.n_kept);
            MOE_TRY(moe_layer_note(r->runner, pass, l, r->in_place ? &played : NULL, err));
        }
    }
    return MOE_OK;
}

static void wait_longer(moe_recorded_pass *r)
{
    r->skip = r->skip == 0 ? 1 : r->skip < MOST_SKIPPED ? 2 * r->skip : MOST_SKIPPED;
    r->skipped = 0;
}

/* Returns the first played layer with a pick that was not in reach; n_layer: none. */
static uint32_t stopped_at(const moe_recorded_pass *r)
{
    const moe_model_config *c = r->runner->config;
    for (uint32_t l = r->first; l < c->n_layer; l++) {
        if (moe_layer_has_experts(c, l) && *moe_recorded_table_results(&r->table, l).missing > 0) {
            return l;
        }
    }
    return c->n_layer;
}

/* Returns the first layer, from `layer` on, at which a tail begins; n_layer: no tail begins there.
 */
static uint32_t next_tail(const moe_recorded_pass *r, uint32_t layer)
{
    const uint32_t n_layer = r->runner->config->n_layer;
    const uint32_t next = (layer + r->stride - 1) / r->stride * r->stride;
    bool refused = r->tails_refused >> r->table.n_rows & 1;
    return refused || next >= n_layer ? n_layer : next;
}

/* Decides how many slots the pass is offered for experts that it reads over the link. With many
 * offers, the first layers could overwrite experts that the last layers need; the pass is then
 * offered only slots of layers that it has finished. */
static void want_offers(const moe_recorded_pass *r, moe_recorded_reach *by)
{
    const double n_slots = (double)r->runner->plan->expert_slots;
    const double n = OFFERS_A_HIT * r->host_hits + OFFERS_MORE;
    by->early = n <= EARLY_OF_SLOTS * n_slots;
    const double most = fmax(OFFERS_OF_SLOTS * n_slots, OFFERS_MORE);
    by->n_offers = (uint32_t)fmin(fmin(n, most), MOE_MOST_OFFERS);
}

/* Plays the tail that begins at layer r->first. If the device cannot record it, the host computes
 * these layers, and r->first becomes n_layer. */
static int play_tail(moe_recorded_pass *r, const moe_pass *pass, moe_error *err)
{
    bool fits;
    moe_error reason = {""};
    const uint32_t n_layer = r->runner->config->n_layer;
    moe_recorded_reach by = {.in_place = r->in_place, .first = r->first};
    want_offers(r, &by);
    MOE_TRY(moe_recorded_table_refresh(&r->table, r->runner, &by, err));
    int status = launch(r, pass, &fits, &reason);
    MOE_ASSERT(fits || status != MOE_OK);
    if (status == MOE_ERR_UNSUPPORTED) {
        moe_pass_part rest = {.first = r->first, .end = n_layer};
        r->tails_refused |= 1u << r->table.n_rows;
        r->first = n_layer;
        moe_pass_tell_refusal(r->runner, "layers behind a missing expert are routed by the host",
                              &reason);
        return moe_pass_resume(r->runner, pass, &rest, err);
    }
    if (status != MOE_OK) {
        moe_recorded_table_forget(&r->table, r->runner);
        return moe_fail(err, status, "%s", reason.message);
    }
    return MOE_OK;
}

/* Computes, on the host, the layer that stopped the recording and the layers up to the next tail,
 * which begins at least `gap` layers later. Then plays that tail. */
static int go_on_from(moe_recorded_pass *r, const moe_pass *pass, uint32_t layer, uint32_t gap,
                      moe_error *err)
{
    moe_pass_part part = {.first = layer, .end = next_tail(r, layer + 1 + gap), .begun = true};
    int status = moe_recorded_table_restore(&r->table, r->runner, err);
    if (status == MOE_OK) {
        status = moe_pass_resume(r->runner, pass, &part, err);
    }
    r->first = part.end;
    return status == MOE_OK && r->first < r->runner->config->n_layer ? play_tail(r, pass, err)
                                                                     : status;
}

/* Notes the results of the recording that was played last. *end: the layer that stopped it, or
 * n_layer. */
static int take_played(moe_recorded_pass *r, const moe_pass *pass, uint32_t *end, moe_error *err)
{
    const moe_model_config *c = r->runner->config;
    int status = moe_recorded_table_download(&r->table, r->runner->device, err);
    *end = status == MOE_OK ? stopped_at(r) : r->first;
    for (uint32_t l = r->first; l < *end && r->parts->speculation != NULL; l++) {
        if (moe_layer_has_experts(c, l)) {
            moe_recorded_results results = moe_recorded_table_results(&r->table, l);
            show_choice(r, &results);
            moe_draft_note_routes(r->parts->speculation, pass, l);
        }
    }
    if (status == MOE_OK) {
        status = make_up_for(r, pass, *end, err);
    }
    if (status == MOE_OK) {
        moe_recorded_table_settle(&r->table);
    } else {
        moe_recorded_table_forget(&r->table, r->runner);
    }
    return status;
}

/* Takes the results of an exact pass. The host computes what the device has not computed. */
static int take_exact(moe_recorded_pass *r, const moe_pass *pass, moe_error *err)
{
    const uint32_t n_layer = r->runner->config->n_layer;
    uint32_t end, n_early = 0, gap = 0;
    bool last;
    r->n_played++;
    int status = take_played(r, pass, &end, err);
    r->n_resumed += end < n_layer;
    while (status == MOE_OK && end < n_layer) {
        bool early = 2 * (end - r->first) < n_layer - r->first;
        n_early += early;
        gap = !early ? 0 : gap == 0 ? 1 : 2 * gap;
        status = go_on_from(r, pass, end, gap, err);
        end = n_layer;
        if (status == MOE_OK && r->first < n_layer) {
            status = take_played(r, pass, &end, err);
        }
    }
    /* True if the host computed the last layers, because no tail followed or the device could not
     * record it. */
    bool by_host = r->first == n_layer;
    if (n_early > 1 || (n_early > 0 && by_host)) {
        wait_longer(r);
    } else {
        r->skip = 0;
    }
    if (status == MOE_OK && !by_host) {
        status = moe_pass_hand_over(r->runner, pass, 0, pass->n_logit_rows, &last, err);
    }
    if (status == MOE_OK) {
        moe_expert_store_promote(r->runner->experts, r->runner->n_passes);
    }
    return status;
}

/* Takes the results of a lossy pass. *done is false if they cannot be used. */
static int take_results(moe_recorded_pass *r, const moe_pass *pass, bool *done, moe_error *err)
{
    bool last;
    MOE_TRY(moe_recorded_table_download(&r->table, r->runner->device, err));
    moe_lossy_keep_counts(r->parts->lossy);
    r->n_played++;
    if (has_missed(r) || !edit_again(r, pass)) {
        moe_lossy_forget_counts(r->parts->lossy);
        r->n_missed++;
        wait_longer(r);
        *done = false;
        return MOE_OK;
    }
    r->skip = 0;
    MOE_TRY(make_up_for(r, pass, r->runner->config->n_layer, err));
    return moe_pass_hand_over(r->runner, pass, 0, 1, &last, err);
}

static int take_draft(moe_recorded_pass *r, const moe_pass *pass, moe_error *err)
{
    bool last;
    r->parts->speculation->n_recorded_passes++;
    if (r->parts->speculation->foresight) {
        MOE_TRY(moe_recorded_table_download(&r->table, r->runner->device, err));
        foresee(r, pass);
    }
    return moe_pass_hand_over(r->runner, pass, 0, 1, &last, err);
}

/* Some hooks need results that a recorded pass does not return. */
static bool is_recorded(const moe_recorded_pass *r, const moe_pass *pass)
{
    bool fits = pass->n_rows <= r->table.max_rows && pass->n_logit_rows == pass->n_rows &&
                !(r->refused >> pass->n_rows & 1) && !moe_pass_chooses(r->runner->config, pass);
    return fits && (r->kind == MOE_RECORDED_EXACT || pass->kv_rows[0].path == NULL) &&
           (r->kind == MOE_RECORDED_DRAFT || !moe_pass_needs_host_routing(r->runner, pass));
}

/* Counts the experts that the last pass needed from host memory, if it was of this kind. */
static void count_host_hits(moe_recorded_pass *r)
{
    uint64_t hits = moe_expert_store_host_hits(r->runner->experts);
    if (r->runner->n_passes == r->counted_pass + 1) {
        r->host_hits += NEWEST_WEIGHT * ((double)(hits - r->hits_before) - r->host_hits);
    }
    r->hits_before = hits;
    r->counted_pass = r->runner->n_passes;
}

/* Whether experts in host memory are read in place. The bits do not depend on it. */
static bool reads_in_place(const moe_recorded_pass *r)
{
    const moe_recorded_parts *p = r->parts;
    if (r->kind != MOE_RECORDED_EXACT || p->read_in_place == MOE_SWITCH_OFF) {
        return false;
    }
    return p->read_in_place == MOE_SWITCH_ON || p->host_compute == MOE_SWITCH_OFF ||
           (p->host_compute == MOE_SWITCH_AUTO && r->host_hits < r->most_in_place);
}

static int take_over(void *context, moe_runner *runner, const moe_pass *pass, bool *done,
                     moe_error *err)
{
    moe_recorded_pass *r = context;
    moe_error reason = {""};
    *done = false;
    if (!is_recorded(r, pass)) {
        return MOE_OK;
    }
    count_host_hits(r);
    if (r->skipped < r->skip) {
        r->skipped++;
        return MOE_OK;
    }
    if (pass->is_cancelled != NULL && pass->is_cancelled(pass->cancel_user)) {
        return moe_fail(err, MOE_ERR_CANCELLED, "the step was cancelled");
    }
    bool fits;
    bool is_draft = r->kind == MOE_RECORDED_DRAFT;
    r->in_place = reads_in_place(r);
    r->table.n_rows = pass->n_rows;
    r->first = 0;
    moe_recorded_reach by = {.confined = is_draft ? r->parts->speculation : NULL,
                             .may_change = is_draft && r->parts->speculation->draft_experts > 0,
                             .in_place = r->in_place};
    want_offers(r, &by);
    MOE_TRY(moe_recorded_table_refresh(&r->table, runner, &by, err));
    int status = launch(r, pass, &fits, &reason);
    if (status == MOE_OK && !fits) {
        return MOE_OK;
    }
    if (status == MOE_ERR_UNSUPPORTED) {
        r->refused |= 1u << pass->n_rows;
        moe_pass_tell_refusal(
            runner, is_draft ? "drafts are routed by the host" : "tokens are routed by the host",
            &reason);
        return MOE_OK;
    }
    if (status != MOE_OK) {
        moe_recorded_table_forget(&r->table, r->runner);
        return moe_fail(err, status, "%s", reason.message);
    }
    *done = true;
    return is_draft                        ? take_draft(r, pass, err)
           : r->kind == MOE_RECORDED_EXACT ? take_exact(r, pass, err)
                                           : take_results(r, pass, done, err);
}

/* ---- Opening ---- */

static moe_resident_fill fill_of(const moe_speculation *s, moe_recorded_kind kind)
{
    return kind != MOE_RECORDED_DRAFT           ? MOE_RESIDENT_FILL_NONE
           : s->fill == MOE_DRAFT_FILL_AFFINITY ? MOE_RESIDENT_FILL_LIST
           : s->fill == MOE_DRAFT_FILL_ROUTER   ? MOE_RESIDENT_FILL_ROUTER
                                                : MOE_RESIDENT_FILL_NONE;
}

static const unsigned passes_of[MOE_RECORDED_KINDS] = {[MOE_RECORDED_DRAFT] = MOE_HOOK_ON_DRAFT,
                                                       [MOE_RECORDED_EXACT] = MOE_HOOK_ON_EXACT,
                                                       [MOE_RECORDED_LOSSY] = MOE_HOOK_ON_LOSSY};

/* The number of experts that the link transfers in the time that the host takes to route all layers
 * of a pass. */
static double most_in_place(const moe_recorded_parts *parts)
{
    const moe_model_config *c = parts->runner->config;
    uint32_t n = 0;
    uint64_t bytes = 1;
    for (uint32_t l = 0; l < c->n_layer; l++) {
        if (moe_layer_has_experts(c, l)) {
            bytes = moe_expert_ref_bytes(&parts->map->layers[l].experts[0]);
            n++;
        }
    }
    double link_ns = 1e9 * (double)bytes / (double)parts->runner->device->link_bytes_per_s;
    return n * ROUND_TRIP_NS / link_ns;
}

/* Whether the device has a slot for every expert, so that none is read elsewhere. */
static bool all_fit(const moe_recorded_parts *parts)
{
    const moe_model_config *c = parts->runner->config;
    moe_expert_store_stats stats;
    uint64_t n = 0;
    for (uint32_t l = 0; l < c->n_layer; l++) {
        n += moe_layer_has_experts(c, l) ? c->n_expert : 0;
    }
    moe_expert_store_get_stats(parts->runner->experts, &stats);
    return stats.n_slots >= n;
}

static int open_one(moe_recorded_passes *passes, moe_recorded_kind kind, moe_error *err)
{
    const moe_recorded_parts *parts = &passes->parts;
    const moe_model_config *c = parts->runner->config;
    moe_recorded_pass *r = moe_calloc(1, sizeof *r);
    if (r == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for passes of the device alone");
    }
    passes->kinds[kind] = r;
    r->parts = parts;
    r->runner = parts->runner;
    r->kind = kind;
    r->number = c->n_layer + kind; /* lower numbers belong to layers */
    r->fill = fill_of(parts->speculation, kind);
    r->most_in_place = most_in_place(parts);
    r->counted_pass = UINT64_MAX - 1;
    r->stride = (c->n_layer + MOST_TAILS - 1) / MOST_TAILS;
    const bool exact = kind == MOE_RECORDED_EXACT;
    moe_recorded_table_options options = {
        .stops = exact,
        .keeps = exact && parts->read_in_place != MOE_SWITCH_OFF && !all_fit(parts),
        .max_rows = exact ? r->runner->device->recording->max_rows : 1};
    if (kind == MOE_RECORDED_DRAFT) {
        options.affinity = parts->speculation->affinity;
    }
    if (kind == MOE_RECORDED_LOSSY) {
        options.substitutes = parts->lossy;
        for (uint32_t l = 0; l < c->n_layer; l++) {
            const uint32_t max = moe_lossy_substitution(parts->lossy, l).max;
            options.longest_list = max > options.longest_list ? max : options.longest_list;
        }
    }
    r->hook = (moe_pass_hook){.order = MOE_HOOK_RECORDED,
                              .passes = passes_of[kind],
                              .wants_probs = kind != MOE_RECORDED_EXACT,
                              .takes_panels = true, /* passes of panels never come here */
                              .context = r,
                              .take_over = take_over};
    MOE_TRY(moe_recorded_table_open(&r->table, r->runner->device, c, &options, err));
    return moe_runner_add_hook(r->runner, &r->hook, err);
}

int moe_recorded_passes_open(moe_recorded_passes **out, const moe_recorded_parts *parts,
                             moe_error *err)
{
    const moe_speculation *s = parts->speculation;
    *out = NULL;
    if (!moe_program_is_recordable(parts->runner->program, parts->runner->device)) {
        return MOE_OK;
    }
    moe_recorded_passes *passes = moe_calloc(1, sizeof *passes);
    if (passes == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for passes of the device alone");
    }
    *out = passes;
    passes->parts = *parts;
    if (s != NULL && s->use[MOE_DRAFTER_SELF] && s->tree_nodes == 0 &&
        s->fill != MOE_DRAFT_FILL_RANDOM) {
        MOE_TRY(open_one(passes, MOE_RECORDED_DRAFT, err));
    }
    if (parts->keeps_experts) {
        MOE_TRY(open_one(passes, MOE_RECORDED_EXACT, err));
    }
    if (parts->keeps_experts && moe_lossy_is_recordable(parts->lossy)) {
        MOE_TRY(open_one(passes, MOE_RECORDED_LOSSY, err));
    }
    return MOE_OK;
}
