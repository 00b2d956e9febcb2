/* SPDX-License-Identifier: MIT */
/* Every allocation of opening an engine, and of a session's first steps, may fail: the error is
 * clear, and nothing is left behind. So may every grant of the memory budget while several sessions
 * take steps together: a step that fails has changed no timeline, and can be made again. So may
 * those of verifying: it does not say that all is well of what it had no checksums for. The
 * functions are wrapped by the linker, so the library's own calls are refused and not those of the
 * libraries below it.
 * Usage: test_engine_memory MODEL.gguf [batches]: only the last of these. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <moe/model_file.h>
#include <moe/verify.h>

#include "engine_fixture.h"
#include "engine_options.h"
#include "offload/memory_border.h"

static const char *model_path;
static atomic_long calls_until_failure = -1; /* < 0: never */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __real_moe_memory_border_take(moe_memory_border *border, uint64_t bytes, moe_error *err);
int __real_moe_memory_border_take_page(moe_memory_border *border, size_t bytes, void **memory,
                                       bool *lent, moe_error *err);
int __wrap_moe_memory_border_take(moe_memory_border *border, uint64_t bytes, moe_error *err);
int __wrap_moe_memory_border_take_page(moe_memory_border *border, size_t bytes, void **memory,
                                       bool *lent, moe_error *err);

/* The one call that the countdown ends at. */
static bool refused(void)
{
    return atomic_load(&calls_until_failure) >= 0 && atomic_fetch_sub(&calls_until_failure, 1) == 0;
}

static atomic_bool refuses_grants; /* and no allocations */

static bool refused_memory(void)
{
    return !atomic_load(&refuses_grants) && refused();
}

void *__wrap_malloc(size_t size)
{
    return refused_memory() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return refused_memory() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return refused_memory() ? NULL : __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return refused_memory() ? NULL : __real_aligned_alloc(alignment, size);
}

static int refuse_grant(moe_error *err)
{
    snprintf(err->message, sizeof err->message, "the budget is used up");
    return MOE_ERR_BUDGET;
}

int __wrap_moe_memory_border_take(moe_memory_border *border, uint64_t bytes, moe_error *err)
{
    moe_error unheard;
    return atomic_load(&refuses_grants) && refused()
               ? refuse_grant(err != NULL ? err : &unheard)
               : __real_moe_memory_border_take(border, bytes, err);
}

int __wrap_moe_memory_border_take_page(moe_memory_border *border, size_t bytes, void **memory,
                                       bool *lent, moe_error *err)
{
    moe_error unheard;
    return atomic_load(&refuses_grants) && refused()
               ? refuse_grant(err != NULL ? err : &unheard)
               : __real_moe_memory_border_take_page(border, bytes, memory, lent, err);
}

static int entries(const char *folder)
{
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    int n = 0;
    while (readdir(directory) != NULL) {
        n++;
    }
    closedir(directory);
    return n;
}

/* Engines that allocate different things. */
typedef struct kind {
    const char *name, *device;
    moe_speculate speculate;
    uint32_t tree_nodes, expert_budget;
} kind;

static const kind kinds[] = {
    {"plain", "cpu", MOE_SPECULATE_OFF, 0, 0},
    {"behind a link", "sim:memory=64M,link=8GB/s,latency=2us", MOE_SPECULATE_OFF, 0, 0},
    {"trees, lossy", "cpu", MOE_SPECULATE_SELF, 12, 3},
};

static moe_engine_options make_options(const kind *k)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.n_threads = 1;
    options.context = 96;
    options.prefill_chunk = 64;
    options.expert_cache_share = 0.5;
    options.device = k->device;
    options.speculate = k->speculate;
    options.tree_nodes = k->tree_nodes;
    lossy_of(&options)->expert_budget = k->expert_budget;
    return options;
}

/* Some failures are no failures: what was to be read is then not known, or a lesser way is taken.
 * Everything else is told as memory that is short. */
static bool check_status(int status, const moe_error *error, long n)
{
    if (status != MOE_OK &&
        (status != MOE_ERR_MEMORY || strstr(error->message, "memory") == NULL)) {
        fail_msg("allocation %ld: status %d: %s", n, status, error->message);
    }
    return status == MOE_OK;
}

static void open_kind(const kind *k)
{
    moe_engine_options options = make_options(k);
    moe_engine *engine = open_engine(&options);
    moe_engine_close(&engine);
    int n_files = entries("/proc/self/fd");
    int n_threads = entries("/proc/self/task");
    long n = 0;
    long n_tolerated = 0;
    for (bool reached = true; reached; n++) {
        moe_error error = {""};
        engine = NULL;
        atomic_store(&calls_until_failure, n);
        int status = moe_engine_open(&engine, &options, &error);
        reached = atomic_exchange(&calls_until_failure, -1) < 0;
        n_tolerated += check_status(status, &error, n);
        assert_true((status == MOE_OK) == (engine != NULL));
        assert_true(reached || status == MOE_OK);
        moe_engine_close(&engine);
    }
    print_message("%s: %ld allocations of opening, %ld of them not needed\n", k->name, n - 1,
                  n_tolerated - 1);
    assert_true(n > 50);
    assert_int_equal(entries("/proc/self/fd"), n_files);
    assert_int_equal(entries("/proc/self/task"), n_threads);
}

static void opening(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        open_kind(&kinds[i]);
    }
}

/* Short memory is never told as something that the file lacks. */
static void inspecting(void **state)
{
    (void)state;
    long n = 0;
    for (bool reached = true; reached; n++) {
        moe_error error = {""};
        moe_file *file = NULL;
        moe_file_summary summary = {.struct_size = sizeof summary};
        atomic_store(&calls_until_failure, n);
        int status = moe_file_open(&file, model_path, &error);
        reached = atomic_exchange(&calls_until_failure, -1) < 0;
        if (check_status(status, &error, n)) {
            moe_file_get_summary(file, &summary);
            assert_true(summary.runnable);
            moe_file_close(&file);
        }
        assert_null(file);
        assert_true(reached || status == MOE_OK);
    }
    assert_true(n > 50);
}

/* A session is created, fed and stepped; the calls that fail are made again. */
static long use(moe_engine *engine, long n, int32_t *tokens)
{
    int32_t prompt[60];
    make_prompt(prompt, 60, 288, 3);
    moe_session_options options;
    moe_session_options_init(&options);
    options.sampling.temperature = 0.0f;
    moe_session *session = NULL;
    moe_session *fork = NULL;
    moe_error error;
    atomic_store(&calls_until_failure, n);
    while (!check_status(moe_session_create(&session, engine, &options, &error), &error, n)) {
        assert_null(session);
    }
    while (!check_status(moe_session_feed(session, prompt, 60, &error), &error, n)) {
        assert_int_equal(moe_session_n_tokens(session), 0);
    }
    for (size_t n_taken = 0; n_taken < 8;) {
        size_t before = moe_session_n_tokens(session);
        if (!check_status(moe_step(engine, &session, 1, &error), &error, n)) {
            assert_int_equal(moe_session_n_tokens(session), before);
        }
        n_taken += moe_session_take(session, tokens + n_taken, 8 - n_taken);
    }
    while (!check_status(moe_session_fork(&fork, session, &error), &error, n)) {
        assert_null(fork);
    }
    assert_int_equal(moe_session_truncate(fork, 30, NULL), MOE_OK);
    assert_int_equal(moe_session_feed(fork, prompt, 1, NULL), MOE_OK);
    while (moe_session_n_tokens(fork) < 33) {
        (void)check_status(moe_step(engine, &fork, 1, &error), &error, n);
    }
    long left = atomic_exchange(&calls_until_failure, -1);
    moe_session_close(&fork);
    moe_session_close(&session);
    return left;
}

static void run_kind(const kind *k)
{
    moe_engine_options options = make_options(k);
    int32_t expected[8], tokens[8];
    moe_engine *engine = open_engine(&options);
    (void)use(engine, 1 << 30, expected);
    moe_engine_close(&engine);
    long n = 0;
    /* The engine is new from time to time, so that its pages are allocated again. */
    for (long left = -1; left < 0; n++) {
        if (engine == NULL) {
            engine = open_engine(&options);
        }
        left = use(engine, n, tokens);
        assert_memory_equal(tokens, expected, sizeof tokens);
        if (n % 2 == 0) {
            moe_engine_close(&engine);
        }
    }
    moe_engine_close(&engine);
    print_message("%s: %ld allocations of a session and its steps\n", k->name, n - 1);
    assert_true(n > 10);
}

static void running(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        run_kind(&kinds[i]);
    }
}

/* ---- Several sessions ---- */

#define N_BATCH   3
#define N_WRITTEN 8

/* Sessions write side by side; steps that fail are made again. Returns what is left of the
 * countdown to the n-th refusal. */
static long use_batch(moe_engine *engine, long n, int32_t tokens[N_BATCH][N_WRITTEN])
{
    moe_session *sessions[N_BATCH] = {NULL};
    moe_session_options options;
    moe_session_options_init(&options);
    options.sampling.temperature = 0.7f;
    for (uint32_t i = 0; i < N_BATCH; i++) {
        int32_t prompt[60];
        make_prompt(prompt, 60, 90, 3 + i);
        options.sampling.seed = 7 + i;
        assert_int_equal(moe_session_create(&sessions[i], engine, &options, NULL), MOE_OK);
        assert_int_equal(moe_session_feed(sessions[i], prompt, 60 - 25 * i, NULL), MOE_OK);
    }
    size_t n_taken[N_BATCH] = {0};
    atomic_store(&calls_until_failure, n);
    while (n_taken[0] < N_WRITTEN || n_taken[1] < N_WRITTEN || n_taken[2] < N_WRITTEN) {
        size_t before[N_BATCH];
        moe_error error = {""};
        for (int i = 0; i < N_BATCH; i++) {
            before[i] = moe_session_n_tokens(sessions[i]);
        }
        int status = moe_step(engine, sessions, N_BATCH, &error);
        assert_true(status == MOE_OK || status == MOE_ERR_MEMORY || status == MOE_ERR_BUDGET);
        for (int i = 0; i < N_BATCH; i++) {
            assert_true(status == MOE_OK || moe_session_n_tokens(sessions[i]) == before[i]);
            n_taken[i] +=
                moe_session_take(sessions[i], tokens[i] + n_taken[i], N_WRITTEN - n_taken[i]);
        }
    }
    long left = atomic_exchange(&calls_until_failure, -1);
    for (int i = 0; i < N_BATCH; i++) {
        moe_session_close(&sessions[i]);
    }
    return left;
}

static void run_batches(bool grants)
{
    moe_engine_options options = make_options(&kinds[0]);
    int32_t expected[N_BATCH][N_WRITTEN], tokens[N_BATCH][N_WRITTEN];
    moe_engine *engine = open_engine(&options);
    (void)use_batch(engine, 1 << 30, expected);
    moe_engine_close(&engine);
    atomic_store(&refuses_grants, grants);
    long n = 0;
    for (long left = -1; left < 0; n++) {
        if (engine == NULL) {
            engine = open_engine(&options);
        }
        left = use_batch(engine, n, tokens);
        assert_memory_equal(tokens, expected, sizeof tokens);
        if (n % 2 == 0) {
            moe_engine_close(&engine);
        }
    }
    moe_engine_close(&engine);
    atomic_store(&refuses_grants, false);
    print_message("%ld %s of steps with %d sessions\n", n - 1, grants ? "grants" : "allocations",
                  N_BATCH);
    assert_true(n > 1);
}

static void batches(void **state)
{
    (void)state;
    run_batches(false);
    run_batches(true);
}

/* A verification with checksums that an earlier one has made compares all parts with them, or it
 * fails. */
static void verifying(void **state)
{
    (void)state;
    char sums[] = "/tmp/moe-verifying-XXXXXX";
    int fd = mkstemp(sums);
    assert_true(fd >= 0);
    close(fd);
    moe_verify_options options;
    moe_verify_options_init(&options);
    options.model_path = model_path;
    options.calibration = "none";
    options.io = MOE_IO_SYNC;
    options.checksums = sums;
    moe_verify_result all = {.struct_size = sizeof all};
    assert_int_equal(moe_verify(&options, &all, NULL), MOE_OK);
    long n = 0;
    for (bool reached = true; reached; n++) {
        moe_error error = {""};
        moe_verify_result result = {.struct_size = sizeof result};
        atomic_store(&calls_until_failure, n);
        int status = moe_verify(&options, &result, &error);
        reached = atomic_exchange(&calls_until_failure, -1) < 0;
        if (check_status(status, &error, n)) {
            assert_int_equal(result.n_parts, all.n_parts);
            assert_int_equal(result.n_checksums, all.n_parts);
            assert_int_equal(result.n_damaged, 0);
        }
    }
    print_message("%ld allocations of verifying\n", n - 1);
    assert_true(n > 20);
    unlink(sums);
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: test_engine_memory MODEL.gguf [batches]\n");
        return 2;
    }
    model_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening),   cmocka_unit_test(inspecting), cmocka_unit_test(running),
        cmocka_unit_test(verifying), cmocka_unit_test(batches),
    };
    const struct CMUnitTest last[] = {cmocka_unit_test(batches)};
    return argc == 3 ? cmocka_run_group_tests(last, NULL, NULL)
                     : cmocka_run_group_tests(tests, NULL, NULL);
}
