/* SPDX-License-Identifier: MIT */
/* Only part of builds with assertions: a library given to users never prints and never ends its
 * process. */
#include "runtime/base/moe_assert.h"

#include <stdio.h>
#include <unistd.h>

void moe_assert_failed(const char *file, int line, const char *condition)
{
    /* Bypasses the buffers of stdio, whose locks the failing thread may hold. */
    (void)dprintf(STDERR_FILENO, "%s:%d: assertion failed: %s\n", file, line, condition);
    __builtin_trap();
}
