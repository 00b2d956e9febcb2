/* SPDX-License-Identifier: MIT */
/* Measures the range reader: random ranges of a file, as experts would be read. */
#ifndef MOE_BENCH_IO_BENCH_H
#define MOE_BENCH_IO_BENCH_H

#include "offload/io/range_reader.h"

typedef struct moe_io_bench_options {
    const char *path;
    moe_io_kind kind;
    bool buffered;            /* without O_DIRECT */
    bool plain_buffers;       /* not registered with the kernel */
    bool small_pages;         /* no huge pages for the buffers */
    uint32_t block_bytes;     /* 0: the reader's default */
    uint32_t depth;           /* 0: the reader's default */
    uint64_t range_min_bytes; /* ranges are so long at least; 0: 1 MiB */
    uint64_t range_max_bytes; /* at most; 0: 6 MiB */
    uint64_t total_bytes;     /* stop after so many; 0: 1 GiB */
    double max_seconds;       /* stop after so long; 0: no limit */
    uint64_t seed;            /* of the ranges */
} moe_io_bench_options;

typedef struct moe_io_bench_result {
    char reader[128]; /* moe_range_reader_describe() */
    double seconds;
    double cpu_seconds; /* user and system, of all threads of the process */
    uint64_t n_ranges;
    moe_range_reader_stats stats;
} moe_io_bench_result;

int moe_io_bench_run(moe_io_bench_result *result, const moe_io_bench_options *options,
                     moe_error *err);

static inline double moe_io_bench_gb_per_s(const moe_io_bench_result *result)
{
    return (double)result->stats.bytes_read / result->seconds / 1e9;
}

static inline double moe_io_bench_cpu_s_per_gb(const moe_io_bench_result *result)
{
    return result->cpu_seconds / ((double)result->stats.bytes_read / 1e9);
}

#endif
