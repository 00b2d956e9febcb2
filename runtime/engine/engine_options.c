/* SPDX-License-Identifier: MIT */
/* Checks an engine's options as far as possible before any file is read. */
#include <string.h>

#include "cpu/kernels/cpu_features.h"
#include "runtime/base/error.h"
#include "runtime/engine/device_choice.h"
#include "runtime/engine/engine_internal.h"
#include "runtime/engine/option_needs.h"

#define MAX_PREFILL_CHUNK 4096u

static const struct {
    const char *name;
    moe_offload_mode mode;
} offload_modes[] = {
    {"auto", MOE_OFFLOAD_AUTO},
    {"on-demand", MOE_OFFLOAD_ON_DEMAND},
    {"overlap", MOE_OFFLOAD_OVERLAP},
    {"caching", MOE_OFFLOAD_CACHING},
};

/* False for an unknown name; NULL is "auto". */
bool moe_find_offload_mode(const char *name, moe_offload_mode *mode)
{
    for (size_t i = 0; i < sizeof offload_modes / sizeof offload_modes[0]; i++) {
        if (strcmp(name != NULL ? name : "auto", offload_modes[i].name) == 0) {
            *mode = offload_modes[i].mode;
            return true;
        }
    }
    return false;
}

static bool is_switch(moe_switch value)
{
    return (int)value >= MOE_SWITCH_AUTO && value <= MOE_SWITCH_OFF;
}

/* Refuses options that a baseline which keeps nothing cannot carry out. */
static int check_baseline_options(const moe_engine_options *o, moe_error *err)
{
    if (o->policy != NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "in offload mode %s no expert comes and goes, so a cache policy (%s) "
                        "cannot act",
                        o->offload, o->policy);
    }
    if (o->prefetch == MOE_SWITCH_ON) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "offload mode %s does not prefetch by prediction",
                        o->offload);
    }
    if (o->host_compute == MOE_SWITCH_ON) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "offload mode %s moves every expert, so host computing cannot act",
                        o->offload);
    }
    if (moe_offload_is(o, "caching") && o->per_layer_cache) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "offload mode caching shares its slots by the calibration, not by layer");
    }
    if (moe_offload_is(o, "caching") && o->calibration != NULL &&
        strcmp(o->calibration, "none") == 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "offload mode caching needs a calibration");
    }
    return MOE_OK;
}

static int check_offload_options(const moe_engine_options *o, moe_error *err)
{
    moe_io_kind kind;
    moe_offload_mode mode;
    if (!moe_find_offload_mode(o->offload, &mode)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "offload mode '%s' is not known; use auto, on-demand, overlap or caching",
                        o->offload);
    }
    if (!moe_find_io_kind(o->io, &kind)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "I/O engine '%s' is not known; use auto, uring, threads or sync", o->io);
    }
    if (o->io_block_bytes % 4096 != 0 || o->io_block_bytes > 64u << 20) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "io_block_bytes must be a multiple of 4096 up to 64 MiB, or 0 for the "
                        "default, not %u",
                        o->io_block_bytes);
    }
    if (o->io_depth > 1024) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "io_depth must be 1 to 1024, or 0 for the default, not %u", o->io_depth);
    }
    int status = moe_engine_check_timeout(o, err);
    if (status != MOE_OK) {
        return status;
    }
    if (!(o->expert_cache_share >= 0.0 && o->expert_cache_share <= 1.0)) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "an expert cache of %g of the experts; use 0 to 1",
                        o->expert_cache_share);
    }
    if (o->expert_cache != 0 && o->expert_cache_share != 0.0) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "the expert cache is given both in bytes and as a share; give one");
    }
    if (!is_switch(o->prefetch) || !is_switch(o->host_compute) || !is_switch(o->warm_start)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "engine options: unknown prefetch %d, host_compute %d or warm_start %d",
                        (int)o->prefetch, (int)o->host_compute, (int)o->warm_start);
    }
    if (o->route_trace != NULL && o->prefetch == MOE_SWITCH_ON) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "a replayed routing is not what the routers would choose, so they cannot "
                        "foretell it: prefetch cannot be on");
    }
    return mode != MOE_OFFLOAD_AUTO ? check_baseline_options(o, err) : MOE_OK;
}

int moe_engine_check_options(const moe_engine_options *o, unsigned *cpu_features, moe_error *err)
{
    if (o->model_path == NULL || o->model_path[0] == '\0') {
        return moe_fail(err, MOE_ERR_ARGUMENT, "engine options: no model_path");
    }
    if (o->prefill_chunk > MAX_PREFILL_CHUNK) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "prefill chunk must be 1 to %u, not %u",
                        MAX_PREFILL_CHUNK, o->prefill_chunk);
    }
    if ((int)o->kv_cache < MOE_KV_CACHE_F16 || o->kv_cache > MOE_KV_CACHE_Q8_0) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "engine options: unknown kv_cache %d",
                        (int)o->kv_cache);
    }
    if ((int)o->float_gemm < MOE_FLOAT_GEMM_EXACT || o->float_gemm > MOE_FLOAT_GEMM_BLAS) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "engine options: unknown float_gemm %d",
                        (int)o->float_gemm);
    }
    int status = moe_device_choice_check(o, err);
    if (status == MOE_OK) {
        status = check_offload_options(o, err);
    }
    if (status == MOE_OK) {
        status = moe_speculation_check(o, err);
    }
    if (status == MOE_OK) {
        status = moe_lossy_check(o, err);
    }
    if (status == MOE_OK) {
        status = moe_option_needs_check(o, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    const char *kernels = o->kernels != NULL ? o->kernels : "native";
    if (moe_cpu_features_parse(kernels, cpu_features) != 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "kernels '%s' are not known; use native, reference, avx2 or avx512",
                        kernels);
    }
    return MOE_OK;
}
