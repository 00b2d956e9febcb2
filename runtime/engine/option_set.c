/* SPDX-License-Identifier: MIT */
#include "runtime/engine/option_set.h"

#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"
#include "runtime/lossy/lossy.h"

static const moe_lab_options lab_defaults = {.struct_size = sizeof lab_defaults};

void moe_lossy_options_init_sized(moe_lossy_options *options, size_t struct_size)
{
    moe_struct_init(&moe_kind_lossy_options, options, struct_size, &moe_lossy_defaults);
}

void moe_lab_options_init_sized(moe_lab_options *options, size_t struct_size)
{
    moe_struct_init(&moe_kind_lab_options, options, struct_size, &lab_defaults);
}

int moe_option_set_take(moe_option_set *set, const moe_engine_options *given, moe_error *err)
{
    *set = (moe_option_set){.lossy = moe_lossy_defaults, .lab = lab_defaults};
    int status = moe_struct_take(&moe_kind_engine_options, &set->options, given, err);
    if (status == MOE_OK && set->options.lossy != NULL) {
        status = moe_struct_take(&moe_kind_lossy_options, &set->lossy, set->options.lossy, err);
    }
    if (status == MOE_OK && set->options.lab != NULL) {
        status = moe_struct_take(&moe_kind_lab_options, &set->lab, set->options.lab, err);
    }
    set->options.lossy = &set->lossy;
    set->options.lab = &set->lab;
    return status;
}

int moe_option_values_check(const moe_engine_options *o, moe_error *err)
{
    static const char switches[] = "MOE_SWITCH_AUTO, MOE_SWITCH_ON or MOE_SWITCH_OFF";
    const struct {
        const char *field;
        int value, last;
        const char *names;
    } rows[] = {
        {"kv_cache", (int)o->kv_cache, MOE_KV_CACHE_F8,
         "MOE_KV_CACHE_F16, _F32, _Q8_0, _Q4_0 or _F8"},
        {"float_gemm", (int)o->float_gemm, MOE_FLOAT_GEMM_BLAS,
         "MOE_FLOAT_GEMM_EXACT or MOE_FLOAT_GEMM_BLAS"},
        {"io", (int)o->io, MOE_IO_SYNC, "MOE_IO_AUTO, MOE_IO_URING, MOE_IO_THREADS or MOE_IO_SYNC"},
        {"warm_start", (int)o->warm_start, MOE_SWITCH_OFF, switches},
        {"prefetch", (int)o->prefetch, MOE_SWITCH_OFF, switches},
        {"host_compute", (int)o->host_compute, MOE_SWITCH_OFF, switches},
        {"worker_compute", (int)o->worker_compute, MOE_SWITCH_ON,
         "MOE_SWITCH_AUTO or MOE_SWITCH_ON"},
        {"idle_checksums", (int)o->idle_checksums, MOE_SWITCH_OFF, switches},
        {"speculate", (int)o->speculate, MOE_SPECULATE_MTP,
         "MOE_SPECULATE_OFF, _AUTO, _NGRAM, _SELF, _MODEL or _MTP"},
        {"acceptance", (int)o->acceptance, MOE_ACCEPTANCE_REJECTION,
         "MOE_ACCEPTANCE_EXACT or MOE_ACCEPTANCE_REJECTION"},
        {"lossy.budget_order", (int)o->lossy->budget_order, MOE_BUDGET_BY_CALIBRATION,
         "MOE_BUDGET_BY_ROUTER or MOE_BUDGET_BY_CALIBRATION"},
        {"lab.offload", (int)o->lab->offload, MOE_OFFLOAD_CACHING,
         "MOE_OFFLOAD_AUTO, _ON_DEMAND, _OVERLAP or _CACHING"},
        {"lab.kernels", (int)o->lab->kernels, MOE_KERNELS_AVX512,
         "MOE_KERNELS_NATIVE, _REFERENCE, _AVX2 or _AVX512"},
        {"lab.length_control", (int)o->lab->length_control, MOE_LENGTH_STATIC,
         "MOE_LENGTH_SURVIVAL, MOE_LENGTH_CASCADE or MOE_LENGTH_STATIC"},
        {"lab.draft_pin", (int)o->lab->draft_pin, MOE_DRAFT_PIN_RANDOM,
         "MOE_DRAFT_PIN_HOT_TEMPORAL, _HOT_GLOBAL or _RANDOM"},
        {"lab.affinity", (int)o->lab->affinity, MOE_STAND_IN_NONE,
         "MOE_STAND_IN_TOPK, _OUTPUT, _WEIGHT, _COACT, _ROUTER, _SHUFFLED, _RANDOM or _NONE"},
        {"lab.read_in_place", (int)o->lab->read_in_place, MOE_SWITCH_OFF, switches},
        {"lab.foresight", (int)o->lab->foresight, MOE_SWITCH_OFF, switches},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].value < 0 || rows[i].value > rows[i].last) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "options.%s is %d, which is none of %s",
                            rows[i].field, rows[i].value, rows[i].names);
        }
    }
    return MOE_OK;
}

const char *moe_offload_name(moe_offload_mode mode)
{
    static const char *const names[] = {[MOE_OFFLOAD_AUTO] = "auto",
                                        [MOE_OFFLOAD_ON_DEMAND] = "on-demand",
                                        [MOE_OFFLOAD_OVERLAP] = "overlap",
                                        [MOE_OFFLOAD_CACHING] = "caching"};
    return names[mode];
}
