/* SPDX-License-Identifier: MIT */
/* Decides which card holds a layer's experts, on a device of several cards
 * (runtime/device/cards.h). All experts of a layer are on one card, so the layer's rows go to that
 * card and back once. */
#ifndef MOE_OFFLOAD_CARD_LAYERS_H
#define MOE_OFFLOAD_CARD_LAYERS_H

#include "runtime/device/cards.h"
#include "runtime/model/tensor_map.h"

/* Fills the cards in their order, as long as whole layers fit. Each of the remaining layers goes to
 * the card that is then least overfull for its size. The first layer with experts is on the first
 * card; cards of 0 bytes get no layer. The result stays the same if each card's bytes are cut to
 * what the card holds. card_of_layer: [n_layer]; held: for each card, the bytes of slots for all
 * experts of its layers. */
void moe_card_layers(const moe_tensor_map *map, const uint64_t *card_bytes, uint32_t n_cards,
                     uint8_t *card_of_layer, uint64_t held[MOE_MAX_CARDS]);

#endif
