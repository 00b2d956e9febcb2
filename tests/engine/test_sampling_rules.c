/* SPDX-License-Identifier: MIT */
/* Penalties, biases and reports of a session: by their definitions, and the same with drafts as
 * without. Argument: the demo model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <math.h>

#include <moe/lab.h>
#include <moe/moe.h>
#include <moe/sampling.h>

#include "runtime/sampling/sampler.h"

#define N_TEXT 48u
static const char *model;

typedef struct text {
    int32_t tokens[N_TEXT];
    moe_token_report reports[N_TEXT];
} text;

static moe_engine *open_engine(moe_speculate speculate)
{
    moe_engine *engine;
    moe_error err = {""};
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model;
    options.context = 256;
    options.sessions = 2;
    options.n_threads = 2;
    moe_lab_options lab;
    moe_lab_options_init(&lab);
    lab.length_control = MOE_LENGTH_STATIC;
    options.lab = speculate == MOE_SPECULATE_OFF ? NULL : &lab;
    options.speculate = speculate;
    if (moe_engine_open(&engine, &options, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    return engine;
}

static moe_sampling sampling_of(float temperature)
{
    moe_sampling s;
    moe_sampling_init(&s);
    s.temperature = temperature;
    s.seed = 5;
    s.repeat_penalty = 1.1f;
    s.presence_penalty = 0.4f;
    s.frequency_penalty = 0.3f;
    return s;
}

static moe_session *begin(moe_engine *engine, float temperature)
{
    moe_session_options options;
    moe_session *session;
    int32_t *tokens;
    size_t n;
    const char *prompt = "The cat sat on the mat. The cat sat on the mat. The cat sat on";
    moe_session_options_init(&options);
    options.sampling = sampling_of(temperature);
    assert_int_equal(moe_tokenize(engine, prompt, strlen(prompt), 3, &tokens, &n, NULL), MOE_OK);
    assert_int_equal(moe_session_create(&session, engine, &options, NULL), MOE_OK);
    assert_int_equal(moe_session_feed(session, tokens, n, NULL), MOE_OK);
    moe_free(tokens);
    return session;
}

/* The first N_TEXT tokens and their reports. */
static void write_text(moe_engine *engine, moe_session *session, text *out)
{
    size_t n = 0;
    memset(out, 0, sizeof *out);
    while (n < N_TEXT) {
        int32_t tokens[128];
        moe_token_report reports[128];
        assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
        size_t taken = moe_session_take(session, tokens, 128);
        assert_int_equal(moe_session_take_reports(session, reports, 128), taken);
        for (size_t i = 0; i < taken && n < N_TEXT; i++, n++) {
            assert_int_equal(reports[i].chosen.token, tokens[i]);
            out->tokens[n] = tokens[i];
            out->reports[n] = reports[i];
        }
    }
}

static void same_with_drafts(void **state)
{
    (void)state;
    static const moe_speculate kinds[] = {MOE_SPECULATE_OFF, MOE_SPECULATE_NGRAM,
                                          MOE_SPECULATE_SELF};
    static text texts[3];
    const moe_token_bias biases[] = {{5, 2.5f}, {9, -INFINITY}, {11, -3.0f}};
    for (int t = 0; t < 2; t++) {
        for (int k = 0; k < 3; k++) {
            moe_engine *engine = open_engine(kinds[k]);
            moe_session *session = begin(engine, t == 0 ? 0.0f : 0.9f);
            assert_int_equal(moe_session_set_biases(session, biases, 3, NULL), MOE_OK);
            assert_int_equal(moe_session_set_reports(session, 5, NULL), MOE_OK);
            write_text(engine, session, &texts[k]);
            moe_engine_stats stats = {.struct_size = sizeof stats};
            assert_int_equal(moe_engine_get_stats(engine, &stats), MOE_OK);
            assert_true((stats.speculation.drafted > 0) == (k > 0));
            moe_session_close(&session);
            moe_engine_close(&engine);
        }
        assert_memory_equal(&texts[0], &texts[1], sizeof texts[0]);
        assert_memory_equal(&texts[0], &texts[2], sizeof texts[0]);
    }
}

/* Reports are the softmax of the logits as they were, and forks go on with all that was set. */
static void reports_softmax(void **state)
{
    (void)state;
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine *engine = open_engine(MOE_SPECULATE_OFF);
    moe_session *session = begin(engine, 0.8f);
    moe_session *fork;
    moe_token_report report, forked;
    int32_t token;
    assert_int_equal(moe_engine_get_info(engine, &info), MOE_OK);
    assert_int_equal(moe_session_set_reports(session, 20, NULL), MOE_OK);
    assert_int_equal(moe_session_set_reports(session, 21, NULL), MOE_ERR_ARGUMENT);
    const moe_token_bias ban = {7, -INFINITY};
    assert_int_equal(moe_session_set_biases(session, &ban, 1, NULL), MOE_OK);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
        const float *logits = moe_session_logits(session);
        double sum = 0;
        int n_above = 0;
        assert_int_equal(moe_session_take(session, &token, 1), 1);
        assert_int_equal(moe_session_take_reports(session, &report, 1), 1);
        if (logits == NULL) { /* the sampled token is not evaluated yet */
            continue;
        }
        assert_int_equal(
            moe_token_report_make(&forked, logits, info.n_vocab, report.chosen.token, 20, NULL),
            MOE_OK);
        assert_memory_equal(&forked, &report, sizeof forked);
        assert_int_equal(moe_token_report_make(&forked, logits, info.n_vocab, -1, 5, NULL),
                         MOE_ERR_ARGUMENT);
        assert_int_equal(moe_token_report_make(&forked, logits, info.n_vocab, 3, 21, NULL),
                         MOE_ERR_ARGUMENT);
        for (uint32_t t = 0; t < info.n_vocab; t++) {
            sum += exp((double)logits[t]);
            n_above += logits[t] > logits[report.top[19].token];
        }
        assert_float_equal(report.chosen.logprob, (double)logits[token] - log(sum), 1e-4);
        assert_float_equal(report.top[0].logprob, (double)logits[report.top[0].token] - log(sum),
                           1e-4);
        assert_int_equal(report.n_top, 20);
        assert_true(n_above <= 19);
        assert_int_not_equal(token, 7);
    }
    assert_int_equal(moe_session_fork(&fork, session, NULL), MOE_OK);
    for (int i = 0; i < 8; i++) {
        int32_t other;
        moe_session *both[] = {session, fork};
        assert_int_equal(moe_step(engine, both, 2, NULL), MOE_OK);
        assert_int_equal(moe_session_take(session, &token, 1), 1);
        assert_int_equal(moe_session_take(fork, &other, 1), 1);
        assert_int_equal(moe_session_take_reports(session, &report, 1), 1);
        assert_int_equal(moe_session_take_reports(fork, &forked, 1), 1);
        assert_int_equal(token, other);
        assert_memory_equal(&report, &forked, sizeof report);
    }
    moe_session_close(&fork);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

/* The order and the amounts that the header states, on logits made up here. */
static void definitions(void **state)
{
    (void)state;
    enum { N = 8 };
    const float logits[N] = {2, 1.9f, 1.8f, -1, 0, 0.5f, 1.7f, 1.6f};
    const int32_t recent[] = {1, 0, 3, 0, 0};
    const moe_token_bias biases[] = {{2, -INFINITY}, {4, 1.0f}, {4, 0.25f}};
    float want[N];
    moe_sampling s = sampling_of(1.0f);
    moe_sampler sampler;
    moe_distribution out;
    s.top_k = 0;
    s.top_p = 1.0f;
    s.min_p = 0.0f;
    s.repeat_last = 4; /* the 1 is too long ago */
    assert_int_equal(moe_sampler_init(&sampler, &s, N, NULL), MOE_OK);
    assert_int_equal(moe_sampler_set_biases(&sampler, biases, 3, NULL), MOE_OK);
    memcpy(want, logits, sizeof want);
    want[2] = -INFINITY;
    want[4] += 1.25f;
    want[0] = want[0] / 1.1f - 0.4f - 3 * 0.3f;
    want[3] = want[3] * 1.1f - 0.4f - 0.3f;
    moe_sampler_distribution(&sampler, logits, recent, 5, &out);
    double total = moe_distribution_total(&out);
    double sum = 0;
    for (int t = 0; t < N; t++) {
        sum += exp((double)want[t]);
    }
    for (uint32_t i = 0; i < out.n; i++) {
        double p = exp((double)want[out.choices[i].token]) / sum;
        assert_float_equal(out.choices[i].p / total, p, 1e-6);
    }
    const moe_token_bias wrong[] = {{N, 1}, {-1, 1}, {0, NAN}, {0, INFINITY}};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(moe_sampler_set_biases(&sampler, &wrong[i], 1, NULL), MOE_ERR_ARGUMENT);
    }
    moe_sampler_free(&sampler);
    s.presence_penalty = NAN;
    moe_sampling own;
    moe_sampling_init(&own);
    assert_int_equal(moe_sampling_take(&own, &s, NULL), MOE_ERR_ARGUMENT);
}

/* A saved session goes on with its penalties. */
static void saved(void **state)
{
    (void)state;
    char path[] = "/tmp/sampling-rules-XXXXXX";
    int file = mkstemp(path);
    moe_session *loaded;
    moe_engine *engine = open_engine(MOE_SPECULATE_OFF);
    moe_session *session = begin(engine, 0.8f);
    assert_true(file >= 0);
    close(file);
    assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
    assert_int_equal(moe_session_save(session, path, NULL), MOE_OK);
    assert_int_equal(moe_session_load(&loaded, engine, path, NULL), MOE_OK);
    unlink(path);
    for (int i = 0; i < 24; i++) {
        moe_session *both[] = {session, loaded};
        assert_int_equal(moe_step(engine, both, 2, NULL), MOE_OK);
    }
    size_t n = moe_session_n_tokens(session);
    assert_int_equal(moe_session_n_tokens(loaded), n);
    assert_memory_equal(moe_session_tokens(session), moe_session_tokens(loaded),
                        n * sizeof(int32_t));
    moe_session_close(&loaded);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(definitions),
        cmocka_unit_test(same_with_drafts),
        cmocka_unit_test(reports_softmax),
        cmocka_unit_test(saved),
    };
    if (argc < 2) {
        return 1;
    }
    model = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
