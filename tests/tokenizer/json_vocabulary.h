/* SPDX-License-Identifier: MIT */
/* A published tokenizer.json, by way of GGUF metadata in memory. */
#ifndef MOE_TESTS_JSON_VOCABULARY_H
#define MOE_TESTS_JSON_VOCABULARY_H

#include "runtime/model/tokenizer.h"

/* pre: tokenizer.ggml.pre; bos, eos: texts of these tokens, or NULL. Ends the process on failure.
 */
moe_tokenizer *json_vocabulary_open(const char *path, const char *pre, const char *bos,
                                    const char *eos);

#endif
