/* SPDX-License-Identifier: MIT */
/* A second sidecar: a copy of every routed expert in fewer bits. The copies replace experts that
 * are not in memory, which is lossy (runtime/lossy/low_bit.h). A GGUF file:
 *
 *   moe-lowbit.version u32, .n_layer, .n_expert u32
 *   moe-lowbit.model.weights, .model.files u64   the moe_weights_identity that they were made from
 *   blk.L.ffn_gate_exps.weight, ffn_up_exps, ffn_down_exps   as in model files; a part that would
 *                    not get smaller is copied unchanged; parts that the model lacks are absent
 *   checksums        I64 [L][N][3]  XXH3 of each expert's gate, up and down bytes; 0: absent
 *   checksum         I64 [1]        XXH3 of `checksums`, seeded with the XXH3 of the identity */
#ifndef MOE_SIDECAR_LOW_BIT_FILE_H
#define MOE_SIDECAR_LOW_BIT_FILE_H

#include "runtime/host/team.h"
#include "runtime/sidecar/affinity.h"
#include "runtime/sidecar/checksum_book.h"
#include "runtime/sidecar/model_sidecar.h"

#define MOE_LOW_BIT_VERSION 2u

typedef struct moe_low_bit_file {
    moe_gguf *gguf;
    moe_tensor_map map; /* maps only experts; scales are the model's */
    moe_weights_identity made_from;
    moe_weight_sums sums; /* all are known, and every reading is compared */
} moe_low_bit_file;

/* Returns the path of the low-bit file beside a sidecar: NAME.moe-cal.gguf ->
 * NAME.moe-lowbit.gguf; NAME.moe-lowbit.gguf for any other name, too. Release it with free().
 * NULL: memory is short. */
char *moe_low_bit_path(const char *sidecar_path);

/* Writes the name of the tensor for a layer's part, such as "blk.3.ffn_up_exps.weight". */
#define MOE_LOW_BIT_NAME 48
void moe_low_bit_tensor_name(char name[MOE_LOW_BIT_NAME], uint32_t layer, int part);
uint64_t moe_low_bit_mix(const moe_weights_identity *made_from, const uint64_t *checksums,
                         size_t n);

/* Opens a file of low-bit copies. The file may be hostile: everything in it is checked, except
 * the experts' bytes, which have checksums. The model must outlive *out. */
int moe_low_bit_open(moe_low_bit_file **out, const char *path, const moe_sidecar_model *model,
                     moe_error *err);
/* Fails with MOE_ERR_MISMATCH if the copies were not made from the weights that the book
 * describes. */
int moe_low_bit_check(const moe_low_bit_file *file, moe_checksum_book *book, moe_error *err);
void moe_low_bit_close(moe_low_bit_file **file);

typedef struct moe_low_bit_job {
    const moe_sidecar_model *model;
    moe_weight_reader *weights;
    moe_team *team;
    moe_checksum_book *book;          /* has all checksums; the bytes read must match them */
    moe_dtype type;                   /* moe_can_quantize() */
    bool (*is_cancelled)(void *user); /* asked before each part of an expert */
    void *user;
} moe_low_bit_job;

/* Finds the tensor type with this name. Fails with MOE_ERR_ARGUMENT if copies cannot be made in
 * such a type. */
int moe_low_bit_type(const char *name, moe_dtype *type, moe_error *err);
/* Writes the file of copies atomically: afterwards it is the old or the new one. */
int moe_low_bit_write(const moe_low_bit_job *job, const char *path, moe_error *err);

#endif
