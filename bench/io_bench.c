/* SPDX-License-Identifier: MIT */
#include "bench/io_bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

#define HUGE_PAGE (2u << 20)

typedef struct bench {
    const moe_io_bench_options *options;
    uint64_t range_min, range_max, total;
    int fd;
    uint64_t file_bytes;
    void *mapping; /* of the arena, with room to align it */
    size_t mapped_bytes;
    uint8_t *arena;
    size_t slot_bytes;
    uint32_t n_slots;
    uint32_t *free_slots;
    uint32_t n_free;
    moe_range_reader *reader;
    uint64_t random;
} bench;

static uint64_t next_random(bench *b)
{
    b->random ^= b->random << 13;
    b->random ^= b->random >> 7;
    b->random ^= b->random << 17;
    return b->random >> 11;
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static int open_file(bench *b, moe_error *err)
{
    struct stat state;
    b->fd = open(b->options->path, O_RDONLY | O_CLOEXEC);
    if (b->fd < 0 || fstat(b->fd, &state) != 0) {
        return moe_fail(err, MOE_ERR_IO, "%s: %s", b->options->path, strerror(errno));
    }
    b->file_bytes = (uint64_t)state.st_size;
    if (b->range_min > b->range_max || b->file_bytes <= b->range_max) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "%s: ranges of %llu to %llu bytes of a file of %llu bytes",
                        b->options->path, (unsigned long long)b->range_min,
                        (unsigned long long)b->range_max, (unsigned long long)b->file_bytes);
    }
    return MOE_OK;
}

/* As many ranges as keep the depth filled, twice over. Touched before, so that faults are not
 * measured. */
static int make_arena(bench *b, moe_error *err)
{
    uint64_t block = b->options->block_bytes != 0 ? b->options->block_bytes : 1u << 20;
    uint64_t depth = b->options->depth != 0 ? b->options->depth : 16;
    b->n_slots = (uint32_t)(2 * depth * block / ((b->range_min + b->range_max) / 2) + 4);
    b->slot_bytes = (b->range_max + HUGE_PAGE + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    b->mapped_bytes = b->n_slots * b->slot_bytes + HUGE_PAGE;
    b->mapping =
        mmap(NULL, b->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    b->free_slots = moe_calloc(b->n_slots, sizeof *b->free_slots);
    if (b->mapping == MAP_FAILED || b->free_slots == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for %zu MiB of buffers",
                        b->mapped_bytes >> 20);
    }
    b->arena = (uint8_t *)(((uintptr_t)b->mapping + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    madvise(b->mapping, b->mapped_bytes, b->options->small_pages ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    memset(b->arena, 1, b->n_slots * b->slot_bytes);
    for (uint32_t i = 0; i < b->n_slots; i++) {
        b->free_slots[b->n_free++] = i;
    }
    return MOE_OK;
}

static int open_reader(bench *b, moe_error *err)
{
    const moe_io_bench_options *o = b->options;
    moe_range_file file = {.path = o->path, .fd = b->fd, .size = b->file_bytes};
    moe_range_reader_options options = {
        .kind = o->kind,
        .files = &file,
        .n_files = 1,
        .buffered = o->buffered,
        .block_bytes = o->block_bytes,
        .depth = o->depth,
        .max_ranges = b->n_slots,
        .buffer_arena = o->plain_buffers ? NULL : b->arena,
        .buffer_arena_bytes = o->plain_buffers ? 0 : b->n_slots * b->slot_bytes,
    };
    return moe_range_reader_open(&b->reader, &options, err);
}

static void submit_random(bench *b)
{
    uint32_t slot = b->free_slots[--b->n_free];
    uint64_t size = b->range_min + next_random(b) % (b->range_max - b->range_min + 1);
    moe_range range = {.offset = next_random(b) % (b->file_bytes - size),
                       .size = size,
                       .buffer = b->arena + slot * b->slot_bytes,
                       .tag = slot};
    moe_range_reader_submit(b->reader, &range);
}

static int read_ranges(bench *b, moe_io_bench_result *result, moe_error *err)
{
    uint64_t start = moe_now_ns();
    double cpu = cpu_seconds();
    double limit = b->options->max_seconds > 0 ? b->options->max_seconds : 1e9;
    int status = MOE_OK;
    bool more = true;
    while (more || b->n_free < b->n_slots) {
        while (more && b->n_free > 0) {
            submit_random(b);
            moe_range_reader_get_stats(b->reader, &result->stats);
            more = result->stats.bytes_requested < b->total &&
                   (double)(moe_now_ns() - start) / 1e9 < limit && status == MOE_OK;
        }
        moe_range_done done[16];
        uint32_t n = moe_range_reader_wait(b->reader, done, 16, -1);
        for (uint32_t i = 0; i < n; i++) {
            b->free_slots[b->n_free++] = (uint32_t)done[i].tag;
            if (done[i].status != MOE_OK && status == MOE_OK) {
                status = moe_fail(err, done[i].status, "%s", done[i].error.message);
            }
            result->n_ranges += done[i].status == MOE_OK;
        }
    }
    result->seconds = (double)(moe_now_ns() - start) / 1e9;
    result->cpu_seconds = cpu_seconds() - cpu;
    moe_range_reader_get_stats(b->reader, &result->stats);
    moe_range_reader_describe(b->reader, result->reader, sizeof result->reader);
    return status;
}

int moe_io_bench_run(moe_io_bench_result *result, const moe_io_bench_options *options,
                     moe_error *err)
{
    bench b = {.options = options, .fd = -1, .mapping = MAP_FAILED};
    b.range_min = options->range_min_bytes != 0 ? options->range_min_bytes : 1u << 20;
    b.range_max = options->range_max_bytes != 0 ? options->range_max_bytes : 6u << 20;
    b.total = options->total_bytes != 0 ? options->total_bytes : 1u << 30;
    b.random = options->seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
    memset(result, 0, sizeof *result);
    int rc = open_file(&b, err);
    rc = rc == MOE_OK ? make_arena(&b, err) : rc;
    rc = rc == MOE_OK ? open_reader(&b, err) : rc;
    rc = rc == MOE_OK ? read_ranges(&b, result, err) : rc;
    moe_range_reader_close(&b.reader);
    if (b.mapping != MAP_FAILED) {
        munmap(b.mapping, b.mapped_bytes);
    }
    free(b.free_slots);
    if (b.fd >= 0) {
        close(b.fd);
    }
    return rc;
}
