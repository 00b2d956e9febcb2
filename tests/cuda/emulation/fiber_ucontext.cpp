/* SPDX-License-Identifier: MIT */
/* Fibers by the C library: on every processor, at the price of a system call a switch. The two
 * contexts lie at the low end of the stack. */
#include "fiber.h"

#include <ucontext.h>

void moe_fiber_prepare(moe_fiber *fiber, void (*entry)(void))
{
    ucontext_t *contexts = (ucontext_t *)fiber->stack;
    getcontext(&contexts[0]);
    contexts[0].uc_stack.ss_sp = &contexts[2];
    contexts[0].uc_stack.ss_size = MOE_FIBER_STACK - 2 * sizeof(ucontext_t);
    contexts[0].uc_link = nullptr;
    makecontext(&contexts[0], entry, 0);
    fiber->pointer = &contexts[0];
}

void moe_fiber_enter(moe_fiber *fiber)
{
    fiber->back_pointer = (ucontext_t *)fiber->stack + 1;
    swapcontext((ucontext_t *)fiber->back_pointer, (ucontext_t *)fiber->pointer);
}

void moe_fiber_leave(moe_fiber *fiber)
{
    swapcontext((ucontext_t *)fiber->pointer, (ucontext_t *)fiber->back_pointer);
}

void moe_fiber_pass(moe_fiber *from, moe_fiber *to)
{
    to->back_pointer = from->back_pointer;
    swapcontext((ucontext_t *)from->pointer, (ucontext_t *)to->pointer);
}
