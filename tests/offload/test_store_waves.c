/* SPDX-License-Identifier: MIT */
/* Fewer slots than a token has experts in a layer: every layer works in waves, down to one expert
 * each, and the text is that of a cache that holds everything. The plan refuses such caches,
 * because they decode slowly; but they can occur with per-layer slots and with size classes. Usage:
 * test_store_waves ORACLE-FOLDER */
#include "tests/offload/store_fixture.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define N_PROMPT   40
#define N_DECODE   20
#define SIM_DEVICE "sim:memory=64M,link=8GB/s,latency=2us"

static const char *folder;
static char model_path[1024];

typedef struct shape {
    uint32_t n_slots;
    bool per_layer, keep_nothing, prefetch;
    const char *device;
} shape;

/* All experts are of one size in these models. */
static void give_slots(moe_expert_store_options *options, void *user)
{
    const shape *s = user;
    moe_expert_slot_sizes sizes;
    moe_error error;
    assert_int_equal(
        moe_expert_store_sizes(options->map, options->device->link != NULL, &sizes, &error),
        MOE_OK);
    options->budget_bytes = s->n_slots * sizes.slot_bytes + sizes.slot_bytes / 2;
    options->host_budget_bytes = s->n_slots * sizes.host_slot_bytes + sizes.host_slot_bytes / 2;
    options->per_layer = s->per_layer;
    options->keep_nothing = s->keep_nothing;
}

static void write_tokens(moe_engine *engine, int32_t *tokens)
{
    moe_session_options options;
    moe_session_options_init(&options);
    options.sampling.temperature = 0.0f;
    moe_session *session;
    assert_int_equal(moe_session_create(&session, engine, &options, NULL), MOE_OK);
    int32_t prompt[N_PROMPT];
    for (int32_t i = 0; i < N_PROMPT; i++) {
        prompt[i] = i * i * 7 % 288;
    }
    assert_int_equal(moe_session_feed(session, prompt, N_PROMPT, NULL), MOE_OK);
    for (size_t n = 0; n < N_DECODE;) {
        moe_error error;
        if (moe_step(engine, &session, 1, &error) != MOE_OK) {
            fail_msg("%s", error.message);
        }
        n += moe_session_take(session, tokens + n, N_DECODE - n);
    }
    moe_session_close(&session);
}

static void check_shape(const shape *s, const int32_t *expected)
{
    int32_t tokens[N_DECODE];
    moe_expert_store_stats stats;
    store_fixture f;
    store_fixture_open_on(&f, s->device, model_path, 1.0, give_slots, (void *)(uintptr_t)s);
    f.engine->runner.prefetch = s->prefetch;
    write_tokens(f.engine, tokens);
    moe_expert_store_get_stats(f.engine->runner.experts, &stats);
    store_fixture_close(&f);
    assert_int_equal(stats.n_slots, s->n_slots);
    assert_true(stats.misses >= N_DECODE);
    assert_memory_equal(tokens, expected, sizeof tokens);
}

static void check_model(const char *name, uint32_t n_used)
{
    static const char *const devices[] = {"cpu", SIM_DEVICE};
    int32_t expected[N_DECODE];
    store_fixture f;
    snprintf(model_path, sizeof model_path, "%s/%s/model.gguf", folder, name);
    store_fixture_open(&f, model_path, 1.0, NULL, NULL);
    assert_int_equal(f.engine->config.n_expert_used, n_used);
    uint32_t n_layers = 0;
    for (uint32_t l = 0; l < f.map->n_layer; l++) {
        n_layers += f.map->layers[l].experts != NULL;
    }
    write_tokens(f.engine, expected);
    store_fixture_close(&f);
    for (size_t d = 0; d < 2; d++) {
        for (uint32_t n = 1; n <= n_used; n++) {
            for (uint32_t kind = 0; kind < 8; kind++) {
                shape s = {.n_slots = n,
                           .per_layer = (kind & 1) != 0,
                           .keep_nothing = (kind & 2) != 0,
                           .prefetch = (kind & 4) != 0,
                           .device = devices[d]};
                s.n_slots = s.per_layer ? n * n_layers : n;
                if (!s.keep_nothing || !s.prefetch) { /* nothing is kept that was foreseen */
                    check_shape(&s, expected);
                }
            }
        }
    }
}

static void fewer_slots_than_experts_of_a_token(void **state)
{
    (void)state;
    check_model("olmoe", 3);
    check_model("deepseek2-v3", 4);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_store_waves ORACLE-FOLDER\n");
        return 2;
    }
    alarm(1800); /* a hang is a failure */
    folder = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(fewer_slots_than_experts_of_a_token)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
