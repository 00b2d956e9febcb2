/* SPDX-License-Identifier: MIT */
/* The book of a model's checksums: those of its calibration, and those that were made while the
 * weights were first read. It is kept in a small file beside the model, MODEL.moe-sums:
 *
 *   header | u64 [n] checksums, 0: not known | XXH3 of everything before
 *
 * A made checksum is of these very files. When inode, size or a time of one has changed, the book
 * begins anew: the bytes may be others, and what was read before may have been damaged. */
#ifndef MOE_SIDECAR_CHECKSUM_BOOK_H
#define MOE_SIDECAR_CHECKSUM_BOOK_H

#include <pthread.h>

#include "offload/model_reader.h"
#include "offload/weight_sums.h"
#include "runtime/sidecar/calibration.h"
#include "runtime/sidecar/model_parts.h"

typedef struct moe_checksum_book {
    moe_weight_sums sums;
    /* Set at open, never changed. */
    const moe_gguf *gguf;
    const moe_tensor_map *map;
    char *path;      /* NULL: the book is in memory alone */
    uint32_t *parts; /* [n_parts] entries of sums that the model has, in the order of its bytes */
    size_t n_parts;
    bool *is_given;  /* [sums.n] by the calibration, which keeps it */
    uint64_t layout; /* of the parts: where they are in the files */
    uint64_t files;  /* inodes, sizes and times of the files when they were opened */
    moe_model_reader_options reading;
    moe_log_fn log;
    void *user;
    /* Under the lock. */
    pthread_mutex_t lock;
    uint64_t epoch; /* another one whenever damage was found */
    bool has_lock, is_bumped, told;
} moe_checksum_book;

typedef struct moe_checksum_book_options {
    const moe_tensor_map *map;
    const moe_calibration *calibration;      /* NULL: none */
    const moe_model_reader_options *reading; /* of the model, with its gguf */
    const char *named; /* "auto": beside the model; NULL, "none": in memory alone; else a path */
    moe_log_fn log;    /* is told, once, why the book is not kept */
    void *user;
} moe_checksum_book_options;

/* Which weights something was computed from. */
typedef struct moe_weights_identity {
    uint64_t whole; /* of all checksums; 0: not all are known */
    uint64_t files; /* of inodes, sizes and times; changes when damage is found */
} moe_weights_identity;

/* A file that cannot be read or used is none; MOE_ERR_CANCELLED and MOE_ERR_MEMORY. */
int moe_checksum_book_open(moe_checksum_book *book, const moe_checksum_book_options *options,
                           moe_error *err);
/* The entry of sums for a part; and where the part of an entry is. */
size_t moe_checksum_book_entry(const moe_checksum_book *book, const moe_model_part *part);
moe_model_range moe_checksum_book_range(const moe_checksum_book *book, uint32_t at);
/* Compares a checksum of what was read with the book's, which it becomes where there is none.
 * MOE_ERR_IO: the bytes are others than at their first reading. */
int moe_checksum_book_check(moe_checksum_book *book, size_t at, uint64_t hash, moe_error *err);
/* Checks all of a calibration that is being made. */
int moe_checksum_book_check_calibration(moe_checksum_book *book, const moe_calibration *calibration,
                                        moe_error *err);
/* Writes what has been made since the book was read, together with what others have written. Any
 * thread may call it. */
void moe_checksum_book_keep(moe_checksum_book *book);
void moe_checksum_book_identify(moe_checksum_book *book, moe_weights_identity *identity);
/* Whether what was computed from `then` is what these weights give now. */
bool moe_weights_identity_matches(const moe_weights_identity *now,
                                  const moe_weights_identity *then);
/* Keeps and frees it. Also after an error of open(), and of one that is all zero. */
void moe_checksum_book_close(moe_checksum_book *book);

#endif
