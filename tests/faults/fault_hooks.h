/* SPDX-License-Identifier: MIT */
/* Shared by the hooks of the preloaded library. */
#ifndef TESTS_FAULTS_HOOKS_H
#define TESTS_FAULTS_HOOKS_H

#include <stdbool.h>

#include "tests/faults/fault_page.h"

typedef struct fault_chosen {
    fault_kind kind; /* FAULT_KINDS: none */
    uint64_t random; /* for what is left to choose */
} fault_chosen;

/* What happens to this call. kinds: bits of those that it can have. A late one has been waited for.
 * caller: where the call came from; NULL: the program itself. */
fault_chosen fault_choose(const void *caller, fault_class class, unsigned kinds);

/* The fault that was chosen could not be carried out. */
void fault_uncount(fault_class class, fault_kind kind);

/* What hangs is to go on. */
bool fault_let_go(void);

/* The next library's function of this name. Ends the process where there is none. */
void *fault_true_call(const char *name);

#endif
