/* SPDX-License-Identifier: MIT */
/* The book of checksums: what is made is kept and read again, for these very files alone; damage
 * gives what was kept another identity. Usage: test_checksum_book MODEL.gguf */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clock.h"
#include "runtime/families/families.h"
#include "runtime/program/program.h"
#include "runtime/sidecar/idle_checksums.h"

static const char *model_path;
static char folder[] = "/tmp/moe-checksum-book-XXXXXX";
static char copy_path[sizeof folder + 16], sums_path[sizeof folder + 16];
static char last_line[1024];
static int n_lines;

/* A model that is only read. */
typedef struct opened_model {
    moe_gguf *gguf;
    moe_model_config config;
    moe_tensor_map map;
    moe_model_reader_options reading;
    moe_checksum_book book;
} opened_model;

static void on_line(const char *line, void *user)
{
    (void)user;
    snprintf(last_line, sizeof last_line, "%s", line);
    n_lines++;
}

static void open_book(opened_model *m, const char *named)
{
    moe_error err = {""};
    *m = (opened_model){0};
    assert_int_equal(moe_gguf_open(&m->gguf, copy_path, &err), MOE_OK);
    assert_int_equal(moe_model_config_read(&m->config, m->gguf, &err), MOE_OK);
    assert_int_equal(moe_tensor_map_build(&m->map, &m->config, m->gguf, &err), MOE_OK);
    m->reading = (moe_model_reader_options){.gguf = m->gguf};
    const moe_checksum_book_options options = {
        .map = &m->map, .reading = &m->reading, .named = named, .log = on_line};
    assert_int_equal(moe_checksum_book_open(&m->book, &options, &err), MOE_OK);
}

static void close_book(opened_model *m)
{
    moe_checksum_book_close(&m->book);
    moe_tensor_map_free(&m->map);
    moe_gguf_close(&m->gguf);
}

static size_t n_known(const opened_model *m)
{
    size_t n = 0;
    for (size_t i = 0; i < m->book.n_parts; i++) {
        n += moe_weight_sums_get(&m->book.sums, m->book.parts[i]) != 0;
    }
    return n;
}

static moe_weights_identity identity_of(opened_model *m)
{
    moe_weights_identity identity;
    moe_checksum_book_identify(&m->book, &identity);
    return identity;
}

/* Makes n checksums, from the from-th part on. */
static void make(opened_model *m, size_t from, size_t n)
{
    for (size_t i = from; i < from + n && i < m->book.n_parts; i++) {
        assert_true(moe_weight_sums_check(&m->book.sums, m->book.parts[i], 1000 + i));
        assert_true(moe_weight_sums_check(&m->book.sums, m->book.parts[i], 1000 + i));
        assert_false(moe_weight_sums_check(&m->book.sums, m->book.parts[i], 7));
    }
}

static void copy_model(void)
{
    char command[512];
    snprintf(command, sizeof command, "cp '%s' '%s'", model_path, copy_path);
    assert_int_equal(system(command), 0);
}

static int setup(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(copy_path, sizeof copy_path, "%s/model.gguf", folder);
    snprintf(sums_path, sizeof sums_path, "%s/model.moe-sums", folder);
    copy_model();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(copy_path);
    unlink(sums_path);
    return rmdir(folder);
}

static void kept_and_read(void **state)
{
    (void)state;
    opened_model one, two;
    unlink(sums_path);
    open_book(&one, "auto");
    assert_true(one.book.n_parts > 20 && n_known(&one) == 0);
    open_book(&two, "auto"); /* at the same time */
    make(&one, 0, 5);
    make(&two, 3, 5);
    close_book(&one);
    close_book(&two);
    open_book(&one, "auto");
    assert_int_equal(n_known(&one), 8);
    make(&one, 0, 8);
    moe_weights_identity before = identity_of(&one);
    assert_true(before.whole == 0 && before.files != 0);
    make(&one, 8, one.book.n_parts);
    moe_weights_identity now = identity_of(&one);
    assert_true(now.whole != 0 && now.files == before.files);
    assert_true(moe_weights_identity_matches(&now, &before));
    close_book(&one);
    open_book(&one, NULL); /* in memory alone */
    assert_int_equal(n_known(&one), 0);
    close_book(&one);
    assert_int_equal(n_lines, 0);
}

/* The same bytes once more, in the same file, with the same time of modification. */
static void of_a_file_written_again(void **state)
{
    (void)state;
    opened_model m;
    struct stat then;
    assert_int_equal(access(sums_path, F_OK), 0);
    open_book(&m, "auto");
    moe_weights_identity before = identity_of(&m);
    assert_true(before.whole != 0);
    assert_int_equal(stat(copy_path, &then), 0);
    close_book(&m);
    copy_model();
    const struct timespec times[] = {then.st_atim, then.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, copy_path, times, 0), 0);
    open_book(&m, "auto");
    assert_int_equal(n_known(&m), 0);
    moe_weights_identity now = identity_of(&m);
    assert_false(moe_weights_identity_matches(&now, &before));
    make(&m, 0, m.book.n_parts); /* the same checksums: the same weights, wherever they are */
    now = identity_of(&m);
    assert_true(now.files != before.files && moe_weights_identity_matches(&now, &before));
    /* Written to while open: what was made may be of either content, and is not kept. */
    unlink(sums_path);
    copy_model();
    close_book(&m);
    assert_int_not_equal(access(sums_path, F_OK), 0);
}

static void found_damaged(void **state)
{
    (void)state;
    opened_model m;
    unlink(sums_path);
    open_book(&m, "auto");
    make(&m, 0, 5);
    moe_weights_identity before = identity_of(&m);
    moe_weight_sums_tell_damage(&m.book.sums);
    moe_weights_identity after = identity_of(&m);
    assert_false(moe_weights_identity_matches(&after, &before));
    close_book(&m);
    open_book(&m, "auto");
    moe_weights_identity later = identity_of(&m);
    assert_true(n_known(&m) == 5 && moe_weights_identity_matches(&later, &after));
    close_book(&m);
}

static void damaged_files_of_checksums(void **state)
{
    (void)state;
    opened_model m;
    for (long at = 0; at < 400; at += 7) {
        unlink(sums_path);
        open_book(&m, "auto");
        make(&m, 0, 5);
        close_book(&m);
        FILE *file = fopen(sums_path, "r+b");
        assert_non_null(file);
        fseek(file, 0, SEEK_END);
        long size = ftell(file);
        fseek(file, at % size, SEEK_SET);
        int byte = fgetc(file);
        fseek(file, at % size, SEEK_SET);
        fputc(byte ^ 1, file);
        fclose(file);
        open_book(&m, "auto");
        assert_int_equal(n_known(&m), 0);
        close_book(&m);
    }
    assert_int_equal(truncate(sums_path, 20), 0);
    open_book(&m, "auto");
    assert_int_equal(n_known(&m), 0);
    close_book(&m);
    unlink(sums_path);
    assert_int_equal(mkfifo(sums_path, 0600), 0); /* nobody writes: no wait */
    open_book(&m, "auto");
    assert_int_equal(n_known(&m), 0);
    close_book(&m);
    unlink(sums_path);
}

static void nowhere_to_write(void **state)
{
    (void)state;
    opened_model m;
    n_lines = 0;
    open_book(&m, "/nowhere/at/all.moe-sums");
    make(&m, 0, 5);
    moe_checksum_book_keep(&m.book);
    make(&m, 5, 5);
    close_book(&m);
    assert_int_equal(n_lines, 1);
    assert_non_null(strstr(last_line, "/nowhere/at/all.moe-sums"));
    assert_non_null(strstr(last_line, "options.checksums"));
}

/* The thread reads each missing part once, and nothing else; not while a step runs. */
static void in_idle_time(void **state)
{
    (void)state;
    opened_model m;
    moe_idle_checksums *idle;
    moe_error err = {""};
    open_book(&m, NULL);
    uint64_t bytes = 0;
    for (size_t i = 0; i < m.book.n_parts; i++) {
        bytes += i >= 3 ? moe_checksum_book_range(&m.book, m.book.parts[i]).size : 0;
    }
    make(&m, 0, 3);
    assert_int_equal(moe_idle_checksums_start(&idle, &m.book, &m.reading, &err), MOE_OK);
    moe_idle_checksums_pause(idle);
    usleep(1200000);
    assert_int_equal(n_known(&m), 3);
    moe_idle_checksums_resume(idle);
    while (n_known(&m) < m.book.n_parts) {
        usleep(10000);
    }
    assert_true(moe_idle_checksums_bytes(idle) == bytes);
    moe_idle_checksums_stop(&idle);
    assert_null(idle);
    assert_int_equal(moe_idle_checksums_start(&idle, &m.book, &m.reading, &err), MOE_OK);
    assert_null(idle); /* nothing is missing */
    close_book(&m);
    open_book(&m, NULL); /* stopped at once */
    assert_int_equal(moe_idle_checksums_start(&idle, &m.book, &m.reading, &err), MOE_OK);
    moe_idle_checksums_stop(&idle);
    assert_int_equal(n_known(&m), 0);
    close_book(&m);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_checksum_book MODEL.gguf\n");
        return 2;
    }
    model_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_and_read),    cmocka_unit_test(of_a_file_written_again),
        cmocka_unit_test(found_damaged),    cmocka_unit_test(damaged_files_of_checksums),
        cmocka_unit_test(nowhere_to_write), cmocka_unit_test(in_idle_time),
    };
    return cmocka_run_group_tests_name("checksum book", tests, setup, teardown);
}
