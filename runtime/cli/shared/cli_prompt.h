/* SPDX-License-Identifier: MIT */
/* From -p, -f or standard input to tokens. */
#ifndef CLI_PROMPT_H
#define CLI_PROMPT_H

#include <stdint.h>

#include <moe/moe.h>

#include "cli_buffer.h"
#include "cli_options.h"

/* What speaks of turns (--system, --think, ...) without --chat is a usage error. */
int cli_check_chat_options(const cli_options *options);

/* The prompt's text. One newline at the end of a file or of standard input is dropped, as the shell
 * and editors put it there. Returns an exit code. */
int cli_prompt_text(cli_buffer *text, const cli_options *options);

/* Raw: markup in the text becomes control tokens, and the model's BOS comes first where it has one.
 * --chat: a conversation of --system and this one user's turn, with the assistant's opened; the
 * text is never markup. *tokens: moe_free(). Returns an exit code. */
int cli_prompt_tokens(const moe_engine *engine, const cli_options *options, const cli_buffer *text,
                      int32_t **tokens, size_t *n_tokens);

/* For what reads a text rather than answers it: opens the engine for that context and takes the
 * prompt's text apart, in which nothing is markup. Returns an exit code; whatever it is, *engine:
 * moe_engine_close(), *tokens: moe_free(). */
int cli_text_tokens(moe_engine **engine, const cli_options *options, uint64_t context,
                    int32_t **tokens, size_t *n_tokens);

/* "1 2 3", also with commas and newlines, into an array: free(). Errors name the option. Returns an
 * exit code. */
int cli_parse_ids(const char *text, const char *option, int32_t **tokens, size_t *n);

/* Tells, with the remedy, that n_tokens do not fit. CLI_EXIT_OK when they do. */
int cli_check_fits(const moe_engine *engine, size_t n_tokens);

#endif
