/* SPDX-License-Identifier: MIT */
/* Kills the process (kill -9) at every step of writing a file: between any two calls that write,
 * sync or rename, and in the middle of a write. Afterwards the file is the old or the new one, byte
 * for byte, and what was left behind does not hinder the next writer. The linker wraps the calls.
 * Usage: test_killed_writers MODEL.gguf. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <moe/moe.h>

#include "runtime/sidecar/calibration.h"

#define N_EXPERT 4

static const char *model_path;
static long calls_until_kill = -1; /* < 0: never */

size_t __real_fwrite(const void *data, size_t size, size_t n, FILE *file);
int __real_fflush(FILE *file);
int __real_fsync(int fd);
int __real_renameat(int from_folder, const char *from, int to_folder, const char *to);
size_t __wrap_fwrite(const void *data, size_t size, size_t n, FILE *file);
int __wrap_fflush(FILE *file);
int __wrap_fsync(int fd);
int __wrap_renameat(int from_folder, const char *from, int to_folder, const char *to);

static bool is_last(void)
{
    return calls_until_kill >= 0 && calls_until_kill-- == 0;
}

static void end_here(void)
{
    kill(getpid(), SIGKILL);
}

size_t __wrap_fwrite(const void *data, size_t size, size_t n, FILE *file)
{
    if (is_last()) {
        __real_fwrite(data, 1, size * n / 2, file);
        __real_fflush(file);
        end_here();
    }
    return __real_fwrite(data, size, n, file);
}

int __wrap_fflush(FILE *file)
{
    if (is_last()) {
        end_here();
    }
    return __real_fflush(file);
}

int __wrap_fsync(int fd)
{
    if (is_last()) {
        end_here();
    }
    return __real_fsync(fd);
}

int __wrap_renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    if (is_last()) {
        end_here();
    }
    return __real_renameat(from_folder, from, to_folder, to);
}

/* ---- Writers: two contents each ---- */

static bool write_sidecar(const char *path, int content)
{
    const moe_calibration_shape shape = {
        .fingerprint = 77, .n_layer = 2, .n_expert = N_EXPERT, .n_expert_used = 2, .n_embd = 3};
    moe_calibration *c = NULL;
    bool good = moe_calibration_create(&c, &shape, "a text", MOE_CALIBRATION_GRAM, NULL) == MOE_OK;
    if (good) {
        c->n_tokens = 100 + (uint64_t)content;
        good = moe_calibration_save(c, path, NULL) == MOE_OK;
    }
    moe_calibration_free(&c);
    return good;
}

static bool write_session(const char *path, int content)
{
    moe_engine_options options;
    moe_session_options session_options;
    moe_engine_options_init(&options);
    moe_session_options_init(&session_options);
    options.model_path = model_path;
    options.n_threads = 1;
    options.context = 128;
    /* The file says whether all weights' checksums are known: not by what was read in the
     * background. */
    options.warm_start = MOE_SWITCH_OFF;
    moe_engine *engine = NULL;
    moe_session *session = NULL;
    const int32_t prompt[] = {1, 2, 3, 4 + content};
    long kept = calls_until_kill;
    calls_until_kill = -1;
    bool good = moe_engine_open(&engine, &options, NULL) == MOE_OK &&
                moe_session_create(&session, engine, &session_options, NULL) == MOE_OK &&
                moe_session_feed(session, prompt, 4, NULL) == MOE_OK &&
                moe_step(engine, &session, 1, NULL) == MOE_OK;
    calls_until_kill = kept;
    good = good && moe_session_save(session, path, NULL) == MOE_OK;
    moe_session_close(&session);
    moe_engine_close(&engine);
    return good;
}

typedef bool (*writer_fn)(const char *path, int content);

/* In a child, which is killed at the call of that number: the status that wait() gives. */
static int write_in_child(writer_fn write, const char *path, int content, long n)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        calls_until_kill = n;
        bool good = write(path, content);
        _exit(good ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

typedef struct bytes {
    uint8_t data[1 << 18];
    size_t size;
} bytes;

static bytes old_file, new_file, got;

static void read_file(const char *path, bytes *b)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    b->size = fread(b->data, 1, sizeof b->data, file);
    fclose(file);
    assert_in_range(b->size, 1, sizeof b->data - 1);
}

static bool equal(const bytes *a, const bytes *b)
{
    return a->size == b->size && memcmp(a->data, b->data, a->size) == 0;
}

static int n_files(const char *folder)
{
    int n = 0;
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    while (readdir(directory) != NULL) {
        n++;
    }
    closedir(directory);
    return n - 2;
}

static void check_writer(writer_fn write)
{
    char folder[] = "/tmp/moe-killed-XXXXXX";
    char path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    assert_int_equal(write_in_child(write, path, 1, -1), 0);
    read_file(path, &new_file);
    assert_int_equal(write_in_child(write, path, 0, -1), 0);
    read_file(path, &old_file);
    assert_false(equal(&old_file, &new_file));
    long n_old = 0;
    long n_new = 0;
    for (long n = 0;; n++) {
        int status = write_in_child(write, path, 1, n);
        read_file(path, &got);
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            assert_true(equal(&got, &new_file));
            break;
        }
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        assert_true(equal(&got, &old_file) || equal(&got, &new_file));
        assert_true(n_files(folder) <= 2);
        n_old += equal(&got, &old_file);
        n_new += equal(&got, &new_file);
        /* Whoever comes next gets his file written. */
        assert_int_equal(write_in_child(write, path, 0, -1), 0);
        read_file(path, &got);
        assert_true(equal(&got, &old_file));
    }
    print_message("%ld kills left the old file, %ld the new one\n", n_old, n_new);
    assert_true(n_old > 5 && n_new > 0);
    assert_int_equal(n_files(folder), 1);
    unlink(path);
    rmdir(folder);
}

static void sidecars(void **state)
{
    (void)state;
    check_writer(write_sidecar);
}

static void sessions(void **state)
{
    (void)state;
    check_writer(write_session);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_killed_writers MODEL.gguf\n");
        return 2;
    }
    model_path = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(sidecars), cmocka_unit_test(sessions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
