/* SPDX-License-Identifier: MIT */
/* A pass when the disk misbehaves: it fails with a line that names the expert, or it is right; and
 * what follows is right. Usage: test_store_faults ORACLE-FOLDER. */
#include "tests/offload/store_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_PROMPT 40
#define N_DECODE 20

static char model_path[1024];
static int32_t expected[N_DECODE];

static moe_session *start_session(moe_engine *engine)
{
    moe_session_options options;
    moe_session_options_init(&options);
    options.sampling.temperature = 0.0f;
    moe_session *session;
    assert_int_equal(moe_session_create(&session, engine, &options, NULL), MOE_OK);
    int32_t prompt[N_PROMPT];
    for (int32_t i = 0; i < N_PROMPT; i++) {
        prompt[i] = i * i * 7 % 288;
    }
    assert_int_equal(moe_session_feed(session, prompt, N_PROMPT, NULL), MOE_OK);
    return session;
}

/* Steps to the end; steps that fail are counted and made again. Returns how many failed. */
static int run(moe_engine *engine, int32_t *tokens, int max_failures)
{
    moe_session *session = start_session(engine);
    int n_failures = 0;
    for (size_t n = 0; n < N_DECODE;) {
        moe_error error;
        size_t before = moe_session_n_tokens(session);
        int status = moe_step(engine, &session, 1, &error);
        if (status != MOE_OK) {
            assert_int_equal(status, MOE_ERR_IO);
            assert_non_null(strstr(error.message, "layer "));
            assert_non_null(strstr(error.message, "expert "));
            assert_non_null(strstr(error.message, model_path));
            assert_non_null(strstr(error.message, "offset "));
            assert_int_equal(moe_session_n_tokens(session), before);
            if (++n_failures > max_failures) {
                fail_msg("%s", error.message);
            }
        }
        n += moe_session_take(session, tokens + n, N_DECODE - n);
    }
    moe_session_close(&session);
    return n_failures;
}

/* Decodes until 200 reads were damaged: how many a run makes depends on what is prefetched, which
 * depends on time. A read that was damaged is repeated, so a pass fails if that happens twice in a
 * row, which is to be seldom. */
static int run_damaged(store_fixture *f, int32_t *tokens)
{
    int n_failures = 0;
    f->flip_per_mille = 60;
    while (f->n_injected < 200) {
        n_failures += run(f->engine, tokens, 50);
    }
    print_message("%u flips, %d passes failed by two in a row\n", f->n_injected, n_failures);
    assert_true(n_failures < (int)f->n_injected / 4);
    return n_failures;
}

static void check_counters(const store_fixture *f)
{
    moe_expert_store_stats stats;
    moe_expert_store_get_stats(f->engine->runner.experts, &stats);
    uint64_t expert_bytes = moe_expert_ref_bytes(&f->map->layers[1].experts[0]);
    assert_int_equal((stats.bytes_demand + stats.bytes_prefetch) % expert_bytes, 0);
    assert_true(stats.bytes_read >= stats.bytes_demand + stats.bytes_prefetch);
    assert_true(stats.n_resident <= stats.n_slots);
}

static int make_expected(void **state)
{
    (void)state;
    store_fixture f;
    store_fixture_open(&f, model_path, 1.0, NULL, NULL);
    assert_int_equal(run(f.engine, expected, 0), 0);
    store_fixture_close(&f);
    return 0;
}

/* One expert cannot be read for a while. */
static void hard_error_is_named(void **state)
{
    (void)state;
    for (int prefetch = 0; prefetch <= 1; prefetch++) {
        store_fixture f;
        store_fixture_open(&f, model_path, 0.5, NULL, NULL);
        f.engine->runner.prefetch = prefetch != 0;
        f.chosen.layer = 1;
        f.choose_next = f.fail_chosen = true;
        moe_session *session = start_session(f.engine);
        moe_error error;
        for (int i = 0; i < 3; i++) {
            assert_int_equal(moe_step(f.engine, &session, 1, &error), MOE_ERR_IO);
        }
        char name[64];
        snprintf(name, sizeof name, "layer 1, expert %u: %s", f.chosen.expert, "");
        if (strstr(error.message, name) == NULL || strstr(error.message, model_path) == NULL ||
            strstr(error.message, "at offset ") == NULL) {
            fail_msg("does not name %s: %s", name, error.message);
        }
        unsigned long long offset = strtoull(strstr(error.message, "at offset ") + 10, NULL, 10);
        const moe_expert_ref *ref = &f.map->layers[1].experts[f.chosen.expert];
        bool found = false;
        for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
            found |= offset <= ref->parts[p].offset && ref->parts[p].offset - offset < 4096;
        }
        assert_true(found);
        assert_int_equal(moe_session_n_pending(session), N_PROMPT);
        moe_session_close(&session);
        atomic_store(&f.fail_chosen, false);
        int32_t tokens[N_DECODE];
        assert_int_equal(run(f.engine, tokens, 0), 0);
        assert_memory_equal(tokens, expected, sizeof tokens);
        check_counters(&f);
        store_fixture_close(&f);
    }
}

/* Reads fail at random moments, often enough that passes fail; each is made again. */
static void hard_errors_at_random(void **state)
{
    (void)state;
    for (int prefetch = 0; prefetch <= 1; prefetch++) {
        store_fixture f;
        store_fixture_open(&f, model_path, 0.3, NULL, NULL);
        f.engine->runner.prefetch = prefetch != 0;
        f.hard_per_mille = 400;
        f.delay_per_mille = 100;
        int32_t tokens[N_DECODE];
        int n_failures = run(f.engine, tokens, 10000);
        print_message("prefetch %d: %d passes failed\n", prefetch, n_failures);
        assert_true(n_failures > 3);
        assert_memory_equal(tokens, expected, sizeof tokens);
        check_counters(&f);
        store_fixture_close(&f);
    }
}

static void check_mild(uint32_t shorts, uint32_t transients, uint32_t delays)
{
    for (int prefetch = 0; prefetch <= 1; prefetch++) {
        store_fixture f;
        store_fixture_open(&f, model_path, 0.3, NULL, NULL);
        f.engine->runner.prefetch = prefetch != 0;
        f.short_per_mille = shorts;
        f.transient_per_mille = transients;
        f.delay_per_mille = delays;
        int32_t tokens[N_DECODE];
        assert_int_equal(run(f.engine, tokens, 0), 0);
        assert_memory_equal(tokens, expected, sizeof tokens);
        check_counters(&f);
        assert_true(f.n_injected > 50);
        moe_engine_stats stats = {.struct_size = sizeof stats};
        moe_engine_get_stats(f.engine, &stats);
        assert_int_equal(stats.expert_failures, 0);
        assert_int_equal(stats.expert_timeouts, 0);
        assert_true((stats.disk_retries > 0) == (shorts + transients > 0));
        if (prefetch == 0 && shorts == 0 && delays == 0) {
            assert_int_equal(stats.disk_retries, f.n_injected);
        }
        store_fixture_close(&f);
    }
}

static void mild_faults_change_nothing(void **state)
{
    (void)state;
    check_mild(300, 0, 0);
    check_mild(0, 400, 0);
    check_mild(0, 0, 500);
    check_mild(150, 150, 200);
}

static void give_checksums(moe_expert_store_options *options, void *user)
{
    options->sums = &((store_fixture *)user)->sums;
}

/* Bits that flip on the way are seen and read again; bits that are wrong on the disk are named. */
static void checksums(void **state)
{
    (void)state;
    store_fixture f;
    store_fixture_open(&f, model_path, 0.3, give_checksums, &f);
    int32_t tokens[N_DECODE];
    run_damaged(&f, tokens);
    assert_memory_equal(tokens, expected, sizeof tokens);

    f.flip_per_mille = 0;
    f.chosen.layer = 1;
    f.choose_next = f.flip_chosen = true;
    moe_session *session = start_session(f.engine);
    moe_error error = {""};
    int status = MOE_OK;
    while (status == MOE_OK && moe_session_n_tokens(session) < 200) {
        status = moe_step(f.engine, &session, 1, &error);
    }
    assert_int_equal(status, MOE_ERR_IO);
    assert_non_null(strstr(error.message, "checksum"));
    assert_non_null(strstr(error.message, model_path));
    char name[64];
    snprintf(name, sizeof name, "layer 1, expert %u: ", f.chosen.expert);
    assert_non_null(strstr(error.message, name));
    moe_session_close(&session);
    atomic_store(&f.flip_chosen, false);
    assert_int_equal(run(f.engine, tokens, 0), 0);
    assert_memory_equal(tokens, expected, sizeof tokens);
    store_fixture_close(&f);
}

static void give_sums(moe_expert_store_options *options, void *user)
{
    options->sums = user;
}

/* Checksums that are made at the first reading are the file's, and show bits that flip later. */
static void made_checksums(void **state)
{
    (void)state;
    store_fixture f;
    moe_weight_sums sums = {0};
    store_fixture_open(&f, model_path, 0.3, give_sums, &sums);
    /* The store has taken the address alone. */
    assert_int_equal(moe_weight_sums_init(&sums, f.map, 0, NULL), MOE_OK);
    int32_t tokens[N_DECODE];
    assert_int_equal(run(f.engine, tokens, 0), 0);
    size_t n_made = 0;
    for (size_t i = 0; i < sums.n; i++) {
        uint64_t made = moe_weight_sums_get(&sums, i);
        uint64_t known = moe_weight_sums_get(&f.sums, i);
        assert_true(made == 0 || made == known);
        n_made += made != 0;
        moe_weight_sums_give(&sums, i, known);
    }
    assert_true(n_made > sums.n / 4);
    /* No more than the first reading of each, and a sixteenth of the others, is hashed. */
    moe_expert_store_stats stats;
    uint64_t all = 0;
    for (uint32_t l = 0; l < f.map->n_layer; l++) {
        for (uint32_t e = 0; f.map->layers[l].experts != NULL && e < f.map->n_expert; e++) {
            all += moe_expert_ref_bytes(&f.map->layers[l].experts[e]);
        }
    }
    for (int i = 0; i < 20; i++) {
        assert_int_equal(run(f.engine, tokens, 0), 0);
    }
    moe_expert_store_get_stats(f.engine->runner.experts, &stats);
    uint64_t n_read = stats.bytes_disk_demand + stats.bytes_disk_prefetch;
    uint64_t n_hashed = atomic_load(&sums.n_hashed);
    print_message("%.3g MB read, %.3g MB hashed\n", (double)n_read / 1e6, (double)n_hashed / 1e6);
    assert_true(n_read > 20 * all);
    assert_true(n_hashed <= all + n_read / MOE_WEIGHT_SUMS_EVERY);
    sums.each_time = true; /* as with a calibration */
    int n_failures = run_damaged(&f, tokens);
    assert_memory_equal(tokens, expected, sizeof tokens);
    f.flip_per_mille = 0;
    assert_true(atomic_load(&sums.damaged) == (n_failures > 0));
    store_fixture_close(&f);
    moe_weight_sums_free(&sums);
}

/* The file is cut short under the engine, and put right again. */
static void file_truncated_while_open(void **state)
{
    (void)state;
    char kept[sizeof model_path];
    store_fixture f;
    char copy[] = "/tmp/moe-truncated-XXXXXX";
    int fd = mkstemp(copy);
    assert_true(fd >= 0);
    store_fixture_open(&f, model_path, 0.5, NULL, NULL);
    uint8_t *bytes = f.file;
    size_t size = f.file_bytes;
    f.file = NULL;
    store_fixture_close(&f);
    assert_int_equal(pwrite(fd, bytes, size, 0), (ssize_t)size);
    memcpy(kept, model_path, sizeof kept);
    strcpy(model_path, copy);

    struct stat before;
    store_fixture_open(&f, copy, 0.5, NULL, NULL);
    assert_int_equal(fstat(fd, &before), 0);
    assert_int_equal(ftruncate(fd, (off_t)size / 4), 0);
    moe_session *session = start_session(f.engine);
    moe_error error = {""};
    assert_int_equal(moe_step(f.engine, &session, 1, &error), MOE_ERR_IO);
    assert_non_null(strstr(error.message, "truncated"));
    assert_non_null(strstr(error.message, copy));
    moe_session_close(&session);
    assert_int_equal(pwrite(fd, bytes, size, 0), (ssize_t)size);
    /* Another time of writing would be noticed, within a second, and fail all that follows. */
    const struct timespec times[] = {before.st_atim, before.st_mtim};
    assert_int_equal(futimens(fd, times), 0);
    int32_t tokens[N_DECODE];
    assert_int_equal(run(f.engine, tokens, 0), 0);
    assert_memory_equal(tokens, expected, sizeof tokens);
    store_fixture_close(&f);
    memcpy(model_path, kept, sizeof kept);
    close(fd);
    unlink(copy);
    free(bytes);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_store_faults ORACLE-FOLDER\n");
        return 2;
    }
    alarm(1800); /* a hang is a failure */
    snprintf(model_path, sizeof model_path, "%s/olmoe/model.gguf", argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hard_error_is_named),
        cmocka_unit_test(hard_errors_at_random),
        cmocka_unit_test(mild_faults_change_nothing),
        cmocka_unit_test(checksums),
        cmocka_unit_test(made_checksums),
        cmocka_unit_test(file_truncated_while_open),
    };
    return cmocka_run_group_tests(tests, make_expected, NULL);
}
