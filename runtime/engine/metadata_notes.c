/* SPDX-License-Identifier: MIT */
#include "runtime/engine/metadata_notes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/engine/metadata_text.h"
#include "runtime/families/families.h"
#include "runtime/model/gguf_internal.h"
#include "runtime/model/metadata_keys.h"
#include "runtime/model/tensor_claims.h"

#define MAX_NAMED  4 /* unknown keys that the note names; the others are counted */
#define VALUE_SIZE 48
#define NOTE_SIZE  (MAX_NAMED * (MOE_GGUF_SHOWN + VALUE_SIZE + 8) + 128)

static void note_unknown_keys(const moe_engine *engine, const moe_engine_options *options)
{
    const moe_family *family = moe_family_find(engine->config.architecture);
    char line[NOTE_SIZE];
    int used = snprintf(line, sizeof line, "the file says ");
    uint32_t n = 0;
    for (size_t i = 0; i < moe_gguf_n_kvs(engine->gguf); i++) {
        const moe_gguf_kv *kv = moe_gguf_kv_at(engine->gguf, i);
        if (moe_metadata_key_use(family, engine->gguf, kv, NULL) != MOE_KEY_USE_UNKNOWN ||
            ++n > MAX_NAMED) {
            continue;
        }
        char key[MOE_GGUF_SHOWN];
        char value[VALUE_SIZE];
        moe_metadata_value_text(kv, value, sizeof value);
        used += snprintf(line + used, sizeof line - (size_t)used, "%s%s = %s", n > 1 ? ", " : "",
                         moe_gguf_show(kv->key, key), value);
    }
    if (n == 0) {
        return;
    }
    if (n > MAX_NAMED) {
        used += snprintf(line + used, sizeof line - (size_t)used, " and %" PRIu32 " more",
                         n - MAX_NAMED);
    }
    snprintf(line + used, sizeof line - (size_t)used,
             ", which this version does not know; the text may differ");
    options->log(line, options->user);
}

void moe_metadata_notes(const moe_engine *engine, const moe_engine_options *options)
{
    const moe_model_config *config = &engine->config;
    char line[256];
    if (options->log == NULL) {
        return;
    }
    note_unknown_keys(engine, options);
    if (config->gate_assumed) {
        snprintf(line, sizeof line,
                 "the file does not say %s.expert_gating_func; it is taken for a DeepSeek-V3, "
                 "whose gate is a sigmoid%s",
                 config->architecture, config->gate_renormalise ? " with normalised weights" : "");
        options->log(line, options->user);
    }
    if (engine->context < engine->plan.context_most) {
        snprintf(line, sizeof line,
                 "the context is %" PRIu32 " tokens, not the model's %" PRIu64
                 ", so that experts keep their part of the memory budget",
                 engine->context, engine->plan.context_most);
        options->log(line, options->user);
    }
}

void moe_note_missing_index(moe_engine *engine, uint64_t n_tokens)
{
    const uint32_t n = engine->config.index_missing;
    char line[320];
    if (n == 0 || n_tokens <= n || engine->noted_missing_index) {
        return;
    }
    engine->noted_missing_index = true;
    if (engine->log != NULL) {
        snprintf(line, sizeof line,
                 "the text is longer than %" PRIu32
                 " tokens: %s would now attend to so many that it chooses, but this file lacks the "
                 "tensors for the choice (blk.N.%s), so that it attends to all and may repeat "
                 "itself; a newer file of the model has them",
                 n, engine->config.family->name,
                 moe_tensor_name(&engine->config, MOE_LAYER_INDEX_K));
        engine->log(line, engine->user);
    }
}
