/* SPDX-License-Identifier: MIT */
#include "runtime/workers/worker_serve.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/layer_plan.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

/* A coordinator that has not proved its key after this time is dropped. */
#define GREETING_NS UINT64_C(10000000000)
#define LOOK_NS     UINT64_C(200000000)

typedef struct coordinator {
    uint64_t peer; /* 0: this place is free */
    uint64_t since_ns;
    bool greeted, proved;
    moe_nonce its, ours;
} coordinator;

typedef struct worker {
    const moe_worker_parts *parts;
    moe_worker_counts *counts;
    float *x; /* [max_rows][n_in]: the rows of a job */
    coordinator list[MOE_WIRE_MOST_PEERS];
} worker;

__attribute__((format(printf, 2, 3))) static void note(const worker *w, const char *format, ...)
{
    char line[256];
    va_list args;
    if (w->parts->log == NULL) {
        return;
    }
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    w->parts->log(line, w->parts->user);
}

static coordinator *find(worker *w, uint64_t peer)
{
    for (uint32_t i = 0; i < MOE_WIRE_MOST_PEERS; i++) {
        if (w->list[i].peer == peer) {
            return &w->list[i];
        }
    }
    return NULL;
}

static void drop(worker *w, coordinator *c)
{
    w->parts->wire->ops->drop(w->parts->wire, c->peer);
    c->peer = 0;
}

/* Sends the reason. drop_slow() drops the coordinator a second later, so that it can read the
 * reason. */
static void refuse(worker *w, coordinator *c, const char *why)
{
    note(w, "refused a coordinator: %s", why);
    moe_message_send(w->parts->wire, c->peer, MOE_MESSAGE_REFUSED, 0, why, strlen(why));
    c->greeted = c->proved = false;
    c->since_ns = moe_now_ns() - GREETING_NS + UINT64_C(1000000000);
}

/* ---- The handshake ---- */

static void challenge(worker *w, coordinator *c, const moe_message *message)
{
    moe_wire *wire = w->parts->wire;
    if (message->kind != MOE_MESSAGE_HELLO || message->n_bytes != sizeof c->its ||
        !wire->random(c->ours.bytes, sizeof c->ours)) {
        note(w, "dropped somebody who does not speak as a coordinator does");
        drop(w, c);
        return;
    }
    memcpy(&c->its, message->payload, sizeof c->its);
    c->greeted = true;
    moe_message_send(wire, c->peer, MOE_MESSAGE_CHALLENGE, 0, &c->ours, sizeof c->ours);
}

static void welcome(worker *w, coordinator *c)
{
    const moe_worker_parts *p = w->parts;
    size_t bit_bytes = moe_expert_bit_bytes(&p->identity);
    uint8_t *payload;
    size_t n_bytes;
    moe_welcome said = {.max_rows = p->max_rows, .n_slots = p->n_slots};
    uint8_t *message =
        moe_message_new(MOE_MESSAGE_WELCOME, 0, sizeof said + 2 * bit_bytes, &payload, &n_bytes);
    if (message == NULL) {
        drop(w, c);
        return;
    }
    moe_worker_mac(p->wire, &p->key, true, &c->its, &c->ours, &p->identity, said.mac);
    memcpy(payload, &said, sizeof said);
    memcpy(payload + sizeof said, p->experts, bit_bytes);
    memcpy(payload + sizeof said + bit_bytes, p->able, bit_bytes);
    moe_message_seal(message, n_bytes);
    p->wire->ops->allow(p->wire, c->peer, moe_message_most_bytes(&p->identity, p->max_rows));
    p->wire->ops->send(p->wire, c->peer, message, n_bytes);
    c->proved = true;
    w->counts->n_coordinators++;
}

static void check_proof(worker *w, coordinator *c, const moe_message *message)
{
    const moe_worker_parts *p = w->parts;
    moe_proof proof;
    uint8_t expected[MOE_WIRE_MAC_BYTES];
    if (message->kind != MOE_MESSAGE_PROOF || message->n_bytes != sizeof proof) {
        note(w, "dropped somebody who does not speak as a coordinator does");
        drop(w, c);
        return;
    }
    memcpy(&proof, message->payload, sizeof proof);
    moe_worker_mac(p->wire, &p->key, false, &c->its, &c->ours, &proof.identity, expected);
    if (!moe_worker_mac_is(proof.mac, expected)) {
        refuse(w, c, "the key is not this worker's (options.worker_key)");
    } else if (memcmp(&proof.identity, &p->identity, sizeof proof.identity) != 0) {
        refuse(w, c,
               "the worker has another model, or another version of it: give both the same "
               "file and options.metadata_overrides");
    } else {
        welcome(w, c);
    }
}

/* ---- Jobs ---- */

/* Checks the job's choices; returns how many name an expert, or UINT32_MAX if they are wrong. */
static uint32_t count_outs(const moe_worker_parts *p, const moe_worker_job *job)
{
    const moe_worker_identity *m = &p->identity;
    uint32_t n = 0;
    for (uint32_t r = 0; r < job->n_rows; r++) {
        uint32_t last = 0;
        bool any = false;
        for (uint32_t k = 0; k < m->n_used; k++) {
            uint32_t expert;
            memcpy(&expert, job->chosen + ((size_t)r * m->n_used + k) * sizeof expert,
                   sizeof expert);
            if (expert == MOE_PLAN_NO_EXPERT) {
                continue;
            }
            size_t bit = (size_t)job->layer * m->n_expert + expert;
            if (expert >= m->n_expert || (any && expert <= last) ||
                (p->able[bit / 8] >> bit % 8 & 1) == 0) {
                return UINT32_MAX;
            }
            last = expert;
            any = true;
            n++;
        }
    }
    return n;
}

static bool read_job(const worker *w, const moe_message *message, moe_worker_job *job,
                     uint32_t *n_outs)
{
    const moe_worker_parts *p = w->parts;
    const uint8_t *rows = message->payload + sizeof(moe_job_head);
    moe_job_head head;
    if (message->n_bytes < sizeof head) {
        return false;
    }
    memcpy(&head, message->payload, sizeof head);
    if (head.layer >= p->identity.n_layer || head.n_rows == 0 || head.n_rows > p->max_rows ||
        !moe_rows_can_be(head.form, p->identity.n_in) ||
        message->n_bytes != moe_job_bytes(&p->identity, head.form, head.n_rows)) {
        return false;
    }
    *job = (moe_worker_job){.layer = head.layer, .n_rows = head.n_rows, .x = w->x};
    job->chosen = rows + moe_rows_bytes(head.form, head.n_rows, p->identity.n_in);
    job->weights = job->chosen + (size_t)head.n_rows * p->identity.n_used * sizeof(uint32_t);
    moe_rows_unpack(head.form, rows, head.n_rows, p->identity.n_in, w->x);
    *n_outs = count_outs(p, job);
    return *n_outs != UINT32_MAX && *n_outs > 0;
}

static void fail_job(worker *w, coordinator *c, uint64_t id, const char *why)
{
    note(w, "a job failed: %s", why);
    moe_message_send(w->parts->wire, c->peer, MOE_MESSAGE_FAILED, id, why, strlen(why));
}

static void do_job(worker *w, coordinator *c, const moe_message *message)
{
    const moe_worker_parts *p = w->parts;
    moe_worker_job job;
    uint32_t n_outs;
    moe_error err = {""};
    uint8_t *payload;
    size_t n_bytes;
    if (message->kind != MOE_MESSAGE_JOB || !read_job(w, message, &job, &n_outs)) {
        note(w, "dropped a coordinator whose jobs do not fit the model");
        drop(w, c);
        return;
    }
    uint8_t *answer = moe_message_new(MOE_MESSAGE_RESULT, message->id,
                                      moe_result_bytes(&p->identity, n_outs), &payload, &n_bytes);
    if (answer == NULL) {
        fail_job(w, c, message->id, "the worker has no memory");
        return;
    }
    const moe_result_head head = {.n_outs = n_outs};
    memcpy(payload, &head, sizeof head);
    if (p->compute(p->context, &job, payload + sizeof head, n_outs, &err) != MOE_OK) {
        free(answer);
        fail_job(w, c, message->id, err.message);
        return;
    }
    moe_message_seal(answer, n_bytes);
    p->wire->ops->send(p->wire, c->peer, answer, n_bytes);
    w->counts->n_jobs++;
    w->counts->n_rows += job.n_rows;
    w->counts->n_outs += n_outs;
}

/* Takes over the experts that a coordinator asks for, and tells all coordinators what it has. */
static void hold(worker *w, const moe_message *message)
{
    const moe_worker_parts *p = w->parts;
    p->hold(p->context, message->payload);
    for (uint32_t i = 0; i < MOE_WIRE_MOST_PEERS; i++) {
        const coordinator *c = &w->list[i];
        if (c->peer != 0 && c->proved) {
            moe_message_send(p->wire, c->peer, MOE_MESSAGE_HELD, 0, p->experts,
                             moe_expert_bit_bytes(&p->identity));
        }
    }
}

/* ---- Events ---- */

static void take_message(worker *w, coordinator *c, const moe_wire_event *event)
{
    moe_message message;
    moe_message_state state = moe_message_read(event->message, event->n_bytes, &message);
    if (state == MOE_MESSAGE_DAMAGED) {
        note(w, "dropped a coordinator that sent a damaged message");
        drop(w, c);
    } else if (state == MOE_MESSAGE_FOREIGN) {
        refuse(w, c,
               "the worker is of another version: run the same version of moe-offload on "
               "all machines");
    } else if (c->proved && message.kind == MOE_MESSAGE_HOLD &&
               message.n_bytes == moe_expert_bit_bytes(&w->parts->identity)) {
        hold(w, &message);
    } else if (c->proved) {
        do_job(w, c, &message);
    } else if (c->greeted) {
        check_proof(w, c, &message);
    } else {
        challenge(w, c, &message);
    }
}

static void take(worker *w, const moe_wire_event *event)
{
    coordinator *c = find(w, event->peer);
    switch (event->kind) {
    case MOE_WIRE_JOINED:
        c = find(w, 0);
        if (c == NULL) {
            w->parts->wire->ops->drop(w->parts->wire, event->peer);
            return;
        }
        *c = (coordinator){.peer = event->peer, .since_ns = moe_now_ns()};
        break;
    case MOE_WIRE_MESSAGE:
        if (c != NULL) {
            take_message(w, c, event);
        }
        free(event->message);
        break;
    case MOE_WIRE_LOST:
        if (c != NULL) {
            c->peer = 0;
        }
        break;
    }
}

static void drop_slow(worker *w)
{
    uint64_t now = moe_now_ns();
    for (uint32_t i = 0; i < MOE_WIRE_MOST_PEERS; i++) {
        coordinator *c = &w->list[i];
        if (c->peer != 0 && !c->proved && now > c->since_ns + GREETING_NS) {
            drop(w, c);
        }
    }
}

int moe_worker_serve_wire(const moe_worker_parts *parts, moe_worker_counts *counts, moe_error *err)
{
    worker *w = moe_calloc(1, sizeof *w);
    moe_wire_event event;
    *counts = (moe_worker_counts){0};
    float *x = moe_calloc((size_t)parts->max_rows * parts->identity.n_in, sizeof *x);
    if (w == NULL || x == NULL) {
        free(w);
        free(x);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a worker");
    }
    w->x = x;
    w->parts = parts;
    w->counts = counts;
    while (!parts->is_stopped(parts->context)) {
        if (parts->wire->ops->next(parts->wire, LOOK_NS, &event)) {
            take(w, &event);
        } else {
            parts->idle(parts->context);
        }
        drop_slow(w);
    }
    free(w);
    free(x);
    return MOE_OK;
}
