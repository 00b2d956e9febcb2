/* SPDX-License-Identifier: MIT */
/* Rows of the KV cache in their types: half floats exactly, and every instruction set against the
 * reference byte by byte. */
#include "vector_test_util.h"

#include "cpu/kernels/kv_half.h"

#include <string.h>
#include <time.h>

#define MAX_N 1100
#define GUARD 16 /* elements after a result that must stay as they were */

/* Nearest half by search in doubles: apart from how the conversion works. */
static void half_conversion_is_exact(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float here = moe_half_to_float((uint16_t)h);
        int exponent = (int)(h >> 10);
        double exact = exponent == 0 ? ldexp(h, -24) : ldexp(1024 + (h & 1023), exponent - 25);
        assert_true((double)here == exact);
        assert_int_equal(moe_float_to_half(here), h);
        assert_int_equal(moe_float_to_half(-here), h | 0x8000);
        /* The midpoint to the next half goes to the even one, its neighbours to the nearer. */
        double next = h == 0x7bff ? 65536.0 : (double)moe_half_to_float((uint16_t)(h + 1));
        float middle = (float)((exact + next) / 2);
        assert_int_equal(moe_float_to_half(middle), h % 2 == 0 ? h : h + 1);
        assert_int_equal(moe_float_to_half(nextafterf(middle, 0.0f)), h);
        assert_int_equal(moe_float_to_half(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_int_equal(moe_float_to_half(INFINITY), 0x7c00);
    assert_int_equal(moe_float_to_half(1e30f), 0x7c00);
    assert_int_equal(moe_float_to_half(-1e-30f), 0x8000);
    assert_true(isnan(moe_half_to_float(moe_float_to_half(NAN))));
    assert_true(isinf(moe_half_to_float(0x7c00)));
}

static void kv_rows_are_the_same_bytes_everywhere(void **state)
{
    (void)state;
    static const moe_kv_type types[] = {MOE_KV_F16, MOE_KV_F32, MOE_KV_Q8_0, MOE_KV_Q4_0,
                                        MOE_KV_F8};
    static float x[MAX_N], expected[MAX_N + GUARD], got[MAX_N + GUARD];
    static uint8_t rows[2][MAX_N * 4 + GUARD];
    uint64_t seed = 31;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    moe_vector_kernels reference;
    moe_vector_kernels_init(&reference, 0);
    for (uint32_t l = 1; l < n_levels; l++) {
        moe_vector_kernels k;
        moe_vector_kernels_init(&k, levels[l].features);
        for (uint32_t round = 0; round < 2000; round++) {
            moe_kv_type type = types[round % 5];
            uint32_t n = round < 500 ? round / 5 : test_below(&seed, MAX_N);
            n = type == MOE_KV_Q8_0 || type == MOE_KV_Q4_0 ? n / 32 * 32 : n;
            test_fill(&seed, round / 5 % TEST_KINDS, x, MAX_N);
            if (round / 15 % 4 == 3) /* subnormal scales */
                for (uint32_t i = 0; i < n; i++)
                    x[i] = 1e-4f * test_unit(&seed);
            memset(rows, 0xaa, sizeof(rows));
            reference.kv_store(type, x, rows[0] + 1, n);
            k.kv_store(type, x, rows[1] + 1, n);
            assert_memory_equal(rows[0], rows[1], sizeof(rows[0]));
            for (uint32_t i = 0; i < MAX_N + GUARD; i++)
                expected[i] = got[i] = 12345.0f;
            reference.kv_load(type, rows[0] + 1, expected, n);
            k.kv_load(type, rows[0] + 1, got, n);
            test_assert_same("kv_load", levels[l].name, expected, got, n + GUARD);
        }
    }
}

static void kv_rows_keep_their_precision(void **state)
{
    (void)state;
    float x[64], y[64];
    uint8_t row[256];
    uint64_t seed = 3;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    assert_int_equal(moe_kv_row_bytes(MOE_KV_F16, 64), 128);
    assert_int_equal(moe_kv_row_bytes(MOE_KV_F32, 64), 256);
    assert_int_equal(moe_kv_row_bytes(MOE_KV_Q8_0, 64), 68);
    for (uint32_t round = 0; round < 1000; round++) {
        /* Down to where the scale is a subnormal half. */
        float size = ldexpf(1.0f, -(int)(round % 24));
        float amax[2] = {0, 0};
        for (uint32_t i = 0; i < 64; i++) {
            x[i] = size * test_unit(&seed);
            amax[i / 32] = fmaxf(amax[i / 32], fabsf(x[i]));
        }
        k.kv_store(MOE_KV_Q8_0, x, row, 64);
        k.kv_load(MOE_KV_Q8_0, row, y, 64);
        for (uint32_t i = 0; i < 64; i++) {
            double step = amax[i / 32] / 127.0;
            /* Half a step, the scale's rounding, and what clamping at 127 codes can cost. */
            test_assert_near("q8_0", x[i], y[i], 0,
                             step * 0.501 + 128 * 0x1p-25 + step * 127 * 0x1p-12);
        }
        k.kv_store(MOE_KV_F16, x, row, 64);
        k.kv_load(MOE_KV_F16, row, y, 64);
        for (uint32_t i = 0; i < 64; i++)
            test_assert_near("f16", x[i], y[i], 0x1p-11, 0x1p-25);
    }
    x[40] = NAN;
    static const moe_kv_type blocks[] = {MOE_KV_Q8_0, MOE_KV_Q4_0};
    for (uint32_t t = 0; t < 2; t++) {
        k.kv_store(blocks[t], x, row, 64);
        k.kv_load(blocks[t], row, y, 64);
        assert_true(!isnan(y[31]) && isnan(y[32]) && isnan(y[63]));
    }
}

/* The value of the greatest magnitude is a code of its own, -8; on its side all are within half a
 * step, and on the other the last half step is cut off. */
static void four_bits_keep_their_precision(void **state)
{
    (void)state;
    float x[32], y[32];
    uint8_t row[MOE_KV_Q4_BYTES];
    uint64_t seed = 5;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    assert_int_equal(moe_kv_row_bytes(MOE_KV_Q4_0, 64), 36);
    for (uint32_t round = 0; round < 1000; round++) {
        float most = 0.0f;
        for (uint32_t i = 0; i < 32; i++) {
            x[i] = ldexpf(test_unit(&seed), (int)(round % 9) - 4);
            most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
        }
        k.kv_store(MOE_KV_Q4_0, x, row, 32);
        k.kv_load(MOE_KV_Q4_0, row, y, 32);
        double step = fabs((double)most) / 8;
        for (uint32_t i = 0; i < 32; i++) {
            bool same_side = signbit(x[i]) == signbit(most);
            test_assert_near("q4_0", x[i], y[i], 0, step * (same_side ? 0.51 : 1.01));
            test_assert_near("q4_0 top", x[i] == most ? most : 0, x[i] == most ? y[i] : 0, 1e-3, 0);
        }
    }
}

static float through_f8(const moe_vector_kernels *k, float x)
{
    uint8_t code;
    float y;
    k->kv_store(MOE_KV_F8, &x, &code, 1);
    k->kv_load(MOE_KV_F8, &code, &y, 1);
    return y;
}

static void eight_bit_floats_are_e4m3(void **state)
{
    (void)state;
    static const struct {
        uint8_t code;
        float value;
    } known[] = {{0x00, 0.0f},     {0x01, 0x1p-9f}, {0x07, 0x1.cp-7f}, {0x08, 0x1p-6f},
                 {0x38, 1.0f},     {0x39, 1.125f},  {0x7e, 448.0f},    {0xfe, -448.0f},
                 {0x81, -0x1p-9f}, {0xb8, -1.0f}};
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        float y;
        uint8_t code;
        k.kv_load(MOE_KV_F8, &known[i].code, &y, 1);
        assert_true(y == known[i].value);
        k.kv_store(MOE_KV_F8, &known[i].value, &code, 1);
        assert_int_equal(code, known[i].code);
    }
    for (uint32_t c = 0; c < 0x7e; c++) { /* neighbours, and what lies between them */
        float pair[2];
        uint8_t codes[2] = {(uint8_t)c, (uint8_t)(c + 1)};
        k.kv_load(MOE_KV_F8, codes, pair, 2);
        assert_true(pair[0] < pair[1]);
        float middle = (pair[0] + pair[1]) / 2;
        assert_true(through_f8(&k, middle) == pair[c % 2]);
        assert_true(through_f8(&k, nextafterf(middle, 0.0f)) == pair[0]);
        assert_true(through_f8(&k, nextafterf(middle, INFINITY)) == pair[1]);
        assert_true(through_f8(&k, -middle) == -pair[c % 2]);
    }
    assert_true(through_f8(&k, 1e9f) == 448.0f && through_f8(&k, -463.0f) == -448.0f);
    assert_true(isnan(through_f8(&k, NAN)) && isnan(through_f8(&k, -INFINITY)));
}

/* Every sign, exponent and upper bits of a significand, with what lies next to ties. */
static void eight_bit_floats_round_the_same_everywhere(void **state)
{
    (void)state;
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0xffff};
    enum { N = 8 * 5 };
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    moe_vector_kernels reference;
    moe_vector_kernels_init(&reference, 0);
    for (uint32_t l = 1; l < n_levels; l++) {
        moe_vector_kernels k;
        moe_vector_kernels_init(&k, levels[l].features);
        for (uint32_t high = 0; high < 0x10000; high += 8) {
            float x[N];
            uint8_t codes[2][N];
            for (uint32_t i = 0; i < N; i++)
                x[i] = test_float_of((high + i / 5) << 16 | low[i % 5]);
            reference.kv_store(MOE_KV_F8, x, codes[0], N);
            k.kv_store(MOE_KV_F8, x, codes[1], N);
            assert_memory_equal(codes[0], codes[1], N);
        }
    }
}

/* kv_convert --bench: time of a row of 128 elements, stored and loaded, by level. */
static void bench(void)
{
    enum { DIM = 128, ROUNDS = 200000 };
    static const char *names[] = {"f16", "f32", "q8_0", "q4_0", "f8"};
    float x[DIM];
    uint8_t row[DIM * 4];
    uint64_t seed = 9;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    test_fill(&seed, (test_kind)0, x, DIM);
    for (uint32_t l = 0; l < n_levels; l++) {
        moe_vector_kernels k;
        moe_vector_kernels_init(&k, levels[l].features);
        for (int type = MOE_KV_F16; type <= MOE_KV_F8; type++) {
            double ns[2];
            for (int load = 0; load < 2; load++) {
                clock_t begin = clock();
                for (uint32_t i = 0; i < ROUNDS; i++) {
                    if (load)
                        k.kv_load((moe_kv_type)type, row, x, DIM);
                    else
                        k.kv_store((moe_kv_type)type, x, row, DIM);
                    __asm__ volatile("" ::: "memory");
                }
                ns[load] = (double)(clock() - begin) / CLOCKS_PER_SEC * 1e9 / ROUNDS;
            }
            printf("%-8s %-5s store %7.1f ns  load %7.1f ns\n", levels[l].name, names[type], ns[0],
                   ns[1]);
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_conversion_is_exact),
        cmocka_unit_test(kv_rows_are_the_same_bytes_everywhere),
        cmocka_unit_test(kv_rows_keep_their_precision),
        cmocka_unit_test(four_bits_keep_their_precision),
        cmocka_unit_test(eight_bit_floats_are_e4m3),
        cmocka_unit_test(eight_bit_floats_round_the_same_everywhere),
    };
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench();
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
