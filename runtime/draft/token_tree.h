/* SPDX-License-Identifier: MIT */
/* A tree of drafted tokens. Node 0 is the root: the last token of the timeline, which verification
 * also evaluates. Every other node is a token proposed after its parent; a chain is a tree in which
 * every node has one child. Parents come before their children, siblings in the order in which they
 * were proposed, so a pass over the nodes in order is a pass over valid prefixes. */
#ifndef MOE_DRAFT_TOKEN_TREE_H
#define MOE_DRAFT_TOKEN_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/status.h>

#define MOE_TREE_MAX_NODES 512u /* including the root */
#define MOE_NODE_NONE      UINT32_MAX

typedef struct moe_tree_node {
    int32_t token;
    uint32_t parent; /* MOE_NODE_NONE for the root */
    uint32_t depth;  /* 0 for the root */
    uint32_t first_child;
    uint32_t last_child;
    uint32_t next_sibling;
    float q;          /* its drafter's probability after its parent; 1 if the drafter gives none */
    float path;       /* product of q from the root: the draft's confidence in the whole path */
    uint32_t drafter; /* its proposer: an index chosen by the caller */
} moe_tree_node;

typedef struct moe_token_tree {
    uint32_t n; /* nodes, including the root */
    uint32_t capacity;
    moe_tree_node *nodes; /* [capacity] */
} moe_token_tree;

/* Initialises a tree for at most max_nodes nodes (1 to MOE_TREE_MAX_NODES), including the root. */
int moe_token_tree_init(moe_token_tree *tree, uint32_t max_nodes, moe_error *err);
void moe_token_tree_free(moe_token_tree *tree);
/* Removes all nodes except the root, and gives the root this token. */
void moe_token_tree_reset(moe_token_tree *tree, int32_t root);
/* Adds a child, or returns the child that has this token already. Returns MOE_NODE_NONE if the
 * tree is full. */
uint32_t moe_token_tree_add(moe_token_tree *tree, uint32_t parent, int32_t token, float q,
                            uint32_t drafter);
uint32_t moe_token_tree_child(const moe_token_tree *tree, uint32_t node, int32_t token);
/* Keeps the nodes with keep[i] true and renumbers them. keep[] must be true for the root, and for
 * the parent of each node that is kept. moved (may be NULL): [old number of nodes] the new index
 * of each node, or MOE_NODE_NONE. */
void moe_token_tree_keep(moe_token_tree *tree, const bool *keep, uint32_t *moved);
/* Keeps the n nodes (including the root) whose paths are most probable; of equal ones, those with
 * a lower index. A child never ranks before its parent, so the result is a tree. */
void moe_token_tree_prune(moe_token_tree *tree, uint32_t n, uint32_t *moved);
/* Writes the tokens from the root's child down to `node` in order. Returns how many there are,
 * which is the node's depth. */
uint32_t moe_token_tree_path(const moe_token_tree *tree, uint32_t node, int32_t *tokens);

/* Checks what must hold between two calls: parents come before children, links and depths agree,
 * siblings have different tokens, and probabilities are the products along the path. O(nodes). */
bool moe_token_tree_is_sane(const moe_token_tree *tree);

#endif
