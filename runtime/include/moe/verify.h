/* SPDX-License-Identifier: MIT */
/* Checks a model's files for damage. Errors, ownership and sizes of structs are as in moe.h.
 *
 * Threads (the groups are explained in moe.h):
 *  free: moe_verify_options_init_sized, moe_verify_options_init, moe_verify, moe_verify_session
 * The callbacks progress and on_damage run in the caller's thread, log in any thread. */
#ifndef MOE_VERIFY_H
#define MOE_VERIFY_H

#include <moe/status.h>
#include <moe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is wrong with a part of a model. */
typedef enum moe_damage_kind {
    MOE_DAMAGE_CHECKSUM,   /* its bytes do not match the checksum */
    MOE_DAMAGE_NOT_FINITE, /* it had no checksum, and has values or scales that are not finite */
    MOE_DAMAGE_DIFFERS     /* a copy's bytes differ from the model's; there was no checksum */
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
    /* [n_model_copies] As in moe_engine_options; they are read and compared after the model. */
    const char *const *model_copies;
    size_t n_model_copies;
    const char *checksums; /* as in moe_engine_options: new checksums are kept there */
} moe_verify_options;

MOE_API void moe_verify_options_init_sized(moe_verify_options *options, size_t struct_size);
static inline void moe_verify_options_init(moe_verify_options *options)
{
    moe_verify_options_init_sized(options, sizeof *options);
}

typedef struct moe_verify_result {
    size_t struct_size;   /* set by the caller: sizeof(moe_verify_result) */
    uint64_t bytes_read;  /* of weights; this and the counts include copies */
    uint64_t n_parts;     /* tensors and experts' shares in them */
    uint64_t n_checksums; /* parts that had a checksum before they were read */
    uint64_t n_damaged;
} moe_verify_result;

/* Reads all weights of the files and compares them with their checksums: the calibration's, or
 * those made when the weights were first read. If a part has no checksum, checks that its values
 * are finite and makes its checksum, for the copies that are read next and for later runs. If a
 * part differs, reads it a second time. Returns MOE_OK when all was read, however much is damaged:
 * see result->n_damaged. MOE_ERR_CANCELLED: progress returned false. MOE_ERR_MISMATCH: the
 * calibration named in the options is of another model. MOE_ERR_FORMAT: a file is not a copy of the
 * model. MOE_ERR_MEMORY: memory is short, also if only for the checksums; no weights are read
 * without them. Reports to log a calibration that was found beside the model and cannot be used. */
MOE_API int moe_verify(const moe_verify_options *options, moe_verify_result *result,
                       moe_error *err);

/* Checks a file of moe_session_save(), without its model. MOE_ERR_FORMAT: it is damaged, or no such
 * file. *by_checksums (may be NULL): true if the checksums of all weights tie the file to them;
 * false if only inode, size and times of the model's files do. */
MOE_API int moe_verify_session(const char *path, bool *by_checksums, moe_error *err);

#ifdef __cplusplus
}
#endif
#endif
