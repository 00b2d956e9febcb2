/* SPDX-License-Identifier: MIT */
#include "cli_interrupt.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "cli_options.h"

static _Atomic int interrupts;
static _Atomic(moe_session *) watched;

/* Lock-free atomics, moe_session_cancel() (an atomic store) and _exit() are async-signal-safe. */
static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (atomic_fetch_add(&interrupts, 1) > 0) {
        _exit(CLI_EXIT_INTERRUPTED);
    }
    moe_session *session = atomic_load(&watched);
    if (session != NULL) {
        moe_session_cancel(session);
    }
}

void cli_interrupt_install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

void cli_interrupt_watch(moe_session *session)
{
    atomic_store(&watched, session);
    /* A signal that came just before found no session to cancel. */
    if (session != NULL && cli_interrupted()) {
        moe_session_cancel(session);
    }
}

bool cli_interrupted(void)
{
    return atomic_load(&interrupts) > 0;
}

void cli_interrupt_clear(void)
{
    atomic_store(&interrupts, 0);
}
