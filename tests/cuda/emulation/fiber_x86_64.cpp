/* SPDX-License-Identifier: MIT */
/* Fibers by hand: a switch stores what a called function must keep and exchanges the stacks.
 * Kernels change neither rounding nor signals, so nothing else needs to be kept. */
#include "fiber.h"

#include <stdint.h>

/* void moe_fiber_switch(void **leave, void *to): leaves the stack at *leave, goes on at `to`. */
extern "C" void moe_fiber_switch(void **leave, void *to);
__asm__(".text\n"
        ".globl moe_fiber_switch\n"
        ".type moe_fiber_switch, @function\n"
        "moe_fiber_switch:\n"
        "    push %rbp\n"
        "    push %rbx\n"
        "    push %r12\n"
        "    push %r13\n"
        "    push %r14\n"
        "    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n"
        "    pop %r14\n"
        "    pop %r13\n"
        "    pop %r12\n"
        "    pop %rbx\n"
        "    pop %rbp\n"
        "    ret\n"
        ".size moe_fiber_switch, . - moe_fiber_switch\n");

void moe_fiber_prepare(moe_fiber *fiber, void (*entry)(void))
{
    uintptr_t top = ((uintptr_t)fiber->stack + MOE_FIBER_STACK) & ~(uintptr_t)15;
    /* Six registers, where to go on, and the word that a call would have left there. */
    uintptr_t *frame = (uintptr_t *)top - 8;
    for (int i = 0; i < 6; i++)
        frame[i] = 0;
    frame[6] = (uintptr_t)entry;
    frame[7] = 0;
    fiber->pointer = frame;
}

void moe_fiber_enter(moe_fiber *fiber)
{
    moe_fiber_switch(&fiber->back_pointer, fiber->pointer);
}

void moe_fiber_leave(moe_fiber *fiber)
{
    moe_fiber_switch(&fiber->pointer, fiber->back_pointer);
}

void moe_fiber_pass(moe_fiber *from, moe_fiber *to)
{
    to->back_pointer = from->back_pointer;
    moe_fiber_switch(&from->pointer, to->pointer);
}
