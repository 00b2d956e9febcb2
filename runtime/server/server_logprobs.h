/* SPDX-License-Identifier: MIT */
/* Reports on tokens as OpenAI's clients expect them. There is one for every token written, those of
 * reasoning and of stop strings among them. The probabilities are the model's, before sampling.
 *
 * A report is some 2 KB of JSON, and as objects 30 KB. So reports are kept as the engine gives
 * them, and written as text, a token at a time, where an answer's JSON has a mark in their place:
 * "logprobs":@2 is those of the answer 2. No string of JSON has an unescaped quote before a colon,
 * so nothing else looks like it. */
#ifndef SERVER_LOGPROBS_H
#define SERVER_LOGPROBS_H

#include <json-c/json.h>
#include <moe/moe.h>

#include "server_reply.h"

/* Reports that are told in one event of a stream. */
enum { SERVER_REPORTS_AT_ONCE = 16 };

/* The mark; NULL when memory is short. */
struct json_object *server_logprobs_mark(uint32_t index);
/* How many bytes of the JSON come before the first mark, with its key; size if there is none.
 * *index, *end: which answer's, and where the JSON goes on. */
size_t server_logprobs_find(const char *text, size_t size, uint32_t *index, size_t *end);

/* How far the reports of one answer are written. */
typedef struct server_logprobs_cursor {
    uint32_t part; /* of the JSON */
    size_t token;
    size_t offset; /* in the text, of the token */
} server_logprobs_cursor;

/* Appends the next piece of the reports that are to be told; *done: it was the last one. False when
 * memory is short. */
bool server_logprobs_piece(const server_reply *reply, uint32_t index,
                           server_logprobs_cursor *cursor, cli_buffer *out, bool *done);
/* Appends JSON with its mark replaced. */
bool server_logprobs_fill(const server_reply *reply, const char *text, size_t size,
                          cli_buffer *out);
/* The reports that were told are let go. */
void server_logprobs_told(const server_reply *reply, server_choice *answer);

#endif
