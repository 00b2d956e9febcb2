/* SPDX-License-Identifier: MIT */
/* An engine on the emulated GPU: it finds the module beside the program; tokens and bits of the
 * logits equal the CPU's whatever the device's memory, the offload mode and where experts are
 * computed; and failures are reported, leave nothing behind, and hang nobody. Runs on a model given
 * by path. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <moe/lab.h>

#include "../engine/engine_fixture.h"
#include "../engine/engine_options.h"
#include "fake_module.h"
#include "runtime/pass/state_pool.h"

#define N_PROMPT 20
#define N_DECODE 6
/* Headroom, and what the device has for itself (staging, results, inputs of steps). */
#define MEMORY_OF_AN_OPEN_DEVICE ((64u << 20) + 2 * ((2u << 20) + (256u << 10)) + 21 * (512u << 10))

static const char *model_path;

static fake_module fake;

static struct {
    int32_t tokens[N_DECODE];
    float *logits;
    uint32_t n_vocab;
} expected;

static moe_engine_options default_options(void)
{
    moe_engine_options options = fixture_options(model_path, 8, 64);
    options.exact_attention = true; /* results are compared with the CPU's */
    return options;
}

static fake_machine napping_machine(void)
{
    fake_machine machine;
    fake.init(&machine);
    machine.nap_us = 100;
    return machine;
}

static void keep_line(const char *line, void *user)
{
    snprintf(user, 1024, "%s", line);
}

static moe_session *generate(moe_engine *engine, int32_t *tokens)
{
    int32_t prompt[N_PROMPT];
    make_prompt(prompt, N_PROMPT, expected.n_vocab, 1);
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_PROMPT);
    decode(engine, session, tokens, N_DECODE);
    return session;
}

static int make_reference(void **state)
{
    (void)state;
    find_fake_module(&fake);
    moe_engine_options options = default_options();
    options.device = "cpu";
    moe_engine *engine = open_engine(&options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    expected.n_vocab = info.n_vocab;
    moe_session *session = generate(engine, expected.tokens);
    expected.logits = malloc(info.n_vocab * sizeof(float));
    memcpy(expected.logits, moe_session_logits(session), info.n_vocab * sizeof(float));
    moe_session_close(&session);
    moe_engine_close(&engine);
    return 0;
}

static int free_reference(void **state)
{
    (void)state;
    free(expected.logits);
    return 0;
}

static void check_exact(const moe_engine_options *options, moe_engine_stats *stats)
{
    fake_machine machine = napping_machine();
    fake_usage usage;
    fake.set(&machine);
    moe_engine *engine = open_engine(options);
    moe_engine_info info = {.struct_size = sizeof info};
    int32_t tokens[N_DECODE];
    moe_session *session = generate(engine, tokens);
    assert_memory_equal(tokens, expected.tokens, sizeof tokens);
    assert_memory_equal(moe_session_logits(session), expected.logits,
                        expected.n_vocab * sizeof(float));
    moe_engine_get_info(engine, &info);
    assert_non_null(strstr(info.device, "Emulated GPU"));
    assert_true(info.memory.has_device_memory && !info.device_simulated);
    stats->struct_size = sizeof *stats;
    moe_engine_get_stats(engine, stats);
    fake.usage(&usage);
    assert_true(usage.n_kernels > 0);
    double bytes_per_s;
    assert_int_equal(moe_engine_measure_bandwidth(engine, &bytes_per_s, NULL), MOE_ERR_UNSUPPORTED);
    moe_session_close(&session);
    moe_engine_close(&engine);
    assert_nothing_left(&fake);
}

/* What the plan counts of the GPU's memory is what the runtime has handed out, to the byte, beside
 * what the device took for itself before it told how much there is. */
static void planned_memory(void **state)
{
    (void)state;
    const double shares[] = {0, 0.5};
    for (size_t i = 0; i < 2; i++) {
        fake_machine machine;
        fake_usage opened, used;
        fake.init(&machine);
        fake.set(&machine);
        moe_engine_options options = default_options();
        options.device = "cuda";
        options.expert_cache_share = shares[i];
        moe_engine *engine = open_engine(&options);
        moe_engine_info info = {.struct_size = sizeof info};
        moe_engine_get_info(engine, &info);
        const moe_memory_plan *plan = &info.memory;
        const uint64_t headroom = 64u << 20; /* LEAST_HEADROOM of cuda_open.c */
        uint64_t own = machine.memory_bytes - headroom - plan->device_budget;
        fake.usage(&opened);
        assert_int_equal(opened.device_bytes, own + plan->device_total - plan->kv_cache);
        int32_t tokens[N_DECODE];
        moe_session *session = generate(engine, tokens); /* into the only page of the context */
        fake.usage(&used);
        /* Recurrent layers make states when they need them: here those before and after a pass. */
        uint64_t unmade = plan->layer_states / MOE_STATES_MOST * (MOE_STATES_MOST - 2);
        assert_int_equal(used.device_bytes, own + plan->device_total - unmade);
        assert_true(used.device_rounded_bytes <= machine.memory_bytes);
        moe_session_close(&session);
        moe_engine_close(&engine);
        assert_nothing_left(&fake);
    }
}

/* All experts on the device; some; as few as work. */
static void residency(void **state)
{
    (void)state;
    moe_engine_stats stats;
    moe_engine_options options = default_options();
    check_exact(&options, &stats); /* by itself the engine takes the GPU */
    options.device = "cuda";
    options.expert_cache_share = 0.5;
    options.host_compute = MOE_SWITCH_OFF;
    check_exact(&options, &stats);
    assert_true(stats.bytes_moved_link > 0);
    assert_int_equal(stats.host_computed, 0);
    options.expert_cache_share = 0;
    moe_memory_plan plan = {.struct_size = sizeof plan};
    assert_int_equal(moe_plan_memory(&options, &plan, NULL), MOE_OK);
    options.device_memory = plan.device_floor;
    check_exact(&options, &stats);
    assert_true(stats.expert_misses > 0);
}

static void modes(void **state)
{
    (void)state;
    const moe_offload_mode names[] = {MOE_OFFLOAD_ON_DEMAND, MOE_OFFLOAD_OVERLAP};
    for (size_t i = 0; i < 2; i++) {
        moe_engine_options options = default_options();
        moe_engine_stats stats;
        options.device = "cuda:0";
        lab_of(&options)->offload = names[i];
        check_exact(&options, &stats);
    }
}

static void host_compute(void **state)
{
    (void)state;
    for (int how = MOE_SWITCH_AUTO; how <= MOE_SWITCH_ON; how++) {
        moe_engine_options options = default_options();
        moe_engine_stats stats;
        options.device = "cuda";
        options.expert_cache_share = 0.5;
        options.host_compute = (moe_switch)how;
        moe_memory_plan plan = {.struct_size = sizeof plan};
        moe_error err = {""};
        if (moe_plan_memory(&options, &plan, &err) == MOE_ERR_UNSUPPORTED) {
            assert_non_null(strstr(err.message, "have biases, which are in the device's memory"));
            assert_int_equal(how, MOE_SWITCH_ON);
            continue;
        }
        check_exact(&options, &stats);
        assert_true(how == MOE_SWITCH_AUTO || stats.host_computed > 0);
    }
}

/* Whether the host takes a share is decided by what the GPU's clock says of experts; a clock that
 * has no times changes nothing but the decision. */
static void times_of_experts(void **state)
{
    (void)state;
    fake_machine machine;
    fake_usage usage;
    fake.init(&machine);
    fake.set(&machine);
    moe_engine_options options = default_options();
    options.device = "cuda";
    options.expert_cache_share = 0.5;
    options.host_compute = MOE_SWITCH_AUTO;
    moe_engine *engine = open_engine(&options);
    machine.fail_call = "cudaEventElapsedTime";
    machine.fail_code = cudaErrorUnknown;
    machine.fail_each = true;
    fake.set(&machine);
    int32_t tokens[N_DECODE];
    moe_session *session = generate(engine, tokens);
    fake.usage(&usage);
    assert_memory_equal(tokens, expected.tokens, sizeof tokens);
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(engine, &stats);
    assert_true(usage.n_failures > 0 || stats.host_computed == 0); /* else no experts are timed */
    moe_session_close(&session);
    moe_engine_close(&engine);
    assert_nothing_left(&fake);
}

/* Whole tokens that the device plays with fewer experts than there are: what the host has is read
 * there or not, and what has not been used before is in neither memory. */
static void whole_tokens(void **state)
{
    (void)state;
    static const double shares[] = {0.99, 0.75, 0.5};
    uint64_t n_recorded = 0, n_resumed = 0, n_in_place = 0;
    for (uint32_t i = 0; i < 12; i++) {
        moe_engine_options options = default_options();
        moe_engine_stats stats;
        options.device = "cuda";
        options.expert_cache_share = shares[i % 3];
        options.host_compute = i % 2 == 0 ? MOE_SWITCH_OFF : MOE_SWITCH_AUTO;
        options.warm_start = MOE_SWITCH_OFF;
        lab_of(&options)->read_in_place = i < 6   ? MOE_SWITCH_ON
                                          : i < 9 ? MOE_SWITCH_OFF
                                                  : MOE_SWITCH_AUTO;
        check_exact(&options, &stats);
        assert_int_equal(stats.passes_missed, 0);
        assert_true(i < 6 || i >= 9 || stats.read_in_place == 0);
        assert_true(stats.read_in_place <= stats.host_hits);
        n_recorded += stats.passes_recorded;
        n_resumed += stats.passes_resumed;
        n_in_place += stats.read_in_place;
    }
    if (n_recorded + n_resumed > 0) { /* else the model's layers are not recorded */
        assert_true(n_recorded > 0 && n_resumed > 0 && n_in_place > 0);
    }
}

static void expect_refusal(const fake_machine *machine, const char *device, const char *words)
{
    moe_engine_options options = default_options();
    moe_engine *engine = NULL;
    moe_error err = {""};
    options.device = device;
    fake.set(machine);
    assert_int_not_equal(moe_engine_open(&engine, &options, &err), MOE_OK);
    assert_null(engine);
    if (strstr(err.message, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, err.message);
    }
    assert_nothing_left(&fake);
}

/* The emulated module has code for sm_86, sm_90 and compute_100. */
static void expect_no_code(void)
{
    static const struct {
        int major, minor;
        bool runs;
    } gpus[] = {{8, 0, false}, {8, 6, true}, {8, 9, true}, {9, 0, true}, {10, 3, true}};
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
        fake_machine machine;
        fake.init(&machine);
        machine.major = gpus[i].major;
        machine.minor = gpus[i].minor;
        moe_engine_options options = default_options();
        options.device = "cuda";
        if (gpus[i].runs) {
            fake.set(&machine);
            moe_engine *engine = open_engine(&options);
            moe_engine_close(&engine);
        } else {
            expect_refusal(&machine, "cuda", "build with sm_80 in -Dgpu_archs");
        }
    }
}

/* A device whose driver promises more than it does: found out at opening, with the CPU to fall
 * back on where the GPU was not asked for. */
static void no_kernel_runs(void **state)
{
    (void)state;
    fake_machine machine;
    fake.init(&machine);
    machine.fail_call = "kernel";
    machine.fail_code = cudaErrorNoKernelImageForDevice;
    expect_refusal(&machine, "cuda", "-Dgpu_archs");
    fake.set(&machine);
    moe_engine_options options = default_options();
    moe_engine *engine = open_engine(&options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    assert_string_equal(info.device, "cpu");
    moe_engine_close(&engine);
    assert_nothing_left(&fake);
}

/* What these kernels lack is said by name; an engine that may choose takes the CPU and says why. */
static void model_that_needs_more(void **state)
{
    (void)state;
    char path[1024];
    char told[1024] = "";
    const char *folder = strstr(model_path, "/oracle/");
    if (folder == NULL) {
        skip();
    }
    snprintf(path, sizeof path, "%.*s/oracle/hunyuanmoe-scaled/model.gguf",
             (int)(folder - model_path), model_path);
    fake_machine machine;
    fake.init(&machine);
    fake.set(&machine);
    moe_engine_options options = default_options();
    options.model_path = path;
    options.device = "cuda";
    moe_engine *engine = NULL;
    moe_error err = {""};
    assert_int_equal(moe_engine_open(&engine, &options, &err), MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "does not scale the products of weights"));
    assert_nothing_left(&fake);
    options.device = NULL;
    options.log = keep_line;
    options.user = told;
    engine = open_engine(&options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    assert_string_equal(info.device, "cpu");
    moe_engine_close(&engine);
    assert_nothing_left(&fake);
}

static void refusals(void **state)
{
    (void)state;
    fake_machine machine;
    fake.init(&machine);
    machine.driver_version = 0;
    expect_refusal(&machine, "cuda", "no NVIDIA driver");
    machine.driver_version = 11080;
    expect_refusal(&machine, "cuda", "it knows CUDA 11.8, and 13.0 is needed");
    fake.init(&machine);
    machine.n_devices = 0;
    expect_refusal(&machine, "cuda", "has no GPU");
    fake.init(&machine);
    machine.major = 7;
    machine.minor = 5;
    expect_refusal(&machine, "cuda", "compute capability is 7.5");
    expect_no_code();
    fake.init(&machine);
    expect_refusal(&machine, "cuda:1", "there is 1");
    expect_refusal(&machine, "cuda:", "not known");
    machine.memory_bytes = 48u << 20;
    expect_refusal(&machine, "cuda", "too little to work in");
}

/* Float products by cuBLAS: other last bits, close to the exact ones. A failure is told. */
static void float_products(void **state)
{
    (void)state;
    fake_machine machine = napping_machine();
    fake.set(&machine);
    moe_engine_options options = default_options();
    options.device = "cuda";
    options.float_gemm = MOE_FLOAT_GEMM_BLAS;
    options.prefill_chunk = N_PROMPT;
    moe_engine *engine = open_engine(&options);
    int32_t tokens[N_DECODE];
    moe_session *session = generate(engine, tokens);
    fake_usage usage;
    fake.usage(&usage);
    assert_true(usage.n_products > 0);
    float greatest = 0.0f, apart = 0.0f;
    const float *logits = moe_session_logits(session);
    for (uint32_t i = 0; i < expected.n_vocab; i++) {
        greatest = fmaxf(greatest, fabsf(expected.logits[i]));
        apart = fmaxf(apart, fabsf(logits[i] - expected.logits[i]));
    }
    assert_memory_equal(tokens, expected.tokens, sizeof tokens);
    assert_true(apart <= 1e-3f * greatest);
    moe_session_close(&session);
    moe_engine_close(&engine);
    assert_nothing_left(&fake);
    static const char *const calls[] = {"cublasCreate", "cublasSetStream", "cublasSgemm"};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        moe_error err = {""};
        machine.fail_call = calls[i];
        machine.fail_code = cudaErrorMemoryAllocation;
        fake.set(&machine);
        engine = NULL;
        int status = moe_engine_open(&engine, &options, &err);
        session = status == MOE_OK ? greedy_session(engine) : NULL;
        for (int32_t t = 0; status == MOE_OK && t < N_PROMPT; t++) {
            feed(session, &t, 1);
        }
        status = status == MOE_OK ? moe_step(engine, &session, 1, &err) : status;
        assert_int_equal(status, MOE_ERR_MEMORY);
        assert_non_null(strstr(err.message, "options.float_gemm exact works without it"));
        moe_session_close(&session);
        moe_engine_close(&engine);
        assert_nothing_left(&fake);
    }
}

/* On the machine as it has been set: which device it is, with the CPU's tokens. */
static void take_what_works(const char *device, bool tells)
{
    moe_engine_options options = default_options();
    char told[1024] = "";
    options.log = keep_line;
    options.user = told;
    moe_engine *engine = open_engine(&options);
    moe_engine_info info = {.struct_size = sizeof info};
    int32_t tokens[N_DECODE];
    moe_engine_get_info(engine, &info);
    if (strncmp(info.device, device, strlen(device)) != 0) {
        fail_msg("%s instead of %s: %s", info.device, device, told);
    }
    assert_true(!tells || strstr(told, "the GPU is not used: ") != NULL);
    moe_session *session = generate(engine, tokens);
    assert_memory_equal(tokens, expected.tokens, sizeof tokens);
    moe_session_close(&session);
    moe_engine_close(&engine);
    assert_nothing_left(&fake);
}

/* Without a GPU that can be used an engine that may choose works on the CPU. */
static void falls_back(void **state)
{
    (void)state;
    fake_machine machine;
    fake.init(&machine);
    const fake_machine whole = machine;
    machine.driver_version = 0;
    fake.set(&machine);
    take_what_works("cpu", false);
    machine.driver_version = 11080;
    fake.set(&machine);
    take_what_works("cpu", false);
    machine = whole;
    machine.n_devices = 0;
    fake.set(&machine);
    take_what_works("cpu", false);
    machine = whole;
    machine.major = 7;
    fake.set(&machine);
    take_what_works("cpu", false);
    /* It opens, and has 64 KiB for the model. */
    machine = whole;
    machine.memory_bytes = MEMORY_OF_AN_OPEN_DEVICE + (64u << 10);
    fake.set(&machine);
    take_what_works("cpu", true);
    expect_refusal(&machine, "cuda", "is below the least that works");
    /* Named sizes are not forgotten. */
    moe_engine_options options = default_options();
    moe_engine *engine = NULL;
    options.device_memory = 64u << 10;
    assert_int_equal(moe_engine_open(&engine, &options, NULL), MOE_ERR_BUDGET);
    assert_null(engine);
}

/* Calls that fail while an engine opens: one that may choose works on, on the CPU. */
static void falls_back_late(void **state)
{
    (void)state;
    static const struct {
        const char *call;
        cudaError_t code;
        bool for_good;
    } cases[] = {{"cudaGetDeviceCount", cudaErrorUnknown, true},
                 {"cudaGetDeviceProperties", cudaErrorUnknown, true},
                 {"cudaSetDevice", cudaErrorDevicesUnavailable, false},
                 {"cudaStreamCreateWithPriority", cudaErrorMemoryAllocation, false},
                 {"cudaMemGetInfo", cudaErrorLaunchFailure, true},
                 {"cudaMalloc", cudaErrorMemoryAllocation, false},
                 {"fault", cudaErrorECCUncorrectable, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        /* Of cudaMalloc() those after the device's own are of the model. */
        uint32_t most = strcmp(cases[i].call, "cudaMalloc") == 0 ? 5 : 1;
        for (uint32_t n = 0; n < most; n++) {
            fake_machine machine;
            fake.init(&machine);
            machine.fail_call = cases[i].call;
            machine.fail_code = cases[i].code;
            machine.fail_for_good = cases[i].for_good;
            machine.fail_after = n;
            expect_refusal(&machine, "cuda", "; ");
            fake.set(&machine);
            take_what_works("cpu", false);
        }
    }
}

/* A GPU that cannot be described, or not be opened, does not hide the next. */
static void takes_the_next(void **state)
{
    (void)state;
    fake_machine machine;
    fake.init(&machine);
    machine.n_devices = 2;
    machine.fail_call = "cudaStreamCreateWithPriority";
    machine.fail_code = cudaErrorMemoryAllocation;
    fake.set(&machine);
    take_what_works("cuda:1", false);
    machine.fail_call = "cudaGetDeviceProperties";
    machine.fail_code = cudaErrorUnknown;
    expect_refusal(&machine, "cuda:0", "cannot be used: CUDA: looking at it");
    fake.set(&machine);
    moe_engine_options options = default_options();
    options.device = "cuda:1";
    moe_engine *engine = open_engine(&options);
    moe_engine_close(&engine);
    assert_nothing_left(&fake);
}

/* Opens and writes until something fails. True when nothing did. usage: before the engine closes,
 * which tells no failure. */
static bool run_until_failure(const char *call, uint32_t after, bool for_good, cudaError_t code,
                              fake_usage *usage, moe_error *err)
{
    fake_machine machine = napping_machine();
    machine.fail_call = call;
    machine.fail_after = after;
    machine.fail_for_good = for_good;
    machine.fail_code = code;
    fake.set(&machine);
    moe_engine_options options = default_options();
    options.device = "cuda";
    options.expert_cache_share = 0.5;
    moe_engine *engine = NULL;
    moe_session *session = NULL;
    int status = moe_engine_open(&engine, &options, err);
    if (status == MOE_OK) {
        int32_t prompt[N_PROMPT];
        make_prompt(prompt, N_PROMPT, expected.n_vocab, 1);
        session = greedy_session(engine);
        feed(session, prompt, N_PROMPT);
    }
    for (int i = 0; status == MOE_OK && i < N_PROMPT + N_DECODE; i++) {
        status = moe_step(engine, &session, 1, err);
    }
    fake.usage(usage);
    moe_session_close(&session);
    moe_engine_close(&engine);
    return status == MOE_OK;
}

static void faults(void **state)
{
    (void)state;
    static const struct {
        const char *call;
        cudaError_t code;
        bool for_good;
        uint32_t step;
    } cases[] = {
        {"cudaMalloc", cudaErrorMemoryAllocation, false, 1},
        {"cudaHostAlloc", cudaErrorMemoryAllocation, false, 1},
        {"cudaStreamCreateWithPriority", cudaErrorMemoryAllocation, false, 1},
        {"cudaEventCreateWithFlags", cudaErrorMemoryAllocation, false, 11},
        {"cudaMemGetInfo", cudaErrorLaunchFailure, false, 1},
        {"cudaMemcpyAsync", cudaErrorLaunchFailure, true, 97},
        {"cudaEventRecord", cudaErrorLaunchFailure, true, 41},
        {"cudaEventSynchronize", cudaErrorIllegalAddress, true, 13},
        {"cudaStreamSynchronize", cudaErrorIllegalAddress, true, 23},
        {"cudaStreamWaitEvent", cudaErrorLaunchFailure, true, 1},
        {"kernel", cudaErrorLaunchOutOfResources, false, 201},
        {"fault", cudaErrorIllegalAddress, true, 307},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool ran_through = false;
        for (uint32_t n = 0; n < 5 && !ran_through; n++) {
            moe_error err = {""};
            fake_usage usage;
            ran_through = run_until_failure(cases[i].call, n * cases[i].step, cases[i].for_good,
                                            cases[i].code, &usage, &err);
            if (ran_through && usage.n_failures > 0) {
                fail_msg("%s failed and nobody was told", cases[i].call);
            }
            if (!ran_through && strstr(err.message, "; ") == NULL) {
                fail_msg("%s, %u: no remedy in: %s", cases[i].call, n, err.message);
            }
            assert_nothing_left(&fake);
        }
    }
}

/* Page-locking pages of our own may be refused: then CUDA's are used, and all goes well. */
static void other_host_memory(void **state)
{
    (void)state;
    moe_error err = {""};
    fake_usage usage;
    if (!run_until_failure("cudaHostRegister", 0, false, cudaErrorInvalidValue, &usage, &err) ||
        !run_until_failure("cudaHostGetDevicePointer", 0, false, cudaErrorInvalidValue, &usage,
                           &err)) {
        fail_msg("%s", err.message);
    }
    assert_nothing_left(&fake);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_cuda_engine MODEL.gguf\n");
        return 2;
    }
    model_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(residency),
        cmocka_unit_test(whole_tokens),
        cmocka_unit_test(modes),
        cmocka_unit_test(planned_memory),
        cmocka_unit_test(host_compute),
        cmocka_unit_test(times_of_experts),
        cmocka_unit_test(refusals),
        cmocka_unit_test(model_that_needs_more),
        cmocka_unit_test(falls_back),
        cmocka_unit_test(faults),
        cmocka_unit_test(other_host_memory),
        cmocka_unit_test(no_kernel_runs),
        cmocka_unit_test(float_products),
        cmocka_unit_test(falls_back_late),
        cmocka_unit_test(takes_the_next),
    };
    return cmocka_run_group_tests(tests, make_reference, free_reference);
}
