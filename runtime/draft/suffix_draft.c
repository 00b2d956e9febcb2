/* SPDX-License-Identifier: MIT */
/* An index of the timeline for finding earlier occurrences of its last tokens. Each position is
 * linked to the latest earlier position at which the same two tokens end:
 *
 * head[hash(t[p-1], t[p])] -> p -> earlier position with the same pair -> ...
 *
 * A proposal follows the links from the timeline's last pair, and measures at each occurrence how
 * many tokens before it agree with the timeline's end. The occurrences that agree for longest
 * vote on the next token. Appending a token adds a link; removing one takes the link off. */
#include "runtime/draft/suffix_draft.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

#define PAIR              2u /* tokens of a chain's key */
#define DEFAULT_MIN_MATCH 2u
#define DEFAULT_MAX_MATCH 32u
#define MOST_OCCURRENCES  64u  /* that vote */
#define MOST_VISITED      256u /* positions of a chain */
#define NONE              UINT32_MAX

struct moe_suffix_index {
    int32_t *tokens;
    uint32_t *previous; /* [n] the chain */
    uint32_t n, capacity;
    uint32_t *heads; /* [n_heads], a power of two: the latest position, or NONE */
    uint32_t n_heads;
};

int moe_suffix_index_create(moe_suffix_index **out, moe_error *err)
{
    *out = moe_calloc(1, sizeof **out);
    return *out != NULL ? MOE_OK : moe_fail(err, MOE_ERR_MEMORY, "no memory for an n-gram index");
}

void moe_suffix_index_free(moe_suffix_index **index)
{
    if (*index != NULL) {
        free((*index)->tokens);
        free((*index)->previous);
        free((*index)->heads);
        free(*index);
        *index = NULL;
    }
}

/* Returns the head of a pair's list. Different pairs may share a head, so code that follows the
 * list must compare the tokens. */
static uint32_t *head_of_pair(const moe_suffix_index *index, int32_t first, int32_t second)
{
    uint64_t pair = (uint64_t)(uint32_t)first << 32 | (uint32_t)second;
    uint64_t hash = (pair ^ (pair >> 29)) * 0x9e3779b97f4a7c15u;
    return &index->heads[(hash >> 32) & (index->n_heads - 1)];
}

static uint32_t *head_of(const moe_suffix_index *index, uint32_t position)
{
    return head_of_pair(index, index->tokens[position - 1], index->tokens[position]);
}

static void append(moe_suffix_index *index, int32_t token)
{
    uint32_t position = index->n++;
    index->tokens[position] = token;
    if (position + 1 >= PAIR) {
        uint32_t *head = head_of(index, position);
        index->previous[position] = *head;
        *head = position;
    }
}

void moe_suffix_index_cut(moe_suffix_index *index, uint32_t n)
{
    while (index->n > n) {
        uint32_t position = index->n - 1;
        if (position + 1 >= PAIR) {
            *head_of(index, position) = index->previous[position];
        }
        index->n = position;
    }
}

static void clear(moe_suffix_index *index)
{
    free(index->tokens);
    free(index->previous);
    free(index->heads);
    *index = (moe_suffix_index){0};
}

static int grow(moe_suffix_index *index, uint32_t n, moe_error *err)
{
    if (n <= index->capacity) {
        return MOE_OK;
    }
    uint32_t capacity = 1024;
    while (capacity < n) {
        capacity *= 2;
    }
    int32_t *tokens = moe_realloc_array(index->tokens, capacity, sizeof *tokens);
    index->tokens = tokens != NULL ? tokens : index->tokens;
    uint32_t *previous = moe_realloc_array(index->previous, capacity, sizeof *previous);
    index->previous = previous != NULL ? previous : index->previous;
    uint32_t *heads = moe_realloc_array(index->heads, capacity, sizeof *heads);
    index->heads = heads != NULL ? heads : index->heads;
    if (tokens == NULL || previous == NULL || heads == NULL) {
        clear(index);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for an n-gram index of %u tokens", n);
    }
    index->capacity = index->n_heads = capacity;
    memset(heads, 0xff, capacity * sizeof *heads); /* NONE */
    uint32_t before = index->n;
    index->n = 0;
    for (uint32_t i = 0; i < before; i++) {
        append(index, tokens[i]);
    }
    return MOE_OK;
}

int moe_suffix_index_update(moe_suffix_index *index, const int32_t *tokens, uint32_t n,
                            moe_error *err)
{
    moe_suffix_index_cut(index, n);
    MOE_TRY(grow(index, n, err));
    for (uint32_t i = index->n; i < n; i++) {
        append(index, tokens[i]);
    }
    return MOE_OK;
}

/* ---- Proposing ---- */

/* An earlier occurrence of the timeline's last tokens: the position of its last token. */
typedef struct occurrence {
    uint32_t position;
    uint32_t match; /* tokens that agree, counted back from there */
} occurrence;

typedef struct context {
    const moe_suffix_index *index;
    int32_t path[MOE_TREE_MAX_NODES]; /* tokens after the timeline's end, down to the node */
    uint32_t n_path;
} context;

/* Returns the context's i-th token, counted from its end. */
static int32_t from_end(const context *c, uint32_t i)
{
    return i < c->n_path ? c->path[c->n_path - 1 - i]
                         : c->index->tokens[c->index->n - 1 - (i - c->n_path)];
}

static uint32_t match_length(const context *c, uint32_t position, uint32_t most)
{
    uint32_t length = 0;
    uint32_t available = c->index->n + c->n_path;
    while (length < most && length <= position && length < available &&
           c->index->tokens[position - length] == from_end(c, length)) {
        length++;
    }
    return length;
}

/* Finds the occurrences with the longest match, the latest first. Returns how many there are. */
static uint32_t find_longest(const context *c, const moe_suffix_options *o, occurrence *found)
{
    uint32_t least = o->min_match > DEFAULT_MIN_MATCH ? o->min_match : DEFAULT_MIN_MATCH;
    uint32_t most = o->max_match > 0 ? o->max_match : DEFAULT_MAX_MATCH;
    uint32_t n = 0;
    uint32_t longest = least;
    if (c->index->n + c->n_path < PAIR || c->index->n == 0) {
        return 0;
    }
    uint32_t position = *head_of_pair(c->index, from_end(c, 1), from_end(c, 0));
    for (uint32_t i = 0; i < MOST_VISITED && position != NONE; i++) {
        uint32_t next = c->index->previous[position];
        uint32_t match = position + 1 < c->index->n ? match_length(c, position, most) : 0;
        if (match > longest) {
            longest = match;
            n = 0;
        }
        if (match == longest && match >= least && n < MOST_OCCURRENCES) {
            found[n++] = (occurrence){position, match};
        }
        position = next;
    }
    return n;
}

/* Returns the token that follows an occurrence at this depth. Behind the end of the timeline it
 * continues in the draft itself, so that a text which repeats every few tokens continues to
 * repeat. */
static int32_t following(const context *c, const occurrence *o, uint32_t depth)
{
    uint32_t at = o->position + depth;
    return at < c->index->n ? c->index->tokens[at] : c->path[at - c->index->n];
}

static uint32_t count_token(const context *c, const occurrence *found, uint32_t n, uint32_t depth,
                            int32_t token)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        count += following(c, &found[i], depth) == token;
    }
    return count;
}

/* Returns the token with which most occurrences continue. Of several that are equally frequent,
 * returns that of the latest occurrence. */
static int32_t most_frequent(const context *c, const occurrence *found, uint32_t n, uint32_t depth)
{
    int32_t token = following(c, &found[0], depth);
    uint32_t best = 0;
    for (uint32_t i = 0; i < n && best < n - i; i++) {
        int32_t own = following(c, &found[i], depth);
        uint32_t count = count_token(c, found + i, n - i, depth, own);
        if (count > best) {
            best = count;
            token = own;
        }
    }
    return token;
}

/* Estimates the probability that the proposed token is right, from the share of voters that agree
 * and the length of the match. The constants fit how often drafts from a model's own text were
 * right (bench/results/drafters.md). */
static float confidence(uint32_t votes, uint32_t n_voters, uint32_t match)
{
    float length = 1.0f - 1.0f / (float)(match * match);
    return length * (float)votes / ((float)n_voters + 0.25f);
}

/* Adds a path below `node`: the continuation of the occurrence `leader` (NULL: of most
 * occurrences). The confidence in each token comes from all occurrences that agree with the path
 * so far. Changes `found`. Returns the number of nodes added, at most max_nodes. */
static uint32_t add_path(context *c, const moe_suffix_options *o, occurrence *found, uint32_t n,
                         const occurrence *leader, uint32_t node, uint32_t max_nodes,
                         moe_token_tree *tree)
{
    uint32_t before = tree->n;
    uint32_t n_path = c->n_path;
    for (uint32_t depth = 1; depth <= o->max_depth && tree->n - before < max_nodes; depth++) {
        int32_t token =
            leader != NULL ? following(c, leader, depth) : most_frequent(c, found, n, depth);
        uint32_t match = found[0].match + depth - 1;
        uint32_t n_left = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (following(c, &found[i], depth) == token) {
                found[n_left++] = found[i];
            }
        }
        node = moe_token_tree_add(tree, node, token, confidence(n_left, n, match), o->drafter);
        if (node == MOE_NODE_NONE) {
            break;
        }
        c->path[n_path + depth - 1] = token;
        n = n_left;
    }
    return tree->n - before;
}

uint32_t moe_suffix_propose(const moe_suffix_index *index, const moe_suffix_options *options,
                            uint32_t node, moe_token_tree *tree)
{
    context c = {.index = index};
    occurrence found[MOST_OCCURRENCES], group[MOST_OCCURRENCES];
    c.n_path = moe_token_tree_path(tree, node, c.path);
    uint32_t n = find_longest(&c, options, found);
    uint32_t added = 0;
    if (n > 0) {
        memcpy(group, found, n * sizeof *found);
        added = add_path(&c, options, group, n, NULL, node, options->max_nodes, tree);
    }
    /* If there is room for more nodes, also adds the continuation of each single occurrence, the
     * latest first. */
    for (uint32_t i = 0; i < n && options->max_nodes > options->max_depth; i++) {
        memcpy(group, found, n * sizeof *found);
        added += add_path(&c, options, group, n, &found[i], node, options->max_nodes - added, tree);
    }
    return added;
}

uint32_t moe_suffix_match_length(const moe_suffix_index *index, const moe_suffix_options *options)
{
    context c = {.index = index};
    occurrence found[MOST_OCCURRENCES];
    return find_longest(&c, options, found) > 0 ? found[0].match : 0;
}
