/* SPDX-License-Identifier: MIT */
/* The distance of a lossy mode from the exact pass, as an engine measures it: short answers have a
 * figure, the limit acts at once, and an unmeasured figure is not 0. */
#include "../engine/engine_options.h"
#include "tests/calibrate/calibrate_fixture.h"

#include <math.h>

#define NEXT_TO_NO_SHARE 1e-12
#define FIRST_POSITIONS  8u

static char sidecar[128];

static moe_engine_options lossy_options(void)
{
    moe_engine_options options = engine_options();
    options.calibration = in_folder(sidecar, "cal.gguf");
    options.speculate = MOE_SPECULATE_OFF;
    options.expert_cache_share = 0.5;
    lossy_of(&options)->buddies = true;
    lossy_of(&options)->buddies_random = true;
    lossy_of(&options)->buddies_max_replaced = 8;
    lossy_of(&options)->buddies_tae_percentile = 0;
    lossy_of(&options)->quality_share = NEXT_TO_NO_SHARE;
    return options;
}

static moe_lossy_stats lossy_stats(const moe_engine *engine)
{
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(engine, &stats);
    return stats.lossy;
}

static void write_answer(moe_engine *engine, size_t n)
{
    int32_t tokens[64];
    moe_session *session = greedy_session(engine);
    feed(session, calibrated.text, 40);
    decode(engine, session, tokens, n);
    moe_session_close(&session);
}

/* The first token comes from the prompt's exact pass. */
static void first_positions(void **state)
{
    (void)state;
    moe_engine_options options = lossy_options();
    moe_engine *engine = open_engine(&options);
    moe_lossy_stats before = lossy_stats(engine);
    assert_true(before.on && before.compared == 0);
    assert_true(isnan(before.mean_kl) && isnan(before.max_kl));
    write_answer(engine, 4);
    moe_lossy_stats after = lossy_stats(engine);
    assert_int_equal(after.compared, 3);
    assert_true(after.replaced > 0 && after.mean_kl > 0.0 && after.max_kl >= after.mean_kl);
    write_answer(engine, 40); /* another session: its first ones, too */
    assert_int_equal(lossy_stats(engine).compared, 3 + FIRST_POSITIONS);
    moe_engine_close(&engine);
}

static void limit_acts_at_once(void **state)
{
    (void)state;
    moe_engine_options options = lossy_options();
    lossy_of(&options)->quality_limit = 1e-9;
    moe_engine *engine = open_engine(&options);
    write_answer(engine, 1 + FIRST_POSITIONS);
    moe_lossy_stats stats = lossy_stats(engine);
    assert_false(stats.on);
    assert_true(stats.compared >= 1 && stats.compared <= FIRST_POSITIONS);
    write_answer(engine, 40);
    moe_lossy_stats later = lossy_stats(engine);
    assert_true(!later.on && later.picks == stats.picks && later.compared == stats.compared);
    moe_engine_close(&engine);
}

static bool ignore_logits(size_t position, const float *logits, void *user)
{
    (void)position;
    (void)logits;
    (void)user;
    return true;
}

/* A pass of many rows is compared in its first ones. */
static void scoring(void **state)
{
    (void)state;
    moe_engine_options options = lossy_options();
    moe_error error;
    options.prefill_chunk = 128;
    moe_engine *engine = open_engine(&options);
    moe_session *session = greedy_session(engine);
    assert_int_equal(moe_session_score(session, calibrated.text, 100, ignore_logits, NULL, &error),
                     MOE_OK);
    moe_lossy_stats stats = lossy_stats(engine);
    assert_int_equal(stats.compared, 64);
    assert_true(stats.picks > 0 && !isnan(stats.mean_kl));
    moe_session_close(&session);
    moe_engine_close(&engine);
}

static moe_lossy_stats stats_with(void (*set)(moe_lossy_options *lossy))
{
    moe_engine_options options = lossy_options();
    moe_lossy_options *lossy = lossy_of(&options);
    lossy->buddies_random = false;
    lossy->quality_share = 1.0;
    options.prefetch = MOE_SWITCH_OFF;
    options.warm_start = MOE_SWITCH_OFF;
    set(lossy);
    moe_engine *engine = open_engine(&options);
    write_answer(engine, 40);
    moe_lossy_stats stats = lossy_stats(engine);
    moe_engine_close(&engine);
    return stats;
}

static bool differ(void (*a)(moe_lossy_options *lossy), void (*b)(moe_lossy_options *lossy))
{
    moe_lossy_stats x = stats_with(a);
    moe_lossy_stats y = stats_with(b);
    return x.replaced != y.replaced || x.mean_kl != y.mean_kl;
}

static void set_none(moe_lossy_options *lossy)
{
    lossy->buddies_max = 4;
}

static void set_epsilon(moe_lossy_options *lossy)
{
    lossy->buddies_max = 8;
    lossy->buddies_alpha = 0.5f;
    lossy->buddies_epsilon = 1e6f;
}

static void set_no_epsilon(moe_lossy_options *lossy)
{
    set_epsilon(lossy);
    lossy->buddies_epsilon = 0.0f;
}

static void set_weighted(moe_lossy_options *lossy)
{
    lossy->buddies_max = 1;
    lossy->buddies_weighted = true;
}

static void set_single(moe_lossy_options *lossy)
{
    lossy->buddies_max = 1;
}

static void set_reuse(moe_lossy_options *lossy)
{
    lossy->buddies_reuse = 1.0f;
}

static void set_transfer(moe_lossy_options *lossy)
{
    lossy->buddies_transfer = 1ull << 40;
}

static void set_gate(moe_lossy_options *lossy)
{
    lossy->buddies_tae_percentile = 50;
}

static void set_temperature(moe_lossy_options *lossy)
{
    set_gate(lossy);
    lossy->buddies_temperature = 2.0f;
}

/* Each setting reaches the rule that it is of (tests/draft/test_buddy.c tests the rules). */
static void settings_act(void **state)
{
    (void)state;
    assert_false(differ(set_none, set_none));
    assert_true(differ(set_none, set_reuse));
    assert_true(differ(set_no_epsilon, set_epsilon));
    assert_true(differ(set_single, set_weighted));
    assert_true(differ(set_gate, set_temperature));
    /* The first pass alone: what the budget is to be compared with is not known yet. */
    uint64_t plain = stats_with(set_none).replaced;
    uint64_t first = stats_with(set_transfer).replaced;
    assert_true(first > 0 && first < plain / 4);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_lossy_quality MODEL\n");
        return 2;
    }
    calibrated.path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_positions),
        cmocka_unit_test(limit_acts_at_once),
        cmocka_unit_test(scoring),
        cmocka_unit_test(settings_act),
    };
    return cmocka_run_group_tests(tests, calibrated_setup, calibrated_teardown);
}
