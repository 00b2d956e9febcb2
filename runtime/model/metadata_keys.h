/* SPDX-License-Identifier: MIT */
/* Every known metadata key "{architecture}.{suffix}", and what the key means to each family: it
 * sets a dial, has no effect, or is refused because it would change the result. Keys that are not
 * in the table are logged when the model is opened. */
#ifndef MOE_MODEL_METADATA_KEYS_H
#define MOE_MODEL_METADATA_KEYS_H

#include "runtime/model/config_reader.h"

typedef enum moe_key_use {
    MOE_KEY_USE_NOT_OURS, /* the key does not begin with the architecture's name */
    MOE_KEY_USE_READ,     /* the key sets a dial of moe_model_config */
    MOE_KEY_USE_HARMLESS, /* the key, or its value in this file, has no effect */
    MOE_KEY_USE_REFUSED,  /* the engine does not support the key's value */
    MOE_KEY_USE_UNKNOWN
} moe_key_use;

/* What a key of a file means to a family. *why: out, the reason, a constant string; why may be
 * NULL. */
moe_key_use moe_metadata_key_use(const moe_family *family, const moe_gguf *gguf,
                                 const moe_gguf_kv *kv, const char **why);

/* Fails, naming key and value, if the file has a key that is refused. */
void moe_metadata_refuse_keys(moe_config_reader *r);

/* The suffix of row i of the table, or NULL behind the last row. "ssm.*" stands for all suffixes
 * that begin with "ssm.". *why: out, the row's reason; why may be NULL. */
const char *moe_metadata_key_at(size_t i, const char **why);
/* Whether models of the family read row i's keys. */
bool moe_metadata_key_is_read(size_t i, const moe_family *family);
/* Whether some value of this key is refused for the family. */
bool moe_metadata_key_can_be_refused(const moe_family *family, const moe_gguf_kv *kv);

#endif
