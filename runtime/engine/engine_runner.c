/* SPDX-License-Identifier: MIT */
/* Gives the runner what it needs besides memory and weights: rotary frequencies and hooks. */
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/recorded/recorded_pass.h"

/* Some models have two sets of rotary factors: one for contexts up to the length of the first
 * training, one for longer contexts. The engine's context decides which set is used, so all keys
 * in the cache use the same one. */
int moe_engine_open_frequencies(moe_engine *engine, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    const moe_weights *w = &engine->weights;
    bool beyond = engine->context > c->rope_original_context && w->rope_factors_long != NULL;
    engine->rope_frequencies = moe_calloc(c->n_rot / 2 + 1, sizeof *engine->rope_frequencies);
    engine->window_frequencies =
        moe_calloc(c->window_n_rot / 2 + 1, sizeof *engine->window_frequencies);
    if (engine->rope_frequencies == NULL || engine->window_frequencies == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for rotary frequencies");
    }
    moe_rope_frequencies(c, beyond ? w->rope_factors_long : w->rope_factors,
                         engine->rope_frequencies);
    moe_window_frequencies(c, engine->window_frequencies);
    engine->runner.rope_frequencies = engine->rope_frequencies;
    engine->runner.window_frequencies = engine->window_frequencies;
    return MOE_OK;
}

/* A pass hook: lets slots follow the memory between two layers, when no experts are in use. */
static int follow_memory(void *follow, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                         moe_error *err)
{
    (void)runner;
    (void)layer;
    return pass->panel == NULL ? moe_memory_follow_look(follow, moe_now_ns(), err) : MOE_OK;
}

/* Slots follow the machine's memory if no option sets their number. A device with a link may still
 * compute between two layers, so its slots change only between steps. */
static int open_follow(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    if (o->host_memory != 0 || o->expert_cache != 0 || o->expert_cache_share != 0.0 ||
        moe_speculation_by_bytes(o) || !moe_engine_keeps_experts(engine)) {
        return MOE_OK;
    }
    moe_memory_follow_open(&engine->follow, &engine->border, &engine->plan, engine->memory_reserve,
                           engine->log, engine->user);
    engine->follow_hook = (moe_pass_hook){.order = MOE_HOOK_WATCH,
                                          .passes = MOE_HOOK_ON_TARGET,
                                          .takes_panels = true,
                                          .context = &engine->follow,
                                          .after_experts = follow_memory};
    return engine->device->link == NULL
               ? moe_runner_add_hook(&engine->runner, &engine->follow_hook, err)
               : MOE_OK;
}

int moe_engine_attach_hooks(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    moe_runner *runner = &engine->runner;
    MOE_TRY(moe_pass_watch_set(&engine->watch, runner, o->pass_progress, o->user, err));
    MOE_TRY(open_follow(engine, o, err));
    if (engine->speculation != NULL || engine->lossy != NULL) {
        MOE_TRY(moe_route_rules_open(&engine->rules, runner, err));
    }
    if (engine->speculation != NULL) {
        MOE_TRY(moe_speculation_attach(engine->speculation, engine->rules, err));
    }
    if (engine->lossy != NULL) {
        MOE_TRY(moe_lossy_attach(engine->lossy, engine->rules, err));
    }
    if (engine->lossy != NULL && engine->lossy->measured) {
        MOE_TRY(moe_budget_exact_open(&engine->budget_exact, &engine->lossy->budget, runner, err));
    }
    moe_recorded_parts parts = {
        .runner = runner,
        .map = &engine->map,
        .rules = engine->rules,
        .speculation = engine->speculation,
        .lossy = engine->lossy,
        .keeps_experts = moe_engine_keeps_experts(engine),
        .read_in_place =
            engine->offload == MOE_OFFLOAD_AUTO ? o->lab->read_in_place : MOE_SWITCH_OFF,
        .host_compute = runner->at_host != NULL ? o->host_compute : MOE_SWITCH_OFF};
    return moe_recorded_passes_open(&engine->recorded, &parts, err);
}

int moe_engine_set_pass_progress(moe_engine *engine, moe_pass_progress_fn progress, void *user,
                                 moe_error *err)
{
    if (engine == NULL) {
        return moe_fail_null(err, "moe_engine_set_pass_progress", "engine");
    }
    MOE_TRY(moe_engine_need_model(engine, "watching passes", err));
    return moe_pass_watch_set(&engine->watch, &engine->runner, progress, user, err);
}
