/* SPDX-License-Identifier: MIT */
/* Rejection sampling is lossless: on small Markov chains the first three tokens that come out of
 * drafts and their verification are distributed as those of plain sampling. The same statistic
 * rejects rules that are wrong on purpose, so it can tell. Seeds are fixed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "chi_square.h"
#include "runtime/draft/accept.h"
#include "tests/test_size.h"

#define N_TOKENS  5u
#define N_EMITTED 3u
#define N_CELLS   (N_TOKENS * N_TOKENS * N_TOKENS)
#define N_SAMPLES 100000u

typedef double table[N_TOKENS][N_TOKENS]; /* [previous][next], rows of any sum */

/* How a node's children come about, and what decides about them. */
typedef enum rule {
    RIGHT,
    ACCEPT_WITH_P,  /* wrong: with p instead of p / q */
    NO_RESIDUAL,    /* wrong: after a rejection, drawn from p */
    AS_REPLACED,    /* wrong: drawn without replacement, judged as if with it */
    UNLIKELY_CUT,   /* wrong: drawn tokens that turn out unlikely are not verified */
    PICKED_AS_DRAWN /* wrong: the likeliest, judged as if drawn */
} rule;

typedef struct process {
    table p, q;
    uint32_t depth, width; /* levels of the tree, children of a node */
    bool picked;           /* the width likeliest of q rather than drawn */
    rule rule;
} process;

/* ---- Models ---- */

static void random_table(table t, moe_random *random, double zeros)
{
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        for (uint32_t k = 0; k < N_TOKENS; k++) {
            double x = moe_random_uniform(random);
            t[i][k] = moe_random_uniform(random) < zeros ? 0.0 : 0.02 + 3.0 * x * x * x;
        }
        t[i][(i * 2 + 1) % N_TOKENS] += 0.2; /* never nothing */
    }
}

/* Whatever one of them may write, the other may not. */
static void disjoint_tables(process *d)
{
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        for (uint32_t k = 0; k < N_TOKENS; k++) {
            d->p[i][k] = (i + k) % 2 == 0 ? 1.0 + k : 0.0;
            d->q[i][k] = (i + k) % 2 == 0 ? 0.0 : 2.0 + i;
        }
    }
}

/* Zeros are left out or kept: both are allowed. */
static moe_distribution distribution(const double *row, moe_choice *choices, bool with_zeros)
{
    moe_distribution d = {0, choices};
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        uint32_t token = (i * 3 + 2) % N_TOKENS; /* not in order */
        if (row[token] > 0.0 || with_zeros) {
            choices[d.n++] = (moe_choice){(int32_t)token, row[token]};
        }
    }
    return d;
}

static double probability(const double *row, int32_t token)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        sum += row[i];
    }
    return row[token] / sum;
}

/* ---- One iteration of speculation ---- */

static uint32_t pick(const double *row, uint32_t n, int32_t *tokens, float *q)
{
    uint32_t found = 0;
    bool used[N_TOKENS] = {false};
    while (found < n) {
        int32_t best = -1;
        for (uint32_t t = 0; t < N_TOKENS; t++) {
            if (!used[t] && row[t] > 0.0 && (best < 0 || row[t] > row[best])) {
                best = (int32_t)t;
            }
        }
        if (best < 0) {
            break;
        }
        used[best] = true;
        q[found] = (float)probability(row, best);
        tokens[found++] = best;
    }
    return found;
}

static void draft(const process *d, moe_token_tree *tree, int32_t root, moe_random *random)
{
    moe_token_tree_reset(tree, root);
    for (uint32_t i = 0; i < tree->n; i++) {
        if (tree->nodes[i].depth == d->depth) {
            break;
        }
        moe_choice choices[N_TOKENS];
        int32_t tokens[N_TOKENS];
        float q[N_TOKENS];
        const double *row = d->q[tree->nodes[i].token];
        moe_distribution from = distribution(row, choices, i % 2 == 0);
        uint32_t n = d->picked ? pick(row, d->width, tokens, q)
                               : moe_distribution_draw_distinct(&from, d->width, random, tokens, q);
        for (uint32_t k = 0; k < n; k++) {
            if (d->rule != UNLIKELY_CUT || q[k] > 0.3f) {
                moe_token_tree_add(tree, i, tokens[k], q[k], 0);
            }
        }
    }
}

static double share(moe_distribution *d, int32_t token, bool forget)
{
    double sum = 0.0, mine = 0.0;
    for (uint32_t i = 0; i < d->n; i++) {
        sum += d->choices[i].p;
        if (d->choices[i].token == token) {
            mine = d->choices[i].p;
            d->choices[i].p = forget ? 0.0 : mine;
        }
    }
    return sum > 0.0 ? mine / sum : 0.0;
}

/* The rounds written out, with one mistake each. */
static uint32_t accept_wrongly(rule mistake, const moe_token_tree *tree, uint32_t node,
                               moe_distribution *p, moe_distribution *q, moe_random *random,
                               int32_t *token)
{
    for (uint32_t c = tree->nodes[node].first_child; c != MOE_NODE_NONE;
         c = tree->nodes[c].next_sibling) {
        int32_t x = tree->nodes[c].token;
        double mine = share(p, x, false);
        double drafted = mistake == ACCEPT_WITH_P ? 1.0 : share(q, x, false);
        if (moe_random_uniform(random) * drafted < mine) {
            return c;
        }
        moe_choice residual[N_TOKENS];
        double left = 0.0;
        for (uint32_t i = 0; i < p->n && mistake != NO_RESIDUAL; i++) {
            int32_t t = p->choices[i].token;
            double r = share(p, t, false) - share(q, t, false);
            residual[i] = (moe_choice){t, r > 0.0 ? r : 0.0};
            left += residual[i].p;
        }
        if (left > 0.0) {
            memcpy(p->choices, residual, p->n * sizeof *residual);
        }
        (void)share(q, x, mistake != AS_REPLACED);
    }
    *token = moe_distribution_draw(p, random);
    return MOE_NODE_NONE;
}

static uint32_t verify(const process *d, const moe_token_tree *tree, moe_random *random,
                       int32_t *emitted)
{
    uint32_t n = 0;
    for (uint32_t node = 0; node != MOE_NODE_NONE;) {
        moe_choice p_choices[N_TOKENS], q_choices[N_TOKENS];
        int32_t previous = tree->nodes[node].token, token = -1;
        moe_distribution p = distribution(d->p[previous], p_choices, node % 2 == 1);
        moe_distribution q = distribution(d->q[previous], q_choices, node % 2 == 0);
        bool own_rule = d->rule == RIGHT || d->rule == UNLIKELY_CUT || d->rule == PICKED_AS_DRAWN;
        moe_distribution *from = d->picked && d->rule == RIGHT ? NULL : &q;
        node = own_rule ? moe_accept_rejection(tree, node, &p, from, random, &token)
                        : accept_wrongly(d->rule, tree, node, &p, &q, random, &token);
        emitted[n++] = node != MOE_NODE_NONE ? tree->nodes[node].token : token;
    }
    return n;
}

/* ---- The statistic ---- */

static chi_square measure(const process *d, uint64_t seed)
{
    static uint32_t seen[N_CELLS];
    static double expected[N_CELLS];
    memset(seen, 0, sizeof seen);
    moe_random random, drafts;
    moe_random_seed(&random, seed);
    moe_random_seed(&drafts, seed + 1000);
    moe_token_tree tree;
    assert_int_equal(moe_token_tree_init(&tree, 64, NULL), MOE_OK);
    for (uint32_t i = 0; i < N_SAMPLES; i++) {
        int32_t tokens[N_EMITTED + 8] = {0};
        uint32_t n = 0;
        while (n < N_EMITTED) {
            draft(d, &tree, n > 0 ? tokens[n - 1] : 0, &drafts);
            n += verify(d, &tree, &random, tokens + n);
        }
        seen[((uint32_t)tokens[0] * N_TOKENS + (uint32_t)tokens[1]) * N_TOKENS +
             (uint32_t)tokens[2]]++;
    }
    moe_token_tree_free(&tree);
    for (uint32_t cell = 0; cell < N_CELLS; cell++) {
        int32_t a = (int32_t)(cell / (N_TOKENS * N_TOKENS));
        int32_t b = (int32_t)(cell / N_TOKENS % N_TOKENS);
        expected[cell] = probability(d->p[0], a) * probability(d->p[a], b) *
                         probability(d->p[b], (int32_t)(cell % N_TOKENS));
    }
    return chi_square_one(seen, expected, N_CELLS, N_SAMPLES);
}

static const struct {
    const char *name;
    uint32_t depth, width;
    bool picked;
} shapes[] = {
    {"no draft", 0, 1, false}, {"chain of 1", 1, 1, false}, {"chain of 3", 3, 1, false},
    {"2 drawn", 2, 2, false},  {"3 drawn", 2, 3, false},    {"all drawn", 1, N_TOKENS, false},
    {"1 picked", 2, 1, true},  {"3 picked", 2, 3, true},    {"all picked", 1, N_TOKENS, true}};

#define N_SHAPES (sizeof shapes / sizeof shapes[0])

static process make(uint32_t shape, uint32_t kind)
{
    process d = {.depth = shapes[shape].depth,
                 .width = shapes[shape].width,
                 .picked = shapes[shape].picked,
                 .rule = RIGHT};
    moe_random random;
    moe_random_seed(&random, 17 + kind);
    random_table(d.p, &random, kind == 1 ? 0.4 : 0.0);
    random_table(d.q, &random, kind == 1 ? 0.4 : 0.0);
    if (kind == 2) {
        disjoint_tables(&d);
    } else if (kind == 3) {
        memcpy(d.q, d.p, sizeof d.q); /* the draft is right */
    }
    return d;
}

static void joint_distribution(void **state)
{
    (void)state;
    static const char *const kinds[] = {"dense", "with zeros", "disjoint", "the same"};
    for (uint32_t shape = 0; shape < N_SHAPES; shape++) {
        for (uint32_t kind = 0; kind < 4; kind++) {
            if (test_leaves_out(shape + kind, 4)) {
                continue;
            }
            process d = make(shape, kind);
            chi_square c = measure(&d, 1 + shape * 10 + kind);
            if (!(chi_square_excess(&c) < CHI_SQUARE_LIMIT)) {
                fail_msg("%s, %s: chi-square %.1f of %u", shapes[shape].name, kinds[kind], c.sum,
                         c.freedom);
            }
        }
    }
}

static void wrong_rules_are_seen(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        rule rule;
        uint32_t shape;
        uint32_t kind;
    } wrong[] = {{"p instead of p / q", ACCEPT_WITH_P, 1, 0}, {"likewise", ACCEPT_WITH_P, 4, 0},
                 {"no residual", NO_RESIDUAL, 2, 0},          {"likewise", NO_RESIDUAL, 3, 1},
                 {"replacement", AS_REPLACED, 3, 0},          {"likewise", AS_REPLACED, 4, 0},
                 {"unlikely ones cut", UNLIKELY_CUT, 1, 3},   {"likewise", UNLIKELY_CUT, 2, 0},
                 {"picked as drawn", PICKED_AS_DRAWN, 6, 0},  {"likewise", PICKED_AS_DRAWN, 7, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        if (test_leaves_out((uint32_t)i, 3)) {
            continue;
        }
        process d = make(wrong[i].shape, wrong[i].kind);
        d.rule = wrong[i].rule;
        chi_square c = measure(&d, 500 + i);
        print_message("%s: %.0f standard deviations\n", wrong[i].name, chi_square_excess(&c));
        assert_true(chi_square_excess(&c) > 4 * CHI_SQUARE_LIMIT);
    }
}

/* A drawn candidate is accepted as often as the distributions overlap. */
static void acceptance_rate(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        process d = make(1, kind);
        double overlap = 0.0;
        for (int32_t t = 0; t < (int32_t)N_TOKENS; t++) {
            double p = probability(d.p[0], t), q = probability(d.q[0], t);
            overlap += p < q ? p : q;
        }
        moe_random random, drafts;
        moe_random_seed(&random, kind);
        moe_random_seed(&drafts, 99 + kind);
        moe_token_tree tree;
        assert_int_equal(moe_token_tree_init(&tree, 2, NULL), MOE_OK);
        uint32_t accepted = 0;
        for (uint32_t i = 0; i < N_SAMPLES; i++) {
            int32_t emitted[4];
            draft(&d, &tree, 0, &drafts);
            accepted += verify(&d, &tree, &random, emitted) == 2;
        }
        moe_token_tree_free(&tree);
        double error = sqrt(overlap * (1.0 - overlap) / N_SAMPLES);
        assert_true(fabs((double)accepted / N_SAMPLES - overlap) < 4.5 * error + 1e-9);
    }
}

/* Ordered pairs without replacement, and the q that each is said to have had. */
static void drawn_without_replacement(void **state)
{
    (void)state;
    process d = make(0, 0);
    moe_choice choices[N_TOKENS];
    moe_distribution from = distribution(d.p[1], choices, true);
    uint32_t seen[N_TOKENS * N_TOKENS] = {0};
    double expected[N_TOKENS * N_TOKENS] = {0};
    moe_random random;
    moe_random_seed(&random, 5);
    for (uint32_t i = 0; i < N_SAMPLES; i++) {
        int32_t t[2];
        float q[2];
        assert_int_equal(moe_distribution_draw_distinct(&from, 2, &random, t, q), 2);
        double first = probability(d.p[1], t[0]);
        assert_true(fabs(q[0] - first) < 1e-6);
        assert_true(fabs(q[1] - probability(d.p[1], t[1]) / (1.0 - first)) < 1e-6);
        seen[(uint32_t)t[0] * N_TOKENS + (uint32_t)t[1]]++;
        expected[(uint32_t)t[0] * N_TOKENS + (uint32_t)t[1]] = (double)q[0] * (double)q[1];
    }
    chi_square c = chi_square_one(seen, expected, N_TOKENS * N_TOKENS, N_SAMPLES);
    assert_true(chi_square_excess(&c) < CHI_SQUARE_LIMIT);
    int32_t all[N_TOKENS + 3];
    float q[N_TOKENS + 3];
    assert_int_equal(moe_distribution_draw_distinct(&from, N_TOKENS + 3, &random, all, q),
                     N_TOKENS);
}

/* Both choose i, in exponential races with the same variates: 1 / sum_j max(p_j / p_i, q_j / q_i).
 */
static double same_choice(const double *p, const double *q)
{
    double sum = 0.0;
    for (int32_t i = 0; i < (int32_t)N_TOKENS; i++) {
        double pi = probability(p, i), qi = probability(q, i), worst = 0.0;
        for (int32_t j = 0; j < (int32_t)N_TOKENS && pi > 0.0 && qi > 0.0; j++) {
            worst += fmax(probability(p, j) / pi, probability(q, j) / qi);
        }
        sum += worst > 0.0 ? 1.0 / worst : 0.0;
    }
    return sum;
}

/* A race chooses a token with its probability, another distribution with the same numbers the same
 * token as often as it should, and the order of the choices does not matter. */
static void races(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        process d = make(0, kind);
        uint32_t seen[N_TOKENS] = {0}, n_same = 0;
        double expected[N_TOKENS];
        moe_random random;
        moe_random_seed(&random, 40 + kind);
        for (uint32_t i = 0; i < N_SAMPLES; i++) {
            uint64_t number = moe_random_next(&random);
            moe_choice p_choices[N_TOKENS], q_choices[N_TOKENS], turned[N_TOKENS];
            moe_distribution p = distribution(d.p[1], p_choices, i % 2 == 0);
            moe_distribution q = distribution(d.q[1], q_choices, i % 2 == 0);
            for (uint32_t k = 0; k < p.n; k++) {
                turned[k] = p.choices[p.n - 1 - k];
            }
            int32_t token = moe_distribution_race(&p, number);
            p.choices = turned;
            assert_int_equal(moe_distribution_race(&p, number), token);
            seen[token]++;
            n_same += moe_distribution_race(&q, number) == token;
        }
        for (int32_t t = 0; t < (int32_t)N_TOKENS; t++) {
            expected[t] = probability(d.p[1], t);
        }
        chi_square c = chi_square_one(seen, expected, N_TOKENS, N_SAMPLES);
        assert_true(chi_square_excess(&c) < CHI_SQUARE_LIMIT);
        double same = same_choice(d.p[1], d.q[1]);
        double error = sqrt(same * (1.0 - same) / N_SAMPLES);
        assert_true(fabs((double)n_same / N_SAMPLES - same) < 4.5 * error + 1e-9);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joint_distribution),
        cmocka_unit_test(wrong_rules_are_seen),
        cmocka_unit_test(acceptance_rate),
        cmocka_unit_test(drawn_without_replacement),
        cmocka_unit_test(races),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
