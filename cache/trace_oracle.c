/* SPDX-License-Identifier: MIT */
/* libCacheSim's oracleGeneral: a record for each access, packed and little-endian,
 *
 *    | u32 time | u64 id | u32 size | i64 index of the id's next access, -1: none |
 *
 * In files written here, time is the pass and id is layer * n_expert + expert. Rows of a pass are
 * merged, as a cache sees them. When a file is read, a pass ends where the time changes, and where
 * ids stop rising. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/files.h>

#include "cache/access_list.h"
#include "cache/trace_formats.h"
#include "cache/trace_rows.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

#define RECORD_BYTES 24

_Static_assert(sizeof(uint32_t) + sizeof(uint64_t) + sizeof(uint32_t) + sizeof(int64_t) ==
                   RECORD_BYTES,
               "a record of the drawing above");

static void put_le(uint8_t *bytes, uint64_t value, int n)
{
    for (int i = 0; i < n; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
}

static uint64_t get_le(const uint8_t *bytes, int n)
{
    uint64_t value = 0;
    for (int i = 0; i < n; i++) {
        value |= (uint64_t)bytes[i] << (8 * i);
    }
    return value;
}

/* Returns, for each access, the index of the next access to the same key; UINT64_MAX: there is
 * none. */
static uint64_t *next_accesses(const moe_access_list *list, const moe_trace *trace)
{
    size_t n = list->start[list->n_passes * list->n_layer];
    size_t n_keys = (size_t)trace->n_layer * trace->n_expert;
    uint64_t *next = moe_calloc(n, sizeof *next);
    uint64_t *last_seen = moe_calloc(n_keys, sizeof *last_seen);
    if (next == NULL || last_seen == NULL) {
        free(next);
        free(last_seen);
        return NULL;
    }
    for (size_t key = 0; key < n_keys; key++) {
        last_seen[key] = UINT64_MAX;
    }
    for (size_t i = n; i-- > 0;) {
        next[i] = last_seen[list->keys[i]];
        last_seen[list->keys[i]] = i;
    }
    free(last_seen);
    return next;
}

static int write_records(const moe_access_list *list, const uint64_t *next, uint32_t expert_bytes,
                         const char *path, moe_error *err)
{
    moe_atomic_file *file;
    int status = moe_atomic_file_open(&file, path, MOE_FILE_OR_DEVICE, err);
    size_t n = list->start[list->n_passes * list->n_layer];
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        uint8_t record[RECORD_BYTES];
        put_le(record, list->accesses[i].pass, 4);
        put_le(record + 4, list->keys[i], 8);
        put_le(record + 12, expert_bytes == 0 ? 1 : expert_bytes, 4);
        put_le(record + 16, next[i], 8);
        status = moe_atomic_file_write(file, record, RECORD_BYTES, err);
    }
    status = status == MOE_OK ? moe_atomic_file_commit(&file, err) : status;
    moe_atomic_file_abandon(&file);
    return status;
}

int moe_trace_write_oracle(const moe_trace *trace, const char *path, uint32_t expert_bytes,
                           moe_error *err)
{
    const moe_access_list *list;
    MOE_TRY(moe_access_list_of(&list, trace, false, err));
    uint64_t *next = next_accesses(list, trace);
    int status = next == NULL
                     ? moe_fail(err, MOE_ERR_MEMORY, "out of memory for trace %.200s", path)
                     : write_records(list, next, expert_bytes, path, err);
    free(next);
    return status;
}

/* ---- Reading ---- */

/* The pass that is being read, whose experts are collected layer by layer. */
typedef struct oracle_reader {
    const moe_trace_open_options *options;
    moe_trace *trace;
    uint16_t *ids; /* [n_expert] of the layer being read */
    uint32_t n_ids;
    uint32_t layer;
    int64_t last_id; /* -1 before the first record */
    uint32_t last_time;
} oracle_reader;

/* Finishes the current layer, and adds empty layers up to the given one. */
static int go_to_layer(oracle_reader *reader, uint32_t layer)
{
    int status = MOE_OK;
    while (reader->layer < layer && status == MOE_OK) {
        status = moe_trace_add_list(reader->trace, reader->ids, NULL, reader->n_ids);
        reader->n_ids = 0;
        reader->layer++;
    }
    return status;
}

static int add_record(oracle_reader *reader, uint64_t id, uint32_t time)
{
    int status = MOE_OK;
    if ((int64_t)id <= reader->last_id || reader->last_id < 0 || time != reader->last_time) {
        if (reader->last_id >= 0) {
            status = go_to_layer(reader, reader->trace->n_layer);
        }
        if (status == MOE_OK) {
            status = moe_trace_add_row(reader->trace, true, reader->trace->n_passes, 0);
        }
        reader->layer = 0;
    }
    if (status == MOE_OK) {
        status = go_to_layer(reader, (uint32_t)(id / reader->trace->n_expert));
    }
    reader->ids[reader->n_ids++] = (uint16_t)(id % reader->trace->n_expert);
    reader->last_id = (int64_t)id;
    reader->last_time = time;
    return status;
}

static int read_records(oracle_reader *reader, FILE *file, moe_error *err)
{
    const char *path = reader->options->path;
    uint64_t n_keys = (uint64_t)reader->trace->n_layer * reader->trace->n_expert;
    uint8_t record[RECORD_BYTES];
    size_t size;
    uint64_t index = 0;
    int status = MOE_OK;
    while (status == MOE_OK && (size = fread(record, 1, RECORD_BYTES, file)) == RECORD_BYTES) {
        uint64_t id = get_le(record + 4, 8);
        if (id >= n_keys) {
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%.200s, record %" PRIu64 ": id %" PRIu64
                            " is not one of %u layers of %u experts",
                            path, index, id, reader->trace->n_layer, reader->trace->n_expert);
        }
        status = add_record(reader, id, (uint32_t)get_le(record, 4));
        index++;
    }
    if (status == MOE_OK && reader->last_id >= 0) {
        status = go_to_layer(reader, reader->trace->n_layer);
    }
    if (status != MOE_OK) {
        return moe_fail(err, status, "out of memory for trace %.200s", path);
    }
    if (ferror(file)) {
        return moe_fail(err, MOE_ERR_IO, "%.200s: %s", path, strerror(errno));
    }
    if (size != 0) {
        return moe_fail(err, MOE_ERR_FORMAT, "%.200s: %zu bytes after the last whole record", path,
                        size);
    }
    return moe_trace_finish(reader->trace, err);
}

int moe_trace_read_oracle(moe_trace **out, const moe_trace_open_options *options, moe_error *err)
{
    if (options->n_layer == 0 || options->n_expert == 0 ||
        (uint64_t)options->n_layer * options->n_expert > MOE_TRACE_MAX_KEYS) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "%.200s: an oracleGeneral file does not tell the number of layers and of "
                        "experts per layer: say them",
                        options->path);
    }
    int status;
    FILE *file = moe_input_stream(options->path, MOE_INPUT_PIPES, &status, err);
    if (file == NULL) {
        return status;
    }
    oracle_reader reader = {.options = options, .last_id = -1};
    reader.trace = moe_trace_new(options->n_layer, options->n_expert, false);
    reader.ids = moe_calloc(options->n_expert, sizeof *reader.ids);
    status = reader.trace == NULL || reader.ids == NULL
                 ? moe_fail(err, MOE_ERR_MEMORY, "out of memory for trace %.200s", options->path)
                 : read_records(&reader, file, err);
    if (status == MOE_OK) {
        *out = reader.trace;
    } else {
        moe_trace_close(&reader.trace);
    }
    free(reader.ids);
    fclose(file);
    return status;
}
