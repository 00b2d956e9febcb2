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
    bool interleaved; /* pairs (2i, 2i+1); otherwise pairs (i, i + n_rot/2) */
    const float *cos; /* host, [n_rows][n_rot / 2] */
    const float *sin;
} moe_rope;

/* How one layer's keys and values lie in a page of the KV cache, which holds MOE_KV_PAGE positions:
 * keys from k_offset on, values from v_offset on, both as rows [head][position].
 *
 * Layers that see the same span of positions form a group, which has pages of its own. A table of
 * pages has an entry for each group, page by page: entry p * (n_other_groups + 1) + group holds the
 * stored positions [p * MOE_KV_PAGE, (p + 1) * MOE_KV_PAGE) of the group's layers. */
typedef struct moe_kv_layout {
    int type;                /* moe_kv_type */
    uint32_t group;          /* the layer's group */
    uint32_t n_other_groups; /* 0 unless the device has MOE_DEVICE_KV_GROUPS */
    uint32_t n_head_kv;
    uint32_t k_dim;
    uint32_t v_dim;
    size_t k_row_bytes;
    size_t v_row_bytes;
    size_t k_offset;
    size_t v_offset; /* with MLA equal to k_offset, because a value is the first part of its key */
    bool v_in_k;     /* nothing to store for values */
} moe_kv_layout;

/* The index, in a table of pages, of page number `page` of the layer's group. */
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
 *    stored    0 .. path_first - 1   path[0]    .. path[position - path_first] (= `stored`)
 *
 * The logical position decides the rotary embedding and the order of the sums (attention's blocks
 * are MOE_KV_PAGE logical positions, wherever they are stored). So a node's result has the same
 * bits as in a timeline that holds only its ancestors. No two rows of a pass are stored in one
 * place. */
typedef struct moe_kv_row {
    void *const *pages; /* host array of addresses of device pages */
    uint32_t position;  /* logical */
    uint32_t stored;    /* where kv_store() puts its key and value */
    /* Host, [position - path_first + 1]: stored positions in the pages, each at most once. NULL:
     * the row sees positions 0..position at their own places, and stored == position. */
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

/* Moves stored positions of one page table, for the keys and values of every layer: moves a tree's
 * accepted nodes to their places in the timeline. The result is the same as if they were moved one
 * after the other, i ascending. to[i] may be equal to from[j] for a j < i, but never for a j > i. A
 * position of `from` that is not in `to` keeps its content. */
typedef struct moe_kv_move {
    const moe_kv_layout *layouts; /* [n_layouts]: one for each layer in the pages */
    uint32_t n_layouts;
    void *const *pages;   /* host array of addresses of device pages; those of `to` are writable */
    const uint32_t *from; /* host, [n], strictly ascending */
    const uint32_t *to;   /* host, [n], strictly ascending; to[i] <= from[i] */
    uint32_t n;
} moe_kv_move;

/* An entry of a path with this bit is not a stored position but a row of the second layout
 * (moe_attention.beside): row i is row i % MOE_KV_PAGE of its page i / MOE_KV_PAGE. */
#define MOE_KV_BESIDE (UINT32_C(1) << 31)

typedef struct moe_attention {
    moe_kv_layout layout;
    /* A second layout, whose keys are its values; NULL: there is none. */
    const moe_kv_layout *beside;
    const moe_kv_row *rows; /* host, [n_rows] */
    const float *q;         /* device, [n_rows][n_head][k_dim] */
    uint32_t n_head;
    float scale;
    float cap; /* soft cap of scores, cap * tanh(score / cap); 0: none */
    /* A row sees only the last `window` of the positions 0..position, its own included; 0: all.
     * With chunks it sees only those of them that are in its own chunk; chunk c is [c * chunk, (c +
     * 1) * chunk); 0: no chunks. Positions that no row sees are not read, and their pages may be
     * missing. */
    uint32_t window;
    uint32_t chunk;
    /* Device, [n_head] or NULL: a further score in each head's softmax, without a value. The
     * running state of attend_merge() then begins as (max, sum, out) = (sink, 1, 0). */
    const float *sinks;
    /* Host, [n_rows] or NULL: row r's scale is scale * row_scales[r]. */
    const float *row_scales;
    /* With MOE_DEVICE_CHOICE, the result of choose(): device, [n_rows][n_chosen], or NULL. A row
     * that sees more than n_chosen positions attends to these, as to a path with path_first 0. Only
     * without windows and chunks. */
    const uint32_t *chosen;
    uint32_t n_chosen;
    /* Not 0: they form blocks of this size, the last of which ends with the row. */
    uint32_t chosen_block;
    /* Above 1: pools of this size are chosen, and the positions behind the row's last whole pool
     * follow them, so that `chosen` has n_chosen + chosen_pool - 1 for each row. */
    uint32_t chosen_pool;
    float *out; /* device, [n_rows][n_head][v_dim] */
} moe_attention;

/* What choose() takes. For each row that sees more than n_chosen positions, an indexer chooses the
 * n_chosen with the highest scores; of equal scores, the lowest positions. A position's score is a
 * sum over the heads, fmaf(weight, p > 0 ? p : 0, score) from +0. p is the product, by linear(), of
 * the head's query and the position's index key, which is stored behind the position's key. */
/* With blocks of `block` positions, each head chooses n_chosen / block of the blocks up to the
 * row's own: the last n_local, and of the others those with the highest scores; of equal scores,
 * the lowest. A block's score is the highest product of its positions; NaN if one of them is
 * NaN. */
/* With pools of `pool` positions, n_chosen / pool of a row's whole pools are chosen. A pool's index
 * key stands at its last position (moe_key_pool.pooled). */
#define MOE_CHOICE_MAX_DIM 256u
typedef struct moe_position_choice {
    moe_kv_layout layout;
    size_t key_offset;      /* bytes from a position's key to its index key, or its pool's */
    const moe_kv_row *rows; /* host, [n_rows] */
    const float *queries;   /* device, [n_rows][n_head][dim] */
    /* Device, [n_rows][n_head]; NULL: all are 1; not used with blocks. */
    const float *weights;
    uint32_t n_head, dim;
    uint32_t n_chosen;
    uint32_t block, n_local; /* block 0: single positions are chosen, or pools */
    uint32_t pool;           /* 1: single positions */
    float *scores;           /* device, scratch: [n_scores] */
    /* At least as many as a row sees positions or, with blocks, as all heads have blocks. With
     * more room, more rows are scored at once. */
    size_t n_scores;
    /* Device, out: [n_rows][n_chosen], where the chosen positions are stored, ascending by
     * logical position. Nothing is written for rows that see no more positions than that. With
     * blocks [n_head][n_rows][n_chosen]; the last block may end early. With pools [n_rows][n_chosen
     * + pool - 1]: also the positions behind the last whole pool. */
    uint32_t *chosen;
} moe_position_choice;

/* Pools are the positions [i * n, (i + 1) * n) of a timeline. Each row that ends a pool makes the
 * pool's index key of the index keys that are stored at its positions, as they load, and stores it:
 *
 *    with gates   they stand behind the keys, and weight[place in the pool] is added to them; for
 *                 each element the sum of keys by the softmax of their gates: e = exp(gate - their
 *                 greatest), fmaf(e / sum of e, key, sum), all from +0, positions ascending
 *    with means   each element's sum from +0, positions ascending, divided by n; then
 *                 rms_norm(weight), then rotary embedding */
typedef struct moe_key_pool {
    moe_kv_layout layout;
    const moe_kv_row *rows; /* host, [n_rows] */
    /* Bytes from a position's key to its index key, and to its pool's. The latter takes the place
     * of the gate, or of the index key. */
    size_t key, pooled;
    uint32_t n, dim;
    bool means;
    const float *weight; /* device: [n][dim], with means [dim] */
    float eps;
    /* With means, by the pool's first position: n_rot, interleaved, cos and sin (of each row, not
     * used if it ends no pool). */
    moe_rope rope;
    float *scratch; /* device, [2 * n + 1][dim] */
} moe_key_pool;

/* Scores of index keys: for each row and key, from +0, over the heads from the first on,
 * score = fmaf(weight, product > 0 ? product : 0, score), where products are those of linear() with
 * F32 weights. */
#define MOE_SCORED_MAX_DIM 256u
typedef struct moe_key_scores {
    const float *keys;            /* [n_keys][dim] */
    uint32_t n_keys, dim, n_head; /* dim: MOE_SCORED_MAX_DIM at most */
    const float *queries;         /* [n_rows][n_head][dim] */
    const float *weights;         /* [n_rows][n_head] */
    float *scores;                /* out: [n_keys] of each row, `stride` floats apart */
    size_t stride;
} moe_key_scores;

/* How many chosen positions a row at `position` attends to. */
static inline uint32_t moe_chosen_positions(const moe_attention *attention, uint32_t position)
{
    const uint32_t block = attention->chosen_block > 0 ? attention->chosen_block : 1;
    const uint32_t pool = attention->chosen_pool > 0 ? attention->chosen_pool : 1;
    return attention->n_chosen - block + position % block + 1 + (position + 1) % pool;
}

/* The first position that a row sees. The sums over that position's page begin there. */
static inline uint32_t moe_attention_first(const moe_attention *a, uint32_t position)
{
    uint32_t n = position + 1;
    uint32_t first = a->window > 0 && a->window < n ? n - a->window : 0;
    uint32_t begin = a->chunk > 0 ? position / a->chunk * a->chunk : 0;
    return first > begin ? first : begin;
}

/* The steps between the products of queries and keys and attention, in one call. They work in
 * place, with the bits of rms_norm() and rope() of queries and keys, and kv_store() of keys and
 * values. Heads are as wide as the layout's keys, and lie side by side. */
typedef struct moe_heads_store {
    /* Device, [k_dim]: weights of the norms of q and k; both NULL: no norms. */
    const float *norms[2];
    float eps;
    moe_rope q, k; /* both with the same angles */
    moe_kv_layout layout;
    const moe_kv_row *rows; /* host, [n_rows] */
    const float *v;         /* device; does not overlap q or k */
    size_t v_stride;
} moe_heads_store;

#endif
