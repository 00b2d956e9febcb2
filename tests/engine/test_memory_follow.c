/* SPDX-License-Identifier: MIT */
/* Expert slots follow the machine's memory, with files in place of /proc and of the control groups:
 * what is decided from them, and that slots close and open while the text stays the same.
 * Usage: test_memory_follow MODEL.gguf. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/stat.h>
#include <unistd.h>

#include "engine_fixture.h"
#include "runtime/base/clock.h"
#include "runtime/engine/engine_state.h"

#define MIB      (INT64_C(1) << 20)
#define RESERVE  (8 * MIB)
#define SECOND   UINT64_C(1000000000)
#define N_PROMPT 20
#define N_WRITE  24

static const char *model_path;
static char root[] = "/tmp/moe_follow_XXXXXX";

/* ---- The machine in files ---- */

typedef struct machine {
    int64_t available, process; /* bytes */
    uint64_t stall_us;
    int64_t group_limit, group_used; /* bytes; limit 0: the group has none */
    uint64_t group_stall_us;
} machine;

static void put(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void write_machine(const machine *m)
{
    char text[256];
    snprintf(text, sizeof text, "MemTotal: 1 kB\nMemAvailable: %lld kB\n",
             (long long)m->available / 1024);
    put("proc/meminfo", text);
    snprintf(text, sizeof text, "Name:\tx\nVmRSS:\t%lld kB\n", (long long)m->process / 1024);
    put("proc/self/status", text);
    snprintf(text, sizeof text, "some avg10=0.00 avg60=0.00 avg300=0.00 total=%llu\nfull total=9\n",
             (unsigned long long)m->stall_us);
    put("proc/pressure/memory", text);
    put("proc/self/cgroup", "0::/job\n");
    put("proc/self/mountinfo", "31 29 0:31 / /cg rw - cgroup2 cgroup2 rw\n");
    snprintf(text, sizeof text, m->group_limit > 0 ? "%lld\n" : "max\n", (long long)m->group_limit);
    put("cg/job/memory.max", text);
    put("cg/job/memory.high", "max\n");
    snprintf(text, sizeof text, "%lld\n", (long long)m->group_used);
    put("cg/job/memory.current", text);
    snprintf(text, sizeof text, "some avg10=0.00 total=%llu\n",
             (unsigned long long)m->group_stall_us);
    put("cg/job/memory.pressure", text);
}

static void remove_file(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(unlink(path), 0);
}

static int make_root(void **state)
{
    static const char *const folders[] = {"proc", "proc/self", "proc/pressure", "cg", "cg/job"};
    char path[256];
    (void)state;
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", root, folders[i]);
        assert_int_equal(mkdir(path, 0755), 0);
    }
    return 0;
}

static int remove_root(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static void test_room(void **state)
{
    (void)state;
    moe_memory_room room;
    moe_cgroup_place place = {0};
    machine m = {.available = 900 * MIB, .process = 70 * MIB, .stall_us = 5, .group_stall_us = 7};
    write_machine(&m);
    moe_memory_room_read(&room, &place, root);
    assert_int_equal(room.available, 900 * MIB);
    assert_int_equal(room.process, 70 * MIB);
    assert_int_equal(room.stall_us, 12);
    m.group_limit = 300 * MIB;
    m.group_used = 200 * MIB;
    write_machine(&m);
    moe_memory_room_read(&room, &place, root);
    assert_int_equal(room.available, 100 * MIB);
    m.group_limit = 150 * MIB; /* lowered below what the group holds */
    write_machine(&m);
    moe_memory_room_read(&room, &place, root);
    assert_int_equal(room.available, -50 * MIB);
    put("cg/job/memory.high", "146800640\n"); /* 140 MiB */
    put("proc/self/mountinfo", "");           /* where the group is was found before */
    moe_memory_room_read(&room, &place, root);
    assert_int_equal(room.available, -60 * MIB);
    /* It is looked for again when the process is in another group. */
    put("proc/self/cgroup", "0::/\n");
    put("proc/self/mountinfo", "31 29 0:31 / /cg rw - cgroup2 cgroup2 rw\n");
    put("cg/memory.max", "94371840\n");     /* 90 MiB */
    put("cg/memory.current", "20971520\n"); /* 20 MiB */
    moe_memory_room_read(&room, &place, root);
    assert_int_equal(room.available, 70 * MIB);
    remove_file("cg/memory.max");
    remove_file("cg/memory.current");
}

/* ---- Decisions ---- */

typedef struct decision {
    const char *name;
    uint64_t after_ms;          /* since the decision before */
    int64_t process, available; /* MiB */
    uint64_t stalled_ms;
    int64_t bytes; /* expected, MiB */
} decision;

/* The claim is 100 MiB, of which the process mostly holds 90; 30 are given back. With a reserve of
 * 8 MiB nothing is to do at 18 MiB available. */
static const decision decisions[] = {
    {"just enough", 1000, 90, 18, 0, 0},
    {"a little less", 1000, 90, 15, 0, 0},
    {"half of the reserve less", 250, 90, 13, 0, 5},
    {"less than nothing: a lowered limit", 250, 90, -20, 0, 38},
    {"room again, but not for long enough", 4900, 90, 60, 0, 0},
    {"room for five seconds", 200, 90, 60, 0, -42},
    {"tasks wait for memory, and there is little", 1000, 90, 15, 200, 3},
    {"tasks wait, and there is as much as was left", 250, 99, 15, 100, 2},
    {"tasks wait a little", 1000, 90, 14, 50, 0},
    {"tasks of other groups wait", 6000, 90, 90, 5000, -72},
};

static void test_decisions(void **state)
{
    (void)state;
    moe_memory_border border = {.ram_yielded = (uint64_t)(30 * MIB)};
    moe_memory_follow follow = {.border = &border,
                                .reserve = (uint64_t)RESERVE,
                                .fixed = (uint64_t)(20 * MIB),
                                .slots = (uint64_t)(105 * MIB),
                                .first_session = (uint64_t)(5 * MIB)};
    moe_memory_room room = {.process = (uint64_t)(90 * MIB), .stall_us = 77};
    uint64_t now_ns = 10 * SECOND;
    for (size_t i = 0; i < sizeof decisions / sizeof decisions[0]; i++) {
        const decision *d = &decisions[i];
        now_ns += d->after_ms * (SECOND / 1000);
        room.process = (uint64_t)(d->process * MIB);
        room.available = d->available * MIB;
        room.stall_us += d->stalled_ms * 1000;
        int64_t bytes = moe_memory_follow_decide(&follow, &room, now_ns);
        if (bytes != d->bytes * MIB) {
            fail_msg("%s: decided %lld MiB", d->name, (long long)(bytes / MIB));
        }
    }
    border.ram_yielded = 0;
    room.available = 500 * MIB;
    assert_int_equal(moe_memory_follow_decide(&follow, &room, now_ns + 60 * SECOND), 0);
    border.ram_granted = (uint64_t)(60 * MIB); /* sessions hold more than the first one's share */
    room.available = 18 * MIB;
    assert_int_equal(moe_memory_follow_decide(&follow, &room, now_ns + 61 * SECOND), 85 * MIB);
}

/* ---- An engine ---- */

static int64_t claim(const moe_engine *engine)
{
    const moe_memory_follow *f = &engine->follow;
    const moe_memory_border *b = f->border;
    uint64_t sessions = b->ram_granted > f->first_session ? b->ram_granted : f->first_session;
    return (int64_t)(f->fixed + f->slots + sessions - b->ram_taken - b->ram_yielded);
}

static uint64_t n_closed(moe_engine *engine)
{
    moe_engine_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(moe_engine_get_stats(engine, &stats), MOE_OK);
    assert_true(moe_memory_border_check(&engine->border));
    return stats.expert_slots_lent + stats.host_slots_lent;
}

/* Makes the machine such that the engine holds all that it may and `more` bytes are to give. */
static void set_over(moe_engine *engine, int64_t more)
{
    const machine m = {.process = claim(engine), .available = RESERVE - more};
    write_machine(&m);
    engine->follow.looked_ns = 0; /* the next step looks */
}

static moe_engine *open_following(const char *device, const char *policy)
{
    moe_engine_options options = fixture_options(model_path, 64, 256);
    options.device = device;
    options.policy = policy;
    moe_engine *engine = open_engine(&options);
    assert_non_null(engine->follow.border);
    assert_true(engine->memory_reserve > 0);
    engine->follow.root = root;
    engine->follow.reserve = (uint64_t)RESERVE;
    return engine;
}

static void write_text(moe_engine *engine, int32_t *out)
{
    int32_t prompt[N_PROMPT];
    moe_session *session = greedy_session(engine);
    make_prompt(prompt, N_PROMPT, engine->config.n_vocab, 3);
    feed(session, prompt, N_PROMPT);
    for (size_t n = 0; n < N_WRITE; n += 8) {
        set_over(engine, n == 8 ? 6 * MIB : 0);
        decode(engine, session, out + n, 8);
        if (engine->follow.border != NULL) {
            assert_true((n_closed(engine) > 0) == (n >= 8));
        }
    }
    moe_session_close(&session);
}

static const char *const devices[] = {"cpu", "sim:memory=26M,link=20GB/s,latency=1us"};

/* Slots are given back while a text is written, the text is the same, and the slots return. */
static void test_text_is_the_same(void **state)
{
    (void)state;
    int32_t reference[N_WRITE];
    int32_t written[N_WRITE];
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        moe_engine *engine = open_following(devices[i], NULL);
        engine->follow.border = NULL;
        const machine plenty = {.available = 1000 * MIB};
        write_machine(&plenty);
        moe_engine_close(&engine);
        moe_engine_options options = fixture_options(model_path, 64, 256);
        options.device = devices[i];
        options.expert_cache_share = 1.0; /* a cache of a stated size does not follow */
        engine = open_engine(&options);
        assert_null(engine->follow.border);
        moe_session *session = greedy_session(engine);
        int32_t prompt[N_PROMPT];
        make_prompt(prompt, N_PROMPT, engine->config.n_vocab, 3);
        feed(session, prompt, N_PROMPT);
        decode(engine, session, reference, N_WRITE);
        moe_session_close(&session);
        moe_engine_close(&engine);

        engine = open_following(devices[i], NULL);
        write_text(engine, written);
        assert_memory_equal(written, reference, sizeof written);
        assert_true(engine->border.ram_yielded >= (uint64_t)(6 * MIB));
        /* A step of no sessions looks, too. */
        set_over(engine, -100 * MIB);
        engine->follow.pressed_ns = moe_now_ns() - 6 * SECOND;
        assert_int_equal(moe_step(engine, NULL, 0, NULL), MOE_OK);
        assert_int_equal(n_closed(engine), 0);
        assert_int_equal(engine->border.ram_yielded, 0);
        moe_engine_close(&engine);
    }
}

/* A control group's limit is lowered to what all but a token's experts take: the slots go down to
 * the least that works, and tokens are still written. */
static void test_group_limit(void **state)
{
    (void)state;
    moe_engine *engine = open_following("cpu", "lru");
    machine m = {.process = claim(engine),
                 .available = 5000 * MIB,
                 .group_limit = 1 * MIB,
                 .group_used = 1000 * MIB};
    write_machine(&m);
    int32_t out[4];
    int32_t prompt[N_PROMPT];
    moe_session *session = greedy_session(engine);
    make_prompt(prompt, N_PROMPT, engine->config.n_vocab, 4);
    feed(session, prompt, N_PROMPT);
    engine->follow.looked_ns = 0;
    decode(engine, session, out, 4);
    moe_engine_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(moe_engine_get_stats(engine, &stats), MOE_OK);
    assert_true(stats.expert_slots <= 2 * engine->config.n_expert_used);
    assert_true(stats.expert_slots >= engine->config.n_expert_used);
    assert_true(n_closed(engine) > 0);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

static unsigned n_told;

static void count_words(const char *line, void *user)
{
    n_told += strstr(line, user) != NULL;
}

/* Slots that a GPU's driver has locked stay, and a note says so, once. */
static void test_page_locked(void **state)
{
    (void)state;
    char words[] = "page-locked";
    moe_engine *engine = open_following(devices[1], NULL);
    engine->device->simulated = false;
    engine->follow.log = count_words;
    engine->follow.user = words;
    for (int i = 0; i < 3; i++) {
        set_over(engine, 6 * MIB);
        assert_int_equal(moe_memory_follow_look(&engine->follow, moe_now_ns(), NULL), MOE_OK);
    }
    engine->device->simulated = true;
    assert_int_equal(n_told, 1);
    assert_int_equal(n_closed(engine), 0);
    moe_engine_close(&engine);
}

/* ---- In the midst of a pass ---- */

typedef struct trigger {
    moe_pass_hook hook;
    moe_engine *engine;
    uint64_t before, after; /* closed slots when layer 1 and layer 2 were routed */
} trigger;

static int need_memory(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                       moe_error *err)
{
    trigger *t = context;
    (void)runner;
    (void)pass;
    (void)err;
    if (layer == 1) {
        t->before = n_closed(t->engine);
        set_over(t->engine, 6 * MIB);
    } else if (layer == 2) {
        t->after = n_closed(t->engine);
    }
    return MOE_OK;
}

static void test_between_layers(void **state)
{
    (void)state;
    moe_engine *engine = open_following("cpu", NULL);
    set_over(engine, 0);
    trigger t = {.engine = engine};
    t.hook = (moe_pass_hook){.order = MOE_HOOK_OBSERVE,
                             .passes = MOE_HOOK_ON_TARGET,
                             .context = &t,
                             .after_routing = need_memory};
    assert_int_equal(moe_runner_add_hook(&engine->runner, &t.hook, NULL), MOE_OK);
    int32_t prompt[N_PROMPT];
    moe_session *session = greedy_session(engine);
    make_prompt(prompt, N_PROMPT, engine->config.n_vocab, 5);
    feed(session, prompt, N_PROMPT);
    moe_error err = {""};
    assert_int_equal(moe_step(engine, &session, 1, &err), MOE_OK);
    assert_int_equal(t.before, 0);
    assert_true(t.after > 0);
    moe_runner_remove_hook(&engine->runner, &t.hook);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

int main(int argc, char **argv)
{
    model_path = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_decisions),
        cmocka_unit_test(test_text_is_the_same),
        cmocka_unit_test(test_group_limit),
        cmocka_unit_test(test_page_locked),
        cmocka_unit_test(test_between_layers),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
