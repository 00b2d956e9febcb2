/* SPDX-License-Identifier: MIT */
/* Refusals of kernels, sandboxes and file systems, caused for real: each case runs in a child
 * process that has lost the facility under test. Cases that need privileges or devices that are
 * missing are skipped.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/loop.h>
#include <linux/seccomp.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "offload/io/uring_buffers.h"
#include "tests/io/io_fixture.h"

#define FILE_BYTES  ((1u << 20) + 777u)
#define ARENA_BYTES (4u << 20)

typedef struct told {
    char line[512];
    uint32_t n;
} told;

static void keep_line(const char *line, void *user)
{
    told *t = user;
    snprintf(t->line, sizeof t->line, "%s", line);
    t->n++;
}

/* Reads all of the file but a byte at either end, into an arena if there is one. Returns NULL, or
 * what went wrong. */
static const char *read_all(const moe_range_reader_options *options, const uint8_t *bytes,
                            const char *engine, uint8_t *arena)
{
    moe_range_reader *reader;
    moe_error err;
    if (moe_range_reader_open(&reader, options, &err) != MOE_OK) {
        return "open";
    }
    uint64_t size = options->files[0]->size - 2;
    const char *wrong = NULL;
    char text[128];
    moe_range_reader_describe(reader, text, sizeof text);
    uint8_t *buffer = arena;
    if (arena != NULL) {
        moe_range_reader_use_arena(reader, arena, ARENA_BYTES);
    } else {
        buffer = aligned_alloc(4096, moe_range_buffer_bytes(reader, size));
    }
    moe_range range = {.offset = 1, .size = size, .buffer = buffer};
    moe_range_done done;
    if (strstr(text, engine) == NULL) {
        wrong = "engine";
    } else if (buffer == NULL || !moe_range_reader_submit(reader, &range) ||
               moe_range_reader_wait(reader, &done, 1, 10000000000) != 1) {
        wrong = "wait";
    } else if (done.status != MOE_OK) {
        wrong = "status";
    } else if (memcmp(done.data, bytes + 1, size) != 0) {
        wrong = "bytes";
    }
    if (!moe_range_reader_close(&reader)) {
        wrong = "close";
    }
    if (arena == NULL) {
        free(buffer);
    }
    return wrong;
}

static moe_range_reader_options options_for(moe_byte_source **range_file, const io_file *file,
                                            told *t)
{
    *range_file = io_file_source(file);
    return (moe_range_reader_options){
        .files = range_file, .n_files = 1, .block_bytes = 1u << 16, .log = keep_line, .user = t};
}

/* io_uring_setup() fails so from here on. */
static bool forbid_io_uring(int error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

typedef const char *(*child_fn)(const io_file *file, int argument);

/* Runs fn in a child; it returns NULL, or what went wrong, or "skip". */
static void in_child(child_fn fn, int argument)
{
    io_file file;
    io_file_create(&file, FILE_BYTES, 3);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const char *wrong = fn(&file, argument);
        if (wrong != NULL && strcmp(wrong, "skip") != 0) {
            fprintf(stderr, "in the child: %s\n", wrong);
        }
        _exit(wrong == NULL ? 0 : strcmp(wrong, "skip") == 0 ? 77 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    io_file_remove(&file);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static const char *without_io_uring(const io_file *file, int error)
{
    moe_byte_source *range_file;
    moe_range_reader *reader;
    moe_error err;
    told t = {.n = 0};
    moe_range_reader_options options = options_for(&range_file, file, &t);
    if (!forbid_io_uring(error)) {
        return "skip";
    }
    const char *wrong = read_all(&options, file->bytes, "threads", NULL);
    if (wrong != NULL) {
        return wrong;
    }
    if (t.n != 1 || strstr(t.line, strerror(error)) == NULL) {
        return "log";
    }
    options.kind = MOE_IO_URING;
    return moe_range_reader_open(&reader, &options, &err) == MOE_ERR_UNSUPPORTED ? NULL : "code";
}

static void test_no_io_uring(void **state)
{
    (void)state;
    in_child(without_io_uring, ENOSYS);
    in_child(without_io_uring, EPERM);
}

/* Buffers that may not be locked into memory: unregistered, one line, the same bytes. */
static const char *without_memlock(const io_file *file, int argument)
{
    (void)argument;
    moe_byte_source *range_file;
    told t = {.n = 0};
    moe_range_reader_options options = options_for(&range_file, file, &t);
    struct rlimit limit = {256u << 10, 256u << 10}; /* the ring itself counts, too */
    options.kind = MOE_IO_URING;
    options.buffered = true; /* another user may not open the file anew */
    uint8_t *arena = aligned_alloc(4096, ARENA_BYTES);
    if (arena == NULL || setrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
        (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0)) {
        return "skip";
    }
    const char *wrong = read_all(&options, file->bytes, "io_uring", arena);
    free(arena);
    if (wrong != NULL) {
        return wrong;
    }
    return t.n == 1 && strstr(t.line, "RLIMIT_MEMLOCK") != NULL ? NULL : "log";
}

static void test_memlock(void **state)
{
    (void)state;
    in_child(without_memlock, 0);
}

/* procfs opens nothing with O_DIRECT. Its files claim to be empty, and are read all the same. */
static void test_direct_refused_at_open(void **state)
{
    (void)state;
    uint8_t bytes[4096];
    io_file file = {.path = "/proc/version", .bytes = bytes};
    file.fd = open(file.path, O_RDONLY);
    assert_true(file.fd >= 0);
    ssize_t size = read(file.fd, bytes, sizeof bytes);
    assert_true(size > 2);
    file.size = (uint64_t)size;
    moe_byte_source *range_file;
    told t = {.n = 0};
    moe_range_reader_options options = options_for(&range_file, &file, &t);
    assert_null(read_all(&options, bytes, "buffered", NULL));
    assert_int_equal(t.n, 1);
    assert_non_null(strstr(t.line, "/proc/version"));
    assert_non_null(strstr(t.line, "page cache"));
    moe_byte_source_let_go(&range_file);
    close(file.fd);
}

static int64_t read_memory(const moe_byte_source *source, void *dst, size_t size, uint64_t offset,
                           unsigned flags)
{
    const io_file *file = (const io_file *)(const void *)source->name;
    uint64_t left = offset < source->size ? source->size - offset : 0;
    size = size < left ? size : left;
    memcpy(dst, file->bytes + offset, size);
    return (flags & MOE_READ_DIRECT) != 0 ? -EINVAL : (int64_t)size;
}

static bool never_identify(const moe_byte_source *source, bool by_name, moe_byte_identity *identity)
{
    (void)source;
    (void)by_name;
    (void)identity;
    return false;
}

static void count_close(moe_byte_source *source)
{
    source->size++;
}

/* Bytes that lie in no file: threads and plain reads have them, io_uring says that it has not. The
 * source is closed once nobody holds it. */
static void test_no_file(void **state)
{
    (void)state;
    io_file file;
    io_file_create(&file, FILE_BYTES, 9);
    const moe_byte_source_ops ops = {read_memory, never_identify, count_close};
    moe_byte_source source = {.ops = &ops,
                              .n_holders = 1,
                              .name = file.path, /* the file's first member */
                              .size = FILE_BYTES,
                              .fd = -1,
                              .direct_fd = -1};
    moe_byte_source *held = &source;
    told t = {.n = 0};
    moe_range_reader_options options = {
        .files = &held, .n_files = 1, .block_bytes = 1u << 16, .log = keep_line, .user = &t};
    assert_null(read_all(&options, file.bytes, "threads", NULL));
    assert_int_equal(t.n, 2); /* no direct reads, and another engine */
    for (int kind = MOE_IO_THREADS; kind <= MOE_IO_SYNC; kind++) {
        options.kind = (moe_io_kind)kind;
        assert_null(read_all(&options, file.bytes, "buffered", NULL));
    }
    moe_range_reader *reader;
    moe_error err;
    options.kind = MOE_IO_URING;
    assert_int_equal(moe_range_reader_open(&reader, &options, &err), MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "which is no file"));
    assert_int_equal(source.n_holders, 1);
    moe_byte_source_let_go(&held);
    assert_int_equal(source.size, FILE_BYTES + 1);
    io_file_remove(&file);
}

static sem_t hanging, go_on, closed;

static int64_t hang(const moe_byte_source *source, void *dst, size_t size, uint64_t offset,
                    unsigned flags)
{
    (void)source;
    (void)offset;
    (void)flags;
    sem_post(&hanging);
    while (sem_wait(&go_on) != 0) {
    }
    memset(dst, 7, size);
    return (int64_t)size;
}

static void tell_closed(moe_byte_source *source)
{
    (void)source;
    sem_post(&closed);
}

/* A reader that is closed while a read hangs leaves the source to that read, which closes it. */
static void test_source_of_hanging_read(void **state)
{
    (void)state;
    static uint8_t buffer[FILE_BYTES] __attribute__((aligned(4096)));
    const moe_byte_source_ops ops = {hang, never_identify, tell_closed};
    static char name[] = "hanging";
    moe_byte_source source = {
        .ops = &ops, .n_holders = 1, .name = name, .size = 4096, .fd = -1, .direct_fd = -1};
    moe_byte_source *held = &source;
    moe_range_reader *reader;
    moe_range_reader_options options = {.kind = MOE_IO_THREADS,
                                        .files = &held,
                                        .n_files = 1,
                                        .buffered = true,
                                        .depth = 4,
                                        .close_timeout_ms = 20};
    moe_range range = {.size = 4096, .buffer = buffer};
    moe_range_done done;
    assert_int_equal(sem_init(&hanging, 0, 0) + sem_init(&go_on, 0, 0) + sem_init(&closed, 0, 0),
                     0);
    assert_int_equal(moe_range_reader_open(&reader, &options, NULL), MOE_OK);
    assert_true(moe_range_reader_submit(reader, &range));
    assert_int_equal(moe_range_reader_wait(reader, &done, 1, 0), 0);
    while (sem_wait(&hanging) != 0) {
    }
    assert_false(moe_range_reader_close(&reader));
    moe_byte_source_let_go(&held);
    assert_int_equal(sem_trywait(&closed), -1);
    sem_post(&go_on);
    while (sem_wait(&closed) != 0) {
    }
    assert_int_equal(buffer[4095], 7);
}

/* Older kernels refuse O_DIRECT on tmpfs, newer ones take it: the bytes are the same. */
static void test_tmpfs(void **state)
{
    (void)state;
    io_file file;
    io_file_create(&file, FILE_BYTES, 5);
    int fd = memfd_create("test-io", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, file.bytes, file.size), file.size);
    close(file.fd);
    file.fd = fd;
    for (int kind = MOE_IO_AUTO; kind <= MOE_IO_SYNC; kind++) {
        moe_byte_source *range_file;
        told t = {.n = 0};
        moe_range_reader_options options = options_for(&range_file, &file, &t);
        options.kind = (moe_io_kind)kind;
        assert_null(read_all(&options, file.bytes, "", NULL));
        assert_true(t.n <= 1);
        moe_byte_source_let_go(&range_file);
    }
    io_file_remove(&file);
}

/* Whether the child of a fork has this memory. */
static bool child_has(void *memory, size_t bytes)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(msync(memory, bytes, MS_ASYNC) == 0 ? 0 : errno == ENOMEM ? 1 : 2);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) == 0;
}

/* An arena in many registered pieces, and buffers that lie in one, in the last, and in two. It is 4
 * MiB of memory, mapped again and again. */
static void test_large_arena(void **state)
{
    (void)state;
    const size_t piece = 4u << 20;
    const size_t bytes = ((size_t)1 << 30) + piece;
    int fd = memfd_create("test-io-arena", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, (off_t)piece), 0);
    uint8_t *arena =
        mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(arena != MAP_FAILED);
    for (size_t at = 0; at < bytes; at += piece) {
        void *mapped =
            mmap(arena + at, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
        assert_true(mapped != MAP_FAILED);
    }
    io_file file;
    io_file_create(&file, FILE_BYTES, 7);
    moe_byte_source *range_file;
    told t = {.n = 0};
    moe_range_reader_options options = options_for(&range_file, &file, &t);
    options.block_bytes = 1u << 18;
    moe_range_reader *reader;
    assert_int_equal(moe_range_reader_open(&reader, &options, NULL), MOE_OK);
    moe_byte_source_let_go(&range_file);
    moe_range_reader_use_arena(reader, arena, bytes);
    const size_t starts[] = {0, bytes - piece / 2, MOE_URING_PIECE_BYTES - (700u << 10)};
    for (int i = 0; i < 3; i++) {
        moe_range range = {.offset = 5, .size = FILE_BYTES - 5, .buffer = arena + starts[i]};
        moe_range_done done;
        assert_true(moe_range_reader_submit(reader, &range));
        assert_int_equal(moe_range_reader_wait(reader, &done, 1, 10000000000), 1);
        assert_int_equal(done.status, MOE_OK);
        assert_memory_equal(done.data, file.bytes + 5, FILE_BYTES - 5);
    }
    char text[128];
    moe_range_reader_describe(reader, text, sizeof text);
    assert_true((strstr(text, "io_uring") != NULL) == (strstr(text, "registered buffers") != NULL));
    assert_int_equal(t.n, 0);
    /* A fork would copy pinned memory at once. */
    assert_true(child_has(arena, bytes) != (strstr(text, "registered buffers") != NULL));
    assert_true(moe_range_reader_close(&reader));
    assert_true(child_has(arena, bytes));
    io_file_remove(&file);
    munmap(arena, bytes);
    close(fd);
}

/* A loop device of 4 KiB sectors over the file; -1 when that cannot be had here. */
static int attach_loop(const io_file *file, char *path, size_t size)
{
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    int number = control < 0 ? -1 : ioctl(control, LOOP_CTL_GET_FREE);
    if (control >= 0) {
        close(control);
    }
    if (number < 0) {
        return -1;
    }
    snprintf(path, size, "/dev/loop%d", number);
    struct loop_config config = {.fd = (uint32_t)file->fd, .block_size = 4096};
    int device = open(path, O_RDWR | O_CLOEXEC);
    if (device >= 0 && ioctl(device, LOOP_CONFIGURE, &config) != 0) {
        close(device);
        device = -1;
    }
    return device;
}

/* The bytes of a disk of 4 KiB sectors; then the disk breaks, which is EIO from the kernel. */
static void test_loop_device(void **state)
{
    (void)state;
    io_file file;
    char path[32];
    io_file_create(&file, 1u << 20, 9);
    int device = attach_loop(&file, path, sizeof path);
    if (device < 0) {
        io_file_remove(&file);
        skip();
    }
    io_file disk = file;
    snprintf(disk.path, sizeof disk.path, "%s", path);
    disk.fd = device;
    for (int kind = MOE_IO_URING; kind <= MOE_IO_SYNC; kind++) {
        moe_byte_source *range_file;
        told t = {.n = 0};
        moe_range_reader_options options = options_for(&range_file, &disk, &t);
        options.kind = (moe_io_kind)kind;
        assert_null(read_all(&options, file.bytes, "O_DIRECT", NULL));
        assert_int_equal(t.n, 0);
        moe_byte_source_let_go(&range_file);
    }
    assert_int_equal(ftruncate(file.fd, 300000), 0);
    for (int kind = MOE_IO_URING; kind <= MOE_IO_SYNC; kind++) {
        moe_byte_source *range_file;
        told t = {.n = 0};
        moe_range_reader_options options = options_for(&range_file, &disk, &t);
        options.kind = (moe_io_kind)kind;
        moe_range_reader *reader;
        moe_range_done done;
        assert_int_equal(moe_range_reader_open(&reader, &options, NULL), MOE_OK);
        uint8_t *buffer = aligned_alloc(4096, moe_range_buffer_bytes(reader, 300000));
        moe_range range = {.offset = 400001, .size = 300000, .buffer = buffer};
        assert_true(moe_range_reader_submit(reader, &range));
        assert_int_equal(moe_range_reader_wait(reader, &done, 1, 10000000000), 1);
        assert_int_equal(done.status, MOE_ERR_IO);
        assert_non_null(strstr(done.error.message, path));
        assert_non_null(strstr(done.error.message, strerror(EIO)));
        assert_true(moe_range_reader_close(&reader));
        moe_byte_source_let_go(&range_file);
        free(buffer);
    }
    ioctl(device, LOOP_CLR_FD);
    close(device);
    io_file_remove(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_io_uring),
        cmocka_unit_test(test_memlock),
        cmocka_unit_test(test_direct_refused_at_open),
        cmocka_unit_test(test_no_file),
        cmocka_unit_test(test_source_of_hanging_read),
        cmocka_unit_test(test_tmpfs),
        cmocka_unit_test(test_large_arena),
        cmocka_unit_test(test_loop_device),
    };
    return cmocka_run_group_tests_name("io machine", tests, NULL, NULL);
}
