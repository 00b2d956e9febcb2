/* SPDX-License-Identifier: MIT */
#include "state_rules.h"

static void begin_result(const state_case *c, state_result *r)
{
    memset(r, 0x55, sizeof *r);
    memcpy(r->state, c->state, (size_t)c->n_rows * c->n * sizeof(float));
}

static void assert_same_results(const char *level, const state_case *c, const state_result *a,
                                const state_result *b)
{
    uint32_t n_out = (c->n_tokens - c->n_silent) * MOE_DELTA_COLUMNS;
    test_assert_same("state", level, a->state, b->state, c->n_rows * c->n + STATE_RULES_GUARD);
    test_assert_same("out", level, a->out, b->out, n_out + STATE_RULES_GUARD);
}

void state_rule_run(const state_rule *rule, const moe_vector_kernels *k, const state_case *c,
                    state_result *r)
{
    begin_result(c, r);
    rule->run(k, 0, c->n_tokens, c->n_silent, r->state, r->out);
}

void state_rule_test_levels(const state_rule *rule, uint64_t seed, uint32_t rounds)
{
    static state_result expected, got;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    for (uint32_t round = 0; round < rounds; round++) {
        state_case c = rule->make(&seed, (test_kind)(round % TEST_KINDS));
        for (uint32_t l = 0; l < n_levels; l++) {
            moe_vector_kernels k;
            moe_vector_kernels_init(&k, levels[l].features);
            state_rule_run(rule, &k, &c, l == 0 ? &expected : &got);
            if (l > 0)
                assert_same_results(levels[l].name, &c, &expected, &got);
        }
    }
}

void state_rule_test_one_by_one(const state_rule *rule, uint64_t seed, uint32_t rounds)
{
    static state_result expected, got;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, moe_cpu_features());
    for (uint32_t round = 0; round < rounds; round++) {
        state_case c = rule->make(&seed, TEST_PLAIN);
        state_rule_run(rule, &k, &c, &expected);
        begin_result(&c, &got);
        for (uint32_t t = 0; t < c.n_tokens; t++) {
            bool silent = t < c.n_silent;
            float *out = got.out + (silent ? 0 : t - c.n_silent) * MOE_DELTA_COLUMNS;
            rule->run(&k, t, 1, silent, got.state, out);
        }
        assert_same_results("one by one", &c, &expected, &got);
    }
}

void state_rule_test_reference(const state_rule *rule, uint64_t seed, uint32_t rounds)
{
    static state_result got;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    for (uint32_t round = 0; round < rounds; round++) {
        state_case c = rule->make(&seed, TEST_PLAIN);
        c.n_silent = 0;
        state_rule_run(rule, &k, &c, &got);
        for (uint32_t column = 0; column < c.n; column++) {
            double s[MOE_DELTA_MAX_KEY_DIM];
            for (uint32_t i = 0; i < c.n_rows; i++)
                s[i] = c.state[i * c.n + column];
            for (uint32_t t = 0; t < c.n_tokens; t++) {
                double out = rule->exact(t, column, s);
                test_assert_near("out", out, got.out[t * MOE_DELTA_COLUMNS + column], 1e-4,
                                 rule->tolerance);
            }
        }
    }
}
