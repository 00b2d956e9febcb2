/* SPDX-License-Identifier: MIT */
#ifndef MOE_TESTS_NULL_CALLS_H
#define MOE_TESTS_NULL_CALLS_H

/* Made from the headers by null_calls.sh. */
void call_all_with_null(void (*check)(const char *name, int status));

#endif
