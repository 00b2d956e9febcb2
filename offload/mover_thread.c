/* SPDX-License-Identifier: MIT */
/* The mover's thread. It hands requests to the reader and the link, checks the bytes read, and
 * closes the reader when it ends. */
#include <string.h>
#include <xxhash.h>

#include "offload/mover_state.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

#define NONE                 MOE_MOVER_NONE
#define MAX_DONE             64u
#define MAX_RANGES_IN_FLIGHT 192u /* below the reader's own limit */
#define LOOKS_PER_TIMEOUT    8u
#define ONLY_FILES           1u /* value of moe_range.source: the model's own files only */
#define FROM_FILES           1u /* value of moe_range_done.sources: read from these files */

static bool may_prefetch(const moe_mover *mover)
{
    return mover->prefetches_yield ? mover->n_prefetches == 0 && atomic_load(&mover->n_urgent) == 0
                                   : mover->n_prefetches < mover->max_prefetches;
}

/* Takes the most urgent request that may go to the disk now, and makes it LOADING. NONE: there is
 * no such request. */
static uint32_t take_request(moe_mover *mover)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    uint32_t index = NONE;
    if (mover->n_ranges + MOE_EXPERT_PARTS > MAX_RANGES_IN_FLIGHT) {
        return NONE;
    }
    for (int cause = 0; cause < MOE_CAUSE_COUNT && index == NONE; cause++) {
        if (cause != MOE_CAUSE_PREFETCH || may_prefetch(mover)) {
            index = mover->queues[MOE_STAGE_READ][cause].first;
        }
    }
    if (index != NONE) {
        moe_mover_dequeue(mover, index, MOE_STAGE_READ);
        moe_mover_set_state(&mover->slots[index], MOE_SLOT_LOADING);
        if (mover->slots[index].move.cause == MOE_CAUSE_PREFETCH) {
            moe_slot_pages_taken(mover->pages, index);
        }
    }
    return index;
}

/* source: as in moe_range */
static void submit_part(moe_mover *mover, uint32_t index, int part, uint32_t source)
{
    MOE_ASSERT(moe_mover_get_state(&mover->slots[index]) == MOE_SLOT_LOADING);
    moe_mover_slot *slot = &mover->slots[index];
    const moe_tensor_ref *ref = &slot->move.expert->parts[part];
    moe_range range = {.file = ref->file_index,
                       .offset = ref->offset,
                       .size = ref->size,
                       .buffer = slot->move.buffers[part],
                       .source = source,
                       .tag = (uint64_t)index * MOE_EXPERT_PARTS + (uint64_t)part};
    /* The reader's limit is above the mover's, so there is always room. */
    if (moe_range_reader_submit(mover->reader, &range)) {
        mover->n_ranges++;
        slot->n_parts_left++;
    } else {
        moe_error error;
        slot->status = moe_fail(&error, MOE_ERR_INTERNAL, "the range reader is full");
        moe_mover_record_error(mover, index, &error);
    }
}

#define INTERVAL_WEIGHT 16u /* weight of the past; the newest interval has weight 1 */

/* Averages the time between two experts that were under way together. */
static void note_interval(moe_mover *mover, const moe_mover_slot *slot)
{
    uint64_t now = moe_now_ns();
    uint64_t last = atomic_load_explicit(&mover->last_read_ns, memory_order_relaxed);
    uint64_t interval = atomic_load_explicit(&mover->read_interval_ns, memory_order_relaxed);
    uint64_t newest = now - (last > slot->begin_ns ? last : slot->begin_ns);
    interval =
        interval == 0 ? newest : (INTERVAL_WEIGHT * interval + newest) / (INTERVAL_WEIGHT + 1);
    atomic_store_explicit(&mover->read_interval_ns, interval, memory_order_relaxed);
    atomic_store_explicit(&mover->last_read_ns, now, memory_order_relaxed);
}

/* Ends the first stage of a request: all of its parts have been read or given up. */
static void finish_reading(moe_mover *mover, uint32_t index)
{
    moe_mover_slot *slot = &mover->slots[index];
    moe_range_reader_stats reads;
    moe_range_reader_get_stats(mover->reader, &reads);
    bool staged = slot->status == MOE_OK && mover->device != NULL;
    MOE_ASSERT(slot->n_parts_left == 0);
    slot->in_memory = slot->status == MOE_OK;
    note_interval(mover, slot);
    pthread_mutex_lock(&mover->lock);
    mover->stats.bytes_read = reads.bytes_read;
    mover->stats.n_retries = reads.n_retries;
    MOE_ASSERT(slot->move.cause != MOE_CAUSE_PREFETCH || mover->n_prefetches > 0);
    mover->n_prefetches -= slot->move.cause == MOE_CAUSE_PREFETCH;
    if (slot->in_memory) {
        mover->stats.bytes_disk[slot->move.cause] += moe_expert_ref_bytes(slot->move.expert);
    }
    if (staged) {
        moe_mover_set_state(slot, MOE_SLOT_STAGED);
        moe_mover_enqueue(mover, index, MOE_STAGE_COPY);
    } else {
        moe_mover_give_up_save(mover, index);
        slot->awaits_save = moe_mover_is_saving(slot);
    }
    bool ends = !staged && !slot->awaits_save;
    pthread_mutex_unlock(&mover->lock);
    if (ends) {
        moe_mover_finish(mover, index);
    }
}

/* Whether a checksum says what the part's bytes must be, or no checksums are kept at all. */
static bool is_known(const moe_move *move, int part)
{
    return move->sums == NULL ||
           moe_weight_sums_get(move->sums, move->first_sum + (size_t)part) != 0;
}

static void start_slot(moe_mover *mover, uint32_t index)
{
    MOE_ASSERT(mover->n_ranges + MOE_EXPERT_PARTS <= MAX_RANGES_IN_FLIGHT);
    moe_mover_slot *slot = &mover->slots[index];
    slot->status = MOE_OK;
    memset(slot->retried, 0, sizeof slot->retried);
    memset(slot->doubted, 0, sizeof slot->doubted);
    slot->n_parts_left = 0;
    slot->begin_ns = moe_now_ns();
    mover->n_prefetches += slot->move.cause == MOE_CAUSE_PREFETCH;
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        if (slot->move.expert->parts[p].size > 0) {
            submit_part(mover, index, p, is_known(&slot->move, p) ? 0 : ONLY_FILES);
        }
    }
    if (slot->n_parts_left == 0) {
        finish_reading(mover, index);
    }
}

/* Whether the bytes match their checksum, or need not be compared. sources: those that delivered
 * the bytes. */
static bool matches(const moe_mover_slot *slot, int part, uint32_t sources)
{
    const moe_move *move = &slot->move;
    uint64_t size = move->expert->parts[part].size;
    size_t at = move->first_sum + (size_t)part;
    bool own = sources == FROM_FILES && slot->retried[part] == 0;
    if (move->sums == NULL || (own && !moe_weight_sums_is_due(move->sums, at))) {
        return true;
    }
    atomic_fetch_add_explicit(&move->sums->n_hashed, size, memory_order_relaxed);
    return moe_weight_sums_check(move->sums, at, XXH3_64bits(slot->data[part], size));
}

/* Checks the part's checksum. False: the bytes do not match. Then the part is read once more from
 * each source in turn; if no source has matching bytes, the part has failed. sources: those that
 * delivered the bytes. */
static bool verify_part(moe_mover *mover, uint32_t index, int part, uint32_t sources)
{
    moe_mover_slot *slot = &mover->slots[index];
    const moe_tensor_ref *ref = &slot->move.expert->parts[part];
    if (matches(slot, part, sources)) {
        if (slot->doubted[part] != 0) {
            moe_range_reader_blame(mover->reader, ref->file_index, ref->offset,
                                   slot->doubted[part] & ~sources);
        }
        return true;
    }
    uint32_t n_sources = moe_range_reader_n_sources(mover->reader);
    if (slot->retried[part] < n_sources) {
        slot->retried[part]++;
        slot->doubted[part] |= (uint8_t)sources;
        pthread_mutex_lock(&mover->lock);
        mover->stats.n_checksum_retries++;
        pthread_mutex_unlock(&mover->lock);
        submit_part(mover, index, part, n_sources > 1 ? slot->retried[part] : 0);
        return false;
    }
    moe_error error;
    const char *remedy = slot->move.sums->remedy;
    moe_weight_sums_tell_damage(slot->move.sums);
    slot->status =
        moe_fail(&error, MOE_ERR_IO,
                 "%s: the expert's bytes at offset %llu do not match their checksum, "
                 "%s; the file or the disk is damaged: %s",
                 moe_range_reader_path(mover->reader, ref->file_index),
                 (unsigned long long)ref->offset, n_sources > 1 ? "in any copy" : "twice",
                 remedy != NULL ? remedy : "download the file again");
    moe_mover_record_error(mover, index, &error);
    return false;
}

/* Gives a part up. Copies may have bytes that the files do not deliver; but they were not tried if
 * there is no checksum, because nothing could show whether they are right. */
static void fail_part(moe_mover *mover, uint32_t index, int part, const moe_range_done *done)
{
    moe_mover_slot *slot = &mover->slots[index];
    moe_error error = done->error;
    slot->status = done->status;
    if (!is_known(&slot->move, part) && moe_range_reader_n_sources(mover->reader) > 1) {
        (void)moe_fail(&error, done->status,
                       "%.300s; a copy is read only where a checksum tells whether it has the same "
                       "bytes, and there is none of these: open the copy as the model",
                       done->error.message);
    }
    moe_mover_record_error(mover, index, &error);
}

static void process_done(moe_mover *mover, const moe_range_done *done)
{
    uint32_t index = (uint32_t)(done->tag / MOE_EXPERT_PARTS);
    int part = (int)(done->tag % MOE_EXPERT_PARTS);
    moe_mover_slot *slot = &mover->slots[index];
    MOE_ASSERT(index < mover->n_slots && moe_mover_get_state(slot) == MOE_SLOT_LOADING);
    MOE_ASSERT(mover->n_ranges > 0 && slot->n_parts_left > 0);
    mover->n_ranges--;
    slot->n_parts_left--;
    if (done->status != MOE_OK) {
        fail_part(mover, index, part, done);
    } else {
        slot->data[part] = done->data;
        (void)verify_part(mover, index, part, done->sources);
    }
    if (slot->n_parts_left == 0) {
        finish_reading(mover, index);
    }
}

/* Carries out a set_away() request. Under the lock. */
static void answer_away(moe_mover *mover)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    moe_mover_away *a = &mover->away;
    if (a->memory != NULL) {
        /* No read under way may bring the pages back. */
        MOE_ASSERT(!a->away || mover->n_ranges == 0);
        a->done = moe_range_reader_set_away(mover->reader, a->memory, a->bytes, a->away);
        a->memory = NULL;
        pthread_cond_broadcast(&mover->finished);
    }
}

/* Takes the request to serve next and says what to do with it. Requests that have ended come first,
 * then those for the link, then those for the disk. NONE: there is none. */
static uint32_t take_next(moe_mover *mover, void (**act)(moe_mover *, uint32_t))
{
    uint32_t index = NONE;
    *act = moe_mover_finish;
    while (index == NONE && moe_mover_take_done_save(mover, &index)) {
    }
    if (index == NONE) {
        index = moe_mover_take_done_copy(mover);
    }
    if (index == NONE) {
        *act = moe_mover_start_save;
        index = moe_mover_take_save(mover);
    }
    if (index == NONE) {
        *act = moe_mover_start_copy;
        index = moe_mover_take_staged(mover);
    }
    if (index == NONE) {
        *act = start_slot;
        index = take_request(mover);
    }
    return index;
}

/* Hands requests to the link and to the reader. Sleeps when nothing is being read. False when the
 * thread should stop. */
static bool take_requests(moe_mover *mover)
{
    pthread_mutex_lock(&mover->lock);
    for (;;) {
        answer_away(mover);
        void (*act)(moe_mover *, uint32_t);
        uint32_t index = take_next(mover, &act);
        if (index != NONE) {
            pthread_mutex_unlock(&mover->lock);
            act(mover, index);
            pthread_mutex_lock(&mover->lock);
            continue;
        }
        MOE_ASSERT(moe_mover_is_sane(mover));
        if (mover->stop) {
            pthread_mutex_unlock(&mover->lock);
            return false;
        } else if (mover->n_ranges > 0) {
            break;
            /* Wakes by time, too, in case the link fails to notify. */
        } else if (mover->n_copies + mover->n_saving > 0) {
            moe_mover_wait_until(mover, &mover->requested,
                                 moe_now_ns() + mover->io_timeout_ns / LOOKS_PER_TIMEOUT);
        } else {
            pthread_cond_wait(&mover->requested, &mover->lock);
        }
    }
    pthread_mutex_unlock(&mover->lock);
    return true;
}

/* Counts each finished block as progress, because a large expert on a slow disk takes long. */
static void look_for_progress(moe_mover *mover)
{
    moe_range_reader_stats reads;
    moe_range_reader_get_stats(mover->reader, &reads);
    if (reads.bytes_read != mover->n_bytes_seen) {
        mover->n_bytes_seen = reads.bytes_read;
        pthread_mutex_lock(&mover->lock);
        moe_mover_note_progress(mover);
        pthread_mutex_unlock(&mover->lock);
    }
}

/* Waits until the copies on the link end, or the time is over. */
static bool await_copies(moe_mover *mover, uint64_t patience_ns)
{
    uint64_t deadline = moe_now_ns() + patience_ns;
    pthread_mutex_lock(&mover->lock);
    uint32_t ended_with_save;
    while (mover->n_copies + mover->n_saving > 0 && moe_now_ns() < deadline) {
        if (!moe_mover_take_done_save(mover, &ended_with_save) &&
            moe_mover_take_done_copy(mover) == NONE) {
            moe_mover_wait_until(mover, &mover->requested, deadline);
        }
    }
    bool ended = mover->n_copies + mover->n_saving == 0;
    pthread_mutex_unlock(&mover->lock);
    return ended;
}

/* The mover's thread. It owns the reader and so closes it, which waits for reads under way. */
void *moe_mover_main(void *arg)
{
    moe_mover *mover = arg;
    moe_range_done done[MAX_DONE];
    while (take_requests(mover)) {
        uint32_t n = moe_range_reader_wait(mover->reader, done, MAX_DONE,
                                           (int64_t)(mover->io_timeout_ns / LOOKS_PER_TIMEOUT));
        look_for_progress(mover);
        for (uint32_t i = 0; i < n; i++) {
            process_done(mover, &done[i]);
        }
    }
    pthread_mutex_lock(&mover->lock);
    uint64_t patience_ns = moe_mover_closing_patience(mover);
    pthread_mutex_unlock(&mover->lock);
    bool copied = await_copies(mover, patience_ns);
    moe_mover_leave_link(mover); /* the link's notices would wake a reader that is closed */
    moe_range_reader_hurry(mover->reader, patience_ns);
    bool read = moe_range_reader_close(&mover->reader);
    pthread_mutex_lock(&mover->lock);
    mover->ended = true;
    mover->hangs = !copied || !read;
    pthread_cond_broadcast(&mover->finished);
    pthread_mutex_unlock(&mover->lock);
    return NULL;
}
