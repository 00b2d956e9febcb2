/* SPDX-License-Identifier: MIT */
/* The workshop: one thread that prepares requests and writes answers (JSON, templates, tokens,
 * grammars), one at a time. So the memory for this is needed only once, however many connections
 * there are: it is planned (server_memory.h). The number of steps of a task is bounded, and a
 * task ends when its client leaves.
 *
 * Tasks run in the order in which they came, but a client does not get two tasks in a row while
 * others wait. */
#ifndef SERVER_WORKSHOP_H
#define SERVER_WORKSHOP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <moe/allowance.h>

struct server_exchange;

typedef bool (*server_work)(struct server_exchange *exchange);

/* A task, for which a connection's thread waits. */
typedef struct server_task {
    server_work work;
    struct server_exchange *exchange; /* passed to work */
    moe_allowance *allowance;         /* limits of the work; the workshop sets them */
    uint64_t client;
    int socket;                    /* shows whether the client has left */
    const _Atomic bool *giving_up; /* true: the server is giving up */
    /* Used by the workshop. */
    _Atomic bool left;
    bool runs, done, result; /* under the workshop's lock */
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

/* Starts the thread. bytes: the most memory that a task may take. False: the thread cannot be
 * created. */
bool server_workshop_start(server_workshop *workshop, uint64_t bytes);
/* Ends the thread. No task may be waiting. */
void server_workshop_end(server_workshop *workshop);

/* Has the workshop's thread do the work, and waits for it. Returns false if the work did, or if the
 * client left or the server gave up before it was done. */
bool server_workshop_do(server_workshop *workshop, server_task *task);

#endif
