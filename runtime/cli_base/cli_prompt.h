/* SPDX-License-Identifier: MIT */
/* Turns -p, -f or standard input into tokens. */
#ifndef CLI_PROMPT_H
#define CLI_PROMPT_H

#include <stdint.h>

#include <moe/moe.h>

#include "cli_buffer.h"
#include "cli_options.h"

/* Options about turns (--system, --think, ...) without --chat are a usage error. */
int cli_check_chat_options(const cli_options *options);

/* Reads the prompt's text. Drops one newline at the end of a file or of standard input, which
 * shells and editors add. Returns an exit code. */
int cli_prompt_text(cli_buffer *text, const cli_options *options);

/* Raw: markup in the text becomes control tokens, and the model's BOS comes first if it has one.
 * --chat: a conversation of --system and this one user's turn, with the assistant's turn opened;
 * the text is never markup. Release *tokens with moe_free(). Returns an exit code. */
int cli_prompt_tokens(const moe_engine *engine, const cli_options *options, const cli_buffer *text,
                      int32_t **tokens, size_t *n_tokens);

/* For commands that read a text and give no answer: opens the engine for that context and tokenizes
 * the text, all of it as plain text. Returns an exit code; in any case close *engine with
 * moe_engine_close() and release *tokens with moe_free(). */
int cli_text_tokens(moe_engine **engine, const cli_options *options, uint64_t context,
                    int32_t **tokens, size_t *n_tokens);

/* Parses "1 2 3", also with commas and newlines, into an array; release it with free(). Errors name
 * the option. Returns an exit code. */
int cli_parse_ids(const char *text, const char *option, int32_t **tokens, size_t *n);

/* If n_tokens do not fit, prints an error with the remedy; otherwise returns CLI_EXIT_OK. */
int cli_check_fits(const moe_engine *engine, size_t n_tokens);

#endif
