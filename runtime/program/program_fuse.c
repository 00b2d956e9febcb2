/* SPDX-License-Identifier: MIT */
/* Finds sequences of operations that a device may carry out in one call. Each row of the table is
 * such a sequence, with the conditions on its operands. The first row that fits marks the operation
 * at which the sequence begins (moe_op.fused). Nothing else changes: if a device lacks the form, or
 * a span ends within the sequence, the operations are carried out one by one. */
#include "runtime/program/program_builder.h"

#define MOST_FUSED 5u

/* Whether an operation is the RMS norm of the stream's whole width into another value. */
static bool norms_stream(const moe_op *norm)
{
    return norm->each == 1 && !norm->u.norm.mean && norm->x.stride == norm->n &&
           norm->y.value != norm->x.value;
}

/* x = x + branch;  norm = rms_norm(x) */
static bool norms_sum(const moe_op *add, const moe_op *norm)
{
    return norms_stream(norm) && norm->n == add->n && norm->y.value != add->x.value &&
           norm->y.value != add->z.value;
}

static bool add_norm(const moe_op *op)
{
    return op[1].x.value == op[0].y.value && norms_sum(&op[0], &op[1]);
}

/* The same, with a selection of the rows whose logits are wanted before the norm. */
static bool add_select_norm(const moe_op *op)
{
    return op[1].x.value == op[0].y.value && op[2].x.value == op[1].y.value &&
           norms_sum(&op[0], &op[2]);
}

/* Before these two: branch = sum of weights * outputs. */
static bool adds_experts(const moe_op *combine, const moe_op *add)
{
    return add->z.value == combine->y.value && add->x.value != combine->y.value &&
           add->n == combine->n;
}

static bool combine_add_norm(const moe_op *op)
{
    return adds_experts(&op[0], &op[1]) && add_norm(op + 1);
}

static bool combine_add_select_norm(const moe_op *op)
{
    return adds_experts(&op[0], &op[1]) && add_select_norm(op + 1);
}

/* q = rope(q);  k = rope(k);  cache = cache, k, v: heads of one size, side by side. */
static bool heads(const moe_op *op)
{
    const moe_op *q = &op[0], *k = &op[1], *store = &op[2];
    return q->x.at == 0 && k->x.at == 0 && q->x.stride == k->x.stride && q->x.value != k->x.value &&
           q->u.rope.window == k->u.rope.window && store->x.value == k->x.value &&
           store->x.stride == k->each * k->x.stride && store->z.value != MOE_VALUE_NONE &&
           store->z.value != k->x.value && store->z.value != q->x.value;
}

static bool norms_heads(const moe_op *norm, const moe_op *rope)
{
    return !norm->u.norm.mean && norm->x.value == rope->x.value && norm->x.at == 0 &&
           norm->y.value == norm->x.value && norm->n == rope->x.stride &&
           norm->x.stride == norm->n && norm->each == rope->each;
}

static bool normed_heads(const moe_op *op)
{
    return norms_heads(&op[0], &op[2]) && norms_heads(&op[1], &op[3]) &&
           op[0].u.norm.eps == op[1].u.norm.eps && heads(op + 2);
}

static const struct {
    moe_op_kind fused;
    uint32_t n;
    moe_op_kind kinds[MOST_FUSED];
    bool (*fits)(const moe_op *op);
} patterns[] = {
    {MOE_OP_HEADS,
     5,
     {MOE_OP_NORM, MOE_OP_NORM, MOE_OP_ROPE, MOE_OP_ROPE, MOE_OP_KV_STORE},
     normed_heads},
    {MOE_OP_HEADS, 3, {MOE_OP_ROPE, MOE_OP_ROPE, MOE_OP_KV_STORE}, heads},
    {MOE_OP_ADD_NORM,
     4,
     {MOE_OP_COMBINE, MOE_OP_ADD, MOE_OP_SELECT, MOE_OP_NORM},
     combine_add_select_norm},
    {MOE_OP_ADD_NORM, 3, {MOE_OP_COMBINE, MOE_OP_ADD, MOE_OP_NORM}, combine_add_norm},
    {MOE_OP_ADD_NORM, 3, {MOE_OP_ADD, MOE_OP_SELECT, MOE_OP_NORM}, add_select_norm},
    {MOE_OP_ADD_NORM, 2, {MOE_OP_ADD, MOE_OP_NORM}, add_norm},
};

static bool fits(const moe_op *ops, uint32_t n_ops, size_t pattern)
{
    const uint32_t n = patterns[pattern].n;
    bool same = n <= n_ops;
    for (uint32_t i = 0; i < n && same; i++) {
        same = ops[i].kind == patterns[pattern].kinds[i] && !ops[i].if_choosing;
    }
    return same && patterns[pattern].fits(ops);
}

void moe_program_fuse(moe_program *program)
{
    const uint32_t end = program->back.end; /* operations behind `back` do not run after it */
    for (uint32_t i = 0; i < end; i++) {
        moe_op *op = &program->ops[i];
        size_t p = 0;
        while (p < sizeof patterns / sizeof patterns[0] && !fits(op, end - i, p)) {
            p++;
        }
        if (p < sizeof patterns / sizeof patterns[0]) {
            op->fused = patterns[p].fused;
            op->n_fused = patterns[p].n;
        }
    }
}
