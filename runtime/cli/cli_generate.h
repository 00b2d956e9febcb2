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
    CLI_STOP_LENGTH,      /* -n tokens written */
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
    uint64_t decode_steps; /* tokens sampled after the first: what decode_ns was spent on */
    uint64_t decode_ns;
    cli_buffer tokens; /* int32_t, the tokens written; the one that ends the text is not */
    cli_buffer text;
    cli_buffer reasoning; /* before the answer; empty where none is told apart */
} cli_answer;

/* Evaluates what was fed to the session and writes the answer to stdout as it comes, whole
 * characters only. Adds to *answer. After a prompt of turns (NULL: a raw one) the reasoning before
 * the answer stands dimmed before it on a terminal; elsewhere standard error gets it, unless
 * --quiet or --json keep it out. Returns an exit code; an error has been told. */
int cli_generate(moe_engine *engine, moe_session *session, const cli_options *options,
                 const moe_chat_prompt *prompt, cli_answer *answer);

size_t cli_answer_n_tokens(const cli_answer *answer);
void cli_answer_free(cli_answer *answer);

/* What lossy modes did, and how far that was from the exact pass; nothing when they did not act.
 * The figures of what was compared are null where nothing was. */
void cli_print_lossy(const moe_lossy_stats *lossy);
void cli_put_lossy_json(struct json_object *object, const moe_lossy_stats *lossy);

/* The end-of-run statistics on stderr: as text, or as JSON with options->json. With options->quiet
 * only that the text is lossy, where it is. An exit code. */
int cli_print_statistics(const moe_engine *engine, const cli_options *options,
                         const cli_answer *answer, uint64_t seed, uint64_t load_ns);

#endif
