/* SPDX-License-Identifier: MIT */
#include "server_logprobs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/sampling.h>

#include "cli_json.h"

#define KEY "\"logprobs\":@"

enum { KEY_SIZE = sizeof KEY - 1 };

/* ---- The mark ---- */

struct json_object *server_logprobs_mark(uint32_t index)
{
    char text[16];
    snprintf(text, sizeof text, "@%u", (unsigned)index);
    return json_object_new_double_s(0, text);
}

size_t server_logprobs_find(const char *text, size_t size, uint32_t *index, size_t *end)
{
    const char *at = size < KEY_SIZE ? NULL : memmem(text, size, KEY, KEY_SIZE);
    if (at == NULL) {
        return size;
    }
    char *behind;
    *index = (uint32_t)strtoul(at + KEY_SIZE, &behind, 10);
    *end = (size_t)(behind - text);
    return (size_t)(at - text) + KEY_SIZE - 1;
}

/* ---- Reports ---- */

static size_t n_reports(const server_reply *reply, const server_choice *answer)
{
    size_t n = answer->reports.size / server_report_size(reply->job->n_top);
    return answer->reports_now < n ? answer->reports_now : n;
}

static const moe_token_report *report_at(const server_reply *reply, const server_choice *answer,
                                         size_t i)
{
    return (const moe_token_report *)(const void *)(answer->reports.data +
                                                    i * server_report_size(reply->job->n_top));
}

static bool add(cli_buffer *out, const char *text)
{
    return cli_buffer_append(out, text, strlen(text));
}

/* Appends the token's text as a JSON string. */
static bool add_text(const moe_engine *engine, int32_t token, cli_buffer *out)
{
    size_t size;
    const char *text = moe_token_piece(engine, token, true, &size);
    return server_append_json(cli_json_new_text(text, size), out);
}

/* Appends the number with as many digits as a float has. JSON has no infinity, so -9999 stands for
 * it, as in OpenAI's interface. */
static bool add_number(float logprob, cli_buffer *out)
{
    char text[32];
    snprintf(text, sizeof text, "%.9g", isfinite(logprob) ? (double)logprob : -9999.0);
    return add(out, text);
}

/* Appends the beginning of the object for one token, without its closing bracket. */
static bool add_chance(const moe_engine *engine, const moe_token_chance *c, cli_buffer *out)
{
    size_t size;
    const char *text = moe_token_piece(engine, c->token, true, &size);
    bool stored = add(out, "{\"token\":") && add_text(engine, c->token, out) &&
                  add(out, ",\"logprob\":") && add_number(c->logprob, out) &&
                  add(out, ",\"bytes\":[");
    for (size_t i = 0; i < size && stored; i++) {
        char byte[8];
        snprintf(byte, sizeof byte, i > 0 ? ",%u" : "%u", (unsigned)(unsigned char)text[i]);
        stored = add(out, byte);
    }
    return stored && add(out, "]");
}

static bool add_chat_entry(const moe_engine *engine, const moe_token_report *report,
                           cli_buffer *out)
{
    bool stored = add_chance(engine, &report->chosen, out) && add(out, ",\"top_logprobs\":[");
    for (uint32_t k = 0; k < report->n_top && stored; k++) {
        stored =
            add(out, k > 0 ? "," : "") && add_chance(engine, &report->top[k], out) && add(out, "}");
    }
    return stored && add(out, "]}");
}

static bool is_first(const moe_token_report *report)
{
    return isnan(report->chosen.logprob);
}

/* Appends an object whose keys are the likely tokens' texts. If two tokens have the same text, the
 * last one remains. */
static bool add_top_object(const moe_engine *engine, const moe_token_report *report,
                           cli_buffer *out)
{
    struct json_object *top = json_object_new_object();
    for (uint32_t k = 0; k < report->n_top; k++) {
        char number[32];
        size_t size;
        float logprob = report->top[k].logprob;
        const char *text = moe_token_piece(engine, report->top[k].token, true, &size);
        struct json_object *key = cli_json_new_text(text, size);
        double value = isfinite(logprob) ? (double)logprob : -9999.0;
        snprintf(number, sizeof number, "%.9g", value);
        cli_json_put(top, key == NULL ? "" : json_object_get_string(key),
                     json_object_new_double_s(value, number));
        json_object_put(key);
    }
    return server_append_json(top, out);
}

/* ---- Pieces ---- */

/* Appends one entry to each of the four arrays of /v1/completions' logprobs. */
static bool add_text_entry(const server_reply *reply, const moe_token_report *report,
                           server_logprobs_cursor *cursor, cli_buffer *out)
{
    char number[24];
    size_t size;
    switch (cursor->part) {
    case 0:
        return add_text(reply->engine, report->chosen.token, out);
    case 1:
        return is_first(report) ? add(out, "null") : add_number(report->chosen.logprob, out);
    case 2:
        return is_first(report) ? add(out, "null") : add_top_object(reply->engine, report, out);
    default:
        snprintf(number, sizeof number, "%zd",
                 (ssize_t)cursor->offset < 0 ? 0 : (ssize_t)cursor->offset);
        (void)moe_token_piece(reply->engine, report->chosen.token, true, &size);
        cursor->offset += size;
        return add(out, number);
    }
}

bool server_logprobs_piece(const server_reply *reply, uint32_t index,
                           server_logprobs_cursor *cursor, cli_buffer *out, bool *done)
{
    static const char *const parts[] = {"{\"tokens\":[", "],\"token_logprobs\":[",
                                        "],\"top_logprobs\":[", "],\"text_offset\":["};
    const server_choice *answer = &reply->answers[index];
    const bool is_chat = reply->endpoint == SERVER_CHAT;
    const uint32_t n_parts = is_chat ? 1 : 4;
    const size_t n = n_reports(reply, answer);
    bool stored = true;
    *done = false;
    if (cursor->token == 0) {
        stored = add(out, is_chat ? "{\"content\":[" : parts[cursor->part]);
        cursor->offset = answer->text_offset;
    }
    if (cursor->token < n) {
        const moe_token_report *report = report_at(reply, answer, cursor->token);
        stored = stored && add(out, cursor->token > 0 ? "," : "") &&
                 (is_chat ? add_chat_entry(reply->engine, report, out)
                          : add_text_entry(reply, report, cursor, out));
        cursor->token++;
    }
    if (cursor->token >= n) {
        cursor->token = 0;
        *done = ++cursor->part == n_parts;
    }
    return stored && (!*done || add(out, is_chat ? "],\"refusal\":null}" : "]}"));
}

bool server_logprobs_fill(const server_reply *reply, const char *text, size_t size, cli_buffer *out)
{
    uint32_t index = 0;
    size_t end = size;
    size_t n = server_logprobs_find(text, size, &index, &end);
    bool stored = cli_buffer_append(out, text, n);
    server_logprobs_cursor cursor = {0, 0, 0};
    for (bool done = n == size; !done && stored;) {
        stored = server_logprobs_piece(reply, index, &cursor, out, &done);
    }
    return stored && (n == size || cli_buffer_append(out, text + end, size - end));
}

void server_logprobs_told(const server_reply *reply, server_choice *answer)
{
    const size_t n = reply->logprobs ? n_reports(reply, answer) : 0;
    const size_t bytes = n == 0 ? 0 : n * server_report_size(reply->job->n_top);
    for (size_t i = 0; i < n; i++) {
        size_t size;
        (void)moe_token_piece(reply->engine, report_at(reply, answer, i)->chosen.token, true,
                              &size);
        answer->text_offset += size;
    }
    if (bytes > 0) {
        memmove(answer->reports.data, answer->reports.data + bytes, answer->reports.size - bytes);
        answer->reports.size -= bytes;
    }
    answer->reports_now = 0;
}
