/* SPDX-License-Identifier: MIT */
#include "runtime/engine/engine_copies.h"

#include <inttypes.h>
#include <stdio.h>

#include "offload/model_open.h"
#include "runtime/base/error.h"

static int refuse(const moe_gguf *model, const char *path, const char *reason, moe_error *err)
{
    return moe_fail(err, MOE_ERR_FORMAT,
                    "%s is no copy of %s: %s; copy the model's files again, or leave it out of "
                    "options.model_copies",
                    path, moe_gguf_file_at(model, 0)->path, reason);
}

int moe_copy_compare_files(const moe_gguf *model, const moe_gguf *copy, const char *path,
                           moe_error *err)
{
    size_t n = moe_gguf_n_files(model);
    char reason[128];
    if (moe_gguf_n_files(copy) != n) {
        snprintf(reason, sizeof reason, "it has %zu parts, and the model %zu",
                 moe_gguf_n_files(copy), n);
        return refuse(model, path, reason, err);
    }
    for (size_t i = 0; i < n; i++) {
        const moe_gguf_file *theirs = moe_gguf_file_at(copy, i);
        const moe_gguf_file *ours = moe_gguf_file_at(model, i);
        if (theirs->size != ours->size) {
            snprintf(reason, sizeof reason, "%" PRIu64 " bytes, not %" PRIu64, theirs->size,
                     ours->size);
            return refuse(model, theirs->path, reason, err);
        }
        if (moe_byte_identity_is_same(&theirs->source->opened, &ours->source->opened)) {
            return refuse(model, theirs->path, "it is the model's own file", err);
        }
    }
    return MOE_OK;
}

static int open_copy(moe_engine *engine, const moe_engine_options *o, const char *path,
                     moe_error *err)
{
    moe_gguf **copy = &engine->copies[engine->n_copies];
    moe_model_reader_options reading = engine->reading;
    moe_model_identity identity;
    MOE_TRY(moe_model_open(copy, path, &reading, err));
    moe_file_watch_init(&engine->copy_files[engine->n_copies++], *copy, o->log, o->user);
    reading.gguf = *copy;
    int status = moe_copy_compare_files(engine->gguf, *copy, path, err);
    if (status == MOE_OK) { /* the fingerprint covers overrides */
        status = moe_gguf_override(*copy, o->metadata_overrides, o->n_metadata_overrides, err);
    }
    status = status == MOE_OK ? moe_model_identify(&reading, &identity, err) : status;
    if (status == MOE_OK && identity.header != engine->identity.header) {
        status = refuse(engine->gguf, path, "their headers differ", err);
    } else if (status == MOE_OK && identity.fingerprint != engine->identity.fingerprint) {
        status = refuse(engine->gguf, path, "their weights differ", err);
    }
    return status;
}

int moe_engine_open_copies(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    if (o->n_model_copies > MOE_RANGE_COPIES) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "options.model_copies names %zu files; at most %u",
                        o->n_model_copies, MOE_RANGE_COPIES);
    }
    for (size_t i = 0; i < o->n_model_copies; i++) {
        const char *path = o->model_copies != NULL ? o->model_copies[i] : NULL;
        MOE_TRY(path != NULL ? open_copy(engine, o, path, err)
                             : moe_fail(err, MOE_ERR_ARGUMENT,
                                        "options.model_copies[%zu] is NULL; name a file", i));
    }
    return MOE_OK;
}

void moe_engine_close_copies(moe_engine *engine)
{
    for (uint32_t i = 0; i < engine->n_copies; i++) {
        moe_gguf_close(&engine->copies[i]);
    }
    engine->n_copies = 0;
}

int moe_engine_look_at_files(moe_engine *engine, bool now, moe_error *err)
{
    MOE_TRY(moe_file_watch_look(&engine->files, now, err));
    for (uint32_t i = 0; i < engine->n_copies; i++) {
        MOE_TRY(moe_file_watch_look(&engine->copy_files[i], now, err));
    }
    return MOE_OK;
}
