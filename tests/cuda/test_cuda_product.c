/* SPDX-License-Identifier: MIT */
/* Weight products, quantised activations, embeddings and experts on a GPU, under the emulation,
 * against the reference of cpu/kernels bit by bit. Weights end at an inaccessible page and begin
 * wherever their size puts them, so every alignment comes up. */
#include "cuda/kernels/norm_launch.h"
#include "cuda/kernels/product_launch.h"
#include "product_cases.h"

#include "cpu/kernels/matmul.h"
#include "cpu/kernels/vector_ops.h"
#include "tests/test_size.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MAX_ROWS = 33, MAX_OUT = 41, X_ROWS = 40, CANARY = 3 };

/* Multiprocessors of the GPU that check_shape() plans for; 0: the usual number. */
static uint32_t n_multiprocessors;

/* With `indexed`, rows go through lists, and rows that no list names must stay as they were. The
 * weights end `slack` bytes before the inaccessible page: rows that are a multiple of 16 bytes long
 * would otherwise all be aligned. */
static void check_shape(const product_case *c, uint32_t n_rows, uint32_t n_out, bool indexed,
                        uint32_t slack)
{
    guarded weights = guarded_new(n_out * c->row_bytes + slack);
    memcpy(weights.data, c->weights, n_out * c->row_bytes);
    uint32_t x_index[MAX_ROWS], out_index[MAX_ROWS];
    for (uint32_t r = 0; r < n_rows; r++) {
        x_index[r] = (r * 7 + 3) % X_ROWS;
        out_index[r] = (n_rows - 1 - r) * 2 % MAX_ROWS; /* distinct: 33 is odd */
    }
    const size_t stride = n_out + CANARY;
    float *out = memory_of(MAX_ROWS * stride * sizeof *out);
    float *expected = memory_of(MAX_ROWS * stride * sizeof *out);
    for (uint32_t r = 0; r < n_rows; r++)
        memcpy(expected + (indexed ? out_index[r] : r) * stride,
               c->expected + (indexed ? x_index[r] : r) * MAX_OUT, n_out * sizeof *out);
    moe_cuda_products products = {.type = c->type,
                                  .n_in = c->n_in,
                                  .n_out = n_out,
                                  .row_bytes = c->row_bytes,
                                  .x_q8 = c->x_q8,
                                  .x_stride = c->n_in,
                                  .out_stride = stride,
                                  .n_products = 1,
                                  .first = {.weights = weights.data,
                                            .x = c->x,
                                            .out = out,
                                            .x_index = indexed ? x_index : NULL,
                                            .out_index = indexed ? out_index : NULL,
                                            .n_rows = n_rows},
                                  .n_multiprocessors = n_multiprocessors};
    moe_cuda_matmul(NULL, &products);
    check_same("product", c->type, expected, out, MAX_ROWS * stride);
    free(out);
    free(expected);
    guarded_free(&weights);
}

static void products_equal_the_reference(void **state)
{
    (void)state;
    static const uint32_t blocks32[] = {32, 96, 256, 288, 544, 2080};
    static const uint32_t blocks256[] = {256, 512, 768, 1024, 2304};
    static const uint32_t floats[] = {1, 3, 15, 17, 64, 100, 258, 1056, 2079};
    static const uint32_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 33};
    static const uint32_t outs[] = {1, 7, 8, 9, 16, 33, 41};
    uint64_t random = 1;
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        const moe_dtype_info *info = moe_dtype_info_of(type);
        if (info == NULL || info->cpu_only)
            continue;
        const bool large = info->block_elems == 256;
        const uint32_t *sizes = info->is_float ? floats : large ? blocks256 : blocks32;
        const uint32_t n_sizes = info->is_float ? 9 : large ? 5 : 6;
        for (uint32_t s = 0; s < n_sizes; s++) {
            if (sizes[s] % info->block_elems != 0 || test_leaves_out(s + type, 3))
                continue;
            fill_kind kind = s % 3 == 1 ? FILL_AWKWARD : FILL_PLAIN;
            kind = info->is_float && s % 3 == 2 ? FILL_WILD : kind;
            product_case c = case_new((moe_dtype)type, sizes[s], MAX_OUT, X_ROWS, kind, &random);
            for (uint32_t i = 0; i < 10; i++) {
                n_multiprocessors = info->is_float ? i % 2 : 0; /* on one, none is thin */
                check_shape(&c, rows[i], outs[(i + s) % 7], i % 2 != 0, 0);
                check_shape(&c, rows[i], outs[(i + 2 * s + 3) % 7], i % 2 == 0, 2 * i);
            }
            case_free(&c);
        }
    }
    n_multiprocessors = 0;
}

/* Blocks of four warps, as large launches have them. */
static void large_launches_equal_small_ones(void **state)
{
    (void)state;
    enum { N_OUT = 8200, N_IN = 64 };
    moe_matmul_kernels reference;
    moe_matmul_kernels_init(&reference, 0);
    uint64_t random = 2;
    size_t row_bytes = moe_dtype_row_bytes(MOE_DTYPE_Q5_1, N_IN);
    uint8_t *weights = memory_of(N_OUT * row_bytes);
    float x[2 * N_IN], bias[N_OUT];
    random_rows(MOE_DTYPE_Q5_1, weights, N_OUT, N_IN, &random);
    fill(FILL_PLAIN, x, 2 * N_IN, &random);
    fill(FILL_PLAIN, bias, N_OUT, &random);
    void *scratch;
    moe_q8_rows x_q8 = q8_rows_new(2, N_IN, &scratch);
    reference.quantize_rows(x, N_IN, 2, N_IN, &x_q8, 0);
    float *expected = memory_of(2 * N_OUT * sizeof(float));
    float *got = memory_of(2 * N_OUT * sizeof(float));
    reference.matmul[MOE_DTYPE_Q5_1](&(moe_matmul_args){.type = MOE_DTYPE_Q5_1,
                                                        .weights = weights,
                                                        .row_bytes = row_bytes,
                                                        .n_in = N_IN,
                                                        .n_out = N_OUT,
                                                        .n_rows = 2,
                                                        .x_q8 = &x_q8,
                                                        .out = expected,
                                                        .out_stride = N_OUT});
    for (uint32_t i = 0; i < 2 * N_OUT; i++)
        expected[i] = expected[i] + bias[i % N_OUT];
    moe_linear linear = {
        .weight = {MOE_DTYPE_Q5_1, weights, N_IN, N_OUT, row_bytes, 0}, .bias = bias, .out = got};
    moe_cuda_linears(NULL, 0, &linear, 1, x, &x_q8, 2);
    check_same("linear", MOE_DTYPE_Q5_1, expected, got, 2 * N_OUT);
    free(weights);
    free(scratch);
    free(expected);
    free(got);
}

/* Maps of one type share a launch, four at most, whatever lies between them; those of many rows
 * have one each. Every map writes its own outputs and nothing else. */
static void maps_share_launches(void **state)
{
    (void)state;
    enum { MAPS = 8, N_IN = 512, ROWS = 9, WIDEST = 300 };
    static const struct {
        moe_dtype type;
        uint32_t n_out;
    } maps[MAPS] = {{MOE_DTYPE_Q4_K, 300}, {MOE_DTYPE_Q4_K, 33}, {MOE_DTYPE_Q6_K, 8},
                    {MOE_DTYPE_Q4_K, 1},   {MOE_DTYPE_F16, 40},  {MOE_DTYPE_Q4_K, 64},
                    {MOE_DTYPE_Q4_K, 9},   {MOE_DTYPE_F16, 7}};
    static const uint32_t rows[] = {1, 2, 4, 8, 9};
    uint64_t random = 21;
    for (uint32_t i = 0; i < 10; i++) {
        uint32_t n_rows = rows[i / 2];
        product_case c[MAPS];
        moe_linear linears[MAPS];
        float *got[MAPS], bias[WIDEST];
        fill(FILL_PLAIN, bias, WIDEST, &random);
        for (uint32_t m = 0; m < MAPS; m++) {
            uint64_t same = 100 + i; /* the maps' rows are the same */
            c[m] = case_new(maps[m].type, N_IN, maps[m].n_out, ROWS, FILL_PLAIN, &same);
            memcpy(c[m].x, c[0].x, sizeof(float) * ROWS * N_IN);
            case_compute(&c[m]);
            got[m] = memory_of((size_t)(ROWS + 1) * maps[m].n_out * sizeof(float));
            linears[m] =
                (moe_linear){{c[m].type, c[m].weights, N_IN, maps[m].n_out, c[m].row_bytes, 0},
                             m % 3 == 1 ? bias : NULL,
                             got[m]};
        }
        /* One multiprocessor has enough with blocks of four warps. */
        moe_cuda_linears(NULL, i % 2, linears, MAPS, c[0].x, &c[0].x_q8, n_rows);
        for (uint32_t m = 0; m < MAPS; m++) {
            uint32_t n_out = maps[m].n_out;
            for (uint32_t j = 0; j < n_rows * n_out; j++)
                c[m].expected[j] = c[m].expected[j] + (m % 3 == 1 ? bias[j % n_out] : -0.0f);
            check_same("maps", c[m].type, c[m].expected, got[m], (size_t)n_rows * n_out);
            const uint8_t *behind = (const uint8_t *)(got[m] + (size_t)n_rows * n_out);
            for (size_t b = 0; b < (ROWS + 1 - n_rows) * n_out * sizeof(float); b++)
                assert_int_equal(behind[b], 0x77);
        }
        for (uint32_t m = 0; m < MAPS; m++) {
            case_free(&c[m]);
            free(got[m]);
        }
    }
}

static void empty_products_are_zero(void **state)
{
    (void)state;
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        float out[2] = {7, 7};
        moe_cuda_products products = {.type = (moe_dtype)type,
                                      .n_out = 1,
                                      .out_stride = 1,
                                      .n_products = 1,
                                      .first = {.weights = out, .x = out, .out = out}};
        if (moe_dtype_info_of(type) == NULL || moe_dtype_info_of(type)->cpu_only)
            continue;
        moe_cuda_matmul(NULL, &products); /* no rows */
        assert_true(out[0] == 7 && out[1] == 7);
        products.first.n_rows = 1;
        moe_cuda_matmul(NULL, &products); /* rows of nothing */
        assert_true(out[0] == 0 && out[1] == 7);
    }
}

/* Rows in two nested strides, behind rows that must stay as they are. */
static void quantised_rows_equal_the_reference(void **state)
{
    (void)state;
    enum { OUTER = 3, INNER = 5, ROWS = OUTER * INNER };
    static const uint32_t sizes[] = {32, 64, 224, 256, 1056};
    moe_matmul_kernels reference;
    moe_vector_kernels vector;
    moe_matmul_kernels_init(&reference, 0);
    moe_vector_kernels_init(&vector, 0);
    uint64_t random = 3;
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t n = sizes[i / 4];
        bool silu = i % 2 != 0;
        size_t x_stride = (size_t)OUTER * n + 5, outer_stride = n;
        size_t count = INNER * x_stride + OUTER * outer_stride;
        float *x = memory_of(count * sizeof(float)), *up = memory_of(count * sizeof(float));
        float *h = memory_of(n * sizeof(float));
        fill(i % 4 < 2 ? FILL_PLAIN : FILL_AWKWARD, x, count, &random);
        fill(FILL_PLAIN, up, count, &random);
        void *expected_memory, *got_memory;
        moe_q8_rows expected = q8_rows_new(ROWS + 2, n, &expected_memory);
        moe_q8_rows got = q8_rows_new(ROWS + 2, n, &got_memory);
        for (uint32_t r = 0; r < ROWS; r++) {
            size_t at = r / INNER * outer_stride + r % INNER * x_stride;
            memcpy(h, x + at, n * sizeof(float));
            if (silu && i % 4 == 1)
                vector.silu_mul(x + at, up + at, h, n);
            else if (silu)
                vector.swiglu_clamped(x + at, up + at, h, n, 1.702f, 0.75f);
            reference.quantize_rows(h, n, 1, n, &expected, 1 + r);
        }
        moe_cuda_quantize quantize = {
            .x = x,
            .up = silu ? up : NULL,
            .activation = {i % 4 == 1 ? MOE_ACTIVATION_SILU : MOE_ACTIVATION_SWIGLU_CLAMPED, 1.702f,
                           0.75f},
            .x_stride = x_stride,
            .outer_stride = outer_stride,
            .n_inner = INNER,
            .n_rows = ROWS,
            .first_row = 1,
            .out = got};
        moe_cuda_quantize_rows(NULL, &quantize);
        assert_memory_equal(expected_memory, got_memory, moe_q8_rows_bytes(ROWS + 2, n));
        free(x);
        free(up);
        free(h);
        free(expected_memory);
        free(got_memory);
    }
}

static void embeddings_equal_the_reference(void **state)
{
    (void)state;
    int32_t tokens[] = {6, 0, 3, 3, 1};
    moe_matmul_kernels reference;
    moe_vector_kernels vector;
    moe_matmul_kernels_init(&reference, 0);
    moe_vector_kernels_init(&vector, 0);
    uint64_t random = 4;
    for (uint32_t i = 0; i < 2 * MOE_DTYPE_LIMIT; i++) {
        const moe_dtype_info *info = moe_dtype_info_of(i / 2);
        if (info == NULL || info->cpu_only)
            continue;
        moe_dtype type = (moe_dtype)(i / 2);
        uint32_t n = info->is_float ? 131 : info->block_elems > 32 ? 2304 : 2080;
        float scale = i % 2 != 0 ? 0.37f : 1.0f;
        size_t row_bytes = moe_dtype_row_bytes(type, n);
        guarded table = guarded_new(7 * row_bytes);
        random_rows(type, table.data, 7, n, &random);
        float *expected = memory_of(5 * n * sizeof(float)), *got = memory_of(5 * n * sizeof(float));
        for (uint32_t r = 0; r < 5; r++) {
            reference.dequantize[type](table.data + (size_t)tokens[r] * row_bytes,
                                       expected + (size_t)r * n, n);
            vector.scale(scale, expected + (size_t)r * n, n);
        }
        moe_weight weight = {type, table.data, n, 7, row_bytes, 0};
        moe_cuda_embed(NULL, &weight, tokens, 5, scale, got);
        check_same("embedding", type, expected, got, 5 * (size_t)n);
        free(expected);
        free(got);
        guarded_free(&table);
    }
}

/* Each head's rows by themselves. */
static void heads_equal_the_reference(void **state)
{
    (void)state;
    enum { HEADS = 3, OUT = 9, ROWS = 5, N_IN = 96, X_STRIDE = 333, OUT_STRIDE = 40 };
    static const moe_dtype types[] = {MOE_DTYPE_Q8_0, MOE_DTYPE_Q4_1, MOE_DTYPE_F32, MOE_DTYPE_BF16,
                                      MOE_DTYPE_F16};
    moe_matmul_kernels reference;
    moe_matmul_kernels_init(&reference, 0);
    uint64_t random = 5;
    for (uint32_t i = 0; i < 5; i++) {
        size_t row_bytes = moe_dtype_row_bytes(types[i], N_IN);
        uint8_t *weights = memory_of(HEADS * OUT * row_bytes);
        float x[ROWS * X_STRIDE], expected[ROWS * OUT_STRIDE], got[ROWS * OUT_STRIDE];
        memset(expected, 0x55, sizeof expected);
        memset(got, 0x55, sizeof got);
        random_rows(types[i], weights, HEADS * OUT, N_IN, &random);
        fill(FILL_PLAIN, x, ROWS * X_STRIDE, &random);
        void *scratch, *q8_memory = memory_of(moe_q8_rows_bytes(ROWS * HEADS, N_IN));
        moe_q8_rows x_q8 = q8_rows_new(ROWS, N_IN, &scratch);
        for (uint32_t h = 0; h < HEADS; h++) {
            reference.quantize_rows(x + 101 * h, X_STRIDE, ROWS, N_IN, &x_q8, 0);
            reference.matmul[types[i]](&(moe_matmul_args){.type = types[i],
                                                          .weights = weights + h * OUT * row_bytes,
                                                          .row_bytes = row_bytes,
                                                          .n_in = N_IN,
                                                          .n_out = OUT,
                                                          .n_rows = ROWS,
                                                          .x_q8 = &x_q8,
                                                          .x = x + 101 * h,
                                                          .x_stride = X_STRIDE,
                                                          .out = expected + 11 * h,
                                                          .out_stride = OUT_STRIDE});
        }
        moe_head_linear linear = {.weight = {types[i], weights, N_IN, HEADS * OUT, row_bytes, 0},
                                  .n_head = HEADS,
                                  .x = x,
                                  .x_row_stride = X_STRIDE,
                                  .x_head_stride = 101,
                                  .out = got,
                                  .out_row_stride = OUT_STRIDE,
                                  .out_head_stride = 11};
        moe_cuda_head_linear(NULL, 0, &linear, ROWS, q8_memory);
        check_same("heads", types[i], expected, got, ROWS * OUT_STRIDE);
        free(weights);
        free(scratch);
        free(q8_memory);
    }
}

enum { EXPERTS = 7, FF_IN = 512, FF = 256, FF_ROWS = 60, FF_X_ROWS = 12 };

typedef struct expert_case {
    moe_expert_work works[EXPERTS];
    uint8_t *weights[3 * EXPERTS];
    uint32_t x_index[FF_ROWS];
    uint32_t out_index[FF_ROWS];
    uint32_t n_inner;
} expert_case;

static moe_weight random_weight(moe_dtype type, uint32_t n_in, uint32_t n_out, uint8_t **memory,
                                uint64_t *random)
{
    size_t row_bytes = moe_dtype_row_bytes(type, n_in);
    *memory = memory_of(n_out * row_bytes);
    random_rows(type, *memory, n_out, n_in, random);
    return (moe_weight){type, *memory, n_in, n_out, row_bytes, 0};
}

static void expert_case_open(expert_case *c, const moe_dtype types[EXPERTS][3], uint64_t *random)
{
    static const uint32_t rows[EXPERTS] = {1, 9, 2, 3, 33, 4, 5};
    uint32_t first = 0;
    for (uint32_t i = 0; i < FF_ROWS; i++) {
        c->x_index[i] = random_bits(random) % FF_X_ROWS;
        c->out_index[i] = i * 7 % FF_ROWS; /* distinct: 7 and 60 have no divisor in common */
    }
    for (uint32_t w = 0; w < EXPERTS; w++) {
        moe_expert_work *work = &c->works[w];
        work->gate = random_weight(types[w][0], FF_IN, FF, &c->weights[3 * w], random);
        work->up = random_weight(types[w][1], FF_IN, FF, &c->weights[3 * w + 1], random);
        work->down = random_weight(types[w][2], FF, FF_IN, &c->weights[3 * w + 2], random);
        work->x_index = c->x_index + first;
        work->out_index = c->out_index + first;
        work->n_rows = rows[w];
        first += rows[w];
    }
    c->n_inner = first;
}

/* As gpt-oss has them: a bias for each product, and the clamped activation. */
static void give_forms(expert_case *c, const float *biases)
{
    for (uint32_t w = 0; w < EXPERTS; w++) {
        c->works[w].gate_bias = biases + w * 3;
        c->works[w].up_bias = biases + w * 5 + 1;
        c->works[w].down_bias = biases + w * 7 + 2;
        c->works[w].activation = (moe_activation){MOE_ACTIVATION_SWIGLU_CLAMPED, 1.702f, 0.75f};
    }
}

static void reference_product(const moe_weight *weight, const float *bias, const float *x,
                              const uint32_t *x_index, uint32_t n_x_rows, const uint32_t *out_index,
                              uint32_t n_rows, float *out)
{
    moe_matmul_kernels reference;
    moe_matmul_kernels_init(&reference, 0);
    void *scratch;
    moe_q8_rows x_q8 = q8_rows_new(n_x_rows, weight->n_in, &scratch);
    reference.quantize_rows(x, weight->n_in, n_x_rows, weight->n_in, &x_q8, 0);
    reference.matmul[weight->type](&(moe_matmul_args){.type = weight->type,
                                                      .weights = weight->data,
                                                      .row_bytes = weight->row_bytes,
                                                      .n_in = weight->n_in,
                                                      .n_out = weight->n_out,
                                                      .n_rows = n_rows,
                                                      .x_q8 = &x_q8,
                                                      .x = x,
                                                      .x_stride = weight->n_in,
                                                      .x_index = x_index,
                                                      .out_index = out_index,
                                                      .out = out,
                                                      .out_stride = weight->n_out});
    for (uint32_t r = 0; bias != NULL && r < n_rows; r++) {
        float *row = out + (size_t)(out_index != NULL ? out_index[r] : r) * weight->n_out;
        for (uint32_t o = 0; o < weight->n_out; o++)
            row[o] += bias[o];
    }
    free(scratch);
}

static void check_experts(const moe_dtype types[EXPERTS][3], bool forms, uint64_t *random)
{
    expert_case c = {0};
    float biases[FF_IN + 7 * EXPERTS + 2];
    expert_case_open(&c, types, random);
    fill(FILL_PLAIN, biases, sizeof biases / sizeof biases[0], random);
    if (forms)
        give_forms(&c, biases);
    moe_vector_kernels vector;
    moe_vector_kernels_init(&vector, 0);
    float *x = memory_of(FF_X_ROWS * FF_IN * sizeof(float));
    float *gate = memory_of(FF_ROWS * FF * sizeof(float));
    float *up = memory_of(FF_ROWS * FF * sizeof(float));
    float *expected = memory_of(FF_ROWS * FF_IN * sizeof(float));
    float *got = memory_of(FF_ROWS * FF_IN * sizeof(float));
    fill(FILL_PLAIN, x, (size_t)FF_X_ROWS * FF_IN, random);
    for (uint32_t w = 0; w < EXPERTS; w++) {
        const moe_expert_work *work = &c.works[w];
        reference_product(&work->gate, work->gate_bias, x, work->x_index, FF_X_ROWS, NULL,
                          work->n_rows, gate);
        reference_product(&work->up, work->up_bias, x, work->x_index, FF_X_ROWS, NULL, work->n_rows,
                          up);
        for (uint32_t r = 0; r < work->n_rows; r++) {
            float *g = gate + r * FF;
            if (forms)
                vector.swiglu_clamped(g, up + r * FF, g, FF, 1.702f, 0.75f);
            else
                vector.silu_mul(g, up + r * FF, g, FF);
        }
        reference_product(&work->down, work->down_bias, gate, NULL, work->n_rows, work->out_index,
                          work->n_rows, expected);
    }
    void *x_memory, *h_memory = memory_of(moe_q8_rows_bytes(c.n_inner, FF));
    moe_cuda_product list[3 * EXPERTS];
    moe_cuda_experts experts = {.works = c.works,
                                .n_works = EXPERTS,
                                .x = x,
                                .n_in = FF_IN,
                                .x_q8 = q8_rows_new(FF_X_ROWS, FF_IN, &x_memory),
                                .host_list = list,
                                .list = list,
                                .gate = gate,
                                .up = up,
                                .h_q8_memory = h_memory,
                                .out = got,
                                .out_stride = FF_IN};
    moe_cuda_quantize quantize = {
        .x = x, .x_stride = FF_IN, .n_rows = FF_X_ROWS, .out = experts.x_q8};
    moe_cuda_quantize_rows(NULL, &quantize);
    moe_cuda_experts_list(&experts);
    moe_cuda_experts_run(NULL, &experts);
    check_same("experts", types[0][2], expected, got, FF_ROWS * FF_IN);
    for (uint32_t i = 0; i < 3 * EXPERTS; i++)
        free(c.weights[i]);
    free(x);
    free(gate);
    free(up);
    free(expected);
    free(got);
    free(x_memory);
    free(h_memory);
}

static void experts_equal_the_reference(void **state)
{
    (void)state;
    static const moe_dtype same_type[][3] = {
        {MOE_DTYPE_Q4_K, MOE_DTYPE_Q4_K, MOE_DTYPE_Q6_K},
        {MOE_DTYPE_MXFP4, MOE_DTYPE_MXFP4, MOE_DTYPE_MXFP4},
        {MOE_DTYPE_Q8_0, MOE_DTYPE_Q8_0, MOE_DTYPE_F16},
        {MOE_DTYPE_F32, MOE_DTYPE_F32, MOE_DTYPE_Q2_K},
    };
    /* Products of one launch and of several; floats and blocks side by side. */
    static const moe_dtype mixed[EXPERTS][3] = {
        {MOE_DTYPE_Q4_K, MOE_DTYPE_Q6_K, MOE_DTYPE_Q3_K},
        {MOE_DTYPE_Q4_K, MOE_DTYPE_Q4_K, MOE_DTYPE_Q3_K},
        {MOE_DTYPE_IQ4_XS, MOE_DTYPE_Q8_0, MOE_DTYPE_Q8_0},
        {MOE_DTYPE_Q5_1, MOE_DTYPE_Q5_0, MOE_DTYPE_Q5_K},
        {MOE_DTYPE_F16, MOE_DTYPE_F32, MOE_DTYPE_BF16},
        {MOE_DTYPE_Q4_0, MOE_DTYPE_Q4_1, MOE_DTYPE_IQ4_NL},
        {MOE_DTYPE_Q2_K, MOE_DTYPE_Q2_K, MOE_DTYPE_Q2_K},
    };
    uint64_t random = 6;
    for (uint32_t i = 0; i < 4; i++) {
        moe_dtype types[EXPERTS][3];
        for (uint32_t w = 0; w < EXPERTS; w++)
            memcpy(types[w], same_type[i], sizeof types[w]);
        check_experts(types, false, &random);
        check_experts(types, true, &random);
    }
    check_experts(mixed, false, &random);
    check_experts(mixed, true, &random);
}

/* The sum of a row's experts, an addition, the norm of the sum and its quantisation as one kernel:
 * the bits of the four. Experts of weight 0 are not read. */
static void norms_quantise(void **state)
{
    (void)state;
    enum { ROWS = 3, MOST = 8256, RANKS = 5 };
    static const uint32_t lengths[] = {32, 96, 256, 544, 1056, 4096, 4128, MOST};
    static float outs[ROWS * RANKS * MOST], experts_sum[ROWS * MOST];
    float weights[ROWS * RANKS];
    static float x[ROWS * MOST], added[ROWS * MOST], weight[MOST], got[ROWS * MOST];
    static float expected[ROWS * MOST], sum[ROWS * MOST];
    moe_matmul_kernels reference;
    moe_vector_kernels vector;
    moe_matmul_kernels_init(&reference, 0);
    moe_vector_kernels_init(&vector, 0);
    uint64_t random = 9;
    for (uint32_t i = 0; i < 3 * sizeof lengths / sizeof *lengths; i++) {
        uint32_t n = lengths[i / 3];
        bool adds = i % 3 > 0, combines = i % 3 == 2;
        void *memory, *expected_memory;
        moe_cuda_fused_norm norm = {.x = x,
                                    .added = adds ? added : NULL,
                                    .sum = adds ? x : NULL,
                                    .weight = weight,
                                    .y = got,
                                    .out = q8_rows_new(ROWS, n, &memory),
                                    .n_rows = ROWS,
                                    .n = n,
                                    .eps = 1e-6f};
        moe_q8_rows expected_q8 = q8_rows_new(ROWS, n, &expected_memory);
        memset(memory, 0x55, moe_q8_rows_bytes(ROWS, n));
        fill(FILL_PLAIN, x, ROWS * n, &random);
        fill(FILL_PLAIN, added, ROWS * n, &random);
        fill(FILL_PLAIN, weight, n, &random);
        fill(FILL_PLAIN, weights, ROWS * RANKS, &random);
        fill(FILL_PLAIN, outs, (size_t)ROWS * RANKS * n, &random);
        for (uint32_t r = 0; r < ROWS && combines; r++) {
            memset(added + r * n, 0, n * sizeof *added);
            for (uint32_t k = 0; k < RANKS; k++) {
                float *out = &outs[((size_t)r * RANKS + k) * n];
                if (k == r) {
                    weights[r * RANKS + k] = 0;
                    out[0] = NAN;
                } else {
                    vector.axpy(weights[r * RANKS + k], out, added + r * n, n);
                }
            }
        }
        for (uint32_t j = 0; j < ROWS * n; j++)
            sum[j] = adds ? x[j] + added[j] : x[j];
        for (uint32_t r = 0; r < ROWS; r++)
            vector.rms_norm(sum + r * n, weight, expected + r * n, n, 1e-6f);
        reference.quantize_rows(expected, n, ROWS, n, &expected_q8, 0);
        if (combines) {
            norm.added = experts_sum;
            norm.combine = (moe_combine){outs, weights, RANKS, n, experts_sum, true};
        }
        moe_cuda_norm_quantize(NULL, &norm);
        assert_true(!combines || memcmp(experts_sum, added, ROWS * n * sizeof *added) == 0);
        assert_memory_equal(x, sum, ROWS * n * sizeof *x);
        assert_memory_equal(got, expected, ROWS * n * sizeof *got);
        size_t padded = (size_t)ROWS * norm.out.n_in_padded;
        assert_memory_equal(norm.out.q, expected_q8.q, padded);
        assert_memory_equal(norm.out.d, expected_q8.d, padded / 32 * sizeof(float));
        assert_memory_equal(norm.out.sum16, expected_q8.sum16, padded / 16 * sizeof(int32_t));
        assert_memory_equal(norm.out.sum32, expected_q8.sum32, padded / 32 * sizeof(int32_t));
        assert_memory_equal(norm.out.dsum16, expected_q8.dsum16, padded / 16 * sizeof(float));
        assert_memory_equal(norm.out.dsum32, expected_q8.dsum32, padded / 32 * sizeof(float));
        free(memory);
        free(expected_memory);
    }
}

/* A product of n_out outputs and n_rows rows on a GPU of so many multiprocessors. */
static moe_cuda_product_plan plan_for(uint32_t n_multis, uint32_t n_out, uint32_t n_rows)
{
    moe_cuda_products products = {.type = MOE_DTYPE_Q8_0,
                                  .n_in = 256,
                                  .n_out = n_out,
                                  .row_bytes = moe_dtype_row_bytes(MOE_DTYPE_Q8_0, 256),
                                  .n_products = 1,
                                  .first = {.n_rows = n_rows},
                                  .n_multiprocessors = n_multis};
    return moe_cuda_plan_products(&products);
}

/* What is chosen changes where the multiprocessors of a card are busy: 8 warps for each (of 8
 * outputs), half a block (of 64), four blocks. */
static void plans_follow_the_multiprocessors(void **state)
{
    (void)state;
    static const uint32_t counts[] = {24, 132, 188};
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t n = counts[i];
        assert_int_equal(plan_for(n, 64 * n, 1).warps_a_block, 4);
        assert_int_equal(plan_for(n, 64 * n - 8, 1).warps_a_block, 1);
        assert_int_equal(plan_for(n, 32 * n, 64).job.wide_from, 33);
        assert_int_equal(plan_for(n, 32 * n - 64, 64).job.wide_from, MOE_CUDA_NEVER);
        assert_int_equal(plan_for(n, 256 * n, 64).job.wide_rest, 33);
        assert_int_equal(plan_for(n, 256 * n - 64, 64).job.wide_rest, 1);
        assert_int_equal(plan_for(n, 32 * n, 32).job.narrow_upto, 16);
        assert_int_equal(plan_for(n, 32 * n - 64, 32).job.narrow_upto, MOE_CUDA_NEVER);
    }
    assert_int_equal(plan_for(24, 4096, 1).warps_a_block, 4);
    assert_int_equal(plan_for(132, 4096, 1).warps_a_block, 1);
    assert_int_equal(plan_for(132, 10000, 1).warps_a_block, 4);
    assert_int_equal(plan_for(188, 10000, 1).warps_a_block, 1);
    assert_int_equal(plan_for(0, 8192, 1).warps_a_block, plan_for(132, 8192, 1).warps_a_block);
    assert_int_equal(plan_for(0, 8448, 1).warps_a_block, plan_for(132, 8448, 1).warps_a_block);
}

/* A router of floats has a warp for every two rows, if eight a warp were fewer warps than there are
 * multiprocessors. */
static void few_rows_of_floats_are_thin(void **state)
{
    (void)state;
    moe_cuda_products products = {.type = MOE_DTYPE_F32,
                                  .n_in = 2048,
                                  .n_out = 128,
                                  .row_bytes = 8192,
                                  .n_products = 1,
                                  .first = {.n_rows = 1},
                                  .n_multiprocessors = 132};
    assert_int_equal(moe_cuda_plan_products(&products).warps_a_block, 0);
    products.n_more = 1;
    products.more[0] = (moe_cuda_more_map){.n_out = 920};
    assert_int_equal(moe_cuda_plan_products(&products).warps_a_block, 0);
    products.more[0].n_out = 928;
    assert_int_equal(moe_cuda_plan_products(&products).warps_a_block, 1);
    products.n_more = 0;
    products.row_bytes = 8196;
    assert_int_equal(moe_cuda_plan_products(&products).warps_a_block, 1);
    products.row_bytes = 32768;
    assert_int_equal(moe_cuda_plan_products(&products).warps_a_block, 1);
    products.row_bytes = 8192;
    products.n_multiprocessors = 16;
    assert_int_equal(moe_cuda_plan_products(&products).warps_a_block, 1);
    products.n_multiprocessors = 132;
    products.n_products = 2;
    assert_int_equal(moe_cuda_plan_products(&products).warps_a_block, 1);
}

/* A card of one multiprocessor has enough with a block; one of 24 and the usual ones are idle. */
static void multiprocessors_change_no_bit(void **state)
{
    (void)state;
    static const uint32_t counts[] = {1, 2, 24, 132, 188};
    static const uint32_t rows[] = {1, 8, 33};
    static const moe_dtype types[] = {MOE_DTYPE_Q4_K, MOE_DTYPE_F32, MOE_DTYPE_F16, MOE_DTYPE_BF16};
    uint64_t random = 77;
    for (uint32_t t = 0; t < 4; t++) {
        product_case c = case_new(types[t], 512, MAX_OUT, X_ROWS, FILL_AWKWARD, &random);
        for (uint32_t i = 0; i < 5; i++) {
            n_multiprocessors = counts[i];
            for (uint32_t r = 0; r < 3; r++)
                check_shape(&c, rows[r], MAX_OUT, r % 2 == 0, 0);
        }
        n_multiprocessors = 0;
        case_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_follow_the_multiprocessors),
        cmocka_unit_test(few_rows_of_floats_are_thin),
        cmocka_unit_test(multiprocessors_change_no_bit),
        cmocka_unit_test(products_equal_the_reference),
        cmocka_unit_test(large_launches_equal_small_ones),
        cmocka_unit_test(maps_share_launches),
        cmocka_unit_test(empty_products_are_zero),
        cmocka_unit_test(quantised_rows_equal_the_reference),
        cmocka_unit_test(embeddings_equal_the_reference),
        cmocka_unit_test(heads_equal_the_reference),
        cmocka_unit_test(experts_equal_the_reference),
        cmocka_unit_test(norms_quantise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
