/* SPDX-License-Identifier: MIT */
/* Several cards of one kind as one device.
 *
 * The first card is the device: it holds and computes everything except routed experts. The other
 * cards hold expert slots, and compute the experts in them (moe_cards_experts()). The rows that
 * such a call reads go to the card through host memory. Its results come back the same way, and are
 * put where the first card would have written them. Each row of results is computed by one card, as
 * on any device, and the first card adds the rows up. So bits do not depend on the number of cards.
 *
 * moe_cards_join() replaces a few operations of the first card; all others remain its own. Joined
 * cards record nothing (moe_device.recording is NULL). */
#ifndef MOE_DEVICE_CARDS_H
#define MOE_DEVICE_CARDS_H

#include "runtime/device/device.h"

#define MOE_MAX_CARDS 8u

/* Takes over the other cards, also on failure. Their links must have host_share(). */
int moe_cards_join(moe_device *first, moe_device *const *others, uint32_t n_others, moe_error *err);

/* The number of cards; 1 for a single device. */
uint32_t moe_cards_n(const moe_device *device);

/* For a card > 0: the bytes that expert slots may take, beside its scratch and its transfer buffers
 * for passes of these sizes. most: the most of the card's memory to use; 0: all of it. */
uint64_t moe_cards_room(const moe_device *device, uint32_t card, const moe_device_limits *limits,
                        uint64_t most);
/* Host memory that reserve() takes for rows in transit between cards; 0 for a single device. */
uint64_t moe_cards_host_bytes(const moe_device *device, const moe_device_limits *limits);

/* Memory for expert slots on a card. */
int moe_cards_alloc(moe_device *device, uint32_t card, size_t bytes, void **memory, moe_error *err);
void moe_cards_free(moe_device *device, uint32_t card, void *memory, size_t bytes);

/* Like the device's experts(), on any of its cards. The weights of all works must be on one
 * card. */
int moe_cards_experts(moe_device *device, const float *x, uint32_t n_x_rows, uint32_t n_in,
                      const moe_expert_work *works, uint32_t n_works, float *out, size_t out_stride,
                      moe_error *err);

/* Counts the calls of moe_cards_experts() for other cards, the rows sent there, and the bytes sent
 * there and back. */
typedef struct moe_cards_counts {
    uint64_t n_calls, n_rows, bytes_there, bytes_back;
} moe_cards_counts;
void moe_cards_count(const moe_device *device, moe_cards_counts *counts);

#endif
