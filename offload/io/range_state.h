/* SPDX-License-Identifier: MIT */
/* The state inside the range reader: ranges, and the blocks that they are cut into.
 *
 *   range:  FREE -submit()-> WAITING
 *           WAITING -all blocks cut-> READING
 *           WAITING -cancel(), or a block fails-> READING (no more blocks are cut)
 *           READING -last block ends-> FINISHED -wait()-> FREE
 *
 *   block:  free -moe_blocks_dispatch()-> with the engine
 *           with the engine -completed-> free
 *           with the engine -short or transient-> retry list -moe_blocks_dispatch()-> the engine
 */
#ifndef MOE_OFFLOAD_RANGE_STATE_H
#define MOE_OFFLOAD_RANGE_STATE_H

#include "offload/io/io_engine.h"
#include "offload/io/range_reader.h"
#include "offload/io/read_sources.h"
#include "runtime/base/moe_assert.h"

#define MOE_IO_NONE UINT32_MAX /* no index */

typedef enum moe_range_phase {
    MOE_RANGE_FREE,
    MOE_RANGE_WAITING, /* in the queue: part of it is in no block yet */
    MOE_RANGE_READING, /* no further blocks will be cut */
    MOE_RANGE_FINISHED /* in the finished list */
} moe_range_phase;

typedef struct moe_range_state {
    moe_range_phase phase;
    moe_range range;
    uint64_t end;      /* of the range, in the file */
    uint64_t superset; /* where the aligned superset begins */
    uint64_t superset_end;
    uint64_t cursor;      /* where the next block begins in the superset */
    uint32_t piece_bytes; /* of a block */
    uint32_t n_blocks;    /* with the engine or in the retry list */
    bool cancelled;
    uint32_t sources; /* as in moe_range_done */
    int status;       /* not MOE_OK: its blocks are not retried */
    uint32_t next;
    moe_error error;
} moe_range_state;

typedef struct moe_block {
    uint32_t range;
    uint32_t generation; /* number of answers so far; tells a second answer to the same read from
                          * the first */
    uint32_t source;     /* MOE_NO_SOURCE: none yet */
    uint32_t failed;     /* a bit for each source that could not read it */
    uint64_t began_ns;   /* when the engine last got it */
    uint64_t offset;     /* in the file */
    uint8_t *dst;
    uint32_t size;       /* bytes to read: aligned */
    uint32_t need;       /* bytes of size that the range needs: less at its end */
    uint32_t done;       /* read so far; a multiple of the alignment while direct */
    uint32_t tries;      /* transient errors, or answers without a byte, in a row */
    uint32_t hard_tries; /* other errors in a row */
    bool direct;         /* whether it was last read with O_DIRECT */
    uint64_t retry_at_ns;
    uint32_t next; /* in the free or the retry list */
} moe_block;

typedef struct moe_range_list {
    uint32_t first;
    uint32_t last;
} moe_range_list;

struct moe_range_reader {
    /* set at open */
    const moe_io_ops *ops;
    void *engine;
    uint32_t block_bytes;
    uint32_t depth;          /* of all sources together */
    moe_byte_source **files; /* held: of each source; file f of source s is s * n_files + f */
    uint32_t n_files;        /* of each source */
    uint32_t n_all_files;
    size_t alignment; /* of buffers, offsets and sizes; a power of two */
    uint32_t max_ranges;
    uint64_t close_timeout_ns;
    moe_log_fn log;
    void *user;
    /* Only the owner touches these. */
    moe_range_state *ranges; /* [max_ranges] */
    uint32_t free_ranges;    /* list */
    moe_range_list queue;
    moe_range_list finished;
    moe_block *blocks;          /* [depth] */
    uint32_t free_blocks;       /* list */
    uint32_t retries;           /* list */
    moe_io_read *batch;         /* [depth] */
    moe_io_completion *results; /* [depth] */
    moe_read_sources sources;
    bool *direct; /* [n_all_files]: read with MOE_READ_DIRECT until that fails */
    bool told_buffered;
    moe_range_reader_stats stats;
};

/* Follows the arrows of the drawing above; nothing else writes a range's phase. */
static inline void moe_range_set_phase(moe_range_state *range, moe_range_phase phase)
{
    MOE_ASSERT(range->phase == MOE_RANGE_FREE
                   ? phase == MOE_RANGE_WAITING || phase == MOE_RANGE_READING
                   : phase == (range->phase + 1) % (MOE_RANGE_FINISHED + 1));
    range->phase = phase;
}

void moe_range_list_push(moe_range_reader *r, moe_range_list *list, uint32_t index);
uint32_t moe_range_list_pop(moe_range_reader *r, moe_range_list *list);

/* Hands the engine as many blocks as it has room for. */
void moe_blocks_dispatch(moe_range_reader *r);
void moe_block_complete(moe_range_reader *r, const moe_io_completion *completion);
/* When the first block of the retry list is due; UINT64_MAX when the list is empty. */
uint64_t moe_blocks_next_retry(const moe_range_reader *r);

/* Cuts no further blocks of the range, which finishes when its existing blocks have ended. */
void moe_range_stop(moe_range_reader *r, uint32_t index, int status);
/* Counts a failure of a source. Logs the line, and whether the source is now read last. */
void moe_source_blame(moe_range_reader *r, uint32_t source, const char *line);
/* Logs sources that have become slow. */
void moe_sources_tell_slow(moe_range_reader *r);
/* Logs once, for all files, that reads go through the page cache. */
void moe_range_reader_tell_buffered(moe_range_reader *r, const char *reason);

#endif
