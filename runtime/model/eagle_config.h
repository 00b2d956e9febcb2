/* SPDX-License-Identifier: MIT */
/* EAGLE-3 heads: one dense layer, in a file of its own (architecture "eagle3"), that drafts from
 * the hidden states of three of the model's layers. The file is laid out as llama.cpp's converter
 * does:
 *
 *   eagle3.target_layers         the layers whose inputs the head gets; the model's number of
 *                                layers stands for the output of the last layer
 *   eagle3.target_hidden_size    the model's width
 *   eagle3.norm_before_residual  the residual is the normed state; default false
 *   eagle3.norm_before_fc        the features are normed before fc; default false
 *   d2t                          I64 [draft vocabulary]: the model's id of each draft token */
#ifndef MOE_MODEL_EAGLE_CONFIG_H
#define MOE_MODEL_EAGLE_CONFIG_H

#include "runtime/model/model_config.h"

#define MOE_EAGLE_ARCHITECTURE "eagle3"
#define MOE_EAGLE_TAPS         3u
#define MOE_EAGLE_TOKENS       "d2t"

typedef struct moe_eagle_config {
    moe_model_config config; /* describes a model of this layer alone; n_vocab: the head's own */
    uint32_t target_layers[MOE_EAGLE_TAPS];
    uint32_t n_embd_target;
    uint32_t n_vocab_target;
    bool norm_before_residual;
    bool norm_before_fc;
    bool needs_output;    /* the model's output matrix does not fit, so the file must have one */
    bool needs_embedding; /* the model's embedding does not fit, so the file must have one */
    bool has_tokens;      /* the file has d2t, int64_t [config.n_vocab], at: */
    uint32_t tokens_file;
    uint64_t tokens_offset;
} moe_eagle_config;

/* Whether the file's architecture is EAGLE-3's. */
bool moe_gguf_is_eagle(const moe_gguf *gguf);
/* Reads the config of the head in a file, and checks that the head belongs to a model with the
 * config trunk. path: for messages. */
int moe_eagle_config_read(moe_eagle_config *eagle, const moe_model_config *trunk,
                          const moe_gguf *gguf, const char *path, moe_error *err);

#endif
