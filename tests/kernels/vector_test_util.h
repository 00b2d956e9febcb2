/* SPDX-License-Identifier: MIT */
/* Shared by the tests of the vector kernels: the instruction sets to try, random values of several
 * kinds and comparison of bits. */
#ifndef MOE_VECTOR_TEST_UTIL_H
#define MOE_VECTOR_TEST_UTIL_H

#include "cpu/kernels/cpu_features.h"
#include "cpu/kernels/vector_ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
/* After the four headers that it needs. */
#include <cmocka.h>

typedef struct test_level {
    const char *name;
    unsigned features;
} test_level;

/* The instruction sets that this machine has, reference first. Returns how many. */
static inline uint32_t test_levels(test_level levels[3])
{
    unsigned have = moe_cpu_features();
    uint32_t n = 0;
    levels[n++] = (test_level){"reference", 0};
    if (have & MOE_CPU_AVX2)
        levels[n++] = (test_level){"avx2", MOE_CPU_AVX2};
    if (have & MOE_CPU_AVX512)
        levels[n++] = (test_level){"avx512", MOE_CPU_AVX2 | MOE_CPU_AVX512};
    if (have & MOE_CPU_NEON)
        levels[n++] = (test_level){"neon", MOE_CPU_NEON};
    return n;
}

static inline uint32_t test_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state >> 32);
}

static inline uint32_t test_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)((uint64_t)test_random(state) * n >> 32);
}

/* In [-1, 1). */
static inline float test_unit(uint64_t *state)
{
    return (float)(int32_t)test_random(state) * 0x1p-31f;
}

static inline float test_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint32_t test_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

typedef enum test_kind {
    TEST_PLAIN,  /* [-4, 4) */
    TEST_FINITE, /* every exponent, zeros and subnormals among them */
    TEST_WILD,   /* every bit pattern, infinities and NaNs often */
    TEST_KINDS
} test_kind;

static inline float test_value(uint64_t *state, test_kind kind)
{
    uint32_t pick = test_below(state, 16);
    uint32_t sign = test_random(state) & 0x80000000u;
    if (kind == TEST_PLAIN)
        return 4.0f * test_unit(state);
    if (kind == TEST_WILD && pick < 2)
        return test_float_of(sign | (pick == 0 ? 0x7f800000u : 0x7fc00000u));
    if (pick < 4)
        return test_float_of(sign);
    if (pick < 6)
        return test_float_of(sign | (test_random(state) & 0x7fffffu));
    if (pick < 12)
        return 100.0f * test_unit(state);
    float any = test_float_of(test_random(state));
    return kind == TEST_FINITE && !isfinite(any) ? 1e30f : any;
}

static inline void test_fill(uint64_t *state, test_kind kind, float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = test_value(state, kind);
}

static inline bool test_same(float a, float b)
{
    return test_bits_of(a) == test_bits_of(b) || (isnan(a) && isnan(b));
}

/* Time this thread has computed: other processes' turns on the core do not count. */
static inline uint64_t test_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void test_assert_same(const char *what, const char *level, const float *expected,
                                    const float *got, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!test_same(expected[i], got[i]))
            fail_msg("%s, %s, n %u: element %u is %a, reference %a", what, level, n, i, got[i],
                     expected[i]);
}

static inline void test_assert_near(const char *what, double exact, float got, double relative,
                                    double absolute)
{
    if (!(fabs(exact - (double)got) <= relative * fabs(exact) + absolute))
        fail_msg("%s: %.9g, exactly %.9g", what, (double)got, exact);
}

#endif
