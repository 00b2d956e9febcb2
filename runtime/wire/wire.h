/* SPDX-License-Identifier: MIT */
/* A wire carries messages between processes, on one machine or several. Each end numbers the
 * others, its peers, and never uses a number twice. Messages of a peer arrive whole, at most once,
 * and in any order; after a peer was lost or dropped, none of its messages arrives.
 *
 * Only one thread uses a wire, except for wake(). Only next() waits for peers, up to its time-out.
 * Messages from peers are not trusted (worker_messages.h checks them). */
#ifndef MOE_WIRE_WIRE_H
#define MOE_WIRE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>

#define MOE_WIRE_MOST_PEERS 64u
#define MOE_WIRE_MAC_BYTES  32u

typedef struct moe_wire moe_wire;

typedef enum moe_wire_event_kind {
    MOE_WIRE_JOINED,  /* a peer has connected to this end */
    MOE_WIRE_MESSAGE, /* from a peer */
    MOE_WIRE_LOST     /* the peer is gone, and its number with it */
} moe_wire_event_kind;

typedef struct moe_wire_event {
    moe_wire_event_kind kind;
    uint64_t peer;
    uint8_t *message; /* of MOE_WIRE_MESSAGE: [n_bytes], which the receiver frees */
    size_t n_bytes;
    uint64_t time_ns; /* when the event came, by moe_now_ns() */
    char reason[64];  /* of MOE_WIRE_LOST: why */
} moe_wire_event;

typedef struct moe_wire_ops {
    /* Connects to an end that listens. If nothing listens there, MOE_WIRE_LOST comes later, or no
     * event at all. address: a sockaddr_in or sockaddr_in6 of n_bytes. */
    int (*join)(moe_wire *wire, const void *address, size_t n_bytes, uint64_t *peer,
                moe_error *err);
    /* Sends a message and frees it with free(), also on failure. If the message cannot be sent, the
     * peer is lost. */
    void (*send)(moe_wire *wire, uint64_t peer, uint8_t *message, size_t n_bytes);
    /* Sets the largest message that is accepted from a peer, at first MOE_WIRE_FIRST_BYTES. A peer
     * that sends a larger one is lost. */
    void (*allow)(moe_wire *wire, uint64_t peer, size_t most_bytes);
    /* Disconnects a peer; none of its events comes any more. */
    void (*drop)(moe_wire *wire, uint64_t peer);
    /* Takes the next event; false: no event came in time, or wake() was called. */
    bool (*next)(moe_wire *wire, uint64_t timeout_ns, moe_wire_event *event);
    /* Makes the current next() return, or the coming one. May be called from any thread and from
     * signal handlers. */
    void (*wake)(moe_wire *wire);
    /* Disconnects all peers and frees the wire. */
    void (*close)(moe_wire *wire);
} moe_wire_ops;

#define MOE_WIRE_FIRST_BYTES 4096u

/* The first member of every wire. */
struct moe_wire {
    const moe_wire_ops *ops;
    /* HMAC-SHA256 of n bytes. */
    void (*mac)(const uint8_t *key, size_t key_bytes, const uint8_t *data, size_t n,
                uint8_t mac[MOE_WIRE_MAC_BYTES]);
    /* Fills in n unpredictable random bytes; false: the system has none. */
    bool (*random)(uint8_t *bytes, size_t n);
    uint16_t port; /* where this end listens; 0: it does not listen */
};

typedef struct moe_wire_options {
    const void *address; /* a sockaddr_in or sockaddr_in6 to listen at, port 0: any; NULL: does not
                          * listen */
    size_t address_bytes;
    uint64_t delay_ns; /* every event is told so much later than it came, as on a slow network */
} moe_wire_options;

/* Opens a wire over UCX with the module beside the library. MOE_ERR_UNSUPPORTED: there is no
 * module. */
int moe_wire_open(moe_wire **out, const moe_wire_options *options, moe_error *err);

/* ---- The module ---- */

#define MOE_WIRE_MODULE_FILE  "moe_ucx.so"
#define MOE_WIRE_MODULE_ENTRY "moe_wire_module_entry"
#define MOE_WIRE_MODULE_ABI   2u

typedef struct moe_wire_module {
    uint32_t abi;
    const char *version; /* MOE_VERSION_TEXT */
    int (*open)(moe_wire **out, const moe_wire_options *options, moe_error *err);
} moe_wire_module;

typedef const moe_wire_module *(*moe_wire_module_fn)(void);

#endif
