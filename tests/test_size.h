/* SPDX-License-Identifier: MIT */
/* How much a test does. Sweeps of arithmetic run whole in the release build of `./check full`.
 * `./check` sets MOE_TEST_SIZE=small, as meson.build does under sanitizers and under the
 * emulation's watch: a slice of each sweep shows these what the whole would. `./check nightly` sets
 * MOE_TEST_WHOLE, and everything runs whole. */
#ifndef MOE_TESTS_TEST_SIZE_H
#define MOE_TESTS_TEST_SIZE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline bool test_is_small(void)
{
    const char *size = getenv("MOE_TEST_SIZE");
    return getenv("MOE_TEST_WHOLE") == NULL && size != NULL && strcmp(size, "small") == 0;
}

/* A small test keeps one of `every` cases. */
static inline bool test_leaves_out(uint32_t number, uint32_t every)
{
    return test_is_small() && number % every != 0;
}

#endif
