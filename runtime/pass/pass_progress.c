/* SPDX-License-Identifier: MIT */
#include "runtime/pass/pass_progress.h"

#include "runtime/base/clock.h"
#include "runtime/pass/runner.h"

#define TELL_EVERY_NS 100000000u

static uint64_t bytes_read(const moe_runner *runner)
{
    moe_expert_store_stats stats;
    moe_expert_store_get_stats(runner->experts, &stats);
    return stats.bytes_read;
}

static uint32_t count_with_experts(const moe_model_config *config, uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < end; l++) {
        n += moe_layer_has_experts(config, l);
    }
    return n;
}

static void tell(moe_pass_watch *w, const moe_runner *runner)
{
    uint64_t now = moe_now_ns();
    if (now - w->told_ns < TELL_EVERY_NS) {
        return;
    }
    w->told_ns = now;
    moe_pass_progress p = {.layer = w->layer,
                           .n_layer = runner->config->n_layer,
                           .n_rows = w->n_rows,
                           .bytes_read = bytes_read(runner) - w->read_before,
                           .seconds = (double)(now - w->began_ns) * 1e-9};
    const uint32_t n_done = count_with_experts(runner->config, w->layer);
    p.rows_done = (uint32_t)((uint64_t)w->n_rows * n_done / w->n_with_experts);
    if (n_done > 0) {
        /* Layers with experts take nearly all of the time. */
        const double whole = (double)w->n_with_experts / n_done;
        const double seconds = whole * (double)(w->layer_ns - w->began_ns) * 1e-9;
        const double bytes = whole * (double)(w->layer_read - w->read_before);
        p.seconds_expected = seconds > p.seconds ? seconds : p.seconds;
        p.bytes_expected = bytes > (double)p.bytes_read ? (uint64_t)bytes : p.bytes_read;
    }
    w->tell(&p, w->user);
}

/* The first stage of each pass, which this hook never takes over. */
static int begin(void *context, moe_runner *runner, const moe_pass *pass, bool *done,
                 moe_error *err)
{
    moe_pass_watch *w = context;
    (void)done;
    (void)err;
    w->began_ns = moe_now_ns();
    w->read_before = bytes_read(runner);
    w->n_rows = pass->n_rows;
    w->layer = 0;
    return MOE_OK;
}

static void while_loading(void *context, moe_runner *runner, uint32_t layer)
{
    moe_pass_watch *w = context;
    w->layer = layer;
    tell(w, runner);
}

static bool while_waiting(void *context, moe_runner *runner, uint64_t expected_ns)
{
    (void)expected_ns;
    tell(context, runner);
    return false;
}

static int after_experts(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                         moe_error *err)
{
    moe_pass_watch *w = context;
    (void)pass;
    (void)err;
    w->layer = layer + 1;
    w->layer_ns = moe_now_ns();
    w->layer_read = bytes_read(runner);
    tell(w, runner);
    return MOE_OK;
}

int moe_pass_watch_set(moe_pass_watch *w, moe_runner *runner, moe_pass_progress_fn tells,
                       void *user, moe_error *err)
{
    moe_runner_remove_hook(runner, &w->hook);
    *w = (moe_pass_watch){.tell = tells, .user = user};
    w->n_with_experts = count_with_experts(runner->config, runner->config->n_layer);
    if (tells == NULL || w->n_with_experts == 0) {
        return MOE_OK;
    }
    w->hook = (moe_pass_hook){.order = MOE_HOOK_WATCH,
                              .passes = MOE_HOOK_ON_TARGET,
                              .context = w,
                              .take_over = begin,
                              .while_loading = while_loading,
                              .while_waiting = while_waiting,
                              .after_experts = after_experts};
    return moe_runner_add_hook(runner, &w->hook, err);
}
