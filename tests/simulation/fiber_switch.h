/* SPDX-License-Identifier: MIT */
/* Switching between stacks, without the system calls of swapcontext() where the machine is known.
 */
#ifndef MOE_TESTS_FIBER_SWITCH_H
#define MOE_TESTS_FIBER_SWITCH_H

#include <stdbool.h>
#include <stddef.h>
#include <ucontext.h>

typedef struct sim_context {
    void *stack_pointer;
    ucontext_t *other; /* of machines that fiber_switch.c has no code for */
    /* Of the address sanitizer. */
    void *fake_stack;
    const void *bottom;
    size_t bytes;
} sim_context;

/* entry() must never return, and calls sim_arrived() first. */
void sim_prepare(sim_context *context, void *stack, size_t bytes, void (*entry)(void));
/* last: `from` is never switched to again. */
void sim_switch(sim_context *from, sim_context *to, bool last);
void sim_arrived(void);

#endif
