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
    MOE_RANGE_WAITING, /* in the queue: some of it has not been cut into blocks yet */
    MOE_RANGE_READING, /* no further blocks will be cut */
    MOE_RANGE_FINISHED /* in the finished list */
} moe_range_phase;

typedef struct moe_range_state {
    moe_range_phase phase;
    moe_range range;
    uint64_t end;      /* end of the range in the file */
    uint64_t superset; /* where the aligned superset begins */
    uint64_t superset_end;
    uint64_t cursor;      /* where the next block begins in the superset */
    uint32_t piece_bytes; /* size of the blocks that it is cut into */
    uint32_t n_blocks;    /* blocks with the engine or in the retry list */
    bool cancelled;
    uint32_t sources; /* as in moe_range_done */
    int status;       /* if not MOE_OK, no block of it is retried */
    uint32_t next;
    moe_error error;
} moe_range_state;

typedef struct moe_block {
    uint32_t range;
    /* Number of answers so far. It distinguishes a second answer to the same read from the
     * first. */
    uint32_t generation;
    uint32_t source;   /* the source that reads it; MOE_NO_SOURCE: none yet */
    uint32_t failed;   /* the sources that could not read it, as bits */
    uint64_t began_ns; /* when the engine last got the block */
    uint64_t offset;   /* in the file */
    uint8_t *dst;
    uint32_t size;       /* bytes to read; aligned */
    uint32_t need;       /* how many of these the range needs: fewer in its last block */
    uint32_t done;       /* bytes read so far; a multiple of the alignment while reads are direct */
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
    moe_byte_source **files; /* held; file f of source s is files[s * n_files + f] */
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
    /* [n_all_files]: the file is read with MOE_READ_DIRECT, until such a read fails */
    bool *direct;
    bool told_buffered;
    moe_range_reader_stats stats;
};

/* Sets a range's phase, along the arrows of the drawing above; nothing else writes the phase. */
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

/* Cuts no further blocks of the range. The range finishes when its existing blocks have ended. */
void moe_range_stop(moe_range_reader *r, uint32_t index, int status);
/* Counts a failure of a source. Logs the line and, if so, that the source is now chosen last. */
void moe_source_blame(moe_range_reader *r, uint32_t source, const char *line);
/* Logs sources that have become slow. */
void moe_sources_tell_slow(moe_range_reader *r);
/* Logs once, for all files, that reads go through the page cache. */
void moe_range_reader_tell_buffered(moe_range_reader *r, const char *reason);

#endif
