/* SPDX-License-Identifier: MIT */
/* Kernels of rows and elements against the reference C bit by bit: norms, rotary embedding,
 * elementwise operations, softmax, the greatest of rows, routing. The kernels' sources run here as
 * they are, on the host, under the emulation of tests/cuda/emulation. */
#include "cuda/kernels/norm_launch.h"
#include "cuda/kernels/vector_launch.h"
#include "cpu/kernels/delta_rule.h"
#include "tests/kernels/vector_test_util.h"

#define GUARD 0x7fc12345u /* behind every result: nothing may write there */

static const uint32_t lengths[] = {1, 2, 15, 16, 17, 31, 64, 100, 128, 511, 512, 513, 2048, 4097};
#define N_LENGTHS (sizeof(lengths) / sizeof(lengths[0]))
#define MAX_N     4100
#define MAX_ROWS  65

static void set_guard(float *at)
{
    *at = test_float_of(GUARD);
}

static void assert_guard(const char *what, const float *at)
{
    if (test_bits_of(*at) != GUARD)
        fail_msg("%s wrote behind its result", what);
}

static void norms(void **state)
{
    (void)state;
    static float x[MAX_ROWS * 600 + MAX_N], w[MAX_N], expected[MAX_N], got[MAX_ROWS * 600 + MAX_N];
    uint64_t seed = 0x3c6ef372fe94f82bu;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    for (uint32_t i = 0; i < N_LENGTHS * TEST_KINDS * 2; i++) {
        uint32_t n = lengths[i % N_LENGTHS];
        test_kind kind = (test_kind)(i / N_LENGTHS % TEST_KINDS);
        uint32_t n_rows = n > 512 ? 1 + i % 3 : 1 + test_below(&seed, MAX_ROWS);
        size_t stride = n > 512 ? n : n + test_below(&seed, 80);
        if (n_rows * stride > sizeof(x) / sizeof(x[0]) - 1)
            n_rows = 1;
        bool in_place = i & 1;
        test_fill(&seed, kind, x, (uint32_t)(n_rows * stride));
        test_fill(&seed, kind, w, n);
        for (size_t j = 0; j <= n_rows * stride; j++)
            set_guard(&got[j]);
        if (in_place)
            memcpy(got, x, n_rows * stride * sizeof(float));
        moe_cuda_rms_norm(NULL, in_place ? got : x, w, got, n_rows, n, stride, 1e-6f);
        for (uint32_t r = 0; r < n_rows; r++) {
            k.rms_norm(x + r * stride, w, expected, n, 1e-6f);
            test_assert_same("rms_norm", "cuda", expected, got + r * stride, n);
            if (!in_place && stride > n)
                assert_guard("rms_norm", got + r * stride + n);
        }
        assert_guard("rms_norm", got + n_rows * stride);
    }
}

static void rotary_embedding(void **state)
{
    (void)state;
    enum { HEADS = 5, DIM = 200 };
    static float x[MAX_ROWS * HEADS * DIM], expected[MAX_ROWS * HEADS * DIM];
    static float cosines[MAX_ROWS * DIM / 2], sines[MAX_ROWS * DIM / 2];
    uint64_t seed = 0xa54ff53a5f1d36f1u;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    for (uint32_t round = 0; round < 60; round++) {
        uint32_t n_rows = 1 + test_below(&seed, MAX_ROWS);
        uint32_t n_head = 1 + test_below(&seed, HEADS);
        uint32_t n_rot = 2 * (1 + test_below(&seed, DIM / 2));
        moe_rope rope = {.x = x,
                         .row_stride = HEADS * DIM,
                         .head_stride = DIM,
                         .n_head = n_head,
                         .n_rot = n_rot,
                         .interleaved = round & 1,
                         .cos = cosines,
                         .sin = sines};
        test_fill(&seed, (test_kind)(round % TEST_KINDS), x, MAX_ROWS * HEADS * DIM);
        test_fill(&seed, TEST_PLAIN, cosines, n_rows * n_rot / 2);
        test_fill(&seed, TEST_PLAIN, sines, n_rows * n_rot / 2);
        memcpy(expected, x, sizeof(x));
        for (uint32_t r = 0; r < n_rows; r++)
            for (uint32_t h = 0; h < n_head; h++)
                (rope.interleaved ? k.rope_interleaved : k.rope_halves)(
                    expected + r * rope.row_stride + h * rope.head_stride,
                    cosines + r * (n_rot / 2), sines + r * (n_rot / 2), n_rot);
        moe_cuda_rope(NULL, &rope, n_rows);
        test_assert_same("rope", "cuda", expected, x, MAX_ROWS * HEADS * DIM);
    }
}

/* Norm, rotary embedding and storage of heads as one kernel: the bits of the single ones. */
static void heads_stored(void **state)
{
    (void)state;
    enum { HEADS = 3, KV_HEADS = 2, DIM = 160, ROWS = 3, Q = HEADS * DIM, K = KV_HEADS * DIM };
    static float q[2][ROWS * Q], k[2][ROWS * K], v[ROWS * K], w[2][DIM], angles[2][ROWS * DIM / 2];
    static uint8_t pages[2][2][KV_HEADS * 2 * MOE_KV_PAGE * DIM * sizeof(float)];
    uint64_t seed = 0x9b05688c2b3e6c1fu;
    for (uint32_t round = 0; round < 24; round++) {
        uint32_t dim = round % 3 == 2 ? DIM : 32 * (1 + round % 4), n_rot = dim - 2 * (round % 5);
        uint32_t n_rows = 1 + round % ROWS, type = round % 3;
        size_t row_bytes = dim * sizeof(float), part = KV_HEADS * MOE_KV_PAGE * row_bytes;
        moe_kv_layout layout = {.type = type == 0   ? MOE_KV_F32
                                        : type == 1 ? MOE_KV_F16
                                                    : MOE_KV_Q8_0,
                                .n_head_kv = KV_HEADS,
                                .k_dim = dim,
                                .v_dim = dim,
                                .k_row_bytes = row_bytes,
                                .v_row_bytes = row_bytes,
                                .v_offset = part};
        void *tables[2][2] = {{pages[0][0], pages[0][1]}, {pages[1][0], pages[1][1]}};
        moe_cuda_kv_row rows[2][ROWS];
        memset(pages, 0, sizeof pages);
        test_fill(&seed, (test_kind)(round % TEST_KINDS), q[0], ROWS * Q);
        test_fill(&seed, TEST_PLAIN, k[0], ROWS * K);
        test_fill(&seed, TEST_PLAIN, v, ROWS * K);
        test_fill(&seed, TEST_PLAIN, w[0], 2 * DIM);
        test_fill(&seed, TEST_PLAIN, angles[0], ROWS * DIM);
        memcpy(q[1], q[0], sizeof q[0]);
        memcpy(k[1], k[0], sizeof k[0]);
        moe_rope ropes[2][2];
        for (uint32_t i = 0; i < 2; i++) {
            for (uint32_t r = 0; r < n_rows; r++)
                rows[i][r] = (moe_cuda_kv_row){.pages = tables[i], .stored = 62 + r};
            moe_rope of_q = {q[i], HEADS * dim, dim, HEADS, n_rot, round & 1, angles[0], angles[1]};
            ropes[i][0] = ropes[i][1] = of_q;
            ropes[i][1].x = k[i];
            ropes[i][1].row_stride = KV_HEADS * dim;
            ropes[i][1].n_head = KV_HEADS;
        }
        bool norms = round % 4 != 3;
        moe_cuda_heads heads = {.weights = {norms ? w[0] : NULL, norms ? w[1] : NULL},
                                .eps = 1e-6f,
                                .q = ropes[1][0],
                                .k = ropes[1][1],
                                .dim = dim,
                                .layout = layout,
                                .rows = rows[1],
                                .v = v,
                                .v_stride = KV_HEADS * dim,
                                .n_rows = n_rows};
        moe_cuda_rms_norm(NULL, q[0], w[0], q[0], norms ? n_rows * HEADS : 0, dim, dim, 1e-6f);
        moe_cuda_rms_norm(NULL, k[0], w[1], k[0], norms ? n_rows * KV_HEADS : 0, dim, dim, 1e-6f);
        moe_cuda_rope(NULL, &ropes[0][0], n_rows);
        moe_cuda_rope(NULL, &ropes[0][1], n_rows);
        moe_cuda_kv_store(NULL, &layout, rows[0], n_rows, k[0], KV_HEADS * dim, v, KV_HEADS * dim);
        moe_cuda_heads_store(NULL, &heads);
        test_assert_same("heads_store", "cuda", q[0], q[1], ROWS * Q);
        test_assert_same("heads_store", "cuda", k[0], k[1], ROWS * K);
        assert_memory_equal(pages[1], pages[0], sizeof pages[0]);
    }
}

static void elements(void **state)
{
    (void)state;
    static float a[MAX_N + 1], b[MAX_N + 1], expected[MAX_N + 1], got[MAX_N + 1];
    uint64_t seed = 0x510e527fade682d1u;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    for (uint32_t i = 0; i < N_LENGTHS * TEST_KINDS; i++) {
        uint32_t n = lengths[i % N_LENGTHS];
        test_kind kind = (test_kind)(i / N_LENGTHS);
        float factor = test_value(&seed, TEST_PLAIN);
        test_fill(&seed, kind, a, n);
        test_fill(&seed, kind, b, n);
        set_guard(&got[n]);
        moe_cuda_add(NULL, a, b, got, n);
        k.add(a, b, expected, n);
        test_assert_same("add", "cuda", expected, got, n);
        memcpy(got, a, n * sizeof(float));
        memcpy(expected, a, n * sizeof(float));
        moe_cuda_soft_cap(NULL, fabsf(factor) + 0.5f, got, n);
        k.soft_cap(fabsf(factor) + 0.5f, expected, n);
        test_assert_same("soft_cap", "cuda", expected, got, n);
        memcpy(got, a, n * sizeof(float));
        memcpy(expected, a, n * sizeof(float));
        moe_cuda_clamp(NULL, fabsf(factor), got, n);
        k.clamp(fabsf(factor), expected, n);
        test_assert_same("clamp", "cuda", expected, got, n);
        moe_cuda_scale(NULL, factor, got, n);
        k.scale(factor, expected, n);
        test_assert_same("scale", "cuda", expected, got, n);
        assert_guard("an elementwise operation", &got[n]);
    }
}

static void activate_row(const moe_vector_kernels *k, const moe_activation *a, const float *g,
                         const float *u, float *y, uint32_t n)
{
    switch (a->kind) {
    case MOE_ACTIVATION_SILU:
        k->silu_mul(g, u, y, n);
        break;
    case MOE_ACTIVATION_SWIGLU_CLAMPED:
        k->swiglu_clamped(g, u, y, n, a->alpha, a->limit);
        break;
    case MOE_ACTIVATION_SILU_LIMITED:
        k->silu_limited(g, u, y, n, a->limit);
        break;
    case MOE_ACTIVATION_SILU_CLAMPED:
        k->silu_clamped(g, u, y, n, a->limit);
        break;
    case MOE_ACTIVATION_GELU:
        k->gelu_mul(g, u, y, n);
        break;
    case MOE_ACTIVATION_RELU:
        k->relu_mul(g, u, y, n);
        break;
    case MOE_ACTIVATION_SITU:
        k->situ_mul(g, u, y, n, a->alpha, a->limit);
        break;
    }
}

static void activations(void **state)
{
    (void)state;
    enum { ROWS = 3, KINDS = MOE_ACTIVATION_SITU + 1 };
    static float g[ROWS * MAX_N], u[ROWS * MAX_N], expected[ROWS * MAX_N], got[ROWS * MAX_N + 1];
    static float scales[ROWS] = {0.5f, 1.0f, -2.25f}; /* device memory is not constant */
    uint64_t seed = 0x1f83d9abfb41bd6bu;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    for (uint32_t i = 0; i < N_LENGTHS * TEST_KINDS * KINDS; i++) {
        uint32_t n = lengths[i % N_LENGTHS];
        moe_activation activation = {(moe_activation_kind)(i % KINDS), 1.702f,
                                     i % 3 == 0 ? 0.5f : 7.0f};
        if (activation.kind == MOE_ACTIVATION_SITU && i % 2 == 0)
            activation.limit = 0.0f; /* `up` has none */
        bool scaled = i % 4 == 1;
        test_fill(&seed, (test_kind)(i / N_LENGTHS % TEST_KINDS), g, ROWS * n);
        test_fill(&seed, TEST_PLAIN, u, ROWS * n);
        set_guard(&got[ROWS * n]);
        moe_cuda_activate(NULL, &activation, scaled ? scales : NULL, g, u, got, ROWS, n);
        for (uint32_t r = 0; r < ROWS; r++) {
            if (scaled) {
                k.scale(scales[r], g + r * n, n);
                k.scale(scales[r], u + r * n, n);
            }
            activate_row(&k, &activation, g + r * n, u + r * n, expected + r * n, n);
        }
        test_assert_same("activation", "cuda", expected, got, ROWS * n);
        assert_guard("an activation", &got[ROWS * n]);
    }
}

static void norms_with_a_mean(void **state)
{
    (void)state;
    enum { ROWS = 3 };
    static float x[ROWS * (MAX_N + 7)], w[MAX_N], b[MAX_N], expected[MAX_N];
    static float got[ROWS * (MAX_N + 7) + 1];
    uint64_t seed = 0x3c6ef372fe94f82cu;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    for (uint32_t i = 0; i < N_LENGTHS * TEST_KINDS; i++) {
        uint32_t n = lengths[i % N_LENGTHS];
        size_t stride = n + i % 8;
        const float *bias = i % 2 == 0 ? b : NULL;
        test_fill(&seed, (test_kind)(i / N_LENGTHS), x, (uint32_t)(ROWS * stride));
        test_fill(&seed, TEST_PLAIN, w, n);
        test_fill(&seed, TEST_PLAIN, b, n);
        for (size_t j = 0; j <= ROWS * stride; j++)
            set_guard(&got[j]);
        moe_cuda_layer_norm(NULL, x, w, bias, got, ROWS, n, stride, 1e-5f);
        for (uint32_t r = 0; r < ROWS; r++) {
            k.layer_norm(x + r * stride, w, bias, expected, n, 1e-5f);
            test_assert_same("layer_norm", "cuda", expected, got + r * stride, n);
            if (stride > n)
                assert_guard("layer_norm", got + r * stride + n);
        }
        assert_guard("layer_norm", got + ROWS * stride);
    }
}

/* Of each row's elements, then of whole rows. x: rows of stride floats, also the gates. */
static void check_softplus_gates(const float *x, float *y, float *expected, uint32_t n_rows,
                                 uint32_t n, uint32_t stride)
{
    for (int one = 0; one <= 1; one++) {
        moe_gating gating = {MOE_GATING_SOFTPLUS, one != 0, x, stride, y, n, n};
        moe_cuda_copy_rows(NULL, x, stride, y, n, n, n_rows);
        moe_cuda_gate(NULL, &gating, n_rows);
        for (uint32_t r = 0; r < n_rows; r++) {
            const float *row = x + (size_t)r * stride;
            for (uint32_t i = 0; i < n; i++)
                expected[i] = moe_softplus(row[one ? 0 : i]) * row[i];
            test_assert_same("softplus gate", "cuda", expected, y + (size_t)r * n, n);
        }
    }
}

static void rows_of_elements(void **state)
{
    (void)state;
    enum { ROWS = 9, RANKS = 5, N = 700 };
    static float x[ROWS * RANKS * N], y[ROWS * N + 1], expected[ROWS * N], weights[ROWS * RANKS];
    uint64_t seed = 0x9b05688c2b3e6c1fu;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    for (uint32_t round = 0; round < 40; round++) {
        uint32_t n = 1 + test_below(&seed, N);
        uint32_t n_rows = 1 + test_below(&seed, ROWS);
        uint32_t index[ROWS];
        float gate[ROWS];
        test_fill(&seed, (test_kind)(round % TEST_KINDS), x, ROWS * RANKS * N);
        test_fill(&seed, TEST_WILD, weights, ROWS * RANKS);
        test_fill(&seed, TEST_WILD, gate, ROWS);
        for (uint32_t r = 0; r < n_rows; r++)
            index[r] = test_below(&seed, ROWS * RANKS);
        set_guard(&y[n_rows * n]);
        moe_cuda_gather(NULL, x, n, index, n_rows, y);
        for (uint32_t r = 0; r < n_rows; r++)
            test_assert_same("gather", "cuda", x + (size_t)index[r] * n, y + (size_t)r * n, n);
        uint32_t there[ROWS];
        for (uint32_t r = 0; r < n_rows; r++)
            there[r] = (r + round) % n_rows;
        moe_cuda_scatter(NULL, x, n, there, n_rows, y);
        for (uint32_t r = 0; r < n_rows; r++)
            test_assert_same("scatter", "cuda", x + (size_t)r * n, y + (size_t)there[r] * n, n);
        moe_cuda_copy_rows(NULL, x, N, y, n, n, n_rows);
        for (uint32_t r = 0; r < n_rows; r++)
            test_assert_same("copy_rows", "cuda", x + (size_t)r * N, y + (size_t)r * n, n);
        moe_cuda_sigmoid_scale(NULL, gate, y, n_rows, n);
        for (uint32_t r = 0; r < n_rows; r++) {
            memcpy(expected, x + (size_t)r * N, n * sizeof(float));
            k.scale(1.0f / (1.0f + moe_exp(-gate[r])), expected, n);
            test_assert_same("sigmoid_scale", "cuda", expected, y + (size_t)r * n, n);
        }
        for (int kind = MOE_GATING_SIGMOID; kind <= MOE_GATING_SILU; kind++) {
            moe_gating gating = {(moe_gating_kind)kind, false, x, N, y, n, n};
            moe_cuda_copy_rows(NULL, x, N, y, n, n, n_rows);
            moe_cuda_gate(NULL, &gating, n_rows);
            for (uint32_t r = 0; r < n_rows; r++) {
                const float *row = x + (size_t)r * N;
                if (kind == MOE_GATING_SILU)
                    k.silu_mul(row, row, expected, n);
                else
                    k.sigmoid_mul(row, row, expected, n);
                test_assert_same("gate", "cuda", expected, y + (size_t)r * n, n);
            }
        }
        check_softplus_gates(x, y, expected, n_rows, n, N);
        moe_combine combine = {
            .outs = x, .weights = weights, .n_ranks = 1 + round % RANKS, .n = n, .y = y};
        moe_cuda_combine(NULL, &combine, n_rows);
        memset(expected, 0, sizeof(expected));
        for (uint32_t r = 0; r < n_rows * combine.n_ranks; r++)
            if (weights[r] != 0.0f)
                k.axpy(weights[r], x + (size_t)r * n, expected + r / combine.n_ranks * n, n);
        test_assert_same("combine", "cuda", expected, y, n_rows * n);
        assert_guard("an operation on rows", &y[n_rows * n]);
    }
}

static void logits(void **state)
{
    (void)state;
    static float x[3 * MAX_N], expected[3 * MAX_N];
    static const uint32_t sizes[] = {1, 5, 33, 1000, 1024, 1025, 4096};
    uint64_t seed = 0x1f83d9abfb41bd6bu;
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    for (uint32_t round = 0; round < 7 * 8; round++) {
        uint32_t n = sizes[round % 7];
        moe_greatest greatest[3];
        test_fill(&seed, (test_kind)(round / 7 % TEST_KINDS), x, 3 * n);
        for (uint32_t i = 0; round % 4 == 1 && i < 3 * n; i++)
            x[i] = (float)test_below(&seed, 3); /* ties */
        for (uint32_t i = 0; i < n; i++)
            x[i] = round % 5 == 0 ? NAN : round % 5 == 1 ? -INFINITY : x[i];
        if (round % 5 == 2 && n > 2)
            x[0] = NAN, x[1] = -0.0f, x[2] = 0.0f;
        moe_cuda_greatest(NULL, x, 3, n, greatest);
        for (uint32_t r = 0; r < 3; r++) {
            const float *row = x + (size_t)r * n;
            uint32_t at = k.argmax(row, n);
            bool found = row[at] > -INFINITY;
            float share = 1.0f / k.exp_sum(row, n, found ? row[at] : -INFINITY);
            assert_int_equal(greatest[r].index, found ? at : 0);
            test_assert_same("greatest", "cuda", &share, &greatest[r].share, 1);
        }
        memcpy(expected, x, sizeof(x));
        moe_cuda_softmax(NULL, x, 3, n);
        for (uint32_t r = 0; r < 3; r++)
            k.softmax(expected + (size_t)r * n, n);
        test_assert_same("softmax", "cuda", expected, x, 3 * n);
    }
}

static moe_router_gate random_gate(uint64_t *seed, uint32_t round)
{
    static const uint32_t experts[] = {1, 8, 16, 60, 64, 128, 160, 256, 512, 1024};
    static const moe_router_kind kinds[] = {MOE_ROUTER_SOFTMAX, MOE_ROUTER_SIGMOID,
                                            MOE_ROUTER_SOFTMAX_SELECTED, MOE_ROUTER_SPARSE_MIXER,
                                            MOE_ROUTER_SQRT_SOFTPLUS};
    moe_router_gate gate = {.kind = kinds[round / 2 % 5],
                            .n_expert = experts[test_below(seed, 10)],
                            .renormalise = test_below(seed, 2),
                            .group_score = (moe_router_group_score)test_below(seed, 2),
                            .scale = test_below(seed, 2) ? 1.0f : 2.5f};
    uint32_t available = gate.n_expert;
    if (gate.n_expert % 8 == 0 && test_below(seed, 2) && gate.kind != MOE_ROUTER_SPARSE_MIXER) {
        gate.n_group = test_below(seed, 4) == 0 ? gate.n_expert / 2 : 8;
        gate.n_group_used = 1 + test_below(seed, gate.n_group);
        available = gate.n_expert / gate.n_group * gate.n_group_used;
    }
    gate.n_expert_used = 1 + test_below(seed, available < 64 ? available : 64);
    return gate;
}

static void routing(void **state)
{
    (void)state;
    enum { ROWS = 3, EXPERTS = MOE_ROUTER_MAX_EXPERTS, USED = MOE_ROUTER_MAX_USED };
    static float rows[ROWS * EXPERTS], bias[EXPERTS], probs[ROWS * EXPERTS], p[EXPERTS];
    static float scales[EXPERTS];
    uint64_t seed = 0x5be0cd19137e2179u;
    test_fill(&seed, TEST_PLAIN, scales, EXPERTS);
    for (uint32_t round = 0; round < 300; round++) {
        moe_router_gate gate = random_gate(&seed, round);
        uint32_t n = gate.n_expert;
        uint32_t ids[ROWS * USED], expected_ids[USED], given[ROWS * USED];
        float weights[ROWS * USED], expected_weights[USED];
        test_fill(&seed, round % 5 == 0 ? TEST_WILD : TEST_PLAIN, rows, ROWS * n);
        test_fill(&seed, round % 7 == 0 ? TEST_WILD : TEST_PLAIN, bias, n);
        for (uint32_t i = 0; round % 4 == 1 && i < ROWS * n; i++)
            rows[i] = (float)test_below(&seed, 4); /* ties */
        bool has_bias = round % 2 == 0 && round % 4 != 1 && gate.kind != MOE_ROUTER_SPARSE_MIXER;
        const float *used_bias = has_bias ? bias : NULL;
        gate.expert_scales = round % 5 == 2 ? scales : NULL;
        gate.given = round % 6 == 1;
        for (uint32_t i = 0; i < ROWS * gate.n_expert_used; i++)
            given[i] = (i % gate.n_expert_used * 7 + i / gate.n_expert_used) % n;
        moe_cuda_route(NULL, &gate, rows, used_bias, gate.given ? given : NULL, ROWS, ids, weights,
                       round % 3 == 2 ? NULL : probs);
        for (uint32_t r = 0; r < ROWS; r++) {
            memcpy(expected_ids, given + r * gate.n_expert_used,
                   gate.n_expert_used * sizeof *given);
            moe_router_select_c(&gate, rows + (size_t)r * n, used_bias, expected_ids,
                                expected_weights, p);
            uint32_t first = r * gate.n_expert_used;
            for (uint32_t i = 0; i < gate.n_expert_used; i++)
                assert_int_equal(ids[first + i], expected_ids[i]);
            test_assert_same("route", "weights", expected_weights, weights + first,
                             gate.n_expert_used);
            if (round % 3 != 2)
                test_assert_same("route", "probabilities", p, probs + (size_t)r * n, n);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),
        cmocka_unit_test(rotary_embedding),
        cmocka_unit_test(heads_stored),
        cmocka_unit_test(elements),
        cmocka_unit_test(rows_of_elements),
        cmocka_unit_test(logits),
        cmocka_unit_test(routing),
        cmocka_unit_test(activations),
        cmocka_unit_test(norms_with_a_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
