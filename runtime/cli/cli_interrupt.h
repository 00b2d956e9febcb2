/* SPDX-License-Identifier: MIT */
/* Ctrl-C. A signal handler has no argument, so this file holds the command's only mutable state at
 * file scope: the count of signals and the session that they cancel. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <stdbool.h>

#include <moe/moe.h>

/* From now on the first SIGINT is noted, and cancels the watched session; a second one that comes
 * before cli_interrupt_clear() ends the process with 130 at once. Reads are interrupted (EINTR). */
void cli_interrupt_install(void);

/* NULL: none. To be called with NULL before the session is closed. */
void cli_interrupt_watch(moe_session *session);

bool cli_interrupted(void);
void cli_interrupt_clear(void);

#endif
