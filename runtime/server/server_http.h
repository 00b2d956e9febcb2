/* SPDX-License-Identifier: MIT */
/* The state of one HTTP request and its answer, held by the connection's thread, and the limits for
 * requests. */
#ifndef SERVER_HTTP_H
#define SERVER_HTTP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <microhttpd.h>
#include <moe/moe.h>

#include "cli_buffer.h"
#include "server.h"
#include "server_clock.h"
#include "server_door.h"
#include "server_logprobs.h"
#include "server_kept.h"
#include "server_memory.h"
#include "server_reply.h"
#include "server_request.h"
#include "server_scheduler.h"
#include "server_workshop.h"

enum {
    SERVER_HEADER_BYTES = 32 << 10,
    SERVER_BODY_SECONDS = 60,  /* time limit for receiving a body */
    SERVER_DRAIN_SECONDS = 60, /* at the end of the server: time limit for answers that have
                                * begun */
    SERVER_LOOK_MS = 100,      /* interval at which a waiting thread checks whether its client has
                                * left */
    SERVER_ALIVE_SECONDS = 15, /* a stream without text sends a comment this often */
};

typedef struct server {
    moe_engine *engine;
    const server_options *options;
    server_scheduler *scheduler;
    server_workshop workshop;
    server_door door;
    server_queue queue;
    server_tools tools;
    server_view view;
    moe_engine_info info;
    int64_t started;
    uint16_t port;
    _Atomic bool draining;  /* new requests are refused */
    _Atomic bool giving_up; /* answers are cut off */
    server_memory_account memory;
    server_kept kept;
    _Atomic uint32_t dropped;     /* keywords dropped in any request, as in server_dropped_bits() */
    _Atomic unsigned n_exchanges; /* requests whose answers are not complete */
} server;

/* State of sending a whole answer that contains reports on tokens. Each report is turned into JSON
 * only when it is sent (server_logprobs.h). */
typedef struct server_reports {
    size_t mark, mark_end; /* the next mark in the JSON, or the end */
    uint32_t index;        /* the answer to which the reports belong */
    bool inside, done;
    server_logprobs_cursor cursor;
    cli_buffer piece;
    size_t sent; /* bytes of the piece that were sent */
} server_reports;

/* The path of the endpoint that describes one model; the model's name follows. */
#define SERVER_MODEL_PATH "/v1/models/"

/* One request and its answer. */
typedef struct server_exchange {
    server *srv;
    struct MHD_Connection *connection;
    server_visit *visit; /* of the door; NULL: none */
    int socket;
    const char *path; /* path in the table of routes; NULL: unknown path */
    uint64_t client;  /* a hash of the key, or of the address */
    uint64_t began_ns;
    cli_buffer body;
    uint64_t charged; /* bytes charged to srv->memory: the body, later the answer */
    uint64_t kept;    /* bytes charged to srv->memory: the prompt, and the jobs' other data */
    bool is_post;
    const char
        *named; /* for SERVER_MODEL_PATH: the server's model with the name in the path, or NULL */
    server_error error;
    server_request request;
    server_reply reply;
    unsigned status; /* of the answer */
    bool closes;     /* the connection is closed after the answer */
    /* The text of the answer. In a stream: events that have not been sent yet. */
    cli_buffer events;
    const char *type; /* content type of the text; NULL: JSON */
    size_t n_sent;
    server_reports reports;
    uint64_t answer_charged; /* the part of `kept` for the answers' text */
    uint32_t next;           /* the answer whose news are taken first */
    uint64_t last_event_ns;
    bool events_end;
} server_exchange;

/* Sends the text as the answer; takes the buffer over and charges its memory to the request. */
enum MHD_Result server_answer(server_exchange *exchange, unsigned status, const char *type,
                              cli_buffer *text);
enum MHD_Result server_answer_error(server_exchange *exchange);
/* Has the workshop's thread run `work` within the limits exchange->request.allowance, and waits.
 * Returns false and sets exchange->error if this fails, if the client leaves, or if the server
 * shuts down. */
bool server_in_workshop(server_exchange *exchange, server_work work);
void server_add_headers(server_exchange *exchange, struct MHD_Response *response, unsigned status,
                        const char *type);
/* Frees the request's body and its parsed JSON, which are not needed once the request is
 * prepared. */
void server_forget_body(server_exchange *exchange);

/* Handles a request whose body has arrived completely. (server_routes.c) */
enum MHD_Result server_route(server_exchange *exchange);
/* Returns the entry of the table of paths that equals this path, and whether its method is POST.
 * NULL: there is no such path. */
const char *server_find_path(const char *path, bool *is_post);

/* Submits the request's job and answers with its text. (server_stream.c) */
enum MHD_Result server_generate(server_exchange *exchange);

/* Starts and stops the HTTP side. (server_http.c) */
struct MHD_Daemon *server_http_start(server *srv);

#endif
