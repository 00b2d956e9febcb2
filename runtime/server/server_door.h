/* SPDX-License-Identifier: MIT */
/* Accepts connections and passes them to libmicrohttpd, and closes connections that only occupy a
 * place. One thread does both. The states of a connection ("head": request line and headers):
 *
 *   (accept) --> HEAD --(head received)--> WORK --(answered)--> IDLE --(next head)--> WORK
 *                  |                                              |
 *                  +------(too slow, or evicted)--> CLOSING <-----+
 *
 * - Time limits: SERVER_HEAD_SECONDS for the first head, and SERVER_SILENT_SECONDS from an answer
 * to the end of the next head, even if bytes keep coming.
 *
 * - If all places are taken, a new connection gets the place of one that has not asked for anything
 * yet: the oldest in HEAD, or, if the server has keys, in IDLE without a key. It is taken from the
 * address with the most such connections. If there is none, the new connection gets status 503. A
 * few places are kept for clients with a key.
 *
 * - If the server has keys, the connections of one address that have not sent a key get at most
 * half of the places.
 *
 * - If the process has no file descriptor left, the door stops accepting for a moment. */
#ifndef SERVER_DOOR_H
#define SERVER_DOOR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <microhttpd.h>

enum {
    SERVER_HEAD_SECONDS = 10,
    SERVER_SILENT_SECONDS = 60, /* without a byte to or from a client */
    SERVER_KEPT_PLACES = 4,     /* further places, for new clients with a key */
};

typedef enum server_visit_state {
    SERVER_VISIT_NONE,
    SERVER_VISIT_HEAD,
    SERVER_VISIT_WORK,
    SERVER_VISIT_IDLE,
    SERVER_VISIT_CLOSING
} server_visit_state;

/* A connection. */
typedef struct server_visit {
    server_visit_state state;
    int socket;
    uint64_t address;  /* a hash */
    uint64_t since_ns; /* in this state */
    bool started;      /* libmicrohttpd has the connection */
    bool has_key;      /* the client has sent a valid key */
    bool is_extra;     /* it has no place, and will only be told so */
    bool is_kept;      /* it has one of the SERVER_KEPT_PLACES */
} server_visit;

typedef struct server_door_counts {
    uint64_t n_evicted, n_late, n_paused;
} server_door_counts;

typedef struct server_door {
    int listening;
    struct MHD_Daemon *daemon;
    uint32_t most; /* places */
    bool has_keys;
    pthread_t thread;
    bool started;
    _Atomic bool closed;
    pthread_mutex_t lock;
    /* Under the lock. */
    server_visit *visits; /* [n_visits]: connections with a place, and extra ones */
    uint32_t n_visits;
    server_door_counts counts;
} server_door;

/* n_visits: connections that can exist at once, including those that are only told that there is no
 * place; it is larger than `most`, the number of places. False: memory is short. */
bool server_door_open(server_door *door, int listening, uint32_t most, uint32_t n_visits,
                      bool has_keys);
/* Starts the thread that accepts connections. False: the thread cannot be created. */
bool server_door_start(server_door *door, struct MHD_Daemon *daemon);
/* Stops accepting connections. */
void server_door_close(server_door *door);
/* Frees the door. All connections must be closed. */
void server_door_free(server_door *door);

/* libmicrohttpd reports a new connection by its socket: marks the visit as started and returns it,
 * or NULL if no visit has this socket. server_door_leave() is called when the connection has
 * ended. */
server_visit *server_door_arrive(server_door *door, int socket);
void server_door_leave(server_door *door, server_visit *visit);
/* Call when a request's head is complete. False: there is no place for the connection. */
bool server_door_admit(server_door *door, server_visit *visit, bool has_key);
/* Call when a request is answered: the connection is idle until its next request. */
void server_door_rest(server_door *door, server_visit *visit);

#endif
