/* SPDX-License-Identifier: MIT */
/* What is told of passes while they run: at most ten times a second, figures that fit each other,
 * and the same text as without. Argument: a model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include <moe/moe.h>

#include "tests/engine/engine_fixture.h"

enum { N_PROMPT = 48, N_WRITTEN = 24 };

static const char *model_path;

typedef struct told {
    uint64_t n;
    double last_s;         /* when; 0: not yet */
    uint32_t layers, most; /* of the model; the most that were done */
} told;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void tell(const moe_pass_progress *p, void *user)
{
    told *t = user;
    t->n++;
    t->last_s = now_s();
    t->layers = p->n_layer;
    t->most = p->layer > t->most ? p->layer : t->most;
    assert_true(p->layer <= p->n_layer);
    assert_true(p->n_rows > 0 && p->rows_done <= p->n_rows);
    assert_true(p->seconds >= 0);
    if (p->seconds_expected == 0) { /* of the demo model all layers have experts */
        assert_true(p->layer == 0 && p->rows_done == 0 && p->bytes_expected == 0);
    } else {
        assert_true(p->seconds_expected >= p->seconds);
        assert_true(p->bytes_expected >= p->bytes_read);
    }
    /* The layer's own rows are done chunk by chunk, if the prompt is a panel. */
    assert_in_range(p->rows_done, p->n_rows * p->layer / p->n_layer,
                    p->n_rows * (p->layer + 1) / p->n_layer);
}

static void write_text(moe_engine *engine, uint32_t seed, int32_t *out)
{
    int32_t prompt[N_PROMPT];
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    make_prompt(prompt, N_PROMPT, info.n_vocab, seed);
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_PROMPT);
    decode(engine, session, out, N_WRITTEN);
    moe_session_close(&session);
}

static void passes_are_told(void **state)
{
    (void)state;
    told t = {0};
    int32_t plain[N_WRITTEN], watched[N_WRITTEN];
    moe_engine_options options = fixture_options(model_path, 16, 128);
    options.expert_cache_share = 0.3;
    moe_engine *engine = open_engine(&options);
    write_text(engine, 1, plain);
    moe_engine_close(&engine);
    options.pass_progress = tell;
    options.user = &t;
    engine = open_engine(&options);
    const double begin = now_s();
    while (now_s() - begin < 0.8 || t.n < 3) {
        write_text(engine, 1, watched);
        assert_memory_equal(watched, plain, sizeof plain);
    }
    /* A busy machine may call late, and the next time after less than 0.1 s, but not more often. */
    assert_true((double)t.n <= 1 + (t.last_s - begin) / 0.1);
    assert_true(t.layers > 0);

    /* Another function takes its place, and none. */
    told other = {0};
    const uint64_t before = t.n;
    assert_int_equal(moe_engine_set_pass_progress(engine, tell, &other, NULL), MOE_OK);
    while (other.n == 0) {
        write_text(engine, 2, watched);
    }
    assert_int_equal(moe_engine_set_pass_progress(engine, NULL, NULL, NULL), MOE_OK);
    other.n = 0;
    for (const double from = now_s(); now_s() - from < 0.3;) {
        write_text(engine, 2, watched);
    }
    assert_int_equal(other.n, 0);
    assert_int_equal(t.n, before);
    moe_engine_close(&engine);
}

static void without_a_model(void **state)
{
    (void)state;
    moe_error err = {""};
    moe_engine_options options = fixture_options(model_path, 0, 0);
    options.vocabulary_only = true;
    moe_engine *engine = open_engine(&options);
    assert_int_equal(moe_engine_set_pass_progress(engine, tell, NULL, &err), MOE_ERR_UNSUPPORTED);
    assert_int_equal(moe_engine_set_pass_progress(NULL, tell, NULL, &err), MOE_ERR_ARGUMENT);
    moe_engine_close(&engine);
}

int main(int argc, char **argv)
{
    model_path = argc > 1 ? argv[1] : "";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_are_told),
        cmocka_unit_test(without_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
