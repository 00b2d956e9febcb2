/* SPDX-License-Identifier: MIT */
/* MOE_ASSERT: where it is on, a false condition ends the process with a line that names the place;
 * where it is off, the condition is not evaluated. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "asserting.h"

typedef struct ending {
    int status;     /* of waitpid() */
    char text[512]; /* the beginning of what went to standard error */
} ending;

/* Calls a function in a child process. */
static ending call_in_child(int (*function)(int, int *), int value)
{
    ending e = {0};
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int n = 0;
        const struct rlimit no_core = {0};
        setrlimit(RLIMIT_CORE, &no_core);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        _exit(function(value, &n) == value + 1 ? 0 : 100);
    }
    close(ends[1]);
    size_t length = 0;
    ssize_t got;
    while (length < sizeof e.text - 1 &&
           (got = read(ends[0], e.text + length, sizeof e.text - 1 - length)) > 0) {
        length += (size_t)got;
    }
    close(
        ends[0]); /* a child that writes more (a sanitizer's report) may fail to: it ends anyway */
    assert_int_equal(waitpid(child, &e.status, 0), child);
    return e;
}

static void test_true_condition_is_evaluated_once(void **state)
{
    (void)state;
    int n_evaluated = 0;
    assert_int_equal(asserting_on(1, &n_evaluated), 2);
    assert_int_equal(n_evaluated, 1);
}

static void test_false_condition_traps(void **state)
{
    (void)state;
    ending e = call_in_child(asserting_on, -1);
    assert_false(WIFEXITED(e.status) && WEXITSTATUS(e.status) == 0);
    assert_non_null(strstr(e.text, "asserting.c:16: assertion failed: is_positive(seen, "));
    e = call_in_child(asserting_on, 1);
    assert_true(WIFEXITED(e.status) && WEXITSTATUS(e.status) == 0);
    assert_string_equal(e.text, "");
}

static void test_without_assertions_nothing_is_evaluated(void **state)
{
    (void)state;
    int n_evaluated = 0;
    assert_int_equal(asserting_off(-1, &n_evaluated), 0);
    assert_int_equal(n_evaluated, 0);
    ending e = call_in_child(asserting_off, -1);
    assert_true(WIFEXITED(e.status) && WEXITSTATUS(e.status) == 0);
    assert_string_equal(e.text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_true_condition_is_evaluated_once),
        cmocka_unit_test(test_false_condition_traps),
        cmocka_unit_test(test_without_assertions_nothing_is_evaluated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
