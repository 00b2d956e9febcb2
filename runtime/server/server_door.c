/* SPDX-License-Identifier: MIT */
#include "server_door.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "server_clock.h"

enum {
    LOOK_MS = 50,       /* interval between checks of deadlines */
    PAUSE_MS = 100,     /* pause of accepting, if there is no file descriptor */
    START_SECONDS = 10, /* after this, libmicrohttpd will not take the connection any more */
};

#define SECOND UINT64_C(1000000000)

/* Hashes a client's address. Of an IPv6 address only the network part counts, because one client
 * may own all addresses of its network. */
static uint64_t hash_address(const struct sockaddr_storage *address)
{
    const unsigned char *bytes = NULL;
    size_t size = 0;
    if (address->ss_family == AF_INET) {
        bytes = (const unsigned char *)&((const struct sockaddr_in *)address)->sin_addr;
        size = sizeof(struct in_addr);
    } else if (address->ss_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)address)->sin6_addr;
        bytes = v6->s6_addr;
        size = 8;
        if (IN6_IS_ADDR_V4MAPPED(v6)) {
            bytes += 12;
            size = 4;
        }
    }
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    }
    return hash;
}

/* ---- The caller holds the lock ---- */

static void set_state(server_visit *visit, server_visit_state state)
{
    visit->state = state;
    visit->since_ns = server_now_ns();
}

/* Shuts the socket down. The connection's thread notices this, and libmicrohttpd then closes the
 * socket. */
static void hang_up(server_visit *visit)
{
    set_state(visit, SERVER_VISIT_CLOSING);
    (void)shutdown(visit->socket, SHUT_RDWR);
}

static bool has_place(const server_visit *visit)
{
    return visit->state != SERVER_VISIT_NONE && visit->state != SERVER_VISIT_CLOSING &&
           !visit->is_extra;
}

static bool may_be_evicted(const server_door *door, const server_visit *visit)
{
    return visit->started && !visit->has_key &&
           (visit->state == SERVER_VISIT_HEAD ||
            (visit->state == SERVER_VISIT_IDLE && door->has_keys));
}

/* Counts the connections from this address that have not sent a valid key. */
static uint32_t count_unknown(const server_door *door, uint64_t address)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < door->n_visits; i++) {
        const server_visit *visit = &door->visits[i];
        n += has_place(visit) && visit->address == address && !visit->has_key;
    }
    return n;
}

/* Closes a connection of this address to make room; address 0: a connection of the address with the
 * most connections. Returns false if no connection may be closed. */
static bool evict(server_door *door, uint64_t address)
{
    server_visit *best = NULL;
    uint32_t most = 0;
    for (uint32_t i = 0; i < door->n_visits; i++) {
        server_visit *visit = &door->visits[i];
        if (!may_be_evicted(door, visit) || (address != 0 && visit->address != address)) {
            continue;
        }
        uint32_t n = count_unknown(door, visit->address);
        if (best == NULL || n > most || (n == most && visit->since_ns < best->since_ns)) {
            best = visit;
            most = n;
        }
    }
    if (best != NULL) {
        hang_up(best);
        door->counts.n_evicted++;
    }
    return best != NULL;
}

static void look_at_deadlines(server_door *door)
{
    const uint64_t now = server_now_ns();
    for (uint32_t i = 0; i < door->n_visits; i++) {
        server_visit *visit = &door->visits[i];
        uint64_t seconds = !visit->started                     ? START_SECONDS
                           : visit->state == SERVER_VISIT_HEAD ? SERVER_HEAD_SECONDS
                           : visit->state == SERVER_VISIT_IDLE ? SERVER_SILENT_SECONDS
                                                               : UINT64_MAX / SECOND;
        if (visit->state == SERVER_VISIT_NONE || now - visit->since_ns <= seconds * SECOND) {
            continue;
        }
        if (visit->started) {
            hang_up(visit);
            door->counts.n_late++;
        } else {
            visit->state = SERVER_VISIT_NONE; /* libmicrohttpd had no memory or thread for the
                                               * connection */
        }
    }
}

static server_visit *free_visit(server_door *door)
{
    for (uint32_t i = 0; i < door->n_visits; i++) {
        if (door->visits[i].state == SERVER_VISIT_NONE) {
            return &door->visits[i];
        }
    }
    return NULL;
}

/* Gives a new connection a place, if necessary that of a connection that is closed for it. If there
 * is no place, marks the new connection as extra: it will only be told so. */
static void place(server_door *door, server_visit *visit)
{
    uint32_t n_taken = 0;
    for (uint32_t i = 0; i < door->n_visits; i++) {
        n_taken += has_place(&door->visits[i]);
    }
    if (door->has_keys && count_unknown(door, visit->address) > door->most / 2) {
        visit->is_extra = !evict(door, visit->address);
    } else if (n_taken > door->most) {
        visit->is_extra = !evict(door, 0);
    }
}

/* ---- Run by the door's own thread ---- */

static bool accept_one(server_door *door, server_visit *visit)
{
    struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
    socklen_t size = sizeof address;
    int socket = accept4(door->listening, (struct sockaddr *)&address, &size, SOCK_CLOEXEC);
    if (socket < 0) {
        return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    }
    pthread_mutex_lock(&door->lock);
    *visit = (server_visit){.socket = socket, .address = hash_address(&address)};
    set_state(visit, SERVER_VISIT_HEAD);
    place(door, visit);
    pthread_mutex_unlock(&door->lock);
    if (MHD_add_connection(door->daemon, socket, (struct sockaddr *)&address, size) != MHD_YES) {
        pthread_mutex_lock(&door->lock);
        if (visit->socket == socket && !visit->started) {
            visit->state = SERVER_VISIT_NONE;
        }
        pthread_mutex_unlock(&door->lock);
    }
    return true;
}

static void *door_thread(void *user)
{
    server_door *door = user;
    uint64_t paused_until = 0;
    while (!atomic_load(&door->closed)) {
        pthread_mutex_lock(&door->lock);
        look_at_deadlines(door);
        server_visit *visit = free_visit(door);
        pthread_mutex_unlock(&door->lock);
        bool waits = visit == NULL || server_now_ns() < paused_until;
        struct pollfd coming = {.fd = waits ? -1 : door->listening, .events = POLLIN};
        if (poll(&coming, 1, LOOK_MS) <= 0 || (coming.revents & POLLIN) == 0) {
            continue;
        }
        if (!accept_one(door, visit)) {
            paused_until = server_now_ns() + (uint64_t)PAUSE_MS * 1000000;
            pthread_mutex_lock(&door->lock);
            door->counts.n_paused++;
            (void)evict(door, 0);
            pthread_mutex_unlock(&door->lock);
        }
    }
    return NULL;
}

bool server_door_open(server_door *door, int listening, uint32_t most, uint32_t n_visits,
                      bool has_keys)
{
    *door = (server_door){
        .listening = listening, .most = most, .n_visits = n_visits, .has_keys = has_keys};
    door->visits = calloc(n_visits, sizeof *door->visits);
    pthread_mutex_init(&door->lock, NULL);
    return door->visits != NULL;
}

bool server_door_start(server_door *door, struct MHD_Daemon *daemon)
{
    door->daemon = daemon;
    door->started = pthread_create(&door->thread, NULL, door_thread, door) == 0;
    return door->started;
}

void server_door_close(server_door *door)
{
    atomic_store(&door->closed, true);
    if (door->started) {
        pthread_join(door->thread, NULL);
        door->started = false;
    }
}

void server_door_free(server_door *door)
{
    pthread_mutex_destroy(&door->lock);
    free(door->visits);
    door->visits = NULL;
}

/* ---- Called by the connections' threads ---- */

server_visit *server_door_arrive(server_door *door, int socket)
{
    server_visit *found = NULL;
    pthread_mutex_lock(&door->lock);
    for (uint32_t i = 0; i < door->n_visits && found == NULL; i++) {
        server_visit *visit = &door->visits[i];
        if (visit->state != SERVER_VISIT_NONE && visit->socket == socket && !visit->started) {
            visit->started = true;
            found = visit;
        }
    }
    pthread_mutex_unlock(&door->lock);
    return found;
}

void server_door_leave(server_door *door, server_visit *visit)
{
    pthread_mutex_lock(&door->lock);
    visit->state = SERVER_VISIT_NONE;
    pthread_mutex_unlock(&door->lock);
}

bool server_door_admit(server_door *door, server_visit *visit, bool has_key)
{
    pthread_mutex_lock(&door->lock);
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < door->n_visits; i++) {
        n_kept += door->visits[i].state != SERVER_VISIT_NONE && door->visits[i].is_kept;
    }
    if (visit->is_extra && has_key && n_kept < SERVER_KEPT_PLACES) {
        visit->is_kept = true;
    }
    visit->has_key |= has_key;
    bool admitted = !visit->is_extra || visit->is_kept;
    if (visit->state != SERVER_VISIT_CLOSING) {
        set_state(visit, SERVER_VISIT_WORK);
    }
    pthread_mutex_unlock(&door->lock);
    return admitted;
}

void server_door_rest(server_door *door, server_visit *visit)
{
    pthread_mutex_lock(&door->lock);
    if (visit->state != SERVER_VISIT_CLOSING) {
        set_state(visit, SERVER_VISIT_IDLE);
    }
    pthread_mutex_unlock(&door->lock);
}
