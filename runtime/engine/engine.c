/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/calibrate.h>

#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"
#include "cache/expert_cache.h"
#include "runtime/engine/engine_copies.h"
#include "runtime/model/family.h"
#include "runtime/engine/device_choice.h"
#include "runtime/draft/draft_head.h"
#include "runtime/engine/draft_model.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/place/place.h"
#include "runtime/pass/program_run.h"
#include "runtime/engine/option_set.h"
#include "runtime/engine/metadata_notes.h"
#include "runtime/engine/session_park.h"

const char *moe_version(void)
{
    return MOE_VERSION_TEXT;
}

void moe_free(void *array)
{
    free(array);
}

void moe_engine_options_init_sized(moe_engine_options *options, size_t struct_size)
{
    const moe_engine_options defaults = {.struct_size = sizeof defaults};
    moe_struct_init(&moe_kind_engine_options, options, struct_size, &defaults);
}

static void destroy(moe_engine *engine)
{
    moe_idle_checksums_stop(&engine->idle_checksums);
    moe_learning_free(&engine->learning);
    moe_trace_recorder_close(&engine->trace);
    moe_workers_close(&engine->workers);
    engine->runner.hooks = NULL; /* no pass runs any more; each hook is freed by its owner */
    moe_speculation_close(&engine->speculation);
    moe_draft_model_close(&engine->draft_model);
    moe_draft_head_close(&engine->draft_head);
    moe_lossy_close(&engine->lossy);
    moe_budget_exact_close(&engine->budget_exact);
    free(engine->window_frequencies);
    moe_route_rules_close(&engine->rules);
    moe_route_replay_close(&engine->route_replay);
    if (engine->runner.experts != NULL) {
        moe_kv_pool_trim(&engine->kv); /* pages may lie in slots, so they are freed first */
    }
    moe_expert_store_close(&engine->runner.experts);
    moe_row_table_close(&engine->runner.ngrams);
    moe_engine_close_low_bit(engine);
    moe_overlap_oracle_destroy(&engine->oracle);
    moe_place_close(&engine->runner.at_host);
    moe_policy_release(&engine->policy_plugin);
    if (engine->device != NULL) {
        moe_recorded_passes_close(&engine->recorded);
        moe_weights_free(&engine->weights, engine->device);
        moe_pass_buffers_free(&engine->runner.buffers, engine->device);
        moe_kv_pool_free(&engine->kv);
        moe_state_pool_free(&engine->states);
        engine->device->ops->close(engine->device);
    }
    moe_team_destroy(&engine->team);
    moe_token_keys_free(&engine->token_keys);
    moe_tokenizer_destroy(&engine->tokenizer);
    moe_checksum_book_close(&engine->book);
    moe_program_free(&engine->program);
    moe_checksum_book_close(&engine->head_book);
    moe_tensor_map_free(&engine->map);
    moe_gguf_close(&engine->gguf);
    moe_gguf_close(&engine->head_gguf);
    moe_engine_close_copies(engine);
    moe_sidecar_close(&engine->sidecar);
    free(engine->rope_frequencies);
    free(engine->model_path);
    free(engine->park_folder);
    free(engine->model_name);
    free(engine->chat_template);
    free(engine);
}

static int open_vocabulary(moe_engine **out, const moe_engine_options *options, moe_error *err)
{
    moe_engine *engine = moe_calloc(1, sizeof *engine);
    if (engine == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for an engine");
    }
    *out = engine;
    engine->destroy = destroy;
    engine->progress = options->progress;
    engine->user = options->user;
    return moe_engine_open_vocabulary(engine, options, err);
}

static const moe_engine_calls engine_calls = {.options_init = moe_engine_options_init_sized,
                                              .open = moe_engine_open,
                                              .close = moe_engine_close};

int moe_engine_open_header(moe_engine **out, const moe_engine_options *options, moe_error *err)
{
    moe_engine *engine = moe_calloc(1, sizeof *engine);
    *out = engine;
    if (engine == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for an engine");
    }
    engine->destroy = destroy;
    engine->runner.config = &engine->config;
    engine->log = options->log;
    engine->user = options->user;
    return moe_engine_open_model(engine, options, err);
}

/* Opens an engine as far as its memory plan, which says whether and how the model fits. No memory
 * for weights is allocated yet. */
static int open_to_plan(moe_engine **out, const moe_engine_options *options, moe_error *err)
{
    unsigned cpu_features;
    const uint64_t began = moe_now_ns();
    MOE_TRY(moe_engine_check_options(options, &cpu_features, err));
    moe_engine *engine = moe_calloc(1, sizeof *engine);
    if (engine == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for an engine");
    }
    *out = engine;
    engine->destroy = destroy;
    engine->log = options->log;
    engine->user = options->user;
    engine->runner = (moe_runner){.config = &engine->config,
                                  .program = &engine->program,
                                  .bodies = moe_op_bodies,
                                  .weights = &engine->weights,
                                  .plan = &engine->plan,
                                  .kv = &engine->kv,
                                  .states = &engine->states,
                                  .log = options->log,
                                  .user = options->user};
    engine->progress = options->progress;
    engine->experts_only = options->experts_only;
    int status = moe_draft_model_open(&engine->draft_model, options, &engine_calls, err);
    if (status == MOE_OK) {
        status = moe_engine_open_model(engine, options, err);
    }
    if (status == MOE_OK) {
        status = moe_engine_open_sidecar(engine, options, err);
    }
    if (status == MOE_OK) {
        status = moe_engine_open_warm_start(engine, options, err);
    }
    if (status == MOE_OK) {
        status = moe_engine_open_device(engine, options, cpu_features, err);
    }
    status = status == MOE_OK ? moe_engine_open_low_bit(engine, options, err) : status;
    status = status == MOE_OK ? moe_engine_plan(engine, options, err) : status;
    engine->open_plan_ns = moe_now_ns() - began;
    return status;
}

/* Whether the engine may use the CPU instead: it chose this GPU by itself, and the GPU is too
 * small or does not work. */
static bool may_do_without(const moe_engine *engine, const moe_engine_options *o, int status)
{
    return engine != NULL && engine->device != NULL && moe_device_choice_is_auto(o) &&
           engine->device->link != NULL && o->device_memory == 0 &&
           (status == MOE_ERR_BUDGET || status == MOE_ERR_MEMORY || status == MOE_ERR_DEVICE);
}

/* Opens the model, with its memory or only up to the plan. Falls back on the CPU if the GPU that
 * the engine chose fails. */
static int open_model(moe_engine **out, const moe_engine_options *options, bool with_memory,
                      moe_error *err)
{
    moe_error why_not = {""};
    int status = open_to_plan(out, options, &why_not);
    if (status == MOE_OK && with_memory) {
        status = moe_engine_open_memory(*out, options, &why_not);
    }
    if (status == MOE_OK || !may_do_without(*out, options, status)) {
        return status == MOE_OK ? MOE_OK : moe_fail(err, status, "%s", why_not.message);
    }
    if (options->log != NULL) {
        char line[MOE_ERROR_MESSAGE_SIZE + 64];
        snprintf(line, sizeof line, "the GPU is not used: %s", why_not.message);
        options->log(line, options->user);
    }
    moe_engine_close(out);
    moe_engine_options on_cpu = *options;
    on_cpu.device = "cpu";
    status = open_to_plan(out, &on_cpu, err);
    return status == MOE_OK && with_memory ? moe_engine_open_memory(*out, &on_cpu, err) : status;
}

int moe_engine_open(moe_engine **out, const moe_engine_options *options, moe_error *err)
{
    if (out == NULL) {
        return moe_fail_null(err, "moe_engine_open", "out");
    }
    *out = NULL;
    moe_option_set set;
    const moe_engine_options *o = &set.options;
    MOE_TRY(moe_option_set_take(&set, options, err));
    moe_engine *engine = NULL;
    int status =
        o->vocabulary_only ? open_vocabulary(&engine, o, err) : open_model(&engine, o, true, err);
    if (status == MOE_OK && !o->vocabulary_only) {
        status = moe_park_open(engine, o->park_folder, err);
    }
    if (status == MOE_OK && !o->vocabulary_only && o->lab->trace_path != NULL) {
        status = moe_trace_recorder_open(&engine->trace, &engine->runner, engine->speculation,
                                         o->lab->trace_path, o->lab->trace_gates, err);
    }
    if (status == MOE_OK && !o->vocabulary_only) {
        moe_engine_choose_reads(engine, o);
        status = moe_engine_make_checksums(engine, o, err);
    }
    if (status != MOE_OK) {
        moe_engine_close(&engine);
        return status;
    }
    if (!o->vocabulary_only) {
        moe_metadata_notes(engine, o);
    }
    engine->progress = NULL;
    moe_engine_warm(engine);
    *out = engine;
    return MOE_OK;
}

int moe_plan_memory(const moe_engine_options *options, moe_memory_plan *plan, moe_error *err)
{
    moe_option_set set;
    const moe_engine_options *o = &set.options;
    moe_memory_plan made = {0};
    int status = moe_struct_give(&moe_kind_memory_plan, plan, &made, err);
    if (status == MOE_OK) {
        status = moe_option_set_take(&set, options, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    moe_engine *engine = NULL;
    status = open_model(&engine, o, false, err);
    if (status == MOE_OK) {
        moe_metadata_notes(engine, o);
        status = moe_engine_check_parts(engine, o, err);
    }
    if (engine != NULL) {
        (void)moe_struct_give(&moe_kind_memory_plan, plan, &engine->plan, NULL);
    }
    moe_engine_close(&engine);
    return status;
}

/* Returns how many bytes of weights a token reads. Of the embedding it reads one row, unless the
 * output head is the same matrix. */
static uint64_t active_bytes(const moe_engine *engine)
{
    uint64_t bytes = engine->map.resident_bytes;
    bytes -= engine->config.tied_output ? 0 : engine->map.token_embedding.size;
    bytes += engine->plan.token_expert_bytes;
    return bytes;
}

/* Fills in the description of an engine that opened only the vocabulary. */
static void describe_vocabulary(const moe_engine *engine, moe_engine_info *info)
{
    *info = (moe_engine_info){
        .architecture = "",
        .family = "",
        .model_name = engine->model_name,
        .device = "",
        .kernels = "",
        .n_vocab = engine->tokenizer != NULL ? moe_tokenizer_n_tokens(engine->tokenizer) : 0,
        .has_chat_template = engine->chat_template != NULL,
        .chat_template = engine->chat_template != NULL ? engine->chat_template : "",
        .policy = "",
        .io = "",
        .sidecar = "",
    };
}

static void describe_model(const moe_engine *engine, moe_engine_info *info)
{
    const moe_model_config *c = &engine->config;
    *info = (moe_engine_info){
        .architecture = c->architecture,
        .family = c->family->name,
        .model_name = engine->model_name,
        .device = engine->device->name,
        .device_simulated = engine->device->simulated,
        .kernels = engine->kernels,
        .n_threads = moe_team_size(engine->team),
        .n_layer = c->n_layer,
        .n_embd = c->n_embd,
        .n_vocab = c->n_vocab,
        .n_head = c->n_head,
        .n_head_kv = c->n_head_kv,
        .n_expert = c->n_expert,
        .n_expert_used = c->n_expert_used,
        .context = engine->context,
        .context_train = c->n_context_train,
        .n_parameters = engine->map.n_parameters,
        .n_parameters_active = engine->map.n_parameters_active,
        .resident_bytes = engine->weights.arena_bytes,
        .expert_bytes = engine->map.expert_bytes,
        .active_bytes = active_bytes(engine),
        .kv_bytes_per_token = engine->kv.page_bytes / MOE_KV_PAGE,
        .fingerprint = engine->fingerprint,
        .has_chat_template = engine->chat_template != NULL,
        .chat_template = engine->chat_template != NULL ? engine->chat_template : "",
        .policy = engine->policy->name,
        .io = engine->io,
        .sidecar = engine->sidecar.path,
        .memory = engine->plan,
    };
    info->memory.struct_size = sizeof info->memory;
}

int moe_engine_get_info(const moe_engine *engine, moe_engine_info *info)
{
    moe_engine_info now;
    if (engine == NULL) {
        return MOE_ERR_ARGUMENT;
    }
    if (engine->device != NULL) {
        describe_model(engine, &now);
    } else {
        describe_vocabulary(engine, &now);
    }
    return moe_struct_give(&moe_kind_engine_info, info, &now, NULL);
}

static uint64_t resident_bytes(const moe_engine *engine, const moe_expert_store_stats *experts)
{
    uint64_t bytes = engine->weights.arena_bytes + engine->plan.scratch +
                     engine->plan.device_scratch + moe_kv_pool_bytes(&engine->kv);
    bytes += experts->slot_bytes_total / experts->n_slots * experts->n_resident;
    if (experts->n_host_slots > 0) {
        bytes += experts->host_slot_bytes_total / experts->n_host_slots * experts->n_host_resident;
    }
    return bytes;
}

static void count(const moe_engine *engine, moe_engine_stats *stats)
{
    moe_expert_store_stats experts;
    moe_expert_store_get_stats(engine->runner.experts, &experts);
    if (engine->oracle != NULL) {
        moe_overlap_correct(engine->oracle, &experts);
    }
    *stats = (moe_engine_stats){
        .passes = engine->runner.n_passes,
        .prompt_tokens = engine->n_prompt_tokens,
        .decode_tokens = engine->n_decode_tokens,
        .expert_hits = experts.hits,
        .expert_misses = experts.misses,
        .expert_evictions = experts.evictions,
        .prefetches = experts.prefetches,
        .prefetches_used = experts.prefetches_used,
        .prefetches_wasted = experts.prefetches_wasted,
        .prefetches_cancelled = experts.prefetches_cancelled,
        .predicted_experts = engine->runner.n_predicted,
        .predicted_right = engine->runner.n_predicted_right,
        .bytes_demand = experts.bytes_demand,
        .bytes_prefetch = experts.bytes_prefetch,
        .bytes_read_disk = experts.bytes_read,
        .expert_wait_ns = experts.wait_ns,
        .expert_slots = experts.n_slots - experts.n_closed,
        .bytes_moved_link = experts.bytes_link,
        .resident_bytes_now = resident_bytes(engine, &experts),
        .host_hits = experts.host_hits,
        .host_misses = experts.host_misses,
        .host_computed = experts.host_computed,
        .experts_demoted = experts.demoted,
        .demotions_lost = experts.demotions_lost,
        .demoted_hits = experts.demoted_hits,
        .bytes_demoted = experts.bytes_demoted,
        .read_in_place = experts.read_in_place,
        .bytes_in_place = experts.bytes_in_place,
        .open_plan_ns = engine->open_plan_ns,
        .open_memory_ns = engine->open_memory_ns,
        .open_weights_ns = engine->open_weights_ns,
        .open_weights_bytes = engine->weights.arena_bytes,
        .host_slots = experts.n_host_slots - experts.n_host_closed,
        .bytes_disk_demand = experts.bytes_disk_demand,
        .bytes_disk_prefetch = experts.bytes_disk_prefetch,
        .disk_retries = experts.n_retries,
        .expert_failures = experts.n_failed,
        .expert_timeouts = experts.n_timeouts,
        .session_bytes =
            engine->border.ram_granted + engine->border.device_granted + engine->border.device_lent,
        .expert_slots_lent = experts.n_closed,
        .host_slots_lent = experts.n_host_closed,
        .policy_faults = experts.policy_faults,
        .oracle_ns = engine->oracle != NULL ? engine->oracle->recording_ns : 0,
    };
    moe_recorded_pass_counts(engine->recorded, &stats->passes_recorded, &stats->passes_missed,
                             &stats->passes_resumed);
    moe_speculation_get_stats(engine->speculation, &experts, &stats->speculation);
    moe_lossy_get_stats(engine->lossy, &stats->lossy);
    stats->lossy.output_error = moe_budget_exact_error(engine->budget_exact);
    moe_engine_count_low_bit(engine, stats);
    moe_engine_count_rows(engine, stats);
    moe_engine_count_workers(engine, stats);
}

int moe_engine_get_stats(const moe_engine *engine, moe_engine_stats *stats)
{
    moe_engine_stats now = {0};
    if (engine == NULL) {
        return MOE_ERR_ARGUMENT;
    }
    if (engine->device != NULL) {
        count(engine, &now);
    }
    return moe_struct_give(&moe_kind_engine_stats, stats, &now, NULL);
}
