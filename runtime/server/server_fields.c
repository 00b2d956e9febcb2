/* SPDX-License-Identifier: MIT */
/* The table of all fields that requests may have, each with the endpoints that know it and the
 * function that reads it. */
#include <stdio.h>
#include <string.h>

#include "server_values.h"

#define TEXTS         (SERVER_CHAT | SERVER_COMPLETION)
#define GENERATES     (TEXTS | SERVER_INFILL)
#define OLLAMA        (SERVER_OLLAMA_CHAT | SERVER_OLLAMA_GENERATE)
#define MESSAGES      (SERVER_MESSAGES | SERVER_COUNT)
#define OLLAMA_EMBEDS (SERVER_OLLAMA_EMBED | SERVER_OLLAMA_EMBEDDINGS)
#define EMBEDS        (SERVER_EMBEDDINGS | SERVER_EMBEDDING | OLLAMA_EMBEDS)
#define ANSWERS       (GENERATES | SERVER_TEMPLATE | SERVER_RESPONSES)
#define SAMPLES       (GENERATES | SERVER_MESSAGES | SERVER_RESPONSES)

typedef bool (*read_fn)(server_reading *r, struct json_object *value);

/* ---- The fields ---- */

/* Accepts only values that have no effect (null, false, 0, empty), because some clients always send
 * their defaults. */
static bool only_nothing(server_reading *r, struct json_object *value)
{
    return server_is_nothing(value) || server_unsupported(r, value);
}

static bool only_one(server_reading *r, struct json_object *value)
{
    return (json_object_is_type(value, json_type_int) && json_object_get_int64(value) == 1) ||
           server_fail(r->error, 400, "unsupported_value", r->name,
                       "'%s' must be 1: this server writes one answer to a request.", r->name);
}

/* Accepts a sampler setting of other servers only if it has its neutral value (nothing, or 1),
 * which does not change the choice of tokens. */
static bool only_neutral(server_reading *r, struct json_object *value)
{
    bool is_one = (json_object_is_type(value, json_type_int) ||
                   json_object_is_type(value, json_type_double)) &&
                  json_object_get_double(value) == 1;
    return is_one || only_nothing(r, value);
}

/* Accepts any value: the field only describes the request and does not change the answer. */
static bool harmless(server_reading *r, struct json_object *value)
{
    (void)r;
    (void)value;
    return true;
}

const char *server_find_name(const server_options *options, const char *name)
{
    for (size_t i = 0; i < options->n_names; i++) {
        if (strcmp(options->names[i], name) == 0) {
            return options->names[i];
        }
    }
    return NULL;
}

static bool read_model(server_reading *r, struct json_object *value)
{
    if (!json_object_is_type(value, json_type_string)) {
        return server_wrong(r, "a string");
    }
    return !r->options->strict_model ||
           server_find_name(r->options, json_object_get_string(value)) != NULL ||
           server_fail(r->error, 404, "model_not_found", "model",
                       "This server has one model, '%s': name that one, or none.",
                       r->options->model);
}

static bool read_messages(server_reading *r, struct json_object *value)
{
    r->request->messages = value;
    return (json_object_is_type(value, json_type_array) && json_object_array_length(value) > 0) ||
           server_wrong(r, "an array of at least one message");
}

/* Reads `system` (Anthropic): a string or an array of blocks, like the content of a message. */
static bool read_system(server_reading *r, struct json_object *value)
{
    r->request->system = value;
    return json_object_is_type(value, json_type_string) ||
           json_object_is_type(value, json_type_array) ||
           server_wrong(r, "a string, or an array of blocks of text");
}

/* Reads {"type": "enabled", "budget_tokens": ..} (Anthropic). Both become variables of the chat
 * template; the server itself does not enforce the budget. */
static bool read_thinking(server_reading *r, struct json_object *value)
{
    struct json_object *type = NULL;
    json_object_object_get_ex(value, "type", &type);
    if (server_is_text(type, "adaptive")) {
        return true;
    }
    r->request->thinks = server_is_text(type, "enabled") ? MOE_SWITCH_ON : MOE_SWITCH_OFF;
    return server_is_text(type, "enabled") || server_is_text(type, "disabled") ||
           server_unsupported(r, value);
}

/* Reads {"effort": ..} (Anthropic); accepts further members only if they do not change the text. */
static bool read_output_config(server_reading *r, struct json_object *value)
{
    struct json_object *effort = NULL;
    json_object_object_get_ex(value, "effort", &effort);
    return json_object_is_type(value, json_type_object)
               ? effort == NULL || server_read_effort(r, effort)
               : server_wrong(r, "an object");
}

static bool read_prompt(server_reading *r, struct json_object *value)
{
    r->request->prompt = value;
    return json_object_is_type(value, json_type_string) ||
           json_object_is_type(value, json_type_array) ||
           server_wrong(r, "a string, or an array of token ids");
}

static bool read_content(server_reading *r, struct json_object *value)
{
    r->request->content = value;
    return json_object_is_type(value, json_type_string) || server_wrong(r, "a string");
}

static bool read_tokens(server_reading *r, struct json_object *value)
{
    r->request->tokens = value;
    return json_object_is_type(value, json_type_array) || server_wrong(r, "an array of token ids");
}

static bool read_template_arguments(server_reading *r, struct json_object *value)
{
    r->request->template_arguments = value;
    return json_object_is_type(value, json_type_object) || server_wrong(r, "an object");
}

static bool read_stream(server_reading *r, struct json_object *value)
{
    return server_get_flag(r, value, &r->request->stream);
}

static bool read_echo(server_reading *r, struct json_object *value)
{
    return server_get_flag(r, value, &r->request->echoes);
}

static bool read_store(server_reading *r, struct json_object *value)
{
    return server_get_flag(r, value, &r->request->keeps);
}

static bool read_return_progress(server_reading *r, struct json_object *value)
{
    return server_get_flag(r, value, &r->request->job->tells_progress);
}

static bool read_stream_options(server_reading *r, struct json_object *value)
{
    if (!json_object_is_type(value, json_type_object)) {
        return server_wrong(r, "an object");
    }
    json_object_object_foreach(value, key, member)
    {
        if (strcmp(key, "include_usage") == 0 && json_object_is_type(member, json_type_boolean)) {
            r->request->include_usage = json_object_get_boolean(member);
        } else if (!server_is_nothing(member)) {
            return server_fail(r->error, 400, "unsupported_parameter", r->name,
                               "'stream_options' has 'include_usage', true or false, and nothing "
                               "else.");
        }
    }
    return true;
}

static bool read_max_tokens(server_reading *r, struct json_object *value)
{
    int64_t n = 0;
    /* /v1/completions allows 0 tokens: then only the prompt is sent back (echo). */
    const bool may_be_none = r->request->endpoint == SERVER_COMPLETION;
    if (!server_get_count(r, value, may_be_none ? 0 : 1, INT64_MAX, "a whole number of at least 1",
                          &n)) {
        return false;
    }
    if (r->request->has_max_tokens && r->request->job->max_tokens != (uint64_t)n) {
        return server_wrong(r, "the same as 'max_tokens': give one of them");
    }
    r->request->has_max_tokens = true;
    r->request->job->max_tokens = (uint64_t)n;
    return true;
}

static bool read_ignore_eos(server_reading *r, struct json_object *value)
{
    return server_get_flag(r, value, &r->request->job->ignore_eos);
}

static bool read_add_special(server_reading *r, struct json_object *value)
{
    return server_get_flag(r, value, &r->request->add_special);
}

static bool read_parse_special(server_reading *r, struct json_object *value)
{
    bool parses = false;
    bool read = server_get_flag(r, value, &parses);
    r->request->plain_text = !parses;
    return read;
}

static bool read_modalities(server_reading *r, struct json_object *value)
{
    return (json_object_is_type(value, json_type_array) && json_object_array_length(value) == 1 &&
            server_is_text(json_object_array_get_idx(value, 0), "text")) ||
           server_unsupported(r, value);
}

/* Reads function_call, which tool_choice has replaced. Only "none" and "auto" are accepted; they
 * have no effect without functions. */
static bool read_function_call(server_reading *r, struct json_object *value)
{
    return server_is_text(value, "none") || server_is_text(value, "auto") ||
           server_unsupported(r, value);
}

static const struct {
    const char *name;
    unsigned endpoints;
    read_fn read;
} fields[] = {
    {"model", ANSWERS | MESSAGES | OLLAMA | EMBEDS | SERVER_TOKENIZE | SERVER_DETOKENIZE,
     read_model},
    {"messages", SERVER_OLLAMA_CHAT, server_read_ollama_messages},
    {"messages", SERVER_CHAT | SERVER_TEMPLATE | MESSAGES, read_messages},
    {"system", MESSAGES | SERVER_OLLAMA_GENERATE, read_system},
    {"thinking", MESSAGES, read_thinking},
    {"output_config", MESSAGES, read_output_config},
    {"context_management", MESSAGES, harmless},
    {"stop_sequences", SERVER_MESSAGES, server_read_stop},
    {"chat_template_kwargs", SERVER_CHAT | SERVER_TEMPLATE | SERVER_RESPONSES,
     read_template_arguments},
    {"input", SERVER_RESPONSES, server_read_input},
    {"input", SERVER_EMBEDDINGS | SERVER_EMBEDDING | SERVER_OLLAMA_EMBED, server_read_texts},
    {"content", SERVER_EMBEDDING, server_read_texts},
    {"prompt", SERVER_OLLAMA_EMBEDDINGS, server_read_texts},
    {"encoding_format", SERVER_EMBEDDINGS, server_read_encoding},
    {"dimensions", SERVER_EMBEDDINGS | SERVER_OLLAMA_EMBED, server_read_dimensions},
    {"truncate", SERVER_OLLAMA_EMBED, server_read_truncate},
    {"options", OLLAMA_EMBEDS, harmless},
    {"instructions", SERVER_RESPONSES, server_read_instructions},
    {"max_output_tokens", SERVER_RESPONSES, read_max_tokens},
    {"text", SERVER_RESPONSES, server_read_text_format},
    {"reasoning", SERVER_RESPONSES, server_read_reasoning},
    {"include", SERVER_RESPONSES, server_read_include},
    {"truncation", SERVER_RESPONSES, server_read_truncation},
    {"previous_response_id", SERVER_RESPONSES, server_read_previous},
    {"conversation", SERVER_RESPONSES, only_nothing},
    {"background", SERVER_RESPONSES, only_nothing},
    {"max_tool_calls", SERVER_RESPONSES, only_nothing},
    {"top_logprobs", SERVER_RESPONSES, only_nothing},
    {"stream_options", SERVER_RESPONSES, only_nothing},
    {"prompt", SERVER_RESPONSES, server_unsupported},
    {"prompt", SERVER_COMPLETION | SERVER_OLLAMA_GENERATE, read_prompt},
    {"content", SERVER_TOKENIZE, read_content},
    {"add_special", SERVER_TOKENIZE, read_add_special},
    {"parse_special", SERVER_TOKENIZE, read_parse_special},
    {"tokens", SERVER_DETOKENIZE, read_tokens},
    {"stream", SAMPLES | OLLAMA, read_stream},
    {"stream_options", TEXTS, read_stream_options},
    {"return_progress", TEXTS, read_return_progress},
    {"max_tokens", GENERATES | SERVER_MESSAGES, read_max_tokens},
    {"max_completion_tokens", SERVER_CHAT, read_max_tokens},
    {"temperature", SAMPLES, server_read_temperature},
    {"top_p", SAMPLES, server_read_top_p},
    {"top_k", SAMPLES, server_read_top_k},
    {"min_p", SAMPLES, server_read_min_p},
    {"repeat_penalty", GENERATES, server_read_repeat_penalty},
    {"repetition_penalty", GENERATES, server_read_repeat_penalty},
    {"seed", SAMPLES, server_read_seed},
    {"stop", GENERATES, server_read_stop},
    {"stop_token_ids", GENERATES, server_read_stop_ids},
    {"ignore_eos", GENERATES, read_ignore_eos},
    {"n", TEXTS, server_read_choices},
    {"best_of", SERVER_COMPLETION, only_one},
    {"response_format", GENERATES, server_read_response_format},
    {"grammar", GENERATES | SERVER_RESPONSES | OLLAMA, server_read_grammar},
    {"json_schema", GENERATES, server_read_json_schema},
    {"guided_json", GENERATES, server_read_json_schema},
    {"modalities", SERVER_CHAT, read_modalities},
    {"tools", SERVER_CHAT | SERVER_OLLAMA_CHAT | SERVER_TEMPLATE | MESSAGES | SERVER_RESPONSES,
     server_read_tools},
    {"tool_choice", SERVER_CHAT | MESSAGES | SERVER_RESPONSES, server_read_tool_choice},
    {"functions", SERVER_CHAT, only_nothing},
    {"function_call", SERVER_CHAT, read_function_call},
    {"parallel_tool_calls", SERVER_CHAT | SERVER_RESPONSES, server_read_parallel_calls},
    {"logprobs", SERVER_CHAT, server_read_chat_logprobs},
    {"logprobs", SERVER_COMPLETION, server_read_text_logprobs},
    {"top_logprobs", SERVER_CHAT, server_read_top_logprobs},
    {"logit_bias", GENERATES, server_read_logit_bias},
    {"presence_penalty", GENERATES, server_read_presence_penalty},
    {"frequency_penalty", GENERATES, server_read_frequency_penalty},
    {"reasoning_effort", SERVER_CHAT, server_read_effort},
    {"verbosity", SERVER_CHAT, server_read_verbosity},
    {"audio", SERVER_CHAT, only_nothing},
    {"web_search_options", SERVER_CHAT, server_unsupported},
    {"echo", SERVER_COMPLETION, read_echo},
    {"suffix", SERVER_COMPLETION | SERVER_OLLAMA_GENERATE, server_read_suffix},
    {"options", OLLAMA, server_read_ollama_options},
    {"format", OLLAMA, server_read_ollama_format},
    {"think", OLLAMA, server_read_think},
    {"raw", SERVER_OLLAMA_GENERATE, server_read_raw},
    {"template", SERVER_OLLAMA_GENERATE, only_nothing},
    {"context", SERVER_OLLAMA_GENERATE, only_nothing},
    {"images", SERVER_OLLAMA_GENERATE, only_nothing},
    {"logprobs", OLLAMA, only_nothing},
    {"top_logprobs", OLLAMA, only_nothing},
    {"keep_alive", OLLAMA | OLLAMA_EMBEDS, harmless},
    {"input_prefix", SERVER_INFILL, server_read_gap_prefix},
    {"input_suffix", SERVER_INFILL, server_read_suffix},
    {"input_extra", SERVER_INFILL, server_read_gap_files},
    {"prompt", SERVER_INFILL, server_read_gap_begun},
    {"n_predict", SERVER_INFILL, server_read_n_predict},
    {"typical_p", GENERATES, only_neutral},
    {"tfs_z", GENERATES, only_neutral},
    {"length_penalty", GENERATES, only_neutral},
    {"mirostat", GENERATES, only_nothing},
    {"dry_multiplier", GENERATES, only_nothing},
    {"xtc_probability", GENERATES, only_nothing},
    {"min_tokens", GENERATES, only_nothing},
    {"use_beam_search", GENERATES, only_nothing},
    {"bad_words", GENERATES, only_nothing},
    {"guided_regex", GENERATES, only_nothing},
    {"guided_choice", GENERATES, only_nothing},
    {"guided_grammar", GENERATES, only_nothing},
    {"structured_outputs", GENERATES, only_nothing},
    {"n_predict", TEXTS, only_nothing},
    {"prediction", SERVER_CHAT, harmless},
    {"user", GENERATES | SERVER_RESPONSES | SERVER_EMBEDDINGS, harmless},
    {"cache_prompt", GENERATES, harmless},
    {"priority", GENERATES, harmless},
    {"client_metadata", SERVER_RESPONSES, harmless},
    {"metadata", SAMPLES, harmless},
    {"store", GENERATES, harmless},
    {"store", SERVER_RESPONSES, read_store},
    {"service_tier", SAMPLES, harmless},
    {"safety_identifier", GENERATES | SERVER_RESPONSES, harmless},
    {"prompt_cache_key", GENERATES | SERVER_RESPONSES, harmless},
    {"prompt_cache_retention", GENERATES | SERVER_RESPONSES, harmless},
};

/* Whether some other endpoint knows this field. Then its meaning is known, so the request is
 * refused rather than the field ignored. */
static bool is_known_elsewhere(const char *name)
{
    size_t i = 0;
    while (i < sizeof fields / sizeof fields[0] && strcmp(fields[i].name, name) != 0) {
        i++;
    }
    return i < sizeof fields / sizeof fields[0];
}

/* Keeps the name of an unknown field for the log. The log must contain no text of requests, so
 * anything that does not look like a name is not kept. */
static void keep_unknown(server_request *request, const char *name)
{
    size_t size = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");
    bool is_name = size > 0 && name[size] == '\0' && size < sizeof request->unknown;
    snprintf(request->unknown, sizeof request->unknown, "%s", is_name ? name : "?");
}

bool server_read_field(server_request *request, const server_options *options, const char *name,
                       struct json_object *value, server_error *error)
{
    server_reading r = {request, options, name, error};
    if (value == NULL) {
        return true; /* null counts as a field that was left out */
    }
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (strcmp(fields[i].name, name) == 0 && (fields[i].endpoints & request->endpoint) != 0) {
            return fields[i].read(&r, value);
        }
    }
    if (!options->strict_fields && !is_known_elsewhere(name)) {
        keep_unknown(request, name);
        return true;
    }
    return server_fail(error, 400, "unknown_parameter", name,
                       "'%.60s' is not a field that this address of the server knows.", name);
}
