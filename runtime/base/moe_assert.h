/* SPDX-License-Identifier: MIT */
/* MOE_ASSERT(condition) states what must hold at its place for every input: a lock is held, an
 * index is in range, a request goes from one state to the next. Mistakes of a caller, a file or a
 * device are not asserted; they are checked and answered with an error.
 *
 * Builds with assertions (meson option "asserts": by default those with debug information, with a
 * sanitizer, and the fuzzers') evaluate the condition; if it is false they print file, line and
 * condition to standard error and trap. All other builds compile the condition, so that it stays
 * valid and its variables count as used, but never evaluate it. A condition must have no side
 * effect.
 *
 * What is known at compile time (sizes and offsets of blocks in files and on devices) is a
 * _Static_assert, in every build. */
#ifndef MOE_BASE_MOE_ASSERT_H
#define MOE_BASE_MOE_ASSERT_H

#include <stdbool.h>

/* Only in builds with assertions (moe_assert.c). */
_Noreturn void moe_assert_failed(const char *file, int line, const char *condition)
    __attribute__((cold));

#ifdef MOE_ASSERTS
#define MOE_ASSERTS_ARE_ON true
#define MOE_ASSERT(condition)                                                                      \
    ((condition) ? (void)0 : moe_assert_failed(__FILE__, __LINE__, #condition))
#else
#define MOE_ASSERTS_ARE_ON    false
#define MOE_ASSERT(condition) ((void)(false && (condition)))
#endif

#endif
