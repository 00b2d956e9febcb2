/* SPDX-License-Identifier: MIT */
/* moe_verify(): reads the parts of the model's files in the order of their bytes, then those of
 * each copy. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include <moe/moe.h>
#include <moe/verify.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/finite_blocks.h"
#include "runtime/base/struct_size.h"
#include "offload/model_open.h"
#include "runtime/engine/engine_copies.h"
#include "runtime/families/families.h"
#include "runtime/sidecar/checksum_book.h"
#include "runtime/sidecar/fingerprint.h"

#define MAX_IO_TIMEOUT 86400.0 /* s */
#define NAME_SIZE      256u

typedef struct verification {
    const moe_verify_options *options;
    moe_verify_result *result;
    moe_gguf *gguf;
    moe_model_config config;
    moe_tensor_map map;
    bool runs; /* config and map are valid */
    moe_model_identity identity;
    moe_calibration *calibration; /* NULL: none */
    moe_checksum_book book;
    bool *was_known; /* [n] the part had a checksum before the model was read */
    moe_model_reader_options reading;
    const moe_gguf *current; /* the model or the copy that is being read */
    moe_model_reader *reader;
    moe_model_part *parts;
    moe_model_range *ranges;
    size_t n;
    XXH3_state_t *hash;
    moe_finite_scan scan;
    uint64_t bytes_all, bytes_done;
} verification;

void moe_verify_options_init_sized(moe_verify_options *options, size_t struct_size)
{
    const moe_verify_options defaults = {.struct_size = sizeof defaults};
    moe_struct_init(&moe_kind_verify_options, options, struct_size, &defaults);
}

/* The reader calls this before each piece and while it waits. */
static bool is_cancelled(void *user)
{
    const verification *v = user;
    double fraction = v->bytes_all > 0 ? (double)v->bytes_done / (double)v->bytes_all : 0.0;
    return v->options->progress != NULL && !v->options->progress(fraction, v->options->user);
}

static int check_options(verification *v, moe_error *err)
{
    const moe_verify_options *o = v->options;
    if (o->model_path == NULL || o->model_path[0] == '\0') {
        return moe_fail(err, MOE_ERR_ARGUMENT, "verify options: no model_path");
    }
    if (!(o->io_timeout >= 0.0 && o->io_timeout <= MAX_IO_TIMEOUT)) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "an I/O time-out of %g s; use more than 0, up to %g",
                        o->io_timeout, MAX_IO_TIMEOUT);
    }
    if ((int)o->io < MOE_IO_AUTO || o->io > MOE_IO_SYNC) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.io is %d, which is none of MOE_IO_AUTO, MOE_IO_URING, "
                        "MOE_IO_THREADS or MOE_IO_SYNC",
                        (int)o->io);
    }
    if (o->n_model_copies > MOE_RANGE_COPIES ||
        (o->n_model_copies > 0 && o->model_copies == NULL)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "verify options: model_copies names %zu files; at most %u",
                        o->n_model_copies, MOE_RANGE_COPIES);
    }
    v->reading = (moe_model_reader_options){.io = o->io,
                                            .buffered = o->buffered_io,
                                            .io_timeout_ns = (uint64_t)(o->io_timeout * 1e9),
                                            .is_cancelled = is_cancelled,
                                            .cancel_user = v,
                                            .log = o->log,
                                            .user = o->user};
    return MOE_OK;
}

/* ---- The calibration ---- */

static void note(const verification *v, const char *line)
{
    if (v->options->log != NULL) {
        v->options->log(line, v->options->user);
    }
}

/* If a calibration fits except for some samples of the weights, it is this model's, and those
 * weights are damaged. */
static int load_calibration(verification *v, const char *path, moe_error *err)
{
    const moe_model_config *c = &v->config;
    moe_calibration_shape shape = {
        .n_layer = c->n_layer,
        .n_expert = c->n_expert,
        .n_expert_used = c->n_expert_used,
        .n_embd = c->n_embd,
    };
    size_t tensor;
    int status = moe_calibration_load(&v->calibration, path, &shape, false, &v->reading, err);
    if (status != MOE_OK || v->calibration->shape.fingerprint == v->identity.fingerprint ||
        moe_calibration_tells_damage(v->calibration, &v->identity, &tensor)) {
        return status;
    }
    moe_calibration_free(&v->calibration);
    return moe_fail(err, MOE_ERR_MISMATCH,
                    "%s was made for another model or for other weights; run moe-offload calibrate",
                    path);
}

static int open_calibration(verification *v, moe_error *err)
{
    const char *named = v->options->calibration;
    if (!v->runs || (named != NULL && strcmp(named, "none") == 0)) {
        return MOE_OK;
    }
    if (named != NULL) {
        return load_calibration(v, named, err);
    }
    char *path = moe_calibration_default_path(moe_gguf_file_at(v->gguf, 0)->path);
    if (path == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the calibration's path");
    }
    moe_error why_not = {""};
    int status = access(path, F_OK) == 0 ? load_calibration(v, path, &why_not) : MOE_OK;
    free(path);
    if (status == MOE_ERR_CANCELLED || status == MOE_ERR_MEMORY) {
        return moe_fail(err, status, "%s", why_not.message);
    }
    if (status != MOE_OK) {
        note(v, why_not.message);
    }
    return MOE_OK;
}

/* ---- The weights ---- */

static void report_damage(const verification *v, const moe_model_part *part, moe_damage_kind kind)
{
    const moe_gguf_tensor *tensor = moe_gguf_tensor_at(v->gguf, part->tensor);
    char name[NAME_SIZE];
    size_t size = tensor->name.size < NAME_SIZE - 1 ? tensor->name.size : NAME_SIZE - 1;
    memcpy(name, tensor->name.data, size);
    name[size] = '\0';
    moe_damage damage = {.kind = kind,
                         .path = moe_gguf_file_at(v->current, part->range.file)->path,
                         .tensor = name,
                         .offset = part->range.offset,
                         .bytes = part->range.size,
                         .is_expert = part->is_expert,
                         .layer = part->layer,
                         .expert = part->expert};
    v->result->n_damaged++;
    if (v->options->on_damage != NULL) {
        v->options->on_damage(&damage, v->options->user);
    }
}

/* Reads a part. *right: the part matches its checksum or, if it has none, all its values are
 * finite. */
static int read_part(verification *v, size_t index, uint64_t checksum, bool *right, moe_error *err)
{
    const moe_model_part *part = &v->parts[index];
    int status = MOE_OK;
    XXH3_64bits_reset(v->hash);
    const moe_gguf_tensor *tensor = moe_gguf_tensor_at(v->gguf, part->tensor);
    moe_finite_scan_begin(&v->scan, tensor->type, tensor->dims[0]);
    for (uint64_t done = 0; done < part->range.size && status == MOE_OK;) {
        const uint8_t *bytes;
        size_t n;
        status = moe_model_reader_next(v->reader, SIZE_MAX, &bytes, &n, err);
        if (status == MOE_OK) {
            XXH3_64bits_update(v->hash, bytes, n);
        }
        if (status == MOE_OK && checksum == 0) {
            moe_finite_scan_bytes(&v->scan, bytes, n);
        }
        done += n;
        v->bytes_done += n;
    }
    *right = checksum != 0
                 ? moe_weight_sums_check(&v->book.sums, moe_checksum_book_entry(&v->book, part),
                                         XXH3_64bits_digest(v->hash))
                 : v->scan.finite;
    return status;
}

/* Reads a part, and once more if it does not match. */
static int verify_part(verification *v, size_t index, moe_error *err)
{
    const moe_model_part *part = &v->parts[index];
    size_t at = moe_checksum_book_entry(&v->book, part);
    uint64_t checksum = moe_weight_sums_get(&v->book.sums, at);
    bool is_model = v->current == v->gguf;
    bool right;
    MOE_TRY(read_part(v, index, checksum, &right, err));
    if (!right) {
        v->bytes_done -= part->range.size;
        MOE_TRY(moe_model_reader_begin(v->reader, v->ranges + index, v->n - index, err));
        MOE_TRY(read_part(v, index, checksum, &right, err));
    }
    if (is_model && checksum == 0 && right) {
        (void)moe_weight_sums_check(&v->book.sums, at, XXH3_64bits_digest(v->hash));
    }
    if (is_model) {
        v->was_known[index] = checksum != 0;
        if (checksum != 0 && !right) {
            moe_weight_sums_tell_damage(&v->book.sums);
        }
    }
    v->result->n_checksums += v->was_known[index];
    v->result->n_parts++;
    if (!right) {
        report_damage(v, part,
                      checksum == 0         ? MOE_DAMAGE_NOT_FINITE
                      : v->was_known[index] ? MOE_DAMAGE_CHECKSUM
                                            : MOE_DAMAGE_DIFFERS);
    }
    return MOE_OK;
}

static int list_parts(verification *v, moe_error *err)
{
    int status = moe_model_parts_list(v->gguf, v->runs ? &v->map : NULL, &v->parts, &v->n, err);
    v->hash = XXH3_createState();
    v->ranges = moe_calloc(v->n + 1, sizeof *v->ranges);
    v->was_known = moe_calloc(v->n + 1, sizeof *v->was_known);
    if (status == MOE_OK && (v->hash == NULL || v->ranges == NULL || v->was_known == NULL)) {
        status = moe_fail(err, MOE_ERR_MEMORY, "no memory to verify %zu parts", v->n);
    }
    for (size_t i = 0; i < v->n && status == MOE_OK; i++) {
        v->ranges[i] = v->parts[i].range;
        v->bytes_all += v->ranges[i].size;
    }
    v->bytes_all *= 1 + v->options->n_model_copies;
    return status;
}

/* Reads all of the model, or of a copy. */
static int verify_parts(verification *v, const moe_gguf *gguf, moe_error *err)
{
    moe_model_reader_options reading = v->reading;
    reading.gguf = v->current = gguf;
    int status = moe_model_reader_open(&v->reader, &reading, err);
    if (status == MOE_OK) {
        status = moe_model_reader_begin(v->reader, v->ranges, v->n, err);
    }
    for (size_t i = 0; i < v->n && status == MOE_OK; i++) {
        status = verify_part(v, i, err);
    }
    moe_model_reader_close(&v->reader);
    v->result->bytes_read = v->bytes_done;
    return status;
}

static int verify_copy(verification *v, const char *path, moe_error *err)
{
    moe_gguf *copy = NULL;
    moe_model_identity identity;
    moe_model_reader_options reading = v->reading;
    int status = path != NULL ? moe_model_open(&copy, path, &v->reading, err)
                              : moe_fail(err, MOE_ERR_ARGUMENT,
                                         "verify options: a path of model_copies is NULL");
    reading.gguf = copy;
    status = status == MOE_OK ? moe_copy_compare_files(v->gguf, copy, path, err) : status;
    status = status == MOE_OK ? moe_model_identify(&reading, &identity, err) : status;
    if (status == MOE_OK && identity.header != v->identity.header) {
        status = moe_fail(err, MOE_ERR_FORMAT, "%s is no copy of %s: their headers differ", path,
                          v->options->model_path);
    }
    status = status == MOE_OK ? verify_parts(v, copy, err) : status;
    moe_gguf_close(&copy);
    return status;
}

static int verify_files(verification *v, moe_error *err)
{
    const moe_verify_options *o = v->options;
    const moe_checksum_book_options book = {.map = &v->map,
                                            .calibration = v->calibration,
                                            .reading = &v->reading,
                                            .named = o->checksums,
                                            .log = o->log,
                                            .user = o->user};
    MOE_TRY(moe_checksum_book_open(&v->book, &book, err));
    MOE_TRY(list_parts(v, err));
    MOE_TRY(verify_parts(v, v->gguf, err));
    for (size_t i = 0; i < o->n_model_copies; i++) {
        MOE_TRY(verify_copy(v, o->model_copies[i], err));
    }
    return MOE_OK;
}

/* A file that cannot run can still be read, without the calibration. Short memory is an error: it
 * says nothing about the file, and without checksums damage would not be seen. */
static int open_model(verification *v, moe_error *err)
{
    MOE_TRY(moe_model_open(&v->gguf, v->options->model_path, &v->reading, err));
    v->reading.gguf = v->gguf;
    moe_error why_not = {""};
    int known = moe_model_config_read(&v->config, v->gguf, &why_not);
    known = known == MOE_OK ? moe_tensor_map_build(&v->map, &v->config, v->gguf, &why_not) : known;
    v->runs = known == MOE_OK;
    if (!v->runs) {
        v->map = (moe_tensor_map){0};
    }
    if (known == MOE_ERR_MEMORY) {
        return moe_fail(err, known, "%s", why_not.message);
    }
    if (!v->runs) {
        note(v, why_not.message);
    }
    return moe_model_identify(&v->reading, &v->identity, err);
}

int moe_verify(const moe_verify_options *options, moe_verify_result *result, moe_error *err)
{
    moe_verify_options o = {0};
    moe_verify_result found = {.struct_size = sizeof found};
    verification v = {.options = &o, .result = &found};
    int status = moe_struct_take(&moe_kind_verify_options, &o, options, err);
    status = status == MOE_OK ? moe_struct_check(&moe_kind_verify_result, result, err) : status;
    status = status == MOE_OK ? check_options(&v, err) : status;
    if (status != MOE_OK) {
        return status;
    }
    status = open_model(&v, err);
    status = status == MOE_OK ? open_calibration(&v, err) : status;
    status = status == MOE_OK ? verify_files(&v, err) : status;
    if (status == MOE_OK && o.progress != NULL) {
        (void)o.progress(1.0, o.user);
    }
    if (status == MOE_ERR_CANCELLED) {
        moe_fail(err, status, "the verification was stopped");
    }
    moe_checksum_book_close(&v.book);
    moe_calibration_free(&v.calibration);
    XXH3_freeState(v.hash);
    free(v.ranges);
    free(v.was_known);
    free(v.parts);
    if (v.runs) {
        moe_tensor_map_free(&v.map);
    }
    moe_gguf_close(&v.gguf);
    int given = moe_struct_give(&moe_kind_verify_result, result, &found, NULL);
    return status != MOE_OK ? status : given;
}
