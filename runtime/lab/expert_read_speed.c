/* SPDX-License-Identifier: MIT */
#include <moe/moe.h>

#include "runtime/lab/expert_read_speed.h"

#include "runtime/base/clock.h"

#define MAX_BYTES   (UINT64_C(256) << 20)
#define MAX_SECONDS 1.0
#define MAX_DEPTH   16u

int moe_expert_read_speed(const char *path, const moe_model_config *c, const moe_tensor_map *map,
                          double hit_rate, const moe_engine_options *o, double *bytes_per_s,
                          moe_error *err)
{
    moe_storage_test test;
    moe_storage_speed speed = {.struct_size = sizeof speed};
    uint64_t least = UINT64_MAX;
    uint64_t most = 0;
    for (uint32_t l = 0; l < c->n_layer; l++) {
        for (int p = 0; moe_layer_has_experts(c, l) && p < MOE_EXPERT_PARTS; p++) {
            uint64_t size = map->layers[l].experts[0].parts[p].size;
            least = size > 0 && size < least ? size : least;
            most = size > most ? size : most;
        }
    }
    double missing = (double)c->n_expert_used * (1.0 - hit_rate);
    uint32_t n_reads = (uint32_t)(missing * MOE_EXPERT_PARTS + 0.5);
    moe_storage_test_init(&test);
    test.path = path;
    test.io = o->io;
    test.buffered = o->buffered_io;
    test.small_pages = true; /* like the slots */
    test.range_min_bytes = least;
    test.range_max_bytes = most;
    test.depth = n_reads < 1 ? 1 : n_reads > MAX_DEPTH ? MAX_DEPTH : n_reads;
    test.total_bytes = MAX_BYTES;
    test.max_seconds = MAX_SECONDS;
    test.seed = moe_now_ns();
    int status = moe_storage_measure(&test, &speed, err);
    *bytes_per_s = status == MOE_OK ? speed.bytes_per_s : 0.0;
    return status;
}
