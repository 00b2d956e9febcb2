/* SPDX-License-Identifier: MIT */
#include "tests/workers/wire_double.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"

typedef struct net_event {
    struct net_event *next;
    moe_wire_event event;
} net_event;

typedef struct net_end {
    moe_wire base;
    net *net;
    uint32_t worker; /* NET_MOST_WORKERS: the coordinator */
    net_event *events, **last;
    bool woken;
    size_t n_held; /* a message that comes behind the next one */
    uint8_t *held;
    uint64_t held_peer;
} net_end;

#define MOST_CONNECTIONS 65536u

struct net {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t random;
    uint32_t n_workers;
    net_end ends[NET_MOST_WORKERS + 1];
    /* By the peer's number, which is the same at both ends. */
    struct {
        uint32_t worker;
        bool is_open[2]; /* at the coordinator's end, at the worker's */
    } connections[MOST_CONNECTIONS];
    uint64_t n_connections;
    net_faults faults;
    net_counts counts;
};

static uint64_t draw(net *n)
{
    n->random ^= n->random << 13;
    n->random ^= n->random >> 7;
    n->random ^= n->random << 17;
    return n->random;
}

static bool happens(net *n, uint32_t one_in)
{
    return one_in != 0 && draw(n) % one_in == 0;
}

/* All of these: under the lock. */
static void put(net_end *end, moe_wire_event_kind kind, uint64_t peer, uint8_t *message,
                size_t n_bytes, const char *reason)
{
    net_event *e = calloc(1, sizeof *e);
    e->event = (moe_wire_event){.kind = kind,
                                .peer = peer,
                                .message = message,
                                .n_bytes = n_bytes,
                                .time_ns = moe_now_ns()};
    strncpy(e->event.reason, reason, sizeof e->event.reason - 1);
    *end->last = e;
    end->last = &e->next;
    pthread_cond_broadcast(&end->net->changed);
}

static void lose(net *n, uint64_t peer, int side, const char *reason)
{
    if (n->connections[peer].is_open[side]) {
        n->connections[peer].is_open[side] = false;
        net_end *end = &n->ends[side == 0 ? NET_MOST_WORKERS : n->connections[peer].worker];
        put(end, MOE_WIRE_LOST, peer, NULL, 0, reason);
    }
}

static void kill_worker(net *n, uint32_t worker)
{
    n->counts.n_kills++;
    for (uint64_t c = 1; c <= n->n_connections; c++) {
        if (n->connections[c].worker == worker) {
            lose(n, c, 0, "killed");
            lose(n, c, 1, "killed");
        }
    }
}

static void deliver(net *n, uint64_t peer, int to_side, uint8_t *message, size_t n_bytes)
{
    net_end *to = &n->ends[to_side == 0 ? NET_MOST_WORKERS : n->connections[peer].worker];
    if (!n->connections[peer].is_open[to_side]) {
        free(message);
        return;
    }
    put(to, MOE_WIRE_MESSAGE, peer, message, n_bytes, "");
}

static void release_held(net *n, net_end *from)
{
    if (from->held != NULL) {
        int to_side = from->worker == NET_MOST_WORKERS ? 1 : 0;
        deliver(n, from->held_peer, to_side, from->held, from->n_held);
        from->held = NULL;
    }
}

static void double_send(moe_wire *wire, uint64_t peer, uint8_t *message, size_t n_bytes)
{
    net_end *from = (net_end *)wire;
    net *n = from->net;
    int to_side = from->worker == NET_MOST_WORKERS ? 1 : 0;
    pthread_mutex_lock(&n->lock);
    n->counts.n_messages++;
    if (!n->connections[peer].is_open[1 - to_side] || happens(n, n->faults.losses)) {
        n->counts.n_losses++;
        free(message);
    } else if (happens(n, n->faults.kills)) {
        free(message);
        kill_worker(n, n->connections[peer].worker);
    } else if (from->held == NULL && happens(n, n->faults.late)) {
        n->counts.n_late++;
        from->held = message;
        from->n_held = n_bytes;
        from->held_peer = peer;
    } else {
        if (happens(n, n->faults.flips)) {
            n->counts.n_flips++;
            message[draw(n) % n_bytes] ^= (uint8_t)(1u << draw(n) % 8);
        }
        if (happens(n, n->faults.doubles)) {
            n->counts.n_doubles++;
            uint8_t *copy = malloc(n_bytes);
            memcpy(copy, message, n_bytes);
            deliver(n, peer, to_side, copy, n_bytes);
        }
        deliver(n, peer, to_side, message, n_bytes);
        release_held(n, from);
    }
    pthread_mutex_unlock(&n->lock);
}

static int double_join(moe_wire *wire, const void *address, size_t n_bytes, uint64_t *peer,
                       moe_error *err)
{
    net_end *from = (net_end *)wire;
    net *n = from->net;
    struct sockaddr_in in;
    if (n_bytes != sizeof in) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "no address of this net");
    }
    memcpy(&in, address, sizeof in);
    uint32_t worker = ntohs(in.sin_port) - 1u;
    pthread_mutex_lock(&n->lock);
    *peer = ++n->n_connections;
    n->connections[*peer].worker = worker;
    n->connections[*peer].is_open[0] = true;
    if (worker >= n->n_workers) {
        lose(n, *peer, 0, "nobody listens");
    } else {
        n->connections[*peer].is_open[1] = true;
        put(&n->ends[worker], MOE_WIRE_JOINED, *peer, NULL, 0, "");
    }
    pthread_mutex_unlock(&n->lock);
    return MOE_OK;
}

static void double_allow(moe_wire *wire, uint64_t peer, size_t most_bytes)
{
    (void)wire, (void)peer, (void)most_bytes;
}

static void double_drop(moe_wire *wire, uint64_t peer)
{
    net_end *from = (net_end *)wire;
    net *n = from->net;
    int side = from->worker == NET_MOST_WORKERS ? 0 : 1;
    pthread_mutex_lock(&n->lock);
    n->connections[peer].is_open[side] = false;
    lose(n, peer, 1 - side, "dropped");
    for (net_event *e = from->events; e != NULL; e = e->next) {
        if (e->event.peer == peer) {
            free(e->event.message);
            e->event.message = NULL;
            e->event.peer = 0;
        }
    }
    pthread_mutex_unlock(&n->lock);
}

static bool take(net_end *end, moe_wire_event *event)
{
    while (end->events != NULL) {
        net_event *first = end->events;
        *event = first->event;
        end->events = first->next;
        end->last = end->events == NULL ? &end->events : end->last;
        free(first);
        if (event->peer != 0) {
            return true;
        }
    }
    return false;
}

static bool double_next(moe_wire *wire, uint64_t timeout_ns, moe_wire_event *event)
{
    net_end *end = (net_end *)wire;
    net *n = end->net;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    timeout_ns += (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(timeout_ns / 1000000000u);
    until.tv_nsec = (long)(timeout_ns % 1000000000u);
    pthread_mutex_lock(&n->lock);
    bool found;
    while (!(found = take(end, event)) && !end->woken) {
        if (pthread_cond_timedwait(&n->changed, &n->lock, &until) != 0) {
            found = take(end, event);
            break;
        }
    }
    end->woken = false;
    pthread_mutex_unlock(&n->lock);
    return found;
}

static void double_wake(moe_wire *wire)
{
    net_end *end = (net_end *)wire;
    pthread_mutex_lock(&end->net->lock);
    end->woken = true;
    pthread_cond_broadcast(&end->net->changed);
    pthread_mutex_unlock(&end->net->lock);
}

/* What has not been taken is lost with its peers. */
static void double_close(moe_wire *wire)
{
    net_end *end = (net_end *)wire;
    net *n = end->net;
    int side = end->worker == NET_MOST_WORKERS ? 0 : 1;
    moe_wire_event event;
    pthread_mutex_lock(&n->lock);
    for (uint64_t c = 1; c <= n->n_connections; c++) {
        if (side == 0 || n->connections[c].worker == end->worker) {
            n->connections[c].is_open[side] = false;
            lose(n, c, 1 - side, "closed");
        }
    }
    while (take(end, &event)) {
        free(event.message);
    }
    free(end->held);
    end->held = NULL;
    pthread_mutex_unlock(&n->lock);
}

static void double_mac(const uint8_t *key, size_t key_bytes, const uint8_t *data, size_t n,
                       uint8_t mac[MOE_WIRE_MAC_BYTES])
{
    for (size_t i = 0; i < MOE_WIRE_MAC_BYTES / 8; i++) {
        uint64_t seed = key_bytes > 0 ? XXH3_64bits_withSeed(key, key_bytes, i) : i;
        uint64_t sum = XXH3_64bits_withSeed(data, n, seed);
        memcpy(mac + i * sizeof sum, &sum, sizeof sum);
    }
}

static bool double_random(uint8_t *bytes, size_t n)
{
    static _Atomic uint64_t count;
    uint64_t at = ++count;
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (uint8_t)(XXH3_64bits_withSeed(&i, sizeof i, at) & 0xff);
    }
    return true;
}

static const moe_wire_ops double_ops = {.join = double_join,
                                        .send = double_send,
                                        .allow = double_allow,
                                        .drop = double_drop,
                                        .next = double_next,
                                        .wake = double_wake,
                                        .close = double_close};

net *net_open(uint32_t n_workers, uint64_t seed)
{
    net *n = calloc(1, sizeof *n);
    n->random = seed * 2 + 0x9e3779b97f4a7c15u;
    n->n_workers = n_workers;
    pthread_mutex_init(&n->lock, NULL);
    pthread_cond_init(&n->changed, NULL);
    for (uint32_t i = 0; i <= NET_MOST_WORKERS; i++) {
        net_end *end = &n->ends[i];
        end->base = (moe_wire){.ops = &double_ops,
                               .mac = double_mac,
                               .random = double_random,
                               .port = (uint16_t)(i + 1)};
        end->net = n;
        end->worker = i;
        end->last = &end->events;
    }
    return n;
}

void net_set_faults(net *n, const net_faults *faults)
{
    pthread_mutex_lock(&n->lock);
    n->faults = *faults;
    pthread_mutex_unlock(&n->lock);
}

net_counts net_get_counts(net *n)
{
    pthread_mutex_lock(&n->lock);
    net_counts counts = n->counts;
    pthread_mutex_unlock(&n->lock);
    return counts;
}

moe_wire *net_worker(net *n, uint32_t i)
{
    return &n->ends[i].base;
}

moe_wire *net_coordinator(net *n)
{
    return &n->ends[NET_MOST_WORKERS].base;
}

void net_close(net **n)
{
    for (uint32_t i = 0; i <= NET_MOST_WORKERS; i++) {
        double_close(&(*n)->ends[i].base);
    }
    pthread_cond_destroy(&(*n)->changed);
    pthread_mutex_destroy(&(*n)->lock);
    free(*n);
    *n = NULL;
}
