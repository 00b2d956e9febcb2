/* SPDX-License-Identifier: MIT */
/* Writes embeddings as JSON. Numbers are written directly as text: as JSON objects they would
 * take ten times as much memory. */
#include <stdio.h>
#include <string.h>

#include "cli_json.h"
#include "server_clock.h"
#include "server_embedding.h"
#include "server_reply.h"

static bool add(cli_buffer *out, const char *text)
{
    return cli_buffer_append(out, text, strlen(text));
}

/* {"key": "text" */
static bool add_text(cli_buffer *out, const char *key, const char *text)
{
    return add(out, "{\"") && add(out, key) && add(out, "\":") &&
           server_append_json(cli_json_new_text(text, strlen(text)), out);
}

static bool add_count(cli_buffer *out, const char *key, uint64_t n)
{
    char text[64];
    snprintf(text, sizeof text, "\"%s\":%llu", key, (unsigned long long)n);
    return add(out, text);
}

static bool add_numbers(cli_buffer *out, const float *vector, uint32_t n)
{
    bool stored = add(out, "[");
    for (uint32_t i = 0; i < n && stored; i++) {
        char text[SERVER_NUMBER_SIZE];
        snprintf(text, sizeof text, i > 0 ? ",%.9g" : "%.9g", (double)vector[i]);
        stored = add(out, text);
    }
    return stored && add(out, "]");
}

static bool add_base64(cli_buffer *out, const uint8_t *bytes, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bool stored = add(out, "\"");
    for (size_t i = 0; i < size && stored; i += 3) {
        const uint32_t second = i + 1 < size ? bytes[i + 1] : 0;
        const uint32_t third = i + 2 < size ? bytes[i + 2] : 0;
        const uint32_t word = (uint32_t)bytes[i] << 16 | second << 8 | third;
        const char text[] = {digits[word >> 18], digits[word >> 12 & 63],
                             i + 1 < size ? digits[word >> 6 & 63] : '=',
                             i + 2 < size ? digits[word & 63] : '='};
        stored = cli_buffer_append(out, text, sizeof text);
    }
    return stored && add(out, "\"");
}

/* Returns the first vector of a text, and sets *n to the number of its vectors. */
static const float *vectors_of(const server_reply *reply, size_t text, size_t *n)
{
    const server_job *job = reply->job;
    const bool by_token = job->pooling == SERVER_POOLING_NONE;
    size_t before = 0;
    *n = 1;
    for (size_t t = text % job->text_step; t <= text; t += job->text_step) {
        const size_t n_tokens = job->text_ends[t] - (t == 0 ? 0 : job->text_ends[t - 1]);
        *n = by_token ? n_tokens : 1;
        before += t < text ? *n : 0;
    }
    const cli_buffer *content = &reply->answers[text % job->text_step].content;
    return (const float *)(const void *)content->data + before * job->pool.n_embd;
}

static bool add_vector(const server_reply *reply, size_t text, cli_buffer *out)
{
    size_t n;
    const uint32_t width = reply->job->pool.n_embd;
    const float *vector = vectors_of(reply, text, &n);
    return reply->is_base64
               ? add_base64(out, (const uint8_t *)(const void *)vector, width * sizeof *vector)
               : add_numbers(out, vector, width);
}

static uint64_t n_tokens(const server_reply *reply)
{
    return reply->job->text_ends[reply->job->n_texts - 1];
}

static bool whole_openai(const server_reply *reply, cli_buffer *out)
{
    bool stored = add(out, "{\"object\":\"list\",\"data\":[");
    for (size_t t = 0; t < reply->job->n_texts && stored; t++) {
        stored = add(out, t > 0 ? ",{" : "{") && add_count(out, "index", t) &&
                 add(out, ",\"object\":\"embedding\",\"embedding\":") &&
                 add_vector(reply, t, out) && add(out, "}");
    }
    return stored && add(out, "],\"model\":") &&
           server_append_json(cli_json_new_text(reply->model, strlen(reply->model)), out) &&
           add(out, ",\"usage\":{") && add_count(out, "prompt_tokens", n_tokens(reply)) &&
           add(out, ",") && add_count(out, "total_tokens", n_tokens(reply)) && add(out, "}}");
}

/* Writes embeddings as llama-server does: an array of vectors for each text. */
static bool whole_native(const server_reply *reply, cli_buffer *out)
{
    bool stored = add(out, "[");
    for (size_t t = 0; t < reply->job->n_texts && stored; t++) {
        size_t n;
        const uint32_t width = reply->job->pool.n_embd;
        const float *vectors = vectors_of(reply, t, &n);
        stored = add(out, t > 0 ? ",{" : "{") && add_count(out, "index", t) &&
                 add(out, ",\"embedding\":[");
        for (size_t i = 0; i < n && stored; i++) {
            stored = (i == 0 || add(out, ",")) && add_numbers(out, vectors + i * width, width);
        }
        stored = stored && add(out, "]}");
    }
    return stored && add(out, "]");
}

static bool whole_ollama(const server_reply *reply, cli_buffer *out)
{
    if (reply->endpoint == SERVER_OLLAMA_EMBEDDINGS) {
        return add(out, "{\"embedding\":") && add_vector(reply, 0, out) && add(out, "}");
    }
    bool stored = add_text(out, "model", reply->model) && add(out, ",\"embeddings\":[");
    for (size_t t = 0; t < reply->job->n_texts && stored; t++) {
        stored = (t == 0 || add(out, ",")) && add_vector(reply, t, out);
    }
    return stored && add(out, "],") &&
           add_count(out, "total_duration", server_now_ns() - reply->began_ns) && add(out, ",") &&
           add_count(out, "prompt_eval_count", n_tokens(reply)) && add(out, "}");
}

const server_dialect server_openai_vectors = {.whole = whole_openai};
const server_dialect server_native_vectors = {.whole = whole_native};
const server_dialect server_ollama_vectors = {.whole = whole_ollama};
