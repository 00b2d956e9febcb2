/* SPDX-License-Identifier: MIT */
/* Which drafter is asked first, by what each promises. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/draft/draft_order.h"

#define NGRAM MOE_DRAFTER_NGRAM
#define SELF  MOE_DRAFTER_SELF
#define HEAD  MOE_DRAFTER_HEAD
#define MODEL MOE_DRAFTER_MODEL

static moe_draft_promises promising(double ngram, double self, double head)
{
    return (moe_draft_promises){
        .is_auto = true,
        .n_writing = 8,
        .promise = {[NGRAM] = ngram, [SELF] = self, [HEAD] = head},
    };
}

static void assert_order(moe_draft_promises p, bool own_first, moe_drafter first,
                         moe_drafter second, moe_drafter third)
{
    moe_drafter order[MOE_DRAFTERS];
    assert_int_equal(moe_draft_order(&p, order), own_first);
    assert_int_equal(order[0], first);
    assert_int_equal(order[1], second);
    assert_int_equal(order[2], third);
    assert_int_equal(order[3], MODEL);
}

static void the_best_own_draft_goes_first_in_a_batch(void **state)
{
    (void)state;
    assert_order(promising(1.1, 1.3, 0), true, SELF, NGRAM, HEAD);
    assert_order(promising(1.1, 1.2, 1.3), true, HEAD, NGRAM, SELF);
    assert_order(promising(1.1, 1.3, 1.2), true, SELF, NGRAM, HEAD);
    assert_order(promising(0, 1.01, 0), true, SELF, NGRAM, HEAD);
}

static void text_goes_first_where_it_wins_more(void **state)
{
    (void)state;
    assert_order(promising(1.5, 1.3, 1.2), false, NGRAM, SELF, HEAD);
    assert_order(promising(1.5, 1.2, 1.3), false, NGRAM, HEAD, SELF);
    assert_order(promising(0, 0, 0), false, NGRAM, HEAD, SELF);
}

/* Between 1 / 1.05 and 1.05 times the text's promise nothing changes. */
static void the_order_does_not_flicker(void **state)
{
    (void)state;
    static const double promises[] = {1.16, 1.14, 1.06, 1.04, 1.06, 1.14, 1.16};
    static const bool first[] = {true, true, true, false, false, false, true};
    bool was = false;
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        moe_draft_promises p = promising(1.1, promises[i], 0);
        moe_drafter order[MOE_DRAFTERS];
        p.own_was_first = was;
        was = moe_draft_order(&p, order);
        assert_int_equal(was, first[i]);
    }
}

static void few_sequences_and_fixed_drafters_keep_the_order(void **state)
{
    (void)state;
    moe_draft_promises few = promising(1.0, 1.5, 1.4);
    few.n_writing = MOE_SELF_LEAST_SESSIONS - 1;
    assert_order(few, false, NGRAM, HEAD, SELF);
    few.n_writing = MOE_SELF_LEAST_SESSIONS;
    assert_order(few, true, SELF, NGRAM, HEAD);
    moe_draft_promises fixed = promising(1.0, 1.5, 0);
    fixed.is_auto = false;
    assert_order(fixed, false, NGRAM, HEAD, SELF);
}

/* Text that drafts nothing need not be overtaken: what comes after may still use n-grams. */
static void resting_text_stays_first(void **state)
{
    (void)state;
    moe_draft_promises p = promising(1.0, 1.5, 0);
    p.ngram_rests = true;
    assert_order(p, false, NGRAM, SELF, HEAD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_own_draft_goes_first_in_a_batch),
        cmocka_unit_test(text_goes_first_where_it_wins_more),
        cmocka_unit_test(the_order_does_not_flicker),
        cmocka_unit_test(few_sequences_and_fixed_drafters_keep_the_order),
        cmocka_unit_test(resting_text_stays_first),
    };
    return cmocka_run_group_tests_name("draft_order", tests, NULL, NULL);
}
