/* SPDX-License-Identifier: MIT */
#include "tests/engine/panel_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/engine/engine_fixture.h"
#include "tests/engine/engine_options.h"
#include "tests/test_size.h"

const char *model_path;
uint32_t n_long = MOST_LONG;

void panel_fixture_open(int argc, char **argv)
{
    model_path = argc > 1 ? argv[1] : "";
    n_long = test_is_small() ? 260 : MOST_LONG;
}

moe_engine_options options_of(uint32_t chunk, uint32_t panel, double share)
{
    moe_engine_options o = fixture_options(model_path, chunk, CONTEXT);
    o.calibration = "none";
    o.expert_cache_share = share;
    o.panel = panel;
    return o;
}

void prompt_of(moe_engine *engine, uint32_t n, uint32_t seed, int32_t *prompt)
{
    make_prompt(prompt, n, engine->config.n_vocab, seed);
}

moe_session *fed_session(moe_engine *engine, uint32_t n, uint32_t seed)
{
    int32_t prompt[CONTEXT];
    prompt_of(engine, n, seed, prompt);
    moe_session *session = greedy_session(engine);
    feed(session, prompt, n);
    return session;
}

void step(moe_engine *engine, moe_session *const *sessions, size_t n)
{
    moe_error error = {""};
    if (moe_step(engine, sessions, n, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
}

traffic traffic_of(moe_engine *engine)
{
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(engine, &stats);
    return (traffic){stats.bytes_read_disk, stats.bytes_moved_link};
}

/* Of evaluating the prompt alone. */
traffic evaluate(moe_engine *engine, uint32_t n, uint32_t seed)
{
    int32_t prompt[CONTEXT];
    moe_session_options o;
    moe_session_options_init(&o);
    o.evaluate_only = true;
    moe_session *session = NULL;
    assert_int_equal(moe_session_create(&session, engine, &o, NULL), MOE_OK);
    prompt_of(engine, n, seed, prompt);
    feed(session, prompt, n);
    traffic before = traffic_of(engine);
    while (moe_session_n_pending(session) > 0) {
        step(engine, &session, 1);
    }
    traffic after = traffic_of(engine);
    moe_session_close(&session);
    return (traffic){after.read - before.read, after.moved - before.moved};
}

/* Everything that sessions took is back. */
void check_returned(moe_engine *engine)
{
    assert_int_equal(engine->panel.n_prompts, 0);
    assert_int_equal(engine->border.ram_granted, 0);
    assert_true(moe_memory_border_check(&engine->border));
}

uint8_t *tiers_of(const moe_engine *engine, uint32_t *n)
{
    *n = engine->config.n_layer * engine->config.n_expert;
    uint8_t *tiers = calloc(*n, 1);
    moe_expert_store_tiers(engine->runner.experts, tiers);
    return tiers;
}

used_experts used_by(uint32_t n, uint32_t seed, const char *device)
{
    moe_engine_options o = options_of(64, 1, device == NULL ? 1.0 : 0);
    o.prefetch = MOE_SWITCH_OFF;
    o.device = device == NULL ? o.device : "sim:memory=256M,link=20GB/s,latency=1us";
    moe_engine *engine = open_engine(&o);
    used_experts used = {.bytes = evaluate(engine, n, seed)};
    used.is = tiers_of(engine, &used.n_all);
    for (uint32_t k = 0; k < used.n_all; k++) {
        used.is[k] = used.is[k] == MOE_TIER_DEVICE;
        used.n += used.is[k];
    }
    moe_engine_close(&engine);
    return used;
}

void write_alone(moe_engine *engine, uint32_t n, uint32_t seed, int32_t *out)
{
    moe_session *session = fed_session(engine, n, seed);
    decode(engine, session, out, N_WRITTEN);
    moe_session_close(&session);
}

/* Evaluates the session's prompt; returns a copy of the last position's logits. */
float *logits_behind(moe_engine *engine, moe_session *session)
{
    const size_t bytes = engine->config.n_vocab * sizeof(float);
    float *logits = malloc(bytes);
    while (moe_session_n_pending(session) > 0) {
        step(engine, &session, 1);
    }
    return memcpy(logits, moe_session_logits(session), bytes);
}
