/* SPDX-License-Identifier: MIT */
#ifndef MOE_MODEL_TEXT_NFC_H
#define MOE_MODEL_TEXT_NFC_H

#include <stdbool.h>
#include <stddef.h>

/* False when the text is certainly in NFC already. */
bool moe_nfc_may_change(const char *text, size_t size);

/* Returns the NFC of valid UTF-8 of less than 2^31 bytes, malloc'ed; NULL when memory is short. The
 * time is linear in the text's size, whatever the text. */
char *moe_nfc(const char *text, size_t size, size_t *out_size);

#endif
