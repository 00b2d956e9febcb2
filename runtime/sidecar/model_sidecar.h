/* SPDX-License-Identifier: MIT */
/* Finds and reads the sidecar of an opened model: the file beside it with the results of a
 * calibration, and what engines have learned since. */
#ifndef MOE_SIDECAR_MODEL_SIDECAR_H
#define MOE_SIDECAR_MODEL_SIDECAR_H

#include "offload/model_reader.h"
#include "runtime/model/tensor_map.h"
#include "runtime/sidecar/calibration.h"

/* The model that a sidecar belongs to. All of these pointers are to data of the caller. */
typedef struct moe_sidecar_model {
    const moe_gguf *gguf;
    const moe_tensor_map *map;
    const moe_model_config *config;
    const moe_model_identity *identity;
    const moe_model_reader_options *reading; /* how files are read outside of passes */
    struct moe_checksum_book *book; /* checksums of the weights; NULL: the book is not open yet */
} moe_sidecar_model;

typedef struct moe_sidecar {
    char *path;                   /* the sidecar is read from this path, and learning writes to
                                   * it */
    moe_calibration *calibration; /* NULL: there is none */
    float *hotness;               /* [n_layer][n_expert]; NULL: there is none */
} moe_sidecar;

/* The shape that every sidecar of the model must have. */
moe_calibration_shape moe_sidecar_shape(const moe_sidecar_model *model);

/* named: the sidecar's path; "none": none is read; NULL: MODEL.moe-cal.gguf, if it exists and
 * belongs to the model; otherwise no sidecar is used, and `log` (may be NULL) says why. Close the
 * sidecar also after an error. */
int moe_sidecar_open(moe_sidecar *sidecar, const moe_sidecar_model *model, const char *named,
                     moe_log_fn log, void *user, moe_error *err);
void moe_sidecar_close(moe_sidecar *sidecar);

#endif
