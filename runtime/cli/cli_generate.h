/* SPDX-License-Identifier: MIT */
/* The loop of one answer: step, take, decode, print; and its statistics. */
#ifndef CLI_GENERATE_H
#define CLI_GENERATE_H

#include <stdbool.h>
#include <stdint.h>

#include <json-c/json.h>
#include <moe/chat.h>
#include <moe/moe.h>

#include "cli_buffer.h"
#include "cli_options.h"

typedef enum cli_stop {
    CLI_STOP_LENGTH,      /* -n tokens have been written */
    CLI_STOP_END,         /* the model ended the text */
    CLI_STOP_CONTEXT,     /* no room for one more token */
    CLI_STOP_INTERRUPTED, /* Ctrl-C */
    CLI_STOP_FAILED
} cli_stop;

/* One answer, or the sum of the answers of a conversation. */
typedef struct cli_answer {
    cli_stop stop;
    uint64_t prompt_tokens;
    uint64_t prompt_ns;    /* until the first token was sampled */
    uint64_t decode_steps; /* tokens sampled after the first, in decode_ns */
    uint64_t decode_ns;
    cli_buffer tokens; /* int32_t, the tokens written, without the one that ends the text */
    cli_buffer text;
    cli_buffer reasoning; /* the reasoning before the answer; empty if there is none */
} cli_answer;

/* Evaluates what was fed to the session and writes the answer to stdout as it comes, in whole
 * characters. Adds to *answer. After a prompt of turns (NULL: a raw one) the reasoning appears
 * dimmed before the answer on a terminal; elsewhere it goes to standard error, unless --quiet or
 * --json suppress it. Returns an exit code; errors have been printed. */
int cli_generate(moe_engine *engine, moe_session *session, const cli_options *options,
                 const moe_chat_prompt *prompt, cli_answer *answer);

size_t cli_answer_n_tokens(const cli_answer *answer);
void cli_answer_free(cli_answer *answer);

/* Prints what lossy modes did, and how far the result was from the exact pass; prints nothing if
 * they did not act. Figures of a comparison are null if nothing was compared. */
void cli_print_lossy(const moe_lossy_stats *lossy);
void cli_put_lossy_json(struct json_object *object, const moe_lossy_stats *lossy);

/* Prints the end-of-run statistics on stderr: as text, or as JSON with options->json. With
 * options->quiet it only says that a text is lossy. Returns an exit code. */
int cli_print_statistics(const moe_engine *engine, const cli_options *options,
                         const cli_answer *answer, uint64_t seed, uint64_t load_ns);

#endif
