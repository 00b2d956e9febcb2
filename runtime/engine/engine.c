/* SPDX-License-Identifier: MIT */
/* Opening and closing an engine. The order of opening is the order in which a mistake is cheapest
 * to report: options, header, config, tensor map, tokenizer, then memory, then weights. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu_device.h"
#include "cpu/kernels/cpu_features.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine_internal.h"

#define DEFAULT_PREFILL_CHUNK 512u
#define MAX_PREFILL_CHUNK     4096u

const char *moe_version(void)
{
    return MOE_VERSION_TEXT;
}

void moe_free(void *array)
{
    free(array);
}

void moe_engine_options_init(moe_engine_options *options)
{
    *options = (moe_engine_options){.struct_size = sizeof *options};
}

static int check_options(const moe_engine_options *o, unsigned *cpu_features, moe_error *err)
{
    if (o->struct_size != sizeof *o) {
        return moe_fail(
            err, MOE_ERR_ARGUMENT,
            "engine options: struct_size is %zu, not %zu; use moe_engine_options_init()",
            o->struct_size, sizeof *o);
    }
    if (o->model_path == NULL || o->model_path[0] == '\0') {
        return moe_fail(err, MOE_ERR_ARGUMENT, "engine options: no model_path");
    }
    if (o->device != NULL && strcmp(o->device, "cpu") != 0) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "device '%s' is not known to this build; it has: cpu", o->device);
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
    const char *kernels = o->kernels != NULL ? o->kernels : "native";
    if (moe_cpu_features_parse(kernels, cpu_features) != 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "kernels '%s' are not known; use native, reference, avx2 or avx512",
                        kernels);
    }
    return MOE_OK;
}

static int read_model_name(moe_engine *engine, moe_error *err)
{
    moe_string_view name = {"", 0};
    (void)moe_gguf_get_string(engine->gguf, "general.name", &name, NULL);
    engine->model_name = moe_calloc(name.size + 1, 1);
    if (engine->model_name == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the model's name");
    }
    memcpy(engine->model_name, name.data, name.size);
    return MOE_OK;
}

/* A model without a vocabulary can still be run on token ids. */
static int open_tokenizer(moe_engine *engine, moe_error *err)
{
    if (moe_gguf_find(engine->gguf, "tokenizer.ggml.model") == NULL) {
        snprintf(engine->chat_why_not, sizeof engine->chat_why_not,
                 "the model file has no tokenizer");
        return MOE_OK;
    }
    int status = moe_tokenizer_create(&engine->tokenizer, engine->gguf, err);
    if (status != MOE_OK) {
        return status;
    }
    if (moe_tokenizer_n_tokens(engine->tokenizer) > engine->config.n_vocab) {
        return moe_fail(err, MOE_ERR_FORMAT, "%s: %u tokens in the vocabulary, but %u embeddings",
                        engine->model_path, moe_tokenizer_n_tokens(engine->tokenizer),
                        engine->config.n_vocab);
    }
    moe_error why_not;
    if (moe_chat_template_find(&engine->chat, engine->gguf, &why_not) != MOE_OK) {
        engine->chat = NULL;
        memcpy(engine->chat_why_not, why_not.message, sizeof engine->chat_why_not);
    }
    return MOE_OK;
}

static int open_model(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    engine->model_path = moe_strdup(o->model_path);
    if (engine->model_path == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for an engine");
    }
    int status = moe_gguf_open(&engine->gguf, o->model_path, err);
    if (status == MOE_OK) {
        status = moe_model_config_read(&engine->config, engine->gguf, err);
    }
    if (status == MOE_OK) {
        status = moe_tensor_map_build(&engine->map, &engine->config, engine->gguf, err);
    }
    if (status == MOE_OK) {
        status = read_model_name(engine, err);
    }
    if (status == MOE_OK) {
        status = open_tokenizer(engine, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    engine->fingerprint = moe_model_fingerprint(engine->gguf);
    engine->context = o->context != 0 ? o->context : engine->config.n_context_train;
    engine->prefill_chunk = o->prefill_chunk != 0 ? o->prefill_chunk : DEFAULT_PREFILL_CHUNK;
    return MOE_OK;
}

static int open_device(moe_engine *engine, const moe_engine_options *o, unsigned cpu_features,
                       moe_error *err)
{
    int status = moe_team_create(&engine->team, o->n_threads, err);
    if (status != MOE_OK) {
        return status;
    }
    moe_cpu_device_options options = {.team = engine->team,
                                      .cpu_features = cpu_features,
                                      .blas_prefill = o->float_gemm == MOE_FLOAT_GEMM_BLAS};
    status = moe_cpu_device_open(&engine->device, &options, err);
    if (status != MOE_OK) {
        return status;
    }
    moe_cpu_features_describe(cpu_features, engine->kernels, sizeof engine->kernels);
    moe_device_limits limits;
    moe_pass_device_limits(&engine->config, engine->prefill_chunk, &limits);
    return engine->device->ops->reserve(engine->device, &limits, err);
}

static int open_memory(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    moe_weights_progress progress = {o->progress, o->user};
    int status = moe_kv_pool_init(&engine->kv, engine->device, c, (moe_kv_type)o->kv_cache, err);
    if (status == MOE_OK) {
        status =
            moe_pass_buffers_init(&engine->buffers, engine->device, c, engine->prefill_chunk, err);
    }
    if (status == MOE_OK) {
        status = moe_weights_load(&engine->weights, engine->device, engine->gguf, c, &engine->map,
                                  &progress, err);
    }
    if (status == MOE_OK) {
        status = moe_expert_store_open(&engine->experts, engine->device, engine->team, engine->gguf,
                                       &engine->map, 0, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    engine->rope_frequencies = moe_calloc(c->n_rot / 2, sizeof *engine->rope_frequencies);
    if (engine->rope_frequencies == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for rotary frequencies");
    }
    moe_rope_frequencies(c, engine->weights.rope_factors, engine->rope_frequencies);
    return MOE_OK;
}

int moe_engine_open(moe_engine **out, const moe_engine_options *options, moe_error *err)
{
    *out = NULL;
    unsigned cpu_features;
    int status = check_options(options, &cpu_features, err);
    if (status != MOE_OK) {
        return status;
    }
    moe_engine *engine = moe_calloc(1, sizeof *engine);
    if (engine == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for an engine");
    }
    engine->log = options->log;
    engine->user = options->user;
    status = open_model(engine, options, err);
    if (status == MOE_OK) {
        status = open_device(engine, options, cpu_features, err);
    }
    if (status == MOE_OK) {
        status = open_memory(engine, options, err);
    }
    if (status != MOE_OK) {
        moe_engine_close(&engine);
        return status;
    }
    *out = engine;
    return MOE_OK;
}

void moe_engine_close(moe_engine **engine_ptr)
{
    moe_engine *engine = *engine_ptr;
    if (engine == NULL) {
        return;
    }
    moe_expert_store_close(&engine->experts);
    if (engine->device != NULL) {
        moe_weights_free(&engine->weights, engine->device);
        moe_pass_buffers_free(&engine->buffers, engine->device);
        moe_kv_pool_free(&engine->kv);
        engine->device->ops->close(engine->device);
    }
    moe_team_destroy(&engine->team);
    moe_tokenizer_destroy(&engine->tokenizer);
    moe_tensor_map_free(&engine->map);
    moe_gguf_close(&engine->gguf);
    free(engine->rope_frequencies);
    free(engine->model_path);
    free(engine->model_name);
    free(engine);
    *engine_ptr = NULL;
}

void moe_engine_get_info(const moe_engine *engine, moe_engine_info *info)
{
    const moe_model_config *c = &engine->config;
    *info = (moe_engine_info){
        .architecture = c->architecture,
        .family = c->family,
        .model_name = engine->model_name,
        .device = engine->device->name,
        .kernels = engine->kernels,
        .n_threads = moe_team_size(engine->team),
        .n_layer = c->n_layer,
        .n_embd = c->n_embd,
        .n_vocab = c->n_vocab,
        .n_head = c->n_head,
        .n_head_kv = c->n_head_kv,
        .n_expert = c->n_expert,
        .n_expert_used = c->n_expert_used,
        .context = engine->context,
        .context_train = c->n_context_train,
        .n_parameters = engine->map.n_parameters,
        .n_parameters_active = engine->map.n_parameters_active,
        .resident_bytes = engine->weights.arena_bytes,
        .expert_bytes = engine->map.expert_bytes,
        .kv_bytes_per_token = engine->kv.page_bytes / MOE_KV_PAGE,
        .fingerprint = engine->fingerprint,
        .has_chat_template = engine->chat != NULL,
        .chat_template = engine->chat != NULL ? moe_chat_template_name(engine->chat) : "",
    };
}

void moe_engine_get_stats(const moe_engine *engine, moe_engine_stats *stats)
{
    moe_expert_store_stats experts;
    moe_expert_store_get_stats(engine->experts, &experts);
    moe_engine_stats now = {
        .struct_size = stats->struct_size,
        .passes = engine->n_passes,
        .prompt_tokens = engine->n_prompt_tokens,
        .decode_tokens = engine->n_decode_tokens,
        .expert_hits = experts.hits,
        .expert_misses = experts.misses,
        .bytes_read_disk = experts.bytes_read,
        .resident_bytes_now = engine->weights.arena_bytes + engine->buffers.arena_bytes +
                              engine->device->ops->scratch_bytes(engine->device) +
                              engine->kv.n_pages * engine->kv.page_bytes +
                              experts.n_resident * experts.slot_bytes,
    };
    size_t size = stats->struct_size < sizeof now ? stats->struct_size : sizeof now;
    memcpy(stats, &now, size);
}
