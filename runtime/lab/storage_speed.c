/* SPDX-License-Identifier: MIT */
/* moe_storage_measure(): runs the range reader alone, on random ranges of a file. Buffers are the
 * slots of one arena, twice as many as fill the depth, touched before the clock starts. A range
 * takes a free slot; its bytes are not used. The file is first dropped from the page cache, and the
 * result says how much of it stayed there. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <moe/lab.h>
#include <moe/machine.h>

#include "offload/io/range_reader.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"
#include "runtime/base/random.h"
#include "runtime/lab/file_cache.h"

#define HUGE_PAGE     ((size_t)2 << 20)
#define MAX_DEPTH     4096u
#define PATIENCE_S    30
#define MAX_ALIGNMENT 4096u /* alignment of a slot, until the reader gives its own */

typedef struct measurement {
    const moe_storage_test *test;
    moe_storage_speed *speed;
    moe_io_kind kind;
    uint64_t range_min, range_max, total;
    uint32_t block_bytes, depth;
    int fds[1 + MOE_RANGE_COPIES]; /* the file's and its copies' */
    uint64_t file_bytes;
    void *mapping; /* of the arena, with room to align it */
    size_t mapped_bytes;
    uint8_t *arena;
    size_t slot_bytes;
    uint32_t n_slots;
    uint32_t *free_slots; /* [n_slots], of which the first n_free are valid */
    uint32_t n_free;
    moe_range_reader *reader;
    moe_random random;
} measurement;

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static int check_test(measurement *m, moe_error *err)
{
    const moe_storage_test *t = m->test;
    if (t->path == NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "storage test: name a file in path");
    }
    if (t->depth > MAX_DEPTH) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "storage test: a depth of %u; use 1 to %u", t->depth,
                        MAX_DEPTH);
    }
    if (t->n_copies > MOE_RANGE_COPIES || (t->n_copies > 0 && t->copies == NULL)) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "storage test: %zu copies; at most %u", t->n_copies,
                        MOE_RANGE_COPIES);
    }
    if ((int)t->io < MOE_IO_AUTO || t->io > MOE_IO_SYNC || t->reserved != 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "storage test: io is %d, which is none of MOE_IO_AUTO, MOE_IO_URING, "
                        "MOE_IO_THREADS or MOE_IO_SYNC (and reserved must be 0)",
                        (int)t->io);
    }
    m->kind = t->io;
    m->block_bytes = t->block_bytes != 0 ? t->block_bytes : 1u << 20;
    m->depth = t->depth != 0 ? t->depth : 16;
    m->total = t->total_bytes != 0 ? t->total_bytes : 1u << 30;
    moe_random_seed(&m->random, t->seed);
    return MOE_OK;
}

/* Returns the path of source 0, the file, or of a copy, source 1 and following. */
static const char *path_of(const measurement *m, size_t source)
{
    return source == 0 ? m->test->path : m->test->copies[source - 1];
}

static int open_source(measurement *m, size_t source, moe_error *err)
{
    const char *path = path_of(m, source);
    struct stat state;
    if (path == NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "storage test: a copy without a path");
    }
    m->fds[source] = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (m->fds[source] < 0 || fstat(m->fds[source], &state) != 0) {
        return moe_fail(err, MOE_ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (!S_ISREG(state.st_mode)) {
        return moe_fail(err, MOE_ERR_IO, "%s is not a regular file", path);
    }
    if (source > 0 && (uint64_t)state.st_size != m->file_bytes) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "%s is no copy of %s: it has another size", path,
                        m->test->path);
    }
    m->file_bytes = (uint64_t)state.st_size;
    return MOE_OK;
}

static int open_files(measurement *m, moe_error *err)
{
    const moe_storage_test *t = m->test;
    for (size_t i = 0; i <= t->n_copies; i++) {
        MOE_TRY(open_source(m, i, err));
    }
    uint64_t largest = t->range_max_bytes != 0 ? t->range_max_bytes : 6u << 20;
    if (t->range_max_bytes == 0 && largest > m->file_bytes / 2) {
        largest = m->file_bytes / 2;
    }
    uint64_t smallest = largest < 1u << 20 ? largest : 1u << 20;
    smallest = t->range_min_bytes != 0 ? t->range_min_bytes : smallest;
    m->range_max = t->range_max_bytes == 0 && smallest > largest ? smallest : largest;
    m->range_min = smallest;
    if (m->range_min == 0 || m->range_min > m->range_max || m->file_bytes <= m->range_max) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "%s: ranges of %llu to %llu bytes of a file of %llu bytes", t->path,
                        (unsigned long long)m->range_min, (unsigned long long)m->range_max,
                        (unsigned long long)m->file_bytes);
    }
    return MOE_OK;
}

/* Makes room for twice as many ranges as fill the depth. A range shorter than a block is one read.
 * Touches the memory, so that page faults are not measured. */
static int make_arena(measurement *m, moe_error *err)
{
    uint64_t mean = (m->range_min + m->range_max) / 2;
    uint64_t per_read = mean < m->block_bytes ? mean : m->block_bytes;
    uint64_t in_flight = m->depth * (1 + (uint64_t)m->test->n_copies);
    m->n_slots = (uint32_t)(2 * in_flight * per_read / mean + 4);
    m->slot_bytes =
        (m->range_max + 2 * MAX_ALIGNMENT + MAX_ALIGNMENT - 1) & ~((size_t)MAX_ALIGNMENT - 1);
    size_t arena_bytes = (m->n_slots * m->slot_bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    m->mapped_bytes = arena_bytes + HUGE_PAGE;
    m->mapping =
        mmap(NULL, m->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m->free_slots = moe_calloc(m->n_slots, sizeof *m->free_slots);
    if (m->mapping == MAP_FAILED || m->free_slots == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY,
                        "no memory for %zu MiB of buffers; a smaller block or depth takes less",
                        m->mapped_bytes >> 20);
    }
    m->arena = (uint8_t *)(((uintptr_t)m->mapping + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    madvise(m->mapping, m->mapped_bytes, m->test->small_pages ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    memset(m->arena, 1, arena_bytes);
    for (uint32_t i = 0; i < m->n_slots; i++) {
        m->free_slots[m->n_free++] = i;
    }
    return MOE_OK;
}

static int open_reader(measurement *m, moe_error *err)
{
    const moe_storage_test *t = m->test;
    moe_byte_source *files[1 + MOE_RANGE_COPIES] = {NULL};
    int status = MOE_OK;
    for (size_t i = 0; i <= t->n_copies && status == MOE_OK; i++) {
        status = moe_file_source_of(&files[i], path_of(m, i), m->fds[i], err);
    }
    moe_range_reader_options options = {
        .kind = m->kind,
        .files = files,
        .n_files = 1,
        .n_copies = (uint32_t)t->n_copies,
        .buffered = t->buffered,
        .block_bytes = m->block_bytes,
        .depth = m->depth,
        .max_ranges = m->n_slots,
    };
    status = status == MOE_OK ? moe_range_reader_open(&m->reader, &options, err) : status;
    for (size_t i = 0; i <= t->n_copies; i++) {
        moe_byte_source_let_go(&files[i]);
    }
    if (status == MOE_OK && (moe_range_reader_alignment(m->reader) > MAX_ALIGNMENT ||
                             moe_range_buffer_bytes(m->reader, m->range_max) > m->slot_bytes)) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: direct reads aligned to %zu bytes; measure buffered ones", t->path,
                        moe_range_reader_alignment(m->reader));
    }
    if (status == MOE_OK && t->registered) {
        moe_range_reader_use_arena(m->reader, m->arena, m->n_slots * m->slot_bytes);
    }
    return status;
}

static void submit_random(measurement *m)
{
    uint32_t slot = m->free_slots[--m->n_free];
    uint64_t size = m->range_min + moe_random_next(&m->random) % (m->range_max - m->range_min + 1);
    moe_range range = {.offset = moe_random_next(&m->random) % (m->file_bytes - size),
                       .size = size,
                       .buffer = m->arena + slot * m->slot_bytes,
                       .tag = slot};
    moe_range_reader_submit(m->reader, &range);
}

static int read_ranges(measurement *m, moe_error *err)
{
    moe_range_reader_stats stats = {0};
    uint64_t start = moe_now_ns();
    double cpu = cpu_seconds();
    double limit = m->test->max_seconds > 0 ? m->test->max_seconds : 1e9;
    int status = MOE_OK;
    bool more = true;
    while (more || m->n_free < m->n_slots) {
        while (more && m->n_free > 0) {
            submit_random(m);
            moe_range_reader_get_stats(m->reader, &stats);
            more = stats.bytes_requested < m->total &&
                   (double)(moe_now_ns() - start) / 1e9 < limit && status == MOE_OK;
        }
        moe_range_done done[16];
        uint32_t n = moe_range_reader_wait(m->reader, done, 16, PATIENCE_S * INT64_C(1000000000));
        if (n == 0) {
            return moe_fail(
                err, MOE_ERR_IO,
                "%s: no read was answered for %d s; the disk may hang (look into dmesg)",
                m->test->path, PATIENCE_S);
        }
        for (uint32_t i = 0; i < n; i++) {
            m->free_slots[m->n_free++] = (uint32_t)done[i].tag;
            if (done[i].status != MOE_OK && status == MOE_OK) {
                status = moe_fail(err, done[i].status, "%s", done[i].error.message);
            }
            more = more && status == MOE_OK;
            m->speed->n_ranges += done[i].status == MOE_OK;
        }
    }
    uint64_t ns = moe_now_ns() - start;
    moe_range_reader_get_stats(m->reader, &stats);
    moe_range_reader_describe(m->reader, m->speed->how, sizeof m->speed->how);
    m->speed->direct = strstr(m->speed->how, "O_DIRECT") != NULL;
    m->speed->seconds = (double)(ns > 0 ? ns : 1) / 1e9;
    m->speed->bytes_read = stats.bytes_read;
    m->speed->n_reads = stats.n_reads;
    m->speed->bytes_per_s = (double)stats.bytes_read / m->speed->seconds;
    m->speed->cpu_s_per_gb =
        stats.bytes_read > 0 ? (cpu_seconds() - cpu) * 1e9 / (double)stats.bytes_read : 0;
    return status;
}

/* If the device has not finished a read, its buffer is not freed. */
static void close_all(measurement *m)
{
    bool done = moe_range_reader_close(&m->reader);
    if (m->mapping != MAP_FAILED && done) {
        munmap(m->mapping, m->mapped_bytes);
    }
    free(m->free_slots);
    for (size_t i = 0; i < sizeof m->fds / sizeof m->fds[0]; i++) {
        if (m->fds[i] >= 0) {
            close(m->fds[i]);
        }
    }
}

void moe_storage_test_init_sized(moe_storage_test *test, size_t struct_size)
{
    const moe_storage_test defaults = {.struct_size = sizeof defaults};
    moe_struct_init(&moe_kind_storage_test, test, struct_size, &defaults);
}

int moe_storage_measure(const moe_storage_test *test, moe_storage_speed *speed, moe_error *err)
{
    moe_storage_test t = {0};
    moe_storage_speed measured = {.cached_share = -1};
    measurement m = {.test = &t, .speed = &measured, .mapping = MAP_FAILED};
    memset(m.fds, 0xff, sizeof m.fds);
    int status = moe_struct_give(&moe_kind_storage_speed, speed, &measured, err);
    status = status == MOE_OK ? moe_struct_take(&moe_kind_storage_test, &t, test, err) : status;
    if (status != MOE_OK) {
        return status;
    }
    status = check_test(&m, err);
    status = status == MOE_OK ? open_files(&m, err) : status;
    status = status == MOE_OK ? make_arena(&m, err) : status;
    status = status == MOE_OK ? open_reader(&m, err) : status;
    if (status == MOE_OK) {
        for (size_t i = t.n_copies + 1; i-- > 0;) { /* ends with source 0, whose share is
                                                     * reported */
            uint64_t cached;
            bool known = moe_file_cache_drop_fd(m.fds[i], m.file_bytes, &cached);
            measured.cached_share = known ? (double)cached / (double)m.file_bytes : -1;
        }
        status = read_ranges(&m, err);
    }
    close_all(&m);
    (void)moe_struct_give(&moe_kind_storage_speed, speed, &measured, NULL);
    return status;
}
