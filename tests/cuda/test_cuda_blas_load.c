/* SPDX-License-Identifier: MIT */
/* Finding cuBLAS. Arguments: a library with its functions, and one without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/cuda_blas_load.h"

static const char *whole;
static const char *other;

static void found(void **state)
{
    (void)state;
    const char *files[] = {"libnothing-of-this-name.so", whole};
    moe_cuda_blas_api api;
    size_t next = 0;
    assert_int_equal(moe_cuda_blas_load_from(&api, files, 2, &next, NULL), MOE_OK);
    assert_int_equal(next, 2);
    assert_int_equal(api.create(NULL), 101);
    assert_int_equal(api.destroy(NULL), 102);
    assert_int_equal(api.set_stream(NULL, NULL), 103);
    assert_int_equal(api.sgemm(NULL, 0, 0, 0, 0, 0, NULL, NULL, 0, NULL, 0, NULL, NULL, 0), 104);
}

static void refused(void **state)
{
    (void)state;
    moe_cuda_blas_api api;
    moe_error err = {""};
    size_t next = 0;
    const char *files[] = {"libnothing-of-this-name.so"};
    assert_int_equal(moe_cuda_blas_load_from(&api, files, 1, &next, &err), MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "libnothing-of-this-name.so cannot be loaded"));
    next = 0;
    assert_int_equal(moe_cuda_blas_load_from(&api, &other, 1, &next, &err), MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "it lacks functions"));
}

/* One that lacks functions hides no other; whoever is not served by the first goes on behind it. */
static void goes_on(void **state)
{
    (void)state;
    moe_cuda_blas_api api;
    moe_error err = {""};
    size_t next = 0;
    const char *files[] = {whole, other, whole};
    assert_int_equal(moe_cuda_blas_load_from(&api, files, 3, &next, &err), MOE_OK);
    assert_int_equal(next, 1);
    assert_int_equal(moe_cuda_blas_load_from(&api, files, 3, &next, &err), MOE_OK);
    assert_int_equal(next, 3);
    assert_int_equal(moe_cuda_blas_load_from(&api, files, 3, &next, &err), MOE_ERR_UNSUPPORTED);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: test_cuda_blas_load WITH_FUNCTIONS.so WITHOUT.so\n");
        return 2;
    }
    whole = argv[1];
    other = argv[2];
    const struct CMUnitTest tests[] = {cmocka_unit_test(found), cmocka_unit_test(refused),
                                       cmocka_unit_test(goes_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
