/* SPDX-License-Identifier: MIT */
/* The public structs as a program knows them that was compiled long ago: with the first fields
 * alone. Structs have names of their own (old_...), so that a test can compare them with those of
 * today; with OLDER_STRUCTS_ONLY the functions, whose names are those of today, are left out. */
#ifndef MOE_TEST_OLDER_MOE_H
#define MOE_TEST_OLDER_MOE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct old_engine_options {
    size_t struct_size;
    const char *model_path;
    const char *device;
    uint32_t n_threads;
    uint32_t context;
} old_engine_options;

typedef struct old_sampling {
    size_t struct_size;
    float temperature;
    uint32_t top_k;
    float top_p;
    float min_p;
    float repeat_penalty;
    uint32_t repeat_last;
    uint64_t seed;
} old_sampling;

typedef struct old_engine_info {
    size_t struct_size;
    const char *architecture;
    const char *family;
    const char *model_name;
} old_engine_info;

typedef struct old_engine_stats {
    size_t struct_size;
    uint64_t passes;
    uint64_t prompt_tokens;
    uint64_t decode_tokens;
} old_engine_stats;

typedef struct old_memory_plan {
    size_t struct_size;
    uint64_t budget;
} old_memory_plan;

typedef struct old_file_summary {
    size_t struct_size;
    uint32_t gguf_version;
    uint32_t n_files;
    uint64_t file_bytes;
} old_file_summary;

typedef struct old_file_tensor {
    size_t struct_size;
    const char *name;
    const char *type;
} old_file_tensor;

typedef struct old_trace_generator {
    size_t struct_size;
    uint32_t n_layer;
    uint32_t n_expert;
    uint32_t n_expert_used;
    uint32_t padding;
    double popular, slow, slow_rho, fast, fast_rho, noise;
} old_trace_generator;

typedef struct old_trace_info {
    size_t struct_size;
    uint32_t n_layer;
    uint32_t n_expert;
} old_trace_info;

typedef struct old_simulation {
    size_t struct_size;
    const char *policy;
    double cache_share;
} old_simulation;

typedef struct old_simulation_result {
    size_t struct_size;
    uint32_t n_slots;
    uint32_t padding;
    uint64_t n_tokens;
} old_simulation_result;

typedef struct old_storage_test {
    size_t struct_size;
    const char *path;
    const char *io;
    bool buffered, registered, small_pages;
    uint32_t block_bytes;
    uint32_t depth;
    uint64_t range_min_bytes, range_max_bytes;
    uint64_t total_bytes;
} old_storage_test;

typedef struct old_storage_speed {
    size_t struct_size;
    double bytes_per_s;
} old_storage_speed;

#ifndef OLDER_STRUCTS_ONLY
typedef struct moe_engine moe_engine;
typedef struct moe_session moe_session;
typedef struct moe_file moe_file;
typedef struct moe_trace moe_trace;
typedef struct moe_error {
    char message[512];
} moe_error;

void moe_engine_options_init_sized(old_engine_options *options, size_t struct_size);
int moe_engine_open(moe_engine **out, const old_engine_options *options, moe_error *err);
void moe_engine_close(moe_engine **engine);
int moe_plan_memory(const old_engine_options *options, old_memory_plan *plan, moe_error *err);
int moe_engine_get_info(const moe_engine *engine, old_engine_info *info);
int moe_engine_get_stats(const moe_engine *engine, old_engine_stats *stats);
void moe_sampling_init_sized(old_sampling *sampling, size_t struct_size);
int moe_session_create(moe_session **out, moe_engine *engine, const void *options, moe_error *err);
int moe_session_set_sampling(moe_session *session, const old_sampling *sampling, moe_error *err);
int moe_session_feed(moe_session *session, const int32_t *tokens, size_t n, moe_error *err);
int moe_step(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err);
size_t moe_session_take(moe_session *session, int32_t *tokens, size_t capacity);
void moe_session_close(moe_session **session);
int moe_file_open(moe_file **out, const char *path, moe_error *err);
void moe_file_close(moe_file **file);
int moe_file_get_summary(const moe_file *file, old_file_summary *summary);
int moe_file_get_tensor(const moe_file *file, uint64_t index, old_file_tensor *tensor);
int moe_trace_generator_init_sized(old_trace_generator *generator, size_t struct_size,
                                   const char *preset, moe_error *err);
int moe_trace_generate(moe_trace **out, const old_trace_generator *generator, moe_error *err);
int moe_trace_get_info(const moe_trace *trace, old_trace_info *info);
void moe_trace_close(moe_trace **trace);
void moe_simulation_init_sized(old_simulation *simulation, size_t struct_size);
int moe_simulate(const moe_trace *trace, const old_simulation *simulation,
                 old_simulation_result *result, moe_error *err);
void moe_storage_test_init_sized(old_storage_test *test, size_t struct_size);
int moe_storage_measure(const old_storage_test *test, old_storage_speed *speed, moe_error *err);
#endif

#endif
