/* SPDX-License-Identifier: MIT */
/* The paged KV cache. A page holds MOE_KV_PAGE positions of every layer; a session is a table of
 * pages. Pages are counted: a fork shares them, and whoever writes to a shared one gets a copy. */
#ifndef MOE_PASS_KV_CACHE_H
#define MOE_PASS_KV_CACHE_H

#include "cpu/kernels/vector_ops.h"
#include "runtime/device/device.h"
#include "runtime/pass/memory_border.h"
#include "runtime/model/model_config.h"

typedef struct moe_kv_page {
    void *memory; /* device */
    bool lent;    /* it lies in expert slots */
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
    uint64_t n_promised; /* of the free ones: to tables */
} moe_kv_pool;

/* One session's view: pages[p] holds (stored) positions [p * MOE_KV_PAGE, (p + 1) * MOE_KV_PAGE).
 */
typedef struct moe_kv_table {
    moe_kv_page **pages;
    void **addresses; /* of the same pages: what the device is given */
    uint32_t n_pages;
    uint32_t capacity;
    uint32_t n_promised; /* free pages that nobody else is given */
} moe_kv_table;

int moe_kv_pool_init(moe_kv_pool *pool, moe_device *device, const moe_model_config *config,
                     moe_kv_type type, moe_error *err);
void moe_kv_pool_free(moe_kv_pool *pool);
/* Free pages that nobody is promised go back to where they are from. */
void moe_kv_pool_trim(moe_kv_pool *pool);

/* Gets the pages that making [first, end) writable will take, no more and no fewer, so that it
 * cannot fail for want of them. MOE_ERR_BUDGET: they cannot be had, and nothing has changed. */
int moe_kv_table_promise(moe_kv_pool *pool, moe_kv_table *table, uint32_t first, uint32_t end,
                         moe_error *err);

/* Makes positions [first, end) writable: adds pages, promised ones first, and copies a page that is
 * shared. On failure the table still holds what it held. */
int moe_kv_table_reserve(moe_kv_pool *pool, moe_kv_table *table, uint32_t first, uint32_t end,
                         moe_error *err);
/* Takes what is stored at from[i] to position to[i], for every layer, i ascending; both lists
 * strictly ascending, to[i] <= from[i], from[i] in the table. It makes a tree's accepted nodes a
 * timeline: from[i] = base + node, to[i] = base + i. Pages written to are made our own first. On
 * failure what is stored from to[0] on is undefined, what stands before it is as it was. */
int moe_kv_table_move(moe_kv_pool *pool, moe_kv_table *table, const uint32_t *from,
                      const uint32_t *to, uint32_t n, moe_error *err);
/* Gives back the pages that hold nothing before position n. */
void moe_kv_table_truncate(moe_kv_pool *pool, moe_kv_table *table, uint32_t n);
/* Makes out share the pages of table. */
int moe_kv_table_share(moe_kv_table *out, const moe_kv_table *table, moe_error *err);
void moe_kv_table_free(moe_kv_pool *pool, moe_kv_table *table);

#endif
