/* SPDX-License-Identifier: MIT */
#include "runtime/draft/miss_model.h"

#include <stdlib.h>
#include <string.h>

#include "cache/expert_cache.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

struct moe_miss_model {
    moe_expert_cache *actual, *plain;
    const moe_tensor_map *map;
    uint32_t n_expert, n_used, max_rows;
    uint16_t *routes; /* [max_rows][n_layer][n_used] of the last pass */
    /* Experts of accepted rows that have not been put into a modelled plain pass yet, the oldest
     * first. */
    uint16_t *waiting; /* [capacity][n_layer][n_used] */
    uint32_t *owners;  /* [capacity] the place in the batch whose row it is */
    bool *taken;       /* [capacity] by the pass under way */
    uint32_t n_waiting, capacity;
    uint32_t *n_rows;   /* [n_expert] of a plain pass's layer, 0 outside of use */
    uint64_t *known_at; /* [n_layer][n_expert] 1 + the plain pass that used or evicted it last */
    uint64_t n_passes, n_plain_passes, first_compared;
    moe_miss_counts counts;
};

static int create_cache(moe_expert_cache **out, const moe_miss_model_options *o, moe_error *err)
{
    const moe_policy *policy;
    void *plugin;
    uint32_t slots = (uint32_t)o->n_slots;
    MOE_TRY(moe_policy_load(&policy, &plugin, o->policy, err));
    moe_expert_cache_options options = {.n_layer = o->map->n_layer,
                                        .n_expert = o->map->n_expert,
                                        .n_expert_used = o->n_expert_used,
                                        .n_classes = 1,
                                        .slots_of_class = &slots,
                                        .policy = policy,
                                        .hotness = o->hotness};
    return moe_expert_cache_create(out, &options, err);
}

int moe_miss_model_open(moe_miss_model **out, const moe_miss_model_options *options, moe_error *err)
{
    *out = NULL;
    moe_miss_model *m = moe_calloc(1, sizeof *m);
    if (m == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for modelled misses");
    }
    m->map = options->map;
    m->n_expert = options->map->n_expert;
    m->n_used = options->n_expert_used;
    m->max_rows = options->max_rows;
    m->routes = moe_calloc((size_t)m->map->n_layer * m->max_rows * m->n_used, sizeof *m->routes);
    m->n_rows = moe_calloc(m->n_expert, sizeof *m->n_rows);
    m->known_at = moe_calloc((size_t)m->map->n_layer * m->n_expert, sizeof *m->known_at);
    int status = m->routes == NULL || m->n_rows == NULL || m->known_at == NULL
                     ? moe_fail(err, MOE_ERR_MEMORY, "no memory for modelled misses")
                     : create_cache(&m->actual, options, err);
    if (status == MOE_OK) {
        status = create_cache(&m->plain, options, err);
    }
    if (status != MOE_OK) {
        moe_miss_model_close(&m);
        return status;
    }
    *out = m;
    return MOE_OK;
}

void moe_miss_model_close(moe_miss_model **model)
{
    moe_miss_model *m = *model;
    if (m != NULL) {
        moe_expert_cache_destroy(&m->actual);
        moe_expert_cache_destroy(&m->plain);
        free(m->routes);
        free(m->waiting);
        free(m->owners);
        free(m->taken);
        free(m->n_rows);
        free(m->known_at);
        free(m);
        *model = NULL;
    }
}

/* Returns the number of entries for one row's experts in all layers. */
static size_t row_size(const moe_miss_model *m)
{
    return (size_t)m->map->n_layer * m->n_used;
}

void moe_miss_model_begin(moe_miss_model *m)
{
    m->first_compared = m->n_plain_passes;
}

static uint64_t access_key(moe_expert_cache *cache, uint32_t key, const moe_policy_access *access)
{
    bool hit;
    uint32_t evicted;
    (void)moe_expert_cache_access(cache, key, access, &hit, &evicted);
    return !hit;
}

void moe_miss_model_layer(moe_miss_model *m, const moe_layer_request *request)
{
    moe_policy_access access = {.pass = m->n_passes, .layer = request->layer};
    for (uint32_t i = 0; i < request->n; i++) {
        uint32_t key = request->layer * m->n_expert + request->experts[i];
        access.n_rows = request->n_rows[i];
        m->counts.missed += access_key(m->actual, key, &access);
    }
    m->counts.used += request->n;
}

void moe_miss_model_keep_routes(moe_miss_model *m, uint32_t layer, uint32_t n_rows,
                                const uint32_t *chosen)
{
    for (uint32_t r = 0; r < n_rows; r++) {
        uint16_t *routes = m->routes + r * row_size(m) + (size_t)layer * m->n_used;
        for (uint32_t k = 0; k < m->n_used; k++) {
            routes[k] = (uint16_t)chosen[(size_t)r * m->n_used + k];
        }
    }
}

static void plain_access(moe_miss_model *m, uint32_t key, const moe_policy_access *access)
{
    bool hit;
    uint32_t evicted = MOE_KEY_NONE;
    (void)moe_expert_cache_access(m->plain, key, access, &hit, &evicted);
    uint64_t now = m->n_plain_passes + 1;
    m->counts.plain_fresh += !hit && now - m->known_at[key] > 1;
    m->counts.plain_missed += !hit;
    m->counts.plain_choices += access->n_rows;
    m->counts.plain_resident += hit ? access->n_rows : 0;
    m->known_at[key] = now;
    if (evicted != MOE_KEY_NONE) {
        m->known_at[evicted] = now;
    }
}

static void note_row(moe_miss_model *m, const uint16_t *row, uint32_t layer)
{
    for (uint32_t k = 0; k < m->n_used; k++) {
        m->n_rows[row[(size_t)layer * m->n_used + k]]++;
    }
}

/* Models one layer of a plain pass: uses the experts that its rows chose. */
static void plain_layer(moe_miss_model *m, uint32_t layer)
{
    moe_policy_access access = {.pass = m->n_plain_passes, .layer = layer};
    for (uint32_t e = 0; e < m->n_expert; e++) {
        if (m->n_rows[e] > 0) {
            access.n_rows = m->n_rows[e];
            m->counts.plain_used++;
            plain_access(m, layer * m->n_expert + e, &access);
            m->n_rows[e] = 0;
        }
    }
}

static void end_plain_pass(moe_miss_model *m, uint32_t n_rows)
{
    moe_expert_cache_end_pass(m->plain, m->n_plain_passes++);
    m->counts.plain_compared += m->n_plain_passes > m->first_compared + 1;
    m->counts.plain_passes++;
    m->counts.plain_rows += n_rows;
}

void moe_miss_model_plain(moe_miss_model *m, const uint32_t *rows, uint32_t n)
{
    for (uint32_t l = 0; l < m->map->n_layer; l++) {
        for (uint32_t i = 0; i < n && m->map->layers[l].experts != NULL; i++) {
            note_row(m, m->routes + rows[i] * row_size(m), l);
        }
        plain_layer(m, l);
    }
    end_plain_pass(m, n);
}

/* Chooses n waiting rows for a plain pass: first the oldest row of each sequence, then the oldest
 * of the others. */
static void take_waiting(moe_miss_model *m, uint32_t n)
{
    uint32_t n_taken = 0;
    memset(m->taken, 0, m->n_waiting * sizeof *m->taken);
    for (uint32_t i = 0; i < m->n_waiting && n_taken < n; i++) {
        bool again = false;
        for (uint32_t k = 0; k < i && !again; k++) {
            again = m->owners[k] == m->owners[i];
        }
        m->taken[i] = !again;
        n_taken += !again;
    }
    for (uint32_t i = 0; i < m->n_waiting && n_taken < n; i++) {
        n_taken += !m->taken[i];
        m->taken[i] = true;
    }
}

static void drop_taken(moe_miss_model *m)
{
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < m->n_waiting; i++) {
        if (!m->taken[i]) {
            memmove(m->waiting + n_left * row_size(m), m->waiting + i * row_size(m),
                    row_size(m) * sizeof *m->waiting);
            m->owners[n_left++] = m->owners[i];
        }
    }
    m->n_waiting = n_left;
}

static void plain_of_waiting(moe_miss_model *m, uint32_t n)
{
    take_waiting(m, n);
    for (uint32_t l = 0; l < m->map->n_layer; l++) {
        for (uint32_t i = 0; i < m->n_waiting && m->map->layers[l].experts != NULL; i++) {
            if (m->taken[i]) {
                note_row(m, m->waiting + i * row_size(m), l);
            }
        }
        plain_layer(m, l);
    }
    end_plain_pass(m, n);
    drop_taken(m);
}

/* Makes room for n waiting rows. False: memory is short. */
static bool make_room(moe_miss_model *m, uint32_t n)
{
    if (n <= m->capacity) {
        return true;
    }
    uint16_t *waiting = moe_realloc_array(m->waiting, n, row_size(m) * sizeof *waiting);
    m->waiting = waiting != NULL ? waiting : m->waiting;
    uint32_t *owners = moe_realloc_array(m->owners, n, sizeof *owners);
    m->owners = owners != NULL ? owners : m->owners;
    bool *taken = moe_realloc_array(m->taken, n, sizeof *taken);
    m->taken = taken != NULL ? taken : m->taken;
    bool complete = waiting != NULL && owners != NULL && taken != NULL;
    m->capacity = complete ? n : m->capacity;
    return complete;
}

void moe_miss_model_accept(moe_miss_model *m, const uint32_t *rows, const uint32_t *owners,
                           uint32_t n, uint32_t n_sequences)
{
    if (!make_room(m, m->n_waiting + n)) {
        moe_miss_model_plain(m, rows, n); /* an estimate is no reason to fail a step */
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        memcpy(m->waiting + m->n_waiting * row_size(m), m->routes + rows[i] * row_size(m),
               row_size(m) * sizeof *m->waiting);
        m->owners[m->n_waiting++] = owners[i];
    }
    while (m->n_waiting >= n_sequences && n_sequences > 0) {
        plain_of_waiting(m, n_sequences);
    }
}

moe_miss_counts moe_miss_model_take(moe_miss_model *m)
{
    moe_miss_counts counts = m->counts;
    m->counts = (moe_miss_counts){0};
    moe_expert_cache_end_pass(m->actual, m->n_passes++);
    return counts;
}

/* ---- Panels ---- */

void moe_miss_model_scan(moe_miss_model *m, uint32_t layer)
{
    const uint32_t key = layer != MOE_NO_SCAN ? layer * m->n_expert : MOE_NO_SCAN;
    moe_expert_cache_scan(m->actual, key);
    moe_expert_cache_scan(m->plain, key);
}

void moe_miss_model_chunk(moe_miss_model *m, uint32_t layer, uint32_t n_rows,
                          const uint32_t *chosen)
{
    for (size_t i = 0; i < (size_t)n_rows * m->n_used; i++) {
        m->n_rows[chosen[i]]++;
    }
    plain_layer(m, layer);
}

void moe_miss_model_end_chunk(moe_miss_model *m, uint32_t n_rows)
{
    moe_miss_model_scan(m, MOE_NO_SCAN);
    end_plain_pass(m, n_rows);
    (void)moe_miss_model_take(m);
    moe_miss_model_begin(m);
}
