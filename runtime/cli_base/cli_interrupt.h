/* SPDX-License-Identifier: MIT */
/* Ctrl-C (SIGINT), SIGTERM and SIGHUP. A signal handler has no argument, so this file holds the
 * command's only mutable state at file scope: which signals came and the session that they
 * cancel. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <stdbool.h>
#include <termios.h>

#include <moe/moe.h>

/* Sequences that make a terminal mark pasted text (bracketed paste), or stop doing so. */
#define CLI_TERMINAL_PASTES    "\033[?2004h"
#define CLI_TERMINAL_NO_PASTES "\033[?2004l"

/* From now on the first signal is noted, and cancels the watched session. A second one before
 * cli_interrupt_clear() ends the process at once, with 128 plus its number. Reads are interrupted
 * (EINTR). A SIGHUP that is ignored (nohup) stays ignored. */
void cli_interrupt_install(void);

/* Sets the session to cancel; NULL: none. Call it with NULL before the session is closed. */
void cli_interrupt_watch(moe_session *session);

bool cli_interrupted(void);
/* Clears SIGINT only: SIGTERM and SIGHUP end the command, not just an answer of a conversation. */
void cli_interrupt_clear(void);
bool cli_interrupt_ends(void);

/* Says that the terminal of standard input is being edited: if a signal ends the process at once,
 * these settings are restored first. NULL: it is no longer edited. */
void cli_interrupt_guard_terminal(const struct termios *settings);

/* The exit status that main() returns instead of code: 130 after Ctrl-C, 143 after SIGTERM, 129
 * after SIGHUP. */
int cli_interrupt_status(int code);

#endif
