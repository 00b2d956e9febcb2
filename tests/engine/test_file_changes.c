/* SPDX-License-Identifier: MIT */
/* The model's file changes while an engine has it open. Argument: a model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "damaged_model.h"
#include "engine_fixture.h"

#define N_PROMPT 20
#define N_TOKENS 12

static const char *model;
static char folder[64] = "/tmp/moe-file-changes-XXXXXX";
static char path[128], other[128];
static int n_notes;

static void count_notes(const char *line, void *user)
{
    (void)user;
    n_notes += strstr(line, "replaced by another file") != NULL;
}

typedef struct open_model {
    moe_engine *engine;
    moe_session *session;
} open_model;

static open_model start(moe_speculate speculate)
{
    open_model m = {NULL, NULL};
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = path;
    options.n_threads = 2;
    options.context = 256;
    options.calibration = "none";
    options.speculate = speculate;
    options.expert_cache_share = 0.5;
    options.log = count_notes;
    unlink(path);
    assert_true(copy_with_bytes(model, path, 0, NULL, 0));
    n_notes = 0;
    m.engine = open_engine(&options);
    m.session = greedy_session(m.engine);
    int32_t prompt[N_PROMPT];
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(m.engine, &info);
    make_prompt(prompt, N_PROMPT, info.n_vocab, 5);
    feed(m.session, prompt, N_PROMPT);
    return m;
}

static void stop(open_model *m)
{
    moe_session_close(&m->session);
    moe_engine_close(&m->engine);
}

/* Files are looked at once a second. */
static void wait_for_a_look(void)
{
    struct timespec time = {1, 50000000};
    nanosleep(&time, NULL);
}

static void write_in_place(off_t offset, const char *bytes, size_t n)
{
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, n, offset), (ssize_t)n);
    close(fd);
}

static void set_time(const struct stat *then)
{
    const struct timespec times[] = {then->st_atim, then->st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* The next steps fail, say why, and leave the timeline. */
static void expect_change(const open_model *m, const char *what)
{
    size_t n = moe_session_n_tokens(m->session);
    size_t n_pending = moe_session_n_pending(m->session);
    for (int i = 0; i < 2; i++) {
        moe_error error = {""};
        assert_int_equal(moe_step(m->engine, &m->session, 1, &error), MOE_ERR_IO);
        if (strstr(error.message, what) == NULL || strstr(error.message, path) == NULL) {
            fail_msg("expected '%s' in: %s", what, error.message);
        }
        assert_int_equal(moe_session_n_tokens(m->session), n);
        assert_int_equal(moe_session_n_pending(m->session), n_pending);
    }
}

static void written_to(void **state)
{
    (void)state;
    static const moe_speculate modes[] = {MOE_SPECULATE_OFF, MOE_SPECULATE_SELF};
    int32_t expected[N_TOKENS], tokens[N_TOKENS];
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        struct stat before;
        open_model m = start(modes[i]);
        decode(m.engine, m.session, expected, N_TOKENS);
        stop(&m);
        m = start(modes[i]);
        assert_int_equal(stat(path, &before), 0);
        decode(m.engine, m.session, tokens, 4);
        write_in_place(0, "G", 1); /* what is there */
        wait_for_a_look();
        expect_change(&m, "written to while in use");
        set_time(&before); /* as if it had not been: the session goes on */
        decode(m.engine, m.session, tokens + 4, N_TOKENS - 4);
        assert_memory_equal(tokens, expected, sizeof tokens);
        stop(&m);
    }
}

static void longer_and_shorter(void **state)
{
    (void)state;
    struct stat before;
    open_model m = start(MOE_SPECULATE_OFF);
    int32_t tokens[N_TOKENS];
    decode(m.engine, m.session, tokens, 4);
    assert_int_equal(stat(path, &before), 0);
    write_in_place(before.st_size, "more", 4);
    wait_for_a_look();
    expect_change(&m, "written to while in use");
    assert_int_equal(truncate(path, before.st_size / 2), 0);
    expect_change(&m, "truncated while in use");
    stop(&m);
}

/* A step that fails for what it reads looks at once. */
static void failing_at_once(void **state)
{
    (void)state;
    open_model m = start(MOE_SPECULATE_OFF);
    assert_int_equal(truncate(path, 4096), 0); /* no expert can be read */
    expect_change(&m, "truncated while in use");
    stop(&m);
}

static bool ignore(size_t position, const float *logits, void *user)
{
    (void)position;
    (void)logits;
    (void)user;
    return true;
}

static void scored(void **state)
{
    (void)state;
    open_model m = start(MOE_SPECULATE_OFF);
    int32_t tokens[N_TOKENS] = {0};
    decode(m.engine, m.session, tokens, 1);
    moe_session_truncate(m.session, moe_session_n_tokens(m.session) - 1, NULL);
    size_t n = moe_session_n_tokens(m.session);
    write_in_place(0, "G", 1);
    wait_for_a_look();
    assert_int_equal(moe_session_score(m.session, tokens, N_TOKENS, ignore, NULL, NULL),
                     MOE_ERR_IO);
    assert_int_equal(moe_session_n_tokens(m.session), n);
    stop(&m);
}

/* What was opened is still there: a note, once, and the same tokens. */
static void replaced(void **state)
{
    (void)state;
    int32_t expected[N_TOKENS], tokens[N_TOKENS];
    open_model m = start(MOE_SPECULATE_OFF);
    decode(m.engine, m.session, expected, N_TOKENS);
    stop(&m);
    m = start(MOE_SPECULATE_OFF);
    decode(m.engine, m.session, tokens, 4);
    assert_true(copy_with_flips(model, other, 0, 1000));
    assert_int_equal(rename(other, path), 0);
    for (size_t i = 4; i < N_TOKENS; i += 4) {
        wait_for_a_look();
        decode(m.engine, m.session, tokens + i, 4);
        assert_int_equal(n_notes, 1);
    }
    assert_memory_equal(tokens, expected, sizeof tokens);
    stop(&m);
}

static int make_folder(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL) {
        return -1;
    }
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    snprintf(other, sizeof other, "%s/other.gguf", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_file_changes MODEL.gguf\n");
        return 2;
    }
    model = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_to),      cmocka_unit_test(longer_and_shorter),
        cmocka_unit_test(failing_at_once), cmocka_unit_test(scored),
        cmocka_unit_test(replaced),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
