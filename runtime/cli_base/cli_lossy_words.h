/* SPDX-License-Identifier: MIT */
/* The words of options of lossy modes: words and name=value, joined by commas. */
#ifndef CLI_LOSSY_WORDS_H
#define CLI_LOSSY_WORDS_H

#include <moe/lab.h>
#include <moe/lossy_modes.h>

#include "cli_options.h"

/* Sets the library's options by the words. Returns an exit code; errors have been printed. */
int cli_lossy_words(moe_lossy_options *lossy, moe_lab_options *lab, const cli_options *options);
/* Whether any of the modes is asked for. */
bool cli_lossy_is_asked(const cli_options *options);

#endif
