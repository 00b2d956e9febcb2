/* SPDX-License-Identifier: MIT */
/* What the kernels' tests use of cmocka, for processors whose libraries are not at hand: a failed
 * assertion ends the program with status 1. */
#ifndef MOE_TESTS_ARM_CMOCKA_H
#define MOE_TESTS_ARM_CMOCKA_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define cmocka_unit_test(function)                                                                 \
    {                                                                                              \
#function, function                                                                        \
    }
#define print_message(...) printf(__VA_ARGS__)
#define fail_msg(...)                                                                              \
    do {                                                                                           \
        printf("%s:%d: ", __FILE__, __LINE__);                                                     \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        exit(1);                                                                                   \
    } while (0)
#define assert_true(condition)                                                                     \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail_msg("%s is false", #condition);                                                   \
    } while (0)
#define assert_false(condition)         assert_true(!(condition))
#define assert_null(pointer)            assert_true((pointer) == NULL)
#define assert_non_null(pointer)        assert_true((pointer) != NULL)
#define assert_int_equal(a, b)          assert_true((long long)(a) == (long long)(b))
#define assert_string_equal(a, b)       assert_true(strcmp(a, b) == 0)
#define assert_memory_equal(a, b, size) assert_true(memcmp(a, b, size) == 0)
#define assert_ptr_equal(a, b)          assert_true((a) == (b))
#define assert_ptr_not_equal(a, b)      assert_true((a) != (b))
#define skip()                                                                                     \
    do {                                                                                           \
        printf("left out\n");                                                                      \
        return;                                                                                    \
    } while (0)

static inline int stand_in_run(const struct CMUnitTest *tests, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        void *state = NULL;
        printf("[ RUN      ] %s\n", tests[i].name);
        fflush(stdout);
        tests[i].run(&state);
    }
    printf("%zu tests passed\n", n);
    return 0;
}
#define cmocka_run_group_tests(tests, set_up, tear_down)                                           \
    stand_in_run(tests, sizeof(tests) / sizeof((tests)[0]))

#endif
