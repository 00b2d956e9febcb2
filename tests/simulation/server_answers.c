/* SPDX-License-Identifier: MIT */
/* What clients of the simulated server must get, and whether they did. */
#include <string.h>

#include <json-c/json.h>

#include "tests/simulation/server_world.h"

typedef struct received {
    sw_text texts[SW_MOST_CHOICES];
    bool done, has_error;
    int64_t n_written; /* as the answer says; -1: it does not */
} received;

/* ---- What is wanted ---- */

/* Where the first stop string begins in the text; its size: nowhere. */
static size_t find_stop(const sw_request *r, const char *text, size_t size)
{
    size_t first = size;
    for (uint32_t i = 0; i < r->n_stops; i++) {
        const char *at = memmem(text, size, r->stops[i], strlen(r->stops[i]));
        first = at != NULL && (size_t)(at - text) < first ? (size_t)(at - text) : first;
    }
    return first;
}

/* The text of an answer, token after token; returns how many it has. */
static uint32_t expect(const sw_request *r, uint32_t choice, sw_text *text)
{
    int32_t timeline[VE_CONTEXT];
    size_t n = r->n_tokens;
    memcpy(timeline, r->tokens, n * sizeof timeline[0]);
    text->finish = NULL;
    text->size = 0;
    while (text->finish == NULL) {
        int32_t token = ve_next(timeline, n, r->seed + choice);
        bool ends = token == VE_END;
        if (!ends) {
            timeline[n++] = token;
        }
        text->size = ve_spell(timeline + r->n_tokens, n - r->n_tokens, !ends, text->bytes,
                              sizeof text->bytes);
        size_t stop = find_stop(r, text->bytes, text->size);
        if (ends || stop < text->size) {
            text->finish = "stop";
            text->size = stop;
        } else if (n - r->n_tokens == r->max_tokens || n == VE_CONTEXT) {
            text->finish = "length";
        }
    }
    return (uint32_t)(n - r->n_tokens);
}

/* ---- What has come ---- */

static struct json_object *parse(const char *bytes, size_t size)
{
    struct json_tokener *tokener = json_tokener_new();
    struct json_object *object = json_tokener_parse_ex(tokener, bytes, (int)size);
    json_tokener_free(tokener);
    return object;
}

static struct json_object *get(struct json_object *object, const char *key)
{
    struct json_object *value = NULL;
    json_object_object_get_ex(object, key, &value);
    return value;
}

/* Adds what an object tells of its choices. */
static void take_choices(const sw_request *r, struct json_object *object, received *got)
{
    struct json_object *choices = get(object, "choices");
    struct json_object *usage = get(object, "usage");
    for (size_t i = 0; i < json_object_array_length(choices); i++) {
        struct json_object *choice = json_object_array_get_idx(choices, i);
        struct json_object *piece = get(choice, "text"), *why = get(choice, "finish_reason");
        int64_t index = json_object_get_int64(get(choice, "index"));
        if (index < 0 || index >= r->n || piece == NULL) {
            sim_fail("choice %lld of a request for %u", (long long)index, r->n);
        }
        sw_text *text = &got->texts[index];
        size_t size = (size_t)json_object_get_string_len(piece);
        if (text->finish != NULL || text->size + size > sizeof text->bytes) {
            sim_fail("choice %lld goes on behind its end", (long long)index);
        }
        memcpy(text->bytes + text->size, json_object_get_string(piece), size);
        text->size += size;
        text->finish = why == NULL                                          ? NULL
                       : strcmp(json_object_get_string(why), "length") == 0 ? "length"
                                                                            : "stop";
    }
    if (usage != NULL) {
        got->n_written = json_object_get_int64(get(usage, "completion_tokens"));
    }
}

/* An event of a stream. */
static void take_event(const sw_request *r, const char *line, size_t size, received *got)
{
    if (size == 0 || line[0] == ':') {
        return;
    }
    if (got->done || got->has_error || size < 6 || memcmp(line, "data: ", 6) != 0) {
        sim_fail("a stream with a line that is no event: %.*s", (int)size, line);
    }
    if (size == 12 && memcmp(line + 6, "[DONE]", 6) == 0) {
        got->done = true;
        return;
    }
    struct json_object *object = parse(line + 6, size - 6);
    got->has_error = get(object, "error") != NULL;
    if (object == NULL || (!got->has_error && get(object, "choices") == NULL)) {
        sim_fail("a stream with an event that is none: %.*s", (int)size, line);
    }
    if (!got->has_error) {
        take_choices(r, object, got);
    }
    json_object_put(object);
}

static void take_stream(const sw_request *r, const vh_answer *a, received *got)
{
    for (size_t at = 0; at < a->size;) {
        const char *end = memchr(a->bytes + at, '\n', a->size - at);
        if (end == NULL) {
            return; /* the connection was closed within an event */
        }
        take_event(r, a->bytes + at, (size_t)(end - a->bytes) - at, got);
        at = (size_t)(end - a->bytes) + 1;
    }
}

/* ---- Whether that is right ---- */

/* A text that was broken off is the beginning of the right one. */
static void check_text(const sw_request *r, uint32_t choice, const sw_text *got, bool whole)
{
    static sw_text wanted;
    (void)expect(r, choice, &wanted);
    bool ended = got->finish != NULL;
    bool fits = got->size <= wanted.size && memcmp(got->bytes, wanted.bytes, got->size) == 0;
    if (!fits || (ended && (got->size != wanted.size || strcmp(got->finish, wanted.finish) != 0)) ||
        (whole && !ended)) {
        sim_fail("answer %u: '%.*s' (%s), and not '%.*s' (%s)", choice,
                 (int)(got->size < 80 ? got->size : 80), got->bytes,
                 ended ? got->finish : "goes on", (int)(wanted.size < 80 ? wanted.size : 80),
                 wanted.bytes, wanted.finish);
    }
}

static void check_success(const server_world *w, const sw_request *r, const vh_answer *a)
{
    static received got;
    static sw_text ignored;
    got.done = got.has_error = false;
    got.n_written = -1;
    for (uint32_t i = 0; i < r->n; i++) {
        got.texts[i].size = 0;
        got.texts[i].finish = NULL;
    }
    if (r->streams) {
        take_stream(r, a, &got);
    } else if (!a->broken) {
        struct json_object *object = parse(a->bytes, a->size);
        take_choices(r, object, &got);
        got.done = true;
        json_object_put(object);
    }
    bool may_break = a->left || w->stop || !w->has_room || sim_heap_now()->n_refused > 0 ||
                     the_engine.n_no_memory > 0;
    bool may_fail = may_break || the_engine.fail_per_mille + the_engine.hang_per_mille > 0;
    if (!got.done && !(got.has_error ? may_fail : may_break)) {
        sim_fail("an answer that was broken off for no reason");
    }
    int64_t n_written = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        check_text(r, i, &got.texts[i], got.done);
        n_written += expect(r, i, &ignored);
    }
    if (got.n_written >= 0 && got.n_written != n_written) {
        sim_fail("%lld tokens are told of, and %lld were written", (long long)got.n_written,
                 (long long)n_written);
    }
}

static bool says(const vh_answer *a, const char *words)
{
    return memmem(a->bytes, a->size, words, strlen(words)) != NULL;
}

/* Whether there is a reason for the error. */
static bool has_reason(const server_world *w, const sw_request *r, const vh_answer *a)
{
    bool no_memory = sim_heap_now()->n_refused > 0 || the_engine.n_no_memory > 0;
    switch (a->status) {
    case 400:
        return r->is_wrong;
    case 413:
        return !w->has_room;
    case 500:
        return the_engine.fail_per_mille + the_engine.hang_per_mille > 0;
    case 503:
        return says(a, "became another one")       ? false
               : says(a, "Too many requests wait") ? r->most_jobs > the_http.srv->queue.most_waiting
               : says(a, "shutting down")          ? w->stop
                                                   : no_memory || !w->has_room || a->left;
    default:
        return false;
    }
}

void sw_check_answer(const server_world *w, const sw_request *r, const vh_answer *a)
{
    if (a->status == 0) {
        if (!a->left && !w->stop && sim_heap_now()->n_refused == 0) {
            sim_fail("request %td: no answer, for no reason", r - w->requests);
        }
    } else if (a->status == 200 && r->n == 0) {
        if (a->size == 0) {
            sim_fail("%s: an empty answer", r->how.path);
        }
    } else if (a->status == 200) {
        if (r->is_wrong) {
            sim_fail("request %td is wrong, and was answered", r - w->requests);
        }
        check_success(w, r, a);
    } else if (!has_reason(w, r, a)) {
        sim_fail("request %td: %u for no reason: %.*s", r - w->requests, a->status,
                 (int)(a->size < 150 ? a->size : 150), a->bytes);
    }
}
