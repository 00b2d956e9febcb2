/* SPDX-License-Identifier: MIT */
/* A tree of drafted tokens. Node 0 is the root: the last token of the timeline, which verification
 * evaluates too. Every other node is a token proposed after its parent; a chain is the tree in
 * which every node has one child. Parents stand before their children, siblings in the order in
 * which they were proposed, so a pass over the nodes in order is a pass over valid prefixes. */
#ifndef MOE_DRAFT_TOKEN_TREE_H
#define MOE_DRAFT_TOKEN_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/status.h>

#define MOE_TREE_MAX_NODES 512u /* with the root */
#define MOE_NODE_NONE      UINT32_MAX

typedef struct moe_tree_node {
    int32_t token;
    uint32_t parent; /* MOE_NODE_NONE for the root */
    uint32_t depth;  /* 0 for the root */
    uint32_t first_child;
    uint32_t last_child;
    uint32_t next_sibling;
    float q; /* probability that its drafter gave it after its parent; 1 when it names no other */
    float path;       /* product of q from the root: how sure the draft is of all of it */
    uint32_t drafter; /* who proposed it: an index of the caller's */
} moe_tree_node;

typedef struct moe_token_tree {
    uint32_t n; /* nodes, the root included */
    uint32_t capacity;
    moe_tree_node *nodes; /* [capacity] */
} moe_token_tree;

/* max_nodes in 1..MOE_TREE_MAX_NODES, the root included. */
int moe_token_tree_init(moe_token_tree *tree, uint32_t max_nodes, moe_error *err);
void moe_token_tree_free(moe_token_tree *tree);
/* Just the root. */
void moe_token_tree_reset(moe_token_tree *tree, int32_t root);
/* Adds a child, or returns the child that has this token already; MOE_NODE_NONE when the tree is
 * full. */
uint32_t moe_token_tree_add(moe_token_tree *tree, uint32_t parent, int32_t token, float q,
                            uint32_t drafter);
uint32_t moe_token_tree_child(const moe_token_tree *tree, uint32_t node, int32_t token);
/* Keeps the nodes for which keep[] holds (with the root and, for each, its parent) and renumbers
 * them; moved (may be NULL): [n before] the new index of each, or MOE_NODE_NONE. */
void moe_token_tree_keep(moe_token_tree *tree, const bool *keep, uint32_t *moved);
/* The n nodes (root included) with the greatest path, ties to the lower index; a parent never ranks
 * below its child, so what stays is a tree. */
void moe_token_tree_prune(moe_token_tree *tree, uint32_t n, uint32_t *moved);
/* Tokens from after the root down to node, in order; returns how many (its depth). */
uint32_t moe_token_tree_path(const moe_token_tree *tree, uint32_t node, int32_t *tokens);

/* What must hold between two calls: parents before children, links and depths that fit, siblings of
 * different tokens, and probabilities that are the product of those above. O(nodes). */
bool moe_token_tree_is_sane(const moe_token_tree *tree);

#endif
