/* SPDX-License-Identifier: MIT */
/* The paged KV cache. A page holds MOE_KV_PAGE positions of a group of layers; a session is a table
 * of pages. Pages have reference counts: a fork shares them, and a session that writes to a shared
 * page gets a copy.
 *
 * Layers that see the same span of positions form a group. Where that span is short (a sliding
 * window, chunks of positions) the pages behind it are freed as the timeline grows:
 *
 *    group 0, full:      | page | page | page | page | page | page |
 *    group 1, a window:     -      -      -   | page | page | page |
 *                                               ^ first_page[1]    ^ n_pages
 *
 * A freed page is lost, so a timeline (the positions of a session) is cut back in one of two ways:
 *   - Within the margin (the last MOE_KV_MARGIN positions, and earlier ones that are still stored)
 *     the pages are at hand.
 *   - Further back the table returns to a snapshot before the place, or to the beginning, and the
 *     tokens from there on are evaluated again. A snapshot holds the pages that its position sees.
 * Rejected drafts are always within the margin: pages are freed behind evaluated tokens only.
 *
 * Memory is bounded: moe_kv_sizes says the most pages of a session, for the memory plan. */
#ifndef MOE_PASS_KV_CACHE_H
#define MOE_PASS_KV_CACHE_H

#include "cpu/kernels/vector_ops.h"
#include "runtime/device/device.h"
#include "offload/memory_border.h"
#include "runtime/model/model_config.h"

#define MOE_KV_GROUPS    3u  /* at most; if there are more spans, the last group keeps all pages */
#define MOE_KV_MARGIN    64u /* positions */
#define MOE_KV_SNAPSHOTS 2u
/* The least number of positions between snapshots. The beginning of a turn gets one at any
 * distance. */
#define MOE_KV_INTERVAL 512u

typedef struct moe_kv_page {
    void *memory; /* device */
    bool lent;    /* its memory is lent by expert slots */
    uint32_t n_users;
    struct moe_kv_page *next_free;
} moe_kv_page;

typedef struct moe_kv_group {
    uint32_t window, chunk; /* of the layers' kind (moe_layer_kind); both 0: all positions */
    bool frees;             /* pages behind the span are freed as the timeline grows */
    /* If `frees` is set: the most pages of the group in one table, without those of its
     * snapshots. */
    uint32_t most_live;
    size_t page_bytes; /* 0: no layer stores anything, as in a model of recurrent layers alone */
    moe_kv_page *free_pages;
    uint64_t n_pages;    /* allocated, used or free */
    uint64_t n_free;     /* of n_pages */
    uint64_t n_promised; /* free pages that are promised to tables */
} moe_kv_group;

typedef struct moe_kv_pool {
    moe_device *device;
    /* [n_layouts]: [n_layer] keys and values, then [n_layer] sides (moe_kv_side()) if a layer
     * has one */
    moe_kv_layout *layers;
    /* [n_layer] Layouts of compressed keys (compressed_keys.h): a page has one key for each `rate`
     * of its positions, or a single one. n_head_kv 0: the layer has none. */
    moe_kv_layout *beside;
    uint32_t n_layer;
    uint32_t n_layouts;
    moe_kv_type type;
    size_t page_bytes;         /* of all groups together */
    moe_memory_border *border; /* grants pages */
    moe_kv_group groups[MOE_KV_GROUPS];
    uint32_t n_groups;
    uint32_t n_beyond; /* the most positions that passes store beyond a full context; set at open */
} moe_kv_pool;

typedef struct moe_kv_snapshot {
    uint32_t position; /* the number of tokens that it continues from */
    bool begins_turn;
    uint32_t first_page[MOE_KV_GROUPS]; /* only of groups that free pages */
    moe_kv_page **pages; /* of these groups, one group after the other, up to the position */
} moe_kv_snapshot;

/* The pages of one session. pages[p * n_groups + g] holds the (stored) positions [p * MOE_KV_PAGE,
 * (p + 1) * MOE_KV_PAGE) of group g; NULL if p < first_page[g]. */
typedef struct moe_kv_table {
    moe_kv_page **pages;
    void **addresses; /* the memory of the same pages, as the device reads it */
    uint32_t n_pages; /* of one group, freed pages included */
    uint32_t capacity;
    uint32_t first_page[MOE_KV_GROUPS];
    uint32_t n_promised[MOE_KV_GROUPS]; /* free pages that are reserved for this table */
    /* The promised pages are enough for all positions before this one. */
    uint32_t promised_end;
    moe_kv_snapshot snapshots[MOE_KV_SNAPSHOTS]; /* ascending positions */
    uint32_t n_snapshots;
    bool begins_turn; /* the next token begins a turn */
} moe_kv_table;

/* What a layer stores of a position beside keys and values: an index key (moe_layer_kind.side_dim),
 * or the position's token as 4 bytes. It is laid out like a key of one head without a value. */
static inline const moe_kv_layout *moe_kv_side(const moe_kv_pool *pool, uint32_t layer)
{
    return &pool->layers[pool->n_layer + layer];
}

/* The most that the pages of one session take, by group. */
typedef struct moe_kv_sizes {
    uint32_t n_groups;
    uint32_t n_beyond;
    uint64_t page_bytes[MOE_KV_GROUPS]; /* what a page takes of the device's memory */
    uint32_t most_pages[MOE_KV_GROUPS]; /* 0: as many as all positions take */
} moe_kv_sizes;

/* most_rows: the most positions that a step stores at once, drafts included. */
int moe_kv_pool_init(moe_kv_pool *pool, moe_device *device, const moe_model_config *config,
                     moe_kv_type type, uint32_t most_rows, moe_error *err);
void moe_kv_pool_free(moe_kv_pool *pool);
/* Returns the memory of free pages that are not promised to where it came from. */
void moe_kv_pool_trim(moe_kv_pool *pool);
/* Bytes of all allocated pages. */
uint64_t moe_kv_pool_bytes(const moe_kv_pool *pool);

void moe_kv_pool_sizes(const moe_kv_pool *pool, moe_kv_sizes *sizes);
/* The most pages of a group that a session with this context takes. */
uint64_t moe_kv_group_pages(const moe_kv_sizes *sizes, uint32_t group, uint32_t context);
/* The most bytes that such a session takes in all groups. only_freed: counts only groups that free
 * pages. */
uint64_t moe_kv_session_bytes(const moe_kv_sizes *sizes, uint32_t context, bool only_freed);
/* Call once the context of sessions is known. A group in which freeing pages would save none then
 * keeps all of its pages. */
void moe_kv_pool_limit(moe_kv_pool *pool, uint32_t context);

/* Reserves exactly the pages that making [first, end) writable will take, so that
 * moe_kv_table_reserve() cannot fail later for lack of pages. In groups that free pages it reserves
 * them step by step. Drops snapshots if memory is short. MOE_ERR_BUDGET: there are not enough
 * pages; apart from snapshots, nothing has changed. */
int moe_kv_table_promise(moe_kv_pool *pool, moe_kv_table *table, uint32_t first, uint32_t end,
                         moe_error *err);

/* Makes positions [first, end) writable: adds pages, promised ones first, and copies shared pages.
 * Adds no page before first_page. After a failure the table holds its earlier pages, and perhaps
 * some new ones behind them. */
int moe_kv_table_reserve(moe_kv_pool *pool, moe_kv_table *table, uint32_t first, uint32_t end,
                         moe_error *err);
/* Moves what is stored at from[i] to position to[i], for every layer, i ascending; both lists
 * strictly ascending, to[i] <= from[i], from[i] in the table. This turns a tree's accepted nodes
 * into a timeline: from[i] = base + node, to[i] = base + i. Copies shared pages before it writes to
 * them. On failure what is stored from to[0] on is undefined, and what is before it is unchanged.
 */
int moe_kv_table_move(moe_kv_pool *pool, moe_kv_table *table, const uint32_t *from,
                      const uint32_t *to, uint32_t n, moe_error *err);
/* Releases the pages that hold nothing before position n, which is within the margin or 0. */
void moe_kv_table_truncate(moe_kv_pool *pool, moe_kv_table *table, uint32_t n);
/* Call when a pass has taken the timeline from `before` tokens to n. Keeps a snapshot where one is
 * useful, and frees pages that no position within the margin sees. */
void moe_kv_table_advance(moe_kv_pool *pool, moe_kv_table *table, uint32_t before, uint32_t n);
/* Cuts back to n tokens or, if that is not possible, to the latest earlier place from which the
 * timeline can go on; returns that place. */
uint32_t moe_kv_table_rewind(moe_kv_pool *pool, moe_kv_table *table, uint32_t n);
/* The first page that a timeline of n tokens needs of this group. */
uint32_t moe_kv_first_needed(const moe_kv_group *group, uint32_t n);
/* Drops the oldest snapshot; false: there is none. */
bool moe_kv_table_forget(moe_kv_pool *pool, moe_kv_table *table);
/* Makes out share the pages of table. */
int moe_kv_table_share(const moe_kv_pool *pool, moe_kv_table *out, const moe_kv_table *table,
                       moe_error *err);
void moe_kv_table_free(moe_kv_pool *pool, moe_kv_table *table);

/* ---- For the cache's own files ---- */

static inline uint32_t moe_kv_pages_of(uint32_t n_positions)
{
    return n_positions / MOE_KV_PAGE + (n_positions % MOE_KV_PAGE > 0);
}

static inline moe_kv_page **moe_kv_table_entry(const moe_kv_pool *pool, const moe_kv_table *table,
                                               uint32_t group, uint32_t page)
{
    return &table->pages[(size_t)page * pool->n_groups + group];
}

static inline void moe_kv_table_set(const moe_kv_pool *pool, const moe_kv_table *table,
                                    uint32_t group, uint32_t page, moe_kv_page *to)
{
    *moe_kv_table_entry(pool, table, group, page) = to;
    table->addresses[(size_t)page * pool->n_groups + group] = to != NULL ? to->memory : NULL;
}

/* add_page() allocates one more free page. take_page() takes a page, from those promised to the
 * table while it has any. drop_page() drops a page, which becomes free when it has no more users.
 * grow() makes room in the table for n_pages of each group. */
int moe_kv_add_page(moe_kv_pool *pool, uint32_t group, moe_error *err);
int moe_kv_take_page(moe_kv_pool *pool, moe_kv_table *table, uint32_t group, moe_kv_page **out,
                     moe_error *err);
void moe_kv_drop_page(moe_kv_pool *pool, uint32_t group, moe_kv_page *page);
int moe_kv_table_grow(const moe_kv_pool *pool, moe_kv_table *table, uint32_t n_pages,
                      moe_error *err);
/* The most pages that making [first, end) writable will take, apart from pages that are freed
 * meanwhile. */
uint32_t moe_kv_pages_due(const moe_kv_pool *pool, const moe_kv_table *table, uint32_t group,
                          uint32_t first, uint32_t end);
/* Pages that a snapshot holds of a group, and of all. */
uint32_t moe_kv_snapshot_pages(const moe_kv_pool *pool, const moe_kv_snapshot *snapshot,
                               uint32_t group);
uint32_t moe_kv_snapshot_all_pages(const moe_kv_pool *pool, const moe_kv_snapshot *snapshot);
void moe_kv_snapshot_remove(moe_kv_pool *pool, moe_kv_table *table, uint32_t index);
void moe_kv_snapshot_free(moe_kv_pool *pool, moe_kv_snapshot *snapshot);
/* Adds a copy of the snapshot to the table, unless there is no memory for it. */
void moe_kv_snapshot_copy(const moe_kv_pool *pool, moe_kv_table *table,
                          const moe_kv_snapshot *snapshot);

/* Check what must hold between two calls. Of the pool: free pages are counted and in no table, and
 * layers follow each other in a page. Of a table: its pages are in use, and each occurs once. */
bool moe_kv_pool_is_sane(const moe_kv_pool *pool);
bool moe_kv_table_is_sane(const moe_kv_pool *pool, const moe_kv_table *table);

#endif
