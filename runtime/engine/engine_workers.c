/* SPDX-License-Identifier: MIT */
/* Experts on other machines: connects an engine to its workers, and runs an engine that is a
 * worker. */
#include <stdlib.h>
#include <string.h>

#include <moe/workers.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/engine/worker_share.h"
#include "runtime/pass/expert_form.h"
#include "runtime/workers/worker_address.h"

/* ---- An engine that has workers ---- */

int moe_engine_join_workers(moe_engine *engine, const moe_engine_options *o, moe_wire *wire,
                            uint64_t pause_ns, moe_error *err)
{
    const moe_workers_parts parts = {.runner = &engine->runner,
                                     .map = &engine->map,
                                     .wire = wire,
                                     .fingerprint = engine->fingerprint,
                                     .addresses = o->workers,
                                     .n_addresses = o->n_workers,
                                     .key = o->worker_key,
                                     .key_bytes = o->worker_key_bytes,
                                     .all = o->worker_compute == MOE_SWITCH_ON,
                                     .rebalance = o->worker_rebalance,
                                     .timeout_ns = (uint64_t)(o->worker_timeout * 1e9),
                                     .pause_ns = pause_ns,
                                     .log = o->log,
                                     .user = o->user};
    return moe_workers_open(&engine->workers, &parts, err);
}

int moe_engine_open_workers(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    const moe_wire_options nowhere = {.delay_ns = o->lab->worker_delay_ns};
    moe_wire *wire;
    if (o->n_workers == 0) {
        return MOE_OK;
    }
    MOE_TRY(moe_wire_open(&wire, &nowhere, err));
    return moe_engine_join_workers(engine, o, wire, 0, err);
}

uint64_t moe_engine_worker_bytes(const moe_engine *engine, const moe_engine_options *o)
{
    return o->n_workers > 0 || o->experts_only
               ? moe_workers_bytes(&engine->config, engine->prefill_chunk)
               : 0;
}

void moe_engine_count_workers(const moe_engine *engine, moe_engine_stats *stats)
{
    moe_workers_stats s = {.n_jobs = engine->worker_counts.n_jobs,
                           .n_rows = engine->worker_counts.n_outs};
    if (engine->workers != NULL) {
        moe_workers_get_stats(engine->workers, &s);
    }
    stats->workers = s.n_workers;
    stats->workers_ready = s.n_ready;
    stats->worker_jobs = s.n_jobs;
    stats->worker_experts = s.n_experts;
    stats->worker_rows = s.n_rows;
    stats->worker_bytes_sent = s.bytes_sent;
    stats->worker_bytes_received = s.bytes_received;
    stats->worker_wait_ns = s.wait_ns;
    stats->worker_experts_lost = s.n_lost_experts;
    stats->workers_lost = s.n_lost_workers;
}

static uint64_t count_bits(const uint8_t *bits, size_t n_bytes)
{
    uint64_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        n += (uint64_t)__builtin_popcount(bits[i]);
    }
    return n;
}

void moe_worker_describe(const moe_worker_links *links, uint32_t i, moe_worker_info *info)
{
    const moe_worker_link *link = &links->list[i];
    const uint32_t n_used = links->identity.n_used;
    const double one = moe_worker_costs_ns(&link->costs, 1, 1);
    const double all = moe_worker_costs_ns(&link->costs, 1, n_used);
    *info = (moe_worker_info){.struct_size = sizeof *info,
                              .ready = link->state == MOE_WORKER_READY,
                              .slots = link->n_slots,
                              .jobs = link->n_jobs,
                              .computed = link->n_experts,
                              .lost = link->n_lost};
    memcpy(info->name, link->name, sizeof info->name);
    if (info->ready) {
        info->experts = count_bits(link->experts, moe_expert_bit_bytes(&links->identity));
        info->expert_s = n_used > 1 && all > one ? 1e-9 * (all - one) / (n_used - 1) : 0.0;
        info->job_s = 1e-9 * one > info->expert_s ? 1e-9 * one - info->expert_s : 0.0;
    }
}

int moe_engine_get_worker(const moe_engine *engine, uint32_t i, moe_worker_info *info,
                          uint8_t *experts)
{
    moe_worker_info now;
    if (engine == NULL || engine->workers == NULL || i >= engine->workers->links.n) {
        return MOE_ERR_ARGUMENT;
    }
    const moe_worker_links *links = &engine->workers->links;
    moe_worker_describe(links, i, &now);
    if (experts != NULL) {
        memset(experts, 0, moe_expert_bit_bytes(&links->identity));
    }
    if (experts != NULL && now.ready) {
        memcpy(experts, links->list[i].experts, moe_expert_bit_bytes(&links->identity));
    }
    return moe_struct_give(&moe_kind_worker_info, info, &now, NULL);
}

/* ---- An engine that is a worker ---- */

static const moe_worker_options worker_defaults = {.struct_size = sizeof worker_defaults};

void moe_worker_options_init_sized(moe_worker_options *options, size_t struct_size)
{
    moe_struct_init(&moe_kind_worker_options, options, struct_size, &worker_defaults);
}

typedef struct serving {
    moe_engine *engine;
    const moe_worker_options *options;
    uint8_t *able;    /* bits of the experts in the file */
    uint8_t *experts; /* bits of the experts that coordinators are told of */
    uint32_t *keys;   /* [n_keys]: the same experts, in the order in which they are read ahead */
    uint32_t n_keys;
} serving;

/* Lists the experts whose bits are set. */
static void list_keys(serving *s)
{
    const uint32_t n = s->engine->config.n_layer * s->engine->config.n_expert;
    s->n_keys = 0;
    for (uint32_t key = 0; key < n; key++) {
        if ((s->experts[key / 8] >> key % 8 & 1) != 0) {
            s->keys[s->n_keys++] = key;
        }
    }
}

static int list_share(serving *s, moe_error *err)
{
    const moe_engine *engine = s->engine;
    const size_t n = (size_t)engine->config.n_layer * engine->config.n_expert;
    s->able = moe_calloc(n / 8 + 1, 1);
    s->experts = moe_calloc(n / 8 + 1, 1);
    s->keys = moe_calloc(n, sizeof *s->keys);
    if (s->able == NULL || s->experts == NULL || s->keys == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a worker");
    }
    const moe_worker_options all = {.share = 0};
    MOE_TRY(moe_worker_experts(engine, &all, s->able, err));
    MOE_TRY(moe_worker_experts(engine, s->options, s->experts, err));
    list_keys(s);
    return s->n_keys > 0 ? MOE_OK
                         : moe_fail(err, MOE_ERR_ARGUMENT,
                                    "this worker has none of its experts: the file %s has only "
                                    "other ones",
                                    engine->model_path);
}

/* Takes over the experts that a coordinator asks for, as far as the file has them. The store evicts
 * those that nobody asks for any more when it needs their slots. */
static void hold(void *context, const uint8_t *experts)
{
    serving *s = context;
    const size_t n = (size_t)s->engine->config.n_layer * s->engine->config.n_expert;
    for (size_t i = 0; i < (n + 7) / 8; i++) {
        s->experts[i] = experts[i] & s->able[i];
    }
    list_keys(s);
}

/* Reads missing experts of the share, while there is nothing to do. */
static void read_share(void *context)
{
    const serving *s = context;
    (void)moe_expert_store_warm(s->engine->runner.experts, s->keys, s->n_keys);
}

static bool is_stopped(void *context)
{
    const serving *s = context;
    return s->options->is_stopped(s->options->user);
}

/* Fetches the outputs of the job's choices; each run of neighbouring slots is one transfer. */
static int fetch_outs(moe_runner *runner, uint32_t n_slots, uint8_t *outs, moe_error *err)
{
    const uint32_t *chosen = runner->buffers.chosen;
    const size_t n_in = runner->config->n_expert_in;
    for (uint32_t s = 0; s < n_slots;) {
        uint32_t end = s;
        while (end < n_slots && chosen[end] != MOE_PLAN_NO_EXPERT) {
            end++;
        }
        size_t bytes = (end - s) * n_in * sizeof(float);
        if (bytes > 0) {
            MOE_TRY(runner->device->ops->download(
                runner->device, outs, runner->buffers.values[MOE_VALUE_RANK_OUT] + s * n_in, bytes,
                err));
        }
        outs += bytes;
        s = end + 1;
    }
    return MOE_OK;
}

static int compute(void *context, const moe_worker_job *job, uint8_t *outs, uint32_t n_outs,
                   moe_error *err)
{
    const serving *s = context;
    moe_runner *runner = &s->engine->runner;
    moe_pass_buffers *b = &runner->buffers;
    const uint32_t n_slots = job->n_rows * runner->config->n_expert_used;
    const moe_pass pass = {.kind = MOE_PASS_EXACT,
                           .n_rows = job->n_rows,
                           .is_cancelled = is_stopped,
                           .cancel_user = context};
    (void)n_outs;
    memcpy(b->chosen, job->chosen, n_slots * sizeof *b->chosen);
    memcpy(b->chosen_weights, job->weights, n_slots * sizeof *b->chosen_weights);
    MOE_TRY(runner->device->ops->upload(
        runner->device, moe_experts_x(runner, job->layer), job->x,
        (size_t)job->n_rows * runner->config->n_expert_in * sizeof(float), err));
    MOE_TRY(moe_layer_compute(runner, &pass, job->layer, err));
    moe_expert_store_end_pass(runner->experts, runner->n_passes++);
    return fetch_outs(runner, n_slots, outs, err);
}

static int check_options(const moe_engine *engine, const moe_worker_options *o, moe_error *err)
{
    if (o->listen == NULL || o->is_stopped == NULL) {
        return moe_fail_null(err, "moe_worker_serve", "the address or the function is_stopped");
    }
    if (!engine->experts_only) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "moe_worker_serve: the engine must be opened with experts_only");
    }
    return MOE_OK;
}

static int listen_at(moe_wire **wire, const moe_worker_options *o, moe_error *err)
{
    struct addrinfo *found;
    MOE_TRY(moe_worker_address_find(o->listen, &found, err));
    const moe_wire_options options = {.address = found->ai_addr,
                                      .address_bytes = found->ai_addrlen};
    int status = o->key_bytes > 0 || moe_worker_address_is_local(found)
                     ? moe_wire_open(wire, &options, err)
                     : moe_fail(err, MOE_ERR_ARGUMENT,
                                "a worker at %s can be reached from other machines: it needs a key "
                                "(options.worker_key)",
                                o->listen);
    freeaddrinfo(found);
    if (status == MOE_ERR_IO && err != NULL) {
        const moe_error why = *err;
        return moe_fail(err, status, "%s: %s", o->listen, why.message);
    }
    return status;
}

static int serve(serving *s, moe_wire *wire, moe_error *err)
{
    moe_engine *engine = s->engine;
    const moe_model_config *c = &engine->config;
    const moe_worker_options *o = s->options;
    MOE_TRY(list_share(s, err));
    const moe_worker_parts parts = {
        .wire = wire,
        .identity = {engine->fingerprint, c->n_layer, c->n_expert, c->n_expert_used,
                     c->n_expert_in},
        .key = {o->key, o->key_bytes},
        .max_rows = engine->runner.buffers.max_rows,
        .able = s->able,
        .experts = s->experts,
        .n_slots = (uint32_t)(engine->plan.expert_slots + engine->plan.host_slots),
        .compute = compute,
        .hold = hold,
        .is_stopped = is_stopped,
        .idle = read_share,
        .context = s,
        .log = engine->log,
        .user = engine->user};
    read_share(s);
    if (o->started != NULL) {
        o->started(wire->port, s->n_keys, o->user);
    }
    return moe_worker_serve_wire(&parts, &engine->worker_counts, err);
}

int moe_engine_serve_wire(moe_engine *engine, const moe_worker_options *o, moe_wire *wire,
                          moe_error *err)
{
    serving s = {.engine = engine, .options = o};
    int status = serve(&s, wire, err);
    free(s.able);
    free(s.experts);
    free(s.keys);
    return status;
}

int moe_worker_serve(moe_engine *engine, const moe_worker_options *options, moe_error *err)
{
    moe_worker_options o = worker_defaults;
    moe_wire *wire = NULL;
    if (engine == NULL) {
        return moe_fail_null(err, "moe_worker_serve", "engine");
    }
    MOE_TRY(moe_struct_take(&moe_kind_worker_options, &o, options, err));
    MOE_TRY(check_options(engine, &o, err));
    MOE_TRY(listen_at(&wire, &o, err));
    int status = moe_engine_serve_wire(engine, &o, wire, err);
    wire->ops->close(wire);
    return status;
}
