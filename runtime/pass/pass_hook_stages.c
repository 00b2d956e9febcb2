/* SPDX-License-Identifier: MIT */
#include "runtime/pass/pass_hooks.h"

#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/runner.h"

int moe_runner_add_hook(moe_runner *runner, moe_pass_hook *hook, moe_error *err)
{
    MOE_TRY(hook->wants_probs
                ? moe_pass_buffers_need_probs(&runner->buffers, runner->config->n_expert, err)
                : MOE_OK);
    moe_pass_hook **at = &runner->hooks;
    while (*at != NULL && (*at)->order < hook->order) {
        at = &(*at)->next;
    }
    MOE_ASSERT(*at != hook); /* a hook is added once */
    hook->next = *at;
    *at = hook;
    return MOE_OK;
}

void moe_runner_remove_hook(moe_runner *runner, moe_pass_hook *hook)
{
    for (moe_pass_hook **at = &runner->hooks; *at != NULL; at = &(*at)->next) {
        if (*at == hook) {
            *at = hook->next;
            return;
        }
    }
}

static bool takes_part(const moe_pass_hook *hook, const moe_pass *pass)
{
    return (hook->passes & 1u << pass->kind) != 0 &&
           (!pass->rehearses || (hook->passes & MOE_HOOK_ON_REHEARSAL) != 0);
}

/* The first hook, from `hook` on, that takes part in the pass. */
static moe_pass_hook *first_of(moe_pass_hook *hook, const moe_pass *pass)
{
    while (hook != NULL && !takes_part(hook, pass)) {
        hook = hook->next;
    }
    return hook;
}

bool moe_pass_needs_host_routing(const moe_runner *runner, const moe_pass *pass)
{
    bool needs = false;
    for (moe_pass_hook *h = first_of(runner->hooks, pass); h != NULL; h = first_of(h->next, pass)) {
        needs |= h->needs_host_routing;
    }
    return needs;
}

const moe_pass_hook *moe_hooks_of_blocks(const moe_runner *runner, const moe_pass *pass)
{
    const moe_pass_hook *h = first_of(runner->hooks, pass);
    while (h != NULL && h->block_stages == NULL) {
        h = first_of(h->next, pass);
    }
    return h;
}

/* ---- Stages ---- */

/* The arguments of a stage; each stage uses some of them. */
typedef struct stage_call {
    moe_runner *runner;
    const moe_pass *pass;
    uint32_t layer;
    moe_layer_request *request;
    uint64_t expected_ns;
    bool *done;
    moe_error *err;
} stage_call;

/* Calls one stage of a hook, if the hook has it. */
typedef int (*stage_fn)(const moe_pass_hook *hook, const stage_call *call);

static int call_hooks(stage_fn stage, const stage_call *call)
{
    const moe_pass *pass = call->pass;
    for (moe_pass_hook *h = first_of(call->runner->hooks, pass); h != NULL;
         h = first_of(h->next, pass)) {
        MOE_TRY(stage(h, call));
    }
    return MOE_OK;
}

static int take_over(const moe_pass_hook *h, const stage_call *c)
{
    bool asks = h->take_over != NULL && !*c->done;
    return asks ? h->take_over(h->context, c->runner, c->pass, c->done, c->err) : MOE_OK;
}

static int before_pass(const moe_pass_hook *h, const stage_call *c)
{
    return h->before_pass != NULL ? h->before_pass(h->context, c->runner, c->pass, c->err) : MOE_OK;
}

static int after_routing(const moe_pass_hook *h, const stage_call *c)
{
    return h->after_routing != NULL
               ? h->after_routing(h->context, c->runner, c->pass, c->layer, c->err)
               : MOE_OK;
}

static int before_plan(const moe_pass_hook *h, const stage_call *c)
{
    return h->before_plan != NULL ? h->before_plan(h->context, c->runner, c->pass, c->layer, c->err)
                                  : MOE_OK;
}

static int on_request(const moe_pass_hook *h, const stage_call *c)
{
    if (h->on_request != NULL) {
        h->on_request(h->context, c->runner, c->request);
    }
    return MOE_OK;
}

static int while_loading(const moe_pass_hook *h, const stage_call *c)
{
    if (h->while_loading != NULL) {
        h->while_loading(h->context, c->runner, c->layer);
    }
    return MOE_OK;
}

static int compute_beside(const moe_pass_hook *h, const stage_call *c)
{
    return h->compute_beside != NULL
               ? h->compute_beside(h->context, c->runner, c->pass, c->layer, c->err)
               : MOE_OK;
}

static int collect_beside(const moe_pass_hook *h, const stage_call *c)
{
    return h->collect_beside != NULL
               ? h->collect_beside(h->context, c->runner, c->pass, c->layer, c->err)
               : MOE_OK;
}

static int while_waiting(const moe_pass_hook *h, const stage_call *c)
{
    if (h->while_waiting != NULL && !*c->done) {
        *c->done = h->while_waiting(h->context, c->runner, c->expected_ns);
    }
    return MOE_OK;
}

static int after_experts(const moe_pass_hook *h, const stage_call *c)
{
    return h->after_experts != NULL
               ? h->after_experts(h->context, c->runner, c->pass, c->layer, c->err)
               : MOE_OK;
}

static int after_pass(const moe_pass_hook *h, const stage_call *c)
{
    return h->after_pass != NULL ? h->after_pass(h->context, c->runner, c->pass, c->err) : MOE_OK;
}

int moe_hooks_take_over(moe_runner *runner, const moe_pass *pass, bool *done, moe_error *err)
{
    *done = false;
    return call_hooks(take_over, &(stage_call){runner, pass, .done = done, .err = err});
}

int moe_hooks_before_pass(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    return call_hooks(before_pass, &(stage_call){runner, pass, .err = err});
}

int moe_hooks_after_routing(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                            moe_error *err)
{
    return call_hooks(after_routing, &(stage_call){runner, pass, .layer = layer, .err = err});
}

int moe_hooks_before_plan(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    return call_hooks(before_plan, &(stage_call){runner, pass, .layer = layer, .err = err});
}

void moe_hooks_on_request(moe_runner *runner, const moe_pass *pass, moe_layer_request *request)
{
    (void)call_hooks(on_request, &(stage_call){runner, pass, .request = request});
}

void moe_hooks_while_loading(moe_runner *runner, const moe_pass *pass, uint32_t layer)
{
    (void)call_hooks(while_loading, &(stage_call){runner, pass, .layer = layer});
}

int moe_hooks_compute_beside(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                             moe_error *err)
{
    return call_hooks(compute_beside, &(stage_call){runner, pass, .layer = layer, .err = err});
}

int moe_hooks_collect_beside(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                             moe_error *err)
{
    return call_hooks(collect_beside, &(stage_call){runner, pass, .layer = layer, .err = err});
}

bool moe_hooks_while_waiting(moe_runner *runner, const moe_pass *pass, uint64_t expected_ns)
{
    bool done = false;
    (void)call_hooks(while_waiting,
                     &(stage_call){runner, pass, .expected_ns = expected_ns, .done = &done});
    return done;
}

int moe_hooks_after_experts(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                            moe_error *err)
{
    return call_hooks(after_experts, &(stage_call){runner, pass, .layer = layer, .err = err});
}

int moe_hooks_after_pass(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    return call_hooks(after_pass, &(stage_call){runner, pass, .err = err});
}
