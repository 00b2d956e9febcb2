/* SPDX-License-Identifier: MIT */
#include "server_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "cli_json.h"
#include "server_embedding.h"
#include "server_memory.h"
#include "server_values.h"

/* ---- JSON ---- */

static bool parse(server_request *request, const char *body, size_t size, server_error *error)
{
    struct json_tokener *tokener = json_tokener_new_ex(SERVER_DEEPEST_JSON);
    if (tokener == NULL) {
        return server_fail(error, 503, "overloaded", NULL, "out of memory for the request");
    }
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    /* The text is passed with its terminating NUL, so that the parser sees the end of a number. */
    request->body = json_tokener_parse_ex(tokener, size == 0 ? "" : body, (int)size + 1);
    enum json_tokener_error failure = json_tokener_get_error(tokener);
    size_t end = json_tokener_get_parse_end(tokener);
    json_tokener_free(tokener);
    if (failure == json_tokener_continue) {
        return server_fail(error, 400, "invalid_json", NULL, "The request's JSON is cut short.");
    }
    if (failure != json_tokener_success || end < size) {
        return server_fail(error, 400, "invalid_json", NULL,
                           "The request is no JSON: %s, at byte %zu.",
                           failure == json_tokener_success ? "something follows the object"
                                                           : json_tokener_error_desc(failure),
                           end);
    }
    return json_object_is_type(request->body, json_type_object) ||
           server_fail(error, 400, "invalid_json", NULL,
                       "The request's JSON must be an object with fields.");
}

static bool require(struct json_object *value, const char *name, server_error *error)
{
    return value != NULL || server_fail(error, 400, "missing_required_parameter", name,
                                        "'%s' is missing: this address needs it.", name);
}

/* Checks that the fields that this endpoint requires are present. */
static bool has_required(server_request *request, server_error *error)
{
    switch (request->endpoint) {
    case SERVER_MESSAGES:
        return require(request->messages, "messages", error) &&
               (request->has_max_tokens || require(NULL, "max_tokens", error));
    case SERVER_OLLAMA_GENERATE:
        return require(request->prompt, "prompt", error) &&
               (request->is_raw || request->suffix != NULL ||
                server_convert_prompt(request, error));
    case SERVER_CHAT:
    case SERVER_OLLAMA_CHAT:
    case SERVER_TEMPLATE:
    case SERVER_COUNT:
        return require(request->messages, "messages", error);
    case SERVER_RESPONSES:
        return require(request->input, "input", error);
    case SERVER_INFILL:
        return require(request->prompt, "input_prefix", error) &&
               require(request->suffix, "input_suffix", error);
    case SERVER_COMPLETION:
        return require(request->prompt, "prompt", error);
    case SERVER_TOKENIZE:
        return require(request->content, "content", error);
    case SERVER_OLLAMA_EMBEDDINGS:
        return require(request->texts, "prompt", error);
    case SERVER_EMBEDDINGS:
    case SERVER_EMBEDDING:
    case SERVER_OLLAMA_EMBED:
        return require(request->texts, "input", error);
    default:
        return require(request->tokens, "tokens", error);
    }
}

bool server_request_read(server_request *request, const server_options *options, const char *body,
                         size_t size, server_error *error)
{
    const unsigned with_job = SERVER_CHAT | SERVER_COMPLETION | SERVER_MESSAGES | SERVER_COUNT |
                              SERVER_RESPONSES | SERVER_INFILL | SERVER_OLLAMA_CHAT |
                              SERVER_OLLAMA_GENERATE | SERVER_EMBEDS;
    bool generates = (request->endpoint & with_job) != 0;
    if (generates) {
        request->n_jobs = 1;
        request->top_logprobs = -1;
        request->job = request->jobs[0] = server_job_new();
        if (request->job == NULL) {
            return server_fail(error, 503, "overloaded", NULL, "out of memory for the request");
        }
    }
    request->cuts_texts =
        request->endpoint == SERVER_OLLAMA_EMBED || request->endpoint == SERVER_OLLAMA_EMBEDDINGS;
    request->stream = (request->endpoint & (SERVER_OLLAMA_CHAT | SERVER_OLLAMA_GENERATE)) != 0;
    if (!parse(request, body, size, error)) {
        return false;
    }
    json_object_object_foreach(request->body, name, value)
    {
        if (!server_read_field(request, options, name, value, error)) {
            return false;
        }
    }
    if (generates && !request->has_sampling_seed) {
        uint32_t seed;
        request->job->sampling.seed =
            getrandom(&seed, sizeof seed, 0) == sizeof seed ? seed : (uint64_t)time(NULL);
    }
    if (generates && request->top_logprobs >= 0 && !request->logprobs) {
        return server_fail(error, 400, "invalid_value", "top_logprobs",
                           "'top_logprobs' needs 'logprobs': true.");
    }
    if (request->logprobs) {
        request->job->n_top = request->top_logprobs < 0 ? 0 : request->top_logprobs;
        request->job->tells_prompt = request->echoes;
    }
    if (generates && request->has_max_tokens && request->job->max_tokens == 0 && !request->echoes) {
        return server_fail(error, 400, "invalid_value", "max_tokens",
                           "'max_tokens' must be a whole number of at least 1 (0 with 'echo').");
    }
    if (request->include_usage && !request->stream) {
        return server_fail(error, 400, "invalid_value", "stream_options",
                           "'stream_options' needs 'stream': true.");
    }
    if (!server_check_tools(request, error)) {
        return false;
    }
    return has_required(request, error);
}

/* ---- Tokens ---- */

/* Returns both texts with an empty line between them. Takes over the first one. */
static struct json_object *join_texts(struct json_object *first, struct json_object *second)
{
    cli_buffer text = {NULL, 0, 0};
    struct json_object *joined = NULL;
    if (cli_buffer_append(&text, json_object_get_string(first),
                          (size_t)json_object_get_string_len(first)) &&
        cli_buffer_append(&text, "\n\n", 2) &&
        cli_buffer_append(&text, json_object_get_string(second),
                          (size_t)json_object_get_string_len(second))) {
        joined = cli_json_new_text(text.data, text.size);
    }
    cli_buffer_free(&text);
    json_object_put(first);
    return joined;
}

/* Returns a new array of the request's messages with a system message of this content in front.
 * If the first message is already a system message, the two texts are joined, because many
 * templates accept only one. Takes over the content. */
static struct json_object *prepend_system(const server_request *request,
                                          struct json_object *content)
{
    struct json_object *all = json_object_new_array();
    struct json_object *first = json_object_new_object();
    struct json_object *head = json_object_array_get_idx(request->messages, 0);
    bool joins = server_is_text(json_object_object_get(head, "role"), "system") &&
                 json_object_is_type(json_object_object_get(head, "content"), json_type_string) &&
                 json_object_is_type(content, json_type_string);
    cli_json_put(first, "role", json_object_new_string("system"));
    cli_json_put(first, "content",
                 joins ? join_texts(content, json_object_object_get(head, "content")) : content);
    cli_json_append(all, first);
    for (size_t i = joins; i < json_object_array_length(request->messages); i++) {
        cli_json_append(all, json_object_get(json_object_array_get_idx(request->messages, i)));
    }
    return all;
}

static void replace_messages(server_request *request, struct json_object *messages)
{
    json_object_put(request->converted);
    request->converted = request->messages = messages;
}

/* Adds the client's system message, and one that describes the tools if the template does not. */
static void add_system(server_request *request)
{
    if (request->tells_tools) {
        replace_messages(request, prepend_system(request, server_describe_tools(request)));
    }
    if (request->system != NULL && request->messages != NULL) {
        replace_messages(request, prepend_system(request, json_object_get(request->system)));
        request->system = NULL;
    }
}

/* Returns the variables for the template: those that the request gives, and its settings of
 * reasoning. The caller owns the result. NULL: memory is short. */
static struct json_object *new_arguments(const server_request *request)
{
    struct json_object *arguments = json_object_new_object();
    if (request->template_arguments != NULL) {
        json_object_object_foreach(request->template_arguments, key, value)
        {
            cli_json_put(arguments, key, json_object_get(value));
        }
    }
    static const char *const efforts[] = {"reasoning_effort", "thinking_effort"};
    for (size_t i = 0; i < 2 && request->effort != NULL; i++) {
        if (!json_object_object_get_ex(arguments, efforts[i], NULL)) {
            cli_json_put(arguments, efforts[i], json_object_get(request->effort));
        }
    }
    if (request->verbosity != NULL && !json_object_object_get_ex(arguments, "verbosity", NULL)) {
        cli_json_put(arguments, "verbosity", json_object_get(request->verbosity));
    }
    static const char *const switches[] = {"enable_thinking", "thinking"};
    for (size_t i = 0; i < 2 && request->thinks != MOE_SWITCH_AUTO; i++) {
        if (!json_object_object_get_ex(arguments, switches[i], NULL)) {
            cli_json_put(arguments, switches[i],
                         json_object_new_boolean(request->thinks == MOE_SWITCH_ON));
        }
    }
    return arguments;
}

/* Whether the last message is the beginning of an answer, which the model is to continue. */
static bool ends_with_answer(struct json_object *messages)
{
    size_t n = json_object_array_length(messages);
    struct json_object *last = n == 0 ? NULL : json_object_array_get_idx(messages, n - 1);
    struct json_object *role = NULL, *content = NULL, *calls = NULL;
    json_object_object_get_ex(last, "role", &role);
    json_object_object_get_ex(last, "content", &content);
    json_object_object_get_ex(last, "tool_calls", &calls);
    return server_is_text(role, "assistant") && calls == NULL &&
           json_object_is_type(content, json_type_string) &&
           json_object_get_string_len(content) > 0;
}

bool server_render(moe_chat_prompt **out, server_request *request, server_tools *tools,
                   const moe_engine *engine, const server_options *options, server_error *error)
{
    moe_chat_options chat;
    moe_error err = {""};
    const int plain = JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE;
    *out = NULL;
    bool has_blocks = (request->endpoint & (SERVER_MESSAGES | SERVER_COUNT)) != 0;
    if ((has_blocks && !server_convert_blocks(request, error)) ||
        (request->endpoint == SERVER_RESPONSES && !server_convert_items(request, error)) ||
        !server_request_find_tools(request, tools, engine, options, error) ||
        !server_request_adapt_calls(request, tools, engine, options, error)) {
        return false;
    }
    add_system(request);
    if (!cli_json_is_complete(request->messages)) {
        return server_fail(error, 503, "overloaded", NULL, "out of memory for the messages");
    }
    moe_chat_options_init(&chat);
    chat.messages = json_object_to_json_string_ext(request->messages, plain);
    if (request->tools != NULL && request->tool_choice != SERVER_TOOL_NONE) {
        chat.tools = json_object_to_json_string_ext(request->tools, plain);
    }
    chat.template_name = options->chat_template_name;
    chat.template_text = options->chat_template_text;
    chat.thinking = options->thinking;
    struct json_object *arguments = new_arguments(request);
    if (json_object_object_length(arguments) > 0) {
        chat.template_arguments = json_object_to_json_string_ext(arguments, plain);
    }
    if (request->endpoint != SERVER_TEMPLATE && request->endpoint != SERVER_RESPONSES &&
        ends_with_answer(request->messages)) {
        chat.add_generation_prompt = false;
        chat.continue_final_message = true;
    }
    int status = chat.messages == NULL
                     ? MOE_ERR_MEMORY
                     : moe_chat_render_within(out, engine, &chat, &request->allowance, &err);
    json_object_put(arguments);
    if (status == MOE_OK) {
        return true;
    }
    if (status == MOE_ERR_BUDGET || status == MOE_ERR_CANCELLED) {
        return server_work_fail(error, status, "messages", &err);
    }
    server_fail_status(error, status, &err);
    snprintf(error->field, sizeof error->field, "messages");
    return false;
}

static bool new_tokens(server_request *request, size_t n, server_error *error)
{
    server_job *job = request->job;
    if (!server_work_take(&request->allowance, (n + 1) * sizeof *job->tokens, error)) {
        return false;
    }
    job->tokens = malloc((n + 1) * sizeof *job->tokens);
    job->n_tokens = n;
    return job->tokens != NULL ||
           server_fail(error, 503, "overloaded", NULL, "out of memory for the prompt");
}

static bool copy_tokens(server_request *request, const int32_t *tokens, size_t n,
                        server_error *error)
{
    bool there = new_tokens(request, n, error);
    if (there && n > 0) {
        memcpy(request->job->tokens, tokens, n * sizeof *tokens);
    }
    return there;
}

static bool tokenize_prompt(server_request *request, const moe_engine *engine, server_error *error)
{
    int32_t *tokens;
    size_t n;
    moe_error err = {""};
    const unsigned flags = MOE_TOKENIZE_ADD_SPECIAL | MOE_TOKENIZE_PARSE_SPECIAL;
    const uint64_t before = request->allowance.bytes_now;
    int status = moe_tokenize_within(engine, json_object_get_string(request->prompt),
                                     (size_t)json_object_get_string_len(request->prompt), flags,
                                     &tokens, &n, &request->allowance, &err);
    if (status != MOE_OK) {
        return server_work_fail(error, status, "prompt", &err);
    }
    const uint64_t bytes = request->allowance.bytes_now - before;
    bool copied = copy_tokens(request, tokens, n, error);
    moe_free(tokens);
    request->allowance.bytes_now -= bytes;
    return copied;
}

static bool take_ids(server_request *request, const moe_engine_info *info, server_error *error)
{
    size_t n = json_object_array_length(request->prompt);
    if (!new_tokens(request, n, error)) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        struct json_object *id = json_object_array_get_idx(request->prompt, i);
        int64_t value = json_object_get_int64(id);
        if (!json_object_is_type(id, json_type_int) || value < 0 || value >= info->n_vocab) {
            return server_fail(error, 400, "invalid_value", "prompt",
                               "'prompt' must be one string, or one array of token ids below %u.",
                               info->n_vocab);
        }
        request->job->tokens[i] = (int32_t)value;
    }
    return true;
}

static bool take_rendered(server_request *request, server_tools *tools, const moe_engine *engine,
                          const server_options *options, server_error *error)
{
    size_t n;
    if (!server_render(&request->job->prompt, request, tools, engine, options, error) ||
        !server_request_hold_to_tools(request, engine, error)) {
        return false;
    }
    const int32_t *tokens = moe_chat_prompt_tokens(request->job->prompt, &n);
    return copy_tokens(request, tokens, n, error);
}

static bool check_ids(const server_request *request, const moe_engine_info *info,
                      server_error *error)
{
    for (size_t i = 0; i < request->job->n_biases; i++) {
        if ((uint32_t)request->job->biases[i].token >= info->n_vocab) {
            return server_fail(error, 400, "invalid_value", "logit_bias",
                               "'logit_bias' must name token ids below %u.", info->n_vocab);
        }
    }
    for (size_t i = 0; i < request->job->n_stop_ids; i++) {
        if ((uint32_t)request->job->stop_ids[i] >= info->n_vocab) {
            return server_fail(error, 400, "invalid_value", "stop_token_ids",
                               "'stop_token_ids' must name token ids below %u.", info->n_vocab);
        }
    }
    return true;
}

/* Adds a job for each further answer. Its seed is the seed of the first job plus its number. */
static bool add_followers(server_request *request, server_error *error)
{
    for (uint32_t i = 1; i < request->n_jobs; i++) {
        request->jobs[i] = server_job_follow(request->job);
        if (request->jobs[i] == NULL) {
            return server_fail(error, 503, "overloaded", NULL, "out of memory for the request");
        }
        request->jobs[i]->sampling.seed += i;
    }
    return true;
}

/* Keeps the prompt's text, for requests that want it back (echo): the text as it was given, or
 * the text of the given tokens. */
static bool take_echo(server_request *request, const moe_engine *engine, server_error *error)
{
    const server_job *job = request->job;
    bool is_text = json_object_is_type(request->prompt, json_type_string);
    size_t size = is_text ? (size_t)json_object_get_string_len(request->prompt) : 0;
    size_t n_pieces = is_text ? 0 : job->n_tokens, piece = 0, n_all = 0;
    for (size_t i = 0; i < job->n_tokens; i++) {
        (void)moe_token_piece(engine, job->tokens[i], true, &piece);
        n_all += piece;
    }
    size = is_text ? size : n_all;
    request->echo_offset = size - n_all; /* special tokens at the beginning come before the text */
    /* The text is held here once, and up to twice in each answer's growing buffer. */
    if (!server_work_take(&request->allowance, (1 + 2 * request->n_jobs) * (size + 1), error)) {
        return false;
    }
    bool stored =
        cli_buffer_reserve(&request->echoed, size + 1) &&
        (!is_text || size == 0 ||
         cli_buffer_append(&request->echoed, json_object_get_string(request->prompt), size));
    for (size_t i = 0; i < n_pieces && stored; i++) {
        const char *text = moe_token_piece(engine, job->tokens[i], true, &piece);
        stored = piece == 0 || cli_buffer_append(&request->echoed, text, piece);
    }
    return stored || server_fail(error, 503, "overloaded", NULL, "out of memory for the prompt");
}

bool server_request_prepare(server_request *request, server_tools *tools, const moe_engine *engine,
                            const server_options *options, server_error *error)
{
    moe_engine_info info = {.struct_size = sizeof info};
    if (request->texts != NULL) {
        return server_take_texts(request, engine, options, error);
    }
    moe_engine_get_info(engine, &info);
    bool is_chat = request->messages != NULL || request->input != NULL;
    const char *field = request->endpoint == SERVER_RESPONSES ? "input"
                        : is_chat                             ? "messages"
                                                              : "prompt";
    bool taken = is_chat                   ? take_rendered(request, tools, engine, options, error)
                 : request->suffix != NULL ? server_take_gap(request, engine, error)
                 : json_object_is_type(request->prompt, json_type_array)
                     ? take_ids(request, &info, error)
                     : tokenize_prompt(request, engine, error);
    if (!taken) {
        return false;
    }
    if (request->job->n_tokens == 0) {
        return server_fail(error, 400, "invalid_value", field,
                           "'%s' is empty, and this model has no token that begins a text.", field);
    }
    if (request->job->n_tokens >= info.context) {
        return server_fail(error, 400, "context_length_exceeded", field,
                           "The prompt has %zu tokens, and the context holds %u with the answer: "
                           "shorten it, or start the server with a larger -c.",
                           request->job->n_tokens, info.context);
    }
    return check_ids(request, &info, error) &&
           (!request->echoes || take_echo(request, engine, error)) && add_followers(request, error);
}

void server_request_free(server_request *request, server_queue *queue)
{
    /* Followers are freed before their leader, because they point to the leader's data. */
    for (uint32_t i = SERVER_MOST_CHOICES; i-- > 0;) {
        server_job_release(queue, &request->jobs[i]);
    }
    if (request->answer != NULL) {
        server_kept_release(request->kept, &request->answer);
    }
    cli_buffer_free(&request->echoed);
    json_object_put(request->body);
    json_object_put(request->converted);
    json_object_put(request->tools);
    memset(request, 0, sizeof *request);
}
