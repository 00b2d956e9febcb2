/* SPDX-License-Identifier: MIT */
/* What an engine does with a sidecar: the same tokens, experts that stay, checksums of a damaged
 * model, and a sidecar of another model. */
#include "../engine/engine_options.h"
#include "tests/calibrate/calibrate_fixture.h"

#define N_DECODE 16

static void write_tokens(const moe_engine_options *options, int32_t *tokens,
                         moe_engine_stats *stats)
{
    moe_engine *engine = open_engine(options);
    moe_session *session = greedy_session(engine);
    feed(session, calibrated.text, 90);
    decode(engine, session, tokens, N_DECODE);
    stats->struct_size = sizeof *stats;
    moe_engine_get_stats(engine, stats);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

static void same_tokens(void **state)
{
    (void)state;
    char sidecar[128];
    moe_engine_options options = engine_options();
    moe_engine_stats stats;
    int32_t expected[N_DECODE], tokens[N_DECODE];
    write_tokens(&options, expected, &stats);
    options.calibration = in_folder(sidecar, "cal.gguf");
    write_tokens(&options, tokens, &stats);
    assert_memory_equal(tokens, expected, sizeof tokens);
    options.expert_cache_share = 0.6;
    options.policy = "hot-global"; /* needs hotness */
    write_tokens(&options, tokens, &stats);
    assert_memory_equal(tokens, expected, sizeof tokens);
    options.policy = NULL;
    lab_of(&options)->offload = MOE_OFFLOAD_CACHING;
    write_tokens(&options, tokens, &stats);
    assert_memory_equal(tokens, expected, sizeof tokens);
}

/* The hottest tenth of each layer, at least one, hits; every other expert is read at each use. */
static void caching(void **state)
{
    (void)state;
    char sidecar[128];
    moe_engine_options options = engine_options();
    moe_engine_stats stats;
    int32_t tokens[N_DECODE];
    moe_error error;
    lab_of(&options)->offload = MOE_OFFLOAD_CACHING;
    moe_engine *engine = NULL;
    assert_int_equal(moe_engine_open(&engine, &options, &error), MOE_ERR_ARGUMENT);
    options.calibration = NULL;
    assert_int_equal(moe_engine_open(&engine, &options, &error), MOE_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "moe-offload calibrate"));
    options.calibration = in_folder(sidecar, "cal.gguf");
    write_tokens(&options, tokens, &stats);
    uint32_t n_moe = 0;
    moe_calibration *c = load(sidecar);
    for (uint32_t layer = 0; layer < calibrated.info.n_layer; layer++) {
        n_moe += c->tae[layer * MOE_PERCENTILES] > 0.0f;
    }
    moe_calibration_free(&c);
    uint32_t n_kept = n_moe * (calibrated.info.n_expert < 20 ? 1 : calibrated.info.n_expert / 10);
    assert_int_equal(stats.prefetches, n_kept);
    assert_true(stats.expert_hits >= stats.passes / 2);
    assert_true(stats.expert_misses > stats.expert_hits);
    assert_int_equal(stats.bytes_demand /
                         (calibrated.info.expert_bytes / n_moe / calibrated.info.n_expert),
                     n_kept + stats.expert_misses);
}

static void copy_file(const char *from, const char *to, uint64_t flipped)
{
    size_t size;
    uint8_t *bytes = read_file(from, &size);
    bytes[flipped] ^= 0x20;
    FILE *file = fopen(to, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
    free(bytes);
}

/* A flipped bit in an expert is read twice, then the error says which expert; without checksums
 * nobody would notice. */
static void damaged_model(void **state)
{
    (void)state;
    char sidecar[128], copy[128], expert[64];
    model_file m;
    open_model(&m);
    moe_calibration *c = load(in_folder(sidecar, "cal.gguf"));
    uint32_t layer = calibrated.info.n_layer - 1;
    uint32_t hottest[MOE_MAX_EXPERTS];
    moe_calibration_hottest(c, layer, hottest);
    moe_calibration_free(&c);
    const moe_tensor_ref *part = &m.map.layers[layer].experts[hottest[0]].parts[MOE_EXPERT_DOWN];
    copy_file(calibrated.path, in_folder(copy, "copy.gguf"), part->offset + part->size / 2);
    close_model(&m);

    moe_engine_options options = engine_options();
    moe_error error;
    options.model_path = copy;
    options.calibration = sidecar;
    moe_engine *engine = open_engine(&options);
    moe_session *session = greedy_session(engine);
    feed(session, calibrated.text, 64);
    assert_int_equal(moe_step(engine, &session, 1, &error), MOE_ERR_IO);
    snprintf(expert, sizeof expert, "layer %u, expert %u:", layer, hottest[0]);
    assert_non_null(strstr(error.message, expert));
    assert_non_null(strstr(error.message, "checksum, twice"));
    moe_session_close(&session);
    moe_engine_close(&engine);

    lab_of(&options)->offload = MOE_OFFLOAD_CACHING; /* reads it when opening */
    assert_int_equal(moe_engine_open(&engine, &options, &error), MOE_ERR_IO);
    assert_non_null(strstr(error.message, expert));
    options = engine_options();
    options.model_path = copy;
    int32_t tokens[N_DECODE];
    moe_engine_stats stats;
    write_tokens(&options, tokens, &stats);
}

static void count_notice(const char *line, void *user)
{
    *(int *)user += strstr(line, "made for another model or for other weights") != NULL;
}

/* Named, a sidecar of another model is an error; beside the model it is left out with a notice. */
static void foreign_sidecar(void **state)
{
    (void)state;
    char sidecar[128], copy[128], beside[128];
    moe_calibration *c = load(in_folder(sidecar, "cal.gguf"));
    c->shape.fingerprint ^= 1;
    copy_file(calibrated.path, in_folder(copy, "m.gguf"), 0);
    copy_file(copy, copy, 0); /* flipped back */
    assert_int_equal(moe_calibration_save(c, in_folder(beside, "m.moe-cal.gguf"), NULL), MOE_OK);
    moe_engine_options options = engine_options();
    moe_engine *engine = NULL;
    moe_error error;
    int n_notices = 0;
    options.model_path = copy;
    options.calibration = beside;
    assert_int_equal(moe_engine_open(&engine, &options, &error), MOE_ERR_MISMATCH);
    options.calibration = NULL;
    options.log = count_notice;
    options.user = &n_notices;
    engine = open_engine(&options);
    assert_int_equal(n_notices, 1);
    moe_engine_close(&engine);
    c->shape.fingerprint ^= 1;
    assert_int_equal(moe_calibration_save(c, beside, NULL), MOE_OK);
    options.policy = "hot-global";
    engine = open_engine(&options); /* found by itself */
    assert_int_equal(n_notices, 1);
    moe_engine_close(&engine);
    moe_calibration_free(&c);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_sidecar_use MODEL.gguf\n");
        return 2;
    }
    calibrated.path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_tokens),
        cmocka_unit_test(caching),
        cmocka_unit_test(damaged_model),
        cmocka_unit_test(foreign_sidecar),
    };
    return cmocka_run_group_tests(tests, calibrated_setup, calibrated_teardown);
}
