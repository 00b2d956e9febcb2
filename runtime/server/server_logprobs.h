/* SPDX-License-Identifier: MIT */
/* Writes reports on tokens (logprobs) as OpenAI's clients expect them. There is a report for every
 * generated token, also for those of reasoning and of stop strings. The probabilities are the
 * model's own, before sampling.
 *
 * A report is about 2 KB of JSON text, and 30 KB as JSON objects in memory. So the server keeps
 * reports in the engine's form. The answer's JSON has a mark in their place, "logprobs":@2 for the
 * reports of answer 2, and when the answer is sent, each mark is replaced by the reports' text, one
 * token at a time. Nothing else in JSON looks like a mark, because an unescaped quote before a
 * colon never occurs within a string. */
#ifndef SERVER_LOGPROBS_H
#define SERVER_LOGPROBS_H

#include <json-c/json.h>
#include <moe/moe.h>

#include "server_reply.h"

/* The most reports that one event of a stream carries. */
enum { SERVER_REPORTS_AT_ONCE = 16 };

/* Returns the value that stands for the reports of answer `index`; NULL: memory is short. */
struct json_object *server_logprobs_mark(uint32_t index);
/* Finds the first mark. Returns the number of bytes before it (before its key), or `size` if there
 * is none. Sets *index to the answer that it is for, and *end to where the JSON continues. */
size_t server_logprobs_find(const char *text, size_t size, uint32_t *index, size_t *end);

/* How far the reports of one answer have been written. */
typedef struct server_logprobs_cursor {
    uint32_t part; /* of the JSON text */
    size_t token;
    size_t offset; /* the token's offset in the text */
} server_logprobs_cursor;

/* Appends the next piece of the reports that are due. Sets *done after the last piece. False:
 * memory is short. */
bool server_logprobs_piece(const server_reply *reply, uint32_t index,
                           server_logprobs_cursor *cursor, cli_buffer *out, bool *done);
/* Appends the JSON text, with its mark replaced by reports. */
bool server_logprobs_fill(const server_reply *reply, const char *text, size_t size,
                          cli_buffer *out);
/* Frees the reports that have been sent. */
void server_logprobs_told(const server_reply *reply, server_choice *answer);

#endif
