/* SPDX-License-Identifier: MIT */
#include "runtime/engine/device_choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu_device.h"
#include "cuda/cuda_loader.h"
#include "runtime/base/alloc.h"
#include "runtime/base/dtype.h"
#include "runtime/base/error.h"
#include "runtime/device/cards.h"
#include "runtime/device/sim_device.h"
#include "runtime/program/op_forms.h"

bool moe_device_choice_is_auto(const moe_engine_options *o)
{
    return o->device == NULL || strcmp(o->device, "auto") == 0;
}

int moe_device_choice_check(const moe_engine_options *o, moe_error *err)
{
    uint32_t indices[MOE_MAX_CARDS];
    uint32_t n;
    moe_sim_spec spec;
    if (moe_device_choice_is_auto(o) || strcmp(o->device, "cpu") == 0) {
        return MOE_OK;
    }
    if (moe_sim_spec_is(o->device)) {
        return moe_sim_spec_parse(&spec, o->device, err);
    }
    if (!moe_cuda_parse_name(o->device, indices, &n)) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "device '%s' is not known; use auto, cpu, cuda, cuda:1, cuda:0,1 or "
                        "sim:memory=2G,link=16GB/s,latency=10us",
                        o->device);
    }
    return MOE_OK;
}

static int fail_features(const moe_device *device, const moe_device_choice *choice, unsigned lacks,
                         moe_error *err)
{
    if ((lacks & MOE_DEVICE_EVERY_TYPE) != 0) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the device %s does not compute with weights of type %s; the CPU does",
                        device->name, moe_dtype_name(choice->any_type));
    }
    if ((lacks & MOE_DEVICE_SCALED_WEIGHTS) != 0) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the device %s does not scale the products of weights, which this model "
                        "needs (tensors named .scale); the CPU does",
                        device->name);
    }
    return moe_fail(
        err, MOE_ERR_UNSUPPORTED,
        "the device %s does not hold a Q4_0 or F8 KV cache; use Q8_0 or F16, or the CPU",
        device->name);
}

static int check_features(moe_device **device, const moe_device_choice *choice, moe_error *err)
{
    const unsigned lacks = choice->needs & ~(*device)->features;
    const int status = lacks != 0 ? fail_features(*device, choice, lacks, err)
                                  : moe_program_check_device(choice->program, *device, err);
    if (status != MOE_OK) {
        (*device)->ops->close(*device);
        *device = NULL;
    }
    return status;
}

static int open_cpu(moe_device **out, const moe_device_choice *choice, moe_error *err)
{
    moe_cpu_device_options options = {.team = choice->team,
                                      .cpu_features = choice->cpu_features,
                                      .blas_prefill =
                                          choice->options->float_gemm == MOE_FLOAT_GEMM_BLAS};
    MOE_TRY(moe_cpu_device_open(out, &options, err));
    return check_features(out, choice, err);
}

static int open_simulated(moe_device **out, const moe_device_choice *choice, moe_error *err)
{
    moe_sim_spec spec;
    MOE_TRY(moe_sim_spec_parse(&spec, choice->options->device, err));
    MOE_TRY(open_cpu(out, choice, err));
    return moe_sim_device_open(out, &spec, *out, err);
}

static int open_gpu(moe_device **out, const moe_device_choice *choice, uint32_t index,
                    moe_error *err)
{
    moe_cuda_module_choice cuda;
    moe_cuda_device_options options = {.index = index,
                                       .blas_prefill =
                                           choice->options->float_gemm == MOE_FLOAT_GEMM_BLAS,
                                       .exact_attention = choice->options->exact_attention};
    MOE_TRY(moe_cuda_module_load(&cuda, err));
    MOE_TRY(cuda.module->open(out, &options, err));
    if (cuda.why[0] != '\0' && choice->options->log != NULL) {
        choice->options->log(cuda.why, choice->options->user);
    }
    return MOE_OK;
}

static int open_cuda(moe_device **out, const moe_device_choice *choice, uint32_t index,
                     moe_error *err)
{
    MOE_TRY(open_gpu(out, choice, index, err));
    return check_features(out, choice, err);
}

/* Opens several GPUs as one device. The first GPU holds everything but experts; experts are on
 * all. */
static int open_cards(moe_device **out, const moe_device_choice *choice, const uint32_t *indices,
                      uint32_t n, moe_error *err)
{
    moe_device *cards[MOE_MAX_CARDS];
    uint32_t n_open = 0;
    int status = MOE_OK;
    *out = NULL;
    while (status == MOE_OK && n_open < n) {
        status = open_gpu(&cards[n_open], choice, indices[n_open], err);
        n_open += status == MOE_OK;
    }
    if (status == MOE_OK && n > 1) {
        status = moe_cards_join(cards[0], cards + 1, n - 1, err);
        n_open = status == MOE_OK ? n : 1;
    }
    if (status != MOE_OK) {
        for (uint32_t i = 0; i < n_open; i++) {
            cards[i]->ops->close(cards[i]);
        }
        return status;
    }
    *out = cards[0];
    return check_features(out, choice, err);
}

/* Opens the first usable GPU; if there is none, returns the error of the last one tried. */
static int open_any_cuda(moe_device **out, const moe_device_choice *choice, moe_error *err)
{
    moe_cuda_module_choice cuda;
    MOE_TRY(moe_cuda_module_load(&cuda, err));
    moe_cuda_device_list *list = moe_calloc(1, sizeof *list);
    if (list == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a list of GPUs");
    }
    int status = cuda.module->list(list, err);
    uint32_t n = status == MOE_OK ? list->n : 0;
    for (uint32_t i = 0; i < n && (i == 0 || status != MOE_OK); i++) {
        /* Only the first of the unusable GPUs is tried, for its error. */
        if (i == 0 || list->devices[i].why_not[0] == '\0') {
            status = open_cuda(out, choice, i, err);
        }
    }
    free(list);
    return status;
}

static int open_best(moe_device **out, const moe_device_choice *choice, moe_error *err)
{
    const moe_engine_options *o = choice->options;
    moe_error why_not = {""};
    if (open_any_cuda(out, choice, &why_not) == MOE_OK) {
        return MOE_OK;
    }
    if (why_not.message[0] != '\0' && o->log != NULL && moe_cuda_gpu_seen()) {
        char line[MOE_ERROR_MESSAGE_SIZE + 64];
        snprintf(line, sizeof line, "the GPU is not used: %s", why_not.message);
        o->log(line, o->user);
    }
    return open_cpu(out, choice, err);
}

int moe_device_choice_open(moe_device **out, const moe_device_choice *choice, moe_error *err)
{
    const moe_engine_options *o = choice->options;
    uint32_t indices[MOE_MAX_CARDS];
    uint32_t n = 0;
    if (moe_device_choice_is_auto(o)) {
        MOE_TRY(open_best(out, choice, err));
    } else if (strcmp(o->device, "cpu") == 0) {
        MOE_TRY(open_cpu(out, choice, err));
    } else if (moe_cuda_parse_name(o->device, indices, &n)) {
        MOE_TRY(open_cards(out, choice, indices, n, err));
    } else {
        MOE_TRY(open_simulated(out, choice, err));
    }
    if (o->host_compute == MOE_SWITCH_ON && (*out)->link == NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.host_compute cannot act: options.device is %s, which computes in "
                        "host memory anyway",
                        (*out)->name);
    }
    return MOE_OK;
}
