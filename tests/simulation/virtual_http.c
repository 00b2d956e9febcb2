/* SPDX-License-Identifier: MIT */
#include "tests/simulation/virtual_http.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/server/server_socket.h"

#define MOST_BLOCK 16384u

typedef enum MHD_Result (*take_request)(void *user, struct MHD_Connection *connection,
                                        const char *url, const char *method, const char *version,
                                        const char *upload, size_t *upload_size, void **state);

struct MHD_Response {
    uint32_t references;
    char *bytes;
    size_t size;
    bool owns;
    MHD_ContentReaderCallback read;
    void *user;
};

struct MHD_Connection {
    bool is_open, left, answered;
    uint32_t round; /* of requests: a client that leaves, leaves one */
    uint64_t client;
    server_visit visit;
    void *context; /* of the connection */
    void *exchange;
    unsigned status;
    struct MHD_Response *response;
    union MHD_ConnectionInfo info;
    char bytes[VH_ANSWER_BYTES]; /* what its client has got */
};

struct MHD_Daemon {
    take_request take;
    void *user;
    MHD_RequestCompletedCallback completed;
    void *completed_user;
    MHD_NotifyConnectionCallback notify;
    void *notify_user;
};

int __wrap_poll(struct pollfd *fds, nfds_t n, int milliseconds);

virtual_http the_http;
static struct MHD_Daemon daemon_now;
static struct MHD_Connection connections[VH_MOST_CONNECTIONS];

void vh_begin(void)
{
    the_http = (virtual_http){.srv = NULL};
    for (uint32_t i = 0; i < VH_MOST_CONNECTIONS; i++) {
        memset(&connections[i], 0, offsetof(struct MHD_Connection, bytes));
    }
}

/* ---- Time ---- */

static void wake(void *user, uint32_t argument)
{
    (void)argument;
    sim_wake(user, true);
}

void vh_sleep(uint64_t ns)
{
    const uint64_t end = sim_now_ns() + ns;
    char place;
    sim_event(end, wake, &place, 0);
    while (sim_now_ns() < end) {
        (void)sim_block(&place, SIM_NEVER);
    }
}

/* The server's own waits: no descriptors. */
int __wrap_poll(struct pollfd *fds, nfds_t n, int milliseconds)
{
    const uint64_t end = sim_now_ns() + (uint64_t)milliseconds * 1000000u;
    if (n > 0 || !sim_is_running()) {
        sim_fail("poll() of descriptors");
    }
    while (sim_now_ns() < end) {
        (void)sim_block(&fds, end);
    }
    return 0;
}

/* ---- Sockets and the door ---- */

int server_listen(const char *host, uint16_t *port, bool may_be_public, char *error,
                  size_t error_size)
{
    (void)host;
    (void)may_be_public;
    (void)error;
    (void)error_size;
    *port = 8080;
    return 1 << 20; /* no descriptor: closing it does nothing */
}

bool server_is_loopback_name(const char *host)
{
    return strcmp(host, "localhost") == 0;
}

bool server_peer_left(int socket)
{
    sim_point();
    return connections[socket].left;
}

bool server_door_open(server_door *door, int listening, uint32_t most, uint32_t n_visits,
                      bool has_keys)
{
    memset(door, 0, sizeof *door);
    door->listening = listening;
    door->most = most;
    door->n_visits = n_visits;
    door->has_keys = has_keys;
    pthread_mutex_init(&door->lock, NULL);
    return true;
}

bool server_door_start(server_door *door, struct MHD_Daemon *daemon)
{
    door->daemon = daemon;
    the_http.is_open = true;
    sim_wake(&the_http, true);
    return true;
}

void server_door_close(server_door *door)
{
    (void)door;
    the_http.is_open = false;
}

/* Nobody has anything any more. */
void server_door_free(server_door *door)
{
    uint64_t taken = the_http.srv != NULL ? atomic_load(&the_http.srv->memory.taken) : 0;
    if (taken != 0) {
        sim_fail("requests keep %llu bytes", (unsigned long long)taken);
    }
    pthread_mutex_destroy(&door->lock);
}

server_visit *server_door_arrive(server_door *door, int socket)
{
    (void)door;
    connections[socket].visit =
        (server_visit){.socket = socket, .started = true, .address = connections[socket].client};
    return &connections[socket].visit;
}

void server_door_leave(server_door *door, server_visit *visit)
{
    (void)door;
    visit->state = SERVER_VISIT_NONE;
}

bool server_door_admit(server_door *door, server_visit *visit, bool has_key)
{
    (void)door;
    visit->state = SERVER_VISIT_WORK;
    visit->has_key = has_key;
    return true;
}

void server_door_rest(server_door *door, server_visit *visit)
{
    (void)door;
    visit->state = SERVER_VISIT_IDLE;
}

/* ---- libmicrohttpd ---- */

struct MHD_Daemon *MHD_start_daemon(unsigned flags, uint16_t port, MHD_AcceptPolicyCallback accept,
                                    void *accept_user, MHD_AccessHandlerCallback take, void *user,
                                    ...)
{
    va_list list;
    (void)flags;
    (void)port;
    (void)accept;
    (void)accept_user;
    daemon_now = (struct MHD_Daemon){.take = take, .user = user};
    va_start(list, user);
    for (int option = va_arg(list, int); option != MHD_OPTION_END; option = va_arg(list, int)) {
        if (option == MHD_OPTION_NOTIFY_COMPLETED) {
            daemon_now.completed = va_arg(list, MHD_RequestCompletedCallback);
            daemon_now.completed_user = va_arg(list, void *);
        } else if (option == MHD_OPTION_NOTIFY_CONNECTION) {
            daemon_now.notify = va_arg(list, MHD_NotifyConnectionCallback);
            daemon_now.notify_user = va_arg(list, void *);
        } else if (option == MHD_OPTION_CONNECTION_MEMORY_LIMIT) {
            (void)va_arg(list, size_t);
        } else {
            (void)va_arg(list, int);
        }
    }
    va_end(list);
    the_http.srv = user;
    return &daemon_now;
}

/* Shuts the connections, and waits for their threads. */
void MHD_stop_daemon(struct MHD_Daemon *daemon)
{
    (void)daemon;
    for (uint32_t i = 0; i < VH_MOST_CONNECTIONS; i++) {
        connections[i].left |= connections[i].is_open;
        sim_wake(&connections[i], true);
    }
    while (the_http.n_connections > 0) {
        (void)sim_block(&the_http.n_connections, SIM_NEVER);
    }
}

const union MHD_ConnectionInfo *MHD_get_connection_info(struct MHD_Connection *connection,
                                                        enum MHD_ConnectionInfoType type, ...)
{
    if (type == MHD_CONNECTION_INFO_SOCKET_CONTEXT) {
        connection->info.socket_context = connection->context;
    } else {
        connection->info.connect_fd = (int)(connection - connections);
    }
    return &connection->info;
}

const char *MHD_lookup_connection_value(struct MHD_Connection *connection, enum MHD_ValueKind kind,
                                        const char *key)
{
    (void)connection;
    (void)kind;
    return strcmp(key, "Host") == 0 ? "localhost" : NULL;
}

int MHD_get_connection_values_n(struct MHD_Connection *connection, enum MHD_ValueKind kind,
                                MHD_KeyValueIteratorN iterator, void *user)
{
    (void)connection;
    return iterator(user, kind, "Host", 4, "localhost", 9) == MHD_YES;
}

static struct MHD_Response *new_response(void)
{
    struct MHD_Response *response = calloc(1, sizeof *response);
    if (response != NULL) {
        response->references = 1;
    }
    return response;
}

struct MHD_Response *MHD_create_response_from_buffer(size_t size, void *buffer,
                                                     enum MHD_ResponseMemoryMode mode)
{
    struct MHD_Response *response = new_response();
    if (response != NULL) {
        response->bytes = buffer;
        response->size = size;
        response->owns = mode == MHD_RESPMEM_MUST_FREE;
    }
    return response;
}

struct MHD_Response *MHD_create_response_from_callback(uint64_t size, size_t block_size,
                                                       MHD_ContentReaderCallback read, void *user,
                                                       MHD_ContentReaderFreeCallback release)
{
    (void)size;
    (void)block_size;
    (void)release;
    struct MHD_Response *response = new_response();
    if (response != NULL) {
        response->read = read;
        response->user = user;
    }
    return response;
}

enum MHD_Result MHD_add_response_header(struct MHD_Response *response, const char *name,
                                        const char *content)
{
    (void)response;
    (void)name;
    (void)content;
    return MHD_YES;
}

enum MHD_Result MHD_queue_response(struct MHD_Connection *connection, unsigned status,
                                   struct MHD_Response *response)
{
    if (connection->answered) {
        sim_fail("connection %d: a request is answered twice", (int)(connection - connections));
    }
    connection->answered = true;
    connection->status = status;
    connection->response = response;
    response->references++;
    return MHD_YES;
}

void MHD_destroy_response(struct MHD_Response *response)
{
    if (--response->references == 0) {
        if (response->owns) {
            free(response->bytes);
        }
        free(response);
    }
}

/* ---- Clients ---- */

bool vh_await_open(void)
{
    while (!the_http.is_open && !the_http.has_ended) {
        (void)sim_block(&the_http, SIM_NEVER);
    }
    return the_http.is_open;
}

void vh_end(void)
{
    the_http.srv = NULL;
    the_http.is_open = false;
    the_http.has_ended = true;
    sim_wake(&the_http, true);
}

const server_exchange *vh_exchange(uint32_t number)
{
    return connections[number].exchange;
}

bool vh_connect(uint32_t number, uint64_t client)
{
    struct MHD_Connection *c = &connections[number];
    sim_point();
    if (!the_http.is_open) {
        return false;
    }
    c->is_open = true;
    c->left = false;
    c->client = client;
    the_http.n_connections++;
    daemon_now.notify(daemon_now.notify_user, c, &c->context, MHD_CONNECTION_NOTIFY_STARTED);
    return true;
}

void vh_disconnect(uint32_t number)
{
    struct MHD_Connection *c = &connections[number];
    daemon_now.notify(daemon_now.notify_user, c, &c->context, MHD_CONNECTION_NOTIFY_CLOSED);
    c->is_open = false;
    the_http.n_connections--;
    sim_wake(&the_http.n_connections, true);
}

bool vh_has_left(uint32_t number)
{
    return connections[number].left;
}

static void leave(void *user, uint32_t round)
{
    struct MHD_Connection *c = user;
    if (c->round == round) {
        c->left = true;
        sim_wake(c, true);
    }
}

/* The client looks away; it ends when the connection does. */
static void pause_client(struct MHD_Connection *c, uint64_t ns)
{
    const uint64_t end = sim_now_ns() + ns;
    sim_event(end, wake, c, 0);
    while (sim_now_ns() < end && !c->left) {
        (void)sim_block(c, SIM_NEVER);
    }
}

/* Head and body; false: the server hangs up. */
static bool send_request(struct MHD_Connection *c, const vh_request *r)
{
    const char *method = r->body == NULL ? "GET" : "POST";
    size_t none = 0;
    bool goes_on = daemon_now.take(daemon_now.user, c, r->path, method, "HTTP/1.1", NULL, &none,
                                   &c->exchange) == MHD_YES;
    for (size_t at = 0; goes_on && !c->answered && at < r->size && !c->left;) {
        size_t piece = (r->size + r->pieces - 1) / r->pieces;
        piece = piece < r->size - at ? piece : r->size - at;
        size_t left = piece;
        goes_on = daemon_now.take(daemon_now.user, c, r->path, method, "HTTP/1.1", r->body + at,
                                  &left, &c->exchange) == MHD_YES;
        at += piece;
        sim_point();
        if (r->slow_ns > 0 && at < r->size) {
            pause_client(c, r->slow_ns);
        }
    }
    if (!goes_on || c->answered || c->left) {
        return goes_on;
    }
    return daemon_now.take(daemon_now.user, c, r->path, method, "HTTP/1.1", NULL, &none,
                           &c->exchange) == MHD_YES;
}

static void receive(struct MHD_Connection *c, const vh_request *r, vh_answer *answer)
{
    const struct MHD_Response *response = c->response;
    answer->status = c->status;
    answer->bytes = response->read == NULL ? response->bytes : c->bytes;
    if (response->read == NULL) {
        answer->size = response->size;
        answer->bytes = memcpy(c->bytes, response->bytes, response->size);
        return;
    }
    for (;;) {
        size_t room = VH_ANSWER_BYTES - answer->size;
        size_t most = r->most_at_once < MOST_BLOCK ? r->most_at_once : MOST_BLOCK;
        most = most < room ? most : room;
        if (most == 0) {
            sim_fail("an answer of more than %d bytes", VH_ANSWER_BYTES);
        }
        ssize_t n =
            c->left ? MHD_CONTENT_READER_END_WITH_ERROR
                    : response->read(response->user, answer->size, c->bytes + answer->size, most);
        if (n == MHD_CONTENT_READER_END_OF_STREAM) {
            return;
        }
        if (n <= 0) {
            answer->broken = true;
            return;
        }
        answer->size += (size_t)n;
        if (r->slow_ns > 0) {
            pause_client(c, r->slow_ns);
        }
    }
}

vh_answer vh_ask(uint32_t number, const vh_request *r)
{
    struct MHD_Connection *c = &connections[number];
    vh_answer answer = {.status = 0};
    c->round++;
    c->answered = false;
    c->response = NULL;
    if (r->leaves_ns != SIM_NEVER) {
        sim_event(sim_now_ns() + r->leaves_ns, leave, c, c->round);
    }
    the_http.n_exchanges++;
    bool goes_on = send_request(c, r);
    if (goes_on && c->response != NULL) {
        receive(c, r, &answer);
    } else if (goes_on && !c->left) {
        sim_fail("connection %u: a request without an answer", number);
    } else {
        answer.broken = true;
    }
    answer.left = c->left;
    c->left |= answer.broken;
    if (c->exchange != NULL) {
        daemon_now.completed(daemon_now.completed_user, c, &c->exchange,
                             answer.broken ? MHD_REQUEST_TERMINATED_WITH_ERROR
                                           : MHD_REQUEST_TERMINATED_COMPLETED_OK);
    }
    if (c->response != NULL) {
        MHD_destroy_response(c->response);
        c->response = NULL;
    }
    the_http.n_exchanges--;
    c->round++;
    return answer;
}
