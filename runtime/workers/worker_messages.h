/* SPDX-License-Identifier: MIT */
/* What coordinators and workers say to each other over a wire. A coordinator has sessions and lets
 * workers compute experts:
 *
 *    coordinator                               worker
 *    HELLO: a random number          ->
 *                                    <-        CHALLENGE: another random number
 *    PROOF: knows the key; its model ->
 *                                    <-        WELCOME: knows the key; its experts
 *                                              (or REFUSED)
 *    JOB: rows, and their experts    ->
 *                                    <-        RESULT: the experts' outputs (or FAILED)
 *    HOLD: other experts to have     ->
 *                                    <-        HELD: its experts from now on, to all coordinators
 *
 * Every message has a checksum. Numbers are little-endian. This file checks messages from a peer;
 * the lengths of a job's parts are checked where the model is known. */
#ifndef MOE_WORKERS_WORKER_MESSAGES_H
#define MOE_WORKERS_WORKER_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/wire/wire.h"
#include "runtime/workers/worker_rows.h"

/* Both ends must have the same number. It changes with the messages and with the arithmetic of
 * experts. */
#define MOE_WORKER_PROTOCOL 3u
#define MOE_NONCE_BYTES     16u

typedef enum moe_message_kind {
    MOE_MESSAGE_HELLO = 1, /* moe_nonce */
    MOE_MESSAGE_CHALLENGE, /* moe_nonce */
    MOE_MESSAGE_PROOF,     /* moe_proof */
    /* moe_welcome, then bits of the experts that the worker has, then of those that its file has */
    MOE_MESSAGE_WELCOME,
    MOE_MESSAGE_REFUSED, /* a text */
    MOE_MESSAGE_JOB,     /* moe_job_head, then arrays (see there) */
    MOE_MESSAGE_RESULT,  /* moe_result_head, then float [n_outs][n_in] */
    MOE_MESSAGE_FAILED,  /* a text */
    MOE_MESSAGE_HOLD,    /* bits of the experts that the worker shall have */
    MOE_MESSAGE_HELD     /* bits of the experts that it has */
} moe_message_kind;

typedef struct moe_message {
    moe_message_kind kind;
    uint64_t id; /* of a job; its answer has the same id */
    const uint8_t *payload;
    size_t n_bytes; /* of the payload */
} moe_message;

typedef struct moe_nonce {
    uint8_t bytes[MOE_NONCE_BYTES];
} moe_nonce;

/* An end's model, with the numbers from which lengths of messages follow. */
typedef struct moe_worker_identity {
    uint64_t fingerprint;
    uint32_t n_layer, n_expert, n_used, n_in;
} moe_worker_identity;

typedef struct moe_proof {
    uint8_t mac[MOE_WIRE_MAC_BYTES];
    moe_worker_identity identity;
} moe_proof;

typedef struct moe_welcome {
    uint8_t mac[MOE_WIRE_MAC_BYTES];
    uint32_t max_rows; /* of a job */
    uint32_t n_slots;  /* experts that its memory has room for */
} moe_welcome;

/* A job. Behind the head: the rows, in their form; uint32_t chosen [n_rows][n_used],
 * MOE_PLAN_NO_EXPERT for an expert that this worker does not compute; float weights
 * [n_rows][n_used]. */
typedef struct moe_job_head {
    uint32_t layer, n_rows;
    uint32_t form; /* moe_rows_form */
    uint32_t reserved;
} moe_job_head;

/* n_outs: as many as the job has experts, in the order of its `chosen`. */
typedef struct moe_result_head {
    uint32_t n_outs, reserved;
} moe_result_head;

/* Makes a message with room for n_payload bytes, which are not set. Returns NULL if memory is
 * short. The caller seals the message, then sends or frees it. */
uint8_t *moe_message_new(moe_message_kind kind, uint64_t id, size_t n_payload, uint8_t **payload,
                         size_t *n_bytes);
/* Sets the checksum, after the payload was filled in. */
void moe_message_seal(uint8_t *message, size_t n_bytes);
/* Makes and sends a message with a copy of the payload. */
void moe_message_send(moe_wire *wire, uint64_t peer, moe_message_kind kind, uint64_t id,
                      const void *payload, size_t n_bytes);
typedef enum moe_message_state {
    MOE_MESSAGE_GOOD,
    MOE_MESSAGE_DAMAGED,
    MOE_MESSAGE_FOREIGN /* of another version, or of something else */
} moe_message_state;

/* Checks n bytes from a peer, and sets *message to the parts. */
moe_message_state moe_message_read(const uint8_t *bytes, size_t n, moe_message *message);
/* Copies a peer's text, up to size - 1 bytes; bytes that are not printable ASCII become '?'. */
void moe_message_text(const moe_message *message, char *text, size_t size);

/* Payload bytes of a job and of its result. */
static inline size_t moe_job_bytes(const moe_worker_identity *m, moe_rows_form form,
                                   uint32_t n_rows)
{
    return sizeof(moe_job_head) + moe_rows_bytes(form, n_rows, m->n_in) +
           (size_t)n_rows * 2 * m->n_used * 4;
}

static inline size_t moe_result_bytes(const moe_worker_identity *m, uint32_t n_outs)
{
    return sizeof(moe_result_head) + (size_t)n_outs * m->n_in * 4;
}

/* Bytes of bits for all experts: bit layer * n_expert + expert. */
static inline size_t moe_expert_bit_bytes(const moe_worker_identity *m)
{
    return ((size_t)m->n_layer * m->n_expert + 7) / 8;
}

/* Returns the largest size of a message for this model, if jobs have up to max_rows rows. */
size_t moe_message_most_bytes(const moe_worker_identity *identity, uint32_t max_rows);

/* A key that both ends have. */
typedef struct moe_worker_key {
    const uint8_t *bytes;
    size_t n_bytes; /* 0: none, for peers on this machine */
} moe_worker_key;

/* Computes the proof that an end knows the key. The two ends prove it with different values for the
 * same two random numbers. */
void moe_worker_mac(const moe_wire *wire, const moe_worker_key *key, bool is_worker,
                    const moe_nonce *of_coordinator, const moe_nonce *of_worker,
                    const moe_worker_identity *identity, uint8_t mac[MOE_WIRE_MAC_BYTES]);
/* Compares in a time that does not depend on the bytes. */
bool moe_worker_mac_is(const uint8_t mac[MOE_WIRE_MAC_BYTES],
                       const uint8_t expected[MOE_WIRE_MAC_BYTES]);

#endif
