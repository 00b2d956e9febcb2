/* SPDX-License-Identifier: MIT */
/* Fill-in-the-middle: the client sends the text before and after a gap, and the model writes the
 * text for the gap, if its vocabulary has the special tokens for this. Used by `suffix` of
 * /v1/completions, and by /infill, which has the fields and answers of llama-server. */
#include <stdlib.h>
#include <string.h>

#include "cli_json.h"
#include "server_memory.h"
#include "server_reply.h"
#include "server_values.h"

enum { MOST_FILES = 256 };

/* ---- The tokens ---- */

typedef struct gap_marks {
    int32_t prefix, suffix, middle;
    int32_t file; /* -1: there is none */
} gap_marks;

/* Returns the token whose text is exactly this; -1 if the text is not a single token. */
static int32_t find_token(const moe_engine *engine, const char *text)
{
    int32_t *tokens = NULL, found = -1;
    size_t n = 0, size = 0;
    if (text[0] == '\0' || moe_tokenize(engine, text, strlen(text), MOE_TOKENIZE_PARSE_SPECIAL,
                                        &tokens, &n, NULL) != MOE_OK) {
        return -1;
    }
    const char *piece = n == 1 ? moe_token_piece(engine, tokens[0], true, &size) : NULL;
    if (piece != NULL && size == strlen(text) && memcmp(piece, text, size) == 0) {
        found = tokens[0];
    }
    moe_free(tokens);
    return found;
}

static bool find_marks(const moe_engine *engine, gap_marks *marks)
{
    static const struct {
        const char *prefix, *suffix, *middle, *file;
    } rows[] = {
        {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"},
        {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>"},
        {"<fim-prefix>", "<fim-suffix>", "<fim-middle>", ""},
        {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ""},
        {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", ""},
        {"<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", ""},
    };
    bool found = false;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && !found; i++) {
        marks->prefix = find_token(engine, rows[i].prefix);
        marks->suffix = find_token(engine, rows[i].suffix);
        marks->middle = find_token(engine, rows[i].middle);
        marks->file = find_token(engine, rows[i].file);
        found = marks->prefix >= 0 && marks->suffix >= 0 && marks->middle >= 0;
    }
    return found;
}

/* ---- The prompt ---- */

static bool add_tokens(server_request *request, const int32_t *tokens, size_t n,
                       server_error *error)
{
    server_job *job = request->job;
    if (!server_work_take(&request->allowance, (n + 1) * sizeof *tokens, error)) {
        return false;
    }
    int32_t *all = realloc(job->tokens, (job->n_tokens + n + 1) * sizeof *all);
    if (all == NULL) {
        return server_fail(error, 503, "overloaded", NULL, "out of memory for the prompt");
    }
    job->tokens = all;
    for (size_t i = 0; i < n; i++) {
        all[job->n_tokens++] = tokens[i];
    }
    return true;
}

/* Tokenizes the text without recognizing control tokens in it, and adds its tokens to the prompt.
 * NULL: adds only the tokens with which every prompt begins. */
static bool add_text(server_request *request, const moe_engine *engine, struct json_object *text,
                     server_error *error)
{
    int32_t *tokens = NULL;
    size_t n = 0;
    moe_error err = {""};
    const uint64_t before = request->allowance.bytes_now;
    int status = moe_tokenize_within(engine, text == NULL ? "" : json_object_get_string(text),
                                     (size_t)json_object_get_string_len(text),
                                     text == NULL ? MOE_TOKENIZE_ADD_SPECIAL : 0, &tokens, &n,
                                     &request->allowance, &err);
    if (status != MOE_OK) {
        return server_work_fail(error, status, "prompt", &err);
    }
    if (text == NULL && n > 0 && moe_token_is_end(engine, tokens[n - 1])) {
        n--;
    }
    const uint64_t bytes = request->allowance.bytes_now - before;
    bool added = n == 0 || add_tokens(request, tokens, n, error);
    moe_free(tokens);
    request->allowance.bytes_now -= bytes;
    return added;
}

/* Adds the names and texts of further files, for context, before the text with the gap. */
static bool add_files(server_request *request, const moe_engine *engine, const gap_marks *marks,
                      server_error *error)
{
    struct json_object *line_end = json_object_new_string("\n");
    const size_t n = request->extra == NULL ? 0 : json_object_array_length(request->extra);
    bool added = line_end != NULL;
    for (size_t i = 0; i < n && added; i++) {
        struct json_object *file = json_object_array_get_idx(request->extra, i);
        struct json_object *parts[] = {json_object_object_get(file, "filename"), line_end,
                                       json_object_object_get(file, "text"), line_end};
        added = marks->file < 0 || add_tokens(request, &marks->file, 1, error);
        for (size_t k = 0; k < 4 && added; k++) {
            added = parts[k] == NULL || add_text(request, engine, parts[k], error);
        }
    }
    json_object_put(line_end);
    return added;
}

bool server_take_gap(server_request *request, const moe_engine *engine, server_error *error)
{
    gap_marks marks;
    server_job *job = request->job;
    if (!find_marks(engine, &marks)) {
        return server_fail(error, 400, "unsupported_value", "suffix",
                           "The model's vocabulary has no tokens that mark a gap in a text: it "
                           "can only go on with one.");
    }
    if (!json_object_is_type(request->prompt, json_type_string)) {
        return server_fail(error, 400, "invalid_value", "prompt",
                           "'prompt' must be a string beside 'suffix'.");
    }
    const int32_t ends[] = {marks.prefix, marks.suffix, marks.middle, marks.file};
    for (size_t i = 0; i < 4 && job->n_stop_ids < SERVER_MOST_STOP_IDS; i++) {
        if (ends[i] >= 0) {
            job->stop_ids[job->n_stop_ids++] = ends[i];
        }
    }
    return add_text(request, engine, NULL, error) && add_files(request, engine, &marks, error) &&
           add_tokens(request, &marks.prefix, 1, error) &&
           add_text(request, engine, request->prompt, error) &&
           add_tokens(request, &marks.suffix, 1, error) &&
           add_text(request, engine, request->suffix, error) &&
           add_tokens(request, &marks.middle, 1, error) &&
           (request->begun == NULL || add_text(request, engine, request->begun, error));
}

/* ---- Fields ---- */

static bool read_text(server_reading *r, struct json_object *value, struct json_object **out)
{
    *out = value;
    return json_object_is_type(value, json_type_string) || server_wrong(r, "a string");
}

bool server_read_suffix(server_reading *r, struct json_object *value)
{
    bool read = read_text(r, value, &r->request->suffix);
    if (read && r->request->endpoint != SERVER_INFILL && server_is_nothing(value)) {
        r->request->suffix = NULL;
    }
    return read;
}

bool server_read_gap_prefix(server_reading *r, struct json_object *value)
{
    return read_text(r, value, &r->request->prompt);
}

bool server_read_gap_begun(server_reading *r, struct json_object *value)
{
    return read_text(r, value, &r->request->begun);
}

/* Reads an array of files: [{"filename": .., "text": ..}, ..] */
bool server_read_gap_files(server_reading *r, struct json_object *value)
{
    static const char what[] = "an array of at most 256 objects with 'filename' and 'text'";
    const size_t n =
        json_object_is_type(value, json_type_array) ? json_object_array_length(value) : SIZE_MAX;
    if (n > MOST_FILES) {
        return server_wrong(r, what);
    }
    for (size_t i = 0; i < n; i++) {
        struct json_object *file = json_object_array_get_idx(value, i);
        struct json_object *name = json_object_object_get(file, "filename");
        if (!json_object_is_type(json_object_object_get(file, "text"), json_type_string) ||
            (name != NULL && !json_object_is_type(name, json_type_string))) {
            return server_wrong(r, what);
        }
    }
    r->request->extra = value;
    return true;
}

/* Reads the largest number of tokens. -1: no limit. 0, which clients send to warm a server up,
 * counts as 1. */
bool server_read_n_predict(server_reading *r, struct json_object *value)
{
    int64_t n = 0;
    if (!server_get_count(r, value, -1, INT64_MAX, "a whole number of at least -1", &n)) {
        return false;
    }
    r->request->has_max_tokens = true;
    r->request->job->max_tokens = n < 0 ? UINT64_MAX : n == 0 ? 1 : (uint64_t)n;
    return true;
}

/* ---- Answers of /infill ---- */

static struct json_object *new_piece(const server_reply *reply, size_t from, bool ends)
{
    const server_choice *answer = &reply->answers[0];
    struct json_object *piece = json_object_new_object();
    cli_json_u64(piece, "index", 0);
    cli_json_put(piece, "content", server_text_from(&answer->content, from));
    cli_json_put(piece, "stop", json_object_new_boolean(ends));
    if (ends) {
        server_put_text(piece, "model", reply->model);
        server_put_text(piece, "stop_type",
                        answer->finish == SERVER_FINISH_LENGTH   ? "limit"
                        : answer->finish == SERVER_FINISH_STRING ? "word"
                                                                 : "eos");
        cli_json_put(piece, "truncated", json_object_new_boolean(false));
        cli_json_u64(piece, "tokens_predicted", answer->n_written);
        cli_json_u64(piece, "tokens_evaluated", reply->n_prompt);
        cli_json_u64(piece, "tokens_cached", reply->n_cached);
    }
    return piece;
}

static bool whole(const server_reply *reply, cli_buffer *out)
{
    return server_append_json(new_piece(reply, 0, true), out);
}

static bool begin(server_reply *reply, cli_buffer *out)
{
    (void)reply;
    (void)out;
    return true;
}

static bool piece(server_reply *reply, uint32_t index, cli_buffer *out)
{
    return server_append_event(NULL, new_piece(reply, reply->answers[index].content_told, false),
                               out);
}

static bool finish(server_reply *reply, uint32_t index, cli_buffer *out)
{
    return server_append_event(NULL, new_piece(reply, reply->answers[index].content.size, true),
                               out);
}

static bool end(server_reply *reply, cli_buffer *out)
{
    return begin(reply, out);
}

static bool broken(const server_error *error, cli_buffer *out)
{
    return server_append_event(NULL, server_error_object(error), out);
}

const server_dialect server_infill = {
    .whole = whole,
    .begin = begin,
    .piece = piece,
    .finish = finish,
    .end = end,
    .broken = broken,
};
