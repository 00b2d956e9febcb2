/* SPDX-License-Identifier: MIT */
/* Structs of the public headers that can grow. Their first field, struct_size, is the struct's size
 * in the program, which may be compiled with an older or a newer header. moe.h states the rule for
 * programs; these functions implement it.
 *
 *    program's struct  [ struct_size | fields both know | fields of the larger one ]
 *
 * The library never works on the program's struct. It copies what it receives into its own
 * (moe_struct_take) and copies its results out (moe_struct_give). */
#ifndef MOE_BASE_STRUCT_SIZE_H
#define MOE_BASE_STRUCT_SIZE_H

#include <stddef.h>

#include <moe/status.h>

typedef struct moe_struct_kind {
    const char *name; /* "moe_engine_options" */
    size_t size;      /* in this library */
    size_t known;     /* known part of it; the rest is reserved and must be zero on input */
    size_t least;     /* a smaller struct_size is refused */
} moe_struct_kind;

extern const moe_struct_kind moe_kind_engine_options;
extern const moe_struct_kind moe_kind_lossy_options;
extern const moe_struct_kind moe_kind_lab_options;
extern const moe_struct_kind moe_kind_session_options;
extern const moe_struct_kind moe_kind_chat_options;
extern const moe_struct_kind moe_kind_sampling;
extern const moe_struct_kind moe_kind_calibrate_options;
extern const moe_struct_kind moe_kind_worker_options;
extern const moe_struct_kind moe_kind_worker_info;
extern const moe_struct_kind moe_kind_worker_estimate;
extern const moe_struct_kind moe_kind_storage_test;
extern const moe_struct_kind moe_kind_verify_options;
extern const moe_struct_kind moe_kind_verify_result;
extern const moe_struct_kind moe_kind_trace_open_options;
extern const moe_struct_kind moe_kind_trace_generator;
extern const moe_struct_kind moe_kind_simulation;
extern const moe_struct_kind moe_kind_engine_info;
extern const moe_struct_kind moe_kind_engine_stats;
extern const moe_struct_kind moe_kind_memory_plan;
extern const moe_struct_kind moe_kind_file_summary;
extern const moe_struct_kind moe_kind_file_tensor;
extern const moe_struct_kind moe_kind_storage_speed;
extern const moe_struct_kind moe_kind_speed_rates;
extern const moe_struct_kind moe_kind_speed_estimate;
extern const moe_struct_kind moe_kind_trace_info;
extern const moe_struct_kind moe_kind_simulation_result;

/* MOE_ERR_ARGUMENT, naming the struct, when `given` is NULL or its struct_size is impossible. */
int moe_struct_check(const moe_struct_kind *kind, const void *given, moe_error *err);

/* Copies the fields that the program set over `own`, a whole struct that holds the defaults. Bytes
 * of `given` behind the fields that this library knows must be zero. On error `own` is unchanged.
 */
int moe_struct_take(const moe_struct_kind *kind, void *own, const void *given, moe_error *err);

/* Copies `own`, a whole struct, into the program's. Writes at most given->struct_size bytes, and
 * zeros where the program's struct is larger. */
int moe_struct_give(const moe_struct_kind *kind, void *given, const void *own, moe_error *err);

/* For the init functions: makes the program's struct of `size` bytes a copy of `own`, with that
 * struct_size. Writes nothing if the size is impossible. */
void moe_struct_init(const moe_struct_kind *kind, void *given, size_t size, const void *own);

#endif
