/* SPDX-License-Identifier: MIT */
/* A double of libmicrohttpd and of the server's door and sockets: connections are fibers, each with
 * one thread's work of the server in it. It fails the run where a request is answered twice. */
#ifndef MOE_TESTS_VIRTUAL_HTTP_H
#define MOE_TESTS_VIRTUAL_HTTP_H

#include <microhttpd.h>

#include "runtime/server/server_http.h"
#include "tests/simulation/fibers.h"

enum { VH_MOST_CONNECTIONS = 8, VH_ANSWER_BYTES = 1 << 19 };

/* What a client does with its next request. */
typedef struct vh_request {
    const char *path;
    const char *body; /* NULL: GET */
    size_t size;
    uint32_t pieces;     /* in which the body comes */
    uint64_t leaves_ns;  /* after so long; SIM_NEVER: it stays */
    uint64_t slow_ns;    /* between two looks at what has come; 0: none */
    size_t most_at_once; /* bytes that it takes */
} vh_request;

/* What came of it. */
typedef struct vh_answer {
    bool left;       /* the client, or its connection was closed at the server's end */
    bool broken;     /* the server closed the connection, and the answer was not whole */
    unsigned status; /* 0: no answer */
    size_t size;
    bool cut; /* it was longer than VH_ANSWER_BYTES */
    const char *bytes;
} vh_answer;

typedef struct virtual_http {
    server *srv;    /* while it is served */
    bool is_open;   /* connections are accepted */
    bool has_ended; /* never again */
    uint32_t n_connections;
    uint32_t n_exchanges;
} virtual_http;
extern virtual_http the_http;

void vh_begin(void);
/* Waits until the server accepts connections; false: it does not any more. */
bool vh_await_open(void);
/* The server has returned. */
void vh_end(void);
/* A connection of this number, from an address that is its client's; false: it is not accepted. */
bool vh_connect(uint32_t number, uint64_t client);
/* Makes a request on it and takes the answer. */
vh_answer vh_ask(uint32_t number, const vh_request *request);
/* The connection is over. */
bool vh_has_left(uint32_t number);
void vh_disconnect(uint32_t number);
/* The exchange that the server has for the connection now, or NULL. */
const server_exchange *vh_exchange(uint32_t number);
/* The fiber sleeps. */
void vh_sleep(uint64_t ns);

#endif
