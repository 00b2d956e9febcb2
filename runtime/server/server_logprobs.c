/* SPDX-License-Identifier: MIT */
#include "server_logprobs.h"

#include <math.h>
#include <stdio.h>

#include <moe/sampling.h>

#include "cli_json.h"

static const moe_token_report *first(const server_choice *answer, size_t *n)
{
    *n = (answer->reports.size - answer->reports_told) / sizeof(moe_token_report);
    return (const moe_token_report *)(const void *)(answer->reports.data + answer->reports_told);
}

static struct json_object *text_of(const moe_engine *engine, int32_t token)
{
    size_t size;
    const char *text = moe_token_piece(engine, token, true, &size);
    return cli_json_new_text(text, size);
}

/* With the digits that a float has. JSON has no infinity; OpenAI's interface says -9999. */
static struct json_object *number(float logprob)
{
    char text[32];
    double value = isfinite(logprob) ? (double)logprob : -9999.0;
    snprintf(text, sizeof text, "%.9g", value);
    return json_object_new_double_s(value, text);
}

static struct json_object *chance(const moe_engine *engine, const moe_token_chance *c)
{
    size_t size;
    const char *text = moe_token_piece(engine, c->token, true, &size);
    struct json_object *object = json_object_new_object();
    struct json_object *bytes = json_object_new_array();
    for (size_t i = 0; i < size; i++) {
        cli_json_append(bytes, json_object_new_int((unsigned char)text[i]));
    }
    cli_json_put(object, "token", text_of(engine, c->token));
    cli_json_put(object, "logprob", number(c->logprob));
    cli_json_put(object, "bytes", bytes);
    return object;
}

struct json_object *server_chat_logprobs(const moe_engine *engine, const server_choice *answer)
{
    size_t n;
    const moe_token_report *reports = first(answer, &n);
    struct json_object *outer = json_object_new_object();
    struct json_object *content = json_object_new_array();
    for (size_t i = 0; i < n; i++) {
        struct json_object *entry = chance(engine, &reports[i].chosen);
        struct json_object *top = json_object_new_array();
        for (uint32_t k = 0; k < reports[i].n_top; k++) {
            cli_json_append(top, chance(engine, &reports[i].top[k]));
        }
        cli_json_put(entry, "top_logprobs", top);
        cli_json_append(content, entry);
    }
    cli_json_put(outer, "content", content);
    cli_json_null(outer, "refusal");
    return outer;
}

/* Where the text of the first untold token begins in the text of all tokens. */
static size_t text_before(const moe_engine *engine, const server_choice *answer)
{
    size_t offset = 0;
    const moe_token_report *reports = (const moe_token_report *)(const void *)answer->reports.data;
    for (size_t i = 0; i < answer->reports_told / sizeof *reports; i++) {
        size_t size;
        (void)moe_token_piece(engine, reports[i].chosen.token, true, &size);
        offset += size;
    }
    return offset;
}

struct json_object *server_text_logprobs(const moe_engine *engine, const server_choice *answer)
{
    size_t n;
    const moe_token_report *reports = first(answer, &n);
    struct json_object *outer = json_object_new_object();
    struct json_object *tokens = json_object_new_array();
    struct json_object *logprobs = json_object_new_array();
    struct json_object *tops = json_object_new_array();
    struct json_object *offsets = json_object_new_array();
    size_t offset = text_before(engine, answer);
    for (size_t i = 0; i < n; i++) {
        struct json_object *top = json_object_new_object();
        size_t size;
        (void)moe_token_piece(engine, reports[i].chosen.token, true, &size);
        cli_json_append(tokens, text_of(engine, reports[i].chosen.token));
        cli_json_append(logprobs, number(reports[i].chosen.logprob));
        for (uint32_t k = 0; k < reports[i].n_top; k++) {
            struct json_object *text = text_of(engine, reports[i].top[k].token);
            cli_json_put(top, json_object_get_string(text), number(reports[i].top[k].logprob));
            json_object_put(text);
        }
        cli_json_append(tops, top);
        cli_json_append(offsets, json_object_new_int64((int64_t)offset));
        offset += size;
    }
    cli_json_put(outer, "tokens", tokens);
    cli_json_put(outer, "token_logprobs", logprobs);
    cli_json_put(outer, "top_logprobs", tops);
    cli_json_put(outer, "text_offset", offsets);
    return outer;
}
