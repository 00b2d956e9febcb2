/* SPDX-License-Identifier: MIT */
/* Decides which drafted tokens are accepted. Verification walks the tree from the root. At every
 * node the target's distribution is known. Either one of the node's children is accepted, or none:
 * then a token chosen by the target ends the walk. Lossless: emitted tokens have the same
 * distribution as without a draft (Leviathan et al. 2023 for a chain; for several candidates,
 * rounds of rejection without replacement). */
#ifndef MOE_DRAFT_ACCEPT_H
#define MOE_DRAFT_ACCEPT_H

#include "runtime/draft/token_tree.h"
#include "runtime/sampling/distribution.h"

/* Accepts by comparison. `choice` is the token that the model itself chose at this node (its most
 * likely token, or what its sampler drew). Returns the child with this token, or MOE_NODE_NONE if
 * there is none. The text is then exactly that of plain decoding with the same random numbers. */
uint32_t moe_accept_exact(const moe_token_tree *tree, uint32_t node, int32_t choice);

/* Rejection sampling. Changes target, which becomes the residual. draft: the distribution that the
 * node's children were drawn from, without replacement, in their order; it is changed, too. Every
 * drawn token must be among the children. draft is NULL if the children were picked rather than
 * drawn (the most likely ones, or an n-gram's): then each is accepted with probability p(x), and
 * otherwise p(x) becomes 0. Returns the accepted child, or MOE_NODE_NONE and in *token the token
 * emitted instead. For a node without children it only draws *token. */
uint32_t moe_accept_rejection(const moe_token_tree *tree, uint32_t node, moe_distribution *target,
                              moe_distribution *draft, moe_random *random, int32_t *token);

#endif
