/* SPDX-License-Identifier: MIT */
#include "offload/expert_store.h"

#include <stdlib.h>
#include <string.h>

#include "cache/layer_access.h"
#include "offload/slot_arena.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

struct moe_expert_store {
    /* Set at open, never changed. */
    moe_expert_store_options options;
    moe_slot_arena arena;
    moe_expert_cache *cache;
    moe_mover *mover;
    moe_range_file *files;

    /* The layer at work. */
    moe_layer_request request;
    uint32_t *keys;              /* [n_expert] of the request */
    moe_policy_access *accesses; /* [n_expert] */
    bool *handled;               /* [n_expert]: in this wave or an earlier one */
    moe_layer_access *wave;      /* [n_expert] */
    bool *delivered;             /* [n_expert] of the wave */
    uint32_t *waiting;           /* [n_expert]: slots of the wave that are not delivered */
    uint32_t n_wave;
    uint32_t n_delivered;

    bool *is_kept; /* [n_layer * n_expert], or NULL when nothing is kept for good */

    /* Prefetches under way, pinned until they settle. */
    uint32_t *prefetching; /* [n_slots]: slots */
    uint32_t n_prefetching;
};

static uint32_t key_of(const moe_expert_store *store, uint32_t layer, uint32_t expert)
{
    return layer * store->options.map->n_expert + expert;
}

/* A key is read into its slot. */
static void submit_move(moe_expert_store *store, uint32_t key, uint32_t slot, moe_move_cause cause)
{
    const moe_tensor_map *map = store->options.map;
    moe_move move = {.expert = &map->layers[key / map->n_expert].experts[key % map->n_expert],
                     .cause = cause};
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        move.buffers[p] = moe_slot_arena_buffer(&store->arena, slot, p);
    }
    if (store->options.checksums != NULL) {
        move.checksums = store->options.checksums + (size_t)key * MOE_EXPERT_PARTS;
    }
    moe_mover_submit(store->mover, slot, &move);
}

/* The bytes in a slot that changes its key are nobody's. Nothing under way is ever evicted: it is
 * pinned. */
static void forget_slot(moe_expert_store *store, uint32_t slot)
{
    moe_mover_reset(store->mover, slot);
}

static void drop_key(moe_expert_store *store, uint32_t key, uint32_t slot)
{
    forget_slot(store, slot);
    moe_expert_cache_drop(store->cache, key);
}

/* ---- Prefetches ---- */

/* Looks at what has become of them: those that settled are unpinned, those that failed are dropped
 * (a demand will meet the error itself), those that have not begun are cancelled when `cancel`. */
static void settle_prefetches(moe_expert_store *store, bool cancel)
{
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < store->n_prefetching; i++) {
        uint32_t slot = store->prefetching[i];
        uint32_t key = moe_expert_cache_key_of(store->cache, slot);
        if (cancel && moe_mover_cancel(store->mover, slot)) {
            moe_expert_cache_drop(store->cache, key);
            continue;
        }
        moe_slot_state state = moe_mover_state(store->mover, slot);
        if (state == MOE_SLOT_READY) {
            moe_expert_cache_unpin(store->cache, key);
        } else if (state == MOE_SLOT_FAILED) {
            drop_key(store, key, slot);
        } else {
            store->prefetching[n_left++] = slot;
        }
    }
    store->n_prefetching = n_left;
}

/* A wave takes a prefetch over with its own pin, so that nobody else looks after the slot. */
static void adopt_prefetch(moe_expert_store *store, const moe_layer_access *access)
{
    for (uint32_t i = 0; i < store->n_prefetching; i++) {
        if (store->prefetching[i] == access->slot) {
            store->prefetching[i] = store->prefetching[--store->n_prefetching];
            moe_expert_cache_unpin(store->cache, store->keys[access->position]);
            return;
        }
    }
}

static void wait_for_prefetches(moe_expert_store *store)
{
    settle_prefetches(store, true);
    while (store->n_prefetching > 0) {
        moe_mover_wait(store->mover, store->prefetching, store->n_prefetching);
        settle_prefetches(store, false);
    }
}

void moe_expert_store_prefetch(moe_expert_store *store, uint32_t layer, uint64_t pass,
                               const uint32_t *experts, uint32_t n, uint32_t max_moves)
{
    settle_prefetches(store, false);
    moe_policy_access access = {.pass = pass, .layer = layer};
    for (uint32_t i = 0; i < n && store->n_prefetching < max_moves; i++) {
        uint32_t key = key_of(store, layer, experts[i]);
        if (moe_expert_cache_find(store->cache, key) != MOE_SLOT_NONE) {
            continue;
        }
        uint32_t evicted;
        uint32_t slot = moe_expert_cache_prefetch(store->cache, key, &access, &evicted);
        if (slot == MOE_SLOT_NONE) {
            return;
        }
        moe_expert_cache_pin(store->cache, key);
        forget_slot(store, slot);
        submit_move(store, key, slot, MOE_CAUSE_PREFETCH);
        store->prefetching[store->n_prefetching++] = slot;
    }
}

bool moe_expert_store_is_idle(const moe_expert_store *store)
{
    return moe_mover_is_idle(store->mover);
}

/* ---- A layer ---- */

/* Prefetches of this layer that turned out not to be wanted, and have not begun, are taken back. */
static void cancel_unwanted(moe_expert_store *store, const moe_layer_request *request)
{
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < store->n_prefetching; i++) {
        uint32_t slot = store->prefetching[i];
        uint32_t key = moe_expert_cache_key_of(store->cache, slot);
        bool wanted = key / store->options.map->n_expert != request->layer;
        for (uint32_t e = 0; e < request->n && !wanted; e++) {
            wanted = key_of(store, request->layer, request->experts[e]) == key;
        }
        if (!wanted && moe_mover_cancel(store->mover, slot)) {
            moe_expert_cache_drop(store->cache, key);
        } else {
            store->prefetching[n_left++] = slot;
        }
    }
    store->n_prefetching = n_left;
}

static void end_wave(moe_expert_store *store)
{
    for (uint32_t i = 0; i < store->n_wave; i++) {
        moe_expert_cache_unpin(store->cache, store->keys[store->wave[i].position]);
    }
    store->n_wave = store->n_delivered = 0;
}

static void end_layer(moe_expert_store *store)
{
    end_wave(store);
    for (uint32_t i = 0; store->options.keep_nothing && i < store->request.n; i++) {
        uint32_t slot = moe_expert_cache_find(store->cache, store->keys[i]);
        bool keep = store->is_kept != NULL && store->is_kept[store->keys[i]];
        if (slot != MOE_SLOT_NONE && !keep) {
            drop_key(store, store->keys[i], slot);
        }
    }
    store->request.n = 0;
}

static uint32_t access_wave(moe_expert_store *store)
{
    return moe_layer_access_wave(store->cache, store->keys, store->accesses, store->request.n,
                                 store->handled, store->wave);
}

/* Asks the mover for what is missing of the next wave; 0 when the layer is done. */
static int begin_wave(moe_expert_store *store, moe_error *err)
{
    end_wave(store);
    bool all_handled = true;
    for (uint32_t i = 0; i < store->request.n; i++) {
        all_handled &= store->handled[i];
    }
    if (all_handled) {
        return MOE_OK;
    }
    store->n_wave = access_wave(store);
    if (store->n_wave == 0) {
        wait_for_prefetches(store);
        store->n_wave = access_wave(store);
    }
    if (store->n_wave == 0) {
        return moe_fail(err, MOE_ERR_INTERNAL, "every expert slot is pinned between two waves");
    }
    for (uint32_t i = 0; i < store->n_wave; i++) {
        const moe_layer_access *access = &store->wave[i];
        store->delivered[i] = false;
        if (access->hit) {
            adopt_prefetch(store, access);
            moe_mover_raise(store->mover, access->slot, MOE_CAUSE_DEMAND);
        } else {
            forget_slot(store, access->slot);
            submit_move(store, store->keys[access->position], access->slot, MOE_CAUSE_DEMAND);
        }
    }
    return MOE_OK;
}

int moe_expert_store_begin(moe_expert_store *store, const moe_layer_request *request,
                           moe_error *err)
{
    settle_prefetches(store, false);
    cancel_unwanted(store, request);
    store->request = *request;
    store->n_wave = store->n_delivered = 0;
    for (uint32_t i = 0; i < request->n; i++) {
        store->keys[i] = key_of(store, request->layer, request->experts[i]);
        store->accesses[i] =
            (moe_policy_access){.pass = request->pass,
                                .layer = request->layer,
                                .n_rows = request->n_rows[i],
                                .gate = request->gates != NULL ? request->gates[i] : 0};
        store->handled[i] = false;
    }
    int status = begin_wave(store, err);
    if (status != MOE_OK) {
        end_layer(store);
    }
    return status;
}

static void fill_view(const moe_expert_store *store, const moe_layer_access *access,
                      moe_expert_view *view)
{
    uint32_t id = store->request.experts[access->position];
    const moe_expert_ref *expert = &store->options.map->layers[store->request.layer].experts[id];
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        const moe_tensor_ref *ref = &expert->parts[p];
        view->parts[p] = (moe_weight){.type = ref->type,
                                      .data = moe_mover_data(store->mover, access->slot, p),
                                      .n_in = (uint32_t)ref->n_in,
                                      .n_out = (uint32_t)ref->n_out,
                                      .row_bytes = moe_dtype_row_bytes(ref->type, ref->n_in)};
    }
}

/* After a failed read: lets the rest of the wave settle, drops what failed, unpins. */
static int fail_layer(moe_expert_store *store, uint32_t failed, moe_error *err)
{
    moe_error reason;
    uint32_t slot;
    int status = moe_mover_last_error(store->mover, &slot, &reason);
    /* Several may have failed: the one that the reason is about is named. */
    for (uint32_t i = 0; i < store->n_wave; i++) {
        failed = store->wave[i].slot == slot ? i : failed;
    }
    uint32_t expert = store->request.experts[store->wave[failed].position];
    moe_fail(err, status, "layer %u, expert %u: %.440s", store->request.layer, expert,
             reason.message);
    moe_expert_store_abandon(store);
    return status;
}

void moe_expert_store_abandon(moe_expert_store *store)
{
    for (uint32_t i = 0; i < store->n_wave; i++) {
        const moe_layer_access *access = &store->wave[i];
        uint32_t key = store->keys[access->position];
        moe_mover_wait(store->mover, &access->slot, 1);
        moe_expert_cache_unpin(store->cache, key);
        if (moe_mover_state(store->mover, access->slot) == MOE_SLOT_FAILED) {
            drop_key(store, key, access->slot);
        }
    }
    store->n_wave = store->n_delivered = 0;
    end_layer(store);
}

/* Experts of the wave that are ready and not delivered; failed is the position of one that failed.
 */
static uint32_t collect_ready(moe_expert_store *store, uint32_t *positions, moe_expert_view *views,
                              uint32_t *n_waiting, uint32_t *failed)
{
    uint32_t n = 0;
    *n_waiting = 0;
    for (uint32_t i = 0; i < store->n_wave; i++) {
        moe_layer_access *access = &store->wave[i];
        if (store->delivered[i]) {
            continue;
        }
        moe_slot_state state = moe_mover_state(store->mover, access->slot);
        if (state == MOE_SLOT_FAILED && access->hit) {
            /* Read ahead of need in vain; now it is needed. */
            access->hit = false;
            forget_slot(store, access->slot);
            submit_move(store, store->keys[access->position], access->slot, MOE_CAUSE_DEMAND);
            state = MOE_SLOT_QUEUED;
        }
        if (state == MOE_SLOT_READY) {
            store->delivered[i] = true;
            store->n_delivered++;
            positions[n] = access->position;
            fill_view(store, access, &views[n++]);
        } else {
            *failed = state == MOE_SLOT_FAILED ? i : *failed;
            store->waiting[(*n_waiting)++] = access->slot;
        }
    }
    return n;
}

int moe_expert_store_next(moe_expert_store *store, uint32_t *positions, moe_expert_view *views,
                          uint32_t *n, moe_error *err)
{
    *n = 0;
    if (store->n_delivered == store->n_wave) {
        int status = begin_wave(store, err);
        if (status != MOE_OK || store->n_wave == 0) {
            end_layer(store);
            return status;
        }
    }
    uint32_t n_waiting;
    uint32_t failed = UINT32_MAX;
    *n = collect_ready(store, positions, views, &n_waiting, &failed);
    while (*n == 0 && failed == UINT32_MAX) {
        moe_mover_wait(store->mover, store->waiting, n_waiting);
        *n = collect_ready(store, positions, views, &n_waiting, &failed);
    }
    if (failed != UINT32_MAX) {
        *n = 0;
        return fail_layer(store, failed, err);
    }
    return MOE_OK;
}

void moe_expert_store_end_pass(moe_expert_store *store, uint64_t pass)
{
    moe_expert_cache_end_pass(store->cache, pass);
}

/* ---- Opening ---- */

static size_t buffer_bytes(const void *reader, uint64_t part_bytes)
{
    return (moe_range_buffer_bytes(reader, part_bytes) + 63) & ~(size_t)63;
}

/* What O_DIRECT may ask for on any disk in use: an aligned superset on 4 KiB boundaries. */
static size_t assumed_buffer_bytes(const void *context, uint64_t part_bytes)
{
    (void)context;
    return (size_t)((part_bytes + 2 * 4096 - 1) & ~(uint64_t)4095);
}

int moe_expert_store_sizes(const moe_tensor_map *map, uint64_t *full_bytes, uint64_t *slot_bytes,
                           moe_error *err)
{
    moe_slot_arena arena;
    int status = moe_slot_arena_init(&arena, NULL, map, assumed_buffer_bytes, NULL, err);
    if (status == MOE_OK) {
        *full_bytes = moe_slot_arena_full_bytes(&arena);
        *slot_bytes = moe_slot_arena_largest_bytes(&arena);
        moe_slot_arena_free(&arena);
    }
    return status;
}

static int open_reader(moe_expert_store *store, moe_range_reader **reader, moe_error *err)
{
    const moe_expert_store_options *o = &store->options;
    size_t n_files = moe_gguf_n_files(o->gguf);
    store->files = moe_calloc(n_files, sizeof *store->files);
    if (store->files == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for %zu files", n_files);
    }
    for (size_t i = 0; i < n_files; i++) {
        const moe_gguf_file *file = moe_gguf_file_at(o->gguf, i);
        store->files[i] = (moe_range_file){file->path, file->fd, file->size};
    }
    moe_range_reader_options options = {.kind = o->io,
                                        .engine = o->io_engine,
                                        .engine_context = o->io_context,
                                        .files = store->files,
                                        .n_files = (uint32_t)n_files,
                                        .buffered = o->buffered_io,
                                        .log = o->log,
                                        .user = o->user};
    return moe_range_reader_open(reader, &options, err);
}

static int open_cache(moe_expert_store *store, moe_error *err)
{
    const moe_expert_store_options *o = &store->options;
    uint32_t *slots_of_class = moe_calloc(store->arena.n_classes, sizeof *slots_of_class);
    if (slots_of_class == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the expert cache");
    }
    for (uint32_t c = 0; c < store->arena.n_classes; c++) {
        slots_of_class[c] = store->arena.classes[c].n_slots;
    }
    moe_expert_cache_options options = {.n_layer = o->map->n_layer,
                                        .n_expert = o->map->n_expert,
                                        .n_expert_used = o->n_expert_used,
                                        .class_of_layer = store->arena.class_of_layer,
                                        .n_classes = store->arena.n_classes,
                                        .slots_of_class = slots_of_class,
                                        .per_layer = o->per_layer,
                                        .policy = o->policy,
                                        .hotness = o->hotness,
                                        .has_gates = true,
                                        .seed = o->seed};
    int status = moe_expert_cache_create(&store->cache, &options, err);
    free(slots_of_class);
    return status;
}

static int allocate_scratch(moe_expert_store *store, moe_error *err)
{
    size_t n = store->options.map->n_expert;
    store->keys = moe_calloc(n, sizeof *store->keys);
    store->accesses = moe_calloc(n, sizeof *store->accesses);
    store->handled = moe_calloc(n, sizeof *store->handled);
    store->wave = moe_calloc(n, sizeof *store->wave);
    store->delivered = moe_calloc(n, sizeof *store->delivered);
    store->waiting = moe_calloc(n, sizeof *store->waiting);
    store->prefetching = moe_calloc(store->arena.n_slots, sizeof *store->prefetching);
    if (store->keys == NULL || store->accesses == NULL || store->handled == NULL ||
        store->wave == NULL || store->delivered == NULL || store->waiting == NULL ||
        store->prefetching == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the expert store");
    }
    return MOE_OK;
}

/* ---- What is kept for good ---- */

/* A class whose slots were all kept would have none left for the experts that come and go. */
static int check_kept_fit(const moe_expert_store *store, moe_error *err)
{
    const moe_expert_store_options *o = &store->options;
    uint64_t n_more = 0;
    uint64_t bytes_more = 0;
    for (uint32_t c = 0; c < store->arena.n_classes; c++) {
        const moe_slot_class *class = &store->arena.classes[c];
        uint32_t n = 1;
        for (uint32_t i = 0; i < o->n_kept; i++) {
            n += store->arena.class_of_layer[o->kept[i] / o->map->n_expert] == c;
        }
        if (n > class->n_slots) {
            n_more += n - class->n_slots;
            bytes_more += (n - class->n_slots) * class->slot_bytes;
        }
    }
    return n_more == 0
               ? MOE_OK
               : moe_fail(err, MOE_ERR_BUDGET,
                          "the %u experts to be kept need %llu slots more (%llu bytes); "
                          "raise the memory budget or the expert cache",
                          o->n_kept, (unsigned long long)n_more, (unsigned long long)bytes_more);
}

static int await_kept(moe_expert_store *store, moe_error *err)
{
    const moe_expert_store_options *o = &store->options;
    for (uint32_t i = 0; i < o->n_kept; i++) {
        uint32_t slot = moe_expert_cache_find(store->cache, o->kept[i]);
        moe_mover_wait(store->mover, &slot, 1);
        if (moe_mover_state(store->mover, slot) == MOE_SLOT_FAILED) {
            moe_error reason = {"reading failed"};
            uint32_t failed = slot;
            int status = moe_mover_last_error(store->mover, &failed, &reason);
            uint32_t key = moe_expert_cache_key_of(store->cache, failed);
            return moe_fail(err, status, "layer %u, expert %u: %.440s", key / o->map->n_expert,
                            key % o->map->n_expert, reason.message);
        }
    }
    return MOE_OK;
}

/* Reads them and leaves them pinned. */
static int load_kept(moe_expert_store *store, moe_error *err)
{
    const moe_expert_store_options *o = &store->options;
    if (o->n_kept == 0) {
        return MOE_OK;
    }
    store->is_kept = moe_calloc((size_t)o->map->n_layer * o->map->n_expert, sizeof(bool));
    if (store->is_kept == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the expert store");
    }
    int status = check_kept_fit(store, err);
    for (uint32_t i = 0; i < o->n_kept && status == MOE_OK; i++) {
        uint32_t key = o->kept[i];
        moe_policy_access access = {.layer = key / o->map->n_expert};
        uint32_t evicted;
        uint32_t slot = moe_expert_cache_prefetch(store->cache, key, &access, &evicted);
        moe_expert_cache_pin(store->cache, key);
        store->is_kept[key] = true;
        submit_move(store, key, slot, MOE_CAUSE_PREFETCH);
    }
    status = status != MOE_OK ? status : await_kept(store, err);
    store->options.kept = NULL; /* the caller's, and no longer needed */
    return status;
}

static int open_parts(moe_expert_store *store, moe_error *err)
{
    const moe_expert_store_options *o = &store->options;
    moe_range_reader *reader = NULL;
    int status = open_reader(store, &reader, err);
    if (status == MOE_OK) {
        status = moe_slot_arena_init(&store->arena, o->device, o->map, buffer_bytes, reader, err);
    }
    if (status == MOE_OK) {
        status = moe_slot_arena_allocate(&store->arena, o->budget_bytes, err);
    }
    if (status == MOE_OK) {
        status = open_cache(store, err);
    }
    if (status == MOE_OK) {
        status = allocate_scratch(store, err);
    }
    if (status != MOE_OK) {
        moe_range_reader_close(&reader);
        return status;
    }
    moe_mover_options options = {.reader = reader, .n_slots = store->arena.n_slots};
    status = moe_mover_open(&store->mover, &options, err);
    return status != MOE_OK ? status : load_kept(store, err);
}

int moe_expert_store_open(moe_expert_store **out, const moe_expert_store_options *options,
                          moe_error *err)
{
    *out = NULL;
    moe_expert_store *store = moe_calloc(1, sizeof *store);
    if (store == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the expert store");
    }
    store->options = *options;
    int status = open_parts(store, err);
    if (status != MOE_OK) {
        moe_expert_store_close(&store);
        return status;
    }
    *out = store;
    return MOE_OK;
}

void moe_expert_store_close(moe_expert_store **store_ptr)
{
    moe_expert_store *store = *store_ptr;
    if (store == NULL) {
        return;
    }
    moe_mover_close(&store->mover);
    moe_expert_cache_destroy(&store->cache);
    moe_slot_arena_free(&store->arena);
    free(store->keys);
    free(store->accesses);
    free(store->handled);
    free(store->wave);
    free(store->delivered);
    free(store->waiting);
    free(store->prefetching);
    free(store->is_kept);
    free(store->files);
    free(store);
    *store_ptr = NULL;
}

void moe_expert_store_get_stats(moe_expert_store *store, moe_expert_store_stats *stats)
{
    moe_expert_cache_stats cache;
    moe_mover_stats moves;
    moe_expert_cache_get_stats(store->cache, &cache);
    moe_mover_get_stats(store->mover, &moves);
    *stats = (moe_expert_store_stats){
        .hits = cache.hits,
        .misses = cache.misses,
        .evictions = cache.evictions,
        .prefetches = cache.prefetch_inserts,
        .prefetches_used = cache.prefetch_used,
        .prefetches_wasted = cache.prefetch_wasted,
        .prefetches_cancelled = moves.n_cancelled,
        .bytes_demand = moves.bytes[MOE_CAUSE_DEMAND] + moves.bytes[MOE_CAUSE_VERIFY],
        .bytes_prefetch = moves.bytes[MOE_CAUSE_PREFETCH],
        .bytes_read = moves.bytes_read,
        .wait_ns = moves.wait_ns,
        .n_slots = store->arena.n_slots,
        .slot_bytes_total = store->arena.bytes,
        .n_resident = moe_expert_cache_n_resident(store->cache),
    };
}

void moe_expert_store_describe(const moe_expert_store *store, char *out, size_t size)
{
    moe_mover_describe(store->mover, out, size);
}
