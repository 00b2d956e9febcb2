/* SPDX-License-Identifier: MIT */
#include "../engine/engine_options.h"
#include "tests/calibrate/calibrate_fixture.h"

calibrated_model calibrated = {.folder = "/tmp/moe-calibrate-XXXXXX"};

const char *in_folder(char *out, const char *name)
{
    snprintf(out, 128, "%s/%s", calibrated.folder, name);
    return out;
}

moe_engine_options engine_options(void)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = calibrated.path;
    options.n_threads = 2;
    options.prefill_chunk = 64;
    options.context = 512;
    options.calibration = "none";
    return options;
}

moe_calibrate_options calibrate_options(const char *path)
{
    moe_calibrate_options options;
    moe_calibrate_options_init(&options);
    options.tokens = calibrated.text;
    options.n_tokens = N_TOKENS;
    options.text_name = "test";
    options.path = path;
    options.gram = true;
    return options;
}

void calibrate(const moe_engine_options *engine_opts, const char *path)
{
    moe_engine *engine = open_engine(engine_opts);
    moe_calibrate_options options = calibrate_options(path);
    moe_error error;
    if (moe_calibrate(engine, &options, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    moe_engine_close(&engine);
}

static moe_calibration_shape shape_of_model(void)
{
    return (moe_calibration_shape){calibrated.info.fingerprint, calibrated.info.n_layer,
                                   calibrated.info.n_expert, calibrated.info.n_expert_used,
                                   calibrated.info.n_embd};
}

moe_calibration *load(const char *path)
{
    moe_calibration_shape shape = shape_of_model();
    moe_calibration *c = NULL;
    moe_error error;
    if (moe_calibration_load(&c, path, &shape, true, NULL, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    return c;
}

uint8_t *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*size);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

void assert_same_file(const char *a, const char *b)
{
    size_t size[2];
    uint8_t *bytes[2] = {read_file(a, &size[0]), read_file(b, &size[1])};
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(bytes[0], bytes[1], size[0]);
    free(bytes[0]);
    free(bytes[1]);
}

/* Makes the sidecar that the tests compare with, and the routing recorded beside it. */
int calibrated_setup(void **state)
{
    (void)state;
    char sidecar[128], trace[128];
    assert_non_null(mkdtemp(calibrated.folder));
    moe_engine_options options = engine_options();
    moe_engine *engine = open_engine(&options);
    calibrated.info.struct_size = sizeof calibrated.info;
    moe_engine_get_info(engine, &calibrated.info);
    moe_engine_close(&engine);
    make_prompt(calibrated.text, N_TOKENS, calibrated.info.n_vocab, 9);
    lab_of(&options)->trace_path = in_folder(trace, "trace.jsonl");
    lab_of(&options)->trace_gates = true;
    calibrate(&options, in_folder(sidecar, "cal.gguf"));
    return 0;
}

int calibrated_teardown(void **state)
{
    (void)state;
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s'", calibrated.folder);
    return system(command);
}

void open_model(model_file *m)
{
    assert_int_equal(moe_gguf_open(&m->gguf, calibrated.path, NULL), MOE_OK);
    assert_int_equal(moe_model_config_read(&m->config, m->gguf, NULL), MOE_OK);
    assert_int_equal(moe_tensor_map_build(&m->map, &m->config, m->gguf, NULL), MOE_OK);
    moe_matmul_kernels_init(&m->kernels, 0);
}

void close_model(model_file *m)
{
    moe_tensor_map_free(&m->map);
    moe_gguf_close(&m->gguf);
}
