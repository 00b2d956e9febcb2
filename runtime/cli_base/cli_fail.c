/* SPDX-License-Identifier: MIT */
#include "cli_fail.h"

#include <stdarg.h>
#include <stdio.h>

int cli_fail(int exit_code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("moe-offload: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return exit_code;
}
