/* SPDX-License-Identifier: MIT */
/* moe/files.h. Every call that writing a file makes fails in turn, with the errors that it may
 * give: the old file is as it was, the message names it, and nothing is left beside it. The linker
 * wraps the calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <moe/files.h>

/* ---- Calls that fail ---- */

static long calls_until_failure = -1; /* < 0: never */
static int error_of_failure;
static bool removing_may_fail; /* else unlinkat() is not counted */

static bool fails(void)
{
    if (calls_until_failure < 0 || calls_until_failure-- > 0) {
        return false;
    }
    errno = error_of_failure;
    return true;
}

#define WRAP(type, bad, name, parameters, arguments)                                               \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        return fails() ? (bad) : __real_##name arguments;                                          \
    }

WRAP(int, -1, open64, (const char *path, int flags, mode_t mode), (path, flags, mode))
WRAP(int, -1, openat64, (int folder, const char *path, int flags, mode_t mode),
     (folder, path, flags, mode))
WRAP(int, -1, fstat64, (int fd, struct stat *about), (fd, about))
WRAP(int, -1, fstatat64, (int folder, const char *path, struct stat *about, int flags),
     (folder, path, about, flags))
WRAP(int, -1, flock, (int fd, int operation), (fd, operation))
WRAP(DIR *, NULL, fdopendir, (int fd), (fd))
WRAP(FILE *, NULL, fdopen, (int fd, const char *mode), (fd, mode))
WRAP(ssize_t, -1, getrandom, (void *bytes, size_t size, unsigned flags), (bytes, size, flags))
WRAP(int, EOF, fflush, (FILE * file), (file))
WRAP(int, -1, fsync, (int fd), (fd))
WRAP(int, -1, renameat, (int from_folder, const char *from, int to_folder, const char *to),
     (from_folder, from, to_folder, to))
WRAP(void *, NULL, malloc, (size_t size), (size))
WRAP(void *, NULL, calloc, (size_t n, size_t size), (n, size))

size_t __real_fwrite(const void *data, size_t size, size_t n, FILE *file);
size_t __wrap_fwrite(const void *data, size_t size, size_t n, FILE *file);
size_t __wrap_fwrite(const void *data, size_t size, size_t n, FILE *file)
{
    return fails() ? 0 : __real_fwrite(data, size, n, file);
}

int __real_unlinkat(int folder, const char *path, int flags);
int __wrap_unlinkat(int folder, const char *path, int flags);
int __wrap_unlinkat(int folder, const char *path, int flags)
{
    return removing_may_fail && fails() ? -1 : __real_unlinkat(folder, path, flags);
}

/* ---- A folder with a file ---- */

static char folder[64], path[96];

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/moe-files-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static const char *in_folder(const char *name)
{
    static char paths[8][128];
    static int next;
    char *out = paths[next++ % 8];
    snprintf(out, sizeof paths[0], "%s/%s", folder, name);
    return out;
}

static int n_files(void)
{
    int n = -2;
    DIR *list = opendir(folder);
    assert_non_null(list);
    while (readdir(list) != NULL) {
        n++;
    }
    closedir(list);
    return n;
}

static int n_descriptors(void)
{
    int n = 0;
    DIR *list = opendir("/proc/self/fd");
    assert_non_null(list);
    while (readdir(list) != NULL) {
        n++;
    }
    closedir(list);
    return n;
}

static void put(const char *to, const char *text)
{
    int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void assert_holds(const char *of, const char *text)
{
    char got[256] = "";
    int fd = open(of, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    ssize_t n = read(fd, got, sizeof got - 1);
    close(fd);
    assert_true(n >= 0);
    assert_string_equal(got, text);
}

static int replace(const char *at, const char *text, unsigned flags, moe_error *err)
{
    moe_atomic_file *file = NULL;
    int status = moe_atomic_file_open(&file, at, flags, err);
    status = status == MOE_OK ? moe_atomic_file_write(file, text, strlen(text), err) : status;
    if (status == MOE_OK) {
        status = moe_atomic_file_commit(&file, err);
    }
    moe_atomic_file_abandon(&file);
    return status;
}

static unsigned mode_of(const char *of)
{
    struct stat about;
    assert_int_equal(stat(of, &about), 0);
    return about.st_mode & 07777;
}

/* ---- Writing ---- */

/* Returns how many calls there are. */
static long each_call_fails_with(int error)
{
    long n = 0;
    for (bool reached = true; reached; n++) {
        moe_error err = {""};
        put(path, "old");
        int n_open = n_descriptors();
        error_of_failure = error;
        calls_until_failure = n;
        int status = replace(path, "new text", MOE_FILE_PRIVATE, &err);
        reached = calls_until_failure < 0;
        calls_until_failure = -1;
        if (status != MOE_OK) {
            bool only_folder = strstr(err.message, "written, but") != NULL;
            assert_holds(path, only_folder ? "new text" : "old");
            assert_non_null(strstr(err.message, path));
            assert_true(status == MOE_ERR_IO || status == MOE_ERR_MEMORY);
            assert_true(status == MOE_ERR_MEMORY || strstr(err.message, strerror(error)) != NULL ||
                        strstr(err.message, "Input/output") != NULL);
        } else {
            assert_holds(path, "new text");
        }
        assert_int_equal(n_files(), 1);
        assert_int_equal(n_descriptors(), n_open);
        assert_true(reached || status == MOE_OK);
    }
    return n - 1;
}

static void each_call_fails(void **state)
{
    (void)state;
    const int errors[] = {ENOSPC, EIO, EDQUOT, EMFILE, EACCES};
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        assert_in_range(each_call_fails_with(errors[i]), 14, 100);
    }
}

/* Another writer removes the new file before it is locked, or has locked it to do so. */
static void taken_for_a_leftover(void **state)
{
    (void)state;
    removing_may_fail = true;
    (void)each_call_fails_with(EWOULDBLOCK);
    removing_may_fail = false;
}

static void modes(void **state)
{
    (void)state;
    mode_t before = umask(022);
    assert_int_equal(replace(path, "a", 0, NULL), MOE_OK);
    assert_int_equal(mode_of(path), 0644);
    assert_int_equal(replace(path, "b", MOE_FILE_PRIVATE, NULL), MOE_OK);
    assert_int_equal(mode_of(path), 0600);
    umask(before);
}

/* A link at the path, and links by the names that an older version used, lead nowhere. */
static void links(void **state)
{
    (void)state;
    const char *victim = in_folder("victim");
    put(victim, "precious");
    assert_int_equal(symlink("victim", path), 0);
    assert_int_equal(symlink("victim", in_folder("file.tmp")), 0);
    assert_int_equal(replace(path, "mine", MOE_FILE_PRIVATE, NULL), MOE_OK);
    assert_holds(victim, "precious");
    struct stat about;
    assert_int_equal(lstat(path, &about), 0);
    assert_true(S_ISREG(about.st_mode));
    assert_holds(path, "mine");
}

static void names_are_new(void **state)
{
    (void)state;
    moe_atomic_file *a = NULL;
    moe_atomic_file *b = NULL;
    assert_int_equal(moe_atomic_file_open(&a, path, 0, NULL), MOE_OK);
    assert_int_equal(moe_atomic_file_open(&b, path, 0, NULL), MOE_OK);
    assert_int_equal(n_files(), 2);
    fputs("a", moe_atomic_file_stream(a));
    fputs("b", moe_atomic_file_stream(b));
    assert_int_equal(moe_atomic_file_commit(&b, NULL), MOE_OK);
    assert_holds(path, "b");
    assert_int_equal(moe_atomic_file_sync(a, NULL), MOE_OK);
    assert_holds(path, "b");
    assert_int_equal(moe_atomic_file_commit(&a, NULL), MOE_OK);
    assert_holds(path, "a");
    assert_int_equal(n_files(), 1);
}

/* What a killed writer left goes; what is at work, is a link, or has another name stays. */
static void leftovers(void **state)
{
    (void)state;
    const char *left = in_folder("moe-offload-0123456789abcdef.tmp");
    const char *at_work = in_folder("moe-offload-0123456789abcdee.tmp");
    put(left, "half");
    put(at_work, "half");
    put(in_folder("moe-offload-0123456789abcde.tmp"), "short");
    assert_int_equal(symlink("nowhere", in_folder("moe-offload-0123456789abcded.tmp")), 0);
    assert_int_equal(mkfifo(in_folder("moe-offload-0123456789abcdec.tmp"), 0600), 0);
    int fd = open(at_work, O_RDONLY | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    assert_int_equal(replace(path, "a", 0, NULL), MOE_OK);
    assert_int_equal(access(left, F_OK), -1);
    assert_int_equal(n_files(), 5);
    close(fd);
    assert_int_equal(replace(path, "a", 0, NULL), MOE_OK);
    assert_int_equal(n_files(), 4);
}

static void not_replaced(void **state)
{
    (void)state;
    moe_error err = {""};
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(replace(path, "a", 0, &err), MOE_ERR_IO);
    assert_non_null(strstr(err.message, "not a regular file"));
    assert_int_equal(replace(folder, "a", 0, &err), MOE_ERR_IO);
    assert_int_equal(replace(in_folder(""), "a", 0, &err), MOE_ERR_IO);
    assert_int_equal(replace("/tmp/moe-no-such-folder/a", "a", 0, &err), MOE_ERR_IO);
    assert_non_null(strstr(err.message, strerror(ENOENT)));
    assert_int_equal(n_files(), 1);
    assert_int_equal(replace(path, "a", 4, &err), MOE_ERR_ARGUMENT);
}

static void in_place(void **state)
{
    (void)state;
    moe_error err = {""};
    assert_int_equal(symlink("/dev/full", path), 0);
    assert_int_equal(replace(path, "a", MOE_FILE_OR_DEVICE, &err), MOE_ERR_IO);
    assert_non_null(strstr(err.message, strerror(ENOSPC)));
    assert_int_equal(replace("/dev/null", "a", MOE_FILE_OR_DEVICE, &err), MOE_OK);
    const char *fifo = in_folder("fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    int fd = open(fifo, O_RDWR | O_CLOEXEC);
    char got[8] = "";
    assert_int_equal(replace(fifo, "a", MOE_FILE_OR_DEVICE, &err), MOE_OK);
    assert_int_equal(read(fd, got, sizeof got), 1);
    assert_string_equal(got, "a");
    close(fd);
    assert_int_equal(n_files(), 2);
}

/* ---- Reading ---- */

static void assert_refused(const char *of, unsigned flags, const char *why)
{
    int fd = 7;
    moe_error err = {""};
    assert_int_equal(moe_input_open(&fd, of, flags, &err), MOE_ERR_IO);
    assert_int_equal(fd, -1);
    assert_non_null(strstr(err.message, of));
    assert_non_null(strstr(err.message, why));
}

static void read_files(void **state)
{
    (void)state;
    int fd;
    put(path, "text");
    assert_int_equal(moe_input_open(&fd, path, 0, NULL), MOE_OK);
    close(fd);
    assert_int_equal(symlink("file", in_folder("link")), 0);
    assert_int_equal(moe_input_open(&fd, in_folder("link"), 0, NULL), MOE_OK);
    close(fd);
    assert_refused(folder, 0, strerror(EISDIR));
    assert_refused(in_folder("none"), 0, strerror(ENOENT));
    /* Nobody ever writes to the named pipe: waiting for that would be the end of this test. */
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
    for (unsigned flags = 0; flags <= MOE_INPUT_PIPES; flags++) {
        assert_refused(in_folder("fifo"), flags, "not a regular file");
        assert_refused("/dev/zero", flags, "not a regular file");
    }
    assert_int_equal(moe_input_open(&fd, path, 2, NULL), MOE_ERR_ARGUMENT);
}

/* <(COMMAND) is /dev/fd/N of a pipe without a name. */
static void read_pipes(void **state)
{
    (void)state;
    int fd;
    int status;
    int ends[2];
    char name[32];
    char got[8] = "";
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
    assert_refused(name, 0, "not a regular file");
    FILE *stream = moe_input_stream(name, MOE_INPUT_PIPES, &status, NULL);
    assert_non_null(stream);
    assert_int_equal(fcntl(fileno(stream), F_GETFL) & O_NONBLOCK, 0);
    assert_int_equal(write(ends[1], "text", 4), 4);
    close(ends[1]);
    assert_int_equal(fread(got, 1, sizeof got, stream), 4);
    assert_string_equal(got, "text");
    fclose(stream);
    close(ends[0]);
    int input = dup(STDIN_FILENO);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(dup2(null, STDIN_FILENO) == STDIN_FILENO);
    assert_int_equal(moe_input_open(&fd, "/dev/stdin", MOE_INPUT_PIPES, NULL), MOE_OK);
    close(fd);
    close(null);
    assert_true(dup2(input, STDIN_FILENO) == STDIN_FILENO);
    close(input);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(each_call_fails), TEST(taken_for_a_leftover),
        TEST(modes),           TEST(links),
        TEST(names_are_new),   TEST(leftovers),
        TEST(not_replaced),    TEST(in_place),
        TEST(read_files),      TEST(read_pipes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
