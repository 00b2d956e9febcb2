/* SPDX-License-Identifier: MIT */
#include "tests/io/io_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const io_variant io_variants[] = {
    {"io_uring", MOE_IO_URING, &moe_io_uring_ops, false, false},
    {"threads", MOE_IO_THREADS, &moe_io_threads_ops, false, false},
    {"sync", MOE_IO_SYNC, &moe_io_sync_ops, false, false},
    {"io_uring buffered", MOE_IO_URING, &moe_io_uring_ops, true, false},
    {"threads buffered", MOE_IO_THREADS, &moe_io_threads_ops, true, false},
    {"sync buffered", MOE_IO_SYNC, &moe_io_sync_ops, true, false},
    {"io_uring wrapped", MOE_IO_URING, &moe_io_uring_ops, false, true},
    {"threads wrapped", MOE_IO_THREADS, &moe_io_threads_ops, false, true},
    {"sync wrapped", MOE_IO_SYNC, &moe_io_sync_ops, false, true},
};
const size_t io_n_variants = sizeof io_variants / sizeof io_variants[0];

uint64_t io_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

void io_file_create(io_file *file, uint64_t size, uint64_t seed)
{
    snprintf(file->path, sizeof file->path, "test-io-XXXXXX");
    file->fd = mkstemp(file->path);
    assert_true(file->fd >= 0);
    file->size = size;
    file->bytes = malloc(size);
    assert_non_null(file->bytes);
    for (uint64_t i = 0; i < size; i += sizeof seed) {
        uint64_t bytes = io_random(&seed);
        memcpy(file->bytes + i, &bytes, size - i < sizeof bytes ? size - i : sizeof bytes);
    }
    for (uint64_t at = 0; at < size;) {
        ssize_t n = write(file->fd, file->bytes + at, size - at);
        assert_true(n > 0);
        at += (uint64_t)n;
    }
}

void io_file_remove(io_file *file)
{
    if (file->fd >= 0) {
        close(file->fd);
        unlink(file->path);
        free(file->bytes);
    }
    file->fd = -1;
}

moe_byte_source *io_file_source(const io_file *file)
{
    moe_byte_source *source;
    moe_error err = {.message = ""};
    if (moe_file_source_of(&source, file->path, file->fd, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    source->size = file->size;
    return source;
}

void io_guarded_create(io_guarded *guarded, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    guarded->bytes = bytes;
    guarded->mapped = (bytes + page - 1) / page * page + page;
    uint8_t *all =
        mmap(NULL, guarded->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(all != MAP_FAILED);
    assert_int_equal(mprotect(all + guarded->mapped - page, page, PROT_NONE), 0);
    guarded->memory = all + guarded->mapped - page - bytes;
}

void io_guarded_free(io_guarded *guarded)
{
    munmap(guarded->memory + guarded->bytes + (size_t)sysconf(_SC_PAGESIZE) - guarded->mapped,
           guarded->mapped);
    guarded->memory = NULL;
}

static void keep_log(const char *line, void *user)
{
    io_fixture *f = user;
    if (f->n_log < IO_MAX_LOG) {
        snprintf(f->log[f->n_log], sizeof f->log[0], "%s", line);
    }
    f->n_log++;
}

static moe_fault no_fault(void *user, const moe_io_read *read, uint64_t n)
{
    (void)user;
    (void)read;
    (void)n;
    return (moe_fault){MOE_FAULT_NONE, 0};
}

void io_fixture_init(io_fixture *f, const io_variant *variant, const io_file files[2])
{
    memset(f, 0, sizeof *f);
    f->variant = variant;
    for (uint32_t i = 0; i < 2; i++) {
        f->files[i] = files[i];
        f->range_files[i] = io_file_source(&f->files[i]);
    }
    f->options = (moe_range_reader_options){.kind = variant->kind,
                                            .files = f->range_files,
                                            .n_files = 2,
                                            .buffered = variant->buffered,
                                            .block_bytes = 128u << 10,
                                            .depth = 8,
                                            .log = keep_log,
                                            .user = f};
    f->fault = (moe_io_fault){.inner = variant->ops, .choose = no_fault};
    if (variant->wrapped) {
        f->options.engine = &moe_io_fault_ops;
        f->options.engine_context = &f->fault;
    }
}

void io_fixture_open(io_fixture *f)
{
    moe_error err = {.message = ""};
    int rc = moe_range_reader_open(&f->reader, &f->options, &err);
    if (rc != MOE_OK) {
        print_error("%s\n", err.message);
    }
    assert_int_equal(rc, MOE_OK);
}

void io_fixture_slots(io_fixture *f, uint32_t n, uint64_t range_bytes)
{
    assert_true(n <= IO_MAX_SLOTS);
    for (f->n_slots = 0; f->n_slots < n; f->n_slots++) {
        io_guarded_create(&f->slots[f->n_slots], moe_range_buffer_bytes(f->reader, range_bytes));
    }
}

void io_fixture_close(io_fixture *f)
{
    assert_true(moe_range_reader_close(&f->reader));
    assert_null(f->reader);
    while (f->n_slots > 0) {
        io_guarded_free(&f->slots[--f->n_slots]);
    }
}

bool io_submit(io_fixture *f, uint32_t slot, uint32_t file, uint64_t offset, uint64_t size)
{
    moe_range range = {
        .file = file, .offset = offset, .size = size, .buffer = f->slots[slot].memory, .tag = slot};
    assert_true(moe_range_buffer_bytes(f->reader, size) <= f->slots[slot].bytes);
    return moe_range_reader_submit(f->reader, &range);
}

void io_check_bytes(io_fixture *f, const moe_range_done *done, uint32_t file, uint64_t offset,
                    uint64_t size)
{
    if (done->status != MOE_OK) {
        print_error("%s\n", done->error.message);
    }
    assert_int_equal(done->status, MOE_OK);
    if (size == 0) {
        return;
    }
    const io_guarded *slot = &f->slots[done->tag];
    assert_true(done->data >= slot->memory);
    assert_true(done->data + size <= slot->memory + slot->bytes);
    /* cmocka compares byte by byte. */
    if (memcmp(done->data, f->files[file].bytes + offset, size) != 0) {
        assert_memory_equal(done->data, f->files[file].bytes + offset, size);
    }
}

moe_range_done io_read_one(io_fixture *f, uint32_t file, uint64_t offset, uint64_t size)
{
    moe_range_done done;
    assert_true(io_submit(f, 0, file, offset, size));
    uint32_t n = moe_range_reader_wait(f->reader, &done, 1, 20000000000);
    assert_int_equal(n, 1);
    assert_int_equal(done.tag, 0);
    return done;
}

typedef struct bound_case {
    const io_case *test;
    const io_variant *variant;
    io_file *files;
} bound_case;

/* Restores a file that a case may have changed. */
static void mend(io_file *file, uint64_t size, uint64_t seed)
{
    struct stat by_fd;
    struct stat by_path;
    bool whole = file->fd > 0 && fstat(file->fd, &by_fd) == 0 && (uint64_t)by_fd.st_size == size &&
                 stat(file->path, &by_path) == 0 && by_path.st_ino == by_fd.st_ino;
    if (!whole) {
        io_file_remove(file);
        io_file_create(file, size, seed);
    }
}

static void run_bound(void **state)
{
    const bound_case *bound = *state;
    io_fixture *f = malloc(sizeof *f);
    assert_non_null(f);
    mend(&bound->files[0], IO_FILE_BYTES, 77);
    mend(&bound->files[1], IO_FILE_BYTES - 4096, 78);
    io_fixture_init(f, bound->variant, bound->files);
    bound->test->run(f);
    for (uint32_t i = 0; i < 2; i++) {
        moe_byte_source_let_go(&f->range_files[i]);
    }
    free(f);
}

int io_run_cases(const char *group, const io_case *cases, size_t n_cases,
                 bool (*wanted)(const io_variant *))
{
    size_t limit = n_cases * io_n_variants;
    struct CMUnitTest *tests = calloc(limit, sizeof *tests);
    bound_case *bound = calloc(limit, sizeof *bound);
    char(*names)[96] = calloc(limit, sizeof *names);
    io_file files[2] = {{.fd = -1}, {.fd = -1}};
    size_t n = 0;
    for (size_t v = 0; v < io_n_variants && names != NULL && bound != NULL && tests != NULL; v++) {
        for (size_t c = 0; c < n_cases; c++) {
            if (wanted != NULL && !wanted(&io_variants[v])) {
                continue;
            }
            bound[n] = (bound_case){&cases[c], &io_variants[v], files};
            snprintf(names[n], sizeof names[n], "%s: %s", io_variants[v].name, cases[c].name);
            tests[n] = (struct CMUnitTest){names[n], run_bound, NULL, NULL, &bound[n]};
            n++;
        }
    }
    int failed = n == 0 ? 1 : _cmocka_run_group_tests(group, tests, n, NULL, NULL);
    io_file_remove(&files[0]);
    io_file_remove(&files[1]);
    free(names);
    free(bound);
    free(tests);
    return failed;
}
