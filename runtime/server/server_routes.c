/* SPDX-License-Identifier: MIT */
/* The addresses of the server. */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "cli_json.h"
#include "server_http.h"
#include "server_page.h"

static enum MHD_Result answer_object(server_exchange *exchange, struct json_object *object)
{
    cli_buffer text = {NULL, 0, 0};
    if (!server_append_json(object, &text)) {
        cli_buffer_free(&text);
        server_fail(&exchange->error, 503, "overloaded", NULL, "out of memory for the answer");
        return server_answer_error(exchange);
    }
    return server_answer(exchange, 200, "application/json", &text);
}

static bool read_request(server_exchange *exchange, server_endpoint endpoint)
{
    exchange->request.endpoint = endpoint;
    /* Messages and tools may be there twice, in the client's form and the template's. */
    uint64_t objects = 2 * server_json_bytes(exchange->body.data, exchange->body.size);
    return server_memory_charge(&exchange->srv->memory, &exchange->charged, objects,
                                &exchange->error) &&
           server_request_read(&exchange->request, exchange->srv->options, exchange->body.data,
                               exchange->body.size, &exchange->error);
}

/* ---- Text ---- */

static enum MHD_Result generate(server_exchange *exchange, server_endpoint endpoint)
{
    server *srv = exchange->srv;
    bool prepared = read_request(exchange, endpoint) &&
                    server_request_prepare(&exchange->request, &srv->tools, srv->engine,
                                           srv->options, &exchange->error);
    server_forget_body(exchange);
    return prepared ? server_generate(exchange) : server_answer_error(exchange);
}

static enum MHD_Result route_chat(server_exchange *exchange)
{
    return generate(exchange, SERVER_CHAT);
}

static enum MHD_Result route_completion(server_exchange *exchange)
{
    return generate(exchange, SERVER_COMPLETION);
}

static enum MHD_Result route_messages(server_exchange *exchange)
{
    return generate(exchange, SERVER_MESSAGES);
}

static enum MHD_Result route_responses(server_exchange *exchange)
{
    return generate(exchange, SERVER_RESPONSES);
}

static enum MHD_Result route_count(server_exchange *exchange)
{
    server *srv = exchange->srv;
    if (!read_request(exchange, SERVER_COUNT) ||
        !server_request_prepare(&exchange->request, &srv->tools, srv->engine, srv->options,
                                &exchange->error)) {
        return server_answer_error(exchange);
    }
    struct json_object *object = json_object_new_object();
    cli_json_u64(object, "input_tokens", exchange->request.job->n_tokens);
    return answer_object(exchange, object);
}

static enum MHD_Result route_tokenize(server_exchange *exchange)
{
    server_request *request = &exchange->request;
    moe_error err = {""};
    int32_t *tokens;
    size_t n;
    if (!read_request(exchange, SERVER_TOKENIZE)) {
        return server_answer_error(exchange);
    }
    unsigned flags = (request->add_special ? MOE_TOKENIZE_ADD_SPECIAL : 0) |
                     (request->plain_text ? 0 : MOE_TOKENIZE_PARSE_SPECIAL);
    int status = moe_tokenize(exchange->srv->engine, json_object_get_string(request->content),
                              (size_t)json_object_get_string_len(request->content), flags, &tokens,
                              &n, &err);
    if (status != MOE_OK) {
        server_fail_status(&exchange->error, status, &err);
        return server_answer_error(exchange);
    }
    struct json_object *object = json_object_new_object();
    struct json_object *array = json_object_new_array();
    for (size_t i = 0; i < n; i++) {
        cli_json_append(array, json_object_new_int(tokens[i]));
    }
    moe_free(tokens);
    cli_json_put(object, "tokens", array);
    return answer_object(exchange, object);
}

static enum MHD_Result route_detokenize(server_exchange *exchange)
{
    server *srv = exchange->srv;
    cli_buffer text = {NULL, 0, 0};
    bool stored = true;
    if (!read_request(exchange, SERVER_DETOKENIZE)) {
        return server_answer_error(exchange);
    }
    struct json_object *tokens = exchange->request.tokens;
    for (size_t i = 0; stored && i < json_object_array_length(tokens); i++) {
        struct json_object *id = json_object_array_get_idx(tokens, i);
        int64_t token = json_object_get_int64(id);
        if (!json_object_is_type(id, json_type_int) || token < 0 || token >= srv->info.n_vocab) {
            cli_buffer_free(&text);
            server_fail(&exchange->error, 400, "invalid_value", "tokens",
                        "'tokens' must be an array of ids below %u.", srv->info.n_vocab);
            return server_answer_error(exchange);
        }
        size_t size;
        const char *piece = moe_token_piece(srv->engine, (int32_t)token, true, &size);
        stored = size == 0 || cli_buffer_append(&text, piece, size);
    }
    struct json_object *object = stored ? json_object_new_object() : NULL;
    cli_json_put(object, "content", cli_json_new_text(text.size == 0 ? "" : text.data, text.size));
    cli_buffer_free(&text);
    return answer_object(exchange, object);
}

static enum MHD_Result route_template(server_exchange *exchange)
{
    server *srv = exchange->srv;
    moe_chat_prompt *prompt;
    size_t size;
    if (!read_request(exchange, SERVER_TEMPLATE) ||
        !server_render(&prompt, &exchange->request, &srv->tools, srv->engine, srv->options,
                       &exchange->error)) {
        return server_answer_error(exchange);
    }
    const char *text = moe_chat_prompt_text(prompt, &size);
    struct json_object *object = json_object_new_object();
    cli_json_put(object, "prompt", cli_json_new_text(text, size));
    moe_chat_prompt_close(&prompt);
    return answer_object(exchange, object);
}

/* ---- About the server ---- */

static enum MHD_Result route_models(server_exchange *exchange)
{
    const server *srv = exchange->srv;
    struct json_object *object = json_object_new_object();
    struct json_object *data = json_object_new_array();
    struct json_object *model = json_object_new_object();
    cli_json_text(model, "id", srv->options->model);
    cli_json_text(model, "object", "model");
    cli_json_put(model, "created", json_object_new_int64(srv->started));
    cli_json_text(model, "owned_by", "moe-offload");
    cli_json_append(data, model);
    cli_json_text(object, "object", "list");
    cli_json_put(object, "data", data);
    return answer_object(exchange, object);
}

static enum MHD_Result route_health(server_exchange *exchange)
{
    struct json_object *object = json_object_new_object();
    cli_json_text(object, "status", "ok");
    return answer_object(exchange, object);
}

static enum MHD_Result route_props(server_exchange *exchange)
{
    const server *srv = exchange->srv;
    struct json_object *object = json_object_new_object();
    cli_json_text(object, "model", srv->options->model);
    cli_json_text(object, "version", moe_version());
    cli_json_text(object, "architecture", srv->info.architecture);
    cli_json_text(object, "family", srv->info.family);
    cli_json_text(object, "device", srv->info.device);
    cli_json_put(object, "device_simulated", json_object_new_boolean(srv->info.device_simulated));
    cli_json_u64(object, "context", srv->info.context);
    cli_json_u64(object, "sessions", srv->options->parallel);
    cli_json_u64(object, "vocabulary", srv->info.n_vocab);
    cli_json_text(object, "chat_template", srv->info.chat_template);
    return answer_object(exchange, object);
}

/* ---- The page and what it shows ---- */

static enum MHD_Result route_page(server_exchange *exchange)
{
    cli_buffer text = {NULL, 0, 0};
    if (!cli_buffer_append(&text, server_page, server_page_size)) {
        server_fail(&exchange->error, 503, "overloaded", NULL, "out of memory for the answer");
        return server_answer_error(exchange);
    }
    return server_answer(exchange, 200, "text/html; charset=utf-8", &text);
}

/* What the engine's thread saw last; a picture that is too old is taken anew for the next look. */
static void look(server *srv, server_counts *counts)
{
    if (server_view_ask(&srv->view)) {
        server_queue_poke(&srv->queue);
        poll(NULL, 0, 20); /* an idle engine has it by then */
    }
    server_get_counts(&srv->queue, counts);
}

static enum MHD_Result route_live(server_exchange *exchange)
{
    server_counts counts;
    server *srv = exchange->srv;
    look(srv, &counts);
    return answer_object(exchange, server_view_live(&srv->view, &counts, srv->options, &srv->info));
}

static enum MHD_Result route_slots(server_exchange *exchange)
{
    server_counts counts;
    server *srv = exchange->srv;
    look(srv, &counts);
    return answer_object(exchange,
                         server_view_slots(&srv->view, &counts, srv->options, srv->info.context));
}

/* ---- Metrics ---- */

static bool append_metric(cli_buffer *out, const char *name, const char *kind, const char *help,
                          uint64_t value)
{
    char text[512];
    int n = snprintf(text, sizeof text, "# HELP moe_%s %s\n# TYPE moe_%s %s\nmoe_%s %" PRIu64 "\n",
                     name, help, name, kind, name, value);
    return cli_buffer_append(out, text, (size_t)n);
}

static enum MHD_Result route_metrics(server_exchange *exchange)
{
    server_counts c;
    cli_buffer text = {NULL, 0, 0};
    bool stored = true;
    server_get_counts(&exchange->srv->queue, &c);
    const struct {
        const char *name, *kind, *help;
        uint64_t value;
    } rows[] = {
        {"requests_total", "counter", "Requests for text that were queued.", c.submitted},
        {"requests_refused_total", "counter", "Requests refused because too many waited.",
         c.refused},
        {"requests_finished_total", "counter", "Requests answered to the end.", c.finished},
        {"requests_failed_total", "counter", "Requests that failed.", c.failed},
        {"requests_cancelled_total", "counter", "Requests whose client left.", c.cancelled},
        {"requests_paused_total", "counter",
         "Times that an answer stood still until others had given memory back.", c.paused},
        {"requests_set_back_total", "counter",
         "Times that an answer was begun again because memory was short.", c.set_back},
        {"prompt_tokens_total", "counter", "Tokens of prompts.", c.prompt_tokens},
        {"cached_tokens_total", "counter", "Tokens of prompts that were evaluated before.",
         c.cached_tokens},
        {"written_tokens_total", "counter", "Tokens written.", c.written_tokens},
        {"steps_total", "counter", "Passes over all active sessions.", c.steps},
        {"sessions_active", "gauge", "Sessions that write or read a prompt.", c.active},
        {"sessions_idle", "gauge", "Sessions kept for prompts that begin likewise.", c.idle},
        {"requests_waiting", "gauge", "Requests that wait for a session.", c.waiting},
        {"expert_hits_total", "counter", "Experts found in memory.", c.engine.expert_hits},
        {"expert_misses_total", "counter", "Experts not found in memory.", c.engine.expert_misses},
        {"disk_read_bytes_total", "counter", "Bytes read from the disk for experts.",
         c.engine.bytes_read_disk},
        {"session_bytes", "gauge", "Memory of sessions after the last step.",
         c.engine.session_bytes},
        {"resident_bytes", "gauge", "Memory of weights, experts and sessions after the last step.",
         c.engine.resident_bytes_now},
    };
    for (size_t i = 0; stored && i < sizeof rows / sizeof rows[0]; i++) {
        stored = append_metric(&text, rows[i].name, rows[i].kind, rows[i].help, rows[i].value);
    }
    if (!stored) {
        cli_buffer_free(&text);
        server_fail(&exchange->error, 503, "overloaded", NULL, "out of memory for the answer");
        return server_answer_error(exchange);
    }
    return server_answer(exchange, 200, "text/plain; version=0.0.4", &text);
}

/* ---- The table ---- */

static const struct {
    const char *path;
    bool is_post;
    enum MHD_Result (*answer)(server_exchange *exchange);
} routes[] = {
    {"/v1/chat/completions", true, route_chat},
    {"/v1/completions", true, route_completion},
    {"/v1/messages", true, route_messages},
    {"/v1/messages/count_tokens", true, route_count},
    {"/v1/responses", true, route_responses},
    {"/v1/models", false, route_models},
    {"/tokenize", true, route_tokenize},
    {"/detokenize", true, route_detokenize},
    {"/apply-template", true, route_template},
    {"/health", false, route_health},
    {"/props", false, route_props},
    {"/metrics", false, route_metrics},
    {"/slots", false, route_slots},
    {"/live", false, route_live},
    {"/", false, route_page},
};

const char *server_find_path(const char *path, bool *is_post)
{
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (strcmp(routes[i].path, path) == 0) {
            *is_post = routes[i].is_post;
            return routes[i].path;
        }
    }
    return NULL;
}

enum MHD_Result server_route(server_exchange *exchange)
{
    size_t i = 0;
    while (routes[i].path != exchange->path) {
        i++;
    }
    return routes[i].answer(exchange);
}
