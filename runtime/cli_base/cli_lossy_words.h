/* SPDX-License-Identifier: MIT */
/* --expert-budget-mode, --buddy and --low-bit: words and name=value, joined by commas. */
#ifndef CLI_LOSSY_WORDS_H
#define CLI_LOSSY_WORDS_H

#include <moe/lab.h>
#include <moe/lossy_modes.h>

/* All return an exit code; errors have been printed. text NULL: changes nothing. */
int cli_lossy_budget(moe_lossy_options *lossy, moe_lab_options *lab, const char *text);
int cli_lossy_buddies(moe_lossy_options *lossy, const char *text);
int cli_lossy_low_bit(moe_lossy_options *lossy, const char *text);

#endif
