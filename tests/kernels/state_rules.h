/* SPDX-License-Identifier: MIT */
/* What the tests of rules that carry a state from token to token share: every instruction set
 * against the reference bit by bit, tokens taken together against tokens taken one by one, and the
 * reference against double precision. */
#ifndef MOE_TEST_STATE_RULES_H
#define MOE_TEST_STATE_RULES_H

#include "cpu/kernels/delta_rule.h"
#include "vector_test_util.h"

#define STATE_RULES_GUARD  16u /* values behind each array, which no rule may write */
#define STATE_RULES_TOKENS 9u

typedef struct state_result {
    float state[MOE_DELTA_MAX_KEY_DIM * MOE_DELTA_COLUMNS + STATE_RULES_GUARD];
    float out[STATE_RULES_TOKENS * MOE_DELTA_COLUMNS + STATE_RULES_GUARD];
} state_result;

typedef struct state_case {
    const float *state; /* [n_rows][n] before the first token */
    uint32_t n_rows;    /* up to MOE_DELTA_MAX_KEY_DIM */
    uint32_t n;         /* columns: 1..MOE_DELTA_COLUMNS */
    uint32_t n_tokens;
    uint32_t n_silent; /* of the first tokens, which have no output */
} state_case;

/* A rule under test. The test's own case stays with it between the calls. */
typedef struct state_rule {
    const char *name;
    state_case (*make)(uint64_t *seed, test_kind kind);
    /* Takes n tokens from number first on, n_silent of them silent; writes state and out in place.
     */
    void (*run)(const moe_vector_kernels *k, uint32_t first, uint32_t n, uint32_t n_silent,
                float *state, float *out);
    /* The rule in double precision: the output of token t in a column whose state is s [n_rows]. */
    double (*exact)(uint32_t t, uint32_t column, double *s);
    double tolerance; /* of outputs, absolute */
} state_rule;

/* Fills the result with a pattern, sets its state to the case's and takes all tokens. */
void state_rule_run(const state_rule *rule, const moe_vector_kernels *k, const state_case *c,
                    state_result *r);

void state_rule_test_levels(const state_rule *rule, uint64_t seed, uint32_t rounds);

void state_rule_test_one_by_one(const state_rule *rule, uint64_t seed, uint32_t rounds);

void state_rule_test_reference(const state_rule *rule, uint64_t seed, uint32_t rounds);

#endif
