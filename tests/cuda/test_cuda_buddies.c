/* SPDX-License-Identifier: MIT */
/* Lossy: tokens that the emulated GPU carries out alone, with buddies in place of missing experts
 * on the device. Text, logits and counts equal those with buddies that the host chooses. Runs on a
 * model given by path, after calibrating it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <moe/calibrate.h>
#include <moe/lossy_modes.h>

#include "../engine/engine_fixture.h"
#include "fake_module.h"

#define N_TEXT   200
#define N_PROMPT 24
#define N_DECODE 24

static const char *model_path;
static fake_module fake;
static char folder[] = "/tmp/moe-buddies-XXXXXX";
static char sidecar[sizeof folder + 16];
static uint32_t n_vocab;

static moe_engine_options options_on(const char *device)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.n_threads = 2;
    options.prefill_chunk = 64;
    options.context = 256;
    options.device = device;
    return options;
}

static int calibrate(void **state)
{
    (void)state;
    find_fake_module(&fake);
    assert_non_null(mkdtemp(folder));
    snprintf(sidecar, sizeof sidecar, "%s/cal.gguf", folder);
    moe_engine_options options = options_on("cpu");
    options.calibration = "none";
    moe_engine *engine = open_engine(&options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    n_vocab = info.n_vocab;
    int32_t text[N_TEXT];
    make_prompt(text, N_TEXT, n_vocab, 5);
    moe_calibrate_options how;
    moe_calibrate_options_init(&how);
    how.tokens = text;
    how.n_tokens = N_TEXT;
    how.path = sidecar;
    moe_error err = {""};
    if (moe_calibrate(engine, &how, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    moe_engine_close(&engine);
    return 0;
}

static int clean_up(void **state)
{
    (void)state;
    remove(sidecar);
    return remove(folder);
}

typedef struct outcome {
    int32_t tokens[N_DECODE];
    float *logits;
    moe_engine_stats stats;
} outcome;

static void write_text(const moe_lossy_options *lossy, bool plays, outcome *out)
{
    fake_machine machine;
    fake.init(&machine);
    machine.fail_call = plays ? NULL : "cudaStreamBeginCapture";
    machine.fail_code = cudaErrorNotSupported;
    machine.fail_each = true;
    fake.set(&machine);
    moe_engine_options options = options_on("cuda");
    options.calibration = sidecar;
    options.warm_start = MOE_SWITCH_OFF; /* what is resident does not depend on when reads arrive */
    options.expert_cache_share = 0.5;
    options.host_compute = MOE_SWITCH_OFF;
    options.prefetch = MOE_SWITCH_OFF;
    options.lossy = lossy;
    moe_engine *engine = open_engine(&options);
    int32_t prompt[N_PROMPT];
    make_prompt(prompt, N_PROMPT, n_vocab, 1);
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_PROMPT);
    decode(engine, session, out->tokens, N_DECODE);
    out->logits = malloc(n_vocab * sizeof *out->logits);
    memcpy(out->logits, moe_session_logits(session), n_vocab * sizeof *out->logits);
    out->stats.struct_size = sizeof out->stats;
    moe_engine_get_stats(engine, &out->stats);
    moe_session_close(&session);
    moe_engine_close(&engine);
    assert_nothing_left(&fake);
}

static void compare(const moe_lossy_options *lossy, bool always_plays)
{
    outcome alone, routed;
    write_text(lossy, true, &alone);
    write_text(lossy, false, &routed);
    const moe_engine_stats *a = &alone.stats, *r = &routed.stats;
    if (memcmp(alone.tokens, routed.tokens, sizeof alone.tokens) != 0 ||
        memcmp(alone.logits, routed.logits, n_vocab * sizeof(float)) != 0) {
        fail_msg("another text or other logits: rho %u", lossy->buddies_max_replaced);
    }
    assert_int_equal(a->lossy.picks, r->lossy.picks);
    assert_int_equal(a->lossy.replaced, r->lossy.replaced);
    assert_int_equal(a->lossy.dropped, r->lossy.dropped);
    assert_int_equal(a->lossy.compared, r->lossy.compared);
    assert_int_equal(a->lossy.agreed, r->lossy.agreed);
    assert_int_equal(a->expert_hits, r->expert_hits);
    assert_int_equal(a->expert_misses, r->expert_misses);
    assert_true(r->lossy.compared > 0 && r->lossy.replaced > 0);
    assert_int_equal(r->passes_recorded, 0);
    assert_true(a->passes_recorded > 0);
    /* The first token comes of the prompt's pass. */
    assert_true(!always_plays || (a->passes_recorded == N_DECODE - 1 && a->passes_missed == 0));
    free(alone.logits);
    free(routed.logits);
}

static moe_lossy_options buddies(uint32_t rho, uint32_t tae)
{
    moe_lossy_options lossy;
    moe_lossy_options_init(&lossy);
    lossy.buddies = true;
    lossy.buddies_max_replaced = rho;
    lossy.buddies_tae_percentile = tae;
    lossy.buddies_own_weight = false;
    lossy.buddies_max = 16;
    lossy.quality_share = 0.3;
    return lossy;
}

static void same_as_by_the_host(void **state)
{
    (void)state;
    moe_lossy_options lossy = buddies(64, 0);
    compare(&lossy, false);
    lossy.buddies_alpha = 1;
    lossy.buddies_own_weight = true;
    compare(&lossy, false);
    lossy = buddies(64, 0);
    lossy.buddies_drop = true;
    compare(&lossy, true);
    lossy.buddies_search = 1;
    lossy.buddies_own_weight = true;
    compare(&lossy, true);
    lossy = buddies(2, 30);
    lossy.buddies_margin = 0.9f;
    lossy.buddies_beta = 0.9f;
    compare(&lossy, false);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s MODEL\n", argv[0]);
        return 2;
    }
    model_path = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_as_by_the_host)};
    return cmocka_run_group_tests(tests, calibrate, clean_up);
}
