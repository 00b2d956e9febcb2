/* SPDX-License-Identifier: MIT */
/* Saved sessions that are damaged, or belong to another model: each is refused with its status, and
 * a file with a correct checksum is checked all the same.
 * Usage: test_session_files ORACLE-FOLDER [MODEL]. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <xxhash.h>

#include "engine_fixture.h"
#include "engine_options.h"
#include "runtime/engine/engine_state.h"

/* 70 tokens (two KV pages), of which 66 are evaluated: 62 fed, 4 sampled; the last one sampled and
 * three that were fed behind it are pending. */
#define N_TOKENS    70
#define N_EVALUATED 66
#define N_SAMPLED   5
#define HEADER      208
#define MARKS       200 /* two words: which, and from where on */
#define WEIGHTS     184 /* two words: all checksums, the model's files */

static const char *folder;
static const char *model = "olmoe";
static uint32_t n_vocab;

typedef struct fixture {
    moe_engine *engine;
    char path[64];
    uint8_t *good;
    size_t size;
} fixture;

static fixture f;

static moe_engine *open_with(const char *name, moe_kv_cache_type type, uint32_t context)
{
    char path[1024];
    moe_engine_options options = oracle_options(path, folder, name);
    options.kv_cache = type;
    options.context = context;
    return open_engine(&options);
}

static void write_file(const void *bytes, size_t size)
{
    FILE *file = fopen(f.path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(f.path, "/tmp/moe-session-file-XXXXXX");
    int fd = mkstemp(f.path);
    assert_true(fd >= 0);
    close(fd);
    f.engine = open_with(model, MOE_KV_CACHE_F16, 128);
    n_vocab = f.engine->config.n_vocab;
    moe_session *session = greedy_session(f.engine);
    int32_t prompt[64];
    make_prompt(prompt, 64, n_vocab, 4);
    feed(session, prompt, 62);
    for (int i = 0; i < N_SAMPLED; i++) {
        assert_int_equal(moe_step(f.engine, &session, 1, NULL), MOE_OK);
    }
    feed(session, prompt, 3);
    assert_int_equal(moe_session_n_tokens(session), N_TOKENS);
    assert_int_equal(moe_session_n_pending(session), N_TOKENS - N_EVALUATED);
    assert_int_equal(moe_session_save(session, f.path, NULL), MOE_OK);
    moe_session_close(&session);
    FILE *file = fopen(f.path, "rb");
    f.good = malloc(1 << 20);
    f.size = fread(f.good, 1, 1 << 20, file);
    fclose(file);
    assert_true(f.size > HEADER && f.size < 1 << 20);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    moe_engine_close(&f.engine);
    unlink(f.path);
    free(f.good);
    return 0;
}

static int load_status(moe_engine *engine, moe_error *error)
{
    moe_session *session = (moe_session *)&f;
    int status = moe_session_load(&session, engine, f.path, error);
    assert_true((status == MOE_OK) == (session != NULL));
    moe_session_close(&session);
    return status;
}

/* Whatever is refused is refused with the file's name. */
static void check_refused(const void *bytes, size_t size, int expected)
{
    moe_error error = {""};
    write_file(bytes, size);
    assert_int_equal(load_status(f.engine, &error), expected);
    assert_non_null(strstr(error.message, f.path));
}

static void good_file_goes_on(void **state)
{
    (void)state;
    write_file(f.good, f.size);
    moe_session *session;
    assert_int_equal(moe_session_load(&session, f.engine, f.path, NULL), MOE_OK);
    assert_int_equal(moe_session_n_tokens(session), N_TOKENS);
    assert_int_equal(moe_session_n_pending(session), N_TOKENS - N_EVALUATED);
    int32_t tokens[8], expected[8];
    assert_int_equal(moe_session_take(session, tokens, 8), N_SAMPLED);
    assert_memory_equal(tokens, moe_session_tokens(session) + 62, N_SAMPLED * sizeof *tokens);
    moe_session *fresh = greedy_session(f.engine);
    feed(fresh, moe_session_tokens(session), N_TOKENS);
    decode(f.engine, fresh, expected, 8);
    decode(f.engine, session, tokens, 8);
    assert_memory_equal(tokens, expected, sizeof tokens);
    moe_session_close(&fresh);
    moe_session_close(&session);
}

/* Changes a field and makes the checksum right again. */
static void check_field(size_t offset, const void *value, size_t size, int expected)
{
    uint8_t *bytes = malloc(f.size);
    memcpy(bytes, f.good, f.size);
    memcpy(bytes + offset, value, size);
    uint64_t sum = XXH3_64bits(bytes, f.size - sizeof sum);
    memcpy(bytes + f.size - sizeof sum, &sum, sizeof sum);
    check_refused(bytes, f.size, expected);
    free(bytes);
}

static void every_field(void **state)
{
    (void)state;
    const struct {
        size_t offset;
        uint32_t value;
        int status;
    } cases[] = {
        {0, 0x12345678, MOE_ERR_FORMAT}, /* magic */
        {8, 1, MOE_ERR_FORMAT},          /* version */
        {8, 7, MOE_ERR_FORMAT},          /* without marks */
        {8, 10, MOE_ERR_FORMAT},
        {12, 1, MOE_ERR_MISMATCH},          /* KV type */
        {12, 77, MOE_ERR_MISMATCH},         /* ... that there is not */
        {16, 0x55555555, MOE_ERR_MISMATCH}, /* fingerprint */
        {24, 64, MOE_ERR_MISMATCH},         /* bytes of a page */
        {28, 1, MOE_ERR_MISMATCH},          /* ... its upper half */
        {32, 129, MOE_ERR_CONTEXT_FULL},    /* tokens */
        {32, UINT32_MAX, MOE_ERR_CONTEXT_FULL},
        {32, N_TOKENS + 1, MOE_ERR_FORMAT},
        {32, N_TOKENS - 1, MOE_ERR_FORMAT},
        {32, 0, MOE_ERR_FORMAT},
        {36, N_TOKENS + 1, MOE_ERR_FORMAT}, /* evaluated */
        {36, 0, MOE_ERR_FORMAT},
        {36, UINT32_MAX, MOE_ERR_FORMAT},
        {40, N_TOKENS + 1, MOE_ERR_FORMAT}, /* sampled, not taken */
        {40, 0, MOE_ERR_FORMAT},
        {44, 2, MOE_ERR_FORMAT}, /* sampled and pending */
        {48, 0, MOE_ERR_FORMAT}, /* has logits: the sum stands elsewhere then */
        {48, 2, MOE_ERR_FORMAT},
        {52, 2, MOE_ERR_FORMAT},             /* evaluate only */
        {56, 1, MOE_ERR_FORMAT},             /* the sampling's own size */
        {64, 0x7fc00000, MOE_ERR_FORMAT},    /* temperature: NaN */
        {72, 0x40000000, MOE_ERR_FORMAT},    /* top-p: 2 */
        {76, 0xbf800000, MOE_ERR_FORMAT},    /* min-p: -1 */
        {80, 0, MOE_ERR_FORMAT},             /* repetition penalty: 0 */
        {168, 8, MOE_ERR_MISMATCH},          /* states of recurrent layers */
        {176, N_TOKENS + 1, MOE_ERR_FORMAT}, /* the end of what was cut back */
        {180, 2, MOE_ERR_MISMATCH},          /* groups of layers */
        {200, 8, MOE_ERR_FORMAT},            /* marks: unknown ones, */
        {204, 1, MOE_ERR_FORMAT},            /* ... none, but from somewhere on */
        {HEADER, n_vocab, MOE_ERR_FORMAT},   /* first token */
        {HEADER + 4 * (N_TOKENS - 1), UINT32_MAX, MOE_ERR_FORMAT},
        {HEADER + 4 * N_TOKENS, 63, MOE_ERR_FORMAT}, /* positions sampled: the second's */
        {HEADER + 4 * N_TOKENS + 4, 64, MOE_ERR_FORMAT},
        {HEADER + 4 * (N_TOKENS + N_SAMPLED - 1), N_TOKENS, MOE_ERR_FORMAT},
        {HEADER + 4 * (N_TOKENS + N_SAMPLED - 1), UINT32_MAX, MOE_ERR_FORMAT},
        {HEADER + 4 * (N_TOKENS + N_SAMPLED), 1, MOE_ERR_FORMAT}, /* first page */
        {HEADER + 4 * (N_TOKENS + N_SAMPLED), UINT32_MAX, MOE_ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_field(cases[i].offset, &cases[i].value, sizeof cases[i].value, cases[i].status);
    }
    const uint8_t zeros[32] = {0};
    check_field(104, zeros, sizeof zeros, MOE_ERR_FORMAT); /* a generator stuck at 0 */
}

/* Saved with weights that are known to be others, or not known to be these: its tokens are taken,
 * and evaluated again. The rest must still be what was written. */
static void of_other_weights(void **state)
{
    (void)state;
    const uint64_t whole = f.engine->book.sums.n, cases[][2] = {{0, 12345}, {whole, 12345}, {1, 0}};
    int32_t tokens[8], expected[8];
    uint8_t *bytes = malloc(f.size);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memcpy(bytes, f.good, f.size);
        memcpy(bytes + WEIGHTS, cases[i], sizeof cases[i]);
        memset(bytes + HEADER + 4 * (N_TOKENS + N_SAMPLED) + 64, 0x7f, 64); /* keys and values */
        uint64_t sum = XXH3_64bits(bytes, f.size - sizeof sum);
        memcpy(bytes + f.size - sizeof sum, &sum, sizeof sum);
        write_file(bytes, f.size);
        moe_error error = {""};
        int32_t *kept;
        size_t n;
        assert_int_equal(moe_session_file_tokens(f.path, f.engine, &kept, &n, &error),
                         MOE_ERR_MISMATCH);
        assert_non_null(strstr(error.message, f.path));
        moe_session *session;
        assert_int_equal(moe_session_load(&session, f.engine, f.path, NULL), MOE_OK);
        assert_int_equal(moe_session_n_tokens(session), N_TOKENS);
        assert_int_equal(moe_session_n_pending(session), N_TOKENS);
        assert_null(moe_session_logits(session));
        assert_int_equal(moe_session_take(session, tokens, 8), N_SAMPLED);
        moe_session *fresh = greedy_session(f.engine);
        feed(fresh, moe_session_tokens(session), N_TOKENS);
        decode(f.engine, fresh, expected, 8);
        decode(f.engine, session, tokens, 8);
        assert_memory_equal(tokens, expected, sizeof tokens);
        moe_session_close(&fresh);
        moe_session_close(&session);
        bytes[f.size - 9] ^= 1;
        check_refused(bytes, f.size, MOE_ERR_FORMAT);
        check_refused(bytes, f.size - 1, MOE_ERR_FORMAT);
        check_refused(bytes, HEADER + 4 * (N_TOKENS + N_SAMPLED), MOE_ERR_FORMAT);
    }
    free(bytes);
}

/* The marks in the file of a session. */
static const uint32_t *saved_marks(const moe_session *session)
{
    static uint32_t marks[2];
    assert_int_equal(moe_session_save(session, f.path, NULL), MOE_OK);
    FILE *file = fopen(f.path, "rb");
    assert_int_equal(fseek(file, MARKS, SEEK_SET), 0);
    assert_int_equal(fread(marks, sizeof marks, 1, file), 1);
    fclose(file);
    return marks;
}

static void assert_not_usable(moe_engine *engine, const char *why)
{
    moe_error error = {""};
    int32_t *kept;
    size_t n;
    assert_int_equal(moe_session_file_tokens(f.path, engine, &kept, &n, &error), MOE_ERR_MISMATCH);
    assert_non_null(strstr(error.message, f.path));
    assert_non_null(strstr(error.message, why));
}

/* What an engine with lossy modes wrote is marked from the first such position on. An exact engine
 * takes the tokens alone and evaluates them again; one with lossy modes goes on, and it stays
 * marked. */
static void lossy(void **state)
{
    (void)state;
    char path[1024];
    if (moe_count_mixers(&f.engine->config, MOE_MIXER_RECURRENT) > 0) {
        skip(); /* the marks' positions lie between snapshots of states */
    }
    moe_engine_options options = oracle_options(path, folder, model);
    options.context = 128;
    lossy_of(&options)->expert_budget = 5; /* of six at least */
    moe_engine *engine = open_engine(&options);
    moe_session *session = greedy_session(engine);
    moe_session *fork;
    int32_t prompt[64], expected[8], tokens[8];
    make_prompt(prompt, 64, n_vocab, 4);
    feed(session, prompt, 62);
    assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
    assert_int_equal(saved_marks(session)[0], 0); /* prompts are exact */
    decode(engine, session, tokens, 5);
    assert_int_equal(saved_marks(session)[0], MOE_SESSION_LOSSY);
    assert_int_equal(saved_marks(session)[1], 62);
    assert_not_usable(f.engine, "lossy modes");
    moe_session *exact;
    assert_int_equal(moe_session_load(&exact, f.engine, f.path, NULL), MOE_OK);
    uint32_t n = (uint32_t)moe_session_n_tokens(exact);
    assert_int_equal(n, moe_session_n_tokens(session));
    assert_int_equal(moe_session_n_pending(exact), n);
    moe_session *fresh = greedy_session(f.engine);
    feed(fresh, moe_session_tokens(exact), n);
    decode(f.engine, fresh, expected, 8);
    decode(f.engine, exact, tokens, 8);
    assert_memory_equal(tokens, expected, sizeof tokens);
    assert_int_equal(saved_marks(exact)[0], 0);
    moe_session_close(&exact);
    moe_session_close(&fresh);
    assert_int_equal(moe_session_fork(&fork, session, NULL), MOE_OK);
    assert_int_equal(saved_marks(fork)[1], 62);
    moe_session_close(&fork);
    assert_int_equal(moe_session_load(&fork, engine, f.path, NULL), MOE_OK);
    assert_true(moe_session_n_pending(fork) < 2);
    assert_int_equal(saved_marks(fork)[0], MOE_SESSION_LOSSY);
    /* Cut behind the mark it stays; cut before it nothing of it is left. */
    assert_int_equal(moe_session_truncate(fork, 63, NULL), MOE_OK);
    assert_int_equal(saved_marks(fork)[0], MOE_SESSION_LOSSY);
    assert_int_equal(moe_session_truncate(fork, 62, NULL), MOE_OK);
    assert_int_equal(saved_marks(fork)[0], 0);
    feed(fork, prompt, 8);
    assert_int_equal(moe_step(engine, &fork, 1, NULL), MOE_OK);
    assert_int_equal(saved_marks(fork)[0], 0);
    moe_session_close(&fork);
    moe_session_close(&session);
    moe_engine_close(&engine);
    assert_int_equal(moe_session_load(&fork, f.engine, f.path, NULL), MOE_OK);
    assert_true(moe_session_n_pending(fork) < 2);
    moe_session_close(&fork);
}

/* Computed by a GPU's own attention: as with lossy modes, the tokens alone are taken. */
static void of_other_attention(void **state)
{
    (void)state;
    const uint32_t mark = MOE_SESSION_OWN_ATTENTION;
    uint8_t *bytes = malloc(f.size);
    memcpy(bytes, f.good, f.size);
    memcpy(bytes + MARKS, &mark, sizeof mark);
    uint64_t sum = XXH3_64bits(bytes, f.size - sizeof sum);
    memcpy(bytes + f.size - sizeof sum, &sum, sizeof sum);
    write_file(bytes, f.size);
    free(bytes);
    assert_not_usable(f.engine, "on a GPU without options.exact_attention");
    moe_session *session;
    assert_int_equal(moe_session_load(&session, f.engine, f.path, NULL), MOE_OK);
    assert_int_equal(moe_session_n_pending(session), N_TOKENS);
    moe_session_close(&session);
}

static void truncated(void **state)
{
    (void)state;
    for (size_t i = 0; i < 16; i++) {
        check_refused(f.good, f.size * i / 16, MOE_ERR_FORMAT);
    }
    check_refused(f.good, f.size - 1, MOE_ERR_FORMAT);
    check_refused(f.good, HEADER, MOE_ERR_FORMAT);
    uint8_t *longer = calloc(1, f.size + 1);
    memcpy(longer, f.good, f.size);
    check_refused(longer, f.size + 1, MOE_ERR_FORMAT);
    free(longer);
}

static void flipped(void **state)
{
    (void)state;
    uint8_t *bytes = malloc(f.size);
    for (size_t i = 0; i < 400; i++) {
        size_t at = i < HEADER ? i : HEADER + (i - HEADER) * 7919 % (f.size - HEADER);
        memcpy(bytes, f.good, f.size);
        bytes[at] ^= (uint8_t)(1u << i % 8);
        write_file(bytes, f.size);
        moe_error error = {""};
        int status = load_status(f.engine, &error);
        if (i < HEADER) {
            assert_true(status == MOE_ERR_FORMAT || status == MOE_ERR_MISMATCH ||
                        status == MOE_ERR_CONTEXT_FULL);
        } else {
            assert_int_equal(status, MOE_ERR_FORMAT);
        }
    }
    free(bytes);
}

static void elsewhere(void **state)
{
    (void)state;
    write_file(f.good, f.size);
    const struct {
        const char *model;
        moe_kv_cache_type type;
        uint32_t context;
        int status;
    } cases[] = {
        {"qwen3moe", MOE_KV_CACHE_F16, 128, MOE_ERR_MISMATCH},
        {"olmoe-norm", MOE_KV_CACHE_F16, 128, MOE_ERR_MISMATCH},
        {model, MOE_KV_CACHE_F32, 128, MOE_ERR_MISMATCH},
        {model, MOE_KV_CACHE_F16, N_TOKENS - 1, MOE_ERR_CONTEXT_FULL},
        {model, MOE_KV_CACHE_F16, N_TOKENS, MOE_OK},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        moe_engine *engine = open_with(cases[i].model, cases[i].type, cases[i].context);
        moe_error error;
        assert_int_equal(load_status(engine, &error), cases[i].status);
        moe_engine_close(&engine);
    }
}

/* Keys of an indexer come from the file: damage to one is noticed, and under a right checksum it
 * decides what is seen. */
static void index_keys(void **state)
{
    (void)state;
    const moe_model_config *c = &f.engine->config;
    const moe_kv_layout *layout = &f.engine->kv.layers[0];
    if (c->layers[0].indexer != MOE_INDEXER_OWN) {
        skip();
    }
    assert_true(c->index_top_k < N_EVALUATED);
    size_t key = HEADER + 4 * (N_TOKENS + N_SAMPLED + f.engine->kv.n_groups) + layout->k_offset +
                 moe_kv_row_bytes(MOE_KV_F16, c->head_dim_k);
    uint8_t *bytes = malloc(f.size);
    memcpy(bytes, f.good, f.size);
    bytes[key + 1] ^= 0x80; /* a sign */
    check_refused(bytes, f.size, MOE_ERR_FORMAT);
    for (size_t i = 0; i < 40; i++) { /* the first keys are what no query likes, or all do */
        for (size_t d = 0; d < c->index_dim; d++) {
            uint16_t value = i % 2 == 0 ? 0xd800 : 0x5800; /* -128, 128 */
            memcpy(bytes + key + i * layout->k_row_bytes + 2 * d, &value, sizeof value);
        }
    }
    uint64_t sum = XXH3_64bits(bytes, f.size - sizeof sum);
    memcpy(bytes + f.size - sizeof sum, &sum, sizeof sum);
    float *logits[2];
    for (int i = 0; i < 2; i++) {
        moe_session *session;
        int32_t tokens[8];
        write_file(i == 0 ? f.good : bytes, f.size);
        assert_int_equal(moe_session_load(&session, f.engine, f.path, NULL), MOE_OK);
        decode(f.engine, session, tokens, 1);
        logits[i] = malloc(n_vocab * sizeof(float));
        memcpy(logits[i], moe_session_logits(session), n_vocab * sizeof(float));
        moe_session_close(&session);
    }
    assert_memory_not_equal(logits[0], logits[1], n_vocab * sizeof(float));
    free(logits[0]);
    free(logits[1]);
    free(bytes);
}

static void no_place(void **state)
{
    (void)state;
    moe_error error = {""};
    moe_session *session = greedy_session(f.engine);
    assert_int_equal(moe_session_save(session, "/nowhere/at/all", &error), MOE_ERR_IO);
    assert_non_null(strstr(error.message, "/nowhere/at/all"));
    /* An empty timeline is one, too. */
    assert_int_equal(moe_session_save(session, f.path, NULL), MOE_OK);
    moe_session_close(&session);
    assert_int_equal(load_status(f.engine, &error), MOE_OK);
    assert_int_equal(moe_session_load(&session, f.engine, "/nowhere/at/all", &error), MOE_ERR_IO);
    assert_null(session);
    assert_int_equal(moe_session_load(&session, f.engine, "/", &error), MOE_ERR_IO);
    assert_null(session);
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: test_session_files ORACLE-FOLDER [MODEL]\n");
        return 2;
    }
    folder = argv[1];
    model = argc == 3 ? argv[2] : model;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_file_goes_on),
        cmocka_unit_test(every_field),
        cmocka_unit_test(of_other_weights),
        cmocka_unit_test(truncated),
        cmocka_unit_test(flipped),
        cmocka_unit_test(elsewhere),
        cmocka_unit_test(no_place),
        cmocka_unit_test(index_keys),
        cmocka_unit_test(lossy),
        cmocka_unit_test(of_other_attention),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
