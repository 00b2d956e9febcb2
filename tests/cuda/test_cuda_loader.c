/* SPDX-License-Identifier: MIT */
/* Which CUDA module is taken, by what lies beside the library and what the driver knows. Arguments:
 * doubles of modules for CUDA 13 and 12, and one of another build. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cuda/cuda_loader.h"

static const char *of_13, *of_12, *of_another;

static void lay(const char *folder, const char *name, const char *file)
{
    char path[64];
    snprintf(path, sizeof path, "%s%s", folder, name);
    assert_true(file == NULL || symlink(file, path) == 0);
}

static void take_away(const char *folder, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "%s%s", folder, name);
    unlink(path);
}

/* What is taken with these modules and this driver; out and err are filled in. In a folder of its
 * own: the loader of the system knows a name again whose file has changed. */
static int load(const char *newest, const char *older, uint32_t driver, moe_cuda_module_choice *out,
                moe_error *err)
{
    char text[16];
    char folder[] = "/tmp/moe-loader-XXXXXX";
    char at[sizeof folder + 1];
    assert_non_null(mkdtemp(folder));
    snprintf(at, sizeof at, "%s/", folder);
    lay(at, MOE_CUDA_MODULE_FILE, newest);
    lay(at, MOE_CUDA12_MODULE_FILE, older);
    snprintf(text, sizeof text, "%u", driver);
    setenv("DOUBLE_DRIVER", text, 1);
    err->message[0] = '\0';
    int status = moe_cuda_module_load_from(out, at, err);
    take_away(at, MOE_CUDA_MODULE_FILE);
    take_away(at, MOE_CUDA12_MODULE_FILE);
    rmdir(folder);
    return status;
}

static void expect_taken(const char *newest, const char *older, uint32_t driver, uint32_t cuda,
                         const char *why)
{
    moe_cuda_module_choice choice;
    moe_error err;
    if (load(newest, older, driver, &choice, &err) != MOE_OK) {
        fail_msg("driver %u: %s", driver, err.message);
    }
    assert_int_equal(choice.module->cuda_version, cuda);
    assert_int_equal(choice.driver_version, driver);
    assert_string_equal(choice.file, cuda == 13000 || newest == of_12 ? MOE_CUDA_MODULE_FILE
                                                                      : MOE_CUDA12_MODULE_FILE);
    if (why == NULL ? choice.why[0] != '\0' : strstr(choice.why, why) == NULL) {
        fail_msg("driver %u: said '%s'", driver, choice.why);
    }
}

static void expect_none(const char *newest, const char *older, uint32_t driver, const char *why,
                        const char *remedy)
{
    moe_cuda_module_choice choice;
    moe_error err;
    assert_int_equal(load(newest, older, driver, &choice, &err), MOE_ERR_UNSUPPORTED);
    assert_null(choice.module);
    if (strstr(err.message, why) == NULL || strstr(err.message, remedy) == NULL) {
        fail_msg("driver %u: said '%s'", driver, err.message);
    }
}

static void takes_the_newest_that_the_driver_knows(void **state)
{
    (void)state;
    expect_taken(of_13, of_12, 13000, 13000, NULL);
    expect_taken(of_13, of_12, 13020, 13000, NULL);
    expect_taken(of_13, of_12, 14000, 13000, NULL);
    expect_taken(of_13, of_12, 12040, 12080,
                 "knows CUDA 12.4: moe_cuda12.so is used, because moe_cuda.so needs 13.0 "
                 "(driver 580)");
    /* Any minor number will do. */
    expect_taken(of_13, of_12, 12000, 12080, "knows CUDA 12.0");
    expect_taken(of_13, NULL, 13000, 13000, NULL);
    /* Where CUDA 12 is the only compiler, the one module is of it. */
    expect_taken(of_12, NULL, 12020, 12080, NULL);
    expect_taken(of_12, NULL, 13000, 12080, NULL);
    expect_taken(NULL, of_12, 13000, 12080, "moe_cuda12.so is used: there is no other");
}

/* The first module's device says so, with its remedy. */
static void needs_no_driver(void **state)
{
    (void)state;
    expect_taken(of_13, of_12, 0, 13000, NULL);
    expect_taken(of_13, NULL, 0, 13000, NULL);
}

static void passes_over_another_build(void **state)
{
    (void)state;
    expect_taken(of_another, of_12, 13000, 12080, "belongs to another build");
    expect_none(of_another, NULL, 13000, "belongs to another build", "install library and module");
    expect_taken(of_13, of_another, 13000, 13000, NULL);
}

static void says_what_to_do(void **state)
{
    (void)state;
    expect_none(NULL, NULL, 13000, "there is no CUDA module", "-Dcuda=enabled");
    expect_none(of_13, of_12, 11080, "knows CUDA 11.8, and 12.0 is needed",
                "install driver 525 or newer");
    expect_none(of_12, NULL, 11080, "and 12.0 is needed", "install driver 525 or newer");
    expect_none(of_13, NULL, 11080, "and 13.0 is needed", "install driver 580 or newer");
    expect_none(of_13, NULL, 12080, "knows CUDA 12.8, and 13.0 is needed",
                "580 or newer, or moe_cuda12.so beside the library (built with -Dcuda12=PATH)");
    expect_none(of_13, of_another, 12080, "and 13.0 is needed",
                "moe_cuda12.so belongs to another build");
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: test_cuda_loader OF_13.so OF_12.so OF_ANOTHER_BUILD.so\n");
        return 2;
    }
    static char paths[3][PATH_MAX];
    for (int i = 0; i < 3; i++) {
        if (realpath(argv[i + 1], paths[i]) == NULL) {
            perror(argv[i + 1]);
            return 2;
        }
    }
    of_13 = paths[0];
    of_12 = paths[1];
    of_another = paths[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_the_newest_that_the_driver_knows),
        cmocka_unit_test(needs_no_driver),
        cmocka_unit_test(passes_over_another_build),
        cmocka_unit_test(says_what_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
