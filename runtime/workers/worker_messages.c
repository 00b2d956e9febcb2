/* SPDX-License-Identifier: MIT */
#include "runtime/workers/worker_messages.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/base/alloc.h"
#include "runtime/base/moe_assert.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "messages are sent as they lie in memory");

#define MAGIC 0x4b574f4du /* "MOWK" */

typedef struct message_head {
    uint32_t magic;
    uint16_t protocol, kind;
    uint64_t id;
    uint64_t n_payload;
    uint64_t sum; /* XXH3 of the payload, seeded by the XXH3 of this head with sum = 0 */
} message_head;

_Static_assert(sizeof(message_head) == 32, "no padding");
_Static_assert(sizeof(moe_worker_identity) == 24 && sizeof(moe_proof) == 56, "no padding");
_Static_assert(sizeof(moe_welcome) == 40, "no padding");

static uint64_t sum_of(const message_head *head, const uint8_t *payload)
{
    message_head zeroed = *head;
    zeroed.sum = 0;
    uint64_t seed = XXH3_64bits(&zeroed, sizeof zeroed);
    return XXH3_64bits_withSeed(payload, head->n_payload, seed);
}

uint8_t *moe_message_new(moe_message_kind kind, uint64_t id, size_t n_payload, uint8_t **payload,
                         size_t *n_bytes)
{
    const message_head head = {.magic = MAGIC,
                               .protocol = MOE_WORKER_PROTOCOL,
                               .kind = (uint16_t)kind,
                               .id = id,
                               .n_payload = n_payload};
    *n_bytes = sizeof head + n_payload;
    uint8_t *message = moe_realloc_array(NULL, *n_bytes, 1);
    if (message != NULL) {
        memcpy(message, &head, sizeof head);
        *payload = message + sizeof head;
    }
    return message;
}

void moe_message_seal(uint8_t *message, size_t n_bytes)
{
    message_head head;
    memcpy(&head, message, sizeof head);
    MOE_ASSERT(n_bytes == sizeof head + head.n_payload);
    (void)n_bytes;
    head.sum = sum_of(&head, message + sizeof head);
    memcpy(message, &head, sizeof head);
}

void moe_message_send(moe_wire *wire, uint64_t peer, moe_message_kind kind, uint64_t id,
                      const void *payload, size_t n_bytes)
{
    uint8_t *to;
    size_t n;
    uint8_t *message = moe_message_new(kind, id, n_bytes, &to, &n);
    if (message == NULL) {
        return; /* the peer notices by its time-out */
    }
    memcpy(to, payload, n_bytes);
    moe_message_seal(message, n);
    wire->ops->send(wire, peer, message, n);
}

moe_message_state moe_message_read(const uint8_t *bytes, size_t n, moe_message *message)
{
    message_head head;
    if (n < sizeof head) {
        return MOE_MESSAGE_DAMAGED;
    }
    memcpy(&head, bytes, sizeof head);
    if (head.n_payload != n - sizeof head || head.sum != sum_of(&head, bytes + sizeof head)) {
        return MOE_MESSAGE_DAMAGED;
    }
    if (head.magic != MAGIC || head.protocol != MOE_WORKER_PROTOCOL ||
        head.kind < MOE_MESSAGE_HELLO || head.kind > MOE_MESSAGE_HELD) {
        return MOE_MESSAGE_FOREIGN;
    }
    *message = (moe_message){.kind = (moe_message_kind)head.kind,
                             .id = head.id,
                             .payload = bytes + sizeof head,
                             .n_bytes = head.n_payload};
    return MOE_MESSAGE_GOOD;
}

void moe_message_text(const moe_message *message, char *text, size_t size)
{
    size_t n = message->n_bytes < size - 1 ? message->n_bytes : size - 1;
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = message->payload[i];
        text[i] = (char)(byte >= ' ' && byte <= '~' ? byte : '?');
    }
    text[n] = '\0';
}

size_t moe_message_most_bytes(const moe_worker_identity *m, uint32_t max_rows)
{
    size_t job = moe_job_bytes(m, MOE_ROWS_FLOAT, max_rows);
    size_t result = moe_result_bytes(m, max_rows * m->n_used);
    size_t bits = sizeof(moe_welcome) + 2 * moe_expert_bit_bytes(m);
    size_t most = job > result ? job : result;
    most = most > bits ? most : bits;
    return most > MOE_WIRE_FIRST_BYTES ? sizeof(message_head) + most
                                       : sizeof(message_head) + MOE_WIRE_FIRST_BYTES; /* texts */
}

void moe_worker_mac(const moe_wire *wire, const moe_worker_key *key, bool is_worker,
                    const moe_nonce *of_coordinator, const moe_nonce *of_worker,
                    const moe_worker_identity *identity, uint8_t mac[MOE_WIRE_MAC_BYTES])
{
    struct {
        char who[16];
        moe_nonce coordinator, worker;
        moe_worker_identity identity;
        uint64_t key_bytes; /* because HMAC ignores zeros at a key's end */
    } said = {.who = "coordinator",
              .coordinator = *of_coordinator,
              .worker = *of_worker,
              .identity = *identity,
              .key_bytes = key->n_bytes};
    _Static_assert(sizeof said == 80, "no padding");
    if (is_worker) {
        memcpy(said.who, "worker\0\0\0\0\0\0", 12);
    }
    wire->mac(key->bytes, key->n_bytes, (const uint8_t *)&said, sizeof said, mac);
}

bool moe_worker_mac_is(const uint8_t mac[MOE_WIRE_MAC_BYTES],
                       const uint8_t expected[MOE_WIRE_MAC_BYTES])
{
    uint8_t differs = 0;
    for (size_t i = 0; i < MOE_WIRE_MAC_BYTES; i++) {
        differs |= (uint8_t)(mac[i] ^ expected[i]);
    }
    return differs == 0;
}
