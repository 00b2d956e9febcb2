/* SPDX-License-Identifier: MIT */
/* What `run` is to write: the ids of tokens that the library writes when nothing goes wrong, and
 * the text after each of them. So a run that ended early is judged by its tokens: their hash is in
 * the statistics (--json), and its text must be that of so many tokens, not any bytes that are
 * alike. */
#ifndef TESTS_FAULTS_TEXT_H
#define TESTS_FAULTS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAULT_TEXT_TOKENS 24u
#define FAULT_TEXT_BYTES  4096u

typedef struct fault_text {
    int32_t tokens[FAULT_TEXT_TOKENS];
    char text[FAULT_TEXT_BYTES];
    size_t ends[FAULT_TEXT_TOKENS + 1]; /* of the text after so many tokens, whole characters */
} fault_text;

/* Asks the library, in this process; false, with a line on standard output. */
bool fault_text_make(fault_text *text, const char *model, const char *prompt);

/* What is wrong with what a run wrote and told; NULL: nothing. told: the statistics as JSON, or
 * anything else where there are none. ended: it says that it came to an end, and was not broken off
 * by an error. *knows_tokens: the statistics told of tokens, and these were compared. */
const char *fault_text_judge(const fault_text *text, const char *bytes, size_t size,
                             const char *told, bool ended, bool *knows_tokens);

#endif
