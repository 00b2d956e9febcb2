/* SPDX-License-Identifier: MIT */
/* Checks a model's files for damage. Errors, ownership and sizes of structs are as in moe.h.
 *
 * Threads (the groups are explained in moe.h):
 *  free: moe_verify_options_init_sized, moe_verify_options_init, moe_verify
 * Of the callbacks, progress and on_damage run in the caller's thread, log in any. */
#ifndef MOE_VERIFY_H
#define MOE_VERIFY_H

#include <moe/moe.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is wrong with a part of a model. */
typedef enum moe_damage_kind {
    MOE_DAMAGE_CHECKSUM,  /* its bytes do not match the calibration's checksum */
    MOE_DAMAGE_NOT_FINITE /* it has no checksum, and values or scales that are not finite */
} moe_damage_kind;

/* A tensor, or an expert's share in one. The texts are valid during the call only. */
typedef struct moe_damage {
    moe_damage_kind kind;
    const char *path;   /* of the file */
    const char *tensor; /* its name */
    uint64_t offset;    /* in the file, of the first byte of the part */
    uint64_t bytes;     /* of the part */
    bool is_expert;
    uint32_t layer, expert; /* of an expert */
} moe_damage;

typedef void (*moe_damage_fn)(const moe_damage *damage, void *user);

typedef struct moe_verify_options {
    size_t struct_size;      /* set by moe_verify_options_init() */
    const char *model_path;  /* a GGUF file, or any part of a split one; required */
    const char *calibration; /* NULL: the one beside the model, if there is one; "none": without */
    moe_io_kind io;          /* as in moe_engine_options */
    bool buffered_io;
    double io_timeout;        /* seconds without a byte, after which it fails; 0: 30 */
    moe_progress_fn progress; /* fraction of the bytes; returns false to stop. May be NULL */
    moe_damage_fn on_damage;  /* called for each damaged part, in the order of the file. May be NULL
                               */
    moe_log_fn log;           /* may be NULL */
    void *user;               /* passed to progress, on_damage and log */
} moe_verify_options;

MOE_API void moe_verify_options_init_sized(moe_verify_options *options, size_t struct_size);
static inline void moe_verify_options_init(moe_verify_options *options)
{
    moe_verify_options_init_sized(options, sizeof *options);
}

typedef struct moe_verify_result {
    size_t struct_size;   /* set by the caller: sizeof(moe_verify_result) */
    uint64_t bytes_read;  /* of weights */
    uint64_t n_parts;     /* tensors and experts' shares in them */
    uint64_t n_checksums; /* parts with a checksum */
    uint64_t n_damaged;
} moe_verify_result;

/* Reads all weights of the files and compares them with the calibration's checksums. For parts
 * without one, it checks whether they can be read and whether their values are finite. MOE_OK when
 * all was read, however much is damaged: see result->n_damaged. A part that differs is read twice.
 * MOE_ERR_CANCELLED when progress returns false; MOE_ERR_MISMATCH when the calibration named in the
 * options is of another model. A calibration that was found beside the model and cannot be used is
 * reported to log. */
MOE_API int moe_verify(const moe_verify_options *options, moe_verify_result *result,
                       moe_error *err);

#ifdef __cplusplus
}
#endif
#endif
