/* SPDX-License-Identifier: MIT */
/* Computes a model's fingerprint, which distinguishes models. */
#ifndef MOE_SIDECAR_FINGERPRINT_H
#define MOE_SIDECAR_FINGERPRINT_H

#include "offload/model_reader.h"

#define MOE_IDENTITY_SAMPLES 32u
#define MOE_IDENTITY_BYTES   4096u /* of a sample: the first and the last ones of a tensor */

typedef struct moe_model_identity {
    uint64_t fingerprint; /* of all below */
    uint64_t header;      /* metadata, tensor table and file sizes: everything except the weights */
    uint32_t n_samples;
    uint64_t samples[MOE_IDENTITY_SAMPLES]; /* of the first and last bytes of some tensors */
    uint32_t tensors[MOE_IDENTITY_SAMPLES]; /* which */
} moe_model_identity;

/* Computes the fingerprint and its parts. Reads at most 256 KiB of weights. */
int moe_model_identify(const moe_model_reader_options *reading, moe_model_identity *identity,
                       moe_error *err);
/* Computes only the fingerprint. */
int moe_model_fingerprint(const moe_model_reader_options *reading, uint64_t *fingerprint,
                          moe_error *err);

#endif
