/* SPDX-License-Identifier: MIT */
/* One thread takes requests apart and puts answers together, one at a time: JSON, templates,
 * tokens, grammars. So what that takes is there once, whatever the number of connections: its
 * memory is planned (server_memory.h), its steps are bounded, and a client that leaves ends its
 * own.
 *
 * Whose turn it is: the first that waits, but no client comes twice in a row while others wait. */
#ifndef SERVER_WORKSHOP_H
#define SERVER_WORKSHOP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <moe/allowance.h>

struct server_exchange;

typedef bool (*server_work)(struct server_exchange *exchange);

/* What a connection's thread waits for. */
typedef struct server_task {
    server_work work;
    struct server_exchange *exchange; /* passed to work */
    moe_allowance *allowance;         /* of the work; the workshop sets its bounds */
    uint64_t client;
    int socket;                    /* tells whether the client has left */
    const _Atomic bool *giving_up; /* the server is */
    /* Of the workshop. */
    _Atomic bool left;
    bool runs, done, result; /* under its lock */
    struct server_task *next;
} server_task;

typedef struct server_workshop_counts {
    uint64_t n_steps, n_stopped;     /* of all tasks */
    uint64_t most_steps, most_bytes; /* of one */
} server_workshop_counts;

typedef struct server_workshop {
    uint64_t bytes; /* set at the start */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    /* Under the lock. */
    pthread_cond_t coming; /* a task, or the end */
    pthread_cond_t done;   /* a task is */
    server_task *first;    /* in the order of their coming */
    uint64_t last_client;
    bool ending;
    server_workshop_counts counts;
} server_workshop;

/* bytes: the most for one task. False: no thread can be had. */
bool server_workshop_start(server_workshop *workshop, uint64_t bytes);
/* Ends the workshop. Call it when nobody waits for a task any more. */
void server_workshop_end(server_workshop *workshop);

/* Has the workshop's thread do the work, and waits for it. False if that is, or if the client left
 * or the server gave up before it was done. */
bool server_workshop_do(server_workshop *workshop, server_task *task);

#endif
