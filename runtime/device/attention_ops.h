/* SPDX-License-Identifier: MIT */
/* The part of the device contract for heads, the KV cache and attention. */
#ifndef MOE_DEVICE_ATTENTION_OPS_H
#define MOE_DEVICE_ATTENTION_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct moe_rope {
    float *x; /* device, in place: head h of row r at x + r*row_stride + h*head_stride */
    size_t row_stride;
    size_t head_stride;
    uint32_t n_head;
    uint32_t n_rot;
    bool interleaved; /* pairs (2i, 2i+1), else (i, i + n_rot/2) */
    const float *cos; /* host, [n_rows][n_rot / 2] */
    const float *sin;
} moe_rope;

/* How one layer's keys and values lie in a page of the KV cache, which holds MOE_KV_PAGE positions:
 * [head][position] rows of keys from k_offset, of values from v_offset.
 *
 * Layers that see the same span of positions form a group, which has pages of its own. A table of
 * pages has an entry for each group, page by page: entry p * (n_other_groups + 1) + group holds the
 * stored positions [p * MOE_KV_PAGE, (p + 1) * MOE_KV_PAGE) of the group's layers. */
typedef struct moe_kv_layout {
    int type;                /* moe_kv_type */
    uint32_t group;          /* the layer's */
    uint32_t n_other_groups; /* 0 unless the device has MOE_DEVICE_KV_GROUPS */
    uint32_t n_head_kv;
    uint32_t k_dim;
    uint32_t v_dim;
    size_t k_row_bytes;
    size_t v_row_bytes;
    size_t k_offset;
    size_t v_offset; /* with MLA equal to k_offset: a value is the first part of its key */
    bool v_in_k;     /* nothing to store for values */
} moe_kv_layout;

/* The entry of a table of pages for page `page` of the positions. */
static inline size_t moe_kv_entry(const moe_kv_layout *layout, uint32_t page)
{
    return (size_t)page * (layout->n_other_groups + 1) + layout->group;
}

/* A row's place in the cache, and what it sees: the logical positions 0..position of its timeline,
 * including itself. The pages are those of moe_kv_layout.
 *
 * A row of a plain timeline is stored at its logical position. A node of a token tree is not:
 * siblings have the same logical position but need a place each. Node i of a tree whose root is at
 * `base` is therefore stored at base + i, while its logical position is base + its depth. Its path
 * says where its ancestors are:
 *
 *    logical   0 .. path_first - 1   path_first .. position
 *    stored    0 .. path_first - 1   path[0]    .. path[position - path_first], which is `stored`
 *
 * The logical position decides the rotary embedding and the order of the sums (attention's blocks
 * are MOE_KV_PAGE logical positions, wherever they are stored), so a node's bits are those of a
 * timeline that holds only its ancestors. No two rows of a pass are stored in one place. */
typedef struct moe_kv_row {
    void *const *pages; /* host array of device pages */
    uint32_t position;  /* logical */
    uint32_t stored;    /* where kv_store() puts its key and value */
    /* Host, [position - path_first + 1], any stored positions of the pages, each once. NULL: the
     * row sees positions 0..position at their own places, and stored == position. */
    const uint32_t *path;
    uint32_t path_first; /* 0..position; not used without a path */
} moe_kv_row;

/* A row of a plain timeline. */
static inline moe_kv_row moe_kv_row_at(void *const *pages, uint32_t position)
{
    return (moe_kv_row){.pages = pages, .position = position, .stored = position};
}

/* Where a logical position that the row sees is stored. */
static inline uint32_t moe_kv_row_stored(const moe_kv_row *row, uint32_t position)
{
    return row->path == NULL || position < row->path_first ? position
                                                           : row->path[position - row->path_first];
}

/* Moves stored positions of one page table, for keys and values of every layer: the accepted nodes
 * of a tree to their places in the timeline. The result is that of moving one after the other, i
 * ascending: to[i] may be from[j] of a j < i, and never is of a j > i. A position of `from` that is
 * not in `to` keeps its content. */
typedef struct moe_kv_move {
    const moe_kv_layout *layouts; /* [n_layouts]: one for each layer in the pages */
    uint32_t n_layouts;
    void *const *pages;   /* host array of device pages; those of `to` are writable */
    const uint32_t *from; /* host, [n], strictly ascending */
    const uint32_t *to;   /* host, [n], strictly ascending; to[i] <= from[i] */
    uint32_t n;
} moe_kv_move;

/* An entry of a path with this bit is a row of the second layout, not a stored position: row i is
 * the i % MOE_KV_PAGE-th of its page i / MOE_KV_PAGE. */
#define MOE_KV_BESIDE (UINT32_C(1) << 31)

typedef struct moe_attention {
    moe_kv_layout layout;
    const moe_kv_layout *beside; /* the second, whose values are its keys; NULL: there is none */
    const moe_kv_row *rows;      /* host, [n_rows] */
    const float *q;              /* device, [n_rows][n_head][k_dim] */
    uint32_t n_head;
    float scale;
    float cap; /* 0: none; else scores are capped softly: cap * tanh(score / cap) */
    /* Of the positions 0..position a row sees the last `window`, including itself; 0: all. Of those
     * it sees the ones of its own chunk, where chunk c is [c * chunk, (c + 1) * chunk); 0: there
     * are no chunks. Positions that no row sees are not read, and their page may be missing. */
    uint32_t window;
    uint32_t chunk;
    /* Device, [n_head] or NULL: each head's softmax has one more score, without a value. The
     * running state of attend_merge() begins with it: (max, sum, out) is (sink, 1, 0). */
    const float *sinks;
    /* Host, [n_rows] or NULL: row r's scale is scale * row_scales[r]. */
    const float *row_scales;
    /* With MOE_DEVICE_CHOICE, what choose() has chosen: device, [n_rows][n_chosen], or NULL. A row
     * that sees more positions attends to these, as to a path of path_first 0. Without windows and
     * chunks. */
    const uint32_t *chosen;
    uint32_t n_chosen;
    uint32_t
        chosen_block; /* 0, or: they are so large blocks, the last of which ends with the row */
    float *out;       /* device, [n_rows][n_head][v_dim] */
} moe_attention;

/* The positions that an indexer chooses for each row that sees more than n_chosen: those with the
 * highest scores, of equal ones the lowest positions. The score of a position is fmaf(weight, p > 0
 * ? p : 0, score) from +0 over the heads, p being the product of linear() of the head's query and
 * the position's index key, which is stored behind its key. */
/* With blocks, each head chooses for itself n_chosen / block of the blocks of so many positions up
 * to the row's: the last n_local, and of the others those with the highest scores, of equal ones
 * the lowest. A block's score is the highest product of its positions, NaN if one is. */
#define MOE_CHOICE_MAX_DIM 256u
typedef struct moe_position_choice {
    moe_kv_layout layout;
    size_t key_offset;      /* bytes from a position's key to its index key */
    const moe_kv_row *rows; /* host, [n_rows] */
    const float *queries;   /* device, [n_rows][n_head][dim] */
    const float *weights;   /* device, [n_rows][n_head]; not with blocks */
    uint32_t n_head, dim;
    uint32_t n_chosen;
    uint32_t block, n_local; /* 0: positions are chosen */
    float *scores;           /* device, scratch: [n_scores] */
    size_t n_scores;  /* at least as many as any row sees positions, or as the heads have blocks of
                       * them; more take more rows at once */
    uint32_t *chosen; /* device, out: [n_rows][n_chosen] where they are stored, ascending by logical
                       * position; nothing is written for rows that see no more. With blocks
                       * [n_head][n_rows][n_chosen]; the last block may end before. */
} moe_position_choice;

/* How many chosen positions a row attends to, which is at `position`. */
static inline uint32_t moe_chosen_positions(const moe_attention *attention, uint32_t position)
{
    const uint32_t block = attention->chosen_block > 0 ? attention->chosen_block : 1;
    return attention->n_chosen - block + position % block + 1;
}

/* The first position that a row sees. The sums over its page begin with it. */
static inline uint32_t moe_attention_first(const moe_attention *a, uint32_t position)
{
    uint32_t n = position + 1;
    uint32_t first = a->window > 0 && a->window < n ? n - a->window : 0;
    uint32_t begin = a->chunk > 0 ? position / a->chunk * a->chunk : 0;
    return first > begin ? first : begin;
}

/* The heads of queries and keys between their products and attention, in place and with the bits of
 * rms_norm() of either, rope() of either, and kv_store() of the keys and values. Heads are as wide
 * as the layout's keys, and lie side by side. */
typedef struct moe_heads_store {
    const float *norms[2]; /* device, [k_dim]: weights of norms of q and k; both NULL: none */
    float eps;
    moe_rope q, k; /* of the same angles */
    moe_kv_layout layout;
    const moe_kv_row *rows; /* host, [n_rows] */
    const float *v;         /* device, none of q's or k's */
    size_t v_stride;
} moe_heads_store;

#endif
