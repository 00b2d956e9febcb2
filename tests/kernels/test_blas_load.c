/* SPDX-License-Identifier: MIT */
/* OpenBLAS is loaded when it is requested and not before; its results; the message when it is
 * missing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cpu/gram.h"

static bool is_mapped(void)
{
    char line[4096];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps) != NULL) {
        found |= strstr(line, "openblas") != NULL;
    }
    fclose(maps);
    return found;
}

static void missing_or_something_else(void **state)
{
    (void)state;
    static const char *const nowhere[] = {"libopenblas-of-nobody.so.0", "/nowhere/libopenblas.so"};
    static const char *const other[] = {"libopenblas-of-nobody.so.0", "libm.so.6"};
    moe_blas blas;
    moe_error err = {""};
    assert_int_equal(moe_blas_load_from(&blas, nowhere, 2, &err), MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "libopenblas-of-nobody.so.0"));
    assert_non_null(strstr(err.message, "install it"));
    assert_null(blas.sgemm);
    assert_int_equal(moe_blas_load_from(&blas, other, 2, &err), MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "libm.so.6 lacks functions"));
    assert_null(blas.ssyrk);
}

static void loaded_when_asked_for(void **state)
{
    (void)state;
    moe_blas blas, again;
    moe_error err = {""};
    assert_false(is_mapped());
    if (moe_blas_load(&blas, &err) != MOE_OK) {
        print_message("%s\n", err.message);
        skip();
    }
    assert_true(is_mapped());
    assert_int_equal(moe_blas_load(&again, &err), MOE_OK);
    assert_memory_equal(&again, &blas, sizeof blas);
    /* Rows by weight rows, as products of activations with weights. */
    const float x[] = {1, 2, 3, 4, 5, 6};                    /* [2][3] */
    const float w[] = {1, 0, 0, 0, 1, 0, 1, 1, 1, 2, 0, -1}; /* [4][3] */
    const float expected[] = {1, 2, 6, -1, 4, 5, 15, 2};
    float out[8];
    blas.sgemm(MOE_BLAS_ROW_MAJOR, MOE_BLAS_NO_TRANSPOSE, MOE_BLAS_TRANSPOSE, 2, 4, 3, 1.0f, x, 3,
               w, 3, 0.0f, out, 4);
    assert_memory_equal(out, expected, sizeof out);
    const float columns[] = {18, 23, 28, 23, 30, 37, 28, 37, 46}; /* 1 + x^T x */
    const float rows[] = {14, 32, 32, 77};
    float gram[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    moe_gram_add_columns(&blas, x, 2, 3, gram);
    moe_gram_mirror(gram, 3);
    assert_memory_equal(gram, columns, sizeof gram);
    moe_gram_of_rows(&blas, x, 2, 3, gram);
    moe_gram_mirror(gram, 2);
    assert_memory_equal(gram, rows, sizeof rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_or_something_else),
        cmocka_unit_test(loaded_when_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
