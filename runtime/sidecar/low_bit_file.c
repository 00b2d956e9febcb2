/* SPDX-License-Identifier: MIT */
/* Opens a file of low-bit copies. */
#include "runtime/sidecar/low_bit_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "offload/model_open.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/model/gguf.h"
#include "runtime/sidecar/calibration_tables.h"

char *moe_low_bit_path(const char *sidecar_path)
{
    static const char from[] = ".moe-cal.gguf", suffix[] = ".moe-lowbit.gguf";
    size_t size = strlen(sidecar_path);
    size_t tail = sizeof from - 1;
    size_t stem = size > tail && strcmp(sidecar_path + size - tail, from) == 0 ? size - tail : size;
    char *path = moe_calloc(stem + sizeof suffix, 1);
    if (path != NULL) {
        memcpy(path, sidecar_path, stem);
        memcpy(path + stem, suffix, sizeof suffix);
    }
    return path;
}

void moe_low_bit_tensor_name(char name[MOE_LOW_BIT_NAME], uint32_t layer, int part)
{
    static const char *const parts[MOE_EXPERT_PARTS] = {"gate", "up", "down"};
    snprintf(name, MOE_LOW_BIT_NAME, "blk.%u.ffn_%s_exps.weight", layer, parts[part]);
}

uint64_t moe_low_bit_mix(const moe_weights_identity *made_from, const uint64_t *checksums, size_t n)
{
    return XXH3_64bits_withSeed(checksums, n * sizeof *checksums,
                                XXH3_64bits(made_from, sizeof *made_from));
}

typedef struct low_bit_reader {
    const moe_sidecar_model *model;
    const char *path;
    moe_low_bit_file *file;
    moe_error *err;
} low_bit_reader;

static int get_number(const low_bit_reader *r, const char *key, uint64_t *value)
{
    const moe_gguf_kv *kv = moe_gguf_find(r->file->gguf, key);
    if (kv == NULL || (kv->type != MOE_GGUF_U32 && kv->type != MOE_GGUF_U64)) {
        return moe_fail(r->err, MOE_ERR_FORMAT,
                        "%s: %s is missing or no number; it holds no copies of experts, or is "
                        "damaged; run moe-offload calibrate with options.low_bit_type",
                        r->path, key);
    }
    *value = kv->value.u64;
    return MOE_OK;
}

static int read_header(const low_bit_reader *r)
{
    const moe_model_config *c = r->model->config;
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {{"moe-lowbit.version", MOE_LOW_BIT_VERSION},
                   {"moe-lowbit.n_layer", c->n_layer},
                   {"moe-lowbit.n_expert", c->n_expert}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        uint64_t value = 0;
        MOE_TRY(get_number(r, numbers[i].key, &value));
        if (value != numbers[i].value) {
            return moe_fail(r->err, MOE_ERR_FORMAT,
                            "%s: %s is %llu, not %llu; run moe-offload calibrate with "
                            "options.low_bit_type",
                            r->path, numbers[i].key, (unsigned long long)value,
                            (unsigned long long)numbers[i].value);
        }
    }
    MOE_TRY(get_number(r, "moe-lowbit.model.weights", &r->file->made_from.whole));
    return get_number(r, "moe-lowbit.model.files", &r->file->made_from.files);
}

int moe_low_bit_check(const moe_low_bit_file *file, moe_checksum_book *book, moe_error *err)
{
    moe_weights_identity now;
    moe_checksum_book_identify(book, &now);
    return moe_weights_identity_matches(&now, &file->made_from)
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MISMATCH,
                          "%s was made from other weights, or nothing tells that they are the "
                          "same: %s; or run moe-offload calibrate with options.low_bit_type",
                          moe_gguf_file_at(file->gguf, 0)->path,
                          now.whole != 0 ? "their checksums differ"
                                         : "not all checksums are known of this model "
                                           "(moe-offload verify makes them)");
}

static int find_tensor(const low_bit_reader *r, const char *name, const uint64_t dims[3],
                       const moe_gguf_tensor **tensor)
{
    const moe_gguf_tensor *t = moe_gguf_find_tensor(r->file->gguf, name);
    if (t == NULL) {
        return moe_fail(r->err, MOE_ERR_FORMAT, "%s: tensor %s is missing", r->path, name);
    }
    if (t->dims[0] != dims[0] || t->dims[1] != dims[1] || t->dims[2] != dims[2] ||
        t->dims[3] != 1) {
        return moe_fail(r->err, MOE_ERR_FORMAT,
                        "%s: tensor %s is not of the shape that the model calls for", r->path,
                        name);
    }
    const moe_gguf_file *file = moe_gguf_file_at(r->file->gguf, t->file_index);
    if (t->offset > file->size || t->size > file->size - t->offset) {
        return moe_fail(r->err, MOE_ERR_FORMAT, "%s: tensor %s ends past the file; it is truncated",
                        r->path, name);
    }
    *tensor = t;
    return MOE_OK;
}

/* Maps one part of a layer's experts. */
static int map_part(const low_bit_reader *r, uint32_t layer, int part)
{
    const moe_expert_ref *own = r->model->map->layers[layer].experts;
    moe_expert_ref *copies = r->file->map.layers[layer].experts;
    const moe_tensor_ref *shape = &own[0].parts[part];
    uint32_t n = r->file->map.n_expert;
    char name[MOE_LOW_BIT_NAME];
    const moe_gguf_tensor *t = NULL;
    if (shape->size == 0) { /* there is no gate matrix: points to the up part */
        for (uint32_t e = 0; e < n; e++) {
            copies[e].parts[part] = copies[e].parts[MOE_EXPERT_UP];
            copies[e].parts[part].size = 0;
        }
        return MOE_OK;
    }
    moe_low_bit_tensor_name(name, layer, part);
    MOE_TRY(find_tensor(r, name, (const uint64_t[]){shape->n_in, shape->n_out, n}, &t));
    const moe_dtype_info *info = moe_dtype_info_of(t->type);
    if (info == NULL || shape->n_in % info->block_elems != 0) {
        return moe_fail(r->err, MOE_ERR_FORMAT, "%s: tensor %s is of type %s, which cannot be used",
                        r->path, name, moe_dtype_name(t->type));
    }
    uint64_t bytes = moe_dtype_row_bytes((moe_dtype)t->type, shape->n_in) * shape->n_out;
    if (t->size != bytes * n) {
        return moe_fail(r->err, MOE_ERR_FORMAT, "%s: tensor %s has %llu bytes, not %llu", r->path,
                        name, (unsigned long long)t->size, (unsigned long long)(bytes * n));
    }
    for (uint32_t e = 0; e < n; e++) {
        copies[e].parts[part] = own[e].parts[part];
        copies[e].parts[part].type = (moe_dtype)t->type;
        copies[e].parts[part].file_index = t->file_index;
        copies[e].parts[part].offset = t->offset + e * bytes;
        copies[e].parts[part].size = bytes;
    }
    r->file->map.expert_bytes += t->size;
    return MOE_OK;
}

static int map_layer(const low_bit_reader *r, uint32_t layer)
{
    static const int order[MOE_EXPERT_PARTS] = {MOE_EXPERT_UP, MOE_EXPERT_GATE, MOE_EXPERT_DOWN};
    moe_tensor_map *map = &r->file->map;
    if (r->model->map->layers[layer].experts == NULL) {
        return MOE_OK;
    }
    map->layers[layer].experts = moe_calloc(map->n_expert, sizeof *map->layers[layer].experts);
    if (map->layers[layer].experts == NULL) {
        return moe_fail(r->err, MOE_ERR_MEMORY, "no memory to map copies of experts");
    }
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        MOE_TRY(map_part(r, layer, order[p]));
    }
    return MOE_OK;
}

static int read_tensor(const low_bit_reader *r, moe_model_reader *reader, const char *name,
                       const uint64_t dims[3], uint64_t *to)
{
    const moe_gguf_tensor *t = NULL;
    int status = find_tensor(r, name, dims, &t);
    uint64_t bytes = dims[0] * dims[1] * dims[2] * sizeof *to;
    if (status == MOE_OK && t->type != MOE_GGUF_TYPE_I64) {
        status = moe_fail(r->err, MOE_ERR_FORMAT, "%s: tensor %s is of type %u, not %u", r->path,
                          name, t->type, MOE_GGUF_TYPE_I64);
    }
    /* The GGUF reader does not know the sizes of tensors of these types. */
    if (status == MOE_OK &&
        bytes > moe_gguf_file_at(r->file->gguf, t->file_index)->size - t->offset) {
        status = moe_fail(r->err, MOE_ERR_FORMAT,
                          "%s: tensor %s ends past the file; it is truncated", r->path, name);
    }
    moe_model_range range = {status == MOE_OK ? t->file_index : 0, status == MOE_OK ? t->offset : 0,
                             bytes};
    return status != MOE_OK ? status : moe_model_reader_read(reader, &range, to, r->err);
}

static int read_checksums(const low_bit_reader *r, moe_model_reader *reader)
{
    moe_low_bit_file *file = r->file;
    const uint64_t table[] = {MOE_EXPERT_PARTS, file->map.n_expert, file->map.n_layer};
    const uint64_t one[] = {1, 1, 1};
    size_t n = (size_t)(table[0] * table[1] * table[2]);
    uint64_t checksum = 0;
    uint64_t *checksums = moe_calloc(n, sizeof *checksums);
    int status = checksums != NULL ? moe_weight_sums_init(&file->sums, &file->map, 0, r->err)
                                   : moe_fail(r->err, MOE_ERR_MEMORY, "no memory for checksums");
    if (status == MOE_OK) {
        status = read_tensor(r, reader, "checksums", table, checksums);
    }
    if (status == MOE_OK) {
        status = read_tensor(r, reader, "checksum", one, &checksum);
    }
    if (status == MOE_OK && checksum != moe_low_bit_mix(&file->made_from, checksums, n)) {
        status = moe_fail(r->err, MOE_ERR_FORMAT,
                          "%s is damaged: its table of checksums is not what was written; run "
                          "moe-offload calibrate with options.low_bit_type",
                          r->path);
    }
    file->sums.each_time = true;
    file->sums.remedy = "run moe-offload calibrate with options.low_bit_type";
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        moe_weight_sums_give(&file->sums, i, checksums[i]);
    }
    free(checksums);
    return status;
}

static int load(const low_bit_reader *r)
{
    moe_tensor_map *map = &r->file->map;
    map->n_layer = r->model->map->n_layer;
    map->n_expert = r->model->map->n_expert;
    map->scales = r->model->map->scales;
    map->n_scales = r->model->map->n_scales;
    map->layers = moe_calloc(map->n_layer, sizeof *map->layers);
    int status = map->layers != NULL
                     ? read_header(r)
                     : moe_fail(r->err, MOE_ERR_MEMORY, "no memory to map copies of experts");
    for (uint32_t l = 0; l < map->n_layer && status == MOE_OK; l++) {
        status = map_layer(r, l);
    }
    moe_model_reader *reader = NULL;
    moe_model_reader_options options = {.gguf = r->file->gguf,
                                        .buffered = true,
                                        .io_timeout_ns = r->model->reading->io_timeout_ns,
                                        .is_cancelled = r->model->reading->is_cancelled,
                                        .cancel_user = r->model->reading->cancel_user};
    if (status == MOE_OK) {
        status = moe_model_reader_open(&reader, &options, r->err);
    }
    if (status == MOE_OK) {
        status = read_checksums(r, reader);
    }
    moe_model_reader_close(&reader);
    return status;
}

int moe_low_bit_open(moe_low_bit_file **out, const char *path, const moe_sidecar_model *model,
                     moe_error *err)
{
    *out = NULL;
    moe_low_bit_file *file = moe_calloc(1, sizeof *file);
    if (file == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to open %s", path);
    }
    low_bit_reader r = {model, path, file, err};
    int status = moe_model_open(&file->gguf, path, model->reading, err);
    status = status == MOE_OK ? load(&r) : status;
    if (status != MOE_OK) {
        moe_low_bit_close(&file);
    }
    *out = file;
    return status;
}

void moe_low_bit_close(moe_low_bit_file **file)
{
    moe_low_bit_file *f = *file;
    if (f == NULL) {
        return;
    }
    for (uint32_t l = 0; f->map.layers != NULL && l < f->map.n_layer; l++) {
        free(f->map.layers[l].experts);
    }
    free(f->map.layers);
    moe_weight_sums_free(&f->sums);
    moe_gguf_close(&f->gguf);
    free(f);
    *file = NULL;
}
