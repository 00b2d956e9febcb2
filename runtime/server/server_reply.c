/* SPDX-License-Identifier: MIT */
#include "server_reply.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "cli_json.h"
#include "server_clock.h"

void server_random_id(char *out, size_t size, const char *prefix)
{
    uint64_t words[2] = {0, 0};
    if (getrandom(words, sizeof words, 0) != sizeof words) {
        words[0] = (uint64_t)time(NULL);
    }
    snprintf(out, size, "%s%016" PRIx64 "%08" PRIx32, prefix, words[0], (uint32_t)words[1]);
}

void server_reply_begin(server_reply *reply, const server_dialect *dialect, const char *prefix,
                        const server_request *request, const moe_engine *engine, const char *model,
                        uint64_t fingerprint)
{
    memset(reply, 0, sizeof *reply);
    reply->dialect = dialect;
    reply->engine = engine;
    reply->job = request->job;
    server_random_id(reply->id, sizeof reply->id, prefix);
    snprintf(reply->fingerprint, sizeof reply->fingerprint, "fp_%016" PRIx64, fingerprint);
    reply->endpoint = request->endpoint;
    reply->include_usage = request->include_usage;
    reply->logprobs = request->logprobs;
    reply->is_base64 = request->is_base64;
    reply->model = model;
    reply->began_ns = server_now_ns();
    reply->created = (int64_t)time(NULL);
    reply->n_prompt = request->job->n_tokens;
    reply->kept = request->kept;
    reply->answer = request->answer;
    snprintf(reply->previous, sizeof reply->previous, "%s", request->previous);
    reply->n_answers = request->n_jobs;
    for (uint32_t i = 0; i < reply->n_answers; i++) {
        reply->answers[i].tools =
            (server_tool_reader){.source = {request->tool_format, request->tools},
                                 .only_one = request->one_call,
                                 .streams = request->stream && !dialect->lines};
    }
}

void server_reply_free(server_reply *reply)
{
    for (uint32_t i = 0; i < reply->n_answers; i++) {
        cli_buffer_free(&reply->answers[i].content);
        cli_buffer_free(&reply->answers[i].reasoning);
        cli_buffer_free(&reply->answers[i].reports);
        server_tool_reader_free(&reply->answers[i].tools);
    }
}

uint64_t server_reply_written(const server_reply *reply)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < reply->n_answers; i++) {
        n += reply->answers[i].n_written;
    }
    return n;
}

bool server_append_json(struct json_object *object, cli_buffer *out)
{
    const int style = JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE;
    size_t size = 0;
    const char *text = !cli_json_is_complete(object)
                           ? NULL
                           : json_object_to_json_string_length(object, style, &size);
    bool stored = text != NULL && cli_buffer_append(out, text, size);
    json_object_put(object);
    return stored;
}

bool server_append_event(const char *name, struct json_object *object, cli_buffer *out)
{
    bool named = name == NULL ||
                 (cli_buffer_append(out, "event: ", 7) &&
                  cli_buffer_append(out, name, strlen(name)) && cli_buffer_append(out, "\n", 1));
    bool stored =
        server_append_json(named && cli_buffer_append(out, "data: ", 6) ? object : NULL, out);
    return stored && cli_buffer_append(out, "\n\n", 2);
}

struct json_object *server_text_from(const cli_buffer *buffer, size_t from)
{
    bool some = buffer->size > from;
    return cli_json_new_text(some ? buffer->data + from : "", some ? buffer->size - from : 0);
}

void server_put_text(struct json_object *object, const char *key, const char *text)
{
    cli_json_put(object, key, json_object_new_string(text));
}

struct json_object *server_error_object(const server_error *error)
{
    struct json_object *outer = json_object_new_object();
    struct json_object *inner = json_object_new_object();
    cli_json_text(inner, "message", error->message);
    server_put_text(inner, "type", error->type);
    if (error->field[0] != '\0') {
        cli_json_text(inner, "param", error->field);
    } else {
        cli_json_null(inner, "param");
    }
    if (error->code != NULL) {
        server_put_text(inner, "code", error->code);
    } else {
        cli_json_null(inner, "code");
    }
    cli_json_put(outer, "error", inner);
    return outer;
}

bool server_reply_error(const server_error *error, cli_buffer *out)
{
    return server_append_json(server_error_object(error), out);
}

uint32_t server_next_call(const server_choice *answer, size_t *arguments)
{
    *arguments = answer->call_open ? answer->arguments_told : 0;
    return answer->calls_told - answer->call_open;
}
