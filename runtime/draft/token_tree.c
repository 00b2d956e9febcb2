/* SPDX-License-Identifier: MIT */
#include "runtime/draft/token_tree.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"

int moe_token_tree_init(moe_token_tree *tree, uint32_t max_nodes, moe_error *err)
{
    *tree = (moe_token_tree){.capacity = max_nodes};
    if (max_nodes == 0 || max_nodes > MOE_TREE_MAX_NODES) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "a token tree of %u nodes; 1 to %u", max_nodes,
                        MOE_TREE_MAX_NODES);
    }
    tree->nodes = moe_calloc(max_nodes, sizeof *tree->nodes);
    return tree->nodes != NULL
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "no memory for a token tree of %u nodes", max_nodes);
}

void moe_token_tree_free(moe_token_tree *tree)
{
    free(tree->nodes);
    *tree = (moe_token_tree){0};
}

/* Checks that the children of a node are in order. Adds their number to *n_linked. */
static bool children_are_sane(const moe_token_tree *tree, uint32_t node, uint32_t *n_linked)
{
    uint32_t last = MOE_NODE_NONE;
    uint32_t least = node + 1; /* of the next child's number */
    for (uint32_t c = tree->nodes[node].first_child; c != MOE_NODE_NONE;
         c = tree->nodes[c].next_sibling) {
        if (c < least || c >= tree->n || tree->nodes[c].parent != node) {
            return false;
        }
        for (uint32_t s = tree->nodes[node].first_child; s != c; s = tree->nodes[s].next_sibling) {
            if (tree->nodes[s].token == tree->nodes[c].token) {
                return false;
            }
        }
        last = c;
        least = c + 1;
        ++*n_linked;
    }
    return tree->nodes[node].last_child == last;
}

bool moe_token_tree_is_sane(const moe_token_tree *tree)
{
    uint32_t n_linked = 1;
    if (tree->nodes == NULL || tree->n == 0 || tree->n > tree->capacity ||
        tree->capacity > MOE_TREE_MAX_NODES) {
        return false;
    }
    for (uint32_t i = 0; i < tree->n; i++) {
        const moe_tree_node *node = &tree->nodes[i];
        const moe_tree_node *above = i > 0 && node->parent < i ? &tree->nodes[node->parent] : NULL;
        if (i > 0 ? above == NULL : node->parent != MOE_NODE_NONE) {
            return false;
        }
        if (node->depth != (above != NULL ? above->depth + 1 : 0) ||
            node->path != (above != NULL ? above->path * node->q : 1.0f) ||
            (i == 0 && node->next_sibling != MOE_NODE_NONE) ||
            !children_are_sane(tree, i, &n_linked)) {
            return false;
        }
    }
    return n_linked == tree->n;
}

static void make_node(moe_token_tree *tree, uint32_t parent, int32_t token, float q,
                      uint32_t drafter)
{
    MOE_ASSERT(tree->n < tree->capacity && (parent == MOE_NODE_NONE) == (tree->n == 0));
    MOE_ASSERT(parent == MOE_NODE_NONE || parent < tree->n);
    const moe_tree_node *above = parent != MOE_NODE_NONE ? &tree->nodes[parent] : NULL;
    tree->nodes[tree->n] = (moe_tree_node){.token = token,
                                           .parent = parent,
                                           .depth = above != NULL ? above->depth + 1 : 0,
                                           .first_child = MOE_NODE_NONE,
                                           .last_child = MOE_NODE_NONE,
                                           .next_sibling = MOE_NODE_NONE,
                                           .q = q,
                                           .path = above != NULL ? above->path * q : 1.0f,
                                           .drafter = drafter};
    tree->n++;
}

void moe_token_tree_reset(moe_token_tree *tree, int32_t root)
{
    tree->n = 0;
    make_node(tree, MOE_NODE_NONE, root, 1.0f, 0);
}

uint32_t moe_token_tree_child(const moe_token_tree *tree, uint32_t node, int32_t token)
{
    MOE_ASSERT(node < tree->n);
    uint32_t child = tree->nodes[node].first_child;
    while (child != MOE_NODE_NONE && tree->nodes[child].token != token) {
        child = tree->nodes[child].next_sibling;
    }
    return child;
}

static void link_child(moe_token_tree *tree, uint32_t parent, uint32_t child)
{
    MOE_ASSERT(parent < child && child < tree->n && tree->nodes[child].parent == parent);
    moe_tree_node *above = &tree->nodes[parent];
    if (above->first_child == MOE_NODE_NONE) {
        above->first_child = child;
    } else {
        tree->nodes[above->last_child].next_sibling = child;
    }
    above->last_child = child;
}

uint32_t moe_token_tree_add(moe_token_tree *tree, uint32_t parent, int32_t token, float q,
                            uint32_t drafter)
{
    uint32_t child = moe_token_tree_child(tree, parent, token);
    if (child != MOE_NODE_NONE || tree->n == tree->capacity) {
        return child;
    }
    make_node(tree, parent, token, q, drafter);
    link_child(tree, parent, tree->n - 1);
    MOE_ASSERT(moe_token_tree_is_sane(tree));
    return tree->n - 1;
}

void moe_token_tree_keep(moe_token_tree *tree, const bool *keep, uint32_t *moved)
{
    uint32_t own[MOE_TREE_MAX_NODES];
    uint32_t *to = moved != NULL ? moved : own;
    uint32_t before = tree->n;
    tree->n = 0;
    for (uint32_t i = 0; i < before; i++) {
        moe_tree_node node = tree->nodes[i];
        bool stays = i == 0 || (keep[i] && to[node.parent] != MOE_NODE_NONE);
        to[i] = stays ? tree->n : MOE_NODE_NONE;
        if (!stays) {
            continue;
        }
        node.parent = i == 0 ? MOE_NODE_NONE : to[node.parent];
        node.first_child = node.last_child = node.next_sibling = MOE_NODE_NONE;
        tree->nodes[tree->n++] = node;
        if (i > 0) {
            link_child(tree, node.parent, tree->n - 1);
        }
    }
    MOE_ASSERT(moe_token_tree_is_sane(tree));
}

/* Returns how many nodes rank before node i: those whose path is more probable, and of equal ones
 * those with a lower index. */
static uint32_t rank_of(const moe_token_tree *tree, uint32_t i)
{
    uint32_t rank = 0;
    for (uint32_t k = 0; k < tree->n; k++) {
        float a = tree->nodes[k].path;
        float b = tree->nodes[i].path;
        rank += a > b || (a == b && k < i);
    }
    return rank;
}

void moe_token_tree_prune(moe_token_tree *tree, uint32_t n, uint32_t *moved)
{
    bool keep[MOE_TREE_MAX_NODES];
    for (uint32_t i = 0; i < tree->n; i++) {
        keep[i] = rank_of(tree, i) < n;
    }
    moe_token_tree_keep(tree, keep, moved);
}

uint32_t moe_token_tree_path(const moe_token_tree *tree, uint32_t node, int32_t *tokens)
{
    MOE_ASSERT(node < tree->n);
    uint32_t depth = tree->nodes[node].depth;
    for (uint32_t at = node; at != 0; at = tree->nodes[at].parent) {
        MOE_ASSERT(tree->nodes[at].depth > 0 && tree->nodes[at].depth <= depth);
        tokens[tree->nodes[at].depth - 1] = tree->nodes[at].token;
    }
    return depth;
}
