/* SPDX-License-Identifier: MIT */
/* Pre-tokenizers of byte-level BPE cut a text into words, inside which pieces are then merged. A
 * model names its pre-tokenizer in tokenizer.ggml.pre. Each pre-tokenizer is a row of patterns. A
 * pattern is applied to the pieces that the pattern before it left; text that it does not match
 * stays a piece of its own. */
#ifndef MOE_MODEL_PRETOKENIZERS_H
#define MOE_MODEL_PRETOKENIZERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/allowance_charge.h"
#include "runtime/model/gguf.h"

#define MOE_PRETOKENIZER_MAX_PATTERNS 6

typedef struct moe_pretokenizer {
    const char *names; /* as in the metadata, separated by single spaces */
    bool nfc;          /* the text is normalised to NFC first */
    bool whole_words;  /* a word that is itself a token becomes this token without merging */
    bool add_bos;      /* default if the metadata does not say */
    /* No words are cut: neighbouring characters of the whole text merge (tokenizer_characters.c).
     */
    bool by_characters;
    const char *patterns[MOE_PRETOKENIZER_MAX_PATTERNS];
} moe_pretokenizer;

typedef struct moe_pretokenizer_code moe_pretokenizer_code;       /* compiled; shared by threads */
typedef struct moe_pretokenizer_scratch moe_pretokenizer_scratch; /* of one thread */

/* Ends of the pieces, in rising order; the last is the size of the text. */
typedef struct moe_split_list {
    uint32_t *ends;
    size_t n, capacity;
    moe_allowance *allowance; /* what the list's memory is taken from; NULL: no limit */
} moe_split_list;

typedef struct moe_split_lists {
    moe_split_list current, next;
} moe_split_lists;

/* Finds the row with this name; NULL if there is none. */
const moe_pretokenizer *moe_pretokenizer_find(const char *name, size_t size);
/* The first name of each row, for messages. */
void moe_pretokenizer_names(char *out, size_t size);

int moe_pretokenizer_compile(moe_pretokenizer_code **out, const moe_pretokenizer *pretokenizer,
                             moe_error *err);
void moe_pretokenizer_free(moe_pretokenizer_code **code);

moe_pretokenizer_scratch *moe_pretokenizer_scratch_create(void);
void moe_pretokenizer_scratch_destroy(moe_pretokenizer_scratch **scratch);

/* Splits valid UTF-8 of less than 2^31 bytes; the result is lists->current. */
int moe_pretokenizer_split(const moe_pretokenizer_code *code, moe_pretokenizer_scratch *scratch,
                           const char *text, size_t size, moe_split_lists *lists, moe_error *err);

#endif
