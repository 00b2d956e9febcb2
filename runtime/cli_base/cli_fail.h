/* SPDX-License-Identifier: MIT */
#ifndef CLI_FAIL_H
#define CLI_FAIL_H

/* Prints one line on stderr, after "moe-offload: ". Returns exit_code, so that a command can end
 * with it.
 */
__attribute__((format(printf, 2, 3))) int cli_fail(int exit_code, const char *format, ...);

#endif
