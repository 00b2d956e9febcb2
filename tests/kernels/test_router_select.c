/* SPDX-License-Identifier: MIT */
/* Expert selection against a naive full sort in double, every gate, with ties, groups and bias. */
#include "vector_test_util.h"

typedef struct ranked {
    double value;
    uint32_t id;
} ranked;

static int descending(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->value != y->value)
        return x->value < y->value ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Keeps the members of the best groups, moves the rest to -infinity. */
static void naive_groups(const moe_router_gate *gate, double *ranking)
{
    uint32_t size = gate->n_expert / gate->n_group;
    ranked groups[MOE_ROUTER_MAX_EXPERTS];
    for (uint32_t g = 0; g < gate->n_group; g++) {
        ranked members[MOE_ROUTER_MAX_EXPERTS];
        for (uint32_t i = 0; i < size; i++)
            members[i] = (ranked){ranking[g * size + i], i};
        qsort(members, size, sizeof(ranked), descending);
        groups[g] = (ranked){members[0].value, g};
        if (gate->group_score == MOE_ROUTER_GROUP_TOP2_SUM && size > 1)
            groups[g].value = (float)(members[0].value + members[1].value);
    }
    qsort(groups, gate->n_group, sizeof(ranked), descending);
    for (uint32_t g = gate->n_group_used; g < gate->n_group; g++)
        for (uint32_t i = 0; i < size; i++)
            ranking[groups[g].id * size + i] = -INFINITY;
}

/* The weights of SPARSE_MIXER for the ids that were taken. */
static void naive_mixer(const moe_router_gate *gate, const float *logits, const uint32_t *ids,
                        double *weights)
{
    bool taken[MOE_ROUTER_MAX_EXPERTS] = {false};
    for (uint32_t i = 0; i < gate->n_expert_used; i++) {
        float best = logits[ids[i]];
        double sum = 0;
        for (uint32_t e = 0; e < gate->n_expert; e++) {
            float against = fmaxf(fabsf(logits[e]), best);
            if (!taken[e] && !((best - logits[e]) / against > 0.02f))
                sum += exp((double)logits[e] - best);
        }
        weights[i] = gate->scale / sum;
        taken[ids[i]] = true;
    }
}

/* ids by the probabilities p that the kernel reported (rounding decides near ties); the weights
 * from the logits in double. */
static void naive_select(const moe_router_gate *gate, const float *logits, const float *bias,
                         const float *p, uint32_t *ids, double *weights)
{
    double ranking[MOE_ROUTER_MAX_EXPERTS];
    ranked order[MOE_ROUTER_MAX_EXPERTS];
    bool mixes = gate->kind == MOE_ROUTER_SPARSE_MIXER;
    bool over_selected = gate->kind == MOE_ROUTER_SOFTMAX_SELECTED || mixes;
    for (uint32_t e = 0; e < gate->n_expert; e++)
        ranking[e] = (over_selected ? logits[e] : p[e]) + (bias != NULL ? bias[e] : 0.0f);
    if (gate->n_group > 1)
        naive_groups(gate, ranking);
    for (uint32_t e = 0; e < gate->n_expert; e++)
        order[e] = (ranked){ranking[e], e};
    qsort(order, gate->n_expert, sizeof(ranked), descending);
    double max = -INFINITY, total = 0, sum = 0;
    for (uint32_t e = 0; e < gate->n_expert; e++)
        max = fmax(max, logits[e]);
    for (uint32_t e = 0; e < gate->n_expert; e++)
        total += exp(logits[e] - max);
    for (uint32_t i = 0; i < gate->n_expert_used; i++) {
        ids[i] = gate->given ? ids[i] : order[i].id;
        double x = logits[ids[i]];
        weights[i] = gate->kind == MOE_ROUTER_SIGMOID         ? 1 / (1 + exp(-x))
                     : gate->kind == MOE_ROUTER_SQRT_SOFTPLUS ? sqrt(x > 30 ? x : log1p(exp(x)))
                     : over_selected                          ? exp(x - max)
                                                              : exp(x - max) / total;
        sum += weights[i];
    }
    for (uint32_t i = 0; i < gate->n_expert_used; i++) {
        if (over_selected || gate->renormalise)
            weights[i] /= sum;
        weights[i] *= gate->scale;
    }
    if (mixes)
        naive_mixer(gate, logits, ids, weights);
    for (uint32_t i = 0; gate->expert_scales != NULL && i < gate->n_expert_used; i++)
        weights[i] *= gate->expert_scales[ids[i]];
}

static moe_router_gate random_gate(uint64_t *seed)
{
    static const moe_router_kind kinds[] = {MOE_ROUTER_SOFTMAX, MOE_ROUTER_SIGMOID,
                                            MOE_ROUTER_SOFTMAX_SELECTED, MOE_ROUTER_SPARSE_MIXER,
                                            MOE_ROUTER_SQRT_SOFTPLUS};
    static const uint32_t sizes[] = {1, 2, 8, 17, 64, 128, 160, 256, 512, 1024};
    moe_router_gate gate = {
        .kind = kinds[test_below(seed, 5)],
        .n_expert = sizes[test_below(seed, 10)],
        .n_group = 1,
        .group_score = test_below(seed, 2),
        .renormalise = test_below(seed, 2) != 0,
        .scale = test_below(seed, 2) != 0 ? 1.0f : 2.5f,
    };
    if (gate.n_expert % 8 == 0 && test_below(seed, 2) != 0)
        gate.n_group = 1u << (1 + test_below(seed, 3));
    gate.n_group_used = 1 + test_below(seed, gate.n_group);
    uint32_t eligible = gate.n_expert / gate.n_group * gate.n_group_used;
    gate.n_expert_used = 1 + test_below(seed, eligible < 64 ? eligible : 64);
    return gate;
}

static void every_gate_agrees_with_a_full_sort(void **state)
{
    (void)state;
    static float logits[MOE_ROUTER_MAX_EXPERTS], bias[MOE_ROUTER_MAX_EXPERTS];
    static float scales[MOE_ROUTER_MAX_EXPERTS];
    static float probs[MOE_ROUTER_MAX_EXPERTS], reference_probs[MOE_ROUTER_MAX_EXPERTS];
    uint64_t seed = 2718281828u;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    double worst = 0;
    for (uint32_t round = 0; round < 6000; round++) {
        moe_vector_kernels k;
        moe_router_gate gate = random_gate(&seed);
        bool ties = round % 3 == 0;
        for (uint32_t e = 0; e < gate.n_expert; e++) {
            logits[e] = ties ? (float)test_below(&seed, 4) : 6.0f * test_unit(&seed);
            scales[e] = 0.5f + 0.5f * test_unit(&seed) * test_unit(&seed);
            bias[e] = ties ? 0.5f * (float)test_below(&seed, 3) : 0.3f * test_unit(&seed);
        }
        bool mixes = gate.kind == MOE_ROUTER_SPARSE_MIXER;
        const float *with_bias = !mixes && test_below(&seed, 2) != 0 ? bias : NULL;
        if (test_below(&seed, 4) == 0)
            gate.expert_scales = scales;
        uint32_t ids[64], naive_ids[64], quiet_ids[64];
        float weights[64], quiet_weights[64], reference_weights[64];
        double naive_weights[64];
        gate.given = !mixes && test_below(&seed, 4) == 0;
        for (uint32_t i = 0; i < gate.n_expert_used; i++)
            ids[i] = naive_ids[i] = quiet_ids[i] = (7 * i + round) % gate.n_expert;
        moe_router_select_c(&gate, logits, with_bias, ids, reference_weights, reference_probs);
        moe_vector_kernels_init(&k, levels[round % n_levels].features);
        k.router_select(&gate, logits, with_bias, ids, weights, probs);
        k.router_select(&gate, logits, with_bias, quiet_ids, quiet_weights, NULL);
        naive_select(&gate, logits, with_bias, probs, naive_ids, naive_weights);
        assert_memory_equal(probs, reference_probs, gate.n_expert * sizeof(float));
        assert_memory_equal(weights, reference_weights, gate.n_expert_used * sizeof(float));
        assert_memory_equal(weights, quiet_weights, gate.n_expert_used * sizeof(float));
        for (uint32_t i = 0; i < gate.n_expert_used; i++) {
            assert_int_equal(ids[i], naive_ids[i]);
            assert_int_equal(ids[i], quiet_ids[i]);
            double error = fabs((double)weights[i] - naive_weights[i]);
            worst = fmax(worst, error);
            /* Rounding the difference of two logits to float costs 5e-7 of p by itself. */
            assert_true(error <= 1e-6 * gate.scale && error <= 2e-6 * naive_weights[i]);
        }
    }
    print_message("weights: greatest error %.2g\n", worst);
}

static void damaged_logits_still_give_distinct_ids(void **state)
{
    (void)state;
    uint64_t seed = 6;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, moe_cpu_features());
    for (uint32_t round = 0; round < 2000; round++) {
        float logits[MOE_ROUTER_MAX_EXPERTS], weights[64];
        uint32_t ids[64];
        bool seen[MOE_ROUTER_MAX_EXPERTS] = {false};
        moe_router_gate gate = random_gate(&seed);
        test_fill(&seed, TEST_WILD, logits, gate.n_expert);
        k.router_select(&gate, logits, NULL, ids, weights, NULL);
        for (uint32_t i = 0; i < gate.n_expert_used; i++) {
            assert_true(ids[i] < gate.n_expert && !seen[ids[i]]);
            seen[ids[i]] = true;
        }
    }
}

/* Sigmoids that all vanish must not become NaN by renormalisation. */
static void vanishing_sum_stays_zero(void **state)
{
    (void)state;
    float logits[4] = {-1000, -1000, -1000, -1000}, weights[2];
    uint32_t ids[2];
    moe_router_gate gate = {.kind = MOE_ROUTER_SIGMOID,
                            .n_expert = 4,
                            .n_expert_used = 2,
                            .renormalise = true,
                            .scale = 2.5f};
    moe_router_select_c(&gate, logits, NULL, ids, weights, NULL);
    assert_true(ids[0] == 0 && ids[1] == 1 && weights[0] == 0.0f && weights[1] == 0.0f);
}

static int run_benches(void)
{
    static const uint32_t shapes[][4] = {{64, 8, 1, 1}, {128, 8, 1, 1}, {256, 8, 8, 4}};
    uint64_t seed = 1;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    for (uint32_t s = 0; s < 3; s++) {
        moe_router_gate gate = {.kind = s == 2 ? MOE_ROUTER_SIGMOID : MOE_ROUTER_SOFTMAX,
                                .n_expert = shapes[s][0],
                                .n_expert_used = shapes[s][1],
                                .n_group = shapes[s][2],
                                .n_group_used = shapes[s][3],
                                .group_score = MOE_ROUTER_GROUP_TOP2_SUM,
                                .renormalise = true,
                                .scale = 1.0f};
        float logits[256], probs[256], weights[8];
        uint32_t ids[8];
        test_fill(&seed, TEST_PLAIN, logits, gate.n_expert);
        printf("router_select %u of %u:", gate.n_expert_used, gate.n_expert);
        for (uint32_t l = 0; l < n_levels; l++) {
            moe_vector_kernels k;
            moe_vector_kernels_init(&k, levels[l].features);
            uint64_t start = test_cpu_ns();
            for (uint32_t i = 0; i < 20000; i++)
                k.router_select(&gate, logits, NULL, ids, weights, probs);
            printf("  %s %.0f ns", levels[l].name, (double)(test_cpu_ns() - start) / 20000);
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
        cmocka_unit_test(every_gate_agrees_with_a_full_sort),
        cmocka_unit_test(damaged_logits_still_give_distinct_ids),
        cmocka_unit_test(vanishing_sum_stays_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
