/* SPDX-License-Identifier: MIT */
/* Files with some ranges of another one: what is in them reads as in the whole file, all else
 * cannot be read, and damaged ones are refused. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/part_source.h"

enum { SIZE = 50 * 4096 + 123 }; /* of the whole file */

static uint8_t whole[SIZE];
static char path[] = "/tmp/moe-part-XXXXXX";

static const moe_part_range given[] = {
    {.from = 90000, .size = 5000}, {.from = 3, .size = 10},     {.from = 40960, .size = 4096},
    {.from = 93000, .size = 9000}, {.from = 40000, .size = 10}, {.from = SIZE - 7, .size = 7}};
enum { N_GIVEN = sizeof given / sizeof given[0] };

/* Makes the part file's bytes. */
static uint8_t *make_part(size_t *n_bytes)
{
    moe_part_range ranges[N_GIVEN];
    size_t n_head;
    memcpy(ranges, given, sizeof given);
    const uint32_t n = moe_part_ranges_lay(ranges, N_GIVEN, SIZE);
    assert_int_equal(n, 4);
    uint8_t *head = moe_part_head_make(ranges, n, SIZE, &n_head);
    assert_non_null(head);
    *n_bytes = ranges[n - 1].at + ranges[n - 1].size;
    uint8_t *bytes = realloc(head, *n_bytes);
    assert_non_null(bytes);
    for (uint32_t i = 0; i < n; i++) {
        memcpy(bytes + ranges[i].at, whole + ranges[i].from, ranges[i].size);
    }
    return bytes;
}

static void write_part(const uint8_t *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static int read_source(uint64_t offset, void *dst, size_t size, void *user, moe_error *err)
{
    const moe_byte_source *const *source = user;
    (void)err;
    assert_int_equal((*source)->ops->read(*source, dst, size, offset, 0), size);
    return MOE_OK;
}

static int open_part(moe_byte_source **source, moe_error *err)
{
    moe_byte_source *file;
    const moe_part_reading reading = {read_source, &file};
    assert_int_equal(moe_file_source_open(&file, path, err), MOE_OK);
    *source = file;
    return moe_part_source_open(source, &reading, err);
}

static bool is_there(size_t at)
{
    for (size_t i = 0; i < N_GIVEN; i++) {
        const size_t first = given[i].from / MOE_PART_BLOCK;
        const size_t last = (given[i].from + given[i].size - 1) / MOE_PART_BLOCK;
        if (at / MOE_PART_BLOCK >= first && at / MOE_PART_BLOCK <= last) {
            return true;
        }
    }
    return false;
}

static void reads_as_the_whole_file(void **state)
{
    (void)state;
    size_t n;
    moe_byte_source *source;
    moe_error err;
    uint8_t *bytes = make_part(&n);
    write_part(bytes, n);
    assert_int_equal(open_part(&source, &err), MOE_OK);
    assert_true(moe_part_source_is(source));
    assert_int_equal(source->size, SIZE);
    for (size_t at = 0; at < SIZE; at += at % 4096 == 4095 ? 1 : 4095 - at % 4096) {
        uint8_t to[9000];
        const int64_t got = source->ops->read(source, to, sizeof to, at, 0);
        assert_int_equal(moe_part_source_has(source, at, 1), is_there(at));
        if (!is_there(at)) {
            assert_int_equal(got, -ENODATA);
            continue;
        }
        assert_true(got > 0 && at + (size_t)got <= SIZE);
        assert_memory_equal(to, whole + at, got);
        assert_true(moe_part_source_has(source, at, (uint64_t)got));
    }
    assert_int_equal(source->ops->read(source, bytes, 10, SIZE, 0), 0);
    assert_false(moe_part_source_has(source, 90000, 20000));
    moe_byte_identity now;
    assert_true(source->ops->identify(source, false, &now));
    assert_int_equal(now.size, SIZE);
    moe_byte_source_let_go(&source);
    free(bytes);
}

static void direct_reads_are_whole_blocks(void **state)
{
    (void)state;
    size_t n;
    moe_byte_source *source;
    moe_error err;
    uint8_t *bytes = make_part(&n), *to = aligned_alloc(4096, 32768);
    write_part(bytes, n);
    assert_int_equal(open_part(&source, &err), MOE_OK);
    if (source->direct_alignment != 0) {
        for (size_t at = 0; at < SIZE; at += 4096) {
            const int64_t got = source->ops->read(source, to, 32768, at, MOE_READ_DIRECT);
            assert_int_equal(got > 0, is_there(at));
            if (got > 0) {
                assert_memory_equal(to, whole + at, got);
            }
        }
    }
    moe_byte_source_let_go(&source);
    free(to);
    free(bytes);
}

static void damage_is_refused(void **state)
{
    (void)state;
    size_t n;
    moe_byte_source *source;
    moe_error err;
    uint8_t *bytes = make_part(&n);
    for (size_t bit = 0; bit < 8 * (32 + 4 * sizeof(moe_part_range)); bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        write_part(bytes, n);
        const int status = open_part(&source, &err);
        /* Without its mark it is any file. */
        assert_int_equal(status, bit < 64 ? MOE_OK : MOE_ERR_FORMAT);
        assert_false(moe_part_source_is(source));
        moe_byte_source_let_go(&source);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t size = 32; size < n; size += 1000) {
        write_part(bytes, size);
        assert_true(open_part(&source, &err) != MOE_OK);
        moe_byte_source_let_go(&source);
    }
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_as_the_whole_file),
        cmocka_unit_test(direct_reads_are_whole_blocks),
        cmocka_unit_test(damage_is_refused),
    };
    for (size_t i = 0; i < SIZE; i++) {
        whole[i] = (uint8_t)(i * 31 + i / 251);
    }
    const int fd = mkstemp(path);
    if (fd < 0) {
        return 77;
    }
    close(fd);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
