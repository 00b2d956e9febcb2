/* SPDX-License-Identifier: MIT */
/* Opening: reads no expert byte, reports progress in order and can be cancelled; a cancelled
 * opening leaves nothing behind. After opening, all experts come in by themselves if they fit.
 * Impossible options are refused. Usage: test_start_up MODEL.gguf.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>

#include "engine_fixture.h"
#include "runtime/base/clock.h"

/* Read beside the model: the machine's description under /proc and /sys, and the sample of the
 * weights that the fingerprint takes. */
/* The header; 64 samples for the fingerprint, of two pages each; pages that two tensors share. */
#define SLACK ((1 << 20) + (512 << 10) + (256 << 10))

static const char *model_path;

static uint64_t bytes_read_so_far(void)
{
    unsigned long long n = UINT64_MAX;
    FILE *file = fopen("/proc/self/io", "r");
    if (file == NULL || fscanf(file, "rchar: %llu", &n) != 1) {
        n = UINT64_MAX;
    }
    if (file != NULL) {
        fclose(file);
    }
    return n;
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

typedef struct progress {
    int n_calls;
    int cancel_at; /* < 0: never */
    double last;
} progress;

static bool on_progress(double fraction, void *user)
{
    progress *p = user;
    assert_true(fraction >= p->last && fraction <= 1.0);
    p->last = fraction;
    return p->n_calls++ != p->cancel_at;
}

static moe_engine_options make_options(progress *p)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.n_threads = 2;
    options.context = 128;
    options.prefill_chunk = 16;
    options.progress = on_progress;
    options.user = p;
    return options;
}

static void no_expert_is_read(void **state)
{
    (void)state;
    progress p = {.cancel_at = -1};
    moe_engine_options options = make_options(&p);
    options.warm_start = MOE_SWITCH_OFF;
    uint64_t before = bytes_read_so_far();
    const uint64_t began = moe_now_ns();
    moe_engine *engine = open_engine(&options);
    const uint64_t opened = moe_now_ns() - began;
    uint64_t after = bytes_read_so_far();
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(engine, &stats);
    assert_int_equal(stats.bytes_demand + stats.bytes_prefetch + stats.bytes_read_disk, 0);
    assert_int_equal(stats.expert_hits + stats.expert_misses + stats.passes, 0);
    /* Where the time of opening went. */
    assert_true(stats.open_plan_ns > 0 && stats.open_memory_ns > 0 && stats.open_weights_ns > 0);
    assert_true(stats.open_plan_ns + stats.open_memory_ns + stats.open_weights_ns <= opened);
    assert_int_equal(stats.open_weights_bytes, info.resident_bytes);
    struct stat file;
    assert_int_equal(stat(model_path, &file), 0);
    print_message("file %lld, experts %llu, read %llu bytes\n", (long long)file.st_size,
                  (unsigned long long)info.expert_bytes, (unsigned long long)(after - before));
    assert_true(info.expert_bytes > (uint64_t)file.st_size / 4);
    if (before != UINT64_MAX) {
        assert_true(after - before <= (uint64_t)file.st_size - info.expert_bytes + SLACK);
    }
    assert_true(p.n_calls > 0 && p.last > 0.9);
    /* The first token brings some in. */
    moe_session *session = greedy_session(engine);
    feed(session, (const int32_t[]){1}, 1);
    assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
    moe_engine_get_stats(engine, &stats);
    assert_true(stats.bytes_demand > 0 && stats.bytes_read_disk >= stats.bytes_demand);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

static moe_engine_stats stats_of(const moe_engine *engine)
{
    moe_engine_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(moe_engine_get_stats(engine, &stats), MOE_OK);
    return stats;
}

/* Once they are there, nothing is missing and nothing is waited for. */
static void all_experts_come_in(void **state)
{
    (void)state;
    progress p = {.cancel_at = -1};
    moe_engine_options options = make_options(&p);
    moe_engine *engine = open_engine(&options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    const struct timespec moment = {.tv_nsec = 1000000};
    while (stats_of(engine).bytes_prefetch < info.expert_bytes) {
        nanosleep(&moment, NULL); /* the test's time-out ends it */
    }
    moe_session *session = greedy_session(engine);
    feed(session, (const int32_t[]){1, 2, 3}, 3);
    int32_t tokens[4];
    decode(engine, session, tokens, 4);
    const moe_engine_stats stats = stats_of(engine);
    assert_int_equal(stats.bytes_prefetch, info.expert_bytes);
    assert_int_equal(stats.bytes_demand, 0);
    assert_int_equal(stats.expert_misses, 0);
    assert_int_equal(stats.expert_wait_ns, 0);
    assert_true(stats.expert_hits > 0 && stats.prefetches_used > 0);
    moe_session_close(&session);
    moe_engine_close(&engine);
    /* They come where they fit, and where nothing forbids it. */
    const struct {
        double share;
        moe_switch prefetch, warm_start;
    } without[] = {{0.5, MOE_SWITCH_AUTO, MOE_SWITCH_AUTO},
                   {1.0, MOE_SWITCH_OFF, MOE_SWITCH_AUTO},
                   {1.0, MOE_SWITCH_AUTO, MOE_SWITCH_OFF}};
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        options.expert_cache_share = without[i].share;
        options.prefetch = without[i].prefetch;
        options.warm_start = without[i].warm_start;
        p = (progress){.cancel_at = -1};
        engine = open_engine(&options);
        assert_int_equal(stats_of(engine).prefetches, 0);
        moe_engine_close(&engine);
    }
}

static void cancelled_at_every_report(void **state)
{
    (void)state;
    progress p = {.cancel_at = -1};
    moe_engine_options options = make_options(&p);
    moe_engine *engine = open_engine(&options);
    moe_engine_close(&engine);
    int n_calls = p.n_calls;
    int n_files = entries("/proc/self/fd");
    int n_threads = entries("/proc/self/task");
    int n_points = n_calls < 12 ? n_calls : 12;
    int n_cancelled = 0;
    for (int i = 0; i < n_points; i++) {
        p = (progress){.cancel_at = i * (n_calls - 1) / (n_points > 1 ? n_points - 1 : 1)};
        moe_error error = {""};
        engine = (moe_engine *)&p;
        int status = moe_engine_open(&engine, &options, &error);
        if (status == MOE_OK && p.n_calls <= p.cancel_at) {
            moe_engine_close(&engine); /* it waited less, and so was asked less often */
            continue;
        }
        n_cancelled++;
        assert_int_equal(status, MOE_ERR_CANCELLED);
        assert_null(engine);
        assert_int_equal(p.n_calls, p.cancel_at + 1); /* not asked again */
        assert_true(error.message[0] != '\0');
    }
    assert_true(2 * n_cancelled > n_points);
    assert_int_equal(entries("/proc/self/fd"), n_files);
    assert_int_equal(entries("/proc/self/task"), n_threads);
}

static void impossible_time_outs(void **state)
{
    (void)state;
    const double values[] = {-1, NAN, 1e6, INFINITY};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        progress p = {.cancel_at = -1};
        moe_engine_options options = make_options(&p);
        options.io_timeout = values[i];
        moe_engine *engine = NULL;
        moe_error error = {""};
        assert_int_equal(moe_engine_open(&engine, &options, &error), MOE_ERR_ARGUMENT);
        assert_non_null(strstr(error.message, "time-out"));
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_start_up MODEL.gguf\n");
        return 2;
    }
    model_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_expert_is_read),
        cmocka_unit_test(all_experts_come_in),
        cmocka_unit_test(cancelled_at_every_report),
        cmocka_unit_test(impossible_time_outs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
