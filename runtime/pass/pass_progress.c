/* SPDX-License-Identifier: MIT */
#include "runtime/pass/pass_progress.h"

#include "runtime/base/clock.h"
#include "runtime/pass/panel_block.h"
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

/* While a panel is under way, reports no progress of the passes between its chunks, because they
 * are short. */
static void tell(moe_pass_watch *w, const moe_pass_clock *c, const moe_runner *runner)
{
    uint64_t now = moe_now_ns();
    bool between = c == &w->pass && w->panel.n_rows > 0;
    if (now - w->told_ns < TELL_EVERY_NS || c->n_rows == 0 || between) {
        return;
    }
    w->told_ns = now;
    moe_pass_progress p = {.layer = c->layer,
                           .n_layer = runner->config->n_layer,
                           .n_rows = c->n_rows,
                           .bytes_read = bytes_read(runner) - c->read_before,
                           .seconds = (double)(now - c->began_ns) * 1e-9};
    /* Layers with experts take nearly all of the time. */
    const double done = c->n_done + (double)c->rows / c->n_rows;
    p.rows_done = (uint32_t)(c->n_rows * done / w->n_with_experts);
    if (done > 0) {
        const double whole = w->n_with_experts / done;
        const double seconds = whole * (double)(c->done_ns - c->began_ns) * 1e-9;
        const double bytes = whole * (double)(c->done_read - c->read_before);
        p.seconds_expected = seconds > p.seconds ? seconds : p.seconds;
        p.bytes_expected = bytes > (double)p.bytes_read ? (uint64_t)bytes : p.bytes_read;
    }
    w->tell(&p, w->user);
}

static void begin_clock(moe_pass_clock *c, const moe_runner *runner, uint32_t n_rows)
{
    *c = (moe_pass_clock){
        .began_ns = moe_now_ns(), .read_before = bytes_read(runner), .n_rows = n_rows};
}

/* Called at the start of each pass. This hook never takes a pass over. */
static int begin(void *context, moe_runner *runner, const moe_pass *pass, bool *done,
                 moe_error *err)
{
    moe_pass_watch *w = context;
    (void)done;
    (void)err;
    begin_clock(&w->pass, runner, pass->n_rows);
    w->at_work = &w->pass;
    return MOE_OK;
}

/* In a chunk of a panel this is the first stage. */
static int after_routing(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                         moe_error *err)
{
    moe_pass_watch *w = context;
    (void)err;
    if (pass->panel != NULL) {
        if (pass->panel->first == 0 && count_with_experts(runner->config, layer) == 0) {
            begin_clock(&w->panel, runner, pass->panel->n_rows);
        }
        w->at_work = &w->panel;
        w->block = pass->panel->block;
    }
    return MOE_OK;
}

static void note_done(moe_pass_clock *c, const moe_runner *runner, uint32_t rows)
{
    c->rows = rows;
    c->done_ns = moe_now_ns();
    c->done_read = bytes_read(runner);
}

/* In a block of a panel, counts an expert as its share of the rows that another layer has. */
static void while_loading(void *context, moe_runner *runner, uint32_t layer)
{
    moe_pass_watch *w = context;
    const moe_panel_block *block = w->at_work == &w->panel ? w->block : NULL;
    w->at_work->layer = layer;
    if (block != NULL && block->is_planned) {
        const uint64_t rows = (uint64_t)block->n_rows * block->n_served / block->plan.n_experts;
        note_done(w->at_work, runner, block->first + (uint32_t)rows);
    }
    tell(w, w->at_work, runner);
}

static bool while_waiting(void *context, moe_runner *runner, uint64_t expected_ns)
{
    const moe_pass_watch *w = context;
    (void)expected_ns;
    tell(context, w->at_work, runner);
    return false;
}

static int after_experts(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                         moe_error *err)
{
    moe_pass_watch *w = context;
    moe_pass_clock *c = w->at_work;
    const moe_panel_chunk *panel = pass->panel;
    const moe_panel_block *block = panel != NULL ? panel->block : NULL;
    (void)err;
    note_done(c, runner,
              block != NULL   ? block->first + block->n_rows
              : panel != NULL ? panel->first + pass->n_rows
                              : pass->n_rows);
    w->block = NULL;
    c->n_done = count_with_experts(runner->config, layer);
    if (c->rows == c->n_rows) {
        c->rows = 0;
        c->n_done++;
        c->layer = layer + 1;
    }
    tell(w, c, runner);
    return MOE_OK;
}

int moe_pass_watch_set(moe_pass_watch *w, moe_runner *runner, moe_pass_progress_fn tells,
                       void *user, moe_error *err)
{
    moe_runner_remove_hook(runner, &w->hook);
    *w = (moe_pass_watch){.tell = tells, .user = user};
    w->at_work = &w->pass;
    w->n_with_experts = count_with_experts(runner->config, runner->config->n_layer);
    if (tells == NULL || w->n_with_experts == 0) {
        return MOE_OK;
    }
    w->hook = (moe_pass_hook){.order = MOE_HOOK_WATCH,
                              .passes = MOE_HOOK_ON_TARGET,
                              .takes_panels = true,
                              .context = w,
                              .take_over = begin,
                              .after_routing = after_routing,
                              .while_loading = while_loading,
                              .while_waiting = while_waiting,
                              .after_experts = after_experts};
    return moe_runner_add_hook(runner, &w->hook, err);
}
