/* SPDX-License-Identifier: MIT */
/* The steps of opening an engine. They are ordered so that a mistake is reported as early as
 * possible: options, header, config, tensor map, tokenizer, the memory plan, then memory, and
 * weights last. */
#include <stdlib.h>
#include <string.h>

#include "cpu/kernels/cpu_features.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/dtype.h"
#include "runtime/base/error.h"
#include "runtime/base/part_source.h"
#include "cache/expert_cache.h"
#include "offload/model_open.h"
#include "offload/tensor_scales.h"
#include "runtime/draft/draft_head.h"
#include "runtime/engine/engine_copies.h"
#include "runtime/engine/context_fit.h"
#include "runtime/engine/device_choice.h"
#include "runtime/engine/draft_model.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/engine/session_panel.h"
#include "runtime/engine/session_timeline.h"
#include "runtime/engine/memory_plan.h"
#include "runtime/engine/metadata_notes.h"
#include "runtime/lab/route_replay.h"
#include "runtime/pass/position_index.h"
#include "runtime/pass/program_run.h"
#include "runtime/place/place.h"
#include "runtime/program/op_forms.h"
#include "runtime/host/memory_limits.h"
#include "runtime/families/families.h"
#include "runtime/model/gguf_called.h"
#include "runtime/model/override_check.h"

/* The baseline `caching` keeps this part (1 / CACHING_DIVISOR) of each layer's experts, at least
 * one expert. */
#define CACHING_DIVISOR       10u
#define DEFAULT_PREFILL_CHUNK 512u
#define DEFAULT_PANEL_OTHERS  20u
#define MAX_PREFILL_CHUNK     4096u
/* With little memory a pass has fewer rows, but not fewer than this. */
#define LEAST_DEFAULT_CHUNK 128u
/* Passes have fewer rows if their scratch exceeds 1 / SCRATCH_SHARE of the memory for experts. */
#define SCRATCH_SHARE 8u
/* Bytes reserved for memory that no other account counts: staging buffers of weights, the
 * reader's tables, thread stacks, and a session's sampler. */
#define RESERVE_BYTES (4u << 20)

/* Whether the mode is a baseline that keeps no expert after its use (`caching` keeps its fixed
 * experts). */
static bool keeps_nothing(moe_offload_mode mode)
{
    return mode != MOE_OFFLOAD_AUTO;
}

int moe_engine_open_model(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    engine->model_path = moe_strdup(o->model_path);
    if (engine->model_path == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for an engine");
    }
    engine->runner.model_path = engine->model_path;
    moe_engine_set_reading(engine, o);
    int status = moe_model_open(&engine->gguf, o->model_path, &engine->reading, err);
    if (status == MOE_OK && !o->experts_only &&
        moe_part_source_is(moe_gguf_file_at(engine->gguf, 0)->source)) {
        status = moe_fail(err, MOE_ERR_ARGUMENT,
                          "%s has a part of the experts and nothing else of the model: only "
                          "'moe-offload worker' can use it",
                          o->model_path);
    }
    if (status == MOE_OK && o->read_file != NULL) {
        status = moe_gguf_read_by(engine->gguf, o->read_file, o->read_user, err);
    }
    if (status == MOE_OK) {
        engine->reading.gguf = engine->gguf;
        moe_file_watch_init(&engine->files, engine->gguf, o->log, o->user);
        status =
            moe_gguf_override(engine->gguf, o->metadata_overrides, o->n_metadata_overrides, err);
    }
    if (status == MOE_OK) {
        status = moe_model_config_read(&engine->config, engine->gguf, err);
    }
    if (status == MOE_OK) {
        const moe_family *family = moe_family_find(engine->config.architecture);
        status = moe_overrides_check(engine->gguf, family, o->metadata_overrides,
                                     o->n_metadata_overrides, err);
    }
    if (status == MOE_OK) {
        status =
            moe_program_build(&engine->program, &engine->map, &engine->config, engine->gguf, err);
    }
    if (status == MOE_OK) {
        status = moe_tensor_scales_read(&engine->map, &engine->reading, err);
    }
    if (status == MOE_OK && o->lossy->expert_budget > engine->config.n_expert) {
        status = moe_fail(err, MOE_ERR_ARGUMENT,
                          "options.lossy.expert_budget of %u cannot act: a layer has %u experts",
                          o->lossy->expert_budget, engine->config.n_expert);
    }
    if (status == MOE_OK) {
        status = moe_engine_open_texts(engine, err);
    }
    if (status == MOE_OK && engine->tokenizer != NULL &&
        moe_tokenizer_n_tokens(engine->tokenizer) > engine->config.n_vocab) {
        status = moe_fail(err, MOE_ERR_FORMAT, "%s: %u tokens in the vocabulary, but %u embeddings",
                          engine->model_path, moe_tokenizer_n_tokens(engine->tokenizer),
                          engine->config.n_vocab);
    }
    if (status != MOE_OK) {
        return status;
    }
    if (o->lab->route_trace != NULL) {
        MOE_TRY(moe_route_replay_open(&engine->route_replay, o->lab->route_trace, &engine->runner,
                                      err));
    }
    engine->context = o->context != 0 ? o->context : engine->config.n_context_train;
    engine->offload = o->lab->offload;
    engine->prefill_chunk = o->prefill_chunk != 0 ? o->prefill_chunk : DEFAULT_PREFILL_CHUNK;
    engine->panel_others = o->panel_others != 0 ? o->panel_others : DEFAULT_PANEL_OTHERS;
    status = moe_model_identify(&engine->reading, &engine->identity, err);
    engine->fingerprint = engine->identity.fingerprint;
    return status == MOE_OK ? moe_engine_open_copies(engine, o, err) : status;
}

/* True if experts have biases that the host cannot read, because they are in the device's memory.
 */
static bool lacks_biases(const moe_engine *engine)
{
    bool biases = false;
    for (uint32_t i = 0; i < engine->program.n_ops; i++) {
        const moe_op *op = &engine->program.ops[i];
        biases = biases || (op->kind == MOE_OP_EXPERTS && op->bias != MOE_TENSOR_NONE);
    }
    return biases && (engine->device->features & MOE_DEVICE_READABLE) == 0;
}

/* Finds a tensor whose type only the CPU computes with. */
static bool find_cpu_only_type(const moe_gguf *gguf, uint32_t *type)
{
    for (size_t i = 0; i < moe_gguf_n_tensors(gguf); i++) {
        *type = moe_gguf_tensor_at(gguf, i)->type;
        const moe_dtype_info *info = moe_dtype_info_of(*type);
        if (info != NULL && info->cpu_only) {
            return true;
        }
    }
    return false;
}

/* Returns the features (moe_device_feature) that the device must have in addition to those that
 * the program's operations need. */
static unsigned needed_features(const moe_engine *engine, moe_kv_cache_type kv, uint32_t *any_type)
{
    bool small = kv == MOE_KV_CACHE_Q4_0 || kv == MOE_KV_CACHE_F8;
    return (small ? MOE_DEVICE_SMALL_KV : 0) |
           (find_cpu_only_type(engine->gguf, any_type) ? MOE_DEVICE_EVERY_TYPE : 0) |
           (engine->map.n_scales > 0 ? MOE_DEVICE_SCALED_WEIGHTS : 0);
}

/* Returns how many positions a step stores at most. A lossy pass that is compared with the exact
 * one stores both side by side. Lookahead and drafts store their positions behind the timeline. */
static uint32_t most_rows(const moe_engine *engine, const moe_engine_options *o)
{
    uint32_t rows = engine->prefill_chunk * (moe_lossy_is_asked(o) ? 2 : 1);
    uint32_t chain = moe_speculation_chain_rows(o);
    uint32_t drafted = o->tree_nodes + 1 > chain ? o->tree_nodes + 1 : chain;
    return (rows > drafted ? rows : drafted) + (o->lookahead > 0 ? o->lookahead + 2 : 0);
}

/* Returns how many of the positions that a step stores may lie behind a full context: the nodes
 * of trees, of which not all are accepted; the second copy of a lossy pass; and a token that
 * lookahead has begun. Chains never go beyond the context. */
static uint32_t rows_beyond(const moe_engine *engine, const moe_engine_options *o)
{
    return o->tree_nodes + (moe_lossy_is_asked(o) ? engine->prefill_chunk : 0) +
           (o->lookahead > 0 ? 2 : 0);
}

/* Checks that the device has room for the scores of positions, if its indexers choose positions. */
static int check_indexers(const moe_engine *engine, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    uint64_t most = moe_index_most_positions(engine->device, c);
    return c->index_top_k == 0 || engine->context <= most
               ? MOE_OK
               : moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "device '%s' does not choose among more than %llu positions, as the "
                          "indexers of this model do in longer contexts; a smaller context works, "
                          "and so does the CPU",
                          engine->device->name, (unsigned long long)most);
}

int moe_engine_open_device(moe_engine *engine, const moe_engine_options *o, unsigned cpu_features,
                           moe_error *err)
{
    MOE_TRY(moe_team_create(&engine->team, o->n_threads, err));
    moe_device_choice choice = {.options = o,
                                .team = engine->team,
                                .cpu_features = cpu_features,
                                .program = &engine->program};
    choice.needs = needed_features(engine, o->kv_cache, &choice.any_type);
    int status = moe_device_choice_open(&engine->device, &choice, err);
    engine->runner.device = engine->device;
    if (status == MOE_OK && o->host_compute == MOE_SWITCH_ON && lacks_biases(engine)) {
        status = moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "options.host_compute cannot act: the experts of %s models have biases, "
                          "which are in the device's memory",
                          engine->config.family->name);
    }
    status = status == MOE_OK ? check_indexers(engine, err) : status;
    if (status != MOE_OK) {
        return status;
    }
    moe_cpu_features_describe(cpu_features, engine->kernels, sizeof engine->kernels);
    status = moe_kv_pool_init(&engine->kv, engine->device, &engine->config,
                              (moe_kv_type)o->kv_cache, most_rows(engine, o), err);
    engine->kv.n_beyond = rows_beyond(engine, o);
    if (status == MOE_OK) {
        status = moe_state_pool_init(&engine->states, engine->device, &engine->config,
                                     moe_speculation_log_rows(o), err);
    }
    return status != MOE_OK ? status : moe_engine_open_head(engine, o, err);
}

static bool computes_on_host(const moe_engine *engine, const moe_engine_options *o)
{
    return engine->device->link != NULL && engine->offload == MOE_OFFLOAD_AUTO &&
           o->host_compute != MOE_SWITCH_OFF && !lacks_biases(engine);
}

static moe_place_shape expert_shape(const moe_engine *engine)
{
    const moe_model_config *c = &engine->config;
    return (moe_place_shape){.n_in = c->n_expert_in,
                             .n_ff = c->n_ff_expert,
                             .n_expert = c->n_expert,
                             .n_used = c->n_expert_used,
                             .max_rows = engine->prefill_chunk};
}

/* On a simulated device, the host's team computes on the same cores as the device. It gets half of
 * the threads, so that neither starves. */
static int open_places(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    moe_device *device = engine->device;
    bool with_host = computes_on_host(engine, o);
    moe_device_place_init(&engine->runner.at_device, device, engine->config.n_expert_in, with_host);
    if (!with_host) {
        return MOE_OK;
    }
    moe_place_split_init(&engine->runner.split, device->link_bytes_per_s, device->link_latency_ns);
    engine->runner.split.all_on_host = o->host_compute == MOE_SWITCH_ON;
    uint32_t n_threads = moe_team_size(engine->team);
    moe_host_place_options options = {.shape = expert_shape(engine),
                                      .n_threads = n_threads,
                                      .cpu_features = moe_cpu_features_of(o->lab->kernels),
                                      .device = device,
                                      .announces =
                                          engine->plan.expert_slots < engine->plan.experts};
    if (device->simulated) {
        options.n_threads = n_threads > 1 ? n_threads / 2 : 1;
    }
    return moe_place_open_host(&engine->runner.at_host, &options, err);
}

/* Returns how much memory the process takes before the engine's own. A draft model is part of it,
 * including memory that it has not touched yet. */
static uint64_t process_bytes(const moe_engine *engine)
{
    uint64_t draft = engine->draft_model != NULL ? moe_draft_model_bytes(engine->draft_model) : 0;
    uint64_t now = moe_memory_process();
    return now > draft ? now : draft;
}

static int compare_hotness(const void *a, const void *b)
{
    float x = *(const float *)a;
    float y = *(const float *)b;
    return (x < y) - (x > y);
}

/* Returns the bytes of the experts that one token uses. */
static uint64_t active_expert_bytes(const moe_engine *engine)
{
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < engine->map.n_layer; l++) {
        const moe_expert_ref *experts = engine->map.layers[l].experts;
        bytes +=
            experts != NULL ? engine->config.n_expert_used * moe_expert_ref_bytes(&experts[0]) : 0;
    }
    return bytes;
}

/* Returns the share of all choices that falls on the n hottest of n_all experts. */
static double share_of_hottest(const float *hotness, uint64_t n_all, uint64_t n)
{
    double kept = 0.0;
    double all = 0.0;
    for (uint64_t i = 0; i < n_all; i++) {
        kept += i < n ? hotness[i] : 0.0f;
        all += hotness[i];
    }
    return all > 0.0 ? kept / all : 0.0;
}

/* Estimates the hit rate. The host tier drops experts that the device holds, and takes experts that
 * leave the device, so no expert needs two slots (expert_store.h). */
static int expect_hits(moe_engine *engine, moe_error *err)
{
    moe_memory_plan *plan = &engine->plan;
    uint64_t n_memory = plan->host_slots + plan->expert_slots;
    n_memory = n_memory < plan->experts ? n_memory : plan->experts;
    plan->experts_in_memory = n_memory;
    plan->expected_hit_rate = (double)plan->expert_slots / (double)plan->experts;
    plan->expected_memory_hit_rate = (double)n_memory / (double)plan->experts;
    plan->hit_rate_is_calibrated = engine->sidecar.hotness != NULL;
    plan->token_expert_bytes = active_expert_bytes(engine);
    if (engine->sidecar.hotness == NULL) {
        return MOE_OK;
    }
    size_t n = (size_t)engine->config.n_layer * engine->config.n_expert;
    float *hotness = moe_calloc(n, sizeof *hotness);
    if (hotness == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for planning");
    }
    memcpy(hotness, engine->sidecar.hotness, n * sizeof *hotness);
    qsort(hotness, n, sizeof *hotness, compare_hotness);
    plan->expected_hit_rate = share_of_hottest(hotness, n, plan->expert_slots);
    plan->expected_memory_hit_rate = share_of_hottest(hotness, n, n_memory);
    free(hotness);
    return MOE_OK;
}

static uint64_t session_bytes_of(const void *engine, uint64_t n_tokens)
{
    return moe_engine_session_state(engine, n_tokens);
}

/* Measures how much memory the further cards have for experts, and how much host memory is needed
 * to pass rows between cards. */
static void measure_cards(const moe_engine *engine, const moe_engine_options *o,
                          const moe_device_limits *limits, moe_plan_input *input)
{
    input->n_cards = moe_cards_n(engine->device);
    input->scratch_bytes += moe_cards_host_bytes(engine->device, limits);
    for (uint32_t k = 1; k < input->n_cards; k++) {
        input->card_room[k] = moe_cards_room(engine->device, k, limits, o->device_memory);
    }
}

static int plan_for_chunk(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    moe_device_limits limits;
    uint32_t most = engine->context;
    uint32_t piece_rows = moe_speculation_piece_rows(o, engine->device);
    uint64_t head_bytes = 0;
    moe_pass_device_limits(&engine->program, engine->prefill_chunk, &limits);
    if (engine->draft_head != NULL) {
        moe_draft_head_limits(engine->draft_head, &limits);
        int sized = moe_draft_head_resident_bytes(engine->draft_head, &head_bytes, err);
        if (sized != MOE_OK) {
            return sized;
        }
    }
    const moe_place_shape shape = expert_shape(engine);
    moe_plan_input input = {
        .options = o,
        .config = c,
        .map = &engine->map,
        .process_bytes = process_bytes(engine),
        .available_bytes = moe_memory_available(),
        .limit_bytes = moe_memory_limit(),
        .resident_bytes = moe_weights_bytes(c, &engine->map, o->experts_only) + head_bytes,
        .state_bytes = moe_state_pool_session_bytes(&engine->states),
        .row_cache_bytes = moe_engine_ngram_bytes(engine, o),
        .scratch_bytes =
            moe_pass_buffers_host_bytes(&engine->program, engine->prefill_chunk) + RESERVE_BYTES +
            moe_engine_ngram_bytes(engine, o) + moe_engine_worker_bytes(engine, o) +
            moe_pass_buffers_host_bytes(&engine->program, piece_rows) +
            (engine->draft_head != NULL
                 ? moe_draft_head_scratch_bytes(engine->draft_head, engine->prefill_chunk)
                 : 0) +
            (computes_on_host(engine, o) ? moe_place_host_bytes(&shape) : 0),
        .device_scratch_bytes =
            moe_pass_buffers_device_bytes(&engine->program, engine->prefill_chunk) +
            moe_pass_buffers_device_bytes(&engine->program, piece_rows) +
            engine->device->ops->scratch_need(engine->device, &limits) +
            moe_recorded_passes_bytes(engine->device, &engine->program, o,
                                      moe_engine_keeps_experts(engine)),
        .device_memory = engine->device->memory_bytes,
        .simulated = engine->device->simulated,
        .low_bit = engine->low_bit_sizes,
        .context = engine->context,
    };
    measure_cards(engine, o, &limits, &input);
    moe_kv_pool_sizes(&engine->kv, &input.kv);
    moe_engine_measure_session(engine, o);
    int status =
        moe_expert_store_sizes(&engine->map, engine->device->link != NULL, &input.slots, err);
    if (status == MOE_OK && o->context == 0) {
        engine->context = moe_fit_context(&input, session_bytes_of, engine);
        input.context = engine->context;
    }
    input.session_bytes = moe_engine_session_state(engine, engine->context);
    if (status == MOE_OK) {
        status = moe_memory_plan_make(&input, &engine->plan, err);
        const uint64_t had = input.process_bytes + input.available_bytes;
        engine->memory_reserve = had > engine->plan.budget ? had - engine->plan.budget : 0;
        engine->plan.context_most = most;
    }
    if (status == MOE_OK) {
        status = moe_panel_plan(engine, o->panel, err);
    }
    return status != MOE_OK ? status : expect_hits(engine, err);
}

/* Whether a pass may have half as many rows. Panels then read no more for it, because they read an
 * expert once for all of their rows. */
static bool may_halve_chunk(const moe_engine *engine, const moe_engine_options *o)
{
    const uint32_t half = engine->prefill_chunk / 2;
    return o->prefill_chunk == 0 && half >= LEAST_DEFAULT_CHUNK && half >= o->sessions &&
           (o->panel == 0 || o->panel > DEFAULT_PREFILL_CHUNK) && o->lookahead == 0 &&
           o->n_workers == 0 && !o->experts_only && !moe_lossy_is_asked(o) &&
           engine->draft_head == NULL && engine->offload == MOE_OFFLOAD_AUTO &&
           moe_program_is_by_stream(&engine->program) && engine->device->memory_bytes == 0;
}

/* Whether experts lack the memory that the scratch of passes takes. */
static bool is_tight(const moe_memory_plan *plan, const moe_engine_options *o)
{
    return o->expert_cache == 0 && o->expert_cache_share == 0.0 &&
           plan->expert_slots < plan->experts && plan->scratch > plan->expert_cache / SCRATCH_SHARE;
}

int moe_engine_plan(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    const uint32_t context = engine->context;
    int status = plan_for_chunk(engine, o, err);
    while ((status == MOE_ERR_BUDGET || (status == MOE_OK && is_tight(&engine->plan, o))) &&
           may_halve_chunk(engine, o)) {
        engine->prefill_chunk /= 2;
        engine->context = context;
        status = plan_for_chunk(engine, o, err);
    }
    engine->plan.prefill_chunk = engine->prefill_chunk;
    return status;
}

static int choose_policy(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    const char *name = o->policy != NULL ? o->policy : MOE_POLICY_DEFAULT;
    return moe_policy_choose(&engine->policy, &engine->policy_plugin, o->own_policy, name, err);
}

static int open_experts(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    int status = choose_policy(engine, o, err);
    if (status == MOE_OK) {
        status = moe_speculation_check_policy(o, engine->policy, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    uint32_t *kept = NULL;
    uint32_t n_kept = 0;
    uint32_t n_of_layer = moe_speculation_kept_experts(o);
    if (o->lab->offload == MOE_OFFLOAD_CACHING) {
        n_of_layer = c->n_expert / CACHING_DIVISOR > 0 ? c->n_expert / CACHING_DIVISOR : 1;
    }
    if (n_of_layer > 0 && engine->sidecar.calibration != NULL) {
        MOE_TRY(moe_calibration_hottest_of_layers(engine->sidecar.calibration, c, n_of_layer, &kept,
                                                  &n_kept, err));
    }
    moe_expert_store_options options = {.device = engine->device,
                                        .gguf = engine->gguf,
                                        .copies = (const moe_gguf *const *)engine->copies,
                                        .n_copies = engine->n_copies,
                                        .map = &engine->map,
                                        .n_expert_used = engine->config.n_expert_used,
                                        .budget_bytes = engine->plan.expert_cache,
                                        .card_bytes = engine->plan.card_cache,
                                        .policy = engine->policy,
                                        .per_layer = o->lab->per_layer_cache,
                                        .host_budget_bytes = engine->plan.host_cache,
                                        .kept = kept,
                                        .n_kept = n_kept,
                                        .hotness = engine->sidecar.hotness,
                                        .sums = &engine->book.sums,
                                        .keep_nothing = keeps_nothing(engine->offload),
                                        .io = o->io,
                                        .buffered_io = o->buffered_io,
                                        .io_block_bytes = o->io_block_bytes,
                                        .io_depth = o->io_depth,
                                        .io_timeout_ns = (uint64_t)(o->io_timeout * 1e9),
                                        .n_page_threads = moe_team_size(engine->team) < 2 ? 1 : 2,
                                        .log = o->log,
                                        .user = o->user};
    status = moe_expert_store_open(&engine->runner.experts, &options, err);
    free(kept);
    if (status == MOE_OK && engine->offload == MOE_OFFLOAD_OVERLAP) {
        status = moe_overlap_oracle_create(&engine->oracle, &engine->runner, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    moe_memory_border_open(&engine->border, &engine->runner.experts, engine->device, &engine->plan);
    moe_kv_pool_limit(&engine->kv, engine->context);
    engine->kv.border = &engine->border;
    engine->states.border = &engine->border;
    moe_expert_store_describe(engine->runner.experts, engine->io, sizeof engine->io);
    /* With a replayed routing, the model's own routers do not predict the next experts. */
    bool all_fit = engine->plan.expert_slots >= engine->plan.experts;
    bool worthwhile = !all_fit && !keeps_nothing(engine->offload) && o->lab->route_trace == NULL &&
                      !moe_speculation_by_bytes(o);
    engine->runner.prefetch = o->prefetch == MOE_SWITCH_ON                   ? MOE_PREFETCH_ON
                              : o->prefetch == MOE_SWITCH_AUTO && worthwhile ? MOE_PREFETCH_TRIED
                                                                             : MOE_PREFETCH_OFF;
    moe_trial_gate_init(&engine->runner.prefetch_gate);
    return MOE_OK;
}

/* Opens speculation and lossy modes, as far as this is possible while the runner is not
 * complete. */
static int open_drafts(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    moe_draft_model *model = engine->draft_model;
    moe_draft_parts draft = {.runner = &engine->runner,
                             .map = &engine->map,
                             .tokenizer = engine->tokenizer,
                             .calibration = engine->sidecar.calibration,
                             .hotness = engine->sidecar.hotness,
                             .max_rows = engine->prefill_chunk,
                             .is_behind_link =
                                 engine->device->link != NULL || engine->device->memory_bytes != 0,
                             .run_model = model != NULL ? moe_draft_model_run : NULL,
                             .model = model,
                             .head = engine->draft_head};
    moe_lossy_parts lossy = {.runner = &engine->runner,
                             .map = &engine->map,
                             .calibration = engine->sidecar.calibration,
                             .copies = engine->low_bit_experts};
    int status = moe_speculation_open(&engine->speculation, &draft, o, err);
    if (status == MOE_OK && model != NULL) {
        status = moe_draft_model_check(model, engine, err);
    }
    engine->marks = (moe_lossy_is_asked(o) ? MOE_SESSION_LOSSY : 0) |
                    (o->float_gemm == MOE_FLOAT_GEMM_BLAS ? MOE_SESSION_FLOAT_GEMM : 0);
    return status == MOE_OK ? moe_lossy_open(&engine->lossy, &lossy, o, err) : status;
}

int moe_engine_check_parts(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    MOE_TRY(choose_policy(engine, o, err));
    return open_drafts(engine, o, err);
}

int moe_engine_open_memory(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    moe_weights_source source = {.gguf = engine->gguf,
                                 .config = c,
                                 .map = &engine->map,
                                 .sums = &engine->book.sums,
                                 .reader = engine->reading,
                                 .experts_only = o->experts_only,
                                 .n_threads = moe_team_size(engine->team),
                                 .progress = o->progress,
                                 .user = o->user};
    moe_device_limits limits;
    moe_pass_device_limits(&engine->program, engine->prefill_chunk, &limits);
    if (engine->draft_head != NULL) {
        moe_draft_head_limits(engine->draft_head, &limits);
    }
    const uint64_t began = moe_now_ns();
    int status = moe_engine_open_book(engine, o, err);
    if (status == MOE_OK) {
        status = engine->device->ops->reserve(engine->device, &limits, err);
    }
    if (status == MOE_OK) {
        status = moe_pass_buffers_init(&engine->runner.buffers, engine->device, &engine->program,
                                       engine->prefill_chunk, err);
    }
    if (status == MOE_OK) {
        status = open_places(engine, o, err);
    }
    if (status == MOE_OK) {
        status = open_experts(engine, o, err);
    }
    if (status == MOE_OK) {
        status = moe_engine_open_ngrams(engine, o, err);
    }
    if (status == MOE_OK) {
        status = moe_engine_open_low_bit_store(engine, o, err);
    }
    const uint64_t have_memory = moe_now_ns();
    engine->open_memory_ns = have_memory - began;
    if (status == MOE_OK) {
        status = moe_weights_load(&engine->weights, engine->device, &source, err);
        engine->open_weights_ns = moe_now_ns() - have_memory;
    }
    if (status != MOE_OK) {
        return status;
    }
    status = moe_engine_open_frequencies(engine, err);
    if (status == MOE_OK) {
        status = moe_engine_load_head(engine, err);
    }
    if (status == MOE_OK) {
        status = open_drafts(engine, o, err);
        engine->own_attention = moe_has_own_attention(&engine->runner);
    }
    if (status == MOE_OK) {
        status = moe_engine_attach_hooks(engine, o, err);
    }
    if (status == MOE_OK) {
        status = moe_engine_open_workers(engine, o, err);
    }
    if (status == MOE_OK) {
        status = moe_engine_fill(engine, o, err);
    }
    return status != MOE_OK ? status : moe_engine_look_at_files(engine, true, err);
}
