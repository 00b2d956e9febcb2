/* SPDX-License-Identifier: MIT */
#ifndef MOE_TESTS_ASSERTING_H
#define MOE_TESTS_ASSERTING_H

#include <stdbool.h>

/* Asserts that value > 0, counts evaluations of the condition in *n_evaluated, and returns value +
 * 1. */
int asserting_on(int value, int *n_evaluated);
int asserting_off(int value, int *n_evaluated);

#endif
