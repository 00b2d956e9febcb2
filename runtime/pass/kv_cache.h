/* SPDX-License-Identifier: MIT */
/* The paged KV cache. A page holds MOE_KV_PAGE positions of every layer; a session is a table of
 * pages. Pages have reference counts: a fork shares them, and a session that writes to a shared
 * page gets a copy. */
#ifndef MOE_PASS_KV_CACHE_H
#define MOE_PASS_KV_CACHE_H

#include "cpu/kernels/vector_ops.h"
#include "runtime/device/device.h"
#include "runtime/pass/memory_border.h"
#include "runtime/model/model_config.h"

typedef struct moe_kv_page {
    void *memory; /* device */
    bool lent;    /* its memory is lent by expert slots */
    uint32_t n_users;
    struct moe_kv_page *next_free;
} moe_kv_page;

typedef struct moe_kv_pool {
    moe_device *device;
    moe_kv_layout *layers; /* [n_layer] */
    uint32_t n_layer;
    moe_kv_type type;
    size_t page_bytes;
    moe_memory_border *border; /* grants pages */
    moe_kv_page *free_pages;
    uint64_t n_pages;    /* allocated, used or free */
    uint64_t n_free;     /* of them */
    uint64_t n_promised; /* free pages that are promised to tables */
} moe_kv_pool;

/* One session's view: pages[p] holds (stored) positions [p * MOE_KV_PAGE, (p + 1) * MOE_KV_PAGE).
 */
typedef struct moe_kv_table {
    moe_kv_page **pages;
    void **addresses; /* of the same pages, for the device */
    uint32_t n_pages;
    uint32_t capacity;
    uint32_t n_promised; /* free pages that are reserved for this table */
} moe_kv_table;

int moe_kv_pool_init(moe_kv_pool *pool, moe_device *device, const moe_model_config *config,
                     moe_kv_type type, moe_error *err);
void moe_kv_pool_free(moe_kv_pool *pool);
/* Returns free pages that are not promised to where they came from. */
void moe_kv_pool_trim(moe_kv_pool *pool);

/* Reserves exactly the pages that making [first, end) writable will take, so that this cannot fail
 * later for lack of pages. MOE_ERR_BUDGET: there are not enough, and nothing has changed. */
int moe_kv_table_promise(moe_kv_pool *pool, moe_kv_table *table, uint32_t first, uint32_t end,
                         moe_error *err);

/* Makes positions [first, end) writable: adds pages, promised ones first, and copies shared pages.
 * On failure the table is unchanged. */
int moe_kv_table_reserve(moe_kv_pool *pool, moe_kv_table *table, uint32_t first, uint32_t end,
                         moe_error *err);
/* Moves what is stored at from[i] to position to[i], for every layer, i ascending; both lists
 * strictly ascending, to[i] <= from[i], from[i] in the table. This turns a tree's accepted nodes
 * into a timeline: from[i] = base + node, to[i] = base + i. Copies shared pages before it writes to
 * them. On failure what is stored from to[0] on is undefined, and what is before it is unchanged.
 */
int moe_kv_table_move(moe_kv_pool *pool, moe_kv_table *table, const uint32_t *from,
                      const uint32_t *to, uint32_t n, moe_error *err);
/* Releases the pages that hold nothing before position n. */
void moe_kv_table_truncate(moe_kv_pool *pool, moe_kv_table *table, uint32_t n);
/* Makes out share the pages of table. */
int moe_kv_table_share(moe_kv_table *out, const moe_kv_table *table, moe_error *err);
void moe_kv_table_free(moe_kv_pool *pool, moe_kv_table *table);

/* What must hold between two calls. The pool: free pages are counted and in no table, layers follow
 * each other in a page. A table: its pages are in use, and each occurs once. */
bool moe_kv_pool_is_sane(const moe_kv_pool *pool);
bool moe_kv_table_is_sane(const moe_kv_pool *pool, const moe_kv_table *table);

#endif
