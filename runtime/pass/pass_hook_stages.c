/* SPDX-License-Identifier: MIT */
#include "runtime/pass/pass_hooks.h"

#include "runtime/base/moe_assert.h"
#include "runtime/pass/runner.h"

int moe_runner_add_hook(moe_runner *runner, moe_pass_hook *hook, moe_error *err)
{
    int status = hook->wants_probs
                     ? moe_pass_buffers_need_probs(&runner->buffers, runner->config->n_expert, err)
                     : MOE_OK;
    if (status != MOE_OK) {
        return status;
    }
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

/* The first hook from this one on that takes part in the pass. */
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

int moe_hooks_take_over(moe_runner *runner, const moe_pass *pass, bool *done, moe_error *err)
{
    int status = MOE_OK;
    *done = false;
    for (moe_pass_hook *h = first_of(runner->hooks, pass); h != NULL && status == MOE_OK && !*done;
         h = first_of(h->next, pass)) {
        if (h->take_over != NULL) {
            status = h->take_over(h->context, runner, pass, done, err);
        }
    }
    return status;
}

int moe_hooks_before_pass(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    int status = MOE_OK;
    for (moe_pass_hook *h = first_of(runner->hooks, pass); h != NULL && status == MOE_OK;
         h = first_of(h->next, pass)) {
        if (h->before_pass != NULL) {
            status = h->before_pass(h->context, runner, pass, err);
        }
    }
    return status;
}

int moe_hooks_after_routing(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                            moe_error *err)
{
    int status = MOE_OK;
    for (moe_pass_hook *h = first_of(runner->hooks, pass); h != NULL && status == MOE_OK;
         h = first_of(h->next, pass)) {
        if (h->after_routing != NULL) {
            status = h->after_routing(h->context, runner, pass, layer, err);
        }
    }
    return status;
}

void moe_hooks_on_request(moe_runner *runner, const moe_pass *pass, moe_layer_request *request)
{
    for (moe_pass_hook *h = first_of(runner->hooks, pass); h != NULL; h = first_of(h->next, pass)) {
        if (h->on_request != NULL) {
            h->on_request(h->context, runner, request);
        }
    }
}

void moe_hooks_while_loading(moe_runner *runner, const moe_pass *pass, uint32_t layer)
{
    for (moe_pass_hook *h = first_of(runner->hooks, pass); h != NULL; h = first_of(h->next, pass)) {
        if (h->while_loading != NULL) {
            h->while_loading(h->context, runner, layer);
        }
    }
}

int moe_hooks_after_experts(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                            moe_error *err)
{
    int status = MOE_OK;
    for (moe_pass_hook *h = first_of(runner->hooks, pass); h != NULL && status == MOE_OK;
         h = first_of(h->next, pass)) {
        if (h->after_experts != NULL) {
            status = h->after_experts(h->context, runner, pass, layer, err);
        }
    }
    return status;
}

int moe_hooks_after_pass(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    int status = MOE_OK;
    for (moe_pass_hook *h = first_of(runner->hooks, pass); h != NULL && status == MOE_OK;
         h = first_of(h->next, pass)) {
        if (h->after_pass != NULL) {
            status = h->after_pass(h->context, runner, pass, err);
        }
    }
    return status;
}
