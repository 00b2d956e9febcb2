/* SPDX-License-Identifier: MIT */
/* A network in one process, in place of UCX: one coordinator's wire and some workers', and faults
 * on the way, drawn by a seed. What differs from the real thing: messages of any size arrive at
 * once, and the MAC is no HMAC. */
#ifndef MOE_TESTS_WIRE_DOUBLE_H
#define MOE_TESTS_WIRE_DOUBLE_H

#include "runtime/wire/wire.h"

#define NET_MOST_WORKERS 4u

/* One in so many messages; 0: none. */
typedef struct net_faults {
    uint32_t flips;   /* a bit changes */
    uint32_t losses;  /* the message is lost */
    uint32_t doubles; /* it comes twice */
    uint32_t late;    /* it comes behind the next one */
    uint32_t kills;   /* the worker dies: it is gone for its peers, and knows nothing of them */
} net_faults;

typedef struct net_counts {
    uint64_t n_messages, n_flips, n_losses, n_doubles, n_late, n_kills;
} net_counts;

typedef struct net net;

net *net_open(uint32_t n_workers, uint64_t seed);
void net_set_faults(net *n, const net_faults *faults);
net_counts net_get_counts(net *n);
/* The i-th worker's wire; it listens at 127.0.0.1, port i + 1. Closing it frees nothing. */
moe_wire *net_worker(net *n, uint32_t i);
/* A coordinator's wire. One at a time. */
moe_wire *net_coordinator(net *n);
void net_close(net **n);

#endif
