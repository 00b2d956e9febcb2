/* SPDX-License-Identifier: MIT */
#include "cli_interrupt.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "cli_options.h"

static _Atomic int interrupts; /* signals since cli_interrupt_clear() */
static _Atomic int last;       /* the signal that came last, 0: none */
static _Atomic int ending;     /* SIGTERM or SIGHUP, once one has come */
static _Atomic(moe_session *) watched;
static struct termios terminal; /* written only while is_guarded is 0 */
static _Atomic int is_guarded;

void cli_interrupt_guard_terminal(const struct termios *settings)
{
    atomic_store(&is_guarded, 0);
    if (settings != NULL) {
        terminal = *settings;
        atomic_store(&is_guarded, 1);
    }
}

static void leave_terminal(void)
{
    if (atomic_load(&is_guarded)) {
        ssize_t n = write(STDOUT_FILENO, CLI_TERMINAL_NO_PASTES, sizeof CLI_TERMINAL_NO_PASTES - 1);
        (void)n;
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &terminal);
    }
}

/* Lock-free atomics, moe_session_cancel() (an atomic store), write(), tcsetattr() and _exit() are
 * async-signal-safe. */
static void on_interrupt(int signal_number)
{
    if (atomic_fetch_add(&interrupts, 1) > 0) {
        leave_terminal();
        _exit(128 + signal_number);
    }
    atomic_store(&last, signal_number);
    if (signal_number != SIGINT) {
        atomic_store(&ending, signal_number);
    }
    moe_session *session = atomic_load(&watched);
    if (session != NULL) {
        moe_session_cancel(session);
    }
}

/* A signal that nohup made the process ignore stays ignored. */
static bool is_ignored(int signal_number)
{
    struct sigaction before;
    return signal_number == SIGHUP && sigaction(signal_number, NULL, &before) == 0 &&
           before.sa_handler == SIG_IGN;
}

void cli_interrupt_install(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        if (!is_ignored(signals[i])) {
            sigaction(signals[i], &action, NULL);
        }
    }
}

void cli_interrupt_watch(moe_session *session)
{
    atomic_store(&watched, session);
    /* A signal that came just before this call found no session to cancel, so cancel it now. */
    if (session != NULL && cli_interrupted()) {
        moe_session_cancel(session);
    }
}

bool cli_interrupted(void)
{
    return atomic_load(&interrupts) > 0;
}

bool cli_interrupt_ends(void)
{
    return atomic_load(&ending) != 0;
}

void cli_interrupt_clear(void)
{
    if (!cli_interrupt_ends()) {
        atomic_store(&interrupts, 0);
    }
}

int cli_interrupt_status(int code)
{
    int end = atomic_load(&ending);
    if (end != 0 && code != CLI_EXIT_OK) {
        return 128 + end; /* even if the terminal is gone, and writing failed */
    }
    return code == CLI_EXIT_INTERRUPTED && atomic_load(&last) != 0 ? 128 + atomic_load(&last)
                                                                   : code;
}
