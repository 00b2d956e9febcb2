/* SPDX-License-Identifier: MIT */
/* An EAGLE-3 head: a drafting layer (draft_head.h) from a file of its own, that reads the model at
 * three depths.
 *
 *   stream before layers a, b, c of p -> (norm) -> fc = state of p
 *
 *   embedding of token p + 1 -> norm -+
 *                                     +- [both] -> attention -> + state -> network = state of p + 1
 *   state of p ---------------> norm -+                              |
 *                                                           norm -> head -> tokens of its own
 *
 * The next step goes on from the state of p + 1 before the norm. The head may know only some of the
 * model's tokens: the others then have no probability. */
#ifndef MOE_DRAFT_DRAFT_EAGLE_H
#define MOE_DRAFT_DRAFT_EAGLE_H

#include "offload/model_reader.h"
#include "runtime/model/tensor_map.h"
#include "runtime/pass/runner.h"

#define MOE_HEAD_ROWS 64u /* rows of a drafting layer's pass, at most */

typedef struct moe_draft_eagle {
    moe_eagle_config config;
    moe_runner *runner;      /* of the drafting layer that it belongs to, once it is loaded */
    float *rope_frequencies; /* [n_rot / 2] */
    int32_t *tokens;         /* [n_vocab]: the model's token for each of the head's; NULL: the
                              * same */
    float *logits;           /* [n_vocab_target]: of the model's tokens; NULL if tokens is */
    float *states;           /* [MOE_LOGIT_ROWS][n_embd]: of the last pass's logit rows */
    moe_layer_taps taps;     /* the stream before layers a, b, c, unless it is the model's end */
    float *tapped;           /* device: their memory */
    size_t tapped_bytes;
} moe_draft_eagle;

int moe_draft_eagle_open(moe_draft_eagle **out, const moe_model_config *trunk, const moe_gguf *gguf,
                         const char *path, moe_error *err);
/* Releases the head. device: NULL if its weights were never loaded. */
void moe_draft_eagle_close(moe_draft_eagle **eagle, moe_device *device);
/* Returns how many floats the head reads for each row: the residual streams of three layers. */
size_t moe_draft_eagle_features(const moe_draft_eagle *eagle);
/* Returns the bytes that the head takes in addition to weights and buffers of passes, if passes
 * of the model have at most max_rows rows. */
uint64_t moe_draft_eagle_bytes(const moe_draft_eagle *eagle, uint32_t max_rows);
/* Reads the table of the head's tokens, and makes the model's runner (trunk) keep the streams
 * that the head reads. Call it after loading the weights. */
int moe_draft_eagle_load(moe_draft_eagle *eagle, moe_runner *runner, moe_runner *trunk,
                         const moe_model_reader_options *reading, moe_error *err);

/* Computes the states [n][n_embd] for n rows of the model's last pass. */
int moe_draft_eagle_fetch(moe_draft_eagle *eagle, moe_runner *trunk, const uint32_t *rows,
                          uint32_t n, float *states, moe_error *err);
/* Stores the head's own states for the n rows with logits of its last pass. */
int moe_draft_eagle_keep(moe_draft_eagle *eagle, const uint32_t *rows, uint32_t n, moe_error *err);
/* Turns the logits of the head's tokens into logits of all tokens of the model; tokens that the
 * head does not know get minus infinity. The result is valid until the next call. */
const float *moe_draft_eagle_spread(const moe_draft_eagle *eagle, const float *logits);
/* Returns the model's token that corresponds to one of the head's tokens. */
static inline uint32_t moe_draft_eagle_token(const moe_draft_eagle *eagle, uint32_t token)
{
    return eagle->tokens != NULL ? (uint32_t)eagle->tokens[token] : token;
}

#endif
