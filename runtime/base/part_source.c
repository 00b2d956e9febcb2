/* SPDX-License-Identifier: MIT */
#include "runtime/base/part_source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

#define MAGIC       "MOEPART1"
#define MOST_RANGES (UINT32_C(1) << 20)

typedef struct part_head {
    char magic[8];
    uint64_t size; /* of the whole file */
    uint64_t n_ranges;
    uint64_t sum; /* XXH3 of head, with sum = 0, and table */
} part_head;

typedef struct part_source {
    moe_byte_source source;
    moe_byte_source *file;  /* held */
    moe_part_range *ranges; /* [n], in ascending order */
    uint32_t n;
} part_source;

static uint64_t sum_of(part_head head, const moe_part_range *ranges)
{
    head.sum = 0;
    return XXH3_64bits_withSeed(ranges, head.n_ranges * sizeof *ranges,
                                XXH3_64bits(&head, sizeof head));
}

/* ---- Laying out ---- */

static uint64_t block_begin(uint64_t offset)
{
    return offset / MOE_PART_BLOCK * MOE_PART_BLOCK;
}

static uint64_t block_end(uint64_t offset)
{
    return block_begin(offset + MOE_PART_BLOCK - 1);
}

static int compare(const void *a, const void *b)
{
    const moe_part_range *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

/* Where the first of n ranges begins in the part file. */
static uint64_t data_begin(uint32_t n)
{
    return block_end(sizeof(part_head) + (uint64_t)n * sizeof(moe_part_range));
}

uint32_t moe_part_ranges_lay(moe_part_range *ranges, uint32_t n, uint64_t file_size)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t end = block_end(ranges[i].from + ranges[i].size);
        end = end < file_size ? end : file_size;
        ranges[i].from = block_begin(ranges[i].from);
        ranges[i].size = end - ranges[i].from;
    }
    qsort(ranges, n, sizeof *ranges, compare);
    for (uint32_t i = 1; i < n; i++) {
        const uint64_t end = ranges[last].from + ranges[last].size;
        const uint64_t its_end = ranges[i].from + ranges[i].size;
        if (ranges[i].from > end) {
            ranges[++last] = ranges[i];
        } else if (its_end > end) {
            ranges[last].size = its_end - ranges[last].from;
        }
    }
    uint64_t at = data_begin(last + 1);
    for (uint32_t i = 0; i <= last; i++) {
        ranges[i].at = at;
        at += ranges[i].size;
    }
    return last + 1;
}

uint8_t *moe_part_head_make(const moe_part_range *ranges, uint32_t n, uint64_t file_size,
                            size_t *n_bytes)
{
    part_head head = {.magic = MAGIC, .size = file_size, .n_ranges = n};
    head.sum = sum_of(head, ranges);
    *n_bytes = data_begin(n);
    uint8_t *bytes = moe_calloc(*n_bytes, 1);
    if (bytes != NULL) {
        memcpy(bytes, &head, sizeof head);
        memcpy(bytes + sizeof head, ranges, n * sizeof *ranges);
    }
    return bytes;
}

/* ---- Reading ---- */

/* The range that has the byte; NULL: none. */
static const moe_part_range *find(const part_source *s, uint64_t offset)
{
    uint32_t low = 0, high = s->n; /* the first range behind the byte is in low..high */
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (s->ranges[middle].from <= offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const moe_part_range *range = low > 0 ? &s->ranges[low - 1] : NULL;
    return range != NULL && offset - range->from < range->size ? range : NULL;
}

static int64_t part_read(const moe_byte_source *source, void *dst, size_t size, uint64_t offset,
                         unsigned flags)
{
    const part_source *s = (const part_source *)source;
    const moe_part_range *range = find(s, offset);
    if (offset >= source->size) {
        return 0;
    }
    if (range == NULL) {
        return -ENODATA;
    }
    /* A direct read of the last range keeps its whole blocks; the file ends within them. */
    const uint64_t left = range->size - (offset - range->from);
    const uint64_t most = (flags & MOE_READ_DIRECT) != 0 ? block_end(left) : left;
    const int64_t got = s->file->ops->read(s->file, dst, size < most ? size : (size_t)most,
                                           range->at + (offset - range->from), flags);
    return got > (int64_t)left ? (int64_t)left : got;
}

static bool part_identify(const moe_byte_source *source, bool by_name, moe_byte_identity *identity)
{
    const part_source *s = (const part_source *)source;
    const bool known = s->file->ops->identify(s->file, by_name, identity);
    /* A part file that was cut short keeps its own size, which is another one. */
    identity->size = known && identity->size == s->file->size ? source->size : identity->size;
    return known;
}

static void part_close(moe_byte_source *source)
{
    part_source *s = (part_source *)source;
    moe_byte_source_let_go(&s->file);
    free(s->ranges);
    free(s);
}

static const moe_byte_source_ops part_ops = {part_read, part_identify, part_close};

/* ---- Opening ---- */

static bool is_laid_out(const part_source *s)
{
    uint64_t at = data_begin(s->n), end = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const moe_part_range *r = &s->ranges[i];
        if (r->from % MOE_PART_BLOCK != 0 || r->size == 0 || r->at != at || r->from < end ||
            r->from > s->source.size || r->size > s->source.size - r->from ||
            (r->size % MOE_PART_BLOCK != 0 && r->from + r->size != s->source.size) ||
            at > s->file->size || r->size > s->file->size - at) {
            return false;
        }
        end = r->from + r->size;
        at += r->size;
    }
    return true;
}

static int read_table(part_source *s, const part_head *head, const moe_part_reading *reading,
                      moe_error *err)
{
    if (head->n_ranges == 0 || head->n_ranges > MOST_RANGES ||
        head->n_ranges * sizeof *s->ranges > s->file->size - sizeof *head) {
        return moe_fail(err, MOE_ERR_FORMAT, "the head of this part file is damaged: copy it anew");
    }
    s->n = (uint32_t)head->n_ranges;
    s->ranges = moe_calloc(s->n, sizeof *s->ranges);
    if (s->ranges == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the table of a part file");
    }
    MOE_TRY(reading->read(sizeof *head, s->ranges, s->n * sizeof *s->ranges, reading->user, err));
    return sum_of(*head, s->ranges) == head->sum && is_laid_out(s)
               ? MOE_OK
               : moe_fail(err, MOE_ERR_FORMAT,
                          "this part file is damaged or cut short: copy it anew");
}

int moe_part_source_open(moe_byte_source **source, const moe_part_reading *reading, moe_error *err)
{
    moe_byte_source *file = *source;
    part_head head;
    if (file->size < sizeof head) {
        return MOE_OK;
    }
    MOE_TRY(reading->read(0, &head, sizeof head, reading->user, err));
    if (memcmp(head.magic, MAGIC, sizeof head.magic) != 0) {
        return MOE_OK;
    }
    part_source *s = moe_calloc(1, sizeof *s);
    if (s == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a part file");
    }
    const bool direct = file->direct_alignment != 0 && file->direct_alignment <= MOE_PART_BLOCK;
    *s = (part_source){.source = {.ops = &part_ops,
                                  .name = file->name,
                                  .size = head.size,
                                  .opened = file->opened,
                                  .direct_alignment = direct ? file->direct_alignment : 0,
                                  .direct_error = file->direct_error,
                                  .fd = -1,
                                  .direct_fd = -1},
                       .file = moe_byte_source_hold(file)};
    s->source.opened.size = head.size;
    atomic_init(&s->source.n_holders, 1);
    const int status = read_table(s, &head, reading, err);
    if (status != MOE_OK) {
        part_close(&s->source);
        return status;
    }
    moe_byte_source_let_go(source);
    *source = &s->source;
    return MOE_OK;
}

bool moe_part_source_is(const moe_byte_source *source)
{
    return source->ops == &part_ops;
}

bool moe_part_source_has(const moe_byte_source *source, uint64_t from, uint64_t size)
{
    if (!moe_part_source_is(source) || size == 0) {
        return true;
    }
    const moe_part_range *range = find((const part_source *)source, from);
    return range != NULL && size <= range->size - (from - range->from);
}
