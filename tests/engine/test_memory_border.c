/* SPDX-License-Identifier: MIT */
/* Sessions and expert slots share one budget: the process's peak stays below it whatever number of
 * sessions there is, what does not fit is refused with every timeline as it was, and slots get
 * their memory back. Usage: test_memory_border MODEL.gguf. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine_fixture.h"
#include "runtime/engine/engine_state.h"
#include "tests/test_size.h"

#define MIB      (UINT64_C(1) << 20)
#define N_PROMPT 70 /* two pages of the KV cache */
#define N_WRITE  3
#define MOST     256

static const char *model_path;

typedef struct memory_case {
    const char *device;
    uint64_t budget;
} memory_case;

static const memory_case cases[] = {{"cpu", 48 * MIB},
                                    {"sim:memory=26M,link=20GB/s,latency=1us", 64 * MIB}};
#define N_CASES (sizeof cases / sizeof cases[0])

static moe_engine_options border_options(const memory_case *c)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.device = c->device;
    options.n_threads = 2;
    options.context = 256;
    options.prefill_chunk = 256;
    options.host_memory = c->budget;
    options.host_compute = MOE_SWITCH_OFF;
    return options;
}

static void check_border(const moe_engine *engine)
{
    const moe_memory_border *b = &engine->border;
    if (!moe_memory_border_check(b)) {
        fail_msg("free %llu + granted %llu is not %llu + taken %llu; or slots disagree",
                 (unsigned long long)b->ram_free, (unsigned long long)b->ram_granted,
                 (unsigned long long)b->ram_at_open, (unsigned long long)b->ram_taken);
    }
}

/* ---- The peak ---- */

typedef struct outcome {
    uint32_t n_running;
    uint32_t n_refused;
    uint64_t slots_before, slots_least, slots_after;
    int32_t written[MOST][N_WRITE];
} outcome;

static outcome reference; /* with memory for everything */

static bool begin_session(moe_engine *engine, moe_session **session, uint32_t seed)
{
    int32_t prompt[N_PROMPT];
    moe_error err = {""};
    moe_session_options options;
    moe_session_options_init(&options);
    options.sampling.temperature = 0.0f;
    int status = moe_session_create(session, engine, &options, &err);
    make_prompt(prompt, N_PROMPT, engine->config.n_vocab, seed);
    if (status == MOE_OK) {
        status = moe_session_feed(*session, prompt, N_PROMPT, &err);
    }
    if (status != MOE_OK) {
        assert_int_equal(status, MOE_ERR_BUDGET);
        moe_session_close(session);
    }
    return status == MOE_OK;
}

static uint64_t n_open_slots(const moe_engine *engine)
{
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(engine, &stats);
    return stats.expert_slots + stats.host_slots;
}

static void run_sessions(const memory_case *c, uint32_t n, outcome *o)
{
    moe_engine_options options = border_options(c);
    moe_engine *engine = open_engine(&options);
    moe_session *sessions[MOST];
    o->slots_before = n_open_slots(engine);
    for (uint32_t i = 0; i < n; i++) {
        bool runs = begin_session(engine, &sessions[o->n_running], i);
        o->n_running += runs;
        o->n_refused += !runs;
        check_border(engine);
        if (!runs) {
            break;
        }
    }
    moe_error err = {""};
    for (bool all = false; !all;) {
        int status = moe_step(engine, sessions, o->n_running, &err);
        if (status == MOE_ERR_BUDGET && o->n_running > 1) {
            moe_session_close(&sessions[--o->n_running]); /* what has ended makes room */
            o->n_refused++;
        } else if (status != MOE_OK) {
            fail_msg("%s", err.message);
        }
        check_border(engine);
        all = true;
        for (uint32_t i = 0; i < o->n_running; i++) {
            all = all && moe_session_n_tokens(sessions[i]) >= N_PROMPT + N_WRITE;
        }
    }
    o->slots_least = n_open_slots(engine);
    for (uint32_t i = 0; i < o->n_running; i++) {
        memcpy(o->written[i], moe_session_tokens(sessions[i]) + N_PROMPT, sizeof o->written[i]);
        moe_session_close(&sessions[i]);
        check_border(engine);
    }
    o->slots_after = n_open_slots(engine);
    assert_int_equal(engine->border.ram_granted + engine->border.device_granted, 0);
    moe_engine_close(&engine);
}

/* In a process of its own; its peak. */
static uint64_t run_apart(const memory_case *c, uint32_t n, outcome *o)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        static outcome mine;
        run_sessions(c, n, &mine);
        _exit(write(ends[1], &mine, sizeof mine) == (ssize_t)sizeof mine ? 0 : 1);
    }
    close(ends[1]);
    size_t got = 0;
    for (ssize_t more = 1; got < sizeof *o && more > 0; got += more > 0 ? (size_t)more : 0) {
        more = read(ends[0], (char *)o + got, sizeof *o - got);
    }
    close(ends[0]);
    int status;
    struct rusage usage;
    assert_int_equal(wait4(child, &status, 0, &usage), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0 && got == sizeof *o);
    return (uint64_t)usage.ru_maxrss * 1024;
}

static void test_peak(void **state)
{
    (void)state;
    static outcome o;
    static const uint32_t counts[] = {1, 4, 16, 64, 256};
    for (size_t k = 0; k < N_CASES; k++) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            memset(&o, 0, sizeof o);
            if (test_leaves_out((uint32_t)i, 2)) {
                continue;
            }
            uint64_t peak = run_apart(&cases[k], counts[i], &o);
            printf("%.3s, %3u sessions: %3u run, peak %.1f of %.1f MiB, slots %llu, %llu, %llu\n",
                   cases[k].device, counts[i], o.n_running, (double)peak / (double)MIB,
                   (double)cases[k].budget / (double)MIB, (unsigned long long)o.slots_before,
                   (unsigned long long)o.slots_least, (unsigned long long)o.slots_after);
            assert_true(peak <= cases[k].budget);
            assert_true(o.n_running >= (counts[i] < 16 ? counts[i] : 16));
            assert_true(o.n_refused > 0 || o.n_running == counts[i]);
            assert_int_equal(o.slots_after, o.slots_before);
            assert_true(counts[i] < 256 || o.slots_least < o.slots_before);
            assert_true(counts[i] > 1 || o.slots_least == o.slots_before);
            for (uint32_t n = 0; n < o.n_running; n++) {
                assert_memory_equal(reference.written[n], o.written[n], sizeof o.written[n]);
            }
        }
    }
}

/* ---- Refusals ---- */

/* The budget's end is met in feed() and in a step; both leave the timelines, and go on once
 * somebody has ended. */
static void test_refusal(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_CASES; k++) {
        moe_engine_options options = border_options(&cases[k]);
        moe_engine *engine = open_engine(&options);
        moe_session *sessions[MOST];
        uint32_t n = 0;
        while (n < MOST && begin_session(engine, &sessions[n], n)) {
            n++;
        }
        assert_true(n > 4 && n < MOST);
        int32_t more[256];
        make_prompt(more, 256, engine->config.n_vocab, 7);
        moe_error err = {""};
        size_t before = 0;
        int status = MOE_OK;
        for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
            before = moe_session_n_tokens(sessions[i]);
            status = moe_session_feed(sessions[i], more, 256 - N_PROMPT - N_WRITE, &err);
            if (status != MOE_OK) {
                assert_int_equal(moe_session_n_tokens(sessions[i]), before);
            } else {
                assert_int_equal(moe_session_truncate(sessions[i], N_PROMPT, NULL), MOE_OK);
            }
        }
        check_border(engine);
        moe_session *first = sessions[0];
        for (uint32_t i = 1; i < n; i++) {
            moe_session_close(&sessions[i]);
        }
        int32_t out[N_WRITE];
        decode(engine, first, out, N_WRITE);
        assert_memory_equal(out, reference.written[0], sizeof out);
        moe_session_close(&first);
        check_border(engine);
        moe_engine_close(&engine);
    }
}

/* ---- A soak ---- */

static uint32_t next_random(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 8;
}

static void may_be_refused(int status, const moe_error *err)
{
    if (status != MOE_OK && status != MOE_ERR_BUDGET && status != MOE_ERR_CONTEXT_FULL) {
        fail_msg("%s", err->message);
    }
}

#define N_SOAK 12

static void soak(moe_engine *engine, const char *path, uint32_t seed)
{
    moe_session *sessions[N_SOAK] = {NULL};
    uint32_t x = seed;
    for (int i = 0; i < 300; i++) {
        moe_error err = {""};
        moe_session **a = &sessions[next_random(&x) % N_SOAK];
        moe_session *b = sessions[next_random(&x) % N_SOAK];
        int status = MOE_OK;
        switch (next_random(&x) % 8) {
        case 0:
            moe_session_close(a);
            break;
        case 1:
            if (*a == NULL && b != NULL) {
                status = moe_session_fork(a, b, &err);
            }
            break;
        case 2:
            if (*a == NULL && b != NULL && moe_session_save(b, path, &err) == MOE_OK) {
                status = moe_session_load(a, engine, path, &err);
            }
            break;
        case 3:
            if (b != NULL) {
                size_t n = moe_session_n_tokens(b);
                status = moe_session_truncate(b, n - next_random(&x) % (n + 1), &err);
            }
            break;
        case 4:
        case 5:
            if (*a == NULL) {
                (void)begin_session(engine, a, next_random(&x) % MOST);
            } else {
                int32_t more[90];
                make_prompt(more, 90, engine->config.n_vocab, x % MOST);
                status = moe_session_feed(*a, more, next_random(&x) % 90, &err);
            }
            break;
        default: {
            moe_session *list[N_SOAK];
            size_t n = 0;
            for (int s = 0; s < N_SOAK; s++) {
                if (sessions[s] != NULL) {
                    list[n++] = sessions[s];
                }
            }
            status = n > 0 ? moe_step(engine, list, n, &err) : MOE_OK;
        }
        }
        may_be_refused(status, &err);
        check_border(engine);
    }
    for (int s = 0; s < N_SOAK; s++) {
        moe_session_close(&sessions[s]);
    }
}

static void test_soak(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "%s/border-%d",
             getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp", (int)getpid());
    for (size_t k = 0; k < N_CASES; k++) {
        for (uint32_t seed = 1; seed <= 2; seed++) {
            if (test_leaves_out((uint32_t)k + seed, 2)) {
                continue; /* drafts on the one device, none on the other */
            }
            moe_engine_options options = border_options(&cases[k]);
            options.host_memory -= 6 * MIB; /* near the least that works */
            options.speculate = seed == 2 ? MOE_SPECULATE_AUTO : MOE_SPECULATE_OFF;
            moe_engine *engine = open_engine(&options);
            uint64_t before = n_open_slots(engine);
            soak(engine, path, seed);
            check_border(engine);
            assert_int_equal(n_open_slots(engine), before);
            assert_int_equal(engine->border.ram_granted, 0);
            assert_int_equal(engine->kv.groups[0].n_promised, 0);
            moe_engine_close(&engine);
        }
    }
    unlink(path);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        return 2;
    }
    model_path = argv[1];
    static const memory_case roomy = {"cpu", 0};
    (void)run_apart(&roomy, MOST, &reference);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peak),
        cmocka_unit_test(test_refusal),
        cmocka_unit_test(test_soak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
