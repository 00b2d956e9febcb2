/* SPDX-License-Identifier: MIT */
/* The short convolution and the rules of states: every instruction set against the reference bit
 * by bit, the reference against double precision, and tokens taken together against tokens taken
 * one by one. With --bench: time of a token. */
#include "state_rules.h"

#define MAX_TOKENS STATE_RULES_TOKENS
#define ROUNDS     300

typedef enum rule_kind { RULE_DELTA, RULE_CHANNELS, RULE_SPACE, RULES } rule_kind;

typedef struct delta_case {
    moe_delta_args args;
    rule_kind rule;
    float q[MAX_TOKENS][MOE_DELTA_MAX_KEY_DIM], k[MAX_TOKENS][MOE_DELTA_MAX_KEY_DIM];
    float v[MAX_TOKENS][MOE_DELTA_COLUMNS];
    float decay[MAX_TOKENS * MOE_DELTA_MAX_KEY_DIM], beta[MAX_TOKENS];
    float state[MOE_DELTA_MAX_KEY_DIM * MOE_DELTA_COLUMNS];
} delta_case;

static delta_case the_case;

static void make_case(delta_case *c, uint64_t *seed, test_kind kind)
{
    c->rule = (rule_kind)test_below(seed, RULES);
    c->args = (moe_delta_args){.key_dim = 1 + test_below(seed, MOE_DELTA_MAX_KEY_DIM),
                               .n = 1 + test_below(seed, MOE_DELTA_COLUMNS),
                               .n_tokens = 1 + test_below(seed, MAX_TOKENS),
                               .q = c->q[0],
                               .k = c->k[0],
                               .qk_stride = MOE_DELTA_MAX_KEY_DIM,
                               .v = c->v[0],
                               .v_stride = MOE_DELTA_COLUMNS,
                               .decay = c->decay,
                               .decay_stride = MOE_DELTA_MAX_KEY_DIM,
                               .beta = c->beta,
                               .skip = test_unit(seed),
                               .out_stride = MOE_DELTA_COLUMNS};
    if (test_below(seed, 3) == 0)
        c->args.n = MOE_DELTA_COLUMNS;
    c->args.n_silent = test_below(seed, c->args.n_tokens + 1);
    test_fill(seed, kind, c->q[0], MAX_TOKENS * MOE_DELTA_MAX_KEY_DIM);
    test_fill(seed, kind, c->k[0], MAX_TOKENS * MOE_DELTA_MAX_KEY_DIM);
    test_fill(seed, kind, c->v[0], MAX_TOKENS * MOE_DELTA_COLUMNS);
    test_fill(seed, kind, c->state, MOE_DELTA_MAX_KEY_DIM * MOE_DELTA_COLUMNS);
    for (uint32_t i = 0; i < MAX_TOKENS * MOE_DELTA_MAX_KEY_DIM; i++)
        c->decay[i] = 0.5f + 0.5f * test_unit(seed);
    for (uint32_t t = 0; t < MAX_TOKENS; t++) {
        c->beta[t] = 0.5f + 0.5f * test_unit(seed);
    }
    /* Keys are of length 1, so the state stays in bounds. */
    for (uint32_t t = 0; kind == TEST_PLAIN && t < MAX_TOKENS; t++) {
        float sum = 0.0f;
        for (uint32_t i = 0; i < c->args.key_dim; i++)
            sum += c->k[t][i] * c->k[t][i];
        for (uint32_t i = 0; i < c->args.key_dim; i++)
            c->k[t][i] /= sqrtf(sum);
    }
}

static state_case make_rule_case(uint64_t *seed, test_kind kind)
{
    delta_case *c = &the_case;
    make_case(c, seed, kind);
    return (state_case){.state = c->state,
                        .n_rows = c->args.key_dim,
                        .n = c->args.n,
                        .n_tokens = c->args.n_tokens,
                        .n_silent = c->args.n_silent};
}

static void run_tokens(const moe_vector_kernels *k, uint32_t first, uint32_t n, uint32_t n_silent,
                       float *state, float *out)
{
    const delta_case *c = &the_case;
    moe_delta_args args = c->args;
    args.n_tokens = n;
    args.n_silent = n_silent;
    args.q = c->q[first];
    args.k = c->k[first];
    args.v = c->v[first];
    args.decay += c->rule == RULE_CHANNELS ? first * args.decay_stride : first;
    args.beta += first;
    args.state = state;
    args.out = out;
    (c->rule == RULE_DELTA      ? k->delta_columns
     : c->rule == RULE_CHANNELS ? k->channel_columns
                                : k->space_columns)(&args);
}

/* A column of the case as the models define it, in double precision: the output of token t. */
static double exact_token(uint32_t t, uint32_t column, double *s)
{
    const delta_case *c = &the_case;
    double memory = 0.0, out = c->rule == RULE_SPACE ? c->args.skip * c->v[t][column] : 0.0;
    for (uint32_t i = 0; i < c->args.key_dim; i++) {
        s[i] *= c->decay[c->rule == RULE_CHANNELS ? t * c->args.decay_stride + i : t];
        memory += c->rule == RULE_SPACE ? 0.0 : s[i] * c->k[t][i];
    }
    for (uint32_t i = 0; i < c->args.key_dim; i++) {
        s[i] += c->k[t][i] * (c->v[t][column] - memory) * c->beta[t];
        out += s[i] * c->q[t][i];
    }
    return out;
}

static const state_rule delta = {
    .make = make_rule_case, .run = run_tokens, .exact = exact_token, .tolerance = 1e-3};

static void delta_of_every_level(void **state)
{
    (void)state;
    state_rule_test_levels(&delta, 41, ROUNDS);
}

static void tokens_one_by_one(void **state)
{
    (void)state;
    state_rule_test_one_by_one(&delta, 43, 50);
}

static void reference_is_right(void **state)
{
    (void)state;
    state_rule_test_reference(&delta, 47, 90);
}

static void convolution(void **state)
{
    (void)state;
    enum { N = 300 };
    static float x[MOE_DELTA_MAX_TAPS][N], w[MOE_DELTA_MAX_TAPS * N], b[N],
        y[2][N + STATE_RULES_GUARD];
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    uint64_t seed = 53;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t n = test_below(&seed, N + 1), n_taps = 1 + test_below(&seed, MOE_DELTA_MAX_TAPS);
        const float *taps[MOE_DELTA_MAX_TAPS];
        const float *bias = test_below(&seed, 2) == 0 ? b : NULL;
        bool silu = test_below(&seed, 2) == 0;
        test_fill(&seed, TEST_PLAIN, b, N);
        for (uint32_t t = 0; t < MOE_DELTA_MAX_TAPS; t++)
            taps[t] = x[(t + round) % MOE_DELTA_MAX_TAPS];
        test_fill(&seed, (test_kind)(round % TEST_KINDS), x[0], MOE_DELTA_MAX_TAPS * N);
        test_fill(&seed, TEST_PLAIN, w, MOE_DELTA_MAX_TAPS * N);
        for (uint32_t l = 0; l < n_levels; l++) {
            moe_vector_kernels k;
            moe_vector_kernels_init(&k, levels[l].features);
            memset(y[l > 0], 0x55, sizeof y[0]);
            moe_conv_args args = {.taps = taps,
                                  .weights = w,
                                  .bias = bias,
                                  .n_taps = n_taps,
                                  .n = n,
                                  .silu = silu,
                                  .y = y[l > 0]};
            k.convolve(&args);
            if (l > 0)
                test_assert_same("convolve", levels[l].name, y[0], y[1], n + STATE_RULES_GUARD);
        }
        for (uint32_t i = 0; i < n && round % TEST_KINDS == TEST_PLAIN; i++) {
            double c = bias != NULL ? bias[i] : 0.0;
            for (uint32_t t = 0; t < n_taps; t++)
                c += (double)w[t * n + i] * taps[t][i];
            test_assert_near("convolve", silu ? c / (1.0 + exp(-c)) : c, y[0][i], 1e-5, 1e-4);
        }
    }
}

static void softplus(void **state)
{
    (void)state;
    for (float x = -100.0f; x < 100.0f; x += 0.0137f)
        test_assert_near("softplus", x > 30.0f ? (double)x : log1p(exp((double)x)), moe_softplus(x),
                         3e-7, 2e-38);
    assert_true(isnan(moe_softplus(NAN)));
    assert_true(moe_softplus(-INFINITY) == 0.0f);
    assert_true(moe_softplus(INFINITY) == INFINITY);
}

static void decays_of_rows(void **state)
{
    (void)state;
    enum { N = 70 };
    static float f[N], bias[N], y[2][N + STATE_RULES_GUARD];
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    uint64_t seed = 61;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t n = test_below(&seed, N + 1);
        float rate = -8.0f * (float)fabs((double)test_unit(&seed));
        test_fill(&seed, (test_kind)(round % TEST_KINDS), f, N);
        test_fill(&seed, TEST_PLAIN, bias, N);
        for (uint32_t i = 0; i < N && round % 2 == 0; i++)
            f[i] *= 30.0f;
        for (uint32_t l = 0; l < n_levels; l++) {
            moe_vector_kernels k;
            moe_vector_kernels_init(&k, levels[l].features);
            memset(y[l > 0], 0x55, sizeof y[0]);
            k.row_decays(f, bias, rate, y[l > 0], n);
            if (l > 0)
                test_assert_same("row_decays", levels[l].name, y[0], y[1], n + STATE_RULES_GUARD);
        }
        for (uint32_t i = 0; i < n && round % TEST_KINDS == TEST_PLAIN; i++) {
            double x = f[i] + bias[i];
            double softplus = x > 30.0 ? x : log1p(exp(x));
            test_assert_near("row_decays", exp(rate * softplus), y[0][i], 2e-5, 1e-37);
        }
    }
}

static void bounded_decays(void **state)
{
    (void)state;
    enum { N = 70 };
    static float f[N], bias[N], y[2][N + STATE_RULES_GUARD];
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    uint64_t seed = 62;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t n = test_below(&seed, N + 1);
        float rate = 8.0f * (float)fabs((double)test_unit(&seed));
        float bound = -8.0f * (float)fabs((double)test_unit(&seed));
        test_fill(&seed, (test_kind)(round % TEST_KINDS), f, N);
        test_fill(&seed, TEST_PLAIN, bias, N);
        for (uint32_t l = 0; l < n_levels; l++) {
            moe_vector_kernels k;
            moe_vector_kernels_init(&k, levels[l].features);
            memset(y[l > 0], 0x55, sizeof y[0]);
            k.bounded_decays(f, bias, rate, bound, y[l > 0], n);
            if (l > 0)
                test_assert_same("bounded_decays", levels[l].name, y[0], y[1],
                                 n + STATE_RULES_GUARD);
        }
        for (uint32_t i = 0; i < n && round % TEST_KINDS == TEST_PLAIN; i++) {
            double x = (double)f[i] + bias[i];
            test_assert_near("bounded_decays", exp(bound / (1.0 + exp(-rate * x))), y[0][i], 2e-5,
                             1e-37);
        }
    }
}

static void bench(void)
{
    enum { DIM = 128, HEADS = 32, TOKENS = 8, REPEATS = 200 };
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    uint64_t seed = 59;
    make_case(&the_case, &seed, TEST_PLAIN);
    the_case.args.key_dim = DIM;
    the_case.args.n = MOE_DELTA_COLUMNS;
    for (uint32_t i = 0; i < n_levels * RULES; i++) {
        static state_result r;
        static const char *const names[RULES] = {"delta", "channels", "space"};
        uint32_t l = i / RULES;
        moe_vector_kernels k;
        moe_vector_kernels_init(&k, levels[l].features);
        the_case.rule = (rule_kind)(i % RULES);
        memcpy(r.state, the_case.state, sizeof the_case.state);
        uint64_t begin = test_cpu_ns();
        for (uint32_t repeat = 0; repeat < REPEATS; repeat++)
            run_tokens(&k, 0, TOKENS, 0, r.state, r.out);
        double ns = (double)(test_cpu_ns() - begin) / (REPEATS * TOKENS);
        printf("%-10s %-8s %8.0f ns a token and block of %u x %u; %u heads of %u: %.1f us\n",
               levels[l].name, names[the_case.rule], ns, DIM, MOE_DELTA_COLUMNS, HEADS, DIM,
               ns * HEADS * DIM / MOE_DELTA_COLUMNS / 1000.0);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delta_of_every_level),
        cmocka_unit_test(tokens_one_by_one),
        cmocka_unit_test(reference_is_right),
        cmocka_unit_test(convolution),
        cmocka_unit_test(softplus),
        cmocka_unit_test(decays_of_rows),
        cmocka_unit_test(bounded_decays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
