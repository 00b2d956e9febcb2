/* SPDX-License-Identifier: MIT */
/* Reading of the metadata keys that set a model's dials, and their limits. */
#ifndef MOE_MODEL_CONFIG_READER_H
#define MOE_MODEL_CONFIG_READER_H

#include "runtime/model/family.h"
#include "runtime/model/model_config.h"

/* Far above any model's dimensions, and small enough that products of two fit in 64 bits. */
#define MOE_CONFIG_MAX_DIMENSION (1u << 24)
#define MOE_CONFIG_MAX_HEADS     (1u << 14)
#define MOE_CONFIG_MAX_CONTEXT   (1u << 30)

/* Reads keys "{architecture}.{suffix}". After the first failure it reads nothing more, so a series
 * of reads needs only one check at its end. */
typedef struct moe_config_reader {
    const moe_gguf *gguf;
    const moe_family *family;
    moe_error *err;
    int status;
    char key[128]; /* the last key looked for, in full */
} moe_config_reader;

/* Finds the key. NULL when there is none, and after a failure. */
const moe_gguf_kv *moe_config_find(moe_config_reader *r, const char *suffix);
bool moe_config_has(moe_config_reader *r, const char *suffix);

/* Returns false and fails if the key is missing. */
bool moe_config_require(moe_config_reader *r, const char *suffix);

/* Reads the value, or returns `absent`. Accepts an array with an element for each layer if all
 * elements are equal. */
uint32_t moe_config_u32(moe_config_reader *r, const char *suffix, uint32_t absent);
/* The same for keys whose array may have different elements: moe_config_layer_*() returns the
 * layer's element, moe_config_most_u32() the greatest one. */
uint32_t moe_config_layer_u32(moe_config_reader *r, const char *suffix, uint32_t layer,
                              uint32_t absent);
float moe_config_layer_f32(moe_config_reader *r, const char *suffix, uint32_t layer, float absent);
uint32_t moe_config_most_u32(moe_config_reader *r, const char *suffix, uint32_t absent);
uint32_t moe_config_need_u32(moe_config_reader *r, const char *suffix);
/* Reads a number that must be there and must lie between least and most. */
uint32_t moe_config_size(moe_config_reader *r, const char *suffix, uint32_t least, uint32_t most);
float moe_config_f32(moe_config_reader *r, const char *suffix, float absent);
bool moe_config_bool(moe_config_reader *r, const char *suffix, bool absent);

/* Reads which layers have experts, their number and width, the shared experts, and the gate. */
void moe_config_read_experts(moe_config_reader *r, moe_model_config *config);
/* Whether the file has an indexer's matrix of keys for a layer. */
bool moe_config_has_indexer(const moe_config_reader *r, const moe_model_config *config,
                            uint32_t layer);
void moe_config_read_indexer(moe_config_reader *r, moe_model_config *config);
/* Reads and checks the sizes of recurrent layers; zeros in families that have none. */
void moe_config_read_recurrence(moe_config_reader *r, moe_model_config *config);
/* Reads what describes a table of n-grams; zeros in models that have none. */
void moe_config_read_ngrams(moe_config_reader *r, moe_model_config *config);
/* Sets the kinds of the layers of a checked config. */
void moe_config_read_layers(moe_config_reader *r, moe_model_config *config);

/* Checks ranges and relations of a config that was read. */
int moe_config_check(const moe_model_config *config, moe_error *err);

#endif
