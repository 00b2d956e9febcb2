/* SPDX-License-Identifier: MIT */
/* Opens and closes an expert store, and reports its statistics. */
#include <stdlib.h>
#include <string.h>

#include "offload/card_layers.h"
#include "offload/expert_store_state.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

#define MOST_CLOSE_MS 10000u

static size_t buffer_bytes(const void *reader, uint64_t part_bytes)
{
    return (moe_range_buffer_bytes(reader, part_bytes) + 63) & ~(size_t)63;
}

/* The largest buffer that O_DIRECT needs on common disks: the aligned superset of a part, on 4 KiB
 * boundaries. */
static size_t assumed_buffer_bytes(const void *context, uint64_t part_bytes)
{
    (void)context;
    return (size_t)((part_bytes + 2 * 4096 - 1) & ~(uint64_t)4095);
}

/* The slots of a device behind a link are filled by copies, not by direct reads. So they need no
 * room for aligned supersets. */
static size_t device_buffer_bytes(const void *context, uint64_t part_bytes)
{
    (void)context;
    return (size_t)((part_bytes + 63) & ~(uint64_t)63);
}

static int measure_slots(const moe_tensor_map *map,
                         size_t (*bytes_of)(const void *context, uint64_t part_bytes),
                         uint64_t *full_bytes, uint64_t *slot_bytes, uint32_t *n_classes,
                         moe_error *err)
{
    moe_slot_arena arena;
    MOE_TRY(moe_slot_arena_init(&arena, NULL, map, NULL, bytes_of, NULL, err));
    *full_bytes = moe_slot_arena_full_bytes(&arena);
    *slot_bytes = moe_slot_arena_largest_bytes(&arena);
    *n_classes = arena.n_classes;
    moe_slot_arena_free(&arena);
    return MOE_OK;
}

int moe_expert_store_sizes(const moe_tensor_map *map, bool has_link, moe_expert_slot_sizes *sizes,
                           moe_error *err)
{
    *sizes = (moe_expert_slot_sizes){0};
    if (!has_link) {
        return measure_slots(map, assumed_buffer_bytes, &sizes->full_bytes, &sizes->slot_bytes,
                             &sizes->n_classes, err);
    }
    MOE_TRY(measure_slots(map, device_buffer_bytes, &sizes->full_bytes, &sizes->slot_bytes,
                          &sizes->n_classes, err));
    return measure_slots(map, assumed_buffer_bytes, &sizes->host_full_bytes,
                         &sizes->host_slot_bytes, &sizes->n_classes, err);
}

/* How long closing may wait: as long as other waits, but at most MOST_CLOSE_MS, because a user is
 * waiting for the program to end. */
static uint32_t close_timeout_ms(const moe_expert_store_options *options)
{
    uint64_t ms = options->io_timeout_ns / 1000000u + 1;
    return options->io_timeout_ns != 0 && ms < MOST_CLOSE_MS ? (uint32_t)ms : MOST_CLOSE_MS;
}

static int open_reader(moe_expert_store *store, moe_range_reader **reader, moe_error *err)
{
    const moe_expert_store_options *o = &store->options;
    size_t n_files = moe_gguf_n_files(o->gguf);
    size_t n_all = (1 + (size_t)o->n_copies) * n_files;
    moe_byte_source **files = moe_calloc(n_all, sizeof *files);
    if (files == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for %zu files", n_files);
    }
    for (size_t i = 0; i < n_all; i++) {
        const moe_gguf *gguf = i < n_files ? o->gguf : o->copies[i / n_files - 1];
        MOE_ASSERT(moe_gguf_n_files(gguf) == n_files);
        files[i] = moe_gguf_file_at(gguf, i % n_files)->source;
    }
    moe_range_reader_options options = {.kind = o->io,
                                        .engine = o->io_engine,
                                        .engine_context = o->io_context,
                                        .files = files,
                                        .n_files = (uint32_t)n_files,
                                        .n_copies = o->n_copies,
                                        .buffered = o->buffered_io,
                                        .block_bytes = o->io_block_bytes,
                                        .depth = o->io_depth,
                                        .close_timeout_ms = close_timeout_ms(o),
                                        .log = o->log,
                                        .user = o->user};
    int status = moe_range_reader_open(reader, &options, err);
    free(files);
    return status;
}

static int open_cache(moe_expert_store *store, moe_error *err)
{
    const moe_expert_store_options *o = &store->options;
    moe_expert_cache_options options = {.n_expert_used = o->n_expert_used,
                                        .per_layer = o->per_layer,
                                        .policy = o->policy,
                                        .hotness = o->hotness,
                                        .has_gates = true,
                                        .seed = o->seed};
    return moe_slot_arena_create_cache(&store->arena, o->map, &options, &store->cache, err);
}

static int open_host_tier(moe_expert_store *store, const moe_range_reader *reader, moe_error *err)
{
    const moe_expert_store_options *o = &store->options;
    moe_host_tier_options options = {.device = o->device,
                                     .map = o->map,
                                     .n_expert_used = o->n_expert_used,
                                     .budget_bytes = o->host_budget_bytes,
                                     .policy = o->policy,
                                     .hotness = o->hotness,
                                     .seed = o->seed,
                                     .buffer_bytes = buffer_bytes,
                                     .context = reader};
    return moe_host_tier_open(&store->host, &options, err);
}

static int allocate_scratch(moe_expert_store *store, moe_error *err)
{
    size_t n = store->options.map->n_expert;
    store->keys = moe_calloc(n, sizeof *store->keys);
    store->accesses = moe_calloc(n, sizeof *store->accesses);
    store->handled = moe_calloc(n, sizeof *store->handled);
    store->wave = moe_calloc(n, sizeof *store->wave);
    store->delivered = moe_calloc(n, sizeof *store->delivered);
    store->waiting =
        moe_calloc(n > store->arena.n_slots ? n : store->arena.n_slots, sizeof *store->waiting);
    store->host_positions = moe_calloc(n, sizeof *store->host_positions);
    if (store->host_positions == NULL || store->keys == NULL || store->accesses == NULL ||
        store->handled == NULL || store->wave == NULL || store->delivered == NULL ||
        store->waiting == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the expert store");
    }
    return moe_store_init_slots(store, err);
}

/* Registers the arena with the reader, except in two cases. If every expert has a slot, each expert
 * is read at most once, and registering would cost as much as pinning pages for that one read. If a
 * link page-locks the memory piece by piece, registering would page-lock all of it at once. */
static void use_arena(const moe_expert_store *store, moe_range_reader *reader)
{
    const moe_slot_arena *arena = store->ram.arena;
    bool locked_in_pieces = arena->on_host && !arena->device->simulated;
    if (arena->bytes < moe_slot_arena_full_bytes(arena) && !locked_in_pieces) {
        moe_range_reader_use_arena(reader, arena->memory, arena->bytes);
    }
}

/* The slots of the device, on all of its cards. */
static int open_arena(moe_expert_store *store, const moe_range_reader *reader, moe_error *err)
{
    const moe_expert_store_options *o = &store->options;
    uint32_t n_cards = moe_cards_n(o->device);
    size_t (*bytes_of)(const void *, uint64_t) =
        o->device->link != NULL ? device_buffer_bytes : buffer_bytes;
    uint8_t *card_of_layer = NULL;
    if (n_cards > 1) {
        card_of_layer = moe_calloc(o->map->n_layer, sizeof *card_of_layer);
        if (card_of_layer == NULL) {
            return moe_fail(err, MOE_ERR_MEMORY, "no memory for the layers of cards");
        }
        uint64_t held[MOE_MAX_CARDS];
        moe_card_layers(o->map, o->card_bytes, n_cards, card_of_layer, held);
    }
    int status =
        moe_slot_arena_init(&store->arena, o->device, o->map, card_of_layer, bytes_of, reader, err);
    free(card_of_layer);
    const uint64_t *budgets = n_cards > 1 ? o->card_bytes : &o->budget_bytes;
    return status == MOE_OK ? moe_slot_arena_allocate(&store->arena, false, budgets, err) : status;
}

static int open_parts(moe_expert_store *store, moe_error *err)
{
    const moe_expert_store_options *o = &store->options;
    moe_range_reader *reader = NULL;
    int status = open_reader(store, &reader, err);
    bool linked = o->device->link != NULL;
    if (status == MOE_OK) {
        status = open_arena(store, reader, err);
    }
    if (status == MOE_OK && linked) {
        status = open_host_tier(store, reader, err);
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
    if (linked && !moe_expert_cache_stack(moe_host_tier_cache(store->host), store->cache)) {
        moe_range_reader_close(&reader);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the expert store");
    }
    store->ram =
        linked ? (moe_slot_tier){moe_host_tier_arena(store->host), moe_host_tier_cache(store->host)}
               : (moe_slot_tier){&store->arena, store->cache};
    store->fits_all = !linked && store->arena.bytes >= moe_slot_arena_full_bytes(&store->arena);
    use_arena(store, reader);
    if (!linked && (o->device->features & MOE_DEVICE_READABLE) != 0) {
        store->pages = moe_slot_pages_start(&store->arena, o->n_page_threads);
    }
    moe_mover_options options = {.reader = reader,
                                 .device = linked ? o->device : NULL,
                                 .n_slots = store->arena.n_slots,
                                 .io_timeout_ns = o->io_timeout_ns};
    status = moe_mover_open(&store->mover, &options, err);
    if (status == MOE_OK) {
        status = moe_store_init_place(store, err);
    }
    return status != MOE_OK ? status : moe_store_load_kept(store, err);
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

/* Leaves the slots' memory allocated, because the device may still write to it. */
static void leave_memory(moe_expert_store *store)
{
    if (store->options.log != NULL) {
        store->options.log("the disk or the device still owes an answer: the memory of the expert "
                           "slots stays allocated",
                           store->options.user);
    }
    moe_slot_arena_leave(&store->arena);
    if (store->host != NULL) {
        moe_host_tier_leave(store->host);
    }
}

void moe_expert_store_close(moe_expert_store **store_ptr)
{
    moe_expert_store *store = *store_ptr;
    if (store == NULL) {
        return;
    }
    if (!moe_mover_close(&store->mover)) {
        leave_memory(store);
    }
    moe_expert_cache_destroy(&store->cache);
    moe_slot_pages_stop(&store->pages);
    moe_slot_arena_free(&store->arena);
    moe_host_tier_close(&store->host);
    moe_store_free_slots(store);
    moe_store_free_place(store);
    free(store->host_positions);
    free(store->keys);
    free(store->accesses);
    free(store->handled);
    free(store->wave);
    free(store->delivered);
    free(store->waiting);
    free(store->loans);
    free(store);
    *store_ptr = NULL;
}

void moe_expert_store_get_stats(moe_expert_store *store, moe_expert_store_stats *stats)
{
    moe_expert_cache_stats cache;
    moe_mover_stats moves;
    moe_host_tier_stats host = {0};
    moe_expert_cache_get_stats(store->cache, &cache);
    if (store->host != NULL) {
        moe_host_tier_get_stats(store->host, &host);
    }
    moe_mover_get_stats(store->mover, &moves);
    *stats = (moe_expert_store_stats){
        .hits = cache.hits,
        .misses = cache.misses + store->n_host_computed + store->n_in_place - store->n_kept,
        .host_computed = store->n_host_computed,
        .read_in_place = store->n_in_place,
        .bytes_in_place = store->bytes_in_place,
        .kept = store->n_kept,
        .host_hits = host.hits,
        .host_misses = host.misses,
        .demoted = moves.n_saves,
        .demotions_lost = moves.n_saves_lost,
        .demoted_hits = host.hits_saved,
        .bytes_demoted = moves.bytes_saved,
        .evictions = cache.evictions,
        .prefetches = cache.prefetch_inserts - store->n_refused,
        .prefetches_used = cache.prefetch_used,
        .prefetches_wasted = cache.prefetch_wasted,
        .prefetches_cancelled = moves.n_cancelled,
        .bytes_demand = moves.bytes[MOE_CAUSE_DEMAND],
        .bytes_foresight = moves.bytes[MOE_CAUSE_VERIFY],
        .bytes_prefetch = moves.bytes[MOE_CAUSE_PREFETCH],
        .bytes_link = moves.bytes_link,
        .bytes_disk_demand = moves.bytes_disk[MOE_CAUSE_DEMAND],
        .bytes_disk_foresight = moves.bytes_disk[MOE_CAUSE_VERIFY],
        .bytes_disk_prefetch = moves.bytes_disk[MOE_CAUSE_PREFETCH],
        .bytes_read = moves.bytes_read,
        .wait_ns = store->wait_ns,
        .n_retries = moves.n_retries + moves.n_checksum_retries,
        .n_failed = moves.n_failed,
        .n_timeouts = moves.n_timeouts,
        .policy_faults = cache.policy_faults + host.policy_faults,
        .n_asked = {store->n_asked[0], store->n_asked[1], store->n_asked[2]},
        .n_slots = store->arena.n_slots,
        .slot_bytes_total = store->arena.bytes,
        .n_resident = moe_expert_cache_n_resident(store->cache),
        .n_host_slots = host.n_slots,
        .host_slot_bytes_total = host.slot_bytes_total,
        .n_host_resident = host.n_resident,
        .n_closed = moe_expert_cache_n_closed(store->cache),
        .n_host_closed =
            store->host != NULL ? moe_expert_cache_n_closed(moe_host_tier_cache(store->host)) : 0,
    };
    memcpy(stats->bytes_verify, store->bytes_verify, sizeof stats->bytes_verify);
}

void moe_expert_store_describe(const moe_expert_store *store, char *out, size_t size)
{
    moe_mover_describe(store->mover, out, size);
}
