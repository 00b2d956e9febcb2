/* SPDX-License-Identifier: MIT */
#include "runtime/base/struct_size.h"

#include <string.h>

#include <moe/calibrate.h>
#include <moe/chat.h>
#include <moe/lab.h>
#include <moe/lossy_modes.h>
#include <moe/model_file.h>
#include <moe/moe.h>
#include <moe/speed.h>
#include <moe/trace.h>
#include <moe/verify.h>
#include <moe/workers.h>

#include "runtime/base/error.h"

/* A larger struct_size means that the struct was not initialised. */
#define MAX_STRUCT_SIZE 65536u

#define END_OF(type, field) (offsetof(type, field) + sizeof(((type *)NULL)->field))

/* Describes a struct. It may have no padding at its end: a field appended later could otherwise lie
 * in bytes that older programs never set but include in their struct_size. `required` is the last
 * field that every version of the struct must have. */
#define STRUCT_KIND(name, required, last, known)                                                   \
    _Static_assert(END_OF(moe_##name, last) == sizeof(moe_##name),                                 \
                   "moe_" #name ": name its last field here; if it ends in padding, fill that "    \
                   "up with reserved bytes");                                                      \
    const moe_struct_kind moe_kind_##name = {"moe_" #name, sizeof(moe_##name), (known),            \
                                             (END_OF(moe_##name, required) + sizeof(size_t) - 1) / \
                                                 sizeof(size_t) * sizeof(size_t)}

#define WHOLE(name, required, last) STRUCT_KIND(name, required, last, sizeof(moe_##name))
#define WITH_RESERVED(name, required)                                                              \
    STRUCT_KIND(name, required, reserved, offsetof(moe_##name, reserved))

/* For a struct inside another one: if its size changed, the fields behind it would move. */
#define FIXED_SIZE(name, size)                                                                     \
    _Static_assert(sizeof(moe_##name) == (size),                                                   \
                   "moe_" #name ": new fields take the place of its reserved words")

WITH_RESERVED(engine_options, model_path);
WHOLE(lossy_options, budget_order, quality_share);
WHOLE(lab_options, kernels, worker_delay_ns);
WITH_RESERVED(session_options, sampling);
WITH_RESERVED(sampling, seed);
WHOLE(chat_options, messages, now);
WHOLE(calibrate_options, n_tokens, low_bit_type);
WHOLE(worker_options, is_stopped, experts);
WHOLE(worker_info, name, expert_s);
WHOLE(worker_estimate, workers, tokens_per_s);
WHOLE(storage_test, path, n_copies);
WHOLE(verify_options, model_path, checksums);
WHOLE(verify_result, n_damaged, n_damaged);
WITH_RESERVED(trace_open_options, path);
WHOLE(trace_generator, n_expert_used, seed);
WHOLE(simulation, policy, link_latency_s);
WHOLE(engine_info, architecture, memory);
WHOLE(engine_stats, passes, workers_lost);
WITH_RESERVED(memory_plan, budget);
WHOLE(file_summary, gguf_version, row_bytes);
WITH_RESERVED(file_tensor, name);
WHOLE(storage_speed, bytes_per_s, how);
WHOLE(speed_rates, disk_bytes_per_s, spread);
WHOLE(speed_estimate, disk_bytes, tokens_per_s);
WITH_RESERVED(trace_info, n_layer);
WHOLE(simulation_result, n_slots, disk_bytes_per_token);

FIXED_SIZE(sampling, 64);
FIXED_SIZE(memory_plan, 440);
FIXED_SIZE(speculation_stats, 2960);
FIXED_SIZE(lossy_stats, 256);
FIXED_SIZE(trace_info, 88);
FIXED_SIZE(layer_analysis, 480);

static size_t size_of(const void *given)
{
    size_t size;
    memcpy(&size, given, sizeof size);
    return size;
}

int moe_struct_check(const moe_struct_kind *kind, const void *given, moe_error *err)
{
    if (given == NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "%s: the struct must not be NULL", kind->name);
    }
    size_t size = size_of(given);
    if (size < kind->least || size > MAX_STRUCT_SIZE || size % sizeof(size_t) != 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "%s: struct_size is %zu; initialise the struct (this library's has %zu "
                        "bytes)",
                        kind->name, size, kind->size);
    }
    return MOE_OK;
}

int moe_struct_take(const moe_struct_kind *kind, void *own, const void *given, moe_error *err)
{
    MOE_TRY(moe_struct_check(kind, given, err));
    size_t size = size_of(given);
    const unsigned char *bytes = given;
    for (size_t i = kind->known; i < size; i++) {
        if (bytes[i] != 0) {
            return moe_fail(
                err, MOE_ERR_ARGUMENT,
                "%s: byte %zu is set, and this library (%s) knows %zu of its bytes; set "
                "the rest to zero, or use a newer library",
                kind->name, i, MOE_VERSION_TEXT, kind->known);
        }
    }
    memcpy(own, given, size < kind->size ? size : kind->size);
    memcpy(own, &kind->size, sizeof kind->size);
    return MOE_OK;
}

int moe_struct_give(const moe_struct_kind *kind, void *given, const void *own, moe_error *err)
{
    MOE_TRY(moe_struct_check(kind, given, err));
    moe_struct_init(kind, given, size_of(given), own);
    return MOE_OK;
}

void moe_struct_init(const moe_struct_kind *kind, void *given, size_t size, const void *own)
{
    if (moe_struct_check(kind, given == NULL ? NULL : &size, NULL) != MOE_OK) {
        return;
    }
    size_t known = size < kind->size ? size : kind->size;
    memcpy(given, own, known);
    memset((unsigned char *)given + known, 0, size - known);
    memcpy(given, &size, sizeof size);
}
