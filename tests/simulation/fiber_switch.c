/* SPDX-License-Identifier: MIT */
#include "tests/simulation/fiber_switch.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define IS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define IS_ASAN 1
#endif
#endif

#ifdef IS_ASAN
#include <sanitizer/common_interface_defs.h>
static sim_context *came_from, *came_to;

static void leave(sim_context *from, sim_context *to, bool last)
{
    came_from = from;
    came_to = to;
    __sanitizer_start_switch_fiber(last ? NULL : &from->fake_stack, to->bottom, to->bytes);
}

static void arrive(void)
{
    __sanitizer_finish_switch_fiber(came_to->fake_stack, &came_from->bottom, &came_from->bytes);
}
#else
static void leave(sim_context *from, sim_context *to, bool last)
{
    (void)from;
    (void)to;
    (void)last;
}

static void arrive(void)
{
}
#endif

void sim_arrived(void)
{
    arrive();
}

#if defined(__x86_64__)

void sim_swap_stacks(void **from, void *to);
__asm__(".text\n"
        ".type sim_swap_stacks, @function\n"
        "sim_swap_stacks:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size sim_swap_stacks, .-sim_swap_stacks\n");

static void prepare(sim_context *context, uint8_t *stack, size_t bytes, void (*entry)(void))
{
    uintptr_t top = ((uintptr_t)stack + bytes) & ~(uintptr_t)63;
    void **at = (void **)(top - 64);
    memset((void *)(top - 128), 0, 128);
    at[0] = (void *)entry; /* the stack is then as at a function's entry: 8 beside 16 */
    context->stack_pointer = at - 6;
}

static void swap(sim_context *from, sim_context *to)
{
    sim_swap_stacks(&from->stack_pointer, to->stack_pointer);
}

#elif defined(__aarch64__)

void sim_swap_stacks(void **from, void *to);
__asm__(".text\n"
        ".type sim_swap_stacks, %function\n"
        "sim_swap_stacks:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size sim_swap_stacks, .-sim_swap_stacks\n");

static void prepare(sim_context *context, uint8_t *stack, size_t bytes, void (*entry)(void))
{
    uintptr_t top = ((uintptr_t)stack + bytes) & ~(uintptr_t)63;
    void **at = (void **)(top - 192);
    memset(at, 0, 192);
    at[11] = (void *)entry; /* x30 */
    context->stack_pointer = at;
}

static void swap(sim_context *from, sim_context *to)
{
    sim_swap_stacks(&from->stack_pointer, to->stack_pointer);
}

#else

static ucontext_t *other_of(sim_context *context)
{
    context->other = context->other != NULL ? context->other : malloc(sizeof *context->other);
    if (context->other == NULL) {
        abort();
    }
    return context->other;
}

static void prepare(sim_context *context, uint8_t *stack, size_t bytes, void (*entry)(void))
{
    ucontext_t *c = other_of(context);
    getcontext(c);
    c->uc_stack.ss_sp = stack;
    c->uc_stack.ss_size = bytes;
    c->uc_link = NULL;
    makecontext(c, entry, 0);
}

static void swap(sim_context *from, sim_context *to)
{
    swapcontext(other_of(from), to->other);
}

#endif

void sim_prepare(sim_context *context, void *stack, size_t bytes, void (*entry)(void))
{
    prepare(context, stack, bytes, entry);
    context->bottom = stack;
    context->bytes = bytes;
}

void sim_switch(sim_context *from, sim_context *to, bool last)
{
    leave(from, to, last);
    swap(from, to);
    arrive();
}
