/* SPDX-License-Identifier: MIT */
/* A function of the program reads the model's file: it is asked for each byte of the weights that
 * is used, the text is the same, and what it fails with is an error of the call or step.
 * Usage: test_read_file MODEL.gguf. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine_fixture.h"

#define N_PROMPT 12
#define N_WRITE  16
#define N_VOCAB  500

static const char *model_path;

typedef struct reader {
    int fd;
    _Atomic uint64_t n_bytes;
    _Atomic int error; /* what calls return from now on; 0: bytes */
    _Atomic bool wrong_path;
    bool short_reads;
} reader;

static int64_t read_some(const char *path, void *dst, size_t size, uint64_t offset, void *user)
{
    reader *r = user;
    if (strcmp(path, model_path) != 0) {
        r->wrong_path = true;
    }
    if (r->error != 0) {
        return -r->error;
    }
    size = r->short_reads && size > 1000 ? size / 2 : size;
    int64_t got = pread(r->fd, dst, size, (off_t)offset);
    r->n_bytes += got > 0 ? (uint64_t)got : 0;
    return got;
}

static moe_engine_options options_of(reader *r)
{
    moe_engine_options options = fixture_options(model_path, 64, 256);
    options.expert_cache_share = 0.25;
    if (r != NULL) {
        options.read_file = read_some;
        options.read_user = r;
    }
    return options;
}

static void write_text(moe_engine *engine, int32_t *out)
{
    int32_t prompt[N_PROMPT];
    moe_session *session = greedy_session(engine);
    make_prompt(prompt, N_PROMPT, N_VOCAB, 3);
    feed(session, prompt, N_PROMPT);
    decode(engine, session, out, N_WRITE);
    moe_session_close(&session);
}

static void test_text(void **state)
{
    (void)state;
    int32_t reference[N_WRITE];
    int32_t written[N_WRITE];
    moe_engine_options options = options_of(NULL);
    moe_engine *engine = open_engine(&options);
    write_text(engine, reference);
    moe_engine_close(&engine);
    for (int shorter = 0; shorter < 2; shorter++) {
        reader r = {.fd = open(model_path, O_RDONLY), .short_reads = shorter == 1};
        assert_true(r.fd >= 0);
        options = options_of(&r);
        engine = open_engine(&options);
        moe_engine_stats before = {.struct_size = sizeof before};
        moe_engine_stats after = {.struct_size = sizeof after};
        moe_engine_get_stats(engine, &before);
        const uint64_t had = r.n_bytes;
        assert_true(had >= before.open_weights_bytes / 2);
        write_text(engine, written);
        moe_engine_get_stats(engine, &after);
        assert_true(r.n_bytes - had >= after.bytes_read_disk - before.bytes_read_disk);
        assert_true(after.expert_misses > 0);
        moe_engine_close(&engine);
        close(r.fd);
        assert_memory_equal(written, reference, sizeof written);
        assert_false(r.wrong_path);
    }
}

static void test_errors(void **state)
{
    (void)state;
    reader r = {.fd = open(model_path, O_RDONLY), .error = EHOSTUNREACH};
    moe_engine_options options = options_of(&r);
    moe_engine *engine;
    moe_error err = {""};
    assert_int_equal(moe_engine_open(&engine, &options, &err), MOE_ERR_IO);
    assert_non_null(strstr(err.message, model_path));
    assert_non_null(strstr(err.message, strerror(EHOSTUNREACH)));
    r.error = 0;
    engine = open_engine(&options);
    int32_t prompt[N_PROMPT];
    moe_session *session = greedy_session(engine);
    make_prompt(prompt, N_PROMPT, N_VOCAB, 3);
    feed(session, prompt, N_PROMPT);
    r.error = ESTALE;
    int status = MOE_OK;
    for (int i = 0; i < 64 && status == MOE_OK; i++) {
        status = moe_step(engine, &session, 1, &err);
    }
    assert_int_equal(status, MOE_ERR_IO);
    assert_non_null(strstr(err.message, model_path));
    r.error = 0; /* the link is back: the step can be made again */
    assert_int_equal(moe_step(engine, &session, 1, &err), MOE_OK);
    moe_session_close(&session);
    moe_engine_close(&engine);
    close(r.fd);
}

int main(int argc, char **argv)
{
    model_path = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
