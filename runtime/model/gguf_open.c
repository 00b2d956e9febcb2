/* SPDX-License-Identifier: MIT */
/* Opens models, of one file or of many parts.
 *
 * The header is copied into memory, never mapped: if a file shrank or a disk failed under a
 * mapping, SIGBUS would kill the process. Only parsing shows how long a header is. The parser
 * therefore begins with the first MiB, and starts again with twice as much until the header is
 * complete. */
#include "runtime/model/gguf_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/part_source.h"
#include "runtime/model/gguf_called.h"

#define FIRST_READ_BYTES ((uint64_t)1 << 20)
#define MAX_HEADER_BYTES ((uint64_t)1 << 30) /* the largest vocabularies take about 20 MiB */
#define MAX_PARTS        65535               /* split.count is a u16 */

void moe_gguf_header_free(moe_gguf_header *header)
{
    for (size_t i = 0; i < header->n_string_arrays; i++) {
        free(header->string_arrays[i]);
    }
    free(header->string_arrays);
    free(header->kvs);
    free(header->tensors);
    moe_gguf_index_free(&header->kv_index);
    *header = (moe_gguf_header){0};
}

static int read_plainly(const moe_gguf_file *file, uint64_t from, void *dst, size_t size,
                        void *user, moe_error *err)
{
    (void)user;
    uint8_t *bytes = dst;
    uint64_t to = from + size;
    while (from < to) {
        int64_t got = file->source->ops->read(file->source, bytes, to - from, from, 0);
        if (got == -EINTR) {
            continue;
        }
        if (got < 0) {
            return moe_fail(err, MOE_ERR_IO, "cannot read the header at offset %" PRIu64 ": %s",
                            from, strerror((int)-got));
        }
        if (got == 0) {
            return moe_fail(err, MOE_ERR_IO,
                            "the file ends at offset %" PRIu64 ", before the size it had when it "
                            "was opened: something is writing to it",
                            from);
        }
        from += (uint64_t)got;
        bytes += got;
    }
    return MOE_OK;
}

static const moe_gguf_reading plain_reading = {read_plainly, NULL};

/* Reads as much of the file as its header needs, and parses it. */
static int read_header(moe_gguf_part *part, const moe_gguf_reading *reading, moe_error *err)
{
    uint64_t file_size = part->file.size;
    uint64_t at_hand = 0;
    uint64_t target = FIRST_READ_BYTES;
    int status;
    do {
        target = target < file_size ? target : file_size;
        if (target > MAX_HEADER_BYTES) {
            return moe_fail(err, MOE_ERR_FORMAT,
                            "the header is longer than %" PRIu64 " bytes, which no model's is",
                            MAX_HEADER_BYTES);
        }
        uint8_t *larger = moe_realloc_array(part->bytes, target, 1);
        if (larger == NULL) {
            return moe_fail(err, MOE_ERR_MEMORY, "out of memory for %" PRIu64 " bytes of header",
                            target);
        }
        part->bytes = larger;
        if (target > at_hand) {
            status = reading->read(&part->file, at_hand, part->bytes + at_hand, target - at_hand,
                                   reading->user, err);
            if (status != MOE_OK) {
                return status;
            }
        }
        at_hand = target;
        moe_gguf_header_free(&part->header);
        uint64_t needed = 0;
        status =
            moe_gguf_header_parse(&part->header, part->bytes, at_hand, file_size, &needed, err);
        target = needed > 2 * at_hand ? needed : 2 * at_hand;
    } while (status == MOE_GGUF_NEED_MORE);
    return status;
}

typedef struct file_reading {
    const moe_gguf_file *file;
    const moe_gguf_reading *reading;
} file_reading;

static int read_of_file(uint64_t offset, void *dst, size_t size, void *user, moe_error *err)
{
    const file_reading *r = user;
    return r->reading->read(r->file, offset, dst, size, r->reading->user, err);
}

static int part_open(moe_gguf_part *part, const char *path, const moe_gguf_reading *reading,
                     moe_error *err)
{
    MOE_TRY(moe_file_source_open(&part->file.source, path, err));
    file_reading of_file = {&part->file, reading};
    const moe_part_reading by = {read_of_file, &of_file};
    MOE_TRY(moe_part_source_open(&part->file.source, &by, err));
    part->file.path = part->file.source->name;
    part->file.size = part->file.source->size;
    MOE_TRY(read_header(part, reading, err));
    return moe_gguf_check_placement(&part->header, part->file.size, err);
}

static void part_close(moe_gguf_part *part)
{
    moe_gguf_header_free(&part->header);
    free(part->bytes);
    moe_byte_source_let_go(&part->file.source);
}

/* Puts the file's name before the message; if the path is long, only its end. */
static int fail_in_file(moe_error *err, int status, const char *path, const moe_error *inner)
{
    size_t size = strlen(path);
    const size_t most = 160;
    return moe_fail(err, status, "'%s%s': %s", size > most ? "..." : "",
                    size > most ? path + size - most : path, inner->message);
}

static int split_field(const moe_gguf_header *header, const char *key, uint64_t *value,
                       moe_error *err)
{
    const moe_gguf_kv *kv = moe_gguf_header_find(header, key);
    if (kv != NULL && !moe_gguf_scalar_u64(kv, value)) {
        return moe_fail(err, MOE_ERR_FORMAT, "key '%s' is not a non-negative integer", key);
    }
    return MOE_OK;
}

/* Gathers the parts' tensors and indexes them by name. */
static int gather(moe_gguf *gguf, moe_error *err)
{
    char shown[MOE_GGUF_SHOWN];
    size_t n_tensors = 0;
    for (size_t i = 0; i < gguf->n_parts; i++) {
        n_tensors += gguf->parts[i].header.n_tensors;
    }
    gguf->tensors = moe_calloc(n_tensors, sizeof *gguf->tensors);
    if (gguf->tensors == NULL || n_tensors >= UINT32_MAX ||
        moe_gguf_index_init(&gguf->tensor_index, n_tensors, gguf->tensors) != MOE_OK) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for %zu tensors", n_tensors);
    }
    for (size_t i = 0; i < gguf->n_parts; i++) {
        moe_gguf_header *header = &gguf->parts[i].header;
        for (size_t j = 0; j < header->n_tensors; j++) {
            size_t at = gguf->n_tensors++;
            gguf->tensors[at] = header->tensors[j];
            gguf->tensors[at].file_index = (uint32_t)i;
            if (moe_gguf_index_add(&gguf->tensor_index, &gguf->tensors[0].name,
                                   sizeof *gguf->tensors, at) != SIZE_MAX) {
                return moe_fail(err, MOE_ERR_FORMAT, "tensor '%s' is listed twice",
                                moe_gguf_show(gguf->tensors[at].name, shown));
            }
        }
        free(header->tensors);
        header->tensors = NULL;
        header->tensors_capacity = 0;
    }
    return MOE_OK;
}

/* If the path ends in "-00002-of-00005.gguf" with the numbers of this part: *prefix is the length
 * of the path before this ending. */
static bool split_prefix(const char *path, uint64_t number, uint64_t count, size_t *prefix)
{
    char ending[64];
    int size =
        snprintf(ending, sizeof ending, "-%05" PRIu64 "-of-%05" PRIu64 ".gguf", number + 1, count);
    size_t path_size = strlen(path);
    *prefix = path_size - (size_t)size;
    return path_size >= (size_t)size && strcmp(path + *prefix, ending) == 0;
}

static int check_part(const moe_gguf_part *part, uint64_t number, uint64_t count, moe_error *err)
{
    uint64_t its_number = UINT64_MAX;
    uint64_t its_count = 0;
    MOE_TRY(split_field(&part->header, "split.no", &its_number, err));
    MOE_TRY(split_field(&part->header, "split.count", &its_count, err));
    if (its_number != number || its_count != count) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "by its name part %" PRIu64 " of %" PRIu64 ", but its metadata "
                        "(split.no, split.count) say otherwise: download it again",
                        number + 1, count);
    }
    return MOE_OK;
}

static int open_part_of_split(moe_gguf *gguf, const char *path, size_t prefix, uint64_t count,
                              moe_error *err)
{
    size_t room = strlen(path) + 64;
    char *name = moe_calloc(room, 1);
    if (name == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for a file name");
    }
    uint64_t number = gguf->n_parts;
    snprintf(name, room, "%.*s-%05" PRIu64 "-of-%05" PRIu64 ".gguf", (int)prefix, path, number + 1,
             count);
    moe_error inner = {{0}};
    moe_gguf_part *part = &gguf->parts[gguf->n_parts++];
    int status = part_open(part, name, gguf->reading, &inner);
    if (status == MOE_OK) {
        status = check_part(part, number, count, &inner);
    }
    if (status == MOE_ERR_IO && part->file.source == NULL) {
        status = moe_fail(err, status,
                          "'%s', part %" PRIu64 " of %" PRIu64 " of this split model: %s; all "
                          "parts must lie in one folder",
                          name, number + 1, count, inner.message);
    } else if (status != MOE_OK) {
        fail_in_file(err, status, name, &inner);
    }
    free(name);
    return status;
}

/* Opens all parts, in order, in place of the one that has been opened so far. */
static int open_split(moe_gguf *gguf, const char *path, uint64_t count, moe_error *err)
{
    uint64_t number = 0;
    uint64_t n_tensors = UINT64_MAX;
    size_t prefix;
    moe_error inner = {{0}};
    if (count > MAX_PARTS ||
        split_field(&gguf->parts[0].header, "split.no", &number, &inner) != MOE_OK ||
        number >= count) {
        return moe_fail(err, MOE_ERR_FORMAT, "'%s': keys split.no and split.count are damaged",
                        path);
    }
    if (!split_prefix(path, number, count, &prefix)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "'%s' is part %" PRIu64 " of %" PRIu64 " of a split model, but its name "
                        "does not end in -%05" PRIu64 "-of-%05" PRIu64
                        ".gguf, so the other parts cannot be found: give it that name",
                        path, number + 1, count, number + 1, count);
    }
    part_close(&gguf->parts[0]);
    free(gguf->parts);
    gguf->n_parts = 0;
    gguf->parts = moe_calloc(count, sizeof *gguf->parts);
    if (gguf->parts == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for %" PRIu64 " parts", count);
    }
    size_t found = 0;
    for (uint64_t i = 0; i < count; i++) {
        int status = open_part_of_split(gguf, path, prefix, count, err);
        if (status != MOE_OK) {
            return status;
        }
        found += gguf->parts[i].header.n_tensors;
    }
    int status = split_field(&gguf->parts[0].header, "split.tensors.count", &n_tensors, &inner);
    if (status == MOE_OK && n_tensors != UINT64_MAX && n_tensors != found) {
        status = moe_fail(&inner, MOE_ERR_FORMAT,
                          "key 'split.tensors.count' is %" PRIu64 " but the %" PRIu64
                          " parts hold %zu tensors: the parts are not of one model",
                          n_tensors, count, found);
    }
    return status == MOE_OK ? MOE_OK : fail_in_file(err, status, path, &inner);
}

static int open_into(moe_gguf *gguf, const char *path, moe_error *err)
{
    moe_error inner = {{0}};
    gguf->parts = moe_calloc(1, sizeof *gguf->parts);
    if (gguf->parts == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    }
    gguf->n_parts = 1;
    int status = part_open(&gguf->parts[0], path, gguf->reading, &inner);
    uint64_t count = 0;
    if (status == MOE_OK) {
        status = split_field(&gguf->parts[0].header, "split.count", &count, &inner);
    }
    if (status != MOE_OK) {
        return fail_in_file(err, status, path, &inner);
    }
    if (count > 1) {
        MOE_TRY(open_split(gguf, path, count, err));
    }
    status = gather(gguf, &inner);
    return status == MOE_OK ? MOE_OK : fail_in_file(err, status, path, &inner);
}

int moe_gguf_open(moe_gguf **out, const char *path, moe_error *err)
{
    return moe_gguf_open_by(out, path, &plain_reading, err);
}

int moe_gguf_open_by(moe_gguf **out, const char *path, const moe_gguf_reading *reading,
                     moe_error *err)
{
    *out = NULL;
    moe_gguf *gguf = moe_calloc(1, sizeof *gguf);
    if (gguf == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    }
    gguf->reading = reading;
    int status = open_into(gguf, path, err);
    gguf->reading = NULL;
    if (status != MOE_OK) {
        moe_gguf_close(&gguf);
        return status;
    }
    *out = gguf;
    return MOE_OK;
}

int moe_gguf_read_by(moe_gguf *gguf, moe_called_read_fn read, void *user, moe_error *err)
{
    for (size_t i = 0; i < gguf->n_parts; i++) {
        moe_gguf_file *file = &gguf->parts[i].file;
        moe_byte_source *called;
        MOE_TRY(moe_called_source_open(&called, file->source, read, user, err));
        moe_byte_source_let_go(&file->source);
        file->source = called;
    }
    return MOE_OK;
}

int moe_gguf_parse(moe_gguf **out, const void *data, size_t data_size, moe_error *err)
{
    *out = NULL;
    moe_gguf *gguf = moe_calloc(1, sizeof *gguf);
    moe_gguf_part *part = moe_calloc(1, sizeof *part);
    if (gguf == NULL || part == NULL) {
        free(gguf);
        free(part);
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    }
    gguf->parts = part;
    gguf->n_parts = 1;
    part->file = (moe_gguf_file){.path = "(memory)", .size = data_size};
    uint64_t needed;
    int status = moe_gguf_header_parse(&part->header, data, data_size, data_size, &needed, err);
    if (status == MOE_OK) {
        status = moe_gguf_check_placement(&part->header, data_size, err);
    }
    if (status == MOE_OK) {
        status = gather(gguf, err);
    }
    if (status != MOE_OK) {
        moe_gguf_close(&gguf);
        return status;
    }
    *out = gguf;
    return MOE_OK;
}

void moe_gguf_close(moe_gguf **gguf)
{
    if (gguf == NULL || *gguf == NULL) {
        return;
    }
    for (size_t i = 0; i < (*gguf)->n_parts; i++) {
        part_close(&(*gguf)->parts[i]);
    }
    free((*gguf)->parts);
    free((*gguf)->tensors);
    moe_gguf_index_free(&(*gguf)->tensor_index);
    free((*gguf)->overrides);
    free(*gguf);
    *gguf = NULL;
}
