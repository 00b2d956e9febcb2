/* SPDX-License-Identifier: MIT */
/* Writes a file of low-bit copies, one part of an expert after the other. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cpu/kernels/quantize_blocks.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/model/gguf_writer.h"
#include "runtime/sidecar/calibration_tables.h"
#include "runtime/sidecar/low_bit_file.h"

#define ROWS_OF_TASK 16u /* rows that a worker quantises at a time */

static const moe_dtype types[] = {MOE_DTYPE_Q2_K, MOE_DTYPE_Q3_K, MOE_DTYPE_Q4_0};

int moe_low_bit_type(const char *name, moe_dtype *type, moe_error *err)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(name, moe_dtype_name(types[i])) == 0) {
            *type = types[i];
            return MOE_OK;
        }
    }
    return moe_fail(err, MOE_ERR_ARGUMENT,
                    "copies of experts cannot be made in '%s'; Q2_K, Q3_K and Q4_0 can", name);
}

/* One tensor of the file: one part (gate, up or down) of all experts of a layer. */
typedef struct low_bit_tensor {
    uint32_t layer;
    int part;
    moe_dtype type;
} low_bit_tensor;

typedef struct low_bit_writer {
    const moe_low_bit_job *job;
    low_bit_tensor *tensors; /* [n_tensors] */
    uint64_t n_tensors;
    uint32_t expert; /* the expert whose part of the current tensor comes next */
    moe_weights_identity made_from;
    uint64_t *checksums; /* [n_layer][n_expert][MOE_EXPERT_PARTS] */
    uint64_t checksum;   /* of these */
    uint8_t *own, *copy; /* a part, as it is in the model and in the copy */
    float *values;       /* [threads][n_in] */
    size_t most_in;
} low_bit_writer;

/* The task of the worker threads. */
typedef struct quantize_rows {
    const low_bit_writer *w;
    const moe_tensor_ref *ref;
    moe_dtype type;
    moe_task_queue tasks;
} quantize_rows;

static void quantize_some(void *arg, uint32_t worker, uint32_t n_workers)
{
    quantize_rows *q = arg;
    const moe_tensor_ref *ref = q->ref;
    float *values = q->w->values + worker * q->w->most_in;
    size_t from = (size_t)moe_dtype_row_bytes(ref->type, ref->n_in);
    size_t to = (size_t)moe_dtype_row_bytes(q->type, ref->n_in);
    (void)n_workers;
    for (uint64_t first;
         (first = (uint64_t)moe_task_next(&q->tasks) * ROWS_OF_TASK) < ref->n_out;) {
        for (uint64_t r = first; r < ref->n_out && r < first + ROWS_OF_TASK; r++) {
            q->w->job->weights->kernels.dequantize[ref->type](q->w->own + r * from, values,
                                                              (uint32_t)ref->n_in);
            moe_quantize_row(q->type, values, NULL, (uint32_t)ref->n_in, q->w->copy + r * to);
        }
    }
}

static void give_checksum(low_bit_writer *w, const void **bytes, size_t *n)
{
    const moe_sidecar_model *model = w->job->model;
    size_t n_checksums = (size_t)model->map->n_layer * model->map->n_expert * MOE_EXPERT_PARTS;
    w->checksum = moe_low_bit_mix(&w->made_from, w->checksums, n_checksums);
    *bytes = &w->checksum;
    *n = sizeof w->checksum;
}

/* Returns the bytes of the next expert's part. After the last part, returns the checksum over the
 * parts' checksums. */
static int give_bytes(uint64_t tensor, const void **bytes, size_t *n, void *user, moe_error *err)
{
    low_bit_writer *w = user;
    const moe_low_bit_job *job = w->job;
    if (tensor >= w->n_tensors) {
        give_checksum(w, bytes, n);
        return MOE_OK;
    }
    const low_bit_tensor *t = &w->tensors[tensor];
    uint32_t e = w->expert;
    const moe_tensor_ref *ref = &job->model->map->layers[t->layer].experts[e].parts[t->part];
    moe_model_range range = {ref->file_index, ref->offset, ref->size};
    if (job->is_cancelled != NULL && job->is_cancelled(job->user)) {
        return moe_fail(err, MOE_ERR_CANCELLED, "copying experts was stopped");
    }
    size_t key = (size_t)t->layer * job->model->config->n_expert + e;
    int status = moe_model_reader_read(job->weights->files, &range, w->own, err);
    if (status == MOE_OK) {
        status =
            moe_checksum_book_check(job->book, moe_weight_sum_of_expert((uint32_t)key, t->part),
                                    XXH3_64bits(w->own, ref->size), err);
    }
    if (status != MOE_OK) {
        return status;
    }
    *n = (size_t)(moe_dtype_row_bytes(t->type, ref->n_in) * ref->n_out);
    *bytes = w->own;
    if (t->type != ref->type) {
        quantize_rows q = {.w = w, .ref = ref, .type = t->type};
        moe_team_run(job->team, quantize_some, &q);
        *bytes = w->copy;
    }
    w->checksums[key * MOE_EXPERT_PARTS + (size_t)t->part] = XXH3_64bits(*bytes, *n);
    w->expert = (e + 1) % job->model->config->n_expert;
    return MOE_OK;
}

/* Returns the type in which the part is copied: the wanted one if a row consists of whole blocks
 * of it and gets smaller; otherwise the part's own type. */
static moe_dtype type_of(const moe_low_bit_job *job, const moe_tensor_ref *ref)
{
    bool fits = ref->n_in % moe_dtype_info_of(job->type)->block_elems == 0;
    return fits && moe_dtype_row_bytes(job->type, ref->n_in) <
                       moe_dtype_row_bytes(ref->type, ref->n_in)
               ? job->type
               : ref->type;
}

/* Lists a tensor of the file, which can have only one type. In models with a separate tensor for
 * each expert, the experts of a layer may have several types. */
static int list_tensor(low_bit_writer *w, uint32_t layer, int part, moe_error *err)
{
    const moe_expert_ref *experts = w->job->model->map->layers[layer].experts;
    moe_dtype type = type_of(w->job, &experts[0].parts[part]);
    for (uint32_t e = 0; e < w->job->model->config->n_expert; e++) {
        const moe_tensor_ref *ref = &experts[e].parts[part];
        if (type_of(w->job, ref) != type) {
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "the experts of layer %u are of several types (%s and %s), and copies "
                            "of them would be, too; a type of fewer bits can be used",
                            layer, moe_dtype_name(type), moe_dtype_name(ref->type));
        }
        w->most_in = ref->n_in > w->most_in ? (size_t)ref->n_in : w->most_in;
    }
    if (experts[0].parts[part].size > 0) {
        w->tensors[w->n_tensors++] = (low_bit_tensor){layer, part, type};
    }
    return MOE_OK;
}

static uint64_t most_bytes(const moe_tensor_map *map)
{
    uint64_t most = 0;
    for (uint32_t l = 0; l < map->n_layer; l++) {
        for (uint32_t e = 0; map->layers[l].experts != NULL && e < map->n_expert; e++) {
            for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
                uint64_t size = map->layers[l].experts[e].parts[p].size;
                most = size > most ? size : most;
            }
        }
    }
    return most;
}

static int prepare(low_bit_writer *w, moe_error *err)
{
    const moe_tensor_map *map = w->job->model->map;
    size_t n_checksums = (size_t)map->n_layer * map->n_expert * MOE_EXPERT_PARTS;
    size_t most = (size_t)most_bytes(map);
    int status = MOE_OK;
    w->tensors = moe_calloc((size_t)map->n_layer * MOE_EXPERT_PARTS, sizeof *w->tensors);
    w->checksums = moe_calloc(n_checksums, sizeof *w->checksums);
    w->own = moe_calloc(most, 1);
    w->copy = moe_calloc(most, 1);
    if (w->tensors == NULL || w->checksums == NULL || w->own == NULL || w->copy == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to copy experts");
    }
    for (uint32_t l = 0; l < map->n_layer && status == MOE_OK; l++) {
        for (int p = 0; map->layers[l].experts != NULL && p < MOE_EXPERT_PARTS; p++) {
            status = status == MOE_OK ? list_tensor(w, l, p, err) : status;
        }
    }
    w->values = moe_calloc(moe_team_size(w->job->team) * w->most_in, sizeof *w->values);
    return status == MOE_OK && w->values == NULL
               ? moe_fail(err, MOE_ERR_MEMORY, "no memory to copy experts")
               : status;
}

static int save(low_bit_writer *w, const char *path, moe_error *err)
{
    const moe_sidecar_model *model = w->job->model;
    const moe_tensor_map *map = model->map;
    const uint64_t table[3] = {MOE_EXPERT_PARTS, map->n_expert, map->n_layer};
    const uint64_t one[1] = {1};
    uint64_t n_checksums = table[0] * table[1] * table[2];
    moe_gguf_writer *g = moe_gguf_writer_create();
    if (g == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to write %s", path);
    }
    moe_gguf_writer_string(g, "general.architecture", "moe-lowbit");
    moe_gguf_writer_u32(g, "moe-lowbit.version", MOE_LOW_BIT_VERSION);
    moe_gguf_writer_u64(g, "moe-lowbit.model.weights", w->made_from.whole);
    moe_gguf_writer_u64(g, "moe-lowbit.model.files", w->made_from.files);
    moe_gguf_writer_u32(g, "moe-lowbit.n_layer", map->n_layer);
    moe_gguf_writer_u32(g, "moe-lowbit.n_expert", map->n_expert);
    for (uint64_t i = 0; i < w->n_tensors; i++) {
        const low_bit_tensor *t = &w->tensors[i];
        const moe_tensor_ref *ref = &map->layers[t->layer].experts[0].parts[t->part];
        const uint64_t dims[3] = {ref->n_in, ref->n_out, map->n_expert};
        char name[MOE_LOW_BIT_NAME];
        moe_low_bit_tensor_name(name, t->layer, t->part);
        moe_gguf_writer_later(g, name, t->type, 3, dims,
                              moe_dtype_row_bytes(t->type, ref->n_in) * ref->n_out * map->n_expert);
    }
    moe_gguf_writer_tensor(g, "checksums", MOE_GGUF_TYPE_I64, 3, table, w->checksums,
                           n_checksums * sizeof *w->checksums);
    moe_gguf_writer_later(g, "checksum", MOE_GGUF_TYPE_I64, 1, one, sizeof(uint64_t));
    moe_gguf_writer_set_source(g, give_bytes, w);
    int status = moe_gguf_writer_save(g, path, err);
    moe_gguf_writer_free(&g);
    return status;
}

int moe_low_bit_write(const moe_low_bit_job *job, const char *path, moe_error *err)
{
    low_bit_writer w = {.job = job};
    moe_checksum_book_identify(job->book, &w.made_from);
    int status = prepare(&w, err);
    status = status == MOE_OK ? save(&w, path, err) : status;
    free(w.tensors);
    free(w.checksums);
    free(w.own);
    free(w.copy);
    free(w.values);
    return status;
}
