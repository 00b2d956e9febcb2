/* SPDX-License-Identifier: MIT */
/* Values of a sweep's axes, in the form of the command line. */
#ifndef CLI_SWEEP_VALUES_H
#define CLI_SWEEP_VALUES_H

#include <stdbool.h>

/* Functions for cli_axis.is_valid: "25%" above 0 and at most 100; counts of at least 1; sizes such
 * as "256K", multiples of 4 KiB. */
bool cli_is_share(const char *value);
bool cli_is_count(const char *value);
bool cli_is_block(const char *value);
/* Returns the value as a number: 262144 for "256K", 25 for "25%", 8 for "8"; NAN for other
 * texts. */
double cli_number_of(const char *value);

#endif
