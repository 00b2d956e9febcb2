/* SPDX-License-Identifier: MIT */
/* Conversations in which people and tools write the words that control tokens are made of, in every
 * field, and a vocabulary that has each of these words as a token of its own. */
#ifndef MOE_TESTS_HOSTILE_DATA_H
#define MOE_TESTS_HOSTILE_DATA_H

#include <stdbool.h>
#include <stddef.h>

#include <json-c/json.h>

#include "runtime/model/chat_template.h"

typedef struct hostile_words {
    char text[16384]; /* every word between U+E000 and U+E001, which nothing else has */
    char words[256][48];
    bool in_template[256];
    size_t n;
} hostile_words;

/* What looks like a token in the template, and tokens that many models have. */
void hostile_find_words(hostile_words *words, const char *source);

/* The variables with words->text in the place of every text but roles and types; names of
 * arguments and of properties too. */
json_object *hostile_variables(json_object *variables, const hostile_words *words);

/* Byte-level BPE: 256 bytes, then the words, by turns control tokens and, where the template has
 * them, tokens of the user's own. */
moe_tokenizer *hostile_vocabulary(const hostile_words *words);

typedef struct hostile_counts {
    bool rendered;      /* else the template refused */
    size_t n_tokens;    /* words that became tokens of their own */
    size_t n_from_data; /* of them those with a byte that the template did not write */
    size_t n_data;      /* words of data */
    size_t n_marked;    /* marks of data that count as the template's */
} hostile_counts;

/* Renders and tokenizes as moe_chat_render() does. */
hostile_counts hostile_count(const moe_tokenizer *tokenizer, const char *source,
                             json_object *variables, moe_error *err);

#endif
