/* SPDX-License-Identifier: MIT */
/* What plain decoding of accepted rows is modelled to be: passes with a row of every sequence, also
 * where drafts were accepted to different depths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cache/expert_cache.h"
#include "runtime/draft/miss_model.h"

#define N_EXPERT 16u
#define N_SLOTS  16u
#define MAX_ROWS 8u

static moe_miss_model *new_model(void)
{
    static moe_expert_ref experts[N_EXPERT];
    static moe_layer_map layer = {.experts = experts};
    static const moe_tensor_map map = {.n_layer = 1, .n_expert = N_EXPERT, .layers = &layer};
    moe_miss_model_options options = {.map = &map,
                                      .n_expert_used = 1,
                                      .max_rows = MAX_ROWS,
                                      .n_slots = N_SLOTS,
                                      .policy = MOE_POLICY_DEFAULT};
    moe_miss_model *model;
    assert_int_equal(moe_miss_model_open(&model, &options, NULL), MOE_OK);
    return model;
}

/* A verification whose row i chooses expert chosen[i]. */
static void verify(moe_miss_model *model, const uint32_t *chosen, uint32_t n)
{
    moe_miss_model_keep_routes(model, 0, n, chosen);
}

/* Rows of one depth, of the places from `first` on. */
static void accept(moe_miss_model *model, uint32_t first, const uint32_t *rows, uint32_t n,
                   uint32_t n_sequences)
{
    uint32_t owners[MAX_ROWS];
    for (uint32_t i = 0; i < n; i++) {
        owners[i] = first + i;
    }
    moe_miss_model_accept(model, rows, owners, n, n_sequences);
}

static void assert_passes(moe_miss_model *model, uint64_t passes, uint64_t rows, uint64_t used)
{
    moe_miss_counts counts = moe_miss_model_take(model);
    assert_int_equal(counts.plain_passes, passes);
    assert_int_equal(counts.plain_rows, rows);
    assert_int_equal(counts.plain_used, used);
}

/* Of two sequences the second one's draft is accepted twice: its second row waits for the next
 * pass's rows, and is then read with the first sequence's. */
static void deeper_rows_wait_for_a_full_pass(void **state)
{
    (void)state;
    moe_miss_model *model = new_model();
    verify(model, (const uint32_t[]){1, 2, 3}, 3);
    accept(model, 0, (const uint32_t[]){0, 1}, 2, 2);
    accept(model, 1, (const uint32_t[]){2}, 1, 2);
    assert_passes(model, 1, 2, 2);
    verify(model, (const uint32_t[]){3, 4}, 2);
    accept(model, 0, (const uint32_t[]){0, 1}, 2, 2);
    assert_passes(model, 1, 2, 1); /* both choose expert 3; the second one's row still waits */
    verify(model, (const uint32_t[]){5, 6, 7}, 3);
    accept(model, 0, (const uint32_t[]){0, 1}, 2, 2);
    accept(model, 1, (const uint32_t[]){2}, 1, 2);
    assert_passes(model, 2, 4, 4);
    moe_miss_model_close(&model);
}

/* One sequence is decoded a token at a time, whatever was accepted at once. */
static void a_lone_sequence_never_waits(void **state)
{
    (void)state;
    moe_miss_model *model = new_model();
    verify(model, (const uint32_t[]){1, 1, 2}, 3);
    for (uint32_t depth = 0; depth < 3; depth++) {
        accept(model, 0, &depth, 1, 1);
    }
    assert_passes(model, 3, 3, 3);
    moe_miss_model_close(&model);
}

/* When fewer sequences are left, all that waits is decoded in passes of so few. */
static void fewer_sequences_take_what_waits(void **state)
{
    (void)state;
    moe_miss_model *model = new_model();
    verify(model, (const uint32_t[]){1, 2, 3, 4, 5}, 5);
    accept(model, 0, (const uint32_t[]){0, 1, 2}, 3, 3);
    accept(model, 1, (const uint32_t[]){3, 4}, 2, 3);
    assert_passes(model, 1, 3, 3);
    verify(model, (const uint32_t[]){6}, 1);
    accept(model, 0, (const uint32_t[]){0}, 1, 1);
    assert_passes(model, 3, 3, 3);
    moe_miss_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(deeper_rows_wait_for_a_full_pass),
                                       cmocka_unit_test(a_lone_sequence_never_waits),
                                       cmocka_unit_test(fewer_sequences_take_what_waits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
