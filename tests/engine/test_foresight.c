/* SPDX-License-Identifier: MIT */
/* The statistics of foresight: recall by layer and by position in the draft, and how far the
 * experts were that verification had to load. With every expert in memory the draft is the model
 * itself, so every choice of each row that the draft evaluated was foreseen. Usage: test_foresight
 * MODEL.gguf */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine_fixture.h"
#include "engine_options.h"

#define N_PROMPT 200 /* enough for every expert to be asked for */
#define DRAFT    3u
#define N_DECODE 60

static const char *model_path;

static moe_engine *open_with(double cache_share, int foresight)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.n_threads = 2;
    options.context = 512;
    options.speculate = MOE_SPECULATE_SELF;
    lab_of(&options)->length_control = MOE_LENGTH_STATIC;
    options.draft_max = DRAFT;
    options.expert_cache_share = cache_share;
    lab_of(&options)->foresight = foresight;
    options.prefetch = MOE_SWITCH_OFF;
    return open_engine(&options);
}

/* The statistics after a prompt and some text. */
static moe_speculation_stats write_with(double cache_share, int foresight, uint64_t *misses)
{
    moe_engine *engine = open_with(cache_share, foresight);
    moe_session *session = greedy_session(engine);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    int32_t prompt[N_PROMPT], tokens[N_DECODE + 8];
    make_prompt(prompt, N_PROMPT, info.n_vocab, 5);
    feed(session, prompt, N_PROMPT);
    moe_engine_stats before = {.struct_size = sizeof before}, after = before;
    size_t n = 0;
    while (n < N_DECODE) {
        assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
        if (n == 0) {
            moe_engine_get_stats(engine, &before);
        }
        n += moe_session_take(session, tokens, sizeof tokens / sizeof *tokens);
    }
    moe_engine_get_stats(engine, &after);
    *misses = after.expert_misses - before.expert_misses;
    moe_session_close(&session);
    moe_engine_close(&engine);
    return after.speculation;
}

static uint64_t needed_by(const moe_speculation_stats *s)
{
    return s->verify_bytes_ready + s->verify_bytes_loading + s->verify_bytes_queued +
           s->verify_bytes_predicted + s->verify_bytes_missed;
}

static void all_in_memory(void **state)
{
    (void)state;
    uint64_t misses;
    moe_speculation_stats s = write_with(1.0, MOE_SWITCH_ON, &misses);
    assert_int_equal(misses, 0); /* the prompt has brought every expert */
    assert_int_equal(needed_by(&s), 0);
    assert_int_equal(s.accepted, s.drafted);
    for (uint32_t i = 0; i < DRAFT; i++) {
        assert_true(s.foresight_picks_at[i] > 0);
        assert_int_equal(s.foresight_right_at[i], s.foresight_picks_at[i]);
    }
    /* The last drafted token is the one that the draft has not been through. */
    assert_true(s.foresight_picks_at[DRAFT] > 0);
    assert_true(s.foresight_right_at[DRAFT] < s.foresight_picks_at[DRAFT]);
    assert_int_equal(s.foresight_picks_at[DRAFT + 1], 0);
}

static void half_in_memory(void **state)
{
    (void)state;
    uint64_t misses, asked = 0, right = 0;
    moe_speculation_stats s = write_with(0.5, MOE_SWITCH_ON, &misses);
    for (size_t l = 0; l < MOE_FORESIGHT_LAYERS; l++) {
        assert_true(s.foresight_right_of[l] <= s.foresight_asked_of[l]);
        asked += s.foresight_asked_of[l];
        right += s.foresight_right_of[l];
    }
    assert_int_equal(asked, s.foresight_asked);
    assert_int_equal(right, s.foresight_right);
    assert_true(right > 0 && right < asked);
    for (size_t i = 0; i < MOE_DRAFT_POSITIONS; i++) {
        assert_true(s.foresight_right_at[i] <= s.foresight_picks_at[i]);
    }
    /* Some experts were on their way before verification asked, others nobody had foreseen. */
    assert_true(s.verify_bytes_ready + s.verify_bytes_loading > 0);
    assert_true(s.verify_bytes_missed > 0);
    assert_int_equal(s.verify_bytes_predicted, 0);
    /* What was still queued may move as verification's own demand. */
    assert_true(s.verify_bytes_ready + s.verify_bytes_loading <= s.bytes_foresight);
}

static void without_foresight(void **state)
{
    (void)state;
    uint64_t misses;
    moe_speculation_stats s = write_with(0.5, MOE_SWITCH_OFF, &misses);
    assert_true(s.draft_passes > 0 && misses > 0);
    assert_int_equal(s.foresight_asked, 0);
    assert_int_equal(s.bytes_foresight, 0);
    assert_int_equal(s.verify_bytes_ready + s.verify_bytes_loading + s.verify_bytes_queued, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_in_memory),
        cmocka_unit_test(half_in_memory),
        cmocka_unit_test(without_foresight),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: %s MODEL.gguf\n", argv[0]);
        return 2;
    }
    model_path = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
