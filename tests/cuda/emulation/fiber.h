/* SPDX-License-Identifier: MIT */
/* A stack of its own to run something on, and the way there and back. */
#ifndef MOE_EMULATION_FIBER_H
#define MOE_EMULATION_FIBER_H

typedef struct moe_fiber {
    char *stack;   /* MOE_FIBER_STACK bytes */
    void *pointer; /* where the fiber left it, and who entered */
    void *back_pointer;
} moe_fiber;

#define MOE_FIBER_STACK (128u << 10)

/* entry() never returns; it ends by a last moe_fiber_leave(). The fiber's stack is there. */
void moe_fiber_prepare(moe_fiber *fiber, void (*entry)(void));
/* Runs the fiber until it leaves, or one that it passed to does. */
void moe_fiber_enter(moe_fiber *fiber);
void moe_fiber_leave(moe_fiber *fiber);
/* Leaves `from` and goes on in `to`, which leaves to who entered `from`. */
void moe_fiber_pass(moe_fiber *from, moe_fiber *to);

#endif
