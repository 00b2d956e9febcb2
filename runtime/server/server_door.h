/* SPDX-License-Identifier: MIT */
/* Who comes in: accepts connections and gives them to libmicrohttpd, and closes those that only
 * take up room. One thread does both.
 *
 *   (accept) --> HEAD --(its head is there)--> WORK --(answered)--> IDLE --(the next head)--> WORK
 *                  |                                                 |
 *                  +------------> CLOSING <--------------------------+
 *
 * - A head has SERVER_HEAD_SECONDS, the next one of a connection SERVER_SILENT_SECONDS from the
 *   answer before it, however slowly its bytes come.
 * - When all places are taken a newcomer gets the place of one that has shown nothing yet: the
 *   oldest in HEAD, and where there are keys also IDLE without one, of the address that has most of
 *   them. If there is none, the newcomer is told that there is no place (503), unless it has a key:
 *   some places are kept for those.
 * - Where there are keys, an address has at most half of the places for connections that have not
 *   shown one.
 * - When the process has no descriptor left, nobody is accepted for a moment. */
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
    SERVER_KEPT_PLACES = 4,     /* for newcomers with a key, beyond the others */
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
    bool started;      /* libmicrohttpd has it */
    bool has_key;      /* it has shown one */
    bool is_extra;     /* there was no place for it */
    bool is_kept;      /* it has one of those for newcomers with a key */
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
    server_visit *visits; /* [n_visits]: places, and those that are told that there is none */
    uint32_t n_visits;
    server_door_counts counts;
} server_door;

/* False when memory is short. n_visits: places and more. */
bool server_door_open(server_door *door, int listening, uint32_t most, uint32_t n_visits,
                      bool has_keys);
/* Accepts from now on. False: no thread can be had. */
bool server_door_start(server_door *door, struct MHD_Daemon *daemon);
/* Stops accepting connections. */
void server_door_close(server_door *door);
/* Call when every connection is closed. */
void server_door_free(server_door *door);

/* Of libmicrohttpd's notifications: the connection of a socket, which is marked started; NULL:
 * none. And its end. */
server_visit *server_door_arrive(server_door *door, int socket);
void server_door_leave(server_door *door, server_visit *visit);
/* Call when the request's head has come. False: there is no place for the connection. */
bool server_door_admit(server_door *door, server_visit *visit, bool has_key);
/* Notes that the request is answered. */
void server_door_rest(server_door *door, server_visit *visit);

#endif
