/* SPDX-License-Identifier: MIT */
/* Reports on tokens as OpenAI's clients expect them: those that a stream has not told yet. There is
 * one for every token written, those of reasoning and of stop strings among them. The probabilities
 * are the model's, before sampling. */
#ifndef SERVER_LOGPROBS_H
#define SERVER_LOGPROBS_H

#include <json-c/json.h>
#include <moe/moe.h>

#include "server_reply.h"

struct json_object *server_chat_logprobs(const moe_engine *engine, const server_choice *answer);
struct json_object *server_text_logprobs(const moe_engine *engine, const server_choice *answer);

#endif
