/* SPDX-License-Identifier: MIT */
#include "offload/card_layers.h"

#include <string.h>

/* Bytes of device slots for all experts of a layer. */
static uint64_t layer_bytes(const moe_tensor_map *map, const moe_expert_ref *expert)
{
    uint64_t bytes = 0;
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        bytes += (expert->parts[p].size + 63) & ~UINT64_C(63);
    }
    return bytes * map->n_expert;
}

/* The card for a layer of this size. */
static uint32_t card_for(const uint64_t *card_bytes, const uint64_t *held, uint32_t n_cards,
                         uint64_t bytes)
{
    uint32_t best = 0;
    double least = -1.0;
    for (uint32_t k = 0; k < n_cards; k++) {
        if (held[k] + bytes <= card_bytes[k]) {
            return k;
        }
    }
    for (uint32_t k = 0; k < n_cards; k++) {
        double load = card_bytes[k] > 0 ? (double)(held[k] + bytes) / (double)card_bytes[k] : -1.0;
        if (load >= 0.0 && (least < 0.0 || load < least)) {
            least = load;
            best = k;
        }
    }
    return best;
}

void moe_card_layers(const moe_tensor_map *map, const uint64_t *card_bytes, uint32_t n_cards,
                     uint8_t *card_of_layer, uint64_t held[MOE_MAX_CARDS])
{
    bool any = false;
    memset(held, 0, MOE_MAX_CARDS * sizeof *held);
    for (uint32_t l = 0; l < map->n_layer; l++) {
        const moe_expert_ref *experts = map->layers[l].experts;
        card_of_layer[l] = 0;
        if (experts == NULL) {
            continue;
        }
        uint64_t bytes = layer_bytes(map, &experts[0]);
        uint32_t card = any ? card_for(card_bytes, held, n_cards, bytes) : 0;
        any = true;
        held[card] += bytes;
        card_of_layer[l] = (uint8_t)card;
    }
}
