/* SPDX-License-Identifier: MIT */
/* Element-wise kernels, sums and exponentials: every instruction set against the
 * reference bit by bit, and the reference against double precision. With --bench: throughput. */
#include "tests/test_size.h"
#include "vector_test_util.h"

#define MAX_N  1100
#define GUARD  16 /* elements after a result that must stay as they were */
#define ROUNDS 400

/* One random case: inputs, and an output area with sentinels behind it. */
typedef struct test_case {
    uint32_t n;
    float a[MAX_N + GUARD];
    float b[MAX_N + GUARD];
    float scalar;
} test_case;

typedef void (*run_fn)(const moe_vector_kernels *k, const test_case *in, float *out);

static void run_rms_norm(const moe_vector_kernels *k, const test_case *in, float *out)
{
    k->rms_norm(in->a, in->b, out, in->n, 1e-6f);
}

static void run_rms_norm_in_place(const moe_vector_kernels *k, const test_case *in, float *out)
{
    memcpy(out, in->a, in->n * sizeof(float));
    k->rms_norm(out, in->b, out, in->n, 1e-6f);
}

static void run_rope_interleaved(const moe_vector_kernels *k, const test_case *in, float *out)
{
    memcpy(out, in->a, in->n * sizeof(float));
    k->rope_interleaved(out, in->b, in->b + in->n / 2, in->n & ~1u);
}

static void run_rope_halves(const moe_vector_kernels *k, const test_case *in, float *out)
{
    memcpy(out, in->a, in->n * sizeof(float));
    k->rope_halves(out, in->b, in->b + in->n / 2, in->n & ~1u);
}

static void run_silu_mul(const moe_vector_kernels *k, const test_case *in, float *out)
{
    k->silu_mul(in->a, in->b, out, in->n);
}

static void run_swiglu_clamped(const moe_vector_kernels *k, const test_case *in, float *out)
{
    k->swiglu_clamped(in->a, in->b, out, in->n, 1.702f, 0.7f);
}

static void run_layer_norm(const moe_vector_kernels *k, const test_case *in, float *out)
{
    k->layer_norm(in->a, in->b, in->scalar < 0.0f ? NULL : in->a + 3, out, in->n, 1e-5f);
}

static void run_gelu_mul(const moe_vector_kernels *k, const test_case *in, float *out)
{
    k->gelu_mul(in->a, in->b, out, in->n);
}

static void run_relu_mul(const moe_vector_kernels *k, const test_case *in, float *out)
{
    k->relu_mul(in->a, in->b, out, in->n);
}

static void run_silu_limited(const moe_vector_kernels *k, const test_case *in, float *out)
{
    k->silu_limited(in->a, in->b, out, in->n, 0.7f);
}

static void run_silu_clamped(const moe_vector_kernels *k, const test_case *in, float *out)
{
    k->silu_clamped(in->a, in->b, out, in->n, 0.7f);
}

static void run_situ_mul(const moe_vector_kernels *k, const test_case *in, float *out)
{
    k->situ_mul(in->a, in->b, out, in->n, 0.9f, in->n % 2 == 0 ? 1.7f : 0.0f);
}

static void run_soft_cap(const moe_vector_kernels *k, const test_case *in, float *out)
{
    memcpy(out, in->a, in->n * sizeof(float));
    k->soft_cap(in->n % 2 == 0 ? 30.0f : 0.5f, out, in->n);
}

static void run_sigmoid(const moe_vector_kernels *k, const test_case *in, float *out)
{
    memcpy(out, in->a, in->n * sizeof(float));
    k->sigmoid(out, in->n);
}

static void run_sigmoid_mul(const moe_vector_kernels *k, const test_case *in, float *out)
{
    k->sigmoid_mul(in->a, in->b, out, in->n);
}

static void run_add(const moe_vector_kernels *k, const test_case *in, float *out)
{
    k->add(in->a, in->b, out, in->n);
}

static void run_axpy(const moe_vector_kernels *k, const test_case *in, float *out)
{
    memcpy(out, in->b, in->n * sizeof(float));
    k->axpy(in->scalar, in->a, out, in->n);
}

static void run_relu_axpy(const moe_vector_kernels *k, const test_case *in, float *out)
{
    memcpy(out, in->b, in->n * sizeof(float));
    k->relu_axpy(in->scalar, in->a, out, in->n);
}

static void run_score_keys(const moe_vector_kernels *k, const test_case *in, float *out)
{
    const uint32_t dim = 1 + in->n % 40, n_head = 1 + in->n % 6;
    k->score_keys(in->a, in->b, in->b + 6 * 40, n_head, dim, out);
}

static void run_scale(const moe_vector_kernels *k, const test_case *in, float *out)
{
    memcpy(out, in->a, in->n * sizeof(float));
    k->scale(in->scalar, out, in->n);
}

static void run_clamp(const moe_vector_kernels *k, const test_case *in, float *out)
{
    memcpy(out, in->a, in->n * sizeof(float));
    k->clamp(fabsf(in->scalar), out, in->n);
}

static void run_dot(const moe_vector_kernels *k, const test_case *in, float *out)
{
    out[0] = k->dot(in->a, in->b, in->n);
}

static void run_softmax(const moe_vector_kernels *k, const test_case *in, float *out)
{
    memcpy(out, in->a, in->n * sizeof(float));
    k->softmax(out, in->n);
}

static void run_exp_sum(const moe_vector_kernels *k, const test_case *in, float *out)
{
    out[0] = k->exp_sum(in->a, in->n, in->scalar);
}

static void run_argmax(const moe_vector_kernels *k, const test_case *in, float *out)
{
    uint32_t at = k->argmax(in->a, in->n);
    assert_true(at < in->n || (at == 0 && in->n == 0));
    out[0] = (float)at;
}

static void run_log_softmax_at(const moe_vector_kernels *k, const test_case *in, float *out)
{
    out[0] = in->n > 0 ? (float)k->log_softmax_at(in->a, in->n, in->n / 3) : 0.0f;
}

static void run_attend_merge(const moe_vector_kernels *k, const test_case *in, float *out)
{
    float max = in->scalar < 0.0f ? -INFINITY : in->scalar;
    float sum = 1.5f;
    memcpy(out + 2, in->a, in->n * sizeof(float));
    k->attend_merge(&max, &sum, out + 2, in->n % 7 == 0 ? -INFINITY : in->scalar * 0.9f, 2.5f,
                    in->b, in->n);
    out[0] = max;
    out[1] = sum;
}

typedef struct subject {
    const char *name;
    run_fn run;
} subject;

static const subject subjects[] = {
    {"rms_norm", run_rms_norm},
    {"rms_norm in place", run_rms_norm_in_place},
    {"rope_interleaved", run_rope_interleaved},
    {"rope_halves", run_rope_halves},
    {"silu_mul", run_silu_mul},
    {"swiglu_clamped", run_swiglu_clamped},
    {"layer_norm", run_layer_norm},
    {"gelu_mul", run_gelu_mul},
    {"relu_mul", run_relu_mul},
    {"silu_limited", run_silu_limited},
    {"silu_clamped", run_silu_clamped},
    {"situ_mul", run_situ_mul},
    {"soft_cap", run_soft_cap},
    {"sigmoid", run_sigmoid},
    {"sigmoid_mul", run_sigmoid_mul},
    {"add", run_add},
    {"axpy", run_axpy},
    {"relu_axpy", run_relu_axpy},
    {"score_keys", run_score_keys},
    {"scale", run_scale},
    {"clamp", run_clamp},
    {"dot", run_dot},
    {"softmax", run_softmax},
    {"exp_sum", run_exp_sum},
    {"argmax", run_argmax},
    {"log_softmax_at", run_log_softmax_at},
    {"attend_merge", run_attend_merge},
};

static void every_level_gives_the_reference_bits(void **state)
{
    (void)state;
    static test_case in; /* large, and the test is single-threaded */
    static float expected[MAX_N + GUARD], got[MAX_N + GUARD];
    uint64_t seed = 0x9e3779b97f4a7c15u;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    moe_vector_kernels reference;
    moe_vector_kernels_init(&reference, 0);
    for (uint32_t l = 1; l < n_levels; l++) {
        moe_vector_kernels k;
        moe_vector_kernels_init(&k, levels[l].features);
        for (uint32_t round = 0; round < ROUNDS; round++) {
            /* Every length up to 130, then random ones. */
            in.n = round <= 130 ? round : test_below(&seed, MAX_N - 2);
            test_kind kind = round % TEST_KINDS;
            test_fill(&seed, kind, in.a, MAX_N);
            test_fill(&seed, kind, in.b, MAX_N);
            in.scalar = test_value(&seed, kind);
            for (size_t s = 0; s < sizeof(subjects) / sizeof(subjects[0]); s++) {
                for (uint32_t i = 0; i < MAX_N + GUARD; i++)
                    expected[i] = got[i] = 12345.0f;
                subjects[s].run(&reference, &in, expected);
                subjects[s].run(&k, &in, got);
                /* Beyond the result too: nothing may be written there. */
                test_assert_same(subjects[s].name, levels[l].name, expected, got, in.n + GUARD);
            }
        }
    }
}

/* Scores are sums of products that dot() gives. */
static void scores_are_of_products(void **state)
{
    (void)state;
    static test_case in;
    float row[40], scores[MOE_SCORED_KEYS];
    uint64_t seed = 1234;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    for (uint32_t dim = 1; dim <= 40; dim++) {
        test_fill(&seed, 0, in.a, MOE_SCORED_KEYS * 40);
        test_fill(&seed, 0, in.b, 6 * 41);
        k.score_keys(in.a, in.b, in.b + 6 * 40, 6, dim, scores);
        for (uint32_t i = 0; i < MOE_SCORED_KEYS; i++) {
            float expected = 0.0f;
            for (uint32_t e = 0; e < dim; e++)
                row[e] = in.a[e * MOE_SCORED_KEYS + i];
            for (uint32_t h = 0; h < 6; h++) {
                const float product = k.dot(row, in.b + h * dim, dim);
                k.relu_axpy(in.b[6 * 40 + h], &product, &expected, 1);
            }
            assert_memory_equal(&scores[i], &expected, sizeof expected);
        }
    }
}

/* Ties, and NaNs in front of the greatest value. */
static void argmax_takes_the_lowest_of_equals(void **state)
{
    (void)state;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    static float x[1000];
    for (uint32_t l = 0; l < n_levels; l++) {
        moe_vector_kernels k;
        moe_vector_kernels_init(&k, levels[l].features);
        for (uint32_t n = 1; n <= 1000; n += 1 + n / 8) {
            for (uint32_t i = 0; i < n; i++)
                x[i] = -3.0f;
            assert_int_equal(k.argmax(x, n), 0);
            x[n - 1] = 5.0f;
            assert_int_equal(k.argmax(x, n), n - 1);
            x[n / 2] = 5.0f;
            assert_int_equal(k.argmax(x, n), n / 2);
            x[0] = NAN;
            assert_int_equal(k.argmax(x, n), n == 1 ? 0 : n == 2 || n == 3 ? 1 : n / 2);
            for (uint32_t i = 0; i < n; i++)
                x[i] = NAN;
            assert_int_equal(k.argmax(x, n), 0);
            x[n - 1] = -INFINITY;
            assert_int_equal(k.argmax(x, n), n - 1);
        }
        float zeros[3] = {-0.0f, 0.0f, -0.0f};
        assert_int_equal(k.argmax(zeros, 3), 0);
        assert_int_equal(k.argmax(zeros, 0), 0);
    }
}

/* Products too small for a float leave -0 in the lanes; a lane that the last chunk does not reach
 * must not become +0, or the sign of the sum depends on the instruction set. */
static void untouched_lanes_keep_their_zero(void **state)
{
    (void)state;
    float a[48], b[48];
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    for (uint32_t i = 0; i < 48; i++) {
        a[i] = 1e-30f;
        b[i] = -1e-30f;
    }
    for (uint32_t l = 0; l < n_levels; l++) {
        moe_vector_kernels k;
        moe_vector_kernels_init(&k, levels[l].features);
        for (uint32_t n = 0; n <= 48; n++)
            assert_int_equal(test_bits_of(k.dot(a, b, n)), n < 16 ? 0 : 0x80000000u);
    }
}

static double ulp_of(double exact)
{
    int exponent;
    frexp(exact, &exponent);
    return ldexp(1.0, exponent - 24);
}

static void exp_is_within_one_ulp(void **state)
{
    (void)state;
    double worst = 0.0;
    /* Every 37th float of [-87, 88] (a small test: every 999th), every binade of it. */
    const uint32_t step = test_leaves_out(1, 2) ? 999 : 37;
    for (uint32_t sign = 0; sign < 2; sign++) {
        uint32_t last = test_bits_of(sign ? 87.0f : 88.0f);
        for (uint32_t bits = 0; bits <= last; bits += step) {
            float x = test_float_of(sign << 31 | bits);
            double exact = exp((double)x);
            double error = fabs((double)moe_exp(x) - exact) / ulp_of(exact);
            worst = error > worst ? error : worst;
        }
    }
    print_message("moe_exp: greatest error %.4f ulp\n", worst);
    assert_true(worst < 1.0);
    assert_true(moe_exp(0.0f) == 1.0f && moe_exp(-0.0f) == 1.0f);
    assert_true(moe_exp(-87.00001f) == 0.0f && moe_exp(-87.0f) > 0.0f);
    assert_true(moe_exp(-INFINITY) == 0.0f && !signbit(moe_exp(-INFINITY)));
    assert_true(isinf(moe_exp(88.00001f)) && isfinite(moe_exp(88.0f)));
    assert_true(isinf(moe_exp(INFINITY)) && isnan(moe_exp(NAN)));
}

static void norms_and_sums_agree_with_double(void **state)
{
    (void)state;
    static float a[MAX_N], b[MAX_N], y[MAX_N];
    uint64_t seed = 77;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    for (uint32_t round = 0; round < 200; round++) {
        uint32_t n = 1 + test_below(&seed, MAX_N - 1);
        test_fill(&seed, TEST_PLAIN, a, n);
        test_fill(&seed, TEST_PLAIN, b, n);
        double dot = 0, magnitude = 0, square = 0, max = -INFINITY, sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            dot += (double)a[i] * b[i];
            magnitude += fabs((double)a[i] * b[i]);
            square += (double)a[i] * a[i];
            max = a[i] > max ? a[i] : max;
        }
        for (uint32_t i = 0; i < n; i++)
            sum += exp((double)a[i] - max);
        test_assert_near("dot", dot, k.dot(a, b, n), 0, 2e-6 * magnitude);
        k.rms_norm(a, b, y, n, 1e-5f);
        for (uint32_t i = 0; i < n; i++)
            test_assert_near("rms_norm", a[i] / sqrt(square / n + 1e-5) * b[i], y[i], 2e-6, 0);
        k.silu_mul(a, b, y, n);
        for (uint32_t i = 0; i < n; i++)
            test_assert_near("silu_mul", a[i] / (1 + exp(-(double)a[i])) * b[i], y[i], 1e-6, 0);
        k.swiglu_clamped(a, b, y, n, 1.702f, 0.7f);
        for (uint32_t i = 0; i < n; i++) {
            double g = fmin(a[i], 0.7f);
            double u = fmax(fmin(b[i], 0.7f), -0.7f);
            test_assert_near("swiglu_clamped", g / (1 + exp(-1.702 * g)) * (u + 1), y[i], 2e-6,
                             1e-7);
        }
        memcpy(y, a, n * sizeof(float));
        k.sigmoid(y, n);
        for (uint32_t i = 0; i < n; i++)
            test_assert_near("sigmoid", 1 / (1 + exp(-(double)a[i])), y[i], 1e-6, 0);
        memcpy(y, a, n * sizeof(float));
        k.softmax(y, n);
        for (uint32_t i = 0; i < n; i++)
            test_assert_near("softmax", exp(a[i] - max) / sum, y[i], 2e-6, 0);
        double exact = a[n / 2] - max - log(sum);
        assert_true(fabs(k.log_softmax_at(a, n, n / 2) - exact) <= 1e-12 * fabs(exact) + 1e-14);
    }
}

/* tanh over its two ranges and their border, and the forms that are made of exp and tanh. */
static void forms_agree_with_double(void **state)
{
    (void)state;
    static float a[MAX_N], b[MAX_N], y[MAX_N];
    uint64_t seed = 78;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    for (int32_t i = -40000; i <= 40000; i++) {
        float x = (float)i * 2.5e-4f;
        test_assert_near("tanh", tanh((double)x), moe_tanh(x), 3e-7, 0);
    }
    assert_true(moe_tanh(INFINITY) == 1.0f && moe_tanh(-INFINITY) == -1.0f && isnan(moe_tanh(NAN)));
    assert_true(moe_tanh(-1e-30f) == -1e-30f);
    for (uint32_t round = 0; round < 200; round++) {
        uint32_t n = 1 + test_below(&seed, MAX_N - 1);
        test_fill(&seed, TEST_PLAIN, a, n);
        test_fill(&seed, TEST_PLAIN, b, n);
        double mean = 0, square = 0;
        for (uint32_t i = 0; i < n; i++)
            mean += (double)a[i] / n;
        for (uint32_t i = 0; i < n; i++)
            square += (a[i] - mean) * (a[i] - mean) / n;
        k.layer_norm(a, b, a, y, n, 1e-5f);
        for (uint32_t i = 0; i < n; i++) {
            double x = (a[i] - mean) / sqrt(square + 1e-5);
            test_assert_near("layer_norm", x * b[i] + a[i], y[i], 1e-5, 1e-5);
        }
        k.gelu_mul(a, b, y, n);
        for (uint32_t i = 0; i < n; i++) {
            double t = 0.7978845608028654 * (a[i] + 0.044715 * pow(a[i], 3));
            test_assert_near("gelu_mul", 0.5 * a[i] * (1 + tanh(t)) * b[i], y[i], 2e-6, 1e-9);
        }
        k.silu_limited(a, b, y, n, 0.7f);
        for (uint32_t i = 0; i < n; i++) {
            double g = fmin(a[i] / (1 + exp(-(double)a[i])), 0.7f);
            double u = fmax(fmin(b[i], 0.7f), -0.7f);
            test_assert_near("silu_limited", g * u, y[i], 2e-6, 1e-9);
        }
        k.silu_clamped(a, b, y, n, 0.7f);
        for (uint32_t i = 0; i < n; i++) {
            double g = fmin(a[i], 0.7f), u = fmax(fmin(b[i], 0.7f), -0.7f);
            test_assert_near("silu_clamped", g / (1 + exp(-g)) * u, y[i], 2e-6, 1e-9);
        }
        const double limit = round % 2 == 0 ? 1.7 : 0;
        k.situ_mul(a, b, y, n, 0.9f, (float)limit);
        for (uint32_t i = 0; i < n; i++) {
            double g = 0.9 * tanh(a[i] / 0.9) / (1 + exp(-(double)a[i]));
            double u = limit > 0 ? limit * tanh(b[i] / limit) : b[i];
            test_assert_near("situ_mul", g * u, y[i], 2e-6, 1e-9);
        }
        k.relu_mul(a, b, y, n);
        for (uint32_t i = 0; i < n; i++)
            test_assert_near("relu_mul", fmax(a[i], 0) * b[i], y[i], 1e-7, 0);
        k.sigmoid_mul(a, b, y, n);
        for (uint32_t i = 0; i < n; i++)
            test_assert_near("sigmoid_mul", b[i] / (1 + exp(-(double)a[i])), y[i], 1e-6, 0);
        memcpy(y, a, n * sizeof(float));
        k.soft_cap(1.5f, y, n);
        for (uint32_t i = 0; i < n; i++)
            test_assert_near("soft_cap", 1.5 * tanh(a[i] / 1.5), y[i], 1e-6, 0);
    }
    float damaged[4] = {NAN, 1.0f, INFINITY, -INFINITY};
    k.relu_mul(damaged, damaged + 1, y, 1);
    assert_true(isnan(y[0])); /* damage is not hidden */
}

static void rope_rotates(void **state)
{
    (void)state;
    float x[128], halves[128], mixed[128], c[64], s[64];
    uint64_t seed = 5;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    test_fill(&seed, TEST_PLAIN, x, 128);
    for (uint32_t i = 0; i < 64; i++) {
        c[i] = (float)cos(0.37 * i);
        s[i] = (float)sin(0.37 * i);
        halves[i] = x[2 * i];
        halves[64 + i] = x[2 * i + 1];
    }
    memcpy(mixed, x, sizeof(x));
    k.rope_interleaved(mixed, c, s, 128);
    k.rope_halves(halves, c, s, 128);
    for (uint32_t i = 0; i < 64; i++) {
        double re = (double)x[2 * i] * c[i] - (double)x[2 * i + 1] * s[i];
        double im = (double)x[2 * i] * s[i] + (double)x[2 * i + 1] * c[i];
        test_assert_near("rope, real part", re, mixed[2 * i], 0, 1e-6);
        test_assert_near("rope, imaginary part", im, mixed[2 * i + 1], 0, 1e-6);
        assert_true(halves[i] == mixed[2 * i] && halves[64 + i] == mixed[2 * i + 1]);
    }
}

static void clamp_keeps_nan(void **state)
{
    (void)state;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    for (uint32_t l = 0; l < n_levels; l++) {
        moe_vector_kernels k;
        moe_vector_kernels_init(&k, levels[l].features);
        float x[19];
        for (uint32_t i = 0; i < 19; i++)
            x[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? -9.0f : 9.0f;
        k.clamp(7.0f, x, 19);
        for (uint32_t i = 0; i < 19; i++)
            assert_true(i % 3 == 0 ? isnan(x[i]) : x[i] == (i % 3 == 1 ? -7.0f : 7.0f));
    }
}

/* As in x > 0 ? x : 0. */
static void relu_leaves_nan_out(void **state)
{
    (void)state;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    for (uint32_t l = 0; l < n_levels; l++) {
        moe_vector_kernels k;
        moe_vector_kernels_init(&k, levels[l].features);
        float x[19], acc[19];
        for (uint32_t i = 0; i < 19; i++) {
            x[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? -9.0f : 9.0f;
            acc[i] = 1.0f;
        }
        k.relu_axpy(2.0f, x, acc, 19);
        for (uint32_t i = 0; i < 19; i++)
            assert_true(acc[i] == (i % 3 == 2 ? 19.0f : 1.0f));
    }
}

typedef struct bench {
    const char *name;
    run_fn run;
    double bytes_per_element;
} bench;

static int run_benches(void)
{
    static const bench benches[] = {
        {"rms_norm", run_rms_norm, 12}, {"silu_mul", run_silu_mul, 12},
        {"add", run_add, 12},           {"axpy", run_axpy, 12},
        {"softmax", run_softmax, 8},    {"argmax", run_argmax, 4},
        {"sigmoid", run_sigmoid, 8},    {"dot", run_dot, 8},
        {"exp_sum", run_exp_sum, 4},    {"relu_axpy", run_relu_axpy, 12},
    };
    static test_case in;
    static float out[MAX_N + GUARD];
    uint64_t seed = 1;
    in.n = 1024;
    in.scalar = 0.5f;
    test_fill(&seed, TEST_PLAIN, in.a, in.n);
    test_fill(&seed, TEST_PLAIN, in.b, in.n);
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    for (size_t b = 0; b < sizeof(benches) / sizeof(benches[0]); b++) {
        printf("%-10s n 1024:", benches[b].name);
        for (uint32_t l = 0; l < n_levels; l++) {
            moe_vector_kernels k;
            moe_vector_kernels_init(&k, levels[l].features);
            uint64_t best = UINT64_MAX;
            for (uint32_t repeat = 0; repeat < 20; repeat++) {
                uint64_t start = test_cpu_ns();
                for (uint32_t i = 0; i < 500; i++)
                    benches[b].run(&k, &in, out);
                uint64_t took = test_cpu_ns() - start;
                best = took < best ? took : best;
            }
            double ns = (double)best / 500;
            printf("  %s %.0f ns (%.1f GB/s)", levels[l].name, ns,
                   benches[b].bytes_per_element * in.n / ns);
        }
        printf("\n");
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--bench") == 0)
        return run_benches();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_level_gives_the_reference_bits),
        cmocka_unit_test(scores_are_of_products),
        cmocka_unit_test(untouched_lanes_keep_their_zero),
        cmocka_unit_test(argmax_takes_the_lowest_of_equals),
        cmocka_unit_test(exp_is_within_one_ulp),
        cmocka_unit_test(norms_and_sums_agree_with_double),
        cmocka_unit_test(forms_agree_with_double),
        cmocka_unit_test(rope_rotates),
        cmocka_unit_test(clamp_keeps_nan),
        cmocka_unit_test(relu_leaves_nan_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
