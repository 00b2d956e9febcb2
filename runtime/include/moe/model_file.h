/* SPDX-License-Identifier: MIT */
/* What is in a model file: its header's metadata and tensors. No weights are loaded, no engine is
 * needed. Errors, ownership and sizes of structs are as in moe.h.
 *
 * Threads (the groups are explained in moe.h):
 *   free:    moe_file_open, moe_tensor_kind_name
 *   reading: moe_file_get_summary, moe_file_get_metadata, moe_file_get_metadata_use,
 *            moe_file_get_tensor, moe_file_get_program, moe_file_fingerprint
 *   last:    moe_file_close */
#ifndef MOE_MODEL_FILE_H
#define MOE_MODEL_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An opened model file, all parts of a split one. */
typedef struct moe_file moe_file;

typedef enum moe_tensor_kind {
    MOE_KIND_EMBEDDING,
    MOE_KIND_OUTPUT,
    MOE_KIND_NORM,
    MOE_KIND_ATTENTION,
    MOE_KIND_ROUTER,
    MOE_KIND_DENSE_FFN,
    MOE_KIND_SHARED_EXPERT,
    MOE_KIND_EXPERT,
    MOE_KIND_OTHER,
    MOE_KIND_COUNT
} moe_tensor_kind;

typedef struct moe_file_tensor {
    size_t struct_size; /* set by the program: sizeof(moe_file_tensor) */
    const char *name;   /* strings live as long as the moe_file */
    const char *type;   /* "Q4_K" */
    moe_tensor_kind kind;
    uint32_t n_dims;
    uint64_t dims[4];
    uint64_t n_bytes;
    uint64_t offset; /* in its file */
    uint32_t file_index;
    uint32_t reserved; /* 0 */
} moe_file_tensor;

typedef struct moe_file_summary {
    size_t struct_size; /* set by the program: sizeof(moe_file_summary) */
    uint32_t gguf_version;
    uint32_t n_files;
    uint64_t file_bytes;
    uint64_t n_metadata;
    uint64_t n_tensors;
    bool runnable; /* the engine can open it; else `why_not` says why */
    char why_not[MOE_ERROR_MESSAGE_SIZE];
    const char *architecture;
    /* "" when not runnable. The numbers below are then 0, unless the family is known by name. For
     * such a family they are what the header gives: layers, experts, bytes, and, where the family's
     * format fixes them, keys and values; state_bytes is the part of keys and values that is not
     * compressed yet. */
    const char *family;
    uint32_t n_layer, n_layer_moe, n_embd, n_vocab, n_head, n_head_kv, context_train;
    uint32_t n_expert, n_expert_used, n_ff_expert, n_ff_shared;
    uint64_t n_parameters, n_parameters_active;
    uint64_t resident_bytes, expert_bytes;
    uint64_t smallest_expert_bytes, largest_expert_bytes;
    uint64_t kv_bytes_per_token_f16;
    /* Layers that keep a state of fixed size instead of keys and values: their number, their kind
     * ("gated delta rule"; "" when there are none), and the bytes of one state of all of them. */
    const char *recurrence;
    uint64_t n_layer_recurrent;
    uint64_t state_bytes;
    /* The part of kv_bytes_per_token_f16 that is for layers with an attention window (or chunks),
     * which free keys and values behind the window; and the widest window. */
    uint64_t kv_windowed_per_token_f16;
    uint64_t attention_window;
    /* A table whose rows are read from disk as tokens need them: its bytes, which are neither in
     * resident_bytes nor in expert_bytes, and how many rows of how many bytes a token reads. */
    uint64_t row_table_bytes;
    uint64_t token_rows, row_bytes;
} moe_file_summary;

/* Reads the header. Fails when the disk does not answer for 30 s, as does moe_file_fingerprint().
 * Neither can be cancelled. */
MOE_API int moe_file_open(moe_file **out, const char *path, moe_error *err);
MOE_API void moe_file_close(moe_file **file);
MOE_API int moe_file_get_summary(const moe_file *file, moe_file_summary *summary);
/* Entry `index` of the metadata: its key, the name of its type ("u32", "string[4096]") and its
 * value as one line of text, long ones shortened to fit. */
MOE_API int moe_file_get_metadata(const moe_file *file, uint64_t index, const char **key,
                                  char *type, size_t type_size, char *value, size_t value_size);

/* What an entry of the metadata means when the engine runs the model. */
typedef enum moe_metadata_use {
    MOE_METADATA_OTHER,    /* its key does not begin with the architecture's name */
    MOE_METADATA_READ,     /* it sets what is computed */
    MOE_METADATA_HARMLESS, /* it, or its value here, has no effect */
    MOE_METADATA_REFUSED,  /* the engine does not support it: the file does not run */
    MOE_METADATA_UNKNOWN   /* this version does not know it; the text may differ */
} moe_metadata_use;

/* *why (may be NULL) gets the subject of the key, or "" if it is not known. In a file of an
 * unsupported architecture every entry is MOE_METADATA_OTHER. */
MOE_API int moe_file_get_metadata_use(const moe_file *file, uint64_t index, moe_metadata_use *use,
                                      const char **why);
MOE_API int moe_file_get_tensor(const moe_file *file, uint64_t index, moe_file_tensor *tensor);
MOE_API const char *moe_tensor_kind_name(moe_tensor_kind kind);
/* Describes what the engine computes for a token, as text: in one layer, or with UINT32_MAX in the
 * whole model (equal layers once). *text: moe_free(). MOE_ERR_UNSUPPORTED if the engine cannot run
 * the file. */
MOE_API int moe_file_get_program(const moe_file *file, uint32_t layer, char **text, moe_error *err);
/* Computes the fingerprint that moe_engine_info has, without an engine. Reads a sample of the
 * weights. */
MOE_API int moe_file_fingerprint(const moe_file *file, uint64_t *fingerprint, moe_error *err);

#ifdef __cplusplus
}
#endif
#endif
