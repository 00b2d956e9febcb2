/* SPDX-License-Identifier: MIT */
/* The thread that drives UCX: peers, messages, and the commands of the wire's user. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/wire/module/ucx_wire.h"

/* ---- Events ---- */

void moe_ucx_wake_fd(int fd)
{
    ssize_t written = write(fd, "", 1); /* a full pipe wakes as well */
    (void)written;
}

void moe_ucx_tell(ucx_wire *w, moe_wire_event_kind kind, uint64_t peer, uint8_t *message,
                  size_t n_bytes, const char *reason)
{
    queued_event *queued = calloc(1, sizeof *queued);
    if (queued == NULL) {
        free(message);
        return;
    }
    queued->event = (moe_wire_event){.kind = kind,
                                     .peer = peer,
                                     .message = message,
                                     .n_bytes = n_bytes,
                                     .time_ns = moe_now_ns()};
    snprintf(queued->event.reason, sizeof queued->event.reason, "%s", reason);
    pthread_mutex_lock(&w->lock);
    *w->last_event = queued;
    w->last_event = &queued->next;
    w->n_events++;
    pthread_mutex_unlock(&w->lock);
    moe_ucx_wake_fd(w->event_fds[1]);
}

/* ---- Peers; on the thread ---- */

static wire_peer *find_peer(ucx_wire *w, uint64_t number)
{
    for (uint32_t i = 0; i < MOE_WIRE_MOST_PEERS && number != 0; i++) {
        if (w->peers[i].number == number) {
            return &w->peers[i];
        }
    }
    return NULL;
}

static wire_peer *find_endpoint(ucx_wire *w, ucp_ep_h endpoint)
{
    for (uint32_t i = 0; i < MOE_WIRE_MOST_PEERS; i++) {
        if (w->peers[i].number != 0 && w->peers[i].endpoint == endpoint) {
            return &w->peers[i];
        }
    }
    return NULL;
}

static wire_peer *find_room(ucx_wire *w)
{
    for (uint32_t i = 0; i < MOE_WIRE_MOST_PEERS; i++) {
        if (w->peers[i].number == 0 && w->peers[i].n_holds == 0) {
            return &w->peers[i];
        }
    }
    return NULL;
}

static void lose(wire_peer *peer, const char *reason)
{
    if (!peer->is_lost) {
        peer->is_lost = true;
        moe_ucx_tell(peer->wire, MOE_WIRE_LOST, peer->number, NULL, 0, reason);
    }
}

static void on_failure(void *arg, ucp_ep_h endpoint, ucs_status_t status)
{
    (void)endpoint;
    lose(arg, ucs_status_string(status));
}

static void on_closed(void *request, ucs_status_t status, void *user)
{
    wire_peer *peer = user;
    (void)status;
    peer->n_holds--;
    peer->wire->n_closing--;
    ucp_request_free(request);
}

/* Closes the endpoint of a peer that is lost, and gives up its place. */
static void close_lost(ucx_wire *w, wire_peer *peer)
{
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = on_closed,
        .user_data = peer,
    };
    ucs_status_ptr_t request = NULL;
    peer->n_holds++;
    w->n_closing++;
    if (peer->endpoint != NULL) {
        request = ucp_ep_close_nbx(peer->endpoint, &param);
    }
    if (!UCS_PTR_IS_PTR(request)) {
        peer->n_holds--;
        w->n_closing--;
    }
    peer->endpoint = NULL;
    peer->number = 0;
}

uint64_t moe_ucx_new_number(ucx_wire *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t number = ++w->n_peers;
    pthread_mutex_unlock(&w->lock);
    return number;
}

static ucs_status_t open_endpoint(wire_peer *peer, ucp_ep_params_t *params)
{
    params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params->err_handler.cb = on_failure;
    params->err_handler.arg = peer;
    return ucp_ep_create(peer->wire->worker, params, &peer->endpoint);
}

void moe_ucx_on_join(ucp_conn_request_h request, void *arg)
{
    ucx_wire *w = arg;
    wire_peer *peer = find_room(w);
    if (peer == NULL) {
        ucp_listener_reject(w->listener, request);
        return;
    }
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST,
                              .conn_request = request};
    *peer =
        (wire_peer){.wire = w, .number = moe_ucx_new_number(w), .most_bytes = MOE_WIRE_FIRST_BYTES};
    if (open_endpoint(peer, &params) != UCS_OK) {
        peer->number = 0;
        return;
    }
    moe_ucx_tell(w, MOE_WIRE_JOINED, peer->number, NULL, 0, "");
}

static void join(ucx_wire *w, const wire_command *command)
{
    wire_peer *peer = find_room(w);
    if (peer == NULL) {
        moe_ucx_tell(w, MOE_WIRE_LOST, command->peer, NULL, 0, "too many peers");
        return;
    }
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {(const struct sockaddr *)&command->address, command->address_bytes}};
    *peer = (wire_peer){.wire = w, .number = command->peer, .most_bytes = MOE_WIRE_FIRST_BYTES};
    ucs_status_t status = open_endpoint(peer, &params);
    if (status != UCS_OK) {
        lose(peer, ucs_status_string(status));
    }
}

/* ---- Messages; on the thread ---- */

typedef struct held_message {
    wire_peer *peer;
    uint8_t *bytes;
    size_t n_bytes;
} held_message;

static void on_sent(void *request, ucs_status_t status, void *user)
{
    held_message *held = user;
    (void)status; /* on_failure() reports failures */
    held->peer->n_holds--;
    free(held->bytes);
    free(held);
    ucp_request_free(request);
}

static void send_message(ucx_wire *w, wire_command *command)
{
    wire_peer *peer = find_peer(w, command->peer);
    held_message *held = calloc(1, sizeof *held);
    if (peer == NULL || peer->is_lost || held == NULL) {
        free(command->bytes);
        free(held);
        if (peer != NULL) {
            lose(peer, "out of memory");
        }
        return;
    }
    *held = (held_message){peer, command->bytes, command->n_bytes};
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_AM_SEND_FLAG_REPLY,
        .cb.send = on_sent,
        .user_data = held,
    };
    ucs_status_ptr_t request =
        ucp_am_send_nbx(peer->endpoint, MESSAGE_ID, NULL, 0, held->bytes, held->n_bytes, &param);
    if (UCS_PTR_IS_PTR(request)) {
        peer->n_holds++;
        return;
    }
    free(held->bytes);
    free(held);
    if (request != NULL) {
        lose(peer, ucs_status_string(UCS_PTR_STATUS(request)));
    }
}

/* Queues a message as an event. Takes the bytes. */
static void deliver(wire_peer *peer, uint8_t *bytes, size_t n_bytes)
{
    ucx_wire *w = peer->wire;
    pthread_mutex_lock(&w->lock);
    bool is_full = w->n_events >= MOST_WAITING;
    pthread_mutex_unlock(&w->lock);
    if (peer->is_lost || peer->number == 0) {
        free(bytes);
    } else if (is_full) {
        free(bytes);
        lose(peer, "sends more than is taken");
    } else {
        moe_ucx_tell(w, MOE_WIRE_MESSAGE, peer->number, bytes, n_bytes, "");
    }
}

static void on_received(void *request, ucs_status_t status, size_t n_bytes, void *user)
{
    held_message *held = user;
    held->peer->n_holds--;
    if (status == UCS_OK && n_bytes == held->n_bytes) {
        deliver(held->peer, held->bytes, held->n_bytes);
    } else {
        free(held->bytes);
    }
    free(held);
    ucp_request_free(request);
}

/* Fetches a large message, which its sender keeps until it is fetched (rendezvous). */
static ucs_status_t fetch(wire_peer *peer, void *description, uint8_t *bytes, size_t n_bytes)
{
    held_message *held = calloc(1, sizeof *held);
    if (held == NULL) {
        free(bytes);
        lose(peer, "out of memory");
        return UCS_OK;
    }
    *held = (held_message){peer, bytes, n_bytes};
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv_am = on_received,
        .user_data = held,
    };
    ucs_status_ptr_t request =
        ucp_am_recv_data_nbx(peer->wire->worker, description, bytes, n_bytes, &param);
    if (UCS_PTR_IS_PTR(request)) {
        peer->n_holds++;
        return UCS_INPROGRESS;
    }
    free(bytes);
    free(held);
    lose(peer, "a message cannot be fetched");
    return UCS_OK;
}

ucs_status_t moe_ucx_on_message(void *arg, const void *header, size_t header_bytes, void *data,
                                size_t n_bytes, const ucp_am_recv_param_t *param)
{
    ucx_wire *w = arg;
    (void)header;
    bool has_sender = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
    wire_peer *peer = has_sender ? find_endpoint(w, param->reply_ep) : NULL;
    if (peer == NULL || peer->is_lost) {
        return UCS_OK;
    }
    if (header_bytes != 0 || n_bytes == 0 || n_bytes > peer->most_bytes) {
        lose(peer, "a message that is too long");
        return UCS_OK;
    }
    uint8_t *bytes = malloc(n_bytes);
    if (bytes == NULL) {
        lose(peer, "out of memory");
        return UCS_OK;
    }
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
        return fetch(peer, data, bytes, n_bytes);
    }
    memcpy(bytes, data, n_bytes);
    deliver(peer, bytes, n_bytes);
    return UCS_OK;
}

/* ---- The thread ---- */

static void take_limits(ucx_wire *w)
{
    pthread_mutex_lock(&w->lock);
    for (uint32_t i = 0; i < w->n_limits; i++) {
        wire_peer *peer = find_peer(w, w->limits[i].number);
        if (peer != NULL) {
            peer->most_bytes = w->limits[i].most_bytes;
        }
    }
    w->n_limits = 0;
    pthread_mutex_unlock(&w->lock);
}

/* Carries out a command of the wire's user. */
static void obey(ucx_wire *w, wire_command *command)
{
    wire_peer *peer;
    switch (command->kind) {
    case COMMAND_JOIN:
        join(w, command);
        break;
    case COMMAND_SEND:
        send_message(w, command);
        break;
    case COMMAND_DROP:
        peer = find_peer(w, command->peer);
        if (peer != NULL) {
            peer->is_lost = true; /* no event: the user dropped it */
        }
        break;
    }
}

/* Returns whether there was anything to do. */
static bool take_commands(ucx_wire *w, bool *stops)
{
    pthread_mutex_lock(&w->lock);
    wire_command *list = w->commands;
    w->commands = NULL;
    w->last_command = &w->commands;
    *stops = w->stops;
    pthread_mutex_unlock(&w->lock);
    bool any = list != NULL;
    while (list != NULL) {
        wire_command *next = list->next;
        obey(w, list);
        free(list);
        list = next;
    }
    take_limits(w); /* also for peers that have just joined */
    for (uint32_t i = 0; i < MOE_WIRE_MOST_PEERS; i++) {
        if (w->peers[i].number != 0 && w->peers[i].is_lost) {
            close_lost(w, &w->peers[i]);
            any = true;
        }
    }
    return any;
}

static void close_all(ucx_wire *w)
{
    for (uint32_t i = 0; i < MOE_WIRE_MOST_PEERS; i++) {
        if (w->peers[i].number != 0) {
            w->peers[i].is_lost = true;
            close_lost(w, &w->peers[i]);
        }
    }
    uint64_t until = moe_now_ns() + CLOSING_NS;
    while (w->n_closing > 0 && moe_now_ns() < until) {
        ucp_worker_progress(w->worker);
    }
}

void *moe_ucx_main(void *arg)
{
    ucx_wire *w = arg;
    for (bool stops = false; !stops;) {
        while (ucp_worker_progress(w->worker) != 0) {
        }
        if (take_commands(w, &stops) || stops) {
            continue;
        }
        if (ucp_worker_arm(w->worker) == UCS_OK) {
            struct pollfd fd = {.fd = w->ready_fd, .events = POLLIN};
            (void)poll(&fd, 1, 1000);
        }
    }
    close_all(w);
    return NULL;
}
