/* SPDX-License-Identifier: MIT */
/* What happens to a range between submission and report. It is cut into blocks. Each answer of
 * the engine decides about a block: it is done, the rest is read, it is read again, or it is
 * given up. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "offload/io/range_state.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

/* A block is given up after this many answers in a row without a byte. Transient errors are retried
 * for about half a second in all, hard errors of the device a few times. */
#define MAX_TRANSIENT   16u
#define MAX_HARD        4u
#define MAX_EMPTY       4u
#define TRIES_AT_ONCE   4u
#define FIRST_BACKOFF   1000000u
#define MAX_BACKOFF_LOG 6u

void moe_range_list_push(moe_range_reader *r, moe_range_list *list, uint32_t index)
{
    MOE_ASSERT(index < r->max_ranges);
    r->ranges[index].next = MOE_IO_NONE;
    if (list->first == MOE_IO_NONE) {
        list->first = index;
    } else {
        r->ranges[list->last].next = index;
    }
    list->last = index;
}

uint32_t moe_range_list_pop(moe_range_reader *r, moe_range_list *list)
{
    uint32_t index = list->first;
    if (index != MOE_IO_NONE) {
        list->first = r->ranges[index].next;
    }
    return index;
}

static void remove_from(moe_range_reader *r, moe_range_list *list, uint32_t index)
{
    MOE_ASSERT(list->first != MOE_IO_NONE);
    uint32_t before = MOE_IO_NONE;
    for (uint32_t i = list->first; i != index; i = r->ranges[i].next) {
        before = i;
    }
    uint32_t after = r->ranges[index].next;
    if (before == MOE_IO_NONE) {
        list->first = after;
    } else {
        r->ranges[before].next = after;
    }
    if (list->last == index) {
        list->last = before;
    }
}

static void finish_if_done(moe_range_reader *r, uint32_t index)
{
    moe_range_state *range = &r->ranges[index];
    if (range->phase == MOE_RANGE_READING && range->n_blocks == 0) {
        moe_range_set_phase(range, MOE_RANGE_FINISHED);
        moe_range_list_push(r, &r->finished, index);
    }
}

void moe_range_stop(moe_range_reader *r, uint32_t index, int status)
{
    moe_range_state *range = &r->ranges[index];
    if (range->status == MOE_OK) {
        range->status = status;
    }
    if (range->phase == MOE_RANGE_WAITING) {
        remove_from(r, &r->queue, index);
        moe_range_set_phase(range, MOE_RANGE_READING);
    }
    finish_if_done(r, index);
}

static void end_block(moe_range_reader *r, moe_block *block)
{
    MOE_ASSERT(block >= r->blocks && block < r->blocks + r->depth);
    if (block->source != MOE_NO_SOURCE) {
        moe_sources_take(&r->sources, block->source, block->size);
    }
    block->next = r->free_blocks;
    r->free_blocks = (uint32_t)(block - r->blocks);
    MOE_ASSERT(r->ranges[block->range].n_blocks > 0);
    r->ranges[block->range].n_blocks--;
    finish_if_done(r, block->range);
}

/* Whether the range has failed or was cancelled; its blocks are not read again. */
static bool is_given_up(const moe_range_state *range)
{
    return range->status != MOE_OK || range->cancelled;
}

static void ask_again(moe_range_reader *r, moe_block *block, uint64_t delay_ns)
{
    MOE_ASSERT(block->done < block->need && block->need <= block->size);
    block->retry_at_ns = delay_ns == 0 ? 0 : moe_now_ns() + delay_ns;
    block->next = r->retries;
    r->retries = (uint32_t)(block - r->blocks);
}

/* The index of the block's file among the files of all sources. */
static uint32_t file_of(const moe_range_reader *r, const moe_block *block)
{
    return block->source * r->n_files + r->ranges[block->range].range.file;
}

void moe_source_blame(moe_range_reader *r, uint32_t source, const char *line)
{
    bool first = r->sources.of[source].n_failed == 0;
    bool last = moe_sources_blame(&r->sources, source);
    if (r->log != NULL && (first || last)) {
        char note[640];
        snprintf(note, sizeof note, "%s: %s", line,
                 last ? "after several failures this drive is read only where no other copy is"
                      : "read from another copy");
        r->log(note, r->user);
    }
}

void moe_sources_tell_slow(moe_range_reader *r)
{
    uint32_t source = moe_sources_find_slow(&r->sources, moe_now_ns());
    if (source != MOE_NO_SOURCE && r->log != NULL) {
        char note[512];
        snprintf(note, sizeof note,
                 "%s: this drive is slow now (%.0f MB/s while it answered): read from other copies "
                 "until it is faster",
                 r->files[source * r->n_files]->name, moe_sources_speed(&r->sources, source) / 1e6);
        r->log(note, r->user);
    }
}

static void leave_source(moe_range_reader *r, moe_block *block)
{
    moe_sources_take(&r->sources, block->source, block->size);
    block->source = MOE_NO_SOURCE;
}

/* Retries a failed block on another source, unless the range names one source. */
static bool try_another(moe_range_reader *r, moe_block *block)
{
    moe_range_state *range = &r->ranges[block->range];
    block->failed |= 1u << block->source;
    if (range->range.source != 0 || is_given_up(range) ||
        (block->failed & ((1u << r->sources.n) - 1)) == (1u << r->sources.n) - 1) {
        return false;
    }
    moe_source_blame(r, block->source, range->error.message);
    leave_source(r, block);
    range->error.message[0] = '\0';
    block->done = 0;
    block->tries = 0;
    block->hard_tries = 0;
    ask_again(r, block, 0);
    return true;
}

static void fail(moe_range_reader *r, moe_block *block)
{
    if (try_another(r, block)) {
        return;
    }
    /* This block still counts as one of the range's. So moe_range_stop() does not report the range
     * yet; the range is reported when its last block ends. */
    moe_range_stop(r, block->range, MOE_ERR_IO);
    end_block(r, block);
}

void moe_range_reader_tell_buffered(moe_range_reader *r, const char *reason)
{
    if (r->log != NULL && !r->told_buffered) {
        char line[384];
        snprintf(line, sizeof line, "%s: reading through the page cache instead", reason);
        r->log(line, r->user);
    }
    r->told_buffered = true;
}

static void fall_back_to_buffered(moe_range_reader *r, uint32_t index, const char *reason)
{
    if (r->direct[index]) {
        char line[320];
        r->direct[index] = false;
        snprintf(line, sizeof line, "%s: direct reads do not work (%s)", r->files[index]->name,
                 reason);
        moe_range_reader_tell_buffered(r, line);
    }
}

/* The file's present size; it is smaller than at opening if the file was truncated. */
static uint64_t size_now(const moe_byte_source *file)
{
    moe_byte_identity now;
    return file->ops->identify(file, false, &now) ? now.size : file->size;
}

/* Handles an answer at the end of the file, or of less than a sector: neither is progress. */
static void on_nothing(moe_range_reader *r, moe_block *block)
{
    moe_range_state *range = &r->ranges[block->range];
    uint32_t index = file_of(r, block);
    uint64_t size = size_now(r->files[index]);
    const char *path = r->files[index]->name;
    block->tries++;
    if (size < block->offset + block->need) {
        moe_fail(&range->error, MOE_ERR_IO,
                 "%s: the file ends at offset %llu, before byte %llu of a tensor; was it truncated "
                 "while open?",
                 path, (unsigned long long)size, (unsigned long long)(block->offset + block->need));
        fail(r, block);
    } else if (block->tries < MAX_EMPTY) {
        ask_again(r, block, 0);
    } else if (block->direct) {
        block->tries = 0;
        fall_back_to_buffered(r, index, "they end before the file does");
        ask_again(r, block, 0);
    } else {
        moe_fail(&range->error, MOE_ERR_IO,
                 "%s: reads at offset %llu return nothing, though the file is %llu bytes long",
                 path, (unsigned long long)(block->offset + block->done), (unsigned long long)size);
        fail(r, block);
    }
}

static void on_bytes(moe_range_reader *r, moe_block *block, uint32_t got)
{
    uint32_t asked = block->size - block->done;
    got = got < asked ? got : asked;
    r->stats.bytes_read += got;
    r->ranges[block->range].sources |= 1u << block->source;
    if (r->sources.n > 1) {
        moe_sources_note(&r->sources, block->source, got, block->began_ns, moe_now_ns());
    }
    uint32_t have = block->done + got;
    MOE_ASSERT(have <= block->size && (!block->direct || block->done % r->alignment == 0));
    if (have >= block->need) {
        end_block(r, block);
        return;
    }
    r->stats.n_short++;
    /* A direct read must continue at an aligned offset, so the bytes behind the last such offset
     * are read again. */
    uint32_t kept = block->direct ? have & ~((uint32_t)r->alignment - 1) : have;
    if (kept == block->done) {
        on_nothing(r, block);
    } else {
        block->done = kept;
        block->tries = 0;
        block->hard_tries = 0;
        ask_again(r, block, 0);
    }
}

static uint64_t backoff_ns(uint32_t tries)
{
    if (tries <= TRIES_AT_ONCE) {
        return 0;
    }
    uint32_t doublings = tries - TRIES_AT_ONCE - 1;
    return (uint64_t)FIRST_BACKOFF << (doublings < MAX_BACKOFF_LOG ? doublings : MAX_BACKOFF_LOG);
}

static void on_error(moe_range_reader *r, moe_block *block, int error)
{
    moe_range_state *range = &r->ranges[block->range];
    uint32_t index = file_of(r, block);
    bool transient = error == EAGAIN || error == EINTR || error == ECANCELED || error == EBUSY ||
                     error == ENOMEM;
    block->tries += transient;
    block->hard_tries += !transient;
    if (block->direct && (error == EINVAL || error == EOPNOTSUPP)) {
        block->hard_tries = 0;
        fall_back_to_buffered(r, index, strerror(error));
        ask_again(r, block, 0);
    } else if (block->tries < MAX_TRANSIENT && block->hard_tries < MAX_HARD) {
        ask_again(r, block, transient ? backoff_ns(block->tries) : 0);
    } else {
        moe_fail(&range->error, MOE_ERR_IO,
                 "%s: cannot read %u bytes at offset %llu: %s (asked %u times)",
                 r->files[index]->name, block->size - block->done,
                 (unsigned long long)(block->offset + block->done), strerror(error),
                 block->tries + block->hard_tries);
        fail(r, block);
    }
}

void moe_block_complete(moe_range_reader *r, const moe_io_completion *completion)
{
    uint64_t slot = completion->user_data & UINT32_MAX;
    moe_block *block = &r->blocks[slot < r->depth ? slot : 0];
    /* Ignores an answer for which no block in flight waits, for instance a second one to the same
     * read. */
    if (slot >= r->depth || block->generation != (uint32_t)(completion->user_data >> 32)) {
        return;
    }
    block->generation++;
    if (completion->result > 0) {
        on_bytes(r, block, (uint32_t)completion->result);
    } else if (completion->result == 0) {
        r->stats.n_short++;
        on_nothing(r, block);
    } else {
        on_error(r, block, -completion->result);
    }
}

uint64_t moe_blocks_next_retry(const moe_range_reader *r)
{
    uint64_t first = UINT64_MAX;
    for (uint32_t i = r->retries; i != MOE_IO_NONE; i = r->blocks[i].next) {
        const moe_block *block = &r->blocks[i];
        bool now = is_given_up(&r->ranges[block->range]);
        bool later = block->source == MOE_NO_SOURCE; /* tried again when an answer makes room */
        uint64_t at = now ? 0 : later ? UINT64_MAX : block->retry_at_ns;
        first = at < first ? at : first;
    }
    return first;
}

/* Chooses a source for a block of the range. MOE_NO_SOURCE: the best source has no room now; try
 * again later. */
static uint32_t choose_source(moe_range_reader *r, const moe_range_state *range, uint32_t failed,
                              uint64_t bytes)
{
    if (r->sources.n == 1) {
        return 0;
    }
    uint32_t others = range->range.source != 0 ? ~(1u << (range->range.source - 1)) : 0;
    return moe_sources_choose(&r->sources, bytes, failed | others, moe_now_ns());
}

/* Whether the block has a source. If it lost its source, chooses another one that has room. */
static bool has_source(moe_range_reader *r, moe_block *block)
{
    if (block->source == MOE_NO_SOURCE) {
        const moe_range_state *range = &r->ranges[block->range];
        block->source = choose_source(r, range, block->failed, block->size);
        if (block->source != MOE_NO_SOURCE) {
            moe_sources_give(&r->sources, block->source, block->size, moe_now_ns());
        }
    }
    return block->source != MOE_NO_SOURCE;
}

/* Takes a block that is due off the retry list. Ends blocks of ranges that failed or were
 * cancelled. */
static moe_block *take_retry(moe_range_reader *r)
{
    uint64_t now = r->retries == MOE_IO_NONE ? 0 : moe_now_ns();
    uint32_t *link = &r->retries;
    while (*link != MOE_IO_NONE) {
        moe_block *block = &r->blocks[*link];
        moe_range_state *range = &r->ranges[block->range];
        if (is_given_up(range)) {
            *link = block->next;
            range->status = range->status == MOE_OK ? MOE_ERR_CANCELLED : range->status;
            end_block(r, block);
        } else if (block->retry_at_ns <= now && has_source(r, block)) {
            *link = block->next;
            r->stats.n_retries++;
            return block;
        } else {
            link = &block->next;
        }
    }
    return NULL;
}

/* Cuts the next block from the range at the head of the queue. */
static moe_block *cut_block(moe_range_reader *r)
{
    uint32_t index = r->queue.first;
    if (index == MOE_IO_NONE || r->free_blocks == MOE_IO_NONE) {
        return NULL;
    }
    moe_range_state *range = &r->ranges[index];
    uint32_t source = choose_source(r, range, 0, range->piece_bytes);
    if (source == MOE_NO_SOURCE) {
        return NULL;
    }
    moe_block *block = &r->blocks[r->free_blocks];
    r->free_blocks = block->next;
    uint64_t left = range->superset_end - range->cursor;
    block->range = index;
    block->source = source;
    block->failed = 0;
    block->offset = range->cursor;
    block->dst = range->range.buffer + (range->cursor - range->superset);
    block->size = left < range->piece_bytes ? (uint32_t)left : range->piece_bytes;
    uint64_t needed = range->end - range->cursor;
    block->need = needed < block->size ? (uint32_t)needed : block->size;
    block->done = 0;
    MOE_ASSERT(block->size > 0 && block->need > 0 && range->phase == MOE_RANGE_WAITING);
    MOE_ASSERT(block->offset % r->alignment == 0 && block->size % r->alignment == 0);
    MOE_ASSERT((uintptr_t)block->dst % r->alignment == 0);
    block->tries = 0;
    block->hard_tries = 0;
    moe_sources_give(&r->sources, source, block->size, r->sources.n > 1 ? moe_now_ns() : 0);
    range->cursor += block->size;
    range->n_blocks++;
    MOE_ASSERT(range->cursor <= range->superset_end && range->n_blocks <= r->depth);
    if (range->cursor == range->superset_end) {
        moe_range_list_pop(r, &r->queue);
        moe_range_set_phase(range, MOE_RANGE_READING);
    }
    return block;
}

void moe_blocks_dispatch(moe_range_reader *r)
{
    uint32_t n = 0;
    while (n < r->depth) {
        moe_block *block = take_retry(r);
        block = block != NULL ? block : cut_block(r);
        if (block == NULL) {
            break;
        }
        uint32_t file = file_of(r, block);
        block->direct = r->direct[file];
        block->began_ns = r->sources.n > 1 ? moe_now_ns() : 0;
        r->batch[n++] = (moe_io_read){
            .file = file,
            .direct = block->direct,
            .size = block->size - block->done,
            .offset = block->offset + block->done,
            .dst = block->dst + block->done,
            .user_data = (uint64_t)block->generation << 32 | (uint32_t)(block - r->blocks),
        };
    }
    uint32_t taken = n == 0 ? 0 : r->ops->submit(r->engine, r->batch, n);
    MOE_ASSERT(taken <= n);
    r->stats.n_reads += taken;
    /* If the engine is full, the rest is submitted later. */
    for (uint32_t i = taken; i < n; i++) {
        moe_block *block = &r->blocks[(uint32_t)r->batch[i].user_data];
        ask_again(r, block, FIRST_BACKOFF);
    }
}
