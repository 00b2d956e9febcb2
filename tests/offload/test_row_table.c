/* SPDX-License-Identifier: MIT */
/* Rows of a table on disk: their bytes are the file's whatever the number of slots, the engine that
 * reads and the faults that it meets; a row that cannot be read fails with its number and the
 * reason, and is read again when it is next wanted; a disk that is silent ends a wait; copies of
 * the model are read if the file before fails, and only then. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "offload/io/io_fault.h"
#include "offload/model_open.h"
#include "offload/row_table.h"
#include "runtime/base/dtype.h"
#include "runtime/model/gguf.h"

#define TENSOR     "per_layer_token_embd.weight"
#define N_TAKEN    600u
#define SHORT_TIME 60000000u /* ns */

static const char *model_path;

typedef struct fixture {
    moe_gguf *gguf;
    moe_tensor_ref tensor;
    uint8_t *expected; /* the whole tensor */
    uint64_t row_bytes;
    moe_io_fault fault;
    moe_row_table *table;
    moe_gguf *copies[2];
    uint32_t n_copies;
    _Atomic uint32_t broken; /* bits: the file, the copies; set while the thread reads */
    _Atomic uint32_t n_of_copies, n_notes;
} fixture;

/* Counts the notes that copies are read; others are of the reader. */
static void count_note(const char *line, void *user)
{
    fixture *f = user;
    f->n_notes += strstr(line, "rows of tensor '" TENSOR "' are read from a copy: ") != NULL;
}

static void open_table(fixture *f, uint32_t n_slots, moe_io_kind io,
                       moe_fault (*choose)(void *user, const moe_io_read *read, uint64_t n),
                       uint64_t timeout_ns)
{
    moe_model_reader_options reading = {.io = MOE_IO_THREADS};
    *f = (fixture){.fault = {.inner = &moe_io_threads_ops, .choose = choose, .user = f},
                   .n_copies = f->n_copies};
    assert_int_equal(moe_model_open(&f->gguf, model_path, &reading, NULL), MOE_OK);
    for (uint32_t i = 0; i < f->n_copies; i++) {
        assert_int_equal(moe_model_open(&f->copies[i], model_path, &reading, NULL), MOE_OK);
    }
    const moe_gguf_tensor *t = moe_gguf_find_tensor(f->gguf, TENSOR);
    assert_non_null(t);
    f->tensor = (moe_tensor_ref){.type = (moe_dtype)t->type,
                                 .file_index = t->file_index,
                                 .offset = t->offset,
                                 .size = t->size,
                                 .n_in = t->dims[0],
                                 .n_out = t->dims[1]};
    f->row_bytes = moe_dtype_row_bytes(f->tensor.type, f->tensor.n_in);
    f->expected = malloc(t->size);
    FILE *file = fopen(model_path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)t->offset, SEEK_SET), 0);
    assert_int_equal(fread(f->expected, 1, t->size, file), t->size);
    fclose(file);
    const moe_row_table_options options = {.gguf = f->gguf,
                                           .copies = (const moe_gguf *const *)f->copies,
                                           .n_copies = f->n_copies,
                                           .log = count_note,
                                           .user = f,
                                           .tensor = &f->tensor,
                                           .name = TENSOR,
                                           .n_slots = n_slots,
                                           .io = io,
                                           .io_engine = choose != NULL ? &moe_io_fault_ops : NULL,
                                           .io_context = &f->fault,
                                           .io_timeout_ns = timeout_ns};
    assert_int_equal(moe_row_table_open(&f->table, &options, NULL), MOE_OK);
}

static void close_table(fixture *f)
{
    moe_row_table_close(&f->table);
    moe_gguf_close(&f->gguf);
    for (uint32_t i = 0; i < f->n_copies; i++) {
        moe_gguf_close(&f->copies[i]);
    }
    free(f->expected);
}

static uint64_t some_row(const fixture *f, uint64_t i)
{
    return (i * UINT64_C(2654435761) >> 7) % (i % 3 == 0 ? 12 : f->tensor.n_out);
}

static int take(fixture *f, uint64_t row, moe_error *err)
{
    const uint8_t *bytes = NULL;
    int status = moe_row_table_take(f->table, row, &bytes, NULL, NULL, err);
    if (status == MOE_OK) {
        assert_memory_equal(bytes, f->expected + row * f->row_bytes, f->row_bytes);
    }
    return status;
}

/* Every row is right, whether it was wanted before, or so long before that others took its slot. */
static void check_rows(fixture *f)
{
    for (uint64_t i = 0; i < N_TAKEN; i += 50) {
        uint64_t rows[50];
        for (uint64_t k = 0; k < 50; k++) {
            rows[k] = some_row(f, i + k);
        }
        moe_row_table_want(f->table, rows, i % 4 == 0 ? 50 : 20);
        for (uint64_t k = 0; k < 50; k++) {
            assert_int_equal(take(f, rows[k], NULL), MOE_OK);
        }
    }
}

static void test_rows(void **state)
{
    (void)state;
    static const uint32_t slots[] = {1, 7, 64, 100000};
    static const moe_io_kind kinds[] = {MOE_IO_AUTO, MOE_IO_THREADS, MOE_IO_SYNC};
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            fixture f = {.n_copies = 0};
            moe_row_table_stats stats;
            open_table(&f, slots[i], kinds[k], NULL, 0);
            check_rows(&f);
            moe_row_table_get_stats(f.table, &stats);
            assert_int_equal(stats.n_taken, N_TAKEN);
            assert_int_equal(stats.n_failed, 0);
            assert_true(stats.n_waited <= N_TAKEN &&
                        stats.bytes_read >= stats.n_read * f.row_bytes);
            /* With a slot for each, a row is read once. */
            assert_true(slots[i] < f.tensor.n_out || stats.n_read <= f.tensor.n_out);
            close_table(&f);
        }
    }
}

/* ---- Faults ---- */

static moe_fault short_and_late(void *user, const moe_io_read *read, uint64_t n)
{
    (void)user;
    return n % 3 == 0   ? (moe_fault){MOE_FAULT_SHORT, read->size / 2}
           : n % 3 == 1 ? (moe_fault){MOE_FAULT_DELAY, 200000}
           : n % 7 == 0 ? (moe_fault){MOE_FAULT_ERROR, EAGAIN}
                        : (moe_fault){0};
}

static void test_mended_faults(void **state)
{
    (void)state;
    fixture f = {.n_copies = 0};
    open_table(&f, 64, MOE_IO_THREADS, short_and_late, 0);
    check_rows(&f);
    assert_true(f.fault.n_faults[MOE_FAULT_SHORT] > 0 && f.fault.n_faults[MOE_FAULT_DELAY] > 0);
    close_table(&f);
}

static _Atomic bool broken; /* the disk, from now on */

static moe_fault broken_disk(void *user, const moe_io_read *read, uint64_t n)
{
    (void)user;
    (void)read;
    (void)n;
    return broken ? (moe_fault){MOE_FAULT_ERROR, EIO} : (moe_fault){0};
}

static void test_failed_rows(void **state)
{
    (void)state;
    fixture f = {.n_copies = 0};
    moe_error err = {""};
    const uint64_t row = 5;
    broken = true;
    open_table(&f, 8, MOE_IO_THREADS, broken_disk, 0);
    assert_int_equal(take(&f, row, &err), MOE_ERR_IO);
    if (strstr(err.message, "row 5 of tensor '" TENSOR "': ") == NULL ||
        strstr(err.message, strerror(EIO)) == NULL) {
        fail_msg("%s", err.message);
    }
    moe_row_table_stats stats;
    moe_row_table_get_stats(f.table, &stats);
    assert_true(stats.n_failed > 0);
    broken = false;
    moe_row_table_want(f.table, &row, 1);
    assert_int_equal(take(&f, row, &err), MOE_OK);
    close_table(&f);
}

static moe_fault silent_disk(void *user, const moe_io_read *read, uint64_t n)
{
    (void)user;
    (void)read;
    (void)n;
    return broken ? (moe_fault){MOE_FAULT_STUCK, 0} : (moe_fault){0};
}

static bool is_cancelled(void *user)
{
    return *(const bool *)user;
}

static void test_silent_disk(void **state)
{
    (void)state;
    fixture f = {.n_copies = 0};
    moe_error err = {""};
    const uint8_t *bytes;
    bool cancelled = true;
    broken = true;
    open_table(&f, 8, MOE_IO_THREADS, silent_disk, SHORT_TIME);
    assert_int_equal(moe_row_table_take(f.table, 3, &bytes, is_cancelled, &cancelled, &err),
                     MOE_ERR_CANCELLED);
    assert_int_equal(take(&f, 3, &err), MOE_ERR_IO);
    if (strstr(err.message, "the disk has sent nothing for 0.1 s") == NULL) {
        fail_msg("%s", err.message);
    }
    broken = false;
    f.fault.let_go = true;
    int status = take(&f, 3, &err);
    for (int i = 0; i < 100 && status == MOE_ERR_IO; i++) { /* until the late answer is there */
        status = take(&f, 3, &err);
    }
    assert_int_equal(status, MOE_OK);
    close_table(&f);
}

/* A row that is wanted while a read of it is about to fail is read once more. */
static moe_fault late_error(void *user, const moe_io_read *read, uint64_t n)
{
    fixture *f = user;
    const uint64_t row = 5;
    (void)read;
    (void)n;
    if (broken) {
        moe_row_table_want(f->table, &row, 1); /* on the table's thread, without its lock */
    }
    return broken ? (moe_fault){MOE_FAULT_ERROR, EIO} : (moe_fault){0};
}

static bool heals(void *user)
{
    fixture *f = user;
    moe_row_table_stats stats;
    moe_row_table_get_stats(f->table, &stats);
    broken = broken && stats.n_failed == 0;
    return false;
}

static void test_wanted_again(void **state)
{
    (void)state;
    fixture f = {.n_copies = 0};
    const uint8_t *bytes;
    broken = true;
    open_table(&f, 8, MOE_IO_THREADS, late_error, 0);
    assert_int_equal(moe_row_table_take(f.table, 5, &bytes, heals, &f, NULL), MOE_OK);
    assert_memory_equal(bytes, f.expected + 5 * f.row_bytes, f.row_bytes);
    close_table(&f);
}

/* ---- Copies ---- */

static moe_fault broken_files(void *user, const moe_io_read *read, uint64_t n)
{
    fixture *f = user;
    (void)n;
    f->n_of_copies += read->file > 0;
    return f->broken >> read->file & 1 ? (moe_fault){MOE_FAULT_ERROR, EIO} : (moe_fault){0};
}

static void test_copies(void **state)
{
    static const uint32_t cases[] = {0, 1, 3, 2, 5}; /* what is broken: at most two of three */
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture f = {.n_copies = 2};
        moe_row_table_stats stats;
        open_table(&f, 64, MOE_IO_THREADS, broken_files, 0);
        f.broken = cases[i];
        check_rows(&f);
        moe_row_table_get_stats(f.table, &stats);
        assert_int_equal(stats.n_failed, 0);
        const bool uses_copies = (cases[i] & 1) != 0;
        assert_int_equal(f.n_of_copies > 0, uses_copies);
        assert_int_equal(f.n_notes, uses_copies);
        close_table(&f);
    }
}

/* If nothing can be read, the row fails once; then it is sought in the model's own file again. */
static void test_broken_copies(void **state)
{
    (void)state;
    fixture f = {.n_copies = 1};
    moe_error err = {""};
    moe_row_table_stats stats;
    open_table(&f, 8, MOE_IO_THREADS, broken_files, 0);
    f.broken = 3;
    assert_int_equal(take(&f, 7, &err), MOE_ERR_IO);
    assert_non_null(strstr(err.message, "row 7 of tensor '" TENSOR "': "));
    moe_row_table_get_stats(f.table, &stats);
    assert_int_equal(stats.n_failed, 1);
    f.broken = 2;
    const uint32_t n_of_copies = f.n_of_copies;
    const uint64_t row = 7;
    moe_row_table_want(f.table, &row, 1);
    assert_int_equal(take(&f, row, &err), MOE_OK);
    assert_int_equal(f.n_of_copies, n_of_copies);
    close_table(&f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),          cmocka_unit_test(test_mended_faults),
        cmocka_unit_test(test_failed_rows),   cmocka_unit_test(test_wanted_again),
        cmocka_unit_test(test_silent_disk),   cmocka_unit_test(test_copies),
        cmocka_unit_test(test_broken_copies),
    };
    if (argc != 2) {
        return 2;
    }
    model_path = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
