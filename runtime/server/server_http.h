/* SPDX-License-Identifier: MIT */
/* What a connection's thread keeps of one HTTP request, and the limits that it is under. */
#ifndef SERVER_HTTP_H
#define SERVER_HTTP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <microhttpd.h>
#include <moe/moe.h>

#include "cli_buffer.h"
#include "server.h"
#include "server_memory.h"
#include "server_reply.h"
#include "server_request.h"
#include "server_scheduler.h"

enum {
    SERVER_HEADER_BYTES = 32 << 10,
    SERVER_SILENT_SECONDS = 60, /* without a byte to or from a client */
    SERVER_BODY_SECONDS = 60,   /* until a body has come */
    SERVER_DRAIN_SECONDS = 60,  /* for answers that have begun when the server ends */
    SERVER_LOOK_MS = 100,       /* how often a waiting thread looks after its client */
    SERVER_ALIVE_SECONDS = 15,  /* a stream without text sends a comment this often */
};

typedef struct server {
    moe_engine *engine;
    const server_options *options;
    server_scheduler *scheduler;
    server_queue queue;
    server_tools tools;
    server_view view;
    moe_engine_info info;
    int64_t started;
    uint16_t port;
    _Atomic bool draining;  /* new requests are refused */
    _Atomic bool giving_up; /* answers are cut off */
    server_memory_account memory;
    _Atomic unsigned n_exchanges; /* requests that are not answered to the end */
} server;

/* One request and its answer. */
typedef struct server_exchange {
    server *srv;
    struct MHD_Connection *connection;
    int socket;
    const char *path; /* of the table of routes; NULL: unknown */
    uint64_t client;  /* a hash of the key, or of the address */
    uint64_t began_ns;
    cli_buffer body;
    uint64_t charged; /* to srv->memory */
    bool is_post;
    server_error error;
    server_request request;
    server_reply reply;
    unsigned status; /* that was answered */
    bool closes;     /* the connection, after the answer */
    /* Of a stream: events that wait to be sent. */
    cli_buffer events;
    size_t n_sent;
    uint32_t next; /* answer whose news come first */
    uint64_t last_event_ns;
    bool events_end;
} server_exchange;

uint64_t server_now_ns(void);

/* Answers with the buffer's text, which it takes. */
enum MHD_Result server_answer(server_exchange *exchange, unsigned status, const char *type,
                              cli_buffer *text);
enum MHD_Result server_answer_error(server_exchange *exchange);
/* Lets go of the body and its JSON, which nothing needs once it is prepared. What the prompt takes
 * stays charged. */
void server_forget_body(server_exchange *exchange);

/* The whole request is there: answers it. (server_routes.c) */
enum MHD_Result server_route(server_exchange *exchange);
/* The path as the table has it, *is_post its method; NULL: there is no such path. */
const char *server_find_path(const char *path, bool *is_post);

/* Submits the request's job and answers with its text. (server_stream.c) */
enum MHD_Result server_generate(server_exchange *exchange);

/* Starts and stops the HTTP side. (server_http.c) */
struct MHD_Daemon *server_http_start(server *srv, int listening);

#endif
