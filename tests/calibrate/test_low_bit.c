/* SPDX-License-Identifier: MIT */
/* Low-bit copies of experts: the file, and the lossy mode that lets copies stand in for missing
 * experts. Rows of the models are too short for Q2_K, so such copies are the experts themselves,
 * bit by bit; Q4_0 changes them. */
#include "../engine/engine_options.h"
#include "runtime/sidecar/low_bit_file.h"
#include "tests/calibrate/calibrate_fixture.h"

enum { N_SCORED = 100 };

/* What scoring the text gave. */
typedef struct scored {
    float *logits; /* [N_SCORED][n_vocab] */
    size_t n;
    uint32_t n_vocab;
    moe_lossy_stats lossy;
    moe_memory_plan plan;
} scored;

static void make_copies(const char *sidecar, const char *type)
{
    moe_engine_options options = engine_options();
    moe_engine *engine = open_engine(&options);
    moe_calibrate_options calibrate_opts = calibrate_options(sidecar);
    calibrate_opts.low_bit_type = type;
    moe_error error = {""};
    if (moe_calibrate(engine, &calibrate_opts, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    moe_engine_close(&engine);
}

static moe_engine_options low_bit_options(const char *sidecar)
{
    moe_engine_options options = engine_options();
    options.calibration = sidecar;
    options.expert_cache_share = 0.9;
    options.prefetch = MOE_SWITCH_OFF;
    options.warm_start = MOE_SWITCH_OFF;
    lossy_of(&options)->low_bit = true;
    lossy_of(&options)->quality_share = 1.0;
    return options;
}

static bool keep_logits(size_t position, const float *logits, void *user)
{
    scored *s = user;
    (void)position;
    memcpy(s->logits + s->n++ * s->n_vocab, logits, s->n_vocab * sizeof *logits);
    return true;
}

/* One token a pass, so that experts come and go. */
static int try_score(const moe_engine_options *options, scored *s, moe_error *error)
{
    moe_engine *engine = open_engine(options);
    moe_session *session = greedy_session(engine);
    *s = (scored){.n_vocab = calibrated.info.n_vocab};
    s->logits = calloc(N_SCORED, s->n_vocab * sizeof *s->logits);
    int status = moe_session_score(session, calibrated.text, N_SCORED, keep_logits, s, error);
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_stats(engine, &stats);
    moe_engine_get_info(engine, &info);
    s->lossy = stats.lossy;
    s->plan = info.memory;
    assert_true(stats.bytes_demand >= stats.lossy.low_bit_bytes);
    moe_session_close(&session);
    moe_engine_close(&engine);
    return status;
}

static scored score(moe_engine_options options)
{
    scored s;
    moe_error error = {""};
    options.prefill_chunk = 4;
    if (try_score(&options, &s, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    return s;
}

/* What stands in is the same number by number, and so are the logits. */
static void equal_copies_change_nothing(void **state)
{
    (void)state;
    char sidecar[128];
    make_copies(in_folder(sidecar, "same.moe-cal.gguf"), "Q2_K");
    moe_engine_options options = engine_options();
    scored exact = score(options);
    scored copied = score(low_bit_options(sidecar));
    assert_int_equal(exact.n, copied.n);
    assert_int_equal(exact.lossy.low_bit_picks, 0);
    assert_memory_equal(exact.logits, copied.logits,
                        exact.n * exact.n_vocab * sizeof *exact.logits);
    const moe_lossy_stats *l = &copied.lossy;
    assert_true(l->low_bit_picks > 50 && l->low_bit_picks < l->picks);
    assert_true(l->low_bit_hits > 0 && l->low_bit_misses > 0 && l->low_bit_bytes > 0);
    assert_int_equal(l->low_bit_hits + l->low_bit_misses, l->low_bit_experts);
    assert_true(l->compared > 0 && l->agreed == l->compared && l->max_kl < 1e-9);
    free(exact.logits);
    free(copied.logits);
}

static void copies_are_metered(void **state)
{
    (void)state;
    char sidecar[128];
    make_copies(in_folder(sidecar, "q4.moe-cal.gguf"), "Q4_0");
    moe_engine_options options = low_bit_options(sidecar);
    scored all = score(options);
    assert_true(all.lossy.low_bit_picks > 50 && all.lossy.mean_kl > 1e-7);
    assert_true(all.lossy.mean_kl < 0.1);
    assert_true(all.lossy.low_bit_mass > 0.0 && all.lossy.low_bit_mass < 1.0);
    assert_int_equal(all.lossy.low_bit_bytes % all.lossy.low_bit_misses, 0);
    lossy_of(&options)->low_bit_below = 0.3f;
    scored some = score(options);
    assert_true(some.lossy.low_bit_picks > 0);
    double share_all = (double)all.lossy.low_bit_picks / (double)all.lossy.picks;
    double share_some = (double)some.lossy.low_bit_picks / (double)some.lossy.picks;
    assert_true(share_some < 0.8 * share_all);
    assert_true(some.lossy.low_bit_mass / share_some < all.lossy.low_bit_mass / share_all);
    free(all.logits);
    free(some.logits);
}

/* Copies take their share of the memory for experts, and no more than they all need. */
static void the_plan_counts_copies(void **state)
{
    (void)state;
    char sidecar[128];
    in_folder(sidecar, "q4.moe-cal.gguf");
    moe_engine_options options = engine_options();
    moe_memory_plan plain = {.struct_size = sizeof plain};
    moe_memory_plan with = {.struct_size = sizeof with};
    moe_error error = {""};
    options.expert_cache_share = 0.9;
    assert_int_equal(moe_plan_memory(&options, &plain, &error), MOE_OK);
    options = low_bit_options(sidecar);
    assert_int_equal(moe_plan_memory(&options, &with, &error), MOE_OK);
    assert_int_equal(plain.low_bit_cache, 0);
    assert_true(with.low_bit_cache > 0 && with.low_bit_slots > 0);
    /* Slots are whole ones, in one memory that was there for experts alone. */
    uint64_t slot = plain.expert_cache / plain.expert_slots;
    assert_true(with.low_bit_cache + with.expert_cache <= plain.expert_cache + slot);
    assert_true(with.low_bit_cache + with.expert_cache + 2 * slot > plain.expert_cache);
    assert_true(with.total - with.process >
                with.resident + with.kv_cache + with.scratch + with.expert_cache);
    lossy_of(&options)->low_bit_share = 0.01;
    assert_int_equal(moe_plan_memory(&options, &with, &error), MOE_ERR_BUDGET);
    assert_non_null(strstr(error.message, "low_bit_share"));
}

static void refuse(const moe_engine_options *options, int status, const char *words)
{
    moe_engine *engine = NULL;
    moe_error error = {""};
    assert_int_equal(moe_engine_open(&engine, options, &error), status);
    assert_null(engine);
    if (strstr(error.message, words) == NULL) {
        fail_msg("'%s' lacks '%s'", error.message, words);
    }
}

static void what_cannot_act_is_refused(void **state)
{
    (void)state;
    char sidecar[128];
    moe_engine_options options = low_bit_options(in_folder(sidecar, "cal.gguf"));
    refuse(&options, MOE_ERR_ARGUMENT, "options.low_bit_type");
    options = low_bit_options(in_folder(sidecar, "q4.moe-cal.gguf"));
    options.expert_cache_share = 0.0;
    refuse(&options, MOE_ERR_ARGUMENT, "all experts fit");
    options.expert_cache_share = 0.9;
    options.device = "sim:memory=64M,link=16GB/s,latency=1us";
    refuse(&options, MOE_ERR_UNSUPPORTED, "set options.device to cpu");
    options.device = NULL;
    lossy_of(&options)->low_bit_below = 0.0f;
    refuse(&options, MOE_ERR_ARGUMENT, "low_bit_below");
    lossy_of(&options)->low_bit_below = 1.0f;
    lossy_of(&options)->low_bit_share = 1.0;
    refuse(&options, MOE_ERR_ARGUMENT, "low_bit_share");
    lossy_of(&options)->low_bit_share = 0.5;
    lab_of(&options)->offload = MOE_OFFLOAD_ON_DEMAND;
    refuse(&options, MOE_ERR_ARGUMENT, "baseline");
    moe_dtype type;
    moe_error error = {""};
    assert_int_equal(moe_low_bit_type("Q8_0", &type, &error), MOE_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "Q3_K"));
}

/* Writes a copy of the file of copies with some bytes changed, or cut at `at` if n is 0. */
static void damage(const char *path, const uint8_t *bytes, size_t size, size_t at, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(bytes, 1, at, file);
    for (size_t i = at; i < size && n > 0; i++) {
        fputc(i < at + n ? bytes[i] ^ 0x55 : bytes[i], file);
    }
    fclose(file);
}

static size_t find(const uint8_t *bytes, size_t size, const char *words)
{
    for (size_t i = 0; i + strlen(words) < size; i++) {
        if (memcmp(bytes + i, words, strlen(words)) == 0) {
            return i + strlen(words);
        }
    }
    fail_msg("no %s", words);
    return 0;
}

static void damage_is_refused(void **state)
{
    (void)state;
    char sidecar[128];
    make_copies(in_folder(sidecar, "bad.moe-cal.gguf"), "Q4_0");
    char *path = moe_low_bit_path(sidecar);
    assert_string_equal(strrchr(path, '/'), "/bad.moe-lowbit.gguf");
    size_t size;
    uint8_t *bytes = read_file(path, &size);
    moe_engine_options options = low_bit_options(sidecar);
    /* Behind the key's name are its type, then its value. */
    damage(path, bytes, size, find(bytes, size, "moe-lowbit.model.weights") + 4, 8);
    refuse(&options, MOE_ERR_FORMAT, "damaged");
    damage(path, bytes, size, find(bytes, size, "moe-lowbit.version") + 4, 1);
    refuse(&options, MOE_ERR_FORMAT, "moe-lowbit.version is");
    damage(path, bytes, size, find(bytes, size, "moe-lowbit.n_layer") + 4, 1);
    refuse(&options, MOE_ERR_FORMAT, "n_layer");
    damage(path, bytes, size, size - 32, 8);
    refuse(&options, MOE_ERR_FORMAT, "damaged");
    damage(path, bytes, size, size / 2, 0);
    refuse(&options, MOE_ERR_FORMAT, "");
    /* All of the experts' bytes, so that whichever stands in first is damaged. */
    size_t n_checksums = (size_t)calibrated.info.n_layer * calibrated.info.n_expert * 3 * 8;
    damage(path, bytes, size, size - n_checksums - 4096, 4096 - 64);
    scored s;
    moe_error error = {""};
    assert_int_equal(try_score(&options, &s, &error), MOE_ERR_IO);
    free(s.logits);
    free(bytes);
    free(path);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_low_bit MODEL\n");
        return 2;
    }
    calibrated.path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_copies_change_nothing), cmocka_unit_test(copies_are_metered),
        cmocka_unit_test(the_plan_counts_copies),      cmocka_unit_test(what_cannot_act_is_refused),
        cmocka_unit_test(damage_is_refused),
    };
    return cmocka_run_group_tests(tests, calibrated_setup, calibrated_teardown);
}
