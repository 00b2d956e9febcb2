/* SPDX-License-Identifier: MIT */
/* The library's messages name fields of its options ("draft_max", "options.io"); the command's
 * users know flags. One table says which field is which flag. */
#ifndef CLI_LIBRARY_WORDS_H
#define CLI_LIBRARY_WORDS_H

#include <stddef.h>

/* The message with flags instead of fields: names of fields anywhere in it (those that are
 * words of English, too, only behind "options."), and what stands before the first colon ("buddy:
 * 'x' in ..."). out is cut short where it ends. */
void cli_library_words(const char *message, char *out, size_t size);

#endif
