/* SPDX-License-Identifier: MIT */
/* HTTP by libmicrohttpd, a thread for each connection: such a thread may wait for its answer. */
#include "server_http.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server_socket.h"

/* ---- Who may ask ---- */

/* Takes as long for a wrong key as for the right one. */
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

/* OpenAI's clients send "Authorization: Bearer KEY", Anthropic's "x-api-key: KEY". A key is a
 * client: its number is the client's name. */
static bool has_key(server_exchange *exchange)
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

/* Without keys an address is a client. */
static uint64_t hash_address(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *address = info == NULL ? NULL : info->client_addr;
    const unsigned char *bytes = NULL;
    size_t size = 0;
    if (address != NULL && address->sa_family == AF_INET) {
        bytes =
            (const unsigned char *)&((const struct sockaddr_in *)(const void *)address)->sin_addr;
        size = sizeof(struct in_addr);
    } else if (address != NULL && address->sa_family == AF_INET6) {
        bytes =
            (const unsigned char *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
        size = 8; /* the network: a client may have many addresses in it */
    }
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    }
    return hash;
}

/* Without keys, a page of a foreign site in a browser of this machine must not reach the server,
 * neither by a name of its own that leads here (Host) nor by a request across sites (Origin). */
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

/* What can be said before the body has come. */
static void check_head(server_exchange *exchange, const char *method)
{
    server *srv = exchange->srv;
    server_error *error = &exchange->error;
    /* The page asks for the key itself. */
    bool is_open = exchange->path != NULL &&
                   (strcmp(exchange->path, "/health") == 0 || strcmp(exchange->path, "/") == 0);
    bool posts = strcmp(method, "POST") == 0;
    if (srv->options->n_keys > 0 && !is_open && !has_key(exchange)) {
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

/* A refusal that need not wait for a body that is too large anyway. */
static bool refuses_length(server_exchange *exchange)
{
    const char *length = header(exchange, "Content-Length");
    return length != NULL && strtoull(length, NULL, 10) > exchange->srv->memory.most_body &&
           !fail_size(exchange);
}

/* Keeps a piece of the body, unless the request is refused already. False: hang up. */
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
    if (server_memory_charge(&srv->memory, &exchange->charged, size * SERVER_BODY_COPIES,
                             &exchange->error) &&
        !cli_buffer_append(&exchange->body, bytes, size)) {
        server_fail(&exchange->error, 503, "overloaded", NULL, "out of memory for the request");
    }
    return true;
}

/* ---- Connections ---- */

/* Marks a connection that comes while as many as the plan has room for are open: it gets an answer
 * that says so, and is closed. */
static void on_connection(void *user, struct MHD_Connection *connection, void **mark,
                          enum MHD_ConnectionNotificationCode event)
{
    server_memory_account *memory = &((server *)user)->memory;
    (void)connection;
    if (event == MHD_CONNECTION_NOTIFY_CLOSED) {
        atomic_fetch_sub(&memory->connections, 1);
    } else if (atomic_fetch_add(&memory->connections, 1) >= memory->most_connections) {
        *mark = memory;
    }
}

static bool is_too_many(struct MHD_Connection *connection)
{
    return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)
               ->socket_context != NULL;
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
    exchange->client = hash_address(connection);
    exchange->path = server_find_path(url, &exchange->is_post);
    if (is_too_many(connection)) {
        exchange->closes = true;
        server_fail(&exchange->error, 503, "overloaded", NULL,
                    "More than %u connections are open: try again later.",
                    srv->memory.most_connections);
    } else {
        check_head(exchange, method);
    }
    atomic_fetch_add(&srv->n_exchanges, 1);
    return exchange;
}

/* Called when the headers have come, for each piece of the body, and at its end. */
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
        return exchange->closes || refuses_length(exchange) ? server_answer_error(exchange)
                                                            : MHD_YES;
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
    char line[200];
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
    snprintf(line + n, sizeof line - (size_t)n, ", %.3f s", seconds);
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
    server_memory_release(&srv->memory, &exchange->charged, exchange->charged);
    free(exchange);
    *state = NULL;
    atomic_fetch_sub(&srv->n_exchanges, 1);
}

struct MHD_Daemon *server_http_start(server *srv, int listening)
{
    const unsigned most = srv->memory.most_connections + SERVER_REFUSED_CONNECTIONS;
    return MHD_start_daemon(
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL |
            MHD_USE_ITC,
        0, NULL, NULL, on_request, srv, MHD_OPTION_LISTEN_SOCKET, listening,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, srv, MHD_OPTION_NOTIFY_CONNECTION, on_connection,
        srv, MHD_OPTION_CONNECTION_LIMIT, most, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)SERVER_SILENT_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)SERVER_HEADER_BYTES, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
}
