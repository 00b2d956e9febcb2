/* SPDX-License-Identifier: MIT */
/* Checks an engine's options as far as possible before any file is read. */
#include <string.h>

#include "cpu/kernels/cpu_features.h"
#include "runtime/base/error.h"
#include "runtime/engine/device_choice.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/engine/option_needs.h"
#include "runtime/engine/option_set.h"

#define MAX_PREFILL_CHUNK 4096u

/* Rejects options that have no effect with a baseline that keeps no experts. */
static int check_baseline_options(const moe_engine_options *o, moe_error *err)
{
    if (o->policy != NULL || o->own_policy != NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "in offload mode %s no expert comes and goes, so a cache policy (%s) "
                        "cannot act",
                        moe_offload_name(o->lab->offload),
                        o->policy != NULL ? o->policy : "options.own_policy");
    }
    if (o->prefetch == MOE_SWITCH_ON) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "offload mode %s does not prefetch by prediction",
                        moe_offload_name(o->lab->offload));
    }
    if (o->host_compute == MOE_SWITCH_ON) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "offload mode %s moves every expert, so host computing cannot act",
                        moe_offload_name(o->lab->offload));
    }
    if (o->lab->offload == MOE_OFFLOAD_CACHING && o->lab->per_layer_cache) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "offload mode caching shares its slots by the calibration, not by layer");
    }
    if (o->lab->offload == MOE_OFFLOAD_CACHING && o->calibration != NULL &&
        strcmp(o->calibration, "none") == 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "offload mode caching needs a calibration");
    }
    return MOE_OK;
}

static int check_offload_options(const moe_engine_options *o, moe_error *err)
{
    if (o->policy != NULL && o->own_policy != NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.policy has no effect beside options.own_policy: leave one out");
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
    MOE_TRY(moe_engine_check_timeout(o, err));
    if (!(o->expert_cache_share >= 0.0 && o->expert_cache_share <= 1.0)) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "an expert cache of %g of the experts; use 0 to 1",
                        o->expert_cache_share);
    }
    if (o->expert_cache != 0 && o->expert_cache_share != 0.0) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "the expert cache is given both in bytes and as a share; give one");
    }
    if (o->lab->route_trace != NULL && o->prefetch == MOE_SWITCH_ON) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "a replayed routing is not what the routers would choose, so they cannot "
                        "foretell it: prefetch cannot be on");
    }
    return o->lab->offload != MOE_OFFLOAD_AUTO ? check_baseline_options(o, err) : MOE_OK;
}

int moe_engine_check_options(const moe_engine_options *o, unsigned *cpu_features, moe_error *err)
{
    if (o->model_path == NULL || o->model_path[0] == '\0') {
        return moe_fail(err, MOE_ERR_ARGUMENT, "engine options: no model_path");
    }
    MOE_TRY(moe_option_values_check(o, err));
    if (o->prefill_chunk > MAX_PREFILL_CHUNK) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "prefill chunk must be 1 to %u, not %u",
                        MAX_PREFILL_CHUNK, o->prefill_chunk);
    }
    if (o->panel_others > 99) {
        return moe_fail(
            err, MOE_ERR_ARGUMENT,
            "options.panel_others must be 1 to 99 hundredths of the time, not %u; 0: 20",
            o->panel_others);
    }
    MOE_TRY(moe_device_choice_check(o, err));
    MOE_TRY(check_offload_options(o, err));
    MOE_TRY(moe_speculation_check(o, err));
    MOE_TRY(moe_lossy_check(o, err));
    MOE_TRY(moe_option_needs_check(o, err));
    *cpu_features = moe_cpu_features_of(o->lab->kernels);
    return MOE_OK;
}
