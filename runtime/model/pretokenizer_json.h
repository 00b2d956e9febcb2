/* SPDX-License-Identifier: MIT */
/* Reads from a file's tokenizer.json ("tokenizer.huggingface.json") how words are cut, for files
 * whose pre-tokenizer has a name that is not known. */
#ifndef MOE_MODEL_PRETOKENIZER_JSON_H
#define MOE_MODEL_PRETOKENIZER_JSON_H

#include "runtime/model/pretokenizers.h"

typedef struct moe_pretokenizer_json {
    moe_pretokenizer row; /* its patterns point into texts */
    char texts[MOE_PRETOKENIZER_MAX_PATTERNS][4096];
} moe_pretokenizer_json;

/* Fails with MOE_ERR_UNSUPPORTED, naming the step, if patterns cannot do what a step of the JSON
 * does. */
int moe_pretokenizer_from_json(moe_pretokenizer_json *out, moe_string_view json, moe_error *err);

#endif
