/* SPDX-License-Identifier: MIT */
/* Three algorithms for one order. The best few of many: a heap of n whose root is the worst of
 * them; most candidates are worse than the root. Few altogether: qsort. Many: a radix sort of the
 * logits' bits, least digit first, which is stable and so keeps tokens ascending among equal
 * logits. */
#include "runtime/sampling/candidate_order.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    DIGIT_BITS = 11,
    N_DIGITS = 3, /* of 32 bits */
    N_VALUES = 1 << DIGIT_BITS,
    /* Below this, a pass over N_VALUES counters costs more than comparing. */
    FEW = 1024
};

static bool goes_before(const moe_candidate *a, const moe_candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->token < b->token);
}

static int compare(const void *a, const void *b)
{
    return goes_before(a, b) ? -1 : 1;
}

static void sift_down(moe_candidate *heap, uint32_t n, uint32_t i)
{
    for (;;) {
        uint32_t worst = i;
        for (uint32_t child = 2 * i + 1; child <= 2 * i + 2 && child < n; child++) {
            if (goes_before(&heap[worst], &heap[child])) {
                worst = child;
            }
        }
        if (worst == i) {
            return;
        }
        moe_candidate swap = heap[i];
        heap[i] = heap[worst];
        heap[worst] = swap;
        i = worst;
    }
}

static void best_to_front(moe_candidate *c, uint32_t n_all, uint32_t n)
{
    for (uint32_t i = n / 2; i-- > 0;) {
        sift_down(c, n, i);
    }
    for (uint32_t i = n; i < n_all; i++) {
        if (goes_before(&c[i], &c[0])) {
            c[0] = c[i];
            sift_down(c, n, 0);
        }
    }
}

/* Ascends as logits descend; both zeros have the same key. */
static uint32_t key_of(float logit)
{
    float positive_zero = logit + 0.0f;
    uint32_t bits;
    memcpy(&bits, &positive_zero, sizeof bits);
    return bits >> 31 != 0 ? bits : ~bits & UINT32_C(0x7fffffff);
}

static uint32_t digit_of(const moe_candidate *c, uint32_t digit)
{
    return (key_of(c->logit) >> (digit * DIGIT_BITS)) & (N_VALUES - 1);
}

static void radix_sort(moe_candidate *c, moe_candidate *spare, uint32_t n)
{
    uint32_t starts[N_DIGITS][N_VALUES] = {{0}};
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t digit = 0; digit < N_DIGITS; digit++) {
            starts[digit][digit_of(&c[i], digit)]++;
        }
    }
    moe_candidate *from = c, *to = spare;
    for (uint32_t digit = 0; digit < N_DIGITS; digit++) {
        uint32_t sum = 0;
        for (uint32_t value = 0; value < N_VALUES; value++) {
            uint32_t count = starts[digit][value];
            starts[digit][value] = sum;
            sum += count;
        }
        for (uint32_t i = 0; i < n; i++) {
            to[starts[digit][digit_of(&from[i], digit)]++] = from[i];
        }
        moe_candidate *swap = from;
        from = to;
        to = swap;
    }
    memcpy(c, from, n * sizeof *c);
}

void moe_candidates_order(moe_candidate *candidates, moe_candidate *spare, uint32_t n_all,
                          uint32_t n)
{
    if (n < FEW && n < n_all) {
        best_to_front(candidates, n_all, n);
        n_all = n;
    }
    if (n_all < FEW) {
        qsort(candidates, n_all, sizeof *candidates, compare);
    } else {
        radix_sort(candidates, spare, n_all);
    }
}
