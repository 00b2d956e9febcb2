/* SPDX-License-Identifier: MIT */
/* The selective scan: every instruction set against the reference bit by bit, the reference against
 * double precision, and tokens taken together against tokens taken one by one. With --bench: time
 * of a token. */
#include "state_rules.h"

#define MAX_TOKENS STATE_RULES_TOKENS
#define MAX_ROWS   40

typedef struct scan_case {
    moe_scan_args args;
    float q[MAX_TOKENS * MAX_ROWS], k[MAX_TOKENS * MAX_ROWS];
    float v[MAX_TOKENS][MOE_DELTA_COLUMNS], dt[MAX_TOKENS][MOE_DELTA_COLUMNS];
    float dt_bias[MOE_DELTA_COLUMNS], skip[MOE_DELTA_COLUMNS];
    float rate[MAX_ROWS * MOE_DELTA_COLUMNS], state[MAX_ROWS * MOE_DELTA_COLUMNS];
} scan_case;

static scan_case the_case;

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

static state_case make_rule_case(uint64_t *seed, test_kind kind)
{
    scan_case *c = &the_case;
    make_case(c, seed, kind);
    return (state_case){.state = c->state,
                        .n_rows = c->args.n_rows,
                        .n = c->args.n,
                        .n_tokens = c->args.n_tokens,
                        .n_silent = c->args.n_silent};
}

static void run_tokens(const moe_vector_kernels *k, uint32_t first, uint32_t n, uint32_t n_silent,
                       float *state, float *out)
{
    const scan_case *c = &the_case;
    moe_scan_args args = c->args;
    args.n_tokens = n;
    args.n_silent = n_silent;
    args.q += first * args.n_rows;
    args.k += first * args.n_rows;
    args.v = c->v[first];
    args.dt = c->dt[first];
    args.state = state;
    args.out = out;
    k->scan_columns(&args);
}

/* A channel of the case as Mamba defines it, in double precision: the output of token t. */
static double exact_token(uint32_t t, uint32_t column, double *s)
{
    const scan_case *c = &the_case;
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

static const state_rule scan = {
    .make = make_rule_case, .run = run_tokens, .exact = exact_token, .tolerance = 2e-3};

static void scan_of_every_level(void **state)
{
    (void)state;
    state_rule_test_levels(&scan, 71, 300);
}

static void tokens_one_by_one(void **state)
{
    (void)state;
    state_rule_test_one_by_one(&scan, 73, 50);
}

static void reference_is_right(void **state)
{
    (void)state;
    state_rule_test_reference(&scan, 79, 90);
}

static void bench(void)
{
    enum { STATE = 16, CHANNELS = 8192, TOKENS = 8, REPEATS = 2000 };
    static state_result r;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    uint64_t seed = 83;
    make_case(&the_case, &seed, TEST_PLAIN);
    the_case.args.n_rows = STATE;
    the_case.args.n = MOE_DELTA_COLUMNS;
    memcpy(r.state, the_case.state, sizeof the_case.state);
    for (uint32_t l = 0; l < n_levels; l++) {
        moe_vector_kernels k;
        moe_vector_kernels_init(&k, levels[l].features);
        uint64_t begin = test_cpu_ns();
        for (uint32_t repeat = 0; repeat < REPEATS; repeat++)
            run_tokens(&k, 0, TOKENS, 0, r.state, r.out);
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
