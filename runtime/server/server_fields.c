/* SPDX-License-Identifier: MIT */
/* The table of fields that requests may have. */
#include <math.h>
#include <string.h>

#include "server_request.h"

#define GENERATES (SERVER_CHAT | SERVER_COMPLETION)
#define ANSWERS   (GENERATES | SERVER_TEMPLATE)

typedef struct reading {
    server_request *request;
    const server_options *options;
    const char *name;
    server_error *error;
} reading;

typedef bool (*read_fn)(reading *r, struct json_object *value);

static bool wrong(reading *r, const char *what)
{
    return server_fail(r->error, 400, "invalid_value", r->name, "'%s' must be %s.", r->name, what);
}

static bool unsupported(reading *r, struct json_object *value)
{
    (void)value;
    return server_fail(r->error, 400, "unsupported_parameter", r->name,
                       "'%s' is not supported by this server: leave it out.", r->name);
}

/* ---- Kinds of values ---- */

static bool get_number(reading *r, struct json_object *value, double least, double most,
                       const char *what, double *out)
{
    if (!json_object_is_type(value, json_type_double) &&
        !json_object_is_type(value, json_type_int)) {
        return wrong(r, what);
    }
    *out = json_object_get_double(value);
    return isfinite(*out) && *out >= least && *out <= most ? true : wrong(r, what);
}

static bool get_count(reading *r, struct json_object *value, int64_t least, int64_t most,
                      const char *what, int64_t *out)
{
    if (!json_object_is_type(value, json_type_int)) {
        return wrong(r, what);
    }
    *out = json_object_get_int64(value);
    return *out >= least && *out <= most ? true : wrong(r, what);
}

static bool get_flag(reading *r, struct json_object *value, bool *out)
{
    if (!json_object_is_type(value, json_type_boolean)) {
        return wrong(r, "true or false");
    }
    *out = json_object_get_boolean(value);
    return true;
}

static bool is_text(struct json_object *value, const char *text)
{
    return json_object_is_type(value, json_type_string) &&
           strcmp(json_object_get_string(value), text) == 0;
}

/* false, 0, "", [] and {} ask for nothing. */
static bool is_nothing(struct json_object *value)
{
    switch (json_object_get_type(value)) {
    case json_type_boolean:
        return !json_object_get_boolean(value);
    case json_type_int:
    case json_type_double:
        return json_object_get_double(value) == 0;
    case json_type_string:
        return json_object_get_string_len(value) == 0;
    case json_type_array:
        return json_object_array_length(value) == 0;
    case json_type_object:
        return json_object_object_length(value) == 0;
    default:
        return true;
    }
}

/* ---- The fields ---- */

/* Where it could change nothing it is accepted, so that clients may send their defaults. */
static bool only_nothing(reading *r, struct json_object *value)
{
    return is_nothing(value) || unsupported(r, value);
}

static bool only_one(reading *r, struct json_object *value)
{
    return (json_object_is_type(value, json_type_int) && json_object_get_int64(value) == 1) ||
           server_fail(r->error, 400, "unsupported_value", r->name,
                       "'%s' must be 1: this server writes one answer to a request.", r->name);
}

/* Says something about the request and nothing about the answer. */
static bool harmless(reading *r, struct json_object *value)
{
    (void)r;
    (void)value;
    return true;
}

static bool read_model(reading *r, struct json_object *value)
{
    if (!json_object_is_type(value, json_type_string)) {
        return wrong(r, "a string");
    }
    return is_text(value, r->options->model) ||
           server_fail(r->error, 404, "model_not_found", "model",
                       "This server has one model, '%s': name that one, or none.",
                       r->options->model);
}

static bool read_messages(reading *r, struct json_object *value)
{
    r->request->messages = value;
    return (json_object_is_type(value, json_type_array) && json_object_array_length(value) > 0) ||
           wrong(r, "an array of at least one message");
}

static bool read_prompt(reading *r, struct json_object *value)
{
    r->request->prompt = value;
    return json_object_is_type(value, json_type_string) ||
           json_object_is_type(value, json_type_array) ||
           wrong(r, "a string, or an array of token ids");
}

static bool read_content(reading *r, struct json_object *value)
{
    r->request->content = value;
    return json_object_is_type(value, json_type_string) || wrong(r, "a string");
}

static bool read_tokens(reading *r, struct json_object *value)
{
    r->request->tokens = value;
    return json_object_is_type(value, json_type_array) || wrong(r, "an array of token ids");
}

static bool read_template_arguments(reading *r, struct json_object *value)
{
    r->request->template_arguments = value;
    return json_object_is_type(value, json_type_object) || wrong(r, "an object");
}

static bool read_stream(reading *r, struct json_object *value)
{
    return get_flag(r, value, &r->request->stream);
}

static bool read_stream_options(reading *r, struct json_object *value)
{
    if (!json_object_is_type(value, json_type_object)) {
        return wrong(r, "an object");
    }
    json_object_object_foreach(value, key, member)
    {
        if (strcmp(key, "include_usage") == 0 && json_object_is_type(member, json_type_boolean)) {
            r->request->include_usage = json_object_get_boolean(member);
        } else if (!is_nothing(member)) {
            return server_fail(r->error, 400, "unsupported_parameter", r->name,
                               "'stream_options' has 'include_usage', true or false, and nothing "
                               "else.");
        }
    }
    return true;
}

static bool read_max_tokens(reading *r, struct json_object *value)
{
    int64_t n = 0;
    if (!get_count(r, value, 1, INT64_MAX, "a whole number of at least 1", &n)) {
        return false;
    }
    if (r->request->has_max_tokens && r->request->job->max_tokens != (uint64_t)n) {
        return wrong(r, "the same as 'max_tokens': give one of them");
    }
    r->request->has_max_tokens = true;
    r->request->job->max_tokens = (uint64_t)n;
    return true;
}

static bool read_temperature(reading *r, struct json_object *value)
{
    double number = 0;
    if (!get_number(r, value, 0, 1000, "a number from 0 to 1000", &number)) {
        return false;
    }
    r->request->job->sampling.temperature = (float)number;
    return true;
}

static bool read_top_p(reading *r, struct json_object *value)
{
    double number = 0;
    if (!get_number(r, value, 1e-9, 1, "a number above 0 and at most 1", &number)) {
        return false;
    }
    r->request->job->sampling.top_p = (float)number;
    return true;
}

static bool read_min_p(reading *r, struct json_object *value)
{
    double number = 0;
    if (!get_number(r, value, 0, 0.999999, "a number from 0 to below 1", &number)) {
        return false;
    }
    r->request->job->sampling.min_p = (float)number;
    return true;
}

static bool read_top_k(reading *r, struct json_object *value)
{
    int64_t n = 0;
    if (!get_count(r, value, 0, INT32_MAX, "a whole number from 0 to 2147483647", &n)) {
        return false;
    }
    r->request->job->sampling.top_k = (uint32_t)n;
    return true;
}

static bool read_repeat_penalty(reading *r, struct json_object *value)
{
    double number = 0;
    if (!get_number(r, value, 1e-6, 1000, "a number above 0 and at most 1000", &number)) {
        return false;
    }
    r->request->job->sampling.repeat_penalty = (float)number;
    return true;
}

static bool read_seed(reading *r, struct json_object *value)
{
    int64_t n = 0;
    if (!get_count(r, value, 0, INT64_MAX, "a whole number of at least 0", &n)) {
        return false;
    }
    r->request->has_sampling_seed = true;
    r->request->job->sampling.seed = (uint64_t)n;
    return true;
}

static bool add_stop(reading *r, struct json_object *value)
{
    server_stops *stops = &r->request->job->stops;
    size_t size = (size_t)json_object_get_string_len(value);
    if (!json_object_is_type(value, json_type_string) || size == 0 || size > SERVER_LONGEST_STOP ||
        stops->n == SERVER_MOST_STOPS) {
        return wrong(r, "a string of 1 to 256 bytes, or an array of at most 16 such strings");
    }
    memcpy(stops->texts[stops->n], json_object_get_string(value), size);
    stops->sizes[stops->n++] = size;
    return true;
}

static bool read_stop(reading *r, struct json_object *value)
{
    if (!json_object_is_type(value, json_type_array)) {
        return add_stop(r, value);
    }
    for (size_t i = 0; i < json_object_array_length(value); i++) {
        if (!add_stop(r, json_object_array_get_idx(value, i))) {
            return false;
        }
    }
    return true;
}

static bool read_ignore_eos(reading *r, struct json_object *value)
{
    return get_flag(r, value, &r->request->job->ignore_eos);
}

static bool read_add_special(reading *r, struct json_object *value)
{
    return get_flag(r, value, &r->request->add_special);
}

static bool read_parse_special(reading *r, struct json_object *value)
{
    bool parses = false;
    bool read = get_flag(r, value, &parses);
    r->request->plain_text = !parses;
    return read;
}

static bool read_response_format(reading *r, struct json_object *value)
{
    struct json_object *type;
    return (json_object_is_type(value, json_type_object) &&
            json_object_object_get_ex(value, "type", &type) && is_text(type, "text")) ||
           unsupported(r, value);
}

static bool read_modalities(reading *r, struct json_object *value)
{
    return (json_object_is_type(value, json_type_array) && json_object_array_length(value) == 1 &&
            is_text(json_object_array_get_idx(value, 0), "text")) ||
           unsupported(r, value);
}

/* Without tools, which are an error of their own, these two ask for nothing. */
static bool read_tool_choice(reading *r, struct json_object *value)
{
    return is_text(value, "none") || is_text(value, "auto") || unsupported(r, value);
}

static const struct {
    const char *name;
    unsigned endpoints;
    read_fn read;
} fields[] = {
    {"model", ANSWERS | SERVER_TOKENIZE | SERVER_DETOKENIZE, read_model},
    {"messages", SERVER_CHAT | SERVER_TEMPLATE, read_messages},
    {"chat_template_kwargs", SERVER_CHAT | SERVER_TEMPLATE, read_template_arguments},
    {"prompt", SERVER_COMPLETION, read_prompt},
    {"content", SERVER_TOKENIZE, read_content},
    {"add_special", SERVER_TOKENIZE, read_add_special},
    {"parse_special", SERVER_TOKENIZE, read_parse_special},
    {"tokens", SERVER_DETOKENIZE, read_tokens},
    {"stream", GENERATES, read_stream},
    {"stream_options", GENERATES, read_stream_options},
    {"max_tokens", GENERATES, read_max_tokens},
    {"max_completion_tokens", SERVER_CHAT, read_max_tokens},
    {"temperature", GENERATES, read_temperature},
    {"top_p", GENERATES, read_top_p},
    {"top_k", GENERATES, read_top_k},
    {"min_p", GENERATES, read_min_p},
    {"repeat_penalty", GENERATES, read_repeat_penalty},
    {"seed", GENERATES, read_seed},
    {"stop", GENERATES, read_stop},
    {"ignore_eos", GENERATES, read_ignore_eos},
    {"n", GENERATES, only_one},
    {"best_of", SERVER_COMPLETION, only_one},
    {"response_format", GENERATES, read_response_format},
    {"modalities", SERVER_CHAT, read_modalities},
    {"tool_choice", SERVER_CHAT, read_tool_choice},
    {"tools", SERVER_CHAT | SERVER_TEMPLATE, only_nothing},
    {"functions", SERVER_CHAT, only_nothing},
    {"function_call", SERVER_CHAT, read_tool_choice},
    {"parallel_tool_calls", SERVER_CHAT, harmless},
    {"logprobs", GENERATES, only_nothing},
    {"top_logprobs", SERVER_CHAT, only_nothing},
    {"logit_bias", GENERATES, only_nothing},
    {"presence_penalty", GENERATES, only_nothing},
    {"frequency_penalty", GENERATES, only_nothing},
    {"reasoning_effort", SERVER_CHAT, only_nothing},
    {"verbosity", SERVER_CHAT, only_nothing},
    {"audio", SERVER_CHAT, only_nothing},
    {"web_search_options", SERVER_CHAT, unsupported},
    {"echo", SERVER_COMPLETION, only_nothing},
    {"suffix", SERVER_COMPLETION, only_nothing},
    {"prediction", SERVER_CHAT, harmless},
    {"user", GENERATES, harmless},
    {"metadata", GENERATES, harmless},
    {"store", GENERATES, harmless},
    {"service_tier", GENERATES, harmless},
    {"safety_identifier", GENERATES, harmless},
    {"prompt_cache_key", GENERATES, harmless},
    {"prompt_cache_retention", GENERATES, harmless},
};

bool server_read_field(server_request *request, const server_options *options, const char *name,
                       struct json_object *value, server_error *error)
{
    reading r = {request, options, name, error};
    if (value == NULL) {
        return true; /* null is what is left out */
    }
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (strcmp(fields[i].name, name) == 0 && (fields[i].endpoints & request->endpoint) != 0) {
            return fields[i].read(&r, value);
        }
    }
    return server_fail(error, 400, "unknown_parameter", name,
                       "'%.60s' is not a field that this address of the server knows.", name);
}
