/* SPDX-License-Identifier: MIT */
/* Types that several headers use: the two handles, callbacks, and the enumerations of options.
 * moe.h includes this header. */
#ifndef MOE_TYPES_H
#define MOE_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_engine moe_engine;
typedef struct moe_session moe_session;

#define MOE_TOKEN_NONE (-1)

/* moe.h has its fields. */
typedef struct moe_engine_options moe_engine_options;

typedef enum moe_kv_cache_type {
    MOE_KV_CACHE_F16 = 0,
    MOE_KV_CACHE_F32 = 1,
    MOE_KV_CACHE_Q8_0 = 2, /* head dimensions must be multiples of 32 */
    MOE_KV_CACHE_Q4_0 = 3, /* likewise; not on a GPU yet */
    MOE_KV_CACHE_F8 = 4    /* E4M3, values up to 448; not on a GPU yet */
} moe_kv_cache_type;

typedef enum moe_float_gemm {
    MOE_FLOAT_GEMM_EXACT = 0, /* the library's own kernels: same bits for any number of rows */
    /* OpenBLAS (F32 weights), on a GPU cuBLAS (F32, F16, BF16), where 16 rows or more of a pass
     * share a weight, routed experts excepted: last bits may differ, and then depend on how many
     * rows a pass has. It is loaded for this; where it is not installed opening fails. */
    MOE_FLOAT_GEMM_BLAS = 1
} moe_float_gemm;

/* Reports progress. fraction: the share, in [0, 1], of the bytes that opening has to read. Return
 * false to cancel. Called on the opening thread. */
typedef bool (*moe_progress_fn)(double fraction, void *user);
/* The progress of the pass that a step runs. New fields are added at the end. */
typedef struct moe_pass_progress {
    uint32_t layer, n_layer; /* layers done, and layers in all */
    /* n_rows: tokens that the pass evaluates; all go through each layer. rows_done: n_rows times
     * the share of the layers with experts that are done. */
    uint32_t rows_done, n_rows;
    uint64_t bytes_read; /* from the disk since the pass began */
    /* bytes_expected, seconds_expected: what bytes_read and seconds will be at the end of the pass,
     * if all layers are like those so far; 0: not known yet. */
    uint64_t bytes_expected;
    double seconds, seconds_expected;
} moe_pass_progress;
/* Called within a step, on its thread, at most ten times a second. Not called in drafts, nor in
 * passes that a GPU runs without the host between layers. Must not call the engine. */
typedef void (*moe_pass_progress_fn)(const moe_pass_progress *progress, void *user);
/* Notices worth a line (a fallback taken, a slow path): no newline. Called on any thread. */
typedef void (*moe_log_fn)(const char *line, void *user);

typedef enum moe_switch { MOE_SWITCH_AUTO = 0, MOE_SWITCH_ON = 1, MOE_SWITCH_OFF = 2 } moe_switch;

/* How files are read. AUTO: by io_uring if the kernel has it, otherwise by threads. SYNC: one piece
 * at a time. */
typedef enum moe_io_kind {
    MOE_IO_AUTO = 0,
    MOE_IO_URING = 1,
    MOE_IO_THREADS = 2,
    MOE_IO_SYNC = 3
} moe_io_kind;

/* Who drafts tokens. */
typedef enum moe_speculate {
    MOE_SPECULATE_OFF = 0,
    /* N-grams, else the drafting layer of draft_model if that names a file, else the model
     * restricted to the experts in memory, each only while it pays. */
    MOE_SPECULATE_AUTO = 1,
    MOE_SPECULATE_NGRAM = 2, /* n-grams of the text so far */
    MOE_SPECULATE_SELF = 3,  /* the model itself, restricted to the experts in memory */
    MOE_SPECULATE_MODEL = 4, /* the smaller model of draft_model */
    /* The model's own drafting layer (keys "nextn", multi-token prediction), or that of the file
     * draft_model, which may be an EAGLE-3 head (architecture "eagle3"). The layer stays in memory.
     * So far only on the CPU. */
    MOE_SPECULATE_MTP = 5
} moe_speculate;

/* When a drafted token is accepted. */
typedef enum moe_acceptance {
    MOE_ACCEPTANCE_EXACT = 0, /* if the sampler chooses the same token */
    /* Speculative sampling (Leviathan et al. 2023): chains of a model are drawn at temperatures
     * above 0 and accepted with min(1, p/q). Tokens are distributed as without a draft, but the
     * same seed gives another text. */
    MOE_ACCEPTANCE_REJECTION = 1
} moe_acceptance;

typedef enum moe_metadata_type {
    MOE_METADATA_INT,
    MOE_METADATA_FLOAT,
    MOE_METADATA_BOOL,
    MOE_METADATA_TEXT
} moe_metadata_type;

/* One key of a file's metadata and the value that it shall have. */
typedef struct moe_metadata_override {
    const char *key; /* "olmoe.rope.freq_base"; not "split.*" or "general.alignment", by which the
                        file is read */
    moe_metadata_type type;
    union {
        int64_t integer; /* of MOE_METADATA_INT */
        double real;     /* of MOE_METADATA_FLOAT; finite */
        bool flag;       /* of MOE_METADATA_BOOL */
        const char *text;
    } value;
} moe_metadata_override;

#ifdef __cplusplus
}
#endif
#endif
