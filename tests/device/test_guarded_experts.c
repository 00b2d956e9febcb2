/* SPDX-License-Identifier: MIT */
/* Whole experts whose three matrices each end at an inaccessible page, as the last slot of an arena
 * could: every tensor type, on every set of kernels that the processor has. The bits are those of
 * the reference, and nothing behind a matrix or a result is touched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/cpu_device.h"
#include "device_fixture.h"
#include "runtime/base/dtype.h"
#include "tests/kernels/matmul_cases.h"

enum { MAX_ROWS = 17, MAX_WIDTH = 512 };

typedef struct expert_case {
    moe_dtype type;
    uint32_t n_in, n_ff; /* multiples of the type's block; of shorter blocks the last group is cut
                          * short, and of floats every vector of a row and of an output */
    guarded parts[3];
    guarded x;
} expert_case;

static expert_case make_case(moe_dtype type, uint64_t *random)
{
    uint32_t block = moe_dtype_info_of(type)->block_elems;
    expert_case c = {.type = type,
                     .n_in = block == 256 ? 256 : 256 + block,
                     .n_ff = block == 256 ? 512 : 128 + block};
    for (int i = 0; i < 3; i++) {
        uint32_t n = i == 2 ? c.n_ff : c.n_in;
        uint32_t n_rows = i == 2 ? c.n_in : c.n_ff;
        c.parts[i] = guarded_new(n_rows * moe_dtype_row_bytes(type, n));
        random_rows(type, c.parts[i].data, n_rows, n, random);
    }
    c.x = guarded_new(MAX_ROWS * c.n_in * sizeof(float));
    float *x = (float *)(void *)c.x.data;
    for (size_t i = 0; i < (size_t)MAX_ROWS * c.n_in; i++) {
        x[i] = random_normal(random);
    }
    return c;
}

static void free_case(expert_case *c)
{
    for (int i = 0; i < 3; i++) {
        guarded_free(&c->parts[i]);
    }
    guarded_free(&c->x);
}

static moe_weight weight_of(const expert_case *c, int part)
{
    uint32_t n_in = part == 2 ? c->n_ff : c->n_in;
    uint32_t n_out = part == 2 ? c->n_in : c->n_ff;
    return (moe_weight){
        c->type, c->parts[part].data, n_in, n_out, moe_dtype_row_bytes(c->type, n_in), 0};
}

/* The last n_rows of the activations, so that those end at the page too; out likewise. */
static void run(const expert_case *c, unsigned features, uint32_t n_rows, float *result)
{
    device_fixture f = {0};
    moe_error err = {""};
    assert_int_equal(moe_team_create(&f.team, 2, &err), MOE_OK);
    moe_cpu_device_options options = {.team = f.team, .cpu_features = features};
    assert_int_equal(moe_cpu_device_open(&f.device, &options, &err), MOE_OK);
    moe_device_limits limits = {.linear = {MAX_ROWS, MAX_WIDTH},
                                .ff = {{MAX_ROWS, MAX_WIDTH}},
                                .max_v_dim = c->n_in,
                                .max_head_group = 1};
    assert_int_equal(f.device->ops->reserve(f.device, &limits, NULL), MOE_OK);
    size_t bytes = (size_t)n_rows * c->n_in * sizeof(float);
    guarded out = guarded_new(bytes);
    const float *x = (const float *)(const void *)c->x.data + (size_t)(MAX_ROWS - n_rows) * c->n_in;
    moe_expert_work work = {
        .gate = weight_of(c, 0), .up = weight_of(c, 1), .down = weight_of(c, 2), .n_rows = n_rows};
    assert_int_equal(f.device->ops->experts(f.device, x, n_rows, c->n_in, &work, 1,
                                            (float *)(void *)out.data, c->n_in, NULL),
                     MOE_OK);
    assert_int_equal(f.device->ops->sync(f.device, NULL), MOE_OK);
    memcpy(result, out.data, bytes);
    guarded_free(&out);
    close_device(&f);
}

static void check_type(moe_dtype type)
{
    static const uint32_t row_counts[] = {1, 2, 3, 4, 5, 9, MAX_ROWS};
    static float expected[MAX_ROWS * MAX_WIDTH], got[MAX_ROWS * MAX_WIDTH];
    uint64_t random = 0x9E3779B97F4A7C15u + type;
    isa_level levels[MAX_ISA_LEVELS];
    size_t n_levels = isa_levels(levels);
    expert_case c = make_case(type, &random);
    for (size_t r = 0; r < sizeof row_counts / sizeof row_counts[0]; r++) {
        size_t n = (size_t)row_counts[r] * c.n_in;
        run(&c, 0, row_counts[r], expected);
        for (size_t l = 1; l < n_levels; l++) {
            memset(got, 0x55, sizeof got);
            run(&c, levels[l].features, row_counts[r], got);
            if (memcmp(got, expected, n * sizeof *got) != 0) {
                fail_msg("%s, %s, %u rows: other bits than the reference's", levels[l].name,
                         moe_dtype_name(type), row_counts[r]);
            }
        }
    }
    free_case(&c);
}

static void every_type_on_every_level(void **state)
{
    (void)state;
    moe_matmul_kernels kernels;
    uint32_t n_types = 0;
    moe_matmul_kernels_init(&kernels, 0);
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        if (moe_dtype_info_of(type) != NULL && kernels.matmul[type] != NULL) {
            check_type((moe_dtype)type);
            n_types++;
        }
    }
    assert_true(n_types >= 26);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_type_on_every_level)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
