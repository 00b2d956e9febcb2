/* SPDX-License-Identifier: MIT */
/* The paths of the server (/v1/models and so on), and the function that answers each of them. */
#include <inttypes.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "cli_json.h"
#include "server_embedding.h"
#include "server_http.h"
#include "server_memory.h"
#include "server_page.h"

/* Sends the object as the answer, and releases it. */
static bool put_object(server_exchange *exchange, struct json_object *object)
{
    return server_append_json(object, &exchange->events) ||
           server_fail(&exchange->error, 503, "overloaded", NULL, "out of memory for the answer");
}

static bool read_request(server_exchange *exchange, server_endpoint endpoint)
{
    server_request *request = &exchange->request;
    const cli_buffer *body = &exchange->body;
    bool is_text = (endpoint & (SERVER_TOKENIZE | SERVER_DETOKENIZE)) != 0;
    request->endpoint = endpoint;
    /* Counts the memory that the request needs while it is prepared. Messages and tools may exist
     * twice, in the client's form and in the template's; their strings exist as JSON strings,
     * converted, and rendered in a buffer that grows. */
    uint64_t objects = (is_text ? 1 : 2) * server_json_bytes(body->data, body->size);
    uint64_t texts = (is_text ? 1 : SERVER_TEXT_COPIES) * (uint64_t)body->size;
    if (endpoint == SERVER_RESPONSES) {
        texts += 2 * (uint64_t)body->size; /* the kept copy of the input, in a buffer that grows */
        request->kept = &exchange->srv->kept;
        request->keeps = true;
        request->client = exchange->client;
    }
    request->json_bytes = objects + texts;
    return server_work_take(&request->allowance, objects + texts, &exchange->error) &&
           server_work_step(&request->allowance, body->size, &exchange->error) &&
           server_request_read(request, exchange->srv->options, body->data, body->size,
                               &exchange->error);
}

/* ---- Text: run by the workshop's thread (server_workshop.h) ---- */

/* Returns the bytes of the reports on tokens that an answer sent as a whole keeps until its end. */
static uint64_t report_bytes(const server_exchange *exchange)
{
    const server_request *request = &exchange->request;
    const uint32_t context = exchange->srv->info.context;
    uint64_t most = context > request->job->n_tokens ? context - request->job->n_tokens : 0;
    most = request->job->max_tokens < most ? request->job->max_tokens : most;
    most += request->job->tells_prompt ? request->job->n_tokens : 0;
    return request->logprobs && !request->stream
               ? 2 * request->n_jobs * most * server_report_size(request->job->n_top)
               : 0;
}

/* Reduces the request's charge to the memory that the job still needs: prompt, tokens, grammar and
 * tools. */
static bool keep(server_exchange *exchange)
{
    server_request *request = &exchange->request;
    uint64_t kept = request->allowance.bytes_now - request->json_bytes;
    kept += request->n_jobs * sizeof(server_job) +
            request->job->n_biases * sizeof request->job->biases[0] + report_bytes(exchange) +
            (request->texts != NULL ? server_embedding_bytes(request) : 0);
    if (request->tools != NULL) {
        kept += server_json_bytes(exchange->body.data, exchange->body.size) + exchange->body.size;
    }
    return server_memory_charge(&exchange->srv->memory, &exchange->kept, kept, &exchange->error);
}

static bool prepare(server_exchange *exchange, server_endpoint endpoint)
{
    server *srv = exchange->srv;
    server_request *request = &exchange->request;
    bool prepared =
        read_request(exchange, endpoint) &&
        server_request_prepare(request, &srv->tools, srv->engine, srv->options, &exchange->error) &&
        keep(exchange);
    atomic_fetch_or(&srv->dropped, server_dropped_bits(request->dropped));
    server_forget_body(exchange);
    return prepared;
}

static bool prepare_chat(server_exchange *exchange)
{
    return prepare(exchange, SERVER_CHAT);
}

static bool prepare_completion(server_exchange *exchange)
{
    return prepare(exchange, SERVER_COMPLETION);
}

static bool prepare_messages(server_exchange *exchange)
{
    return prepare(exchange, SERVER_MESSAGES);
}

static bool prepare_responses(server_exchange *exchange)
{
    return prepare(exchange, SERVER_RESPONSES);
}

static bool prepare_infill(server_exchange *exchange)
{
    return prepare(exchange, SERVER_INFILL);
}

static bool prepare_ollama_chat(server_exchange *exchange)
{
    return prepare(exchange, SERVER_OLLAMA_CHAT);
}

static bool prepare_ollama_generate(server_exchange *exchange)
{
    return prepare(exchange, SERVER_OLLAMA_GENERATE);
}

static bool prepare_embeddings(server_exchange *exchange)
{
    return prepare(exchange, SERVER_EMBEDDINGS);
}

static bool prepare_embedding(server_exchange *exchange)
{
    return prepare(exchange, SERVER_EMBEDDING);
}

static bool prepare_ollama_embed(server_exchange *exchange)
{
    return prepare(exchange, SERVER_OLLAMA_EMBED);
}

static bool prepare_ollama_embeddings(server_exchange *exchange)
{
    return prepare(exchange, SERVER_OLLAMA_EMBEDDINGS);
}

static bool make_count(server_exchange *exchange)
{
    if (!prepare(exchange, SERVER_COUNT)) {
        return false;
    }
    struct json_object *object = json_object_new_object();
    cli_json_u64(object, "input_tokens", exchange->request.job->n_tokens);
    return put_object(exchange, object);
}

/* Writes the array directly as text: as JSON objects it would take twenty times as much memory. */
static bool write_tokens(server_exchange *exchange, const int32_t *tokens, size_t n)
{
    cli_buffer *out = &exchange->events;
    char text[16];
    size_t size = sizeof "{\"tokens\":[]}";
    for (size_t i = 0; i < n; i++) {
        size += (size_t)snprintf(text, sizeof text, "%d,", (int)tokens[i]);
    }
    if (!server_work_take(&exchange->request.allowance, size, &exchange->error)) {
        return false;
    }
    bool stored = cli_buffer_reserve(out, size) && cli_buffer_append(out, "{\"tokens\":[", 11);
    for (size_t i = 0; i < n && stored; i++) {
        int length = snprintf(text, sizeof text, i > 0 ? ",%d" : "%d", (int)tokens[i]);
        stored = cli_buffer_append(out, text, (size_t)length);
    }
    return (stored && cli_buffer_append(out, "]}", 2)) ||
           server_fail(&exchange->error, 503, "overloaded", NULL, "out of memory for the answer");
}

static bool make_tokens(server_exchange *exchange)
{
    server_request *request = &exchange->request;
    moe_error err = {""};
    int32_t *tokens = NULL;
    size_t n;
    if (!read_request(exchange, SERVER_TOKENIZE)) {
        return false;
    }
    unsigned flags = (request->add_special ? MOE_TOKENIZE_ADD_SPECIAL : 0) |
                     (request->plain_text ? 0 : MOE_TOKENIZE_PARSE_SPECIAL);
    int status =
        moe_tokenize_within(exchange->srv->engine, json_object_get_string(request->content),
                            (size_t)json_object_get_string_len(request->content), flags, &tokens,
                            &n, &request->allowance, &err);
    bool made = status == MOE_OK ? write_tokens(exchange, tokens, n)
                                 : server_work_fail(&exchange->error, status, "content", &err);
    moe_free(tokens);
    return made;
}

/* Answers with {key: text}. First takes memory for a copy without invalid UTF-8, for the JSON
 * string, and for the answer's escaped text. */
static bool put_text(server_exchange *exchange, const char *key, const char *text, size_t size)
{
    const uint64_t bytes = (uint64_t)size * SERVER_ANSWER_COPIES;
    if (!server_work_take(&exchange->request.allowance, bytes, &exchange->error)) {
        return false;
    }
    struct json_object *object = json_object_new_object();
    cli_json_put(object, key, cli_json_new_text(text, size));
    return put_object(exchange, object);
}

/* Returns element i of the request's 'tokens'. Returns -1 and sets an error if it is not a token
 * id. */
static int32_t id_at(server_exchange *exchange, size_t i)
{
    struct json_object *id = json_object_array_get_idx(exchange->request.tokens, i);
    int64_t token = json_object_get_int64(id);
    if (!json_object_is_type(id, json_type_int) || token < 0 ||
        token >= exchange->srv->info.n_vocab) {
        server_fail(&exchange->error, 400, "invalid_value", "tokens",
                    "'tokens' must be an array of ids below %u.", exchange->srv->info.n_vocab);
        return -1;
    }
    return (int32_t)token;
}

static bool make_text(server_exchange *exchange)
{
    server *srv = exchange->srv;
    cli_buffer text = {NULL, 0, 0};
    size_t size = 1;
    if (!read_request(exchange, SERVER_DETOKENIZE)) {
        return false;
    }
    const size_t n = json_object_array_length(exchange->request.tokens);
    for (size_t i = 0; i < n; i++) {
        int32_t token = id_at(exchange, i);
        size_t piece = 0;
        if (token < 0) {
            return false;
        }
        (void)moe_token_piece(srv->engine, token, true, &piece);
        size += piece;
    }
    if (!server_work_take(&exchange->request.allowance, size, &exchange->error)) {
        return false;
    }
    bool stored = cli_buffer_reserve(&text, size);
    for (size_t i = 0; i < n && stored; i++) {
        const char *piece = moe_token_piece(srv->engine, id_at(exchange, i), true, &size);
        stored = size == 0 || cli_buffer_append(&text, piece, size);
    }
    bool made = stored ? put_text(exchange, "content", text.size == 0 ? "" : text.data, text.size)
                       : server_fail(&exchange->error, 503, "overloaded", NULL,
                                     "out of memory for the answer");
    cli_buffer_free(&text);
    return made;
}

static bool make_prompt(server_exchange *exchange)
{
    server *srv = exchange->srv;
    moe_chat_prompt *prompt = NULL;
    size_t size;
    if (!read_request(exchange, SERVER_TEMPLATE) ||
        !server_render(&prompt, &exchange->request, &srv->tools, srv->engine, srv->options,
                       &exchange->error)) {
        return false;
    }
    const char *text = moe_chat_prompt_text(prompt, &size);
    bool made = put_text(exchange, "prompt", text, size);
    moe_chat_prompt_close(&prompt);
    return made;
}

/* ---- Information about the server ---- */

static struct json_object *new_model(const server *srv, const char *name)
{
    struct json_object *model = json_object_new_object();
    cli_json_text(model, "id", name);
    cli_json_text(model, "object", "model");
    cli_json_put(model, "created", json_object_new_int64(srv->started));
    cli_json_text(model, "owned_by", "moe-offload");
    return model;
}

/* /v1/models/NAME */
static bool make_model(server_exchange *exchange)
{
    return exchange->named != NULL
               ? put_object(exchange, new_model(exchange->srv, exchange->named))
               : server_fail(&exchange->error, 404, "model_not_found", "model",
                             "This server has one model, '%s'.", exchange->srv->options->model);
}

static bool make_models(server_exchange *exchange)
{
    const server *srv = exchange->srv;
    struct json_object *object = json_object_new_object();
    struct json_object *data = json_object_new_array();
    for (size_t i = 0; i < srv->options->n_names; i++) {
        cli_json_append(data, new_model(srv, srv->options->names[i]));
    }
    cli_json_text(object, "object", "list");
    cli_json_put(object, "data", data);
    return put_object(exchange, object);
}

/* ---- Information about the server, for Ollama's clients ---- */

static struct json_object *new_details(const server *srv)
{
    char parameters[32];
    struct json_object *details = json_object_new_object();
    snprintf(parameters, sizeof parameters, "%.1fB", (double)srv->info.n_parameters * 1e-9);
    cli_json_text(details, "format", "gguf");
    cli_json_text(details, "family", srv->info.architecture);
    cli_json_text(details, "parameter_size", parameters);
    return details;
}

static bool make_tags(server_exchange *exchange)
{
    const server *srv = exchange->srv;
    struct json_object *object = json_object_new_object();
    struct json_object *models = json_object_new_array();
    char digest[32];
    snprintf(digest, sizeof digest, "%016" PRIx64, srv->info.fingerprint);
    for (size_t i = 0; i < srv->options->n_names; i++) {
        struct json_object *model = json_object_new_object();
        cli_json_text(model, "name", srv->options->names[i]);
        cli_json_text(model, "model", srv->options->names[i]);
        cli_json_u64(model, "size", srv->info.resident_bytes + srv->info.expert_bytes);
        cli_json_text(model, "digest", digest);
        cli_json_put(model, "details", new_details(srv));
        cli_json_append(models, model);
    }
    cli_json_put(object, "models", models);
    return put_object(exchange, object);
}

static bool make_show(server_exchange *exchange)
{
    server *srv = exchange->srv;
    char key[128];
    struct json_object *object = json_object_new_object();
    struct json_object *about = json_object_new_object();
    struct json_object *abilities = json_object_new_array();
    bool known = server_tools_find(&srv->tools, srv->engine, srv->options);
    cli_json_text(about, "general.architecture", srv->info.architecture);
    cli_json_u64(about, "general.parameter_count", srv->info.n_parameters);
    snprintf(key, sizeof key, "%.80s.context_length", srv->info.architecture);
    cli_json_u64(about, key, srv->info.context);
    cli_json_text(object, "template", srv->info.chat_template);
    cli_json_put(object, "details", new_details(srv));
    cli_json_put(object, "model_info", about);
    cli_json_append(abilities, json_object_new_string("completion"));
    if (known && srv->tools.format.kind != SERVER_TOOLS_UNKNOWN) {
        cli_json_append(abilities, json_object_new_string("tools"));
    }
    cli_json_put(object, "capabilities", abilities);
    return put_object(exchange, object);
}

static bool make_version(server_exchange *exchange)
{
    struct json_object *object = json_object_new_object();
    cli_json_text(object, "version", moe_version());
    return put_object(exchange, object);
}

static bool make_health(server_exchange *exchange)
{
    struct json_object *object = json_object_new_object();
    cli_json_text(object, "status", "ok");
    return put_object(exchange, object);
}

/* Returns a word for how the server reads this model's tool calls: the name of a built-in format,
 * or one of the kinds that it learns from templates. */
static const char *calls_of(const server_tools *tools)
{
    static const char *const kinds[] = {"none", "json", "named", "tagged", "channels", "literals"};
    const server_tool_format *format = &tools->format;
    return format->reader != NULL ? format->reader : kinds[format->kind];
}

static bool make_props(server_exchange *exchange)
{
    server *srv = exchange->srv;
    struct json_object *object = json_object_new_object();
    bool known = server_tools_find(&srv->tools, srv->engine, srv->options);
    cli_json_text(object, "tool_calls", known ? calls_of(&srv->tools) : "none");
    struct json_object *dropped = json_object_new_array();
    for (unsigned i = 0; server_dropped_keyword(i) != NULL; i++) {
        if ((atomic_load(&srv->dropped) >> i & 1) != 0) {
            cli_json_append(dropped, json_object_new_string(server_dropped_keyword(i)));
        }
    }
    cli_json_put(object, "schema_dropped", dropped);
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
    return put_object(exchange, object);
}

/* ---- The web page and its data ---- */

static bool make_page(server_exchange *exchange)
{
    exchange->type = "text/html; charset=utf-8";
    return cli_buffer_append(&exchange->events, server_page, server_page_size) ||
           server_fail(&exchange->error, 503, "overloaded", NULL, "out of memory for the answer");
}

/* Refreshes the data for the page: uses the latest snapshot of the engine's thread, and asks for
 * a new one, for the next request, if it is too old. */
static void look(server *srv)
{
    if (server_view_ask(&srv->view)) {
        server_queue_poke(&srv->queue);
        poll(NULL, 0, 20); /* an idle engine makes its snapshot within this time */
    }
}

static bool make_live(server_exchange *exchange)
{
    server_counts counts;
    server *srv = exchange->srv;
    server_get_counts(&srv->queue, &counts);
    return put_object(exchange, server_view_live(&srv->view, &counts, srv->options, &srv->info));
}

static bool make_slots(server_exchange *exchange)
{
    server_counts counts;
    server *srv = exchange->srv;
    server_get_counts(&srv->queue, &counts);
    return put_object(exchange,
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

/* Adds rows with a label for each worker. */
static bool append_workers(cli_buffer *out, const server_counts *c)
{
    static const struct {
        const char *name, *kind, *help;
        size_t at; /* in moe_worker_info: a uint64_t */
    } rows[] = {
        {"worker_ready", "gauge", "1 if the worker answers.", offsetof(moe_worker_info, ready)},
        {"worker_held_experts", "gauge", "Experts that it computes.",
         offsetof(moe_worker_info, experts)},
        {"worker_slots", "gauge", "Experts that its memory has room for.",
         offsetof(moe_worker_info, slots)},
        {"worker_jobs_total", "counter", "Jobs sent to it.", offsetof(moe_worker_info, jobs)},
        {"worker_computed_total", "counter", "Experts of these jobs.",
         offsetof(moe_worker_info, computed)},
        {"worker_lost_total", "counter", "Times that it was left out.",
         offsetof(moe_worker_info, lost)},
    };
    const uint32_t n =
        c->engine.workers < SERVER_MOST_WORKERS ? c->engine.workers : SERVER_MOST_WORKERS;
    bool stored = true;
    for (size_t r = 0; n > 0 && r < sizeof rows / sizeof rows[0] && stored; r++) {
        char text[512];
        int size = snprintf(text, sizeof text, "# HELP moe_%s %s\n# TYPE moe_%s %s\n", rows[r].name,
                            rows[r].help, rows[r].name, rows[r].kind);
        stored = cli_buffer_append(out, text, (size_t)size);
        for (uint32_t i = 0; i < n && stored; i++) {
            uint64_t value;
            memcpy(&value, (const char *)&c->workers[i] + rows[r].at, sizeof value);
            size = snprintf(text, sizeof text, "moe_%s{worker=\"%s\",number=\"%u\"} %" PRIu64 "\n",
                            rows[r].name, c->workers[i].name, i + 1, value);
            stored = cli_buffer_append(out, text, (size_t)size);
        }
    }
    return stored;
}

static bool make_metrics(server_exchange *exchange)
{
    server_counts c;
    server *srv = exchange->srv;
    cli_buffer *text = &exchange->events;
    bool stored = true;
    server_get_counts(&srv->queue, &c);
    pthread_mutex_lock(&srv->workshop.lock);
    const server_workshop_counts w = srv->workshop.counts;
    pthread_mutex_unlock(&srv->workshop.lock);
    pthread_mutex_lock(&srv->door.lock);
    const server_door_counts d = srv->door.counts;
    pthread_mutex_unlock(&srv->door.lock);
    const uint64_t kept = server_kept_bytes(&srv->kept), taken = atomic_load(&srv->memory.taken);
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
        {"workers", "gauge", "Workers that this server was told of.", c.engine.workers},
        {"workers_ready", "gauge", "Of them, those that answer.", c.engine.workers_ready},
        {"workers_lost_total", "counter", "Times that a worker was left out.",
         c.engine.workers_lost},
        {"worker_experts_total", "counter", "Experts that workers computed.",
         c.engine.worker_experts},
        {"worker_experts_lost_total", "counter", "Experts computed here in place of a worker.",
         c.engine.worker_experts_lost},
        {"disk_read_bytes_total", "counter", "Bytes read from the disk for experts.",
         c.engine.bytes_read_disk},
        {"rows_total", "counter", "Rows of a table on disk that passes took.", c.engine.rows_taken},
        {"rows_waited_total", "counter", "Of them, rows that a pass had to wait for.",
         c.engine.rows_waited},
        {"rows_failed_total", "counter", "Rows that could not be read.", c.engine.rows_failed},
        {"rows_read_bytes_total", "counter", "Bytes read from the disk for rows.",
         c.engine.rows_bytes_disk},
        {"session_bytes", "gauge", "Memory of sessions after the last step.",
         c.engine.session_bytes},
        {"resident_bytes", "gauge", "Memory of weights, experts and sessions after the last step.",
         c.engine.resident_bytes_now},
        {"connections_late_total", "counter", "Connections closed because a head took too long.",
         d.n_late},
        {"connections_evicted_total", "counter",
         "Connections closed for newcomers before they had asked for anything.", d.n_evicted},
        {"accepting_paused_total", "counter",
         "Times that nobody was accepted for want of descriptors.", d.n_paused},
        {"request_bytes", "gauge", "Memory of bodies, prompts and answers of requests.",
         taken > kept ? taken - kept : 0},
        {"kept_answer_bytes", "gauge", "Memory of answers that are kept for later requests.", kept},
        {"request_bytes_peak", "gauge", "The most that it was.", atomic_load(&srv->memory.peak)},
        {"request_bytes_limit", "gauge", "The most that it may be.", srv->memory.most},
        {"reading_steps_total", "counter", "Steps of taking requests apart.", w.n_steps},
        {"reading_steps_peak", "gauge", "The most of one request.", w.most_steps},
        {"reading_bytes_peak", "gauge", "The most memory of taking one request apart.",
         w.most_bytes},
        {"reading_bytes_limit", "gauge", "The most that it may be.", srv->memory.most_work},
        {"reading_stopped_total", "counter", "Requests whose client left while they were read.",
         w.n_stopped},
    };
    for (size_t i = 0; stored && i < sizeof rows / sizeof rows[0]; i++) {
        stored = append_metric(text, rows[i].name, rows[i].kind, rows[i].help, rows[i].value);
    }
    stored = stored && append_workers(text, &c);
    exchange->type = "text/plain; version=0.0.4";
    return stored ||
           server_fail(&exchange->error, 503, "overloaded", NULL, "out of memory for the answer");
}

/* ---- The table of paths ---- */

/* Which thread makes the answer: the connection's own thread makes short answers, the engine's
 * thread generated text, and the workshop's thread all others. */
typedef enum server_maker { BY_CONNECTION, BY_WORKSHOP, BY_ENGINE } server_maker;

static const struct {
    const char *path;
    bool is_post;
    server_maker maker;
    bool (*make)(server_exchange *exchange); /* makes the answer, or the jobs for the engine */
} routes[] = {
    {"/v1/chat/completions", true, BY_ENGINE, prepare_chat},
    {"/v1/completions", true, BY_ENGINE, prepare_completion},
    {"/v1/messages", true, BY_ENGINE, prepare_messages},
    {"/v1/messages/count_tokens", true, BY_WORKSHOP, make_count},
    {"/v1/responses", true, BY_ENGINE, prepare_responses},
    {"/infill", true, BY_ENGINE, prepare_infill},
    {"/v1/embeddings", true, BY_ENGINE, prepare_embeddings},
    {"/embedding", true, BY_ENGINE, prepare_embedding},
    {"/api/embed", true, BY_ENGINE, prepare_ollama_embed},
    {"/api/embeddings", true, BY_ENGINE, prepare_ollama_embeddings},
    {"/api/chat", true, BY_ENGINE, prepare_ollama_chat},
    {"/api/generate", true, BY_ENGINE, prepare_ollama_generate},
    {"/api/tags", false, BY_CONNECTION, make_tags},
    {"/api/show", true, BY_WORKSHOP, make_show},
    {"/api/version", false, BY_CONNECTION, make_version},
    {"/v1/models", false, BY_CONNECTION, make_models},
    {SERVER_MODEL_PATH, false, BY_CONNECTION, make_model},
    {"/tokenize", true, BY_WORKSHOP, make_tokens},
    {"/detokenize", true, BY_WORKSHOP, make_text},
    {"/apply-template", true, BY_WORKSHOP, make_prompt},
    {"/health", false, BY_CONNECTION, make_health},
    {"/props", false, BY_WORKSHOP, make_props},
    {"/metrics", false, BY_CONNECTION, make_metrics},
    {"/slots", false, BY_WORKSHOP, make_slots},
    {"/live", false, BY_WORKSHOP, make_live},
    {"/", false, BY_CONNECTION, make_page},
};

const char *server_find_path(const char *path, bool *is_post)
{
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        bool is_model = routes[i].make == make_model &&
                        strncmp(path, SERVER_MODEL_PATH, sizeof SERVER_MODEL_PATH - 1) == 0;
        if (is_model || strcmp(routes[i].path, path) == 0) {
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
    if (routes[i].make == make_live || routes[i].make == make_slots) {
        look(exchange->srv);
    }
    bool made = routes[i].maker == BY_CONNECTION ? routes[i].make(exchange)
                                                 : server_in_workshop(exchange, routes[i].make);
    if (!made) {
        return server_answer_error(exchange);
    }
    return routes[i].maker == BY_ENGINE
               ? server_generate(exchange)
               : server_answer(exchange, 200,
                               exchange->type == NULL ? "application/json" : exchange->type,
                               &exchange->events);
}
