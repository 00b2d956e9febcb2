/* SPDX-License-Identifier: MIT */
/* Receives HTTP requests through libmicrohttpd and checks who may send them. Each connection has a
 * thread of its own, so handling a request may block. */
#include "server_http.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server_door.h"
#include "server_socket.h"

/* ---- Access ---- */

/* Compares in constant time, so that the time does not reveal how much of a key is right. */
static bool same_key(const char *key, const char *given)
{
    size_t size = strlen(key);
    if (size != strlen(given)) {
        return false;
    }
    volatile unsigned char differs = 0;
    for (size_t i = 0; i < size; i++) {
        differs |= (unsigned char)(key[i] ^ given[i]);
    }
    return differs == 0;
}

static const char *header(const server_exchange *exchange, const char *name)
{
    return MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND, name);
}

/* Finds the key that the client sent: "Authorization: Bearer KEY" (OpenAI) or "x-api-key: KEY"
 * (Anthropic). Each key counts as one client. */
static bool find_key(server_exchange *exchange)
{
    const server_options *options = exchange->srv->options;
    const char *given = header(exchange, "Authorization");
    bool found = false;
    if (given != NULL && strncasecmp(given, "Bearer ", 7) == 0) {
        given += 7;
    } else {
        given = header(exchange, "x-api-key");
    }
    for (size_t i = 0; i < options->n_keys && given != NULL; i++) {
        bool same = same_key(options->keys[i], given);
        exchange->client = same ? i : exchange->client;
        found |= same;
    }
    return found;
}

/* Without keys, web pages of other sites that a browser on this machine shows must not reach the
 * server. Refuses requests whose Host is not this machine (a foreign name that resolves to it) or
 * whose Origin is another site. */
static bool is_from_here(const server_exchange *exchange)
{
    char own[300];
    const char *host = header(exchange, "Host");
    const char *origin = header(exchange, "Origin");
    if (host != NULL && !server_is_loopback_name(host)) {
        return false;
    }
    snprintf(own, sizeof own, "http://%.200s", host == NULL ? "" : host);
    return origin == NULL || strcasecmp(origin, own) == 0;
}

/* Checks everything that the head of a request decides, before its body arrives. */
static void check_head(server_exchange *exchange, const char *method, bool has_key)
{
    server *srv = exchange->srv;
    server_error *error = &exchange->error;
    /* The page itself needs no key: it asks the user for one. */
    bool is_open = exchange->path != NULL &&
                   (strcmp(exchange->path, "/health") == 0 || strcmp(exchange->path, "/") == 0);
    bool posts = strcmp(method, "POST") == 0;
    if (srv->options->n_keys > 0 && !is_open && !has_key) {
        server_fail(
            error, 401, "invalid_api_key", NULL,
            "The key is missing or wrong: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'.");
    } else if (srv->options->n_keys == 0 && !is_from_here(exchange)) {
        server_fail(error, 403, "foreign_origin", NULL,
                    "Without --api-key-file this server answers programs of its own machine that "
                    "call it by localhost or 127.0.0.1, and no pages of other sites.");
    } else if (exchange->path == NULL) {
        server_fail(error, 404, "not_found", NULL, "This server has no such address.");
    } else if (posts != exchange->is_post ||
               (!posts && strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)) {
        server_fail(error, 405, "method_not_allowed", NULL, "%s takes %s.", exchange->path,
                    exchange->is_post ? "POST" : "GET");
    } else if (atomic_load(&srv->draining)) {
        server_fail(error, 503, "overloaded", NULL, "The server is shutting down.");
    }
}

/* ---- Bodies ---- */

static bool fail_size(server_exchange *exchange)
{
    return server_fail(&exchange->error, 413, "request_too_large", NULL,
                       "The request is larger than %zu bytes.", exchange->srv->memory.most_body);
}

/* Refuses a body whose Content-Length is too large, without waiting for the body. */
static bool refuses_length(server_exchange *exchange)
{
    const char *length = header(exchange, "Content-Length");
    return length != NULL && strtoull(length, NULL, 10) > exchange->srv->memory.most_body &&
           !fail_size(exchange);
}

/* Appends a piece of the body, unless the request is already refused. False: close the
 * connection. */
static bool take_body(server_exchange *exchange, const char *bytes, size_t size)
{
    server *srv = exchange->srv;
    if (server_now_ns() - exchange->began_ns > (uint64_t)SERVER_BODY_SECONDS * 1000000000) {
        return false;
    }
    if (exchange->error.status != 0) {
        return true;
    }
    if (exchange->body.size + size > srv->memory.most_body) {
        fail_size(exchange);
        return true;
    }
    if (!server_memory_append(&srv->memory, &exchange->charged, &exchange->body, bytes, size,
                              srv->memory.most_body, &exchange->error)) {
        server_forget_body(exchange); /* the rest of the body is read and dropped */
    }
    return true;
}

/* ---- Heads ---- */

/* Parts of a head that two programs may understand differently. If a proxy understood them
 * differently, it could take the rest of one request for the next one (request smuggling). */
typedef struct head_check {
    unsigned n_lengths, n_encodings, n_hosts;
    const char *wrong;
} head_check;

static bool is_number(const char *text, size_t size)
{
    size_t i = 0;
    while (i < size && text[i] >= '0' && text[i] <= '9') {
        i++;
    }
    return size > 0 && size < 19 && i == size;
}

static enum MHD_Result check_header(void *user, enum MHD_ValueKind kind, const char *key,
                                    size_t key_size, const char *value, size_t value_size)
{
    head_check *check = user;
    (void)kind;
    for (size_t i = 0; i < key_size; i++) {
        unsigned char c = (unsigned char)key[i];
        if (c <= ' ' || c >= 0x7f || strchr("\"(),/:;<=>?@[\\]{}", c) != NULL) {
            check->wrong = "A header's name has a character that names do not have.";
        }
    }
    if (key_size == 0) {
        check->wrong = "A header has no name.";
    }
    if (strcasecmp(key, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0) {
        check->n_lengths++;
        check->wrong = is_number(value, value_size) ? check->wrong
                                                    : "Content-Length is not a number of bytes.";
    }
    if (strcasecmp(key, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0) {
        check->n_encodings++;
        check->wrong = value_size == 7 && strncasecmp(value, "chunked", 7) == 0
                           ? check->wrong
                           : "Transfer-Encoding is not 'chunked'.";
    }
    check->n_hosts += strcasecmp(key, MHD_HTTP_HEADER_HOST) == 0;
    return MHD_YES;
}

/* Returns false and sets an error if the head is ambiguous in this way. */
static bool is_clear_head(server_exchange *exchange)
{
    head_check check = {0, 0, 0, NULL};
    MHD_get_connection_values_n(exchange->connection, MHD_HEADER_KIND, check_header, &check);
    if (check.n_lengths + check.n_encodings > 1 || check.n_hosts > 1) {
        check.wrong = check.n_hosts > 1
                          ? "There is more than one Host."
                          : "There is more than one Content-Length or Transfer-Encoding.";
    }
    return check.wrong == NULL ||
           server_fail(&exchange->error, 400, "invalid_head", NULL, "%s", check.wrong);
}

/* ---- Connections ---- */

static void on_connection(void *user, struct MHD_Connection *connection, void **mark,
                          enum MHD_ConnectionNotificationCode event)
{
    server *srv = user;
    if (event == MHD_CONNECTION_NOTIFY_STARTED) {
        int socket =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        *mark = server_door_arrive(&srv->door, socket);
    } else if (*mark != NULL) {
        server_door_leave(&srv->door, *mark);
    }
}

/* ---- libmicrohttpd ---- */

static server_exchange *new_exchange(server *srv, struct MHD_Connection *connection,
                                     const char *url, const char *method)
{
    server_exchange *exchange = calloc(1, sizeof *exchange);
    if (exchange == NULL) {
        return NULL;
    }
    exchange->srv = srv;
    exchange->connection = connection;
    exchange->socket =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    exchange->began_ns = server_now_ns();
    exchange->visit =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    exchange->client = exchange->visit == NULL ? 0 : exchange->visit->address;
    exchange->path = server_find_path(url, &exchange->is_post);
    exchange->named = strlen(url) >= sizeof SERVER_MODEL_PATH
                          ? server_find_name(srv->options, url + sizeof SERVER_MODEL_PATH - 1)
                          : NULL;
    bool has_key = srv->options->n_keys > 0 && find_key(exchange);
    bool has_place =
        exchange->visit == NULL || server_door_admit(&srv->door, exchange->visit, has_key);
    if (!has_place) {
        exchange->closes = true;
        server_fail(&exchange->error, 503, "overloaded", NULL,
                    "More than %u connections are open: try again later.", srv->door.most);
    } else if (!is_clear_head(exchange)) {
        exchange->closes = true;
    } else {
        exchange->closes = exchange->visit != NULL && exchange->visit->is_kept;
        check_head(exchange, method, has_key);
    }
    atomic_fetch_add(&srv->n_exchanges, 1);
    return exchange;
}

/* libmicrohttpd calls this when the head has arrived, for each piece of the body, and when the body
 * is complete. */
static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **state)
{
    server_exchange *exchange = *state;
    (void)version;
    if (exchange == NULL) {
        *state = exchange = new_exchange(user, connection, url, method);
        if (exchange == NULL) {
            return MHD_NO;
        }
        bool is_refused = exchange->closes && exchange->error.status != 0;
        return is_refused || refuses_length(exchange) ? server_answer_error(exchange) : MHD_YES;
    }
    if (*upload_size > 0) {
        bool goes_on = take_body(exchange, upload, *upload_size);
        *upload_size = 0;
        return goes_on ? MHD_YES : MHD_NO;
    }
    enum MHD_Result result =
        exchange->error.status != 0 ? server_answer_error(exchange) : server_route(exchange);
    server_forget_body(exchange);
    return result;
}

static void log_exchange(const server_exchange *exchange)
{
    char line[280];
    const server_options *options = exchange->srv->options;
    double seconds = (double)(server_now_ns() - exchange->began_ns) * 1e-9;
    if (options->log == NULL) {
        return;
    }
    int n = snprintf(line, sizeof line, "%s %u", exchange->path == NULL ? "-" : exchange->path,
                     exchange->status);
    if (exchange->reply.n_prompt > 0) {
        n += snprintf(line + n, sizeof line - (size_t)n,
                      ", prompt %zu (%zu cached), answer %" PRIu64, exchange->reply.n_prompt,
                      exchange->reply.n_cached, server_reply_written(&exchange->reply));
    }
    if (exchange->request.unknown[0] != '\0') {
        n += snprintf(line + n, sizeof line - (size_t)n, ", field '%s' unknown and left out",
                      exchange->request.unknown);
    }
    snprintf(line + n, sizeof line - (size_t)n, "%s, %.3f s",
             exchange->request.dropped[0] != '\0' ? ", keywords of a schema left out" : "",
             seconds);
    options->log(line, options->user);
}

static void on_completed(void *user, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode why)
{
    server_exchange *exchange = *state;
    server *srv = user;
    (void)connection;
    (void)why;
    if (exchange == NULL) {
        return;
    }
    log_exchange(exchange);
    server_forget_body(exchange);
    server_request_free(&exchange->request, &srv->queue);
    server_reply_free(&exchange->reply);
    cli_buffer_free(&exchange->events);
    cli_buffer_free(&exchange->reports.piece);
    server_memory_release(&srv->memory, &exchange->kept, exchange->kept);
    if (exchange->visit != NULL) {
        server_door_rest(&srv->door, exchange->visit);
    }
    free(exchange);
    *state = NULL;
    atomic_fetch_sub(&srv->n_exchanges, 1);
}

struct MHD_Daemon *server_http_start(server *srv)
{
    return MHD_start_daemon(MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                                MHD_USE_POLL | MHD_USE_ITC | MHD_USE_NO_LISTEN_SOCKET,
                            0, NULL, NULL, on_request, srv, MHD_OPTION_NOTIFY_COMPLETED,
                            on_completed, srv, MHD_OPTION_NOTIFY_CONNECTION, on_connection, srv,
                            MHD_OPTION_CONNECTION_LIMIT, srv->door.n_visits,
                            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)SERVER_SILENT_SECONDS,
                            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)SERVER_HEADER_BYTES,
                            MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
}
