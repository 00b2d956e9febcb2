/* SPDX-License-Identifier: MIT */
/* What workers would be worth: moe_plan_workers(). */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/engine/option_set.h"
#include "runtime/engine/worker_share.h"
#include "runtime/workers/worker_measure.h"

typedef struct planning {
    const moe_engine *engine;
    const moe_engine_options *options;
    const moe_memory_plan *plan;
    const moe_speed_rates *rates;
    moe_worker_links links;
    moe_worker_speed speeds[MOE_MOST_WORKERS];
    uint8_t *any; /* bits of the experts that some worker has */
} planning;

static int join(planning *p, moe_error *err)
{
    const moe_engine_options *o = p->options;
    const moe_model_config *c = &p->engine->config;
    const moe_wire_options nowhere = {.delay_ns = o->lab->worker_delay_ns};
    moe_worker_links *links = &p->links;
    MOE_TRY(moe_wire_open(&links->wire, &nowhere, err));
    links->identity = (moe_worker_identity){.fingerprint = p->engine->fingerprint,
                                            .n_layer = c->n_layer,
                                            .n_expert = c->n_expert,
                                            .n_used = c->n_expert_used,
                                            .n_in = c->n_expert_in};
    links->key = (moe_worker_key){o->worker_key, o->worker_key_bytes};
    links->timeout_ns = (uint64_t)((o->worker_timeout > 0 ? o->worker_timeout : 10.0) * 1e9);
    links->pause_ns = UINT64_C(1000000000);
    links->log = o->log;
    links->user = o->user;
    for (size_t i = 0; i < o->n_workers; i++) {
        MOE_TRY(moe_worker_links_add(links, o->workers[i], err));
    }
    return moe_worker_links_join(links, err);
}

static void measure(planning *p, moe_worker_estimate *estimate, moe_worker_fn tell, void *user)
{
    const size_t n_bytes = moe_expert_bit_bytes(&p->links.identity);
    estimate->workers = p->links.n;
    for (uint32_t i = 0; i < p->links.n; i++) {
        const moe_worker_link *link = &p->links.list[i];
        moe_worker_info info;
        if (link->state == MOE_WORKER_READY) {
            moe_worker_measure(&p->links, &p->engine->map, i, &p->speeds[i]);
        }
        moe_worker_describe(&p->links, i, &info);
        info.job_s = info.ready != 0 ? p->speeds[i].job_s : 0.0;
        info.expert_s = info.ready != 0 ? p->speeds[i].expert_s : 0.0;
        estimate->ready += info.ready;
        for (size_t k = 0; k < n_bytes && info.ready != 0; k++) {
            p->any[k] |= link->experts[k];
        }
        if (tell != NULL) {
            tell(&info, link->experts, p->links.identity.n_layer, p->links.identity.n_expert, user);
        }
    }
    for (size_t k = 0; k < n_bytes; k++) {
        estimate->experts += (uint64_t)__builtin_popcount(p->any[k]);
    }
}

/* How long this engine takes to bring an expert to where it computes it; 0: not known. */
static double read_seconds(const planning *p, const moe_speed_estimate *alone)
{
    const moe_memory_plan *plan = p->plan;
    const double bytes = plan->experts > 0 ? (double)plan->expert_bytes / (double)plan->experts : 0;
    const double missing = (double)plan->token_expert_bytes * (1.0 - plan->expected_hit_rate);
    return missing > 0 && bytes > 0 ? (alone->disk_s + alone->link_s) / (missing / bytes) : 0.0;
}

static int estimate_token(const planning *p, moe_worker_estimate *estimate, moe_error *err)
{
    moe_speed_estimate alone = {.struct_size = sizeof alone};
    moe_worker_token token;
    MOE_TRY(moe_plan_speed(p->plan, p->rates, &alone));
    const double read_s = read_seconds(p, &alone);
    MOE_TRY(moe_worker_token_estimate(&p->links, &p->engine->map, p->speeds,
                                      p->plan->expected_hit_rate, read_s, &token, err));
    estimate->jobs = token.jobs;
    estimate->bytes_sent = token.bytes_sent;
    estimate->bytes_received = token.bytes_received;
    estimate->workers_s = token.workers_s;
    estimate->saved_s = token.saved_s;
    if (read_s > 0) {
        const double total = token.wait_s + alone.compute_s;
        estimate->wait_s = token.wait_s;
        estimate->tokens_per_s = total > 0 ? 1.0 / total : 0.0;
    }
    return MOE_OK;
}

int moe_plan_workers(const moe_engine_options *options, const moe_memory_plan *plan,
                     const moe_speed_rates *rates, moe_worker_estimate *estimate,
                     moe_worker_fn tell, void *user, moe_error *err)
{
    moe_option_set set;
    moe_memory_plan own_plan = {0};
    moe_speed_rates own_rates = {0};
    moe_worker_estimate made = {0};
    moe_engine *engine = NULL;
    MOE_TRY(moe_struct_take(&moe_kind_memory_plan, &own_plan, plan, err));
    MOE_TRY(moe_struct_take(&moe_kind_speed_rates, &own_rates, rates, err));
    MOE_TRY(moe_struct_check(&moe_kind_worker_estimate, estimate, err));
    MOE_TRY(moe_option_set_take(&set, options, err));
    own_plan.struct_size = sizeof own_plan;
    own_rates.struct_size = sizeof own_rates;
    int status = moe_engine_open_header(&engine, &set.options, err);
    if (status == MOE_OK) {
        planning p = {
            .engine = engine,
            .options = &set.options,
            .plan = &own_plan,
            .rates = &own_rates,
            .any = moe_calloc((size_t)engine->config.n_layer * engine->config.n_expert / 8 + 1, 1)};
        status = p.any != NULL ? join(&p, err)
                               : moe_fail(err, MOE_ERR_MEMORY, "no memory for a plan of workers");
        if (status == MOE_OK) {
            measure(&p, &made, tell, user);
            status = estimate_token(&p, &made, err);
        }
        moe_worker_links_close(&p.links);
        free(p.any);
    }
    moe_engine_close(&engine);
    return status == MOE_OK ? moe_struct_give(&moe_kind_worker_estimate, estimate, &made, err)
                            : status;
}
