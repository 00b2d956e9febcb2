/* SPDX-License-Identifier: MIT */
#include "runtime/sidecar/checksum_book.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include <moe/files.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

#define BOOK_MAGIC   "MOESUMS"
#define BOOK_VERSION 1u

typedef struct book_header {
    char magic[8];
    uint64_t version;
    uint64_t layout;
    uint64_t files;
    uint64_t epoch;
    uint64_t n;
} book_header;

_Static_assert(sizeof(book_header) == 48, "the header of a file of checksums");

static uint64_t mix(uint64_t hash, const void *data, size_t size)
{
    return XXH3_64bits_withSeed(data, size, hash);
}

/* ---- The state of the model's files ---- */

/* Adds a file's identity to a hash. This includes the time of the inode's last change (ctime),
 * which no program can set back. The time of modification alone is not enough, because a copy may
 * keep it and yet have other bytes. */
static uint64_t mix_state(uint64_t hash, const moe_byte_identity *state)
{
    const uint64_t numbers[] = {state->object,
                                state->size,
                                (uint64_t)state->modified.tv_sec,
                                (uint64_t)state->modified.tv_nsec,
                                (uint64_t)state->changed.tv_sec,
                                (uint64_t)state->changed.tv_nsec};
    return mix(hash, numbers, sizeof numbers);
}

static uint64_t identify_files(const moe_gguf *gguf, bool now)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < moe_gguf_n_files(gguf); i++) {
        const moe_byte_source *file = moe_gguf_file_at(gguf, i)->source;
        moe_byte_identity state = file->opened;
        if (now && !file->ops->identify(file, false, &state)) {
            return 0;
        }
        hash = mix_state(hash, &state);
    }
    return hash;
}

moe_model_range moe_checksum_book_range(const moe_checksum_book *book, uint32_t at)
{
    if (at >= book->sums.n_of_experts) {
        const moe_gguf_tensor *t = moe_gguf_tensor_at(book->gguf, at - book->sums.n_of_experts);
        return (moe_model_range){t->file_index, t->offset, t->size};
    }
    uint32_t key = at / MOE_EXPERT_PARTS;
    const moe_layer_map *layer = &book->map->layers[key / book->map->n_expert];
    const moe_tensor_ref *ref =
        &layer->experts[key % book->map->n_expert].parts[at % MOE_EXPERT_PARTS];
    return (moe_model_range){ref->file_index, ref->offset, ref->size};
}

size_t moe_checksum_book_entry(const moe_checksum_book *book, const moe_model_part *part)
{
    return part->is_expert ? moe_weight_sum_of_expert(
                                 part->layer * book->map->n_expert + part->expert, part->part)
                           : moe_weight_sum_of_tensor(&book->sums, part->tensor);
}

/* Finds the model's parts. */
static int list_parts(moe_checksum_book *book, moe_error *err)
{
    moe_model_part *parts;
    MOE_TRY(moe_model_parts_list(book->gguf, book->map, &parts, &book->n_parts, err));
    book->parts = moe_calloc(book->n_parts, sizeof *book->parts);
    book->is_given = moe_calloc(book->sums.n, sizeof *book->is_given);
    int status = book->parts != NULL && book->is_given != NULL
                     ? MOE_OK
                     : moe_fail(err, MOE_ERR_MEMORY, "no memory for checksums");
    for (size_t i = 0; i < book->n_parts && status == MOE_OK; i++) {
        const moe_model_part *p = &parts[i];
        size_t at = moe_checksum_book_entry(book, p);
        const uint64_t place[] = {p->range.file, p->range.offset, p->range.size, at};
        book->parts[i] = (uint32_t)at;
        book->layout = mix(book->layout, place, sizeof place);
    }
    free(parts);
    return status;
}

static void give(moe_checksum_book *book, size_t at, uint64_t checksum)
{
    moe_weight_sums_give(&book->sums, at, checksum);
    book->is_given[at] = checksum != 0;
}

/* Takes over the checksums of a calibration. Every reading during the calibration was compared
 * with them. */
static void give_calibration(moe_checksum_book *book, const moe_calibration *c)
{
    book->sums.each_time = c->checksums != NULL;
    for (size_t i = 0; c->checksums != NULL && i < book->sums.n_of_experts; i++) {
        give(book, i, c->checksums[i]);
    }
    size_t n_tensors = book->sums.n - book->sums.n_of_experts;
    for (size_t i = 0; c->tensor_checksums != NULL && i < n_tensors && i < c->n_tensors; i++) {
        give(book, moe_weight_sum_of_tensor(&book->sums, i), c->tensor_checksums[i]);
    }
}

/* ---- The book's file ---- */

static void tell(moe_checksum_book *book, const char *what, const char *why)
{
    char line[MOE_ERROR_MESSAGE_SIZE + 128];
    if (book->log != NULL && !book->told) {
        snprintf(line, sizeof line, "%.400s: %s", why, what);
        book->log(line, book->user);
    }
    book->told = true;
}

static uint64_t bytes_of(const moe_checksum_book *book)
{
    return sizeof(book_header) + (book->sums.n + 1) * sizeof(uint64_t);
}

/* Takes over the checksums in a book's file, if they were made for the model's files as they are
 * now. */
static void take(moe_checksum_book *book, const uint8_t *bytes, uint64_t size)
{
    book_header h;
    uint64_t sum;
    memcpy(&h, bytes, sizeof h);
    memcpy(&sum, bytes + size - sizeof sum, sizeof sum);
    if (memcmp(h.magic, BOOK_MAGIC, sizeof h.magic) != 0 || h.version != BOOK_VERSION ||
        h.layout != book->layout || h.files != book->files || h.n != book->sums.n ||
        sum != XXH3_64bits(bytes, size - sizeof sum)) {
        return;
    }
    const uint8_t *from = bytes + sizeof h;
    for (size_t i = 0; i < book->n_parts; i++) {
        uint64_t known;
        uint32_t at = book->parts[i];
        memcpy(&known, from + at * sizeof known, sizeof known);
        if (moe_weight_sums_get(&book->sums, at) == 0) {
            moe_weight_sums_give(&book->sums, at, known);
        }
    }
    book->epoch = h.epoch != 0 && !book->is_bumped ? h.epoch : book->epoch;
}

/* Reads the book's file. A file that is missing, has an unexpected size, or is not a regular file
 * counts as empty. */
static int read_file(moe_checksum_book *book, moe_error *err)
{
    struct stat state;
    int fd = open(book->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return MOE_OK;
    }
    uint64_t size = bytes_of(book);
    if (fstat(fd, &state) != 0 || !S_ISREG(state.st_mode) || (uint64_t)state.st_size != size) {
        close(fd);
        return MOE_OK;
    }
    moe_byte_source *file;
    int status = moe_file_source_of(&file, book->path, fd, err);
    close(fd);
    if (status != MOE_OK) {
        return status;
    }
    const moe_model_range all = {0, 0, size};
    const moe_model_reader_options options = {.files = &file,
                                              .n_files = 1,
                                              .buffered = true,
                                              .io_timeout_ns = book->reading.io_timeout_ns,
                                              .is_cancelled = book->reading.is_cancelled,
                                              .cancel_user = book->reading.cancel_user};
    moe_model_reader *reader = NULL;
    uint8_t *bytes = moe_calloc(size, 1);
    status = bytes != NULL ? moe_model_reader_open(&reader, &options, err)
                           : moe_fail(err, MOE_ERR_MEMORY, "no memory for checksums");
    status = status == MOE_OK ? moe_model_reader_read(reader, &all, bytes, err) : status;
    moe_model_reader_close(&reader);
    moe_byte_source_let_go(&file);
    if (status == MOE_OK) {
        take(book, bytes, size);
    } else if (status == MOE_ERR_IO) {
        tell(book, "it is left out", err->message);
        status = MOE_OK;
    }
    free(bytes);
    return status;
}

static int write_file(moe_checksum_book *book, moe_error *err)
{
    book_header h = {.version = BOOK_VERSION,
                     .layout = book->layout,
                     .files = book->files,
                     .epoch = book->epoch,
                     .n = book->sums.n};
    uint64_t size = bytes_of(book);
    uint8_t *bytes = moe_calloc(size, 1);
    if (bytes == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "%s: no memory for checksums", book->path);
    }
    memcpy(h.magic, BOOK_MAGIC, sizeof h.magic);
    memcpy(bytes, &h, sizeof h);
    for (size_t i = 0; i < book->sums.n; i++) {
        uint64_t known = book->is_given[i] ? 0 : moe_weight_sums_get(&book->sums, i);
        memcpy(bytes + sizeof h + i * sizeof known, &known, sizeof known);
    }
    uint64_t sum = XXH3_64bits(bytes, size - sizeof sum);
    memcpy(bytes + size - sizeof sum, &sum, sizeof sum);
    moe_atomic_file *file;
    int status = moe_atomic_file_open(&file, book->path, 0, err);
    if (status == MOE_OK) {
        status = moe_atomic_file_write(file, bytes, size, err);
        if (status == MOE_OK) {
            status = moe_atomic_file_commit(&file, err);
        } else {
            moe_atomic_file_abandon(&file);
        }
    }
    free(bytes);
    return status;
}

/* ---- The book ---- */

static char *default_path(const char *model_path)
{
    static const char from[] = ".moe-cal.gguf", suffix[] = ".moe-sums";
    char *path = moe_calibration_default_path(model_path);
    if (path != NULL) {
        memcpy(path + strlen(path) - (sizeof from - 1), suffix, sizeof suffix);
    }
    return path;
}

int moe_checksum_book_open(moe_checksum_book *book, const moe_checksum_book_options *o,
                           moe_error *err)
{
    *book = (moe_checksum_book){.gguf = o->reading->gguf,
                                .map = o->map,
                                .reading = *o->reading,
                                .files = identify_files(o->reading->gguf, false),
                                .log = o->log,
                                .user = o->user};
    book->has_lock = pthread_mutex_init(&book->lock, NULL) == 0;
    bool none = o->named == NULL || strcmp(o->named, "none") == 0;
    if (!none) {
        book->path = strcmp(o->named, "auto") != 0
                         ? moe_strdup(o->named)
                         : default_path(moe_gguf_file_at(book->gguf, 0)->path);
    }
    if (!book->has_lock || (!none && book->path == NULL)) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for checksums");
    }
    int status = moe_weight_sums_init(&book->sums, o->map, moe_gguf_n_tensors(book->gguf), err);
    status = status == MOE_OK ? list_parts(book, err) : status;
    if (status == MOE_OK && book->path != NULL) {
        status = read_file(book, err);
    }
    if (status == MOE_OK && o->calibration != NULL) {
        give_calibration(book, o->calibration);
    }
    book->reading.is_cancelled = NULL; /* only opening may be cancelled, and it is over */
    return status;
}

int moe_checksum_book_check(moe_checksum_book *book, size_t at, uint64_t hash, moe_error *err)
{
    if (moe_weight_sums_check(&book->sums, at, hash)) {
        return MOE_OK;
    }
    const moe_model_range range = moe_checksum_book_range(book, (uint32_t)at);
    moe_weight_sums_tell_damage(&book->sums);
    return moe_fail(err, MOE_ERR_IO,
                    "%s: the bytes at offset %llu do not match their checksum; the file or the "
                    "disk is damaged: download the file again",
                    moe_gguf_file_at(book->gguf, range.file)->path,
                    (unsigned long long)range.offset);
}

int moe_checksum_book_check_calibration(moe_checksum_book *book, const moe_calibration *c,
                                        moe_error *err)
{
    for (size_t i = 0; i < book->n_parts; i++) {
        size_t at = book->parts[i];
        uint64_t hash = at < book->sums.n_of_experts
                            ? c->checksums[at]
                            : c->tensor_checksums[at - book->sums.n_of_experts];
        MOE_TRY(moe_checksum_book_check(book, at, hash, err));
    }
    return MOE_OK;
}

/* Records that damage was found, because earlier results may have been computed from damaged
 * bytes. The caller holds the lock. */
static void note_damage(moe_checksum_book *book)
{
    if (atomic_load(&book->sums.damaged) && !book->is_bumped) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        const uint64_t numbers[] = {(uint64_t)now.tv_sec, (uint64_t)now.tv_nsec, book->epoch};
        book->epoch = mix(book->files, numbers, sizeof numbers);
        book->is_bumped = true;
        atomic_store(&book->sums.changed, true);
    }
}

void moe_checksum_book_keep(moe_checksum_book *book)
{
    moe_error err = {""};
    pthread_mutex_lock(&book->lock);
    note_damage(book);
    if (book->path != NULL && atomic_exchange(&book->sums.changed, false) &&
        identify_files(book->gguf, true) == book->files) {
        (void)read_file(book, &err); /* takes over what another process has written */
        if (write_file(book, &err) != MOE_OK) {
            tell(book,
                 "checksums of the weights are in memory alone; name another file in "
                 "options.checksums",
                 err.message);
        }
    }
    pthread_mutex_unlock(&book->lock);
}

void moe_checksum_book_identify(moe_checksum_book *book, moe_weights_identity *identity)
{
    uint64_t whole = book->layout;
    pthread_mutex_lock(&book->lock);
    note_damage(book);
    for (size_t i = 0; i < book->n_parts && whole != 0; i++) {
        uint64_t sum = moe_weight_sums_get(&book->sums, book->parts[i]);
        whole = sum != 0 ? mix(whole, &sum, sizeof sum) : 0;
    }
    *identity = (moe_weights_identity){.whole = whole,
                                       .files = mix(book->files, &book->epoch, sizeof book->epoch)};
    pthread_mutex_unlock(&book->lock);
}

bool moe_weights_identity_matches(const moe_weights_identity *now, const moe_weights_identity *then)
{
    return now->whole != 0 && then->whole != 0 ? now->whole == then->whole
                                               : now->files == then->files;
}

void moe_checksum_book_close(moe_checksum_book *book)
{
    if (book->parts != NULL && book->is_given != NULL) {
        moe_checksum_book_keep(book);
    }
    moe_weight_sums_free(&book->sums);
    free(book->parts);
    free(book->is_given);
    free(book->path);
    if (book->has_lock) {
        pthread_mutex_destroy(&book->lock);
    }
    *book = (moe_checksum_book){0};
}
