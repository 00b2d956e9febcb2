/* SPDX-License-Identifier: MIT */
/* Which card holds a layer's experts, on a device of several cards (runtime/device/cards.h). A
 * layer is whole on one card: its rows go there once, and come back once. */
#ifndef MOE_OFFLOAD_CARD_LAYERS_H
#define MOE_OFFLOAD_CARD_LAYERS_H

#include "runtime/device/cards.h"
#include "runtime/model/tensor_map.h"

/* Fills the cards in their order while whole layers fit; the layers that are left go to the card
 * whose slots they then share with the fewest others for its size. The first layer with experts is
 * on the first card; cards of 0 bytes get none. The same with each card's bytes cut to what it
 * holds. card_of_layer: [n_layer]; held: bytes of all experts of each card's layers, in slots. */
void moe_card_layers(const moe_tensor_map *map, const uint64_t *card_bytes, uint32_t n_cards,
                     uint8_t *card_of_layer, uint64_t held[MOE_MAX_CARDS]);

#endif
