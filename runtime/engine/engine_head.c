/* SPDX-License-Identifier: MIT */
/* Opens an engine's drafting layer, from the model's files or from a separate file. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/model_open.h"
#include "offload/tensor_scales.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/draft/draft_head.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/model/gguf_internal.h"

/* Reads the number under the key ARCHITECTURE.SUFFIX. Leaves `value` unchanged if there is no
 * such key. */
static int read_key(const moe_gguf *gguf, const char *architecture, const char *suffix,
                    uint32_t *value, moe_error *err)
{
    char key[96];
    snprintf(key, sizeof key, "%.31s.%s", architecture, suffix);
    return moe_gguf_get_u32(gguf, key, value, err);
}

/* Checks that a separate file fits the model: it has the same architecture and width, and
 * contains the layer behind the model's last one. */
static int check_own_file(const moe_engine *engine, const char *path, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    const moe_gguf *gguf = engine->head_gguf;
    moe_string_view architecture = {"", 0};
    uint32_t n_predict = 0, n_block = 0, n_embd = c->n_embd, n_vocab = c->n_vocab;
    MOE_TRY(moe_gguf_get_string(gguf, "general.architecture", &architecture, err));
    if (architecture.size != strlen(c->architecture) ||
        memcmp(architecture.data, c->architecture, architecture.size) != 0) {
        char shown[MOE_GGUF_SHOWN];
        return moe_fail(err, MOE_ERR_MISMATCH,
                        "%s: its drafting layer is of architecture '%s', the model of '%s'", path,
                        moe_gguf_show(architecture, shown), c->architecture);
    }
    const struct {
        const char *suffix;
        uint32_t *value;
    } keys[] = {{"nextn_predict_layers", &n_predict},
                {"block_count", &n_block},
                {"embedding_length", &n_embd},
                {"vocab_size", &n_vocab}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        MOE_TRY(read_key(gguf, c->architecture, keys[i].suffix, keys[i].value, err));
    }
    if (n_predict == 0 || n_block < n_predict || n_block - n_predict != c->n_layer ||
        n_embd != c->n_embd || n_vocab != c->n_vocab) {
        return moe_fail(err, MOE_ERR_MISMATCH,
                        "%s: it has %" PRIu32 " drafting layers (nextn_predict_layers) behind "
                        "%" PRIu32 " others, width %" PRIu32 ", %" PRIu32
                        " tokens; the model needs "
                        "one behind %" PRIu32 ", width %" PRIu32 ", %" PRIu32 " tokens",
                        path, n_predict, n_block > n_predict ? n_block - n_predict : 0, n_embd,
                        n_vocab, c->n_layer, c->n_embd, c->n_vocab);
    }
    return MOE_OK;
}

int moe_engine_open_head(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    const char *path = o->draft_model;
    bool wanted =
        o->speculate == MOE_SPECULATE_MTP || (o->speculate == MOE_SPECULATE_AUTO && path != NULL);
    if (!wanted) {
        return MOE_OK;
    }
    uint32_t n_predict = 0;
    if (path != NULL) {
        MOE_TRY(moe_model_open(&engine->head_gguf, path, &engine->reading, err));
        if (!moe_gguf_is_eagle(engine->head_gguf)) {
            MOE_TRY(check_own_file(engine, path, err));
        }
    } else {
        MOE_TRY(read_key(engine->gguf, engine->config.architecture, "nextn_predict_layers",
                         &n_predict, err));
    }
    if (path == NULL && n_predict == 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.speculate is MOE_SPECULATE_MTP, but %s brings no drafting layer "
                        "(key '%s.nextn_predict_layers'); name a file with one in "
                        "options.draft_model, or draft in another way",
                        engine->model_path, engine->config.architecture);
    }
    const moe_gguf *gguf = path != NULL ? engine->head_gguf : engine->gguf;
    MOE_TRY(moe_draft_head_open(&engine->draft_head, &engine->config, gguf,
                                path != NULL ? path : engine->model_path, err));
    moe_model_reader_options reading = engine->reading;
    reading.gguf = gguf;
    MOE_TRY(moe_tensor_scales_read(&engine->draft_head->map, &reading, err));
    return moe_draft_head_layout(engine->draft_head, engine->device, (moe_kv_type)o->kv_cache, err);
}

/* Opens a book with a checksum for each expert of the drafting layer. The model's own book has
 * only checksums of the whole tensors. */
static int open_book(moe_engine *engine, const moe_model_reader_options *reading, moe_error *err)
{
    static const char suffix[] = "-draft";
    const char *model = engine->book.path;
    char *path = model != NULL ? moe_calloc(strlen(model) + sizeof suffix, 1) : NULL;
    if (model != NULL && path == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the path of checksums");
    }
    if (model != NULL) {
        memcpy(path, model, strlen(model));
        memcpy(path + strlen(model), suffix, sizeof suffix);
    }
    const moe_checksum_book_options options = {.map = &engine->draft_head->map,
                                               .reading = reading,
                                               .named = path,
                                               .log = engine->log,
                                               .user = engine->user};
    int status = moe_checksum_book_open(&engine->head_book, &options, err);
    free(path);
    return status;
}

int moe_engine_load_head(moe_engine *engine, moe_error *err)
{
    if (engine->draft_head == NULL) {
        return MOE_OK;
    }
    bool own = engine->head_gguf != NULL;
    moe_model_reader_options reading = engine->reading;
    reading.gguf = engine->draft_head->gguf;
    MOE_TRY(open_book(engine, &reading, err));
    return moe_draft_head_load(engine->draft_head, &engine->runner, &reading,
                               &engine->head_book.sums,
                               own ? &engine->head_book.sums : &engine->book.sums, err);
}
