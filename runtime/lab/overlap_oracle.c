/* SPDX-License-Identifier: MIT */
#include "runtime/lab/overlap_oracle.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/pass/runner.h"

/* The store's statistics that only grow. */
#define AT(field) offsetof(moe_expert_store_stats, field)
static const size_t counters[] = {
    AT(hits),
    AT(misses),
    AT(evictions),
    AT(host_hits),
    AT(host_misses),
    AT(host_computed),
    AT(read_in_place),
    AT(bytes_in_place),
    AT(demoted),
    AT(demotions_lost),
    AT(demoted_hits),
    AT(bytes_demoted),
    AT(prefetches),
    AT(prefetches_used),
    AT(prefetches_wasted),
    AT(prefetches_cancelled),
    AT(bytes_demand),
    AT(bytes_prefetch),
    AT(bytes_link),
    AT(bytes_disk_demand),
    AT(bytes_disk_prefetch),
    AT(bytes_read),
    AT(wait_ns),
};

static uint64_t *counter(moe_expert_store_stats *stats, size_t i)
{
    return (uint64_t *)((char *)stats + counters[i]);
}

void moe_overlap_oracle_destroy(moe_overlap_oracle **oracle)
{
    if (*oracle != NULL) {
        free((*oracle)->n_experts);
        free((*oracle)->experts);
        free(*oracle);
        *oracle = NULL;
    }
}

/* The recording run of the pass; other hooks that only watch do not see it. */
static int record(void *context, moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    moe_overlap_oracle *oracle = context;
    moe_expert_store_stats before, after;
    moe_pass rehearsal = *pass;
    uint64_t begin = moe_now_ns();
    rehearsal.rehearses = true;
    moe_expert_store_get_stats(runner->experts, &before);
    oracle->recording = true;
    int status = moe_pass_run_layers(runner, &rehearsal, err);
    oracle->recording = false;
    moe_expert_store_get_stats(runner->experts, &after);
    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++) {
        *counter(&oracle->recorded, i) += *counter(&after, i) - *counter(&before, i);
    }
    oracle->recording_ns += moe_now_ns() - begin;
    return status;
}

/* Called when a layer's request has begun. In the recording run notes it; in the second run
 * requests the next layer's experts. */
static void look_ahead(void *context, moe_runner *runner, uint32_t layer)
{
    moe_overlap_oracle *oracle = context;
    const moe_layer_plan *plan = &runner->buffers.plan;
    if (oracle->recording) {
        memcpy(oracle->experts + (size_t)layer * oracle->n_expert, plan->experts,
               plan->n_experts * sizeof *plan->experts);
        oracle->n_experts[layer] = plan->n_experts;
        return;
    }
    uint32_t next = layer + 1;
    if (next < runner->config->n_layer && oracle->n_experts[next] > 0) {
        moe_expert_store_prefetch(runner->experts, next, runner->n_passes,
                                  oracle->experts + (size_t)next * oracle->n_expert,
                                  oracle->n_experts[next], UINT32_MAX);
    }
}

int moe_overlap_oracle_create(moe_overlap_oracle **out, moe_runner *runner, moe_error *err)
{
    uint32_t n_layer = runner->config->n_layer;
    uint32_t n_expert = runner->config->n_expert;
    *out = NULL;
    moe_overlap_oracle *oracle = moe_calloc(1, sizeof *oracle);
    if (oracle != NULL) {
        oracle->n_expert = n_expert;
        oracle->n_experts = moe_calloc(n_layer, sizeof *oracle->n_experts);
        oracle->experts = moe_calloc((size_t)n_layer * n_expert, sizeof *oracle->experts);
    }
    if (oracle == NULL || oracle->n_experts == NULL || oracle->experts == NULL) {
        moe_overlap_oracle_destroy(&oracle);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the overlap baseline's oracle");
    }
    oracle->hook = (moe_pass_hook){.order = MOE_HOOK_OVERLAP,
                                   .passes = MOE_HOOK_ON_TARGET | MOE_HOOK_ON_REHEARSAL,
                                   .context = oracle,
                                   .before_pass = record,
                                   .while_loading = look_ahead};
    int status = moe_runner_add_hook(runner, &oracle->hook, err);
    if (status != MOE_OK) {
        moe_overlap_oracle_destroy(&oracle);
    }
    *out = oracle;
    return status;
}

void moe_overlap_correct(const moe_overlap_oracle *oracle, moe_expert_store_stats *stats)
{
    moe_expert_store_stats recorded = oracle->recorded;
    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++) {
        *counter(stats, i) -= *counter(&recorded, i);
    }
}
