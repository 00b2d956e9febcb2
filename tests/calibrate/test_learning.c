/* SPDX-License-Identifier: MIT */
/* Learning from use, and warm starts from what was learnt: counts equal those of a calibration on
 * the same tokens, the sidecar is merged and never torn, and an engine that had time to fill its
 * slots writes the same tokens with fewer misses. Usage: test_learning MODEL.gguf. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include <moe/calibrate.h>

#include "runtime/sidecar/calibration.h"
#include "tests/engine/engine_fixture.h"
#include "../engine/engine_options.h"

#define N_TOKENS 300
#define N_DECODE 12
#define N_KILLS  16

static const char *model_path;
static const char *own_path;
static char folder[] = "/tmp/moe-learning-XXXXXX";
static int32_t text[N_TOKENS];
static moe_engine_info info = {.struct_size = sizeof info}; /* of the model; its strings are gone */

static const char *in_folder(char *out, const char *name)
{
    snprintf(out, 128, "%s/%s", folder, name);
    return out;
}

static moe_engine_options engine_options(const char *calibration)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.n_threads = 2;
    options.prefill_chunk = 64;
    options.context = 512;
    options.calibration = calibration;
    return options;
}

static int setup(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    moe_engine_options options = engine_options("none");
    moe_engine *engine = open_engine(&options);
    moe_engine_get_info(engine, &info);
    moe_engine_close(&engine);
    make_prompt(text, N_TOKENS, info.n_vocab, 5);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static moe_calibration *load(const char *path)
{
    moe_calibration_shape shape = {info.fingerprint, info.n_layer, info.n_expert,
                                   info.n_expert_used, info.n_embd};
    moe_calibration *c = NULL;
    moe_error error;
    if (moe_calibration_load(&c, path, &shape, true, NULL, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    return c;
}

/* Evaluates the text, n tokens of it. */
static void evaluate(moe_engine *engine, size_t n)
{
    moe_session *session = greedy_session(engine);
    feed(session, text, n);
    while (moe_session_n_pending(session) > 0) {
        int32_t token;
        assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
        if (moe_session_take(session, &token, 1) > 0) {
            break; /* sampled: the text is evaluated */
        }
    }
    moe_session_close(&session);
}

static void learn(moe_engine *engine, const char *path, uint64_t expected)
{
    uint64_t n = 0;
    moe_error error;
    if (moe_learn_save(engine, path, &n, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(n, expected);
}

/* ---- Drafts ---- */

/* Tokens written with costs by bytes until the first draft is verified. *pays: most of what was
 * drafted was accepted. */
static uint32_t first_draft(const char *sidecar, const char *save_to, bool *pays)
{
    moe_engine_options options = engine_options(sidecar);
    options.speculate = MOE_SPECULATE_NGRAM;
    lab_of(&options)->cost_by_bytes = true;
    moe_engine *engine = open_engine(&options);
    assert_int_equal(moe_learn_begin(engine, NULL), MOE_OK);
    moe_session *session = greedy_session(engine);
    int32_t repeated[64], token;
    for (size_t i = 0; i < 64; i++) {
        repeated[i] = text[i % 8];
    }
    feed(session, repeated, 64);
    moe_engine_stats stats = {.struct_size = sizeof stats};
    uint32_t first = 0, n = 0;
    while (n < 300) {
        assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
        while (moe_session_take(session, &token, 1) > 0) {
            n++;
        }
        moe_engine_get_stats(engine, &stats);
        first = first == 0 && stats.speculation.drafted > 0 ? n : first;
    }
    *pays = 2 * stats.speculation.accepted > stats.speculation.drafted;
    moe_session_close(&session);
    if (save_to != NULL) {
        assert_int_equal(moe_learn_save(engine, save_to, NULL, NULL), MOE_OK);
    }
    moe_engine_close(&engine);
    return first;
}

/* What one engine learnt of its drafts the next one knows from the sidecar: it drafts sooner, or,
 * where they were mostly refused, later. */
static void drafts_are_carried(void **state)
{
    (void)state;
    char path[128];
    in_folder(path, "drafts.gguf");
    bool pays, still_pays;
    uint32_t before = first_draft("none", path, &pays);
    moe_calibration *c = load(path);
    assert_non_null(c->drafts);
    assert_true(c->drafts->of[0].depths[0].seen > 0);
    assert_true(c->drafts->of[0].costs[MOE_DRAFT_TIER_NONE].n > 0);
    moe_calibration_free(&c);
    uint32_t after = first_draft(path, NULL, &still_pays);
    print_message("first draft after %u tokens, with what was learnt after %u\n", before, after);
    assert_true(before > 0 && after > 0 && pays == still_pays);
    assert_true(pays ? after < before : after >= before);
}

/* ---- Counts ---- */

static void calibrate(const char *path)
{
    moe_engine_options options = engine_options("none");
    moe_engine *engine = open_engine(&options);
    moe_calibrate_options how;
    moe_calibrate_options_init(&how);
    how.tokens = text;
    how.n_tokens = N_TOKENS;
    how.path = path;
    how.gram = true;
    assert_int_equal(moe_calibrate(engine, &how, NULL), MOE_OK);
    moe_engine_close(&engine);
}

static void check_counts(const moe_calibration *c, const moe_calibration *once, uint64_t times)
{
    for (size_t i = 0; i < (size_t)info.n_layer * info.n_expert; i++) {
        assert_true(c->counts[i] == times * once->counts[i]);
    }
    assert_int_equal(c->n_tokens, times * once->n_tokens);
}

/* What one learns from a text is what a calibration counts on it; a second time adds to it; in a
 * calibration's sidecar all else stays. */
static void same_as_calibration(void **state)
{
    (void)state;
    char full[128], learnt[128];
    calibrate(in_folder(full, "full.gguf"));
    moe_calibration *calibrated = load(full);
    moe_engine_options options = engine_options("none");
    moe_engine *engine = open_engine(&options);
    evaluate(engine, 50); /* not counted: nobody has asked yet */
    assert_int_equal(moe_learn_begin(engine, NULL), MOE_OK);
    in_folder(learnt, "learnt.gguf");
    for (uint64_t times = 1; times <= 2; times++) {
        evaluate(engine, N_TOKENS);
        learn(engine, learnt, N_TOKENS);
        moe_calibration *c = load(learnt);
        assert_false(moe_calibration_has_tables(c));
        assert_int_equal(c->n_learned, times * N_TOKENS);
        check_counts(c, calibrated, times);
        moe_calibration_free(&c);
    }
    evaluate(engine, N_TOKENS);
    learn(engine, full, N_TOKENS);
    moe_calibration *merged = load(full);
    check_counts(merged, calibrated, 2);
    assert_int_equal(merged->n_learned, N_TOKENS);
    size_t n_pairs = (size_t)info.n_layer * info.n_expert * info.n_expert;
    assert_memory_equal(merged->coactivation, calibrated->coactivation, n_pairs * sizeof(float));
    assert_memory_equal(merged->gram, calibrated->gram,
                        (size_t)info.n_layer * info.n_embd * info.n_embd * sizeof(float));
    moe_calibration_free(&merged);
    moe_calibration_free(&calibrated);
    moe_engine_close(&engine);
}

/* A pass that fails counts for nothing, and those after it as ever. */
static void failed_passes(void **state)
{
    (void)state;
    char full[128], learnt[128];
    calibrate(in_folder(full, "full.gguf"));
    moe_calibration *calibrated = load(full);
    moe_engine_options options = engine_options("none");
    moe_engine *engine = open_engine(&options);
    assert_int_equal(moe_learn_begin(engine, NULL), MOE_OK);
    moe_session *session = greedy_session(engine);
    feed(session, text, 10);
    moe_session_cancel(session);
    assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_ERR_CANCELLED);
    moe_session_close(&session);
    moe_error error;
    assert_int_equal(moe_learn_save(engine, in_folder(learnt, "failed.gguf"), NULL, &error),
                     MOE_ERR_ARGUMENT);
    evaluate(engine, N_TOKENS);
    learn(engine, learnt, N_TOKENS);
    moe_calibration *c = load(learnt);
    check_counts(c, calibrated, 1);
    moe_calibration_free(&c);
    moe_calibration_free(&calibrated);
    moe_engine_close(&engine);
}

/* ---- The file ---- */

static void failures(void **state)
{
    (void)state;
    char foreign[128];
    moe_error error = {""};
    moe_engine_options options = engine_options("none");
    moe_engine *engine = open_engine(&options);
    assert_int_equal(moe_learn_save(engine, NULL, NULL, &error), MOE_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "nothing has been evaluated"));
    assert_int_equal(moe_learn_begin(engine, NULL), MOE_OK);
    evaluate(engine, 20);
    assert_int_equal(moe_learn_save(engine, "/proc/self/no-folder/x.gguf", NULL, &error),
                     MOE_ERR_IO);
    assert_non_null(strstr(error.message, "/proc/self/no-folder/x.gguf"));
    /* A file of another model stays. */
    moe_calibration_shape other = {~info.fingerprint, info.n_layer, info.n_expert,
                                   info.n_expert_used, info.n_embd};
    moe_calibration *c = NULL;
    in_folder(foreign, "foreign.gguf");
    assert_int_equal(moe_calibration_create(&c, &other, "", MOE_CALIBRATION_HOTNESS, NULL), MOE_OK);
    assert_int_equal(moe_calibration_save(c, foreign, NULL), MOE_OK);
    moe_calibration_free(&c);
    assert_int_equal(moe_learn_save(engine, foreign, NULL, &error), MOE_ERR_MISMATCH);
    assert_int_equal(moe_calibration_load(&c, foreign, &other, false, NULL, NULL), MOE_OK);
    moe_calibration_free(&c);
    /* What was counted is still there. */
    char learnt[128];
    learn(engine, in_folder(learnt, "late.gguf"), 20);
    moe_engine_close(&engine);
}

/* The child: learns over and over, until it is killed. */
static int run_child(const char *path)
{
    moe_engine_options options = engine_options("none");
    moe_engine *engine = NULL;
    make_prompt(text, N_TOKENS, 288, 5);
    if (moe_engine_open(&engine, &options, NULL) != MOE_OK ||
        moe_learn_begin(engine, NULL) != MOE_OK) {
        return 1;
    }
    for (;;) {
        evaluate(engine, 2);
        if (moe_learn_save(engine, path, NULL, NULL) != MOE_OK) {
            return 1;
        }
    }
}

/* Whenever it is killed, the file is whole: what had been learnt so far. */
static void killed(void **state)
{
    (void)state;
    char path[128];
    uint64_t n_before = 0;
    in_folder(path, "killed.gguf");
    for (int i = 0; i < N_KILLS; i++) {
        pid_t child = fork();
        if (child == 0) {
            execl(own_path, own_path, model_path, path, (char *)NULL);
            _exit(127);
        }
        /* The first one once it has written, however busy the machine is. */
        for (int n = 0; i == 0 && n < 24000 && access(path, F_OK) != 0; n++) {
            nanosleep(&(struct timespec){0, 5000000}, NULL);
        }
        nanosleep(&(struct timespec){0, 60000000 + 3100000 * i}, NULL);
        assert_int_equal(kill(child, SIGKILL), 0);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        if (access(path, F_OK) == 0) {
            moe_calibration *c = load(path);
            assert_true(c->n_learned >= n_before && c->n_learned % 2 == 0);
            n_before = c->n_learned;
            moe_calibration_free(&c);
        }
    }
    print_message("%llu tokens learnt between %d kills\n", (unsigned long long)n_before, N_KILLS);
    assert_true(n_before > 0);
}

/* ---- Starting with it ---- */

static void learn_text(const char *path)
{
    moe_engine_options options = engine_options("none");
    moe_engine *engine = open_engine(&options);
    assert_int_equal(moe_learn_begin(engine, NULL), MOE_OK);
    evaluate(engine, N_TOKENS);
    learn(engine, path, N_TOKENS);
    moe_engine_close(&engine);
}

/* Until nothing has arrived for a while. */
static void wait_until_filled(moe_engine *engine)
{
    moe_engine_stats stats = {.struct_size = sizeof stats};
    uint64_t last = 0;
    int n_alike = 0;
    for (int i = 0; i < 24000 && n_alike < 40; i++) {
        struct timespec pause = {0, 5000000};
        nanosleep(&pause, NULL);
        moe_engine_get_stats(engine, &stats);
        n_alike = stats.bytes_prefetch > 0 && stats.bytes_prefetch == last ? n_alike + 1 : 0;
        last = stats.bytes_prefetch;
    }
    assert_true(last > 0);
}

static void write_tokens(const moe_engine_options *options, bool filled, int32_t *tokens,
                         moe_engine_stats *stats)
{
    moe_engine *engine = open_engine(options);
    if (filled) {
        wait_until_filled(engine);
    }
    moe_session *session = greedy_session(engine);
    feed(session, text, 3);
    decode(engine, session, tokens, N_DECODE);
    stats->struct_size = sizeof *stats;
    moe_engine_get_stats(engine, stats);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

/* The first tokens: the same, with less to be waited for; on the CPU and behind a link. */
static void warm_start(void **state)
{
    (void)state;
    const char *const devices[] = {"cpu", "sim:memory=256M,link=8GB/s"};
    const double shares[] = {0.5, 1.0};
    char path[128];
    learn_text(in_folder(path, "warm.gguf"));
    for (size_t d = 0; d < 2; d++) {
        for (size_t i = 0; i < 2; i++) {
            moe_engine_options options = engine_options(path);
            options.device = devices[d];
            options.expert_cache_share = shares[i];
            options.prefetch = MOE_SWITCH_OFF;
            options.host_compute = MOE_SWITCH_OFF;
            options.warm_start = MOE_SWITCH_OFF;
            int32_t expected[N_DECODE], tokens[N_DECODE];
            moe_engine_stats cold, warm;
            write_tokens(&options, false, expected, &cold);
            assert_int_equal(cold.prefetches, 0);
            options.warm_start = MOE_SWITCH_AUTO;
            write_tokens(&options, false, tokens, &warm); /* no time to fill: cancelled */
            assert_memory_equal(tokens, expected, sizeof tokens);
            write_tokens(&options, true, tokens, &warm);
            assert_memory_equal(tokens, expected, sizeof tokens);
            print_message("%s, %g: misses %llu cold, %llu warm; prefetches %llu, used %llu\n",
                          devices[d], shares[i], (unsigned long long)cold.expert_misses,
                          (unsigned long long)warm.expert_misses,
                          (unsigned long long)warm.prefetches,
                          (unsigned long long)warm.prefetches_used);
            assert_true(warm.prefetches > 0 && warm.prefetches <= warm.expert_slots);
            assert_true(warm.expert_misses < cold.expert_misses);
            assert_true(warm.bytes_demand < cold.bytes_demand);
            assert_int_equal(warm.expert_hits + warm.expert_misses,
                             cold.expert_hits + cold.expert_misses);
        }
    }
}

/* Asked for where it cannot act, it is refused; by itself it then is off. */
static void refused(void **state)
{
    (void)state;
    char path[128];
    moe_engine *engine = NULL;
    moe_error error;
    moe_engine_options options = engine_options("none");
    options.warm_start = MOE_SWITCH_ON;
    assert_int_equal(moe_engine_open(&engine, &options, &error), MOE_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "moe-offload calibrate"));
    learn_text(in_folder(path, "refused.gguf"));
    options = engine_options(path);
    options.warm_start = MOE_SWITCH_ON;
    lab_of(&options)->offload = MOE_OFFLOAD_ON_DEMAND;
    assert_int_equal(moe_engine_open(&engine, &options, &error), MOE_ERR_ARGUMENT);
    options.warm_start = MOE_SWITCH_AUTO;
    engine = open_engine(&options);
    moe_engine_warm(engine);
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(engine, &stats);
    assert_int_equal(stats.prefetches, 0);
    moe_engine_close(&engine);
}

/* A sidecar of hotness alone is enough for some, and said not to be for others. */
static void hotness_alone(void **state)
{
    (void)state;
    char path[128];
    moe_engine *engine = NULL;
    moe_error error;
    learn_text(in_folder(path, "hotness.gguf"));
    moe_engine_options options = engine_options(path);
    options.policy = "hot-global";
    engine = open_engine(&options);
    evaluate(engine, 40);
    moe_engine_close(&engine);
    options.policy = NULL;
    options.expert_cache_share = 0.7;
    lab_of(&options)->offload = MOE_OFFLOAD_CACHING;
    engine = open_engine(&options);
    evaluate(engine, 40);
    moe_engine_close(&engine);
    options = engine_options(path);
    lossy_of(&options)->buddies = true;
    assert_int_equal(moe_engine_open(&engine, &options, &error), MOE_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "more than the hotness that conversations"));
    options.lossy = NULL;
    options.speculate = MOE_SPECULATE_SELF;
    lab_of(&options)->affinity = MOE_STAND_IN_COACT;
    assert_int_equal(moe_engine_open(&engine, &options, &error), MOE_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "moe-offload calibrate"));
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: test_learning MODEL.gguf [SIDECAR]\n");
        return 2;
    }
    own_path = argv[0];
    model_path = argv[1];
    if (argc == 3) {
        return run_child(argv[2]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_calibration),
        cmocka_unit_test(drafts_are_carried),
        cmocka_unit_test(failed_passes),
        cmocka_unit_test(failures),
        cmocka_unit_test(killed),
        cmocka_unit_test(warm_start),
        cmocka_unit_test(refused),
        cmocka_unit_test(hotness_alone),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
