/* SPDX-License-Identifier: MIT */
#include "runtime/workers/worker_links.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/workers/worker_address.h"

/* The longest pause is this many first pauses. */
#define MOST_PAUSES 32u

static size_t bit_bytes(const moe_worker_links *links)
{
    return moe_expert_bit_bytes(&links->identity);
}

__attribute__((format(printf, 2, 3))) static void note(const moe_worker_links *links,
                                                       const char *format, ...)
{
    char line[320];
    va_list args;
    if (links->log == NULL) {
        return;
    }
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    links->log(line, links->user);
}

/* ---- Adding ---- */

static int add(moe_worker_links *links, const char *name, const struct addrinfo *found,
               moe_error *err)
{
    if (links->n == MOE_MOST_WORKERS) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "more than %u workers", MOE_MOST_WORKERS);
    }
    moe_worker_link *link = &links->list[links->n];
    *link = (moe_worker_link){.address_bytes = found->ai_addrlen, .pause_ns = links->pause_ns};
    link->experts = moe_calloc(bit_bytes(links), 1);
    link->able = moe_calloc(bit_bytes(links), 1);
    links->n++;
    if (link->experts == NULL || link->able == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for workers");
    }
    memcpy(&link->address, found->ai_addr, found->ai_addrlen);
    snprintf(link->name, sizeof link->name, "%s", name);
    return MOE_OK;
}

int moe_worker_links_add(moe_worker_links *links, const char *address, moe_error *err)
{
    struct addrinfo *found;
    MOE_TRY(moe_worker_address_find(address, &found, err));
    int status = MOE_OK;
    for (const struct addrinfo *a = found; a != NULL && status == MOE_OK; a = a->ai_next) {
        bool is_internet = a->ai_family == AF_INET || a->ai_family == AF_INET6;
        status = is_internet ? add(links, address, a, err) : MOE_OK;
    }
    freeaddrinfo(found);
    return status;
}

/* ---- Leaving out ---- */

static void go_away(moe_worker_links *links, moe_worker_link *link)
{
    if (link->peer != 0) {
        links->wire->ops->drop(links->wire, link->peer);
    }
    link->peer = 0;
    link->state = MOE_WORKER_AWAY;
    link->next_ns = moe_now_ns() + link->pause_ns;
    link->pause_ns *= link->pause_ns < MOST_PAUSES * links->pause_ns ? 2 : 1;
}

void moe_worker_leave_out(moe_worker_links *links, moe_worker_link *link, const char *why)
{
    if (link->state == MOE_WORKER_READY) {
        links->n_lost++;
        link->n_lost++;
        note(links,
             "worker %s is left out: %s; its experts are computed here, and it is tried "
             "again later",
             link->name, why);
    }
    go_away(links, link);
}

static void refuse(moe_worker_links *links, moe_worker_link *link, const char *why)
{
    go_away(links, link);
    link->state = MOE_WORKER_REFUSED;
    snprintf(link->refusal, sizeof link->refusal, "%s", why);
    note(links, "worker %s: %s", link->name, why);
}

/* ---- Joining ---- */

static void greet(moe_worker_links *links, moe_worker_link *link)
{
    moe_error err;
    uint64_t peer;
    if (!links->wire->random(link->of_coordinator.bytes, MOE_NONCE_BYTES) ||
        links->wire->ops->join(links->wire, &link->address, link->address_bytes, &peer, &err) !=
            MOE_OK) {
        go_away(links, link);
        return;
    }
    link->peer = peer;
    link->state = MOE_WORKER_GREETED;
    link->since_ns = moe_now_ns();
    moe_message_send(links->wire, peer, MOE_MESSAGE_HELLO, 0, &link->of_coordinator,
                     sizeof link->of_coordinator);
}

/* Answers the worker's CHALLENGE with a PROOF. */
static void prove(moe_worker_links *links, moe_worker_link *link, const moe_message *message)
{
    if (message->kind != MOE_MESSAGE_CHALLENGE || message->n_bytes != sizeof link->of_worker) {
        moe_worker_leave_out(links, link, "it does not speak as a worker does");
        return;
    }
    memcpy(&link->of_worker, message->payload, sizeof link->of_worker);
    moe_proof proof = {.identity = links->identity};
    moe_worker_mac(links->wire, &links->key, false, &link->of_coordinator, &link->of_worker,
                   &links->identity, proof.mac);
    /* Until the worker has proved that it knows the key, accept no more than its list of
     * experts. */
    links->wire->ops->allow(links->wire, link->peer, moe_message_most_bytes(&links->identity, 0));
    moe_message_send(links->wire, link->peer, MOE_MESSAGE_PROOF, 0, &proof, sizeof proof);
    link->state = MOE_WORKER_PROVED;
    link->since_ns = moe_now_ns();
}

static void welcome(moe_worker_links *links, moe_worker_link *link, const moe_message *message)
{
    moe_welcome said;
    uint8_t expected[MOE_WIRE_MAC_BYTES];
    if (message->kind != MOE_MESSAGE_WELCOME ||
        message->n_bytes != sizeof said + 2 * bit_bytes(links)) {
        moe_worker_leave_out(links, link, "it does not speak as a worker does");
        return;
    }
    memcpy(&said, message->payload, sizeof said);
    moe_worker_mac(links->wire, &links->key, true, &link->of_coordinator, &link->of_worker,
                   &links->identity, expected);
    if (!moe_worker_mac_is(said.mac, expected)) {
        refuse(links, link, "it does not know the key");
        return;
    }
    if (said.max_rows == 0 || said.max_rows > UINT16_MAX) {
        refuse(links, link, "its jobs have no rows, or too many");
        return;
    }
    memcpy(link->experts, message->payload + sizeof said, bit_bytes(links));
    memcpy(link->able, message->payload + sizeof said + bit_bytes(links), bit_bytes(links));
    link->max_rows = said.max_rows;
    link->n_slots = said.n_slots;
    link->state = MOE_WORKER_READY;
    link->pause_ns = links->pause_ns;
    links->wire->ops->allow(links->wire, link->peer,
                            moe_message_most_bytes(&links->identity, said.max_rows));
    if (link->was_ready) {
        note(links, "worker %s is back", link->name);
    }
    link->was_ready = true;
}

/* ---- Events ---- */

static moe_worker_link *link_of(moe_worker_links *links, uint64_t peer)
{
    for (uint32_t i = 0; i < links->n; i++) {
        if (links->list[i].peer == peer) {
            return &links->list[i];
        }
    }
    return NULL;
}

/* Returns whether the message is a job's answer; handles all other messages. */
static bool is_answer(moe_worker_links *links, moe_worker_link *link, const moe_wire_event *event,
                      moe_message *message)
{
    char text[128];
    moe_message_state state = moe_message_read(event->message, event->n_bytes, message);
    if (state == MOE_MESSAGE_DAMAGED) {
        moe_worker_leave_out(links, link, "it sent a damaged message");
    } else if (state == MOE_MESSAGE_FOREIGN) {
        refuse(links, link,
               "it is no worker of this version: run the same version of moe-offload "
               "on all machines");
    } else if (message->kind == MOE_MESSAGE_REFUSED) {
        moe_message_text(message, text, sizeof text);
        refuse(links, link, text);
    } else if (link->state == MOE_WORKER_GREETED) {
        prove(links, link, message);
    } else if (link->state == MOE_WORKER_PROVED) {
        welcome(links, link, message);
    } else if (message->kind == MOE_MESSAGE_HELD && message->n_bytes == bit_bytes(links)) {
        memcpy(link->experts, message->payload, bit_bytes(links));
    } else {
        return true;
    }
    return false;
}

moe_worker_news moe_worker_links_next(moe_worker_links *links, uint64_t timeout_ns,
                                      moe_worker_answer *answer)
{
    moe_wire_event event;
    moe_message message;
    if (!links->wire->ops->next(links->wire, timeout_ns, &event)) {
        return MOE_WORKERS_QUIET;
    }
    moe_worker_link *link = link_of(links, event.peer);
    if (link != NULL && event.kind == MOE_WIRE_LOST) {
        moe_worker_leave_out(links, link, event.reason);
    } else if (link != NULL && event.kind == MOE_WIRE_MESSAGE &&
               is_answer(links, link, &event, &message)) {
        *answer = (moe_worker_answer){link, message, event.time_ns, event.message};
        return MOE_WORKERS_ANSWER;
    }
    free(event.message);
    return MOE_WORKERS_OTHER;
}

void moe_worker_answer_free(moe_worker_answer *answer)
{
    free(answer->bytes);
    answer->bytes = NULL;
}

void moe_worker_links_tend(moe_worker_links *links)
{
    uint64_t now = moe_now_ns();
    for (uint32_t i = 0; i < links->n; i++) {
        moe_worker_link *link = &links->list[i];
        bool waits = link->state == MOE_WORKER_GREETED || link->state == MOE_WORKER_PROVED;
        if (waits && now > link->since_ns + links->timeout_ns) {
            go_away(links, link);
        } else if (link->state == MOE_WORKER_AWAY && now >= link->next_ns) {
            greet(links, link);
        }
    }
}

static bool all_are_settled(const moe_worker_links *links)
{
    for (uint32_t i = 0; i < links->n; i++) {
        moe_worker_state state = links->list[i].state;
        if (state == MOE_WORKER_GREETED || state == MOE_WORKER_PROVED) {
            return false;
        }
    }
    return true;
}

int moe_worker_links_join(moe_worker_links *links, moe_error *err)
{
    moe_worker_answer answer;
    uint64_t until = moe_now_ns() + links->timeout_ns;
    moe_worker_links_tend(links);
    while (!all_are_settled(links) && moe_now_ns() < until) {
        if (moe_worker_links_next(links, 10000000, &answer) == MOE_WORKERS_ANSWER) {
            moe_worker_answer_free(&answer); /* there are no jobs yet */
        }
    }
    for (uint32_t i = 0; i < links->n; i++) {
        const moe_worker_link *link = &links->list[i];
        if (link->state == MOE_WORKER_REFUSED) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "worker %s: %s", link->name, link->refusal);
        }
        if (link->state != MOE_WORKER_READY) {
            note(links, "worker %s does not answer; it is tried again while others work",
                 link->name);
        }
    }
    return MOE_OK;
}

void moe_worker_links_close(moe_worker_links *links)
{
    if (links->wire != NULL) {
        links->wire->ops->close(links->wire);
        links->wire = NULL;
    }
    for (uint32_t i = 0; i < links->n; i++) {
        free(links->list[i].experts);
        free(links->list[i].able);
    }
    links->n = 0;
}
