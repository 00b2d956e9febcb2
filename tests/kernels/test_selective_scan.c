/* SPDX-License-Identifier: MIT */
/* The selective scan: every instruction set against the reference bit by bit, the reference against
 * double precision, and tokens taken together against tokens taken one by one. With --bench: time
 * of a token. */
#include "cpu/kernels/delta_rule.h"
#include "vector_test_util.h"

#define MAX_TOKENS 9
#define MAX_ROWS   40
#define ROUNDS     300
#define GUARD      16

typedef struct scan_case {
    moe_scan_args args;
    float q[MAX_TOKENS * MAX_ROWS], k[MAX_TOKENS * MAX_ROWS];
    float v[MAX_TOKENS][MOE_DELTA_COLUMNS], dt[MAX_TOKENS][MOE_DELTA_COLUMNS];
    float dt_bias[MOE_DELTA_COLUMNS], skip[MOE_DELTA_COLUMNS];
    float rate[MAX_ROWS * MOE_DELTA_COLUMNS], state[MAX_ROWS * MOE_DELTA_COLUMNS];
} scan_case;

typedef struct scan_result {
    float state[MAX_ROWS * MOE_DELTA_COLUMNS + GUARD];
    float out[MAX_TOKENS * MOE_DELTA_COLUMNS + GUARD];
} scan_result;

static void make_case(scan_case *c, uint64_t *seed, test_kind kind)
{
    c->args = (moe_scan_args){.n_rows = 1 + test_below(seed, MAX_ROWS),
                              .n = 1 + test_below(seed, MOE_DELTA_COLUMNS),
                              .n_tokens = 1 + test_below(seed, MAX_TOKENS),
                              .q = c->q,
                              .k = c->k,
                              .v = c->v[0],
                              .dt = c->dt[0],
                              .stride = MOE_DELTA_COLUMNS,
                              .dt_bias = c->dt_bias,
                              .skip = c->skip,
                              .rate = c->rate,
                              .out_stride = MOE_DELTA_COLUMNS};
    if (test_below(seed, 3) == 0)
        c->args.n = MOE_DELTA_COLUMNS;
    c->args.n_silent = test_below(seed, c->args.n_tokens + 1);
    test_fill(seed, kind, c->q, MAX_TOKENS * MAX_ROWS);
    test_fill(seed, kind, c->k, MAX_TOKENS * MAX_ROWS);
    test_fill(seed, kind, c->v[0], MAX_TOKENS * MOE_DELTA_COLUMNS);
    test_fill(seed, kind, c->dt[0], MAX_TOKENS * MOE_DELTA_COLUMNS);
    test_fill(seed, TEST_PLAIN, c->dt_bias, MOE_DELTA_COLUMNS);
    test_fill(seed, TEST_PLAIN, c->skip, MOE_DELTA_COLUMNS);
    test_fill(seed, kind, c->state, MAX_ROWS * MOE_DELTA_COLUMNS);
    for (uint32_t i = 0; i < MAX_ROWS * MOE_DELTA_COLUMNS; i++)
        c->rate[i] = -8.0f * (float)fabs((double)test_unit(seed));
    for (uint32_t i = 0; i < MAX_TOKENS * MOE_DELTA_COLUMNS && test_below(seed, 2) == 0; i++)
        c->dt[0][i] *= 30.0f;
}

static void run_case(const moe_vector_kernels *k, const scan_case *c, scan_result *r)
{
    moe_scan_args args = c->args;
    memset(r, 0x55, sizeof *r);
    memcpy(r->state, c->state, (size_t)args.n_rows * args.n * sizeof(float));
    args.state = r->state;
    args.out = r->out;
    k->scan_columns(&args);
}

static void assert_same_results(const char *level, const scan_case *c, const scan_result *a,
                                const scan_result *b)
{
    uint32_t n_out = (c->args.n_tokens - c->args.n_silent) * MOE_DELTA_COLUMNS;
    test_assert_same("state", level, a->state, b->state, c->args.n_rows * c->args.n + GUARD);
    test_assert_same("out", level, a->out, b->out, n_out + GUARD);
}

static void scan_of_every_level(void **state)
{
    (void)state;
    static scan_case c;
    static scan_result expected, got;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    uint64_t seed = 71;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        make_case(&c, &seed, (test_kind)(round % TEST_KINDS));
        for (uint32_t l = 0; l < n_levels; l++) {
            moe_vector_kernels k;
            moe_vector_kernels_init(&k, levels[l].features);
            run_case(&k, &c, l == 0 ? &expected : &got);
            if (l > 0)
                assert_same_results(levels[l].name, &c, &expected, &got);
        }
    }
}

static void tokens_one_by_one(void **state)
{
    (void)state;
    static scan_case c;
    static scan_result expected, got;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, moe_cpu_features());
    uint64_t seed = 73;
    for (uint32_t round = 0; round < 50; round++) {
        make_case(&c, &seed, TEST_PLAIN);
        run_case(&k, &c, &expected);
        memset(&got, 0x55, sizeof got);
        memcpy(got.state, c.state, (size_t)c.args.n_rows * c.args.n * sizeof(float));
        for (uint32_t t = 0; t < c.args.n_tokens; t++) {
            moe_scan_args one = c.args;
            one.n_tokens = 1;
            one.n_silent = t < c.args.n_silent;
            one.q += t * c.args.n_rows;
            one.k += t * c.args.n_rows;
            one.v = c.v[t];
            one.dt = c.dt[t];
            one.state = got.state;
            one.out = got.out + (one.n_silent ? 0 : t - c.args.n_silent) * MOE_DELTA_COLUMNS;
            k.scan_columns(&one);
        }
        assert_same_results("one by one", &c, &expected, &got);
    }
}

/* A channel of the case as Mamba defines it, in double precision: the output of token t. */
static double exact_token(const scan_case *c, uint32_t t, uint32_t column, double *s)
{
    const moe_scan_args *a = &c->args;
    double x = (double)c->dt[t][column] + c->dt_bias[column];
    double step = x > 30.0 ? x : log1p(exp(x)), out = (double)c->skip[column] * c->v[t][column];
    for (uint32_t i = 0; i < a->n_rows; i++) {
        s[i] *= exp(step * c->rate[i * a->n + column]);
        s[i] += step * c->k[t * a->n_rows + i] * c->v[t][column];
        out += s[i] * c->q[t * a->n_rows + i];
    }
    return out;
}

static void reference_is_right(void **state)
{
    (void)state;
    static scan_case c;
    static scan_result got;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    uint64_t seed = 79;
    for (uint32_t round = 0; round < 90; round++) {
        make_case(&c, &seed, TEST_PLAIN);
        c.args.n_silent = 0;
        run_case(&k, &c, &got);
        for (uint32_t column = 0; column < c.args.n; column++) {
            double s[MAX_ROWS];
            for (uint32_t i = 0; i < c.args.n_rows; i++)
                s[i] = c.state[i * c.args.n + column];
            for (uint32_t t = 0; t < c.args.n_tokens; t++) {
                double out = exact_token(&c, t, column, s);
                test_assert_near("out", out, got.out[t * MOE_DELTA_COLUMNS + column], 1e-4, 2e-3);
            }
        }
    }
}

static void bench(void)
{
    enum { STATE = 16, CHANNELS = 8192, TOKENS = 8, REPEATS = 2000 };
    static scan_case c;
    static scan_result r;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    uint64_t seed = 83;
    make_case(&c, &seed, TEST_PLAIN);
    c.args.n_rows = STATE;
    c.args.n = MOE_DELTA_COLUMNS;
    c.args.n_tokens = TOKENS;
    c.args.n_silent = 0;
    for (uint32_t l = 0; l < n_levels; l++) {
        moe_vector_kernels k;
        moe_vector_kernels_init(&k, levels[l].features);
        run_case(&k, &c, &r);
        c.args.state = r.state;
        c.args.out = r.out;
        uint64_t begin = test_cpu_ns();
        for (uint32_t repeat = 0; repeat < REPEATS; repeat++)
            k.scan_columns(&c.args);
        double ns = (double)(test_cpu_ns() - begin) / (REPEATS * TOKENS);
        printf("%-10s %8.0f ns a token and block of %u x %u; %u channels: %.1f us\n",
               levels[l].name, ns, STATE, MOE_DELTA_COLUMNS, CHANNELS,
               ns * CHANNELS / MOE_DELTA_COLUMNS / 1000.0);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scan_of_every_level),
        cmocka_unit_test(tokens_one_by_one),
        cmocka_unit_test(reference_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
