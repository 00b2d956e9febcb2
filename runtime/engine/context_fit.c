/* SPDX-License-Identifier: MIT */
/* Finds the largest context that fits, in steps of the KV cache's pages. A longer context never
 * needs less memory, so bisection works. */
#include "runtime/engine/context_fit.h"

#include "runtime/pass/kv_cache.h"

/* A session may take at most this part (1 / SESSION_DIVISOR) of the memory that experts and a
 * session share, ... */
#define SESSION_DIVISOR 4
/* ... unless its context has at most this many tokens, which a conversation needs. */
#define LEAST_CONTEXT 4096u

typedef struct fit {
    moe_plan_input input;
    moe_session_bytes_fn session_bytes;
    const void *user;
    bool shares; /* whether experts must keep their part */
} fit;

static bool leaves_experts(const moe_plan_input *in, const moe_memory_plan *plan)
{
    uint64_t session = plan->kv_cache + plan->session_state;
    bool chosen = in->options->expert_cache != 0 || in->options->expert_cache_share != 0.0;
    return chosen || plan->expert_slots == plan->experts ||
           session <= (session + plan->expert_cache) / SESSION_DIVISOR;
}

static bool works(fit *f, uint32_t context)
{
    moe_memory_plan plan;
    f->input.context = context;
    f->input.session_bytes = f->session_bytes(f->user, context);
    return moe_memory_plan_make(&f->input, &plan, NULL) == MOE_OK &&
           (!f->shares || leaves_experts(&f->input, &plan));
}

/* Returns the largest context that fits, in tokens; 0: not even one page fits. */
static uint32_t largest(fit *f, uint32_t most)
{
    if (works(f, most)) {
        return most;
    }
    uint32_t good = 0; /* pages */
    uint32_t bad = (most + MOE_KV_PAGE - 1) / MOE_KV_PAGE;
    while (bad - good > 1) {
        uint32_t middle = good + (bad - good) / 2;
        if (works(f, middle * MOE_KV_PAGE)) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    return good * MOE_KV_PAGE;
}

uint32_t moe_fit_context(const moe_plan_input *input, moe_session_bytes_fn session_bytes,
                         const void *user)
{
    fit f = {.input = *input, .session_bytes = session_bytes, .user = user, .shares = true};
    uint32_t context = largest(&f, input->context);
    uint32_t least = input->context < LEAST_CONTEXT ? input->context : LEAST_CONTEXT;
    if (context < least) {
        f.shares = false;
        context = largest(&f, least);
    }
    uint32_t page = input->context < MOE_KV_PAGE ? input->context : MOE_KV_PAGE;
    return context > 0 ? context : page;
}
