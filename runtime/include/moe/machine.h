/* SPDX-License-Identifier: MIT */
/* The machine as the engine sees it, and how fast its storage brings experts. No engine is needed;
 * every function may be called from any thread at any time. Errors and ownership are as in moe.h,
 * which includes this. */
#ifndef MOE_MACHINE_H
#define MOE_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The machine in a JSON object (UTF-8, terminated): packages, cores, caches, NUMA nodes, memory and
 * its cgroup limit, huge pages, CPU features and kernels, I/O facilities, GPUs (with why there are
 * none), and, when model_path is not NULL, the storage that holds it. *json: moe_free(). */
MOE_API int moe_machine_describe(const char *model_path, char **json, moe_error *err);

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

#ifdef __cplusplus
}
#endif
#endif
