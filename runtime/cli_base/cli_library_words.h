/* SPDX-License-Identifier: MIT */
/* The library's messages name fields of its options ("draft_max", "options.io"); the command's
 * users know flags. A table maps fields to flags. */
#ifndef CLI_LIBRARY_WORDS_H
#define CLI_LIBRARY_WORDS_H

#include <stddef.h>

/* Writes the message with flags instead of fields. It replaces names of fields anywhere (names that
 * are also English words only after "options."), and the text before the first colon ("io: 'x' in
 * ..."). Cuts the text at out's size. */
void cli_library_words(const char *message, char *out, size_t size);

/* Writes the flags that a message about memory advises, " (-c, -b)", or "". */
void cli_library_advice(const char *message, char *out, size_t size);

#endif
