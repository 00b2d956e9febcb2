/* SPDX-License-Identifier: MIT */
/* What experiments need and programs do not: measurements of storage and memory, and a cold page
 * cache.
 *
 * This header may change in every version. Its functions carry a symbol version of their own
 * (MOE_LAB_ and the library's version), so a program that calls one of them starts with the
 * library that it was linked with and with no other; programs that use moe.h alone are not
 * concerned. Errors, ownership and sizes of structs are as in moe.h.
 *
 * Threads (the groups are explained in moe.h):
 *   free:    moe_storage_test_init_sized, moe_storage_test_init, moe_storage_measure,
 *            moe_file_cache_drop
 *   in turn: moe_engine_measure_bandwidth */
#ifndef MOE_LAB_H
#define MOE_LAB_H

#include <moe/moe.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Storage and memory ------------------------------------------------------------------- */

/* Random ranges of one file, read as the engine reads experts. */
typedef struct moe_storage_test {
    size_t struct_size;       /* set by moe_storage_test_init() */
    const char *path;         /* required: any file; of a split model the part that is named */
    const char *io;           /* "auto", "uring", "threads", "sync"; NULL: auto */
    bool buffered;            /* through the page cache instead of O_DIRECT */
    bool registered;          /* buffers registered with the kernel; the engine's are not */
    bool small_pages;         /* buffers of small pages; default: huge ones where there are any */
    uint32_t block_bytes;     /* ranges are read in pieces of at most so many; 0: 1 MiB */
    uint32_t depth;           /* pieces in flight, at most 4096; 0: 16. For "sync" always 1 */
    uint64_t range_min_bytes; /* ranges are so long at least; 0: 1 MiB, or less in a small file */
    uint64_t range_max_bytes; /* ... at most, below the file's size; 0: 6 MiB, likewise */
    uint64_t total_bytes;     /* of ranges, then it ends; 0: 1 GiB */
    double max_seconds;       /* it also ends after so long; 0: no limit */
    uint64_t seed;            /* of the ranges: equal seeds ask for equal ranges */
} moe_storage_test;

typedef struct moe_storage_speed {
    size_t struct_size; /* set by the program: sizeof(moe_storage_speed) */
    double bytes_per_s;
    double cpu_s_per_gb; /* user and system time of the whole process, for 10^9 bytes */
    double seconds;      /* of reading; opening and touching buffers is not in it */
    uint64_t bytes_read; /* aligned supersets of the ranges */
    uint64_t n_ranges;   /* ranges read */
    uint64_t n_reads;    /* system calls' worth: pieces */
    double cached_share; /* of the file, in the page cache when reading began; -1: not known */
    bool direct;         /* O_DIRECT it was: the page cache played no part */
    uint8_t reserved[7]; /* 0 */
    char how[128];       /* "io_uring, O_DIRECT, 16 x 1 MiB" */
} moe_storage_speed;

MOE_API void moe_storage_test_init_sized(moe_storage_test *test, size_t struct_size);
static inline void moe_storage_test_init(moe_storage_test *test)
{
    moe_storage_test_init_sized(test, sizeof *test);
}
/* Drops the file from the page cache as far as the kernel lets it, then reads. Takes buffers of
 * about 2 * depth * block_bytes, or 2 * depth ranges where those are shorter, and runs in the
 * calling thread (and in the I/O engine's). MOE_ERR_ARGUMENT where ranges and file do not go
 * together, MOE_ERR_IO where the device fails. */
MOE_API int moe_storage_measure(const moe_storage_test *test, moe_storage_speed *speed,
                                moe_error *err);

/* Asks the kernel to forget what it caches of a model's files, all parts (posix_fadvise; no rights
 * are needed), so that whoever opens it next begins with a cold page cache. Pages that are dirty or
 * mapped by somebody stay. *cached_share (may be NULL): the share that is still cached; -1: not
 * known. */
MOE_API int moe_file_cache_drop(const char *model_path, double *cached_share, moe_error *err);

/* The memory bandwidth that the engine's threads reach reading a buffer of 512 MiB (allocated for
 * it; MOE_ERR_BUDGET where the plan leaves no room), best of three: with active_bytes the bound of
 * decoding one sequence from memory. MOE_ERR_UNSUPPORTED on a GPU, whose threads they are not. */
MOE_API int moe_engine_measure_bandwidth(moe_engine *engine, double *bytes_per_s, moe_error *err);

#ifdef __cplusplus
}
#endif
#endif
