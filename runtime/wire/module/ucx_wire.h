/* SPDX-License-Identifier: MIT */
/* A wire over UCX: active messages over TCP, shared memory or RDMA, whichever UCX finds best. One
 * thread drives UCX (ucx_thread.c); the wire's user gives it commands and takes events from it
 * (wire_ucx.c). A peer is an endpoint; UCX reports each endpoint that fails. */
#ifndef MOE_WIRE_UCX_WIRE_H
#define MOE_WIRE_UCX_WIRE_H

#include <pthread.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>

#include "runtime/wire/wire.h"

#define MESSAGE_ID 1u
/* The most messages that wait to be taken; the sender of a further one is lost. */
#define MOST_WAITING 1024u
#define CLOSING_NS   (2 * UINT64_C(1000000000))

typedef struct ucx_wire ucx_wire;

typedef struct wire_peer {
    ucx_wire *wire;
    uint64_t number; /* 0: this place is free */
    ucp_ep_h endpoint;
    size_t most_bytes;
    bool is_lost;     /* its endpoint must be closed */
    uint32_t n_holds; /* sends, receptions and a closing that have not ended */
} wire_peer;

typedef enum command_kind { COMMAND_JOIN, COMMAND_SEND, COMMAND_DROP } command_kind;

typedef struct wire_command {
    struct wire_command *next;
    command_kind kind;
    uint64_t peer;
    uint8_t *bytes; /* of COMMAND_SEND */
    size_t n_bytes;
    struct sockaddr_storage address; /* of COMMAND_JOIN */
    socklen_t address_bytes;
} wire_command;

typedef struct queued_event {
    struct queued_event *next;
    moe_wire_event event;
} queued_event;

struct ucx_wire {
    moe_wire base;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_listener_h listener;
    int ready_fd;      /* of the worker */
    uint64_t delay_ns; /* of events; set at the start */
    pthread_t thread;
    bool has_thread;
    int wake_fds[2];                      /* a pipe: what wake() writes and next() reads */
    int event_fds[2];                     /* a pipe that says that an event has come */
    wire_peer peers[MOE_WIRE_MOST_PEERS]; /* used by the thread only */
    uint32_t n_closing;                   /* used by the thread only: endpoints that are being
                                           * closed */

    pthread_mutex_t lock; /* protects the fields below */
    wire_command *commands, **last_command;
    queued_event *events, **last_event;
    uint32_t n_events;
    uint64_t n_peers; /* the last number given */
    struct {
        uint64_t number;
        size_t most_bytes;
    } limits[MOE_WIRE_MOST_PEERS]; /* calls of allow() that the thread has not taken yet */
    uint32_t n_limits;
    bool stops;
};

/* Queues an event, from any thread. Takes the message, if there is one. */
void moe_ucx_tell(ucx_wire *w, moe_wire_event_kind kind, uint64_t peer, uint8_t *message,
                  size_t n_bytes, const char *reason);
void moe_ucx_wake_fd(int fd);
uint64_t moe_ucx_new_number(ucx_wire *w);
/* Called by UCX on the thread. */
void moe_ucx_on_join(ucp_conn_request_h request, void *arg);
ucs_status_t moe_ucx_on_message(void *arg, const void *header, size_t header_bytes, void *data,
                                size_t n_bytes, const ucp_am_recv_param_t *param);
/* The thread's main function. arg: the wire. */
void *moe_ucx_main(void *arg);

#endif
