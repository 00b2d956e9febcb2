/* SPDX-License-Identifier: MIT */
/* The book of a model's checksums: those of its calibration, and those that were made while the
 * weights were first read. It is kept in a small file beside the model, MODEL.moe-sums:
 *
 *   header | u64 [n] checksums, 0: not known | XXH3 of everything before
 *
 * A checksum that the engine made is valid only for the very same files. If the inode, the size or
 * a time of a file has changed, the book starts empty again, because the bytes may be others. */
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
    uint32_t *parts; /* [n_parts] entries of `sums`, in the order of the parts' bytes in the
                      * files */
    size_t n_parts;
    bool *is_given;  /* [sums.n] the checksum is a calibration's, whose file keeps it */
    uint64_t layout; /* of the parts: where they are in the files */
    uint64_t files;  /* inodes, sizes and times of the files when they were opened */
    moe_model_reader_options reading;
    moe_log_fn log;
    void *user;
    /* Under the lock. */
    pthread_mutex_t lock;
    uint64_t epoch; /* changes whenever damage was found */
    bool has_lock, is_bumped, told;
} moe_checksum_book;

typedef struct moe_checksum_book_options {
    const moe_tensor_map *map;
    const moe_calibration *calibration;      /* NULL: none */
    const moe_model_reader_options *reading; /* of the model, with its gguf */
    const char *named; /* "auto": beside the model; NULL, "none": in memory alone; else a path */
    moe_log_fn log;    /* called once, with the reason, if the book is not kept */
    void *user;
} moe_checksum_book_options;

/* Identifies the weights that something was computed from. */
typedef struct moe_weights_identity {
    uint64_t whole; /* hash of all checksums; 0: not all are known */
    uint64_t files; /* hash of inodes, sizes and times; also changes when damage is found */
} moe_weights_identity;

/* Opens a book. A file that cannot be read or used counts as missing. Can only fail with
 * MOE_ERR_CANCELLED or MOE_ERR_MEMORY. */
int moe_checksum_book_open(moe_checksum_book *book, const moe_checksum_book_options *options,
                           moe_error *err);
/* moe_checksum_book_entry() returns the number of the entry for a part's checksum;
 * moe_checksum_book_range() says which bytes the part of an entry has. */
size_t moe_checksum_book_entry(const moe_checksum_book *book, const moe_model_part *part);
moe_model_range moe_checksum_book_range(const moe_checksum_book *book, uint32_t at);
/* Compares the checksum of bytes that were just read with the book's entry, or stores it if the
 * entry is empty. Fails with MOE_ERR_IO if the bytes differ from those of their first reading. */
int moe_checksum_book_check(moe_checksum_book *book, size_t at, uint64_t hash, moe_error *err);
/* Compares all checksums of a calibration that is being made with the book's. */
int moe_checksum_book_check_calibration(moe_checksum_book *book, const moe_calibration *calibration,
                                        moe_error *err);
/* Writes all checksums that were made since the book was read, together with those that other
 * processes have written to the file since. Any thread may call it. */
void moe_checksum_book_keep(moe_checksum_book *book);
void moe_checksum_book_identify(moe_checksum_book *book, moe_weights_identity *identity);
/* Whether results that were computed from the weights `then` are also valid for the weights
 * `now`. */
bool moe_weights_identity_matches(const moe_weights_identity *now,
                                  const moe_weights_identity *then);
/* Writes the book (moe_checksum_book_keep()) and frees it. May be called after an error of open(),
 * and for a book that is all zero. */
void moe_checksum_book_close(moe_checksum_book *book);

#endif
