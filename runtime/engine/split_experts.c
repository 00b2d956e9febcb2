/* SPDX-License-Identifier: MIT */
/* Files for workers, with a share of the experts alone: moe_split_experts(). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/files.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/part_source.h"
#include "runtime/base/struct_size.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/engine/option_set.h"
#include "runtime/engine/worker_share.h"

typedef struct splitting {
    const moe_engine *engine;
    const moe_engine_options *options; /* for progress */
    const uint8_t *experts;            /* bits */
    moe_part_range *ranges;            /* of the file that is being written */
    uint32_t n, room;
    uint8_t *buffer;          /* [COPY_BYTES] */
    uint64_t n_done, n_bytes; /* copied; written */
} splitting;

#define COPY_BYTES ((size_t)4 << 20)
/* Opening reads this much of a file, or more of it if its header is longer. */
#define FIRST_BYTES (UINT64_C(1) << 20)

static int add(splitting *s, uint64_t from, uint64_t size, moe_error *err)
{
    if (s->n == s->room) {
        const uint32_t room = s->room * 2 + 64;
        moe_part_range *larger = moe_realloc_array(s->ranges, room, sizeof *larger);
        if (larger == NULL) {
            return moe_fail(err, MOE_ERR_MEMORY, "no memory to split a model");
        }
        s->ranges = larger;
        s->room = room;
    }
    s->ranges[s->n] = (moe_part_range){.from = from, .size = size};
    s->n += size > 0;
    return MOE_OK;
}

static int add_tensor(splitting *s, uint32_t file, const moe_tensor_ref *ref, moe_error *err)
{
    return ref->size > 0 && ref->file_index == file ? add(s, ref->offset, ref->size, err) : MOE_OK;
}

/* The header; opening may read up to twice its length. */
static int add_header(splitting *s, uint32_t file, moe_error *err)
{
    const moe_gguf *gguf = s->engine->gguf;
    const uint64_t size = moe_gguf_file_at(gguf, file)->size;
    uint64_t end = size;
    for (size_t i = 0; i < moe_gguf_n_tensors(gguf); i++) {
        const moe_gguf_tensor *t = moe_gguf_tensor_at(gguf, i);
        end = t->file_index == file && t->offset < end ? t->offset : end;
    }
    end = 2 * end > FIRST_BYTES ? 2 * end : FIRST_BYTES;
    return add(s, 0, end < size ? end : size, err);
}

/* The samples by which the fingerprint distinguishes models, and scales of tensors. */
static int add_identity(splitting *s, uint32_t file, moe_error *err)
{
    const moe_model_identity *identity = &s->engine->identity;
    const moe_tensor_map *map = &s->engine->map;
    for (uint32_t i = 0; i < identity->n_samples; i++) {
        const moe_gguf_tensor *t = moe_gguf_tensor_at(s->engine->gguf, identity->tensors[i]);
        const uint64_t size = t->size < MOE_IDENTITY_BYTES ? t->size : MOE_IDENTITY_BYTES;
        if (t->file_index == file) {
            MOE_TRY(add(s, t->offset, size, err));
            MOE_TRY(add(s, t->offset + t->size - size, size, err));
        }
    }
    for (uint32_t i = 0; i < map->n_scale_ranges; i++) {
        const moe_scale_range *scales = &map->scale_ranges[i];
        if (scales->file_index == file) {
            MOE_TRY(add(s, scales->offset, scales->n * sizeof(float), err));
        }
    }
    return MOE_OK;
}

static int add_experts(splitting *s, uint32_t file, moe_error *err)
{
    const moe_engine *engine = s->engine;
    for (uint32_t l = 0; l < engine->config.n_layer; l++) {
        const moe_layer_map *layer = &engine->map.layers[l];
        for (int t = MOE_LAYER_EXPERTS_GATE_BIAS; t <= MOE_LAYER_EXPERTS_DOWN_BIAS; t++) {
            MOE_TRY(add_tensor(s, file, &layer->tensors[t], err));
        }
        for (uint32_t e = 0; e < engine->config.n_expert; e++) {
            const size_t bit = (size_t)l * engine->config.n_expert + e;
            for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
                if ((s->experts[bit / 8] >> bit % 8 & 1) != 0) {
                    MOE_TRY(add_tensor(s, file, &layer->experts[e].parts[p], err));
                }
            }
        }
    }
    return MOE_OK;
}

static int copy_range(splitting *s, const moe_byte_source *source, const moe_part_range *range,
                      moe_atomic_file *to, moe_error *err)
{
    for (uint64_t done = 0; done < range->size;) {
        const uint64_t left = range->size - done;
        const int64_t got =
            source->ops->read(source, s->buffer, left < COPY_BYTES ? (size_t)left : COPY_BYTES,
                              range->from + done, 0);
        if (got == -EINTR) {
            continue;
        }
        if (got <= 0) {
            return moe_fail(err, MOE_ERR_IO, "%s: cannot read at offset %" PRIu64 ": %s",
                            source->name, range->from + done,
                            got < 0 ? strerror((int)-got) : "the file ends");
        }
        MOE_TRY(moe_atomic_file_write(to, s->buffer, (size_t)got, err));
        done += (uint64_t)got;
        s->n_done += (uint64_t)got;
        const moe_engine_options *o = s->options;
        const double all = (double)s->engine->map.expert_bytes;
        if (o->progress != NULL && !o->progress((double)s->n_done / all, o->user)) {
            return moe_fail(err, MOE_ERR_CANCELLED, "splitting was cancelled");
        }
    }
    return MOE_OK;
}

static int copy_ranges(splitting *s, uint32_t file, moe_atomic_file *to, moe_error *err)
{
    const moe_gguf_file *from = moe_gguf_file_at(s->engine->gguf, file);
    size_t n_head;
    s->n = moe_part_ranges_lay(s->ranges, s->n, from->size);
    uint8_t *head = moe_part_head_make(s->ranges, s->n, from->size, &n_head);
    int status = head != NULL ? moe_atomic_file_write(to, head, n_head, err)
                              : moe_fail(err, MOE_ERR_MEMORY, "no memory to split a model");
    free(head);
    s->n_bytes += n_head;
    for (uint32_t i = 0; i < s->n && status == MOE_OK; i++) {
        status = copy_range(s, from->source, &s->ranges[i], to, err);
        s->n_bytes += s->ranges[i].size;
    }
    return status;
}

static int write_file(splitting *s, uint32_t file, const char *path, moe_error *err)
{
    moe_atomic_file *to;
    s->n = 0;
    MOE_TRY(add_header(s, file, err));
    MOE_TRY(add_identity(s, file, err));
    MOE_TRY(add_experts(s, file, err));
    MOE_TRY(moe_atomic_file_open(&to, path, 0, err));
    const int status = copy_ranges(s, file, to, err);
    if (status != MOE_OK) {
        moe_atomic_file_abandon(&to);
        return status;
    }
    return moe_atomic_file_commit(&to, err);
}

/* Writes a file for each of the model's. */
static int write_files(splitting *s, const char *path, moe_error *err)
{
    const size_t n = moe_gguf_n_files(s->engine->gguf);
    char ending[64];
    const int size = snprintf(ending, sizeof ending, "-00001-of-%05zu.gguf", n);
    const size_t length = strlen(path);
    if (n == 1) {
        return write_file(s, 0, path, err);
    }
    if (length < (size_t)size || strcmp(path + length - size, ending) != 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "'%s' must end in %s, because the model has %zu files", path, ending, n);
    }
    char *name = moe_calloc(length + 64, 1);
    int status = name != NULL ? MOE_OK : moe_fail(err, MOE_ERR_MEMORY, "no memory for a name");
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        snprintf(name, length + 64, "%.*s-%05zu-of-%05zu.gguf", (int)(length - size), path, i + 1,
                 n);
        status = write_file(s, (uint32_t)i, name, err);
    }
    free(name);
    return status;
}

static int split(const moe_engine *engine, const moe_engine_options *o,
                 const moe_worker_options *worker, const char *path, uint64_t *n_bytes,
                 moe_error *err)
{
    uint8_t *experts =
        moe_calloc((size_t)engine->config.n_layer * engine->config.n_expert / 8 + 1, 1);
    splitting s = {
        .engine = engine, .options = o, .experts = experts, .buffer = moe_calloc(COPY_BYTES, 1)};
    int status = experts != NULL && s.buffer != NULL
                     ? moe_worker_experts(engine, worker, experts, err)
                     : moe_fail(err, MOE_ERR_MEMORY, "no memory to split a model");
    if (status == MOE_OK) {
        status = write_files(&s, path, err);
    }
    *n_bytes = s.n_bytes;
    free(experts);
    free(s.buffer);
    free(s.ranges);
    return status;
}

int moe_split_experts(const moe_engine_options *options, const moe_worker_options *worker,
                      const char *path, uint64_t *bytes, moe_error *err)
{
    moe_option_set set;
    moe_worker_options share;
    moe_engine *engine = NULL;
    uint64_t n_bytes = 0;
    if (path == NULL) {
        return moe_fail_null(err, "moe_split_experts", "path");
    }
    moe_worker_options_init(&share);
    MOE_TRY(moe_struct_take(&moe_kind_worker_options, &share, worker, err));
    MOE_TRY(moe_option_set_take(&set, options, err));
    int status = moe_engine_open_header(&engine, &set.options, err);
    if (status == MOE_OK) {
        status = split(engine, &set.options, &share, path, &n_bytes, err);
    }
    moe_engine_close(&engine);
    if (bytes != NULL) {
        *bytes = n_bytes;
    }
    return status;
}
