/* SPDX-License-Identifier: MIT */
/* Policies against simple models of themselves, and the contract that every policy keeps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cache/expert_cache.h"
#include "runtime/base/random.h"
#include "tests/cache/random_stream.h"

#define N_KEYS 48
#define N_STEP 20000

static const moe_policy *policy_named(const char *name)
{
    const moe_policy *policy = NULL;
    void *plugin = NULL;
    assert_int_equal(moe_policy_load(&policy, &plugin, name, NULL), MOE_OK);
    return policy;
}

/* ---- Models: arrays of keys in order, searched from end to end ---- */

typedef struct model {
    uint32_t n_slots;
    uint32_t n; /* resident, in order: [0] is the oldest */
    uint32_t order[N_KEYS];
    uint64_t last_use[N_KEYS];
    uint64_t count[N_KEYS];
    uint32_t mark[N_KEYS]; /* SIEVE: visited; S3-FIFO: uses */
    uint32_t hand;         /* SIEVE: index into order */
    uint32_t n_small, n_main, n_ghost;
    uint32_t small[N_KEYS], main[N_KEYS], ghost[N_KEYS];
    uint32_t once[2 * N_KEYS], often[2 * N_KEYS], once_gone[2 * N_KEYS], often_gone[2 * N_KEYS];
    uint32_t n_once, n_often, n_once_gone, n_often_gone; /* ARC: T1, T2, B1, B2 of the paper */
    double share;                                        /* ARC: p */
    uint64_t gone_at[N_KEYS];                            /* LeCaR */
    moe_random random;
    uint64_t now;
} model;

static bool array_find(const uint32_t *keys, uint32_t n, uint32_t key, uint32_t *index)
{
    for (uint32_t i = 0; i < n; i++) {
        if (keys[i] == key) {
            *index = i;
            return true;
        }
    }
    return false;
}

static void array_remove(uint32_t *keys, uint32_t *n, uint32_t index)
{
    memmove(keys + index, keys + index + 1, (*n - index - 1) * sizeof *keys);
    (*n)--;
}

/* Each returns the key evicted, or MOE_KEY_NONE. */
typedef uint32_t (*model_access_fn)(model *m, uint32_t key);

static uint32_t least_by(const model *m, const uint64_t *number)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < m->n; i++) {
        uint64_t a = number[m->order[i]];
        uint64_t b = number[m->order[best]];
        if (a < b || (a == b && m->last_use[m->order[i]] < m->last_use[m->order[best]])) {
            best = i;
        }
    }
    return best;
}

static uint32_t insert_after_eviction(model *m, uint32_t key, uint32_t victim_index)
{
    uint32_t evicted = MOE_KEY_NONE;
    if (m->n == m->n_slots) {
        evicted = m->order[victim_index];
        array_remove(m->order, &m->n, victim_index);
    }
    m->order[m->n++] = key;
    return evicted;
}

static uint32_t lru_access(model *m, uint32_t key)
{
    uint32_t index;
    uint32_t evicted = MOE_KEY_NONE;
    if (!array_find(m->order, m->n, key, &index)) {
        evicted = insert_after_eviction(m, key, least_by(m, m->last_use));
    }
    m->last_use[key] = ++m->now;
    return evicted;
}

static uint32_t lfu_access(model *m, uint32_t key)
{
    uint32_t index;
    uint32_t evicted = MOE_KEY_NONE;
    if (!array_find(m->order, m->n, key, &index)) {
        evicted = insert_after_eviction(m, key, least_by(m, m->count));
    }
    m->count[key]++;
    m->last_use[key] = ++m->now;
    return evicted;
}

/* The paper's listing, with the queue as an array and the hand as an index. */
static uint32_t sieve_access(model *m, uint32_t key)
{
    uint32_t index;
    if (array_find(m->order, m->n, key, &index)) {
        m->mark[key] = 1;
        return MOE_KEY_NONE;
    }
    uint32_t evicted = MOE_KEY_NONE;
    if (m->n == m->n_slots) {
        uint32_t hand = m->hand < m->n ? m->hand : 0;
        while (m->mark[m->order[hand]] != 0) {
            m->mark[m->order[hand]] = 0;
            hand = (hand + 1) % m->n;
        }
        evicted = m->order[hand];
        /* At the newest, the hand goes on from the oldest, not from what comes next. */
        m->hand = hand + 1 == m->n ? 0 : hand;
        array_remove(m->order, &m->n, hand);
    }
    m->mark[key] = 0;
    m->order[m->n++] = key;
    return evicted;
}

static uint32_t s3_evict_main(model *m)
{
    for (;;) {
        uint32_t key = m->main[0];
        array_remove(m->main, &m->n_main, 0);
        if (m->mark[key] == 0) {
            return key;
        }
        m->mark[key]--;
        m->main[m->n_main++] = key;
    }
}

static uint32_t s3_evict_small(model *m)
{
    while (m->n_small > 0) {
        uint32_t key = m->small[0];
        array_remove(m->small, &m->n_small, 0);
        if (m->mark[key] >= 2) {
            m->mark[key] = 0;
            m->main[m->n_main++] = key;
            continue;
        }
        if (m->n_ghost == m->n_slots - m->n_slots / 10) {
            array_remove(m->ghost, &m->n_ghost, 0);
        }
        m->ghost[m->n_ghost++] = key;
        return key;
    }
    return MOE_KEY_NONE;
}

static uint32_t s3_fifo_access(model *m, uint32_t key)
{
    uint32_t index;
    if (array_find(m->small, m->n_small, key, &index) ||
        array_find(m->main, m->n_main, key, &index)) {
        m->mark[key] += m->mark[key] < 3;
        return MOE_KEY_NONE;
    }
    uint32_t evicted = MOE_KEY_NONE;
    if (m->n_small + m->n_main == m->n_slots) {
        uint32_t tenth = m->n_slots / 10 > 0 ? m->n_slots / 10 : 1;
        evicted = m->n_small >= tenth ? s3_evict_small(m) : MOE_KEY_NONE;
        evicted = evicted == MOE_KEY_NONE ? s3_evict_main(m) : evicted;
    }
    m->mark[key] = 0;
    if (array_find(m->ghost, m->n_ghost, key, &index)) {
        array_remove(m->ghost, &m->n_ghost, index);
        m->main[m->n_main++] = key;
    } else {
        m->small[m->n_small++] = key;
    }
    return evicted;
}

/* REPLACE of the paper's figure 4. */
static uint32_t arc_replace(model *m, bool is_in_often_gone)
{
    uint32_t key;
    if (m->n_once > 0 && (m->n_once > m->share || (is_in_often_gone && m->n_once == m->share))) {
        key = m->once[0];
        array_remove(m->once, &m->n_once, 0);
        m->once_gone[m->n_once_gone++] = key;
    } else {
        key = m->often[0];
        array_remove(m->often, &m->n_often, 0);
        m->often_gone[m->n_often_gone++] = key;
    }
    return key;
}

/* Case IV: a key that no list knows. */
static uint32_t arc_new(model *m, uint32_t key)
{
    const uint32_t c = m->n_slots;
    const uint32_t n_all = m->n_once + m->n_often + m->n_once_gone + m->n_often_gone;
    uint32_t evicted = MOE_KEY_NONE;
    if (m->n_once + m->n_once_gone == c) {
        if (m->n_once < c) {
            array_remove(m->once_gone, &m->n_once_gone, 0);
            evicted = m->n_once + m->n_often == c ? arc_replace(m, false) : MOE_KEY_NONE;
        } else {
            evicted = m->once[0];
            array_remove(m->once, &m->n_once, 0);
        }
    } else if (n_all >= c) {
        if (n_all == 2 * c) {
            array_remove(m->often_gone, &m->n_often_gone, 0);
        }
        evicted = arc_replace(m, false);
    }
    m->once[m->n_once++] = key;
    return evicted;
}

static uint32_t arc_access(model *m, uint32_t key)
{
    uint32_t index;
    uint32_t evicted = MOE_KEY_NONE;
    const double c = m->n_slots;
    if (array_find(m->once, m->n_once, key, &index)) {
        array_remove(m->once, &m->n_once, index);
    } else if (array_find(m->often, m->n_often, key, &index)) {
        array_remove(m->often, &m->n_often, index);
    } else if (array_find(m->once_gone, m->n_once_gone, key, &index)) {
        const double ratio = (double)m->n_often_gone / m->n_once_gone;
        const double share = m->share + (ratio > 1 ? ratio : 1);
        m->share = share < c ? share : c;
        array_remove(m->once_gone, &m->n_once_gone, index);
        evicted = arc_replace(m, false);
    } else if (array_find(m->often_gone, m->n_often_gone, key, &index)) {
        const double ratio = (double)m->n_once_gone / m->n_often_gone;
        const double share = m->share - (ratio > 1 ? ratio : 1);
        m->share = share > 0 ? share : 0;
        array_remove(m->often_gone, &m->n_often_gone, index);
        evicted = arc_replace(m, true);
    } else {
        return arc_new(m, key);
    }
    m->often[m->n_often++] = key;
    return evicted;
}

/* "reclaimfor" of the paper, with its A1in (small), A1out (ghost) and Am (main). */
static uint32_t two_queue_reclaim(model *m)
{
    uint32_t key;
    if (m->n_small + m->n_main < m->n_slots) {
        return MOE_KEY_NONE;
    }
    if (m->n_small <= m->n_slots / 4 && m->n_main > 0) {
        key = m->main[0];
        array_remove(m->main, &m->n_main, 0);
        return key;
    }
    key = m->small[0];
    array_remove(m->small, &m->n_small, 0);
    m->ghost[m->n_ghost++] = key;
    if (m->n_ghost > m->n_slots / 2) {
        array_remove(m->ghost, &m->n_ghost, 0);
    }
    return key;
}

static uint32_t two_queue_access(model *m, uint32_t key)
{
    uint32_t index;
    uint32_t evicted = MOE_KEY_NONE;
    if (array_find(m->small, m->n_small, key, &index)) {
        return MOE_KEY_NONE;
    }
    if (array_find(m->main, m->n_main, key, &index)) {
        array_remove(m->main, &m->n_main, index);
        m->main[m->n_main++] = key;
        return MOE_KEY_NONE;
    }
    if (array_find(m->ghost, m->n_ghost, key, &index)) {
        array_remove(m->ghost, &m->n_ghost, index);
        evicted = two_queue_reclaim(m);
        m->main[m->n_main++] = key;
    } else {
        evicted = two_queue_reclaim(m);
        m->small[m->n_small++] = key;
    }
    return evicted;
}

/* count: when it was used the time before the last. */
static uint32_t lru_k_access(model *m, uint32_t key)
{
    uint32_t index;
    uint32_t evicted = MOE_KEY_NONE;
    if (!array_find(m->order, m->n, key, &index)) {
        evicted = insert_after_eviction(m, key, least_by(m, m->count));
    }
    m->count[key] = m->last_use[key];
    m->last_use[key] = ++m->now;
    return evicted;
}

/* count: what it is worth; mark: uses since it came; share: the clock. */
static uint32_t gdsf_access(model *m, uint32_t key)
{
    uint32_t index;
    uint32_t evicted = MOE_KEY_NONE;
    const uint64_t clock = (uint64_t)m->share;
    if (!array_find(m->order, m->n, key, &index)) {
        evicted = insert_after_eviction(m, key, least_by(m, m->count));
        m->share = evicted != MOE_KEY_NONE ? (double)m->count[evicted] : m->share;
        m->mark[key] = 0;
    }
    m->mark[key]++;
    m->count[key] = clock + m->mark[key];
    m->last_use[key] = ++m->now;
    return evicted;
}

/* The paper's stack S (once, the top at its end) and queue Q (small); mark: LIR; n_often: how many
 * are. */
static void lirs_touch(model *m, uint32_t key)
{
    uint32_t index;
    if (array_find(m->once, m->n_once, key, &index)) {
        array_remove(m->once, &m->n_once, index);
    }
    m->once[m->n_once++] = key;
}

static void lirs_prune(model *m)
{
    while (m->n_once > 0 && m->mark[m->once[0]] == 0) {
        array_remove(m->once, &m->n_once, 0);
    }
}

static uint32_t lirs_access(model *m, uint32_t key)
{
    uint32_t index;
    uint32_t evicted = MOE_KEY_NONE;
    const uint32_t n_lir = m->n_slots - 1; /* of fewer than 200 slots 1 is for HIR */
    const bool is_queued = array_find(m->small, m->n_small, key, &index);
    const bool is_new = m->mark[key] == 0 && !is_queued;
    if (is_queued) {
        array_remove(m->small, &m->n_small, index);
    } else if (is_new && m->n_often + m->n_small == m->n_slots) {
        evicted = m->small[0];
        array_remove(m->small, &m->n_small, 0);
    }
    const bool is_stacked = array_find(m->once, m->n_once, key, &index);
    lirs_touch(m, key);
    if (m->mark[key] == 0 && n_lir > 0 && (is_stacked || m->n_often < n_lir)) {
        m->mark[key] = 1;
        if (++m->n_often > n_lir) {
            m->mark[m->once[0]] = 0;
            m->small[m->n_small++] = m->once[0];
            m->n_often--;
        }
    } else if (m->mark[key] == 0) {
        m->small[m->n_small++] = key;
    }
    lirs_prune(m);
    return evicted;
}

/* Halves counts after ten uses for each slot; share: uses since. */
static void tiny_count(model *m, uint32_t key)
{
    m->count[key] = m->count[key] < 15 ? m->count[key] + 1 : 15;
    m->share += 1;
    if (m->share == 10.0 * m->n_slots) {
        m->share = 0;
        for (uint32_t k = 0; k < N_KEYS; k++) {
            m->count[k] /= 2;
        }
    }
}

/* The window (small), probation (once) and protected (often), the last used at their ends. The key
 * enters the window, whose oldest then competes with probation's. */
static uint32_t tiny_access(model *m, uint32_t key)
{
    uint32_t index;
    const uint32_t n_window = m->n_slots < 4 ? 1 : 2; /* n_expert_used, or half of the slots */
    const uint32_t n_protected = (m->n_slots - n_window) * 4 / 5;
    const bool is_full = m->n_small + m->n_once + m->n_often == m->n_slots;
    if (array_find(m->small, m->n_small, key, &index)) {
        tiny_count(m, key);
        array_remove(m->small, &m->n_small, index);
        m->small[m->n_small++] = key;
        return MOE_KEY_NONE;
    }
    const bool is_once = array_find(m->once, m->n_once, key, &index);
    if (is_once || array_find(m->often, m->n_often, key, &index)) {
        tiny_count(m, key);
        array_remove(is_once ? m->once : m->often, is_once ? &m->n_once : &m->n_often, index);
        m->often[m->n_often++] = key;
        if (m->n_often > n_protected) {
            m->once[m->n_once++] = m->often[0];
            array_remove(m->often, &m->n_often, 0);
        }
        return MOE_KEY_NONE;
    }
    uint32_t evicted = MOE_KEY_NONE;
    if (m->n_small == n_window) {
        uint32_t *main = m->n_once > 0 ? m->once : m->often;
        uint32_t *n_main = m->n_once > 0 ? &m->n_once : &m->n_often;
        const uint32_t candidate = m->small[0];
        array_remove(m->small, &m->n_small, 0);
        if (is_full && (*n_main == 0 || m->count[candidate] <= m->count[main[0]])) {
            evicted = candidate;
        } else {
            if (is_full) {
                evicted = main[0];
                array_remove(main, n_main, 0);
            }
            m->once[m->n_once++] = candidate;
        }
    }
    tiny_count(m, key);
    m->small[m->n_small++] = key;
    return evicted;
}

static void lecar_remember(uint32_t *history, uint32_t *n, model *m, uint32_t key)
{
    const uint32_t most = m->n_slots / 2 > 0 ? m->n_slots / 2 : 1;
    if (*n == most) {
        m->count[history[0]] = 0;
        array_remove(history, n, 0);
    }
    history[(*n)++] = key;
    m->gone_at[key] = m->now;
}

/* The histories are once_gone (by LRU) and often_gone (by LFU); share: the weight of LFU less that
 * of LRU, which begin alike. */
static uint32_t lecar_access(model *m, uint32_t key)
{
    uint32_t index;
    uint32_t evicted = MOE_KEY_NONE;
    if (m->now == 0) {
        moe_random_seed(&m->random, 11); /* as make_cache() says */
    }
    if (!array_find(m->order, m->n, key, &index)) {
        const bool by_lru = array_find(m->once_gone, m->n_once_gone, key, &index);
        if (by_lru || array_find(m->often_gone, m->n_often_gone, key, &index)) {
            const double regret = pow(0.005, (double)(m->now - m->gone_at[key]) / m->n_slots);
            double lru = (1 - m->share) / 2, lfu = (1 + m->share) / 2;
            lru *= by_lru ? 1 : exp(0.45 * regret);
            lfu *= by_lru ? exp(0.45 * regret) : 1;
            const double share = (lfu - lru) / (lfu + lru);
            m->share = share > 0.98 ? 0.98 : share < -0.98 ? -0.98 : share;
            array_remove(by_lru ? m->once_gone : m->often_gone,
                         by_lru ? &m->n_once_gone : &m->n_often_gone, index);
        }
        const uint32_t lru = least_by(m, m->last_use), lfu = least_by(m, m->count);
        const bool is_full = m->n == m->n_slots;
        const bool takes_lru = is_full && moe_random_uniform(&m->random) < (1 - m->share) / 2;
        evicted = insert_after_eviction(m, key, takes_lru ? lru : lfu);
        if (evicted != MOE_KEY_NONE && lru == lfu) {
            m->count[evicted] = 0;
        } else if (evicted != MOE_KEY_NONE) {
            lecar_remember(takes_lru ? m->once_gone : m->often_gone,
                           takes_lru ? &m->n_once_gone : &m->n_often_gone, m, evicted);
        }
    }
    m->count[key]++;
    m->last_use[key] = ++m->now;
    return evicted;
}

/* ---- Streams ---- */

/* Some keys are much more frequent than others, and which ones changes slowly. */
static uint32_t skewed_key(test_random *random, uint64_t step)
{
    uint32_t a = test_random_below(random, N_KEYS);
    uint32_t b = test_random_below(random, N_KEYS);
    uint32_t c = test_random_below(random, N_KEYS);
    uint32_t least = a < b ? a : b;
    least = least < c ? least : c;
    return (least + (uint32_t)(step / 2000)) % N_KEYS;
}

static moe_expert_cache *make_cache(const moe_policy *policy, uint32_t n_layer, uint32_t n_slots)
{
    static float hotness[N_KEYS];
    for (int i = 0; i < N_KEYS; i++) {
        hotness[i] = (float)((i * 7) % N_KEYS) / 1128.0f;
    }
    moe_expert_cache_options options = {.n_layer = n_layer,
                                        .n_expert = N_KEYS / n_layer,
                                        .n_expert_used = 2,
                                        .n_classes = 1,
                                        .slots_of_class = &n_slots,
                                        .policy = policy,
                                        .hotness = hotness,
                                        .has_gates = true,
                                        .has_future = true,
                                        .seed = 11};
    moe_expert_cache *cache = NULL;
    assert_int_equal(moe_expert_cache_create(&cache, &options, NULL), MOE_OK);
    return cache;
}

static void test_models(void **state)
{
    (void)state;
    const struct {
        const char *name;
        model_access_fn access;
    } models[] = {{"lru", lru_access},         {"lfu", lfu_access},    {"sieve", sieve_access},
                  {"s3-fifo", s3_fifo_access}, {"arc", arc_access},    {"2q", two_queue_access},
                  {"lirs", lirs_access},       {"gdsf", gdsf_access},  {"lru-k", lru_k_access},
                  {"w-tinylfu", tiny_access},  {"lecar", lecar_access}};
    const uint32_t sizes[] = {1, 2, 9, 20, 47};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            moe_expert_cache *cache = make_cache(policy_named(models[i].name), 1, sizes[s]);
            model m = {.n_slots = sizes[s]};
            test_random random = {.state = 100 * i + s};
            for (uint64_t step = 0; step < N_STEP; step++) {
                uint32_t key = skewed_key(&random, step);
                moe_policy_access access = {.pass = step, .n_rows = 1};
                bool hit;
                uint32_t evicted;
                moe_expert_cache_access(cache, key, &access, &hit, &evicted);
                uint32_t expected = models[i].access(&m, key);
                if (evicted != expected) {
                    fail_msg("%s of %u slots, step %u: %u, not %u", models[i].name, sizes[s],
                             (unsigned)step, evicted, expected);
                }
            }
            moe_expert_cache_destroy(&cache);
        }
    }
}

/* ---- The contract, spoken to directly ---- */

typedef struct contract {
    bool resident[N_KEYS];
    bool held[N_KEYS];
} contract;

static bool may_evict(void *context, uint32_t key)
{
    const contract *c = context;
    assert_true(key < N_KEYS); /* nothing else was ever inserted */
    return c->resident[key] && !c->held[key];
}

static bool any_evictable(contract *c)
{
    for (uint32_t key = 0; key < N_KEYS; key++) {
        if (may_evict(c, key)) {
            return true;
        }
    }
    return false;
}

/* One step of a random life; returns a number that depends on what the policy said. */
static uint32_t contract_step(const moe_policy *policy, void *object, contract *c, uint32_t n_slots,
                              test_random *random, uint64_t step)
{
    uint32_t key = test_random_below(random, N_KEYS);
    uint32_t n_resident = 0;
    for (uint32_t k = 0; k < N_KEYS; k++) {
        n_resident += c->resident[k];
        c->held[k] = test_random_below(random, 3) == 0;
    }
    moe_policy_access access = {.pass = step / 16,
                                .layer = key / (N_KEYS / 4),
                                .n_rows = test_random_below(random, 4),
                                .gate = (float)test_random_below(random, 100) / 50.0f,
                                .next_use = step + 1 + test_random_below(random, 400)};
    if (step % 16 == 15) {
        policy->end_pass(object, step / 16);
    }
    if (c->resident[key]) {
        if (test_random_below(random, 10) == 0) { /* dropped, whatever holds it */
            policy->evict(object, key);
            c->resident[key] = false;
        } else {
            policy->hit(object, key, &access);
        }
        return 0;
    }
    uint32_t victim = MOE_KEY_NONE;
    if (n_resident == n_slots) {
        bool possible = any_evictable(c);
        victim = policy->victim(object, key, may_evict, c);
        assert_int_equal(victim != MOE_KEY_NONE, possible);
        if (!possible) {
            return victim;
        }
        assert_true(may_evict(c, victim));
        policy->evict(object, victim);
        c->resident[victim] = false;
    }
    policy->insert(object, key, &access);
    c->resident[key] = true;
    return victim;
}

static void test_contract(void **state)
{
    (void)state;
    static float hotness[N_KEYS];
    static float cost[N_KEYS];
    for (int i = 0; i < N_KEYS; i++) {
        hotness[i] = (float)(i % 12) / 66.0f;
        cost[i] = i % 5 == 0 ? 0.0f : (float)i;
    }
    for (uint32_t p = 0; moe_policy_at(p) != NULL; p++) {
        const moe_policy *policy = moe_policy_at(p);
        assert_int_equal(policy->abi, MOE_POLICY_ABI);
        for (uint32_t n_slots = 1; n_slots < N_KEYS; n_slots += 6) {
            moe_policy_config config = {.struct_size = sizeof config,
                                        .n_layer = 4,
                                        .n_expert = N_KEYS / 4,
                                        .n_expert_used = 3,
                                        .n_slots = n_slots,
                                        .n_keys = N_KEYS,
                                        .hotness = hotness,
                                        .fetch_cost = n_slots % 4 == 1 ? cost : NULL,
                                        .seed = n_slots};
            void *twins[2] = {policy->create(&config), policy->create(&config)};
            contract lives[2] = {{.resident = {false}}, {.resident = {false}}};
            test_random randoms[2] = {{.state = n_slots}, {.state = n_slots}};
            assert_int_equal(policy->victim(twins[0], 0, may_evict, &lives[0]), MOE_KEY_NONE);
            assert_int_equal(policy->victim(twins[1], 0, may_evict, &lives[1]), MOE_KEY_NONE);
            for (uint64_t step = 0; step < 4000; step++) {
                uint32_t said[2];
                for (int twin = 0; twin < 2; twin++) {
                    said[twin] = contract_step(policy, twins[twin], &lives[twin], n_slots,
                                               &randoms[twin], step);
                }
                assert_int_equal(said[0], said[1]);
            }
            policy->destroy(twins[0]);
            policy->destroy(twins[1]);
        }
    }
}

/* What is particular to a policy, in the smallest case that shows it: four layers of twelve keys,
 * two resident keys, one more wanted. */
typedef struct choice {
    const char *policy;
    struct {
        uint32_t key;
        uint64_t pass;
        uint32_t n_rows;
        float gate;
        uint64_t next_use;
    } uses[8];
    uint32_t n_uses;
    uint32_t victim;
} choice;

static void test_choices(void **state)
{
    (void)state;
    const choice choices[] = {
        /* The layer at work, 1, gives before layer 2, though its key was used later. */
        {"least-stale", {{24, 0, 1, 0, 0}, {13, 1, 1, 0, 0}}, 2, 13},
        /* From layer 3 on, layer 0 comes before layer 2. */
        {"least-stale", {{0, 0, 1, 0, 0}, {24, 0, 1, 0, 0}, {36, 0, 1, 0, 0}}, 3, 36},
        /* Used in the same pass: the one that fewer rows chose. */
        {"hot-temporal", {{5, 2, 1, 0, 0}, {4, 2, 3, 0, 0}}, 2, 5},
        {"hot-temporal", {{4, 1, 9, 0, 0}, {5, 2, 1, 0, 0}}, 2, 4},
        /* Hotness rises with the number of the expert. */
        {"hot-global", {{4, 0, 9, 0, 0}, {5, 0, 1, 0, 0}}, 2, 4},
        /* One narrow choice against a clear one; two narrow ones against one. */
        {"gate-score", {{4, 0, 1, 0.1f, 0}, {5, 0, 1, 0.6f, 0}}, 2, 4},
        {"gate-score", {{4, 0, 1, 0.2f, 0}, {5, 0, 1, 0.3f, 0}, {4, 1, 1, 0.2f, 0}}, 3, 5},
        /* Costs are 4 and 7: three uses of the cheap one are worth more than one of the other. */
        {"cost-aware", {{4, 0, 1, 0, 0}, {7, 0, 1, 0, 0}}, 2, 4},
        {"cost-aware", {{4, 0, 1, 0, 0}, {4, 1, 1, 0, 0}, {7, 1, 1, 0, 0}, {4, 2, 1, 0, 0}}, 4, 7},
        /* The window has one of four slots: its key competes with the one that left it first. */
        {"w-tinylfu", {{4, 0, 1, 0, 0}, {5, 0, 1, 0, 0}, {6, 0, 1, 0, 0}}, 3, 6},
        {"w-tinylfu", {{4, 0, 1, 0, 0}, {5, 0, 1, 0, 0}, {6, 0, 1, 0, 0}, {6, 1, 1, 0, 0}}, 4, 4},
        /* Used twice, though longer ago than the other. */
        {"lru-k", {{4, 0, 1, 0, 0}, {4, 1, 1, 0, 0}, {5, 2, 1, 0, 0}}, 3, 5},
        /* Costs are 4 and 7: two uses of the cheap one are worth more. */
        {"gdsf", {{4, 0, 1, 0, 0}, {7, 0, 1, 0, 0}, {4, 1, 1, 0, 0}}, 3, 7},
        /* Three of four slots are for hot keys, so the fourth key to come is cold. */
        {"lirs", {{4, 0, 1, 0, 0}, {5, 0, 1, 0, 0}, {6, 0, 1, 0, 0}, {7, 1, 1, 0, 0}}, 4, 7},
        /* It becomes hot when it is used again, and the last used of the others cold. */
        {"lirs",
         {{4, 0, 1, 0, 0}, {5, 0, 1, 0, 0}, {6, 0, 1, 0, 0}, {7, 1, 1, 0, 0}, {7, 2, 1, 0, 0}},
         5,
         4},
        {"belady", {{4, 0, 1, 0, 77}, {5, 0, 1, 0, 78}}, 2, 5},
        {"belady", {{4, 0, 1, 0, UINT64_MAX}, {5, 0, 1, 0, 78}}, 2, 4},
        /* Alike in use, the layer just passed waits longest. */
        {"lfru", {{24, 0, 1, 0, 0}, {0, 1, 1, 0, 0}, {24, 1, 1, 0, 0}, {0, 2, 1, 0, 0}}, 4, 0},
        /* A key used again and again outlives those used once, wherever the pass is. */
        {"lfru",
         {{0, 0, 1, 0, 0},
          {0, 1, 1, 0, 0},
          {0, 2, 1, 0, 0},
          {24, 2, 1, 0, 0},
          {0, 3, 1, 0, 0},
          {25, 3, 1, 0, 0},
          {0, 4, 1, 0, 0}},
         7,
         24},
    };
    float hotness[N_KEYS];
    float cost[N_KEYS];
    for (int i = 0; i < N_KEYS; i++) {
        hotness[i] = (float)(i % 12) / 66.0f;
        cost[i] = (float)i;
    }
    moe_policy_config config = {.struct_size = sizeof config,
                                .n_layer = 4,
                                .n_expert = 12,
                                .n_expert_used = 1,
                                .n_slots = 4,
                                .n_keys = N_KEYS,
                                .fetch_cost = cost};
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        const choice *c = &choices[i];
        const moe_policy *policy = policy_named(c->policy);
        config.hotness = strcmp(c->policy, "hot-global") == 0 ? hotness : NULL;
        void *object = policy->create(&config);
        contract all = {.resident = {false}};
        for (uint32_t u = 0; u < c->n_uses; u++) {
            uint32_t key = c->uses[u].key;
            moe_policy_access access = {.pass = c->uses[u].pass,
                                        .layer = key / 12,
                                        .n_rows = c->uses[u].n_rows,
                                        .gate = c->uses[u].gate,
                                        .next_use = c->uses[u].next_use};
            (all.resident[key] ? policy->hit : policy->insert)(object, key, &access);
            all.resident[key] = true;
        }
        uint32_t victim = policy->victim(object, 40, may_evict, &all);
        if (victim != c->victim) {
            fail_msg("case %zu (%s): evicts %u, not %u", i, c->policy, victim, c->victim);
        }
        policy->destroy(object);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_contract),
        cmocka_unit_test(test_choices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
