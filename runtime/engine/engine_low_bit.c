/* SPDX-License-Identifier: MIT */
/* Opens the low-bit copies of experts for lossy mode low_bit: their file, their slots in the plan,
 * and the store that fills the slots. */
#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/engine/engine_parts.h"

int moe_engine_open_low_bit(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    if (!o->lossy->low_bit) {
        return MOE_OK;
    }
    if (engine->device->link != NULL || engine->device->memory_bytes != 0) {
        return moe_fail(
            err, MOE_ERR_UNSUPPORTED,
            "options.lossy.low_bit cannot act on device '%s': low-bit copies of experts "
            "are computed by the CPU alone; set options.device to cpu, or turn it off",
            engine->device->name);
    }
    const moe_sidecar_model model = {.gguf = engine->gguf,
                                     .map = &engine->map,
                                     .config = &engine->config,
                                     .identity = &engine->identity,
                                     .reading = &engine->reading};
    char *path = moe_low_bit_path(engine->sidecar.path);
    if (path == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the path of copies of experts");
    }
    int status =
        access(path, F_OK) == 0
            ? moe_low_bit_open(&engine->low_bit_file, path, &model, err)
            : moe_fail(
                  err, MOE_ERR_ARGUMENT,
                  "options.lossy.low_bit needs low-bit copies of the experts, and there is no %s; "
                  "make it: moe-offload calibrate -m %s -f TEXT with options.low_bit_type Q2_K",
                  path, engine->model_path);
    free(path);
    return status == MOE_OK ? moe_expert_store_sizes(&engine->low_bit_file->map, false,
                                                     &engine->low_bit_sizes, err)
                            : status;
}

int moe_engine_open_low_bit_store(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    if (engine->low_bit_file == NULL) {
        return MOE_OK;
    }
    MOE_TRY(moe_low_bit_check(engine->low_bit_file, &engine->book, err));
    moe_expert_store_options options = {.device = engine->device,
                                        .gguf = engine->low_bit_file->gguf,
                                        .map = &engine->low_bit_file->map,
                                        .n_expert_used = engine->config.n_expert_used,
                                        .budget_bytes = engine->plan.low_bit_cache,
                                        .policy = engine->policy,
                                        .per_layer = o->lab->per_layer_cache,
                                        .hotness = engine->sidecar.hotness,
                                        .sums = &engine->low_bit_file->sums,
                                        .io = o->io,
                                        .buffered_io = o->buffered_io,
                                        .io_block_bytes = o->io_block_bytes,
                                        .io_depth = o->io_depth,
                                        .io_timeout_ns = (uint64_t)(o->io_timeout * 1e9),
                                        .log = o->log,
                                        .user = o->user};
    return moe_expert_store_open(&engine->low_bit_experts, &options, err);
}

void moe_engine_close_low_bit(moe_engine *engine)
{
    moe_expert_store_close(&engine->low_bit_experts);
    moe_low_bit_close(&engine->low_bit_file);
}

/* Adds the cost of low-bit copies to the statistics of experts, and also reports it separately. */
void moe_engine_count_low_bit(const moe_engine *engine, moe_engine_stats *stats)
{
    if (engine->low_bit_experts == NULL) {
        return;
    }
    moe_expert_store_stats copies;
    moe_expert_store_get_stats(engine->low_bit_experts, &copies);
    stats->lossy.low_bit_hits = copies.hits;
    stats->lossy.low_bit_misses = copies.misses;
    stats->lossy.low_bit_bytes = copies.bytes_demand;
    stats->lossy.low_bit_slots = copies.n_slots;
    stats->bytes_demand += copies.bytes_demand;
    stats->bytes_disk_demand += copies.bytes_disk_demand;
    stats->bytes_read_disk += copies.bytes_read;
    stats->expert_wait_ns += copies.wait_ns;
    stats->disk_retries += copies.n_retries;
    stats->expert_failures += copies.n_failed;
    stats->expert_timeouts += copies.n_timeouts;
}
