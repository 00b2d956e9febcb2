/* SPDX-License-Identifier: MIT */
#include "runtime/pass/route_observer.h"

#include "runtime/pass/runner.h"

static int after_routing(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                         moe_error *err)
{
    const moe_route_observer *observer = context;
    const moe_pass_buffers *b = &runner->buffers;
    moe_route_event event = {.pass = runner->n_passes,
                             .layer = layer,
                             .n_rows = pass->n_rows,
                             .n_expert = runner->config->n_expert,
                             .n_used = runner->config->n_expert_used,
                             .rows = pass->row_ids,
                             .experts = b->chosen,
                             .weights = b->chosen_weights,
                             .probs = b->router_probs,
                             .hidden = b->values[MOE_VALUE_NORM]};
    return observer->on_route(observer->context, &event, err);
}

static int after_pass(void *context, moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const moe_route_observer *observer = context;
    (void)pass;
    return observer->on_pass_end != NULL
               ? observer->on_pass_end(observer->context, runner->n_passes, err)
               : MOE_OK;
}

int moe_runner_attach_observer(moe_runner *runner, moe_route_observer *observer, moe_error *err)
{
    observer->hook = (moe_pass_hook){.order = MOE_HOOK_OBSERVE,
                                     .passes = MOE_HOOK_ON_TARGET,
                                     .wants_probs = observer->wants_probs,
                                     .needs_host_routing = true,
                                     .context = observer,
                                     .after_routing = after_routing,
                                     .after_pass = after_pass};
    return moe_runner_add_hook(runner, &observer->hook, err);
}

void moe_runner_detach_observer(moe_runner *runner, moe_route_observer *observer)
{
    moe_runner_remove_hook(runner, &observer->hook);
}
