/* SPDX-License-Identifier: MIT */
#include "far_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "cli_options.h"

#define BLOCK        ((uint64_t)FAR_BLOCK_BYTES)
#define MOST_RUN     4u /* blocks of one request, which a kill loses */
#define LEAST_BLOCKS (FAR_LEAST_BYTES / BLOCK)
#define MARK         "MOEFAR1"
#define LARGEST_FILE (UINT64_C(1) << 50)

typedef struct head {
    char mark[8];
    uint64_t size;
    uint32_t block_bytes;
    uint32_t whole; /* 1: all blocks are here and were written to the drive */
    char identity[FAR_IDENTITY_SIZE];
    uint64_t check; /* of all before it */
} head;

typedef struct record {
    uint64_t sum;   /* of the block's bytes */
    uint64_t check; /* of sum and the block's number; another number: the block is absent */
} record;

typedef enum { ABSENT, COMING, HERE, CHECKED } state; /* CHECKED: here, and its sum was right */

typedef struct block {
    uint64_t sum;
    uint16_t n_readers;
    uint8_t state;
    bool used; /* since the hand of the clock passed */
} block;

struct far_cache {
    /* Set at open, never changed. */
    far_origin *origin;
    char *path;
    int fd, book_fd;
    uint64_t size;
    uint32_t n_blocks;
    bool evicts;
    uint64_t limit_blocks;
    head book; /* but for `whole`, which the lock guards */

    pthread_mutex_t lock; /* guards all that follows */
    pthread_cond_t news;  /* a block is no longer coming */
    block *blocks;
    uint64_t n_here, n_coming; /* blocks here or coming; coming */
    bool seals;                /* a thread writes down that all is here */
    bool spoilt;               /* the whole has another checksum than a hub names */
    uint32_t n_head;           /* blocks that never leave */
    uint32_t hand, next_fill;
    uint32_t n_waiting; /* reads that fetch, or wait for others' fetches */
    uint64_t n_evicted, n_damaged;
    int write_error; /* of a block that could not be kept; 0: none */
};

static uint64_t block_bytes(const far_cache *c, uint32_t i)
{
    uint64_t left = c->size - i * BLOCK;
    return left < BLOCK ? left : BLOCK;
}

static uint64_t check_of(uint64_t sum, uint32_t i)
{
    const uint64_t both[2] = {sum, i};
    return XXH3_64bits(both, sizeof both);
}

/* ---- Files ---- */

static bool read_all(int fd, void *dst, size_t size, uint64_t offset)
{
    uint8_t *to = dst;
    while (size > 0) {
        ssize_t n = pread(fd, to, size, (off_t)offset);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        to += n;
        offset += (uint64_t)n;
        size -= (size_t)n;
    }
    return true;
}

static bool write_all(int fd, const void *bytes, size_t size, uint64_t offset)
{
    const uint8_t *from = bytes;
    while (size > 0) {
        ssize_t n = pwrite(fd, from, size, (off_t)offset);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        from += n;
        offset += (uint64_t)n;
        size -= (size_t)n;
    }
    return true;
}

static bool write_record(const far_cache *c, uint32_t i, const record *r)
{
    return write_all(c->book_fd, r, sizeof *r, sizeof(head) + (uint64_t)i * sizeof *r);
}

static bool write_head(const far_cache *c, uint32_t whole)
{
    head h = c->book;
    h.whole = whole;
    h.check = XXH3_64bits(&h, offsetof(head, check));
    return write_all(c->book_fd, &h, sizeof h, 0);
}

/* ---- Opening ---- */

/* Reads which blocks are here. False: the book is of another version of the file, or is none. */
static bool read_book(far_cache *c)
{
    head found;
    struct stat facts;
    record *records = malloc(c->n_blocks * sizeof *records);
    bool valid = records != NULL && read_all(c->book_fd, &found, sizeof found, 0) &&
                 found.check == XXH3_64bits(&found, offsetof(head, check)) &&
                 memcmp(found.mark, c->book.mark, sizeof found.mark) == 0 &&
                 found.size == c->size && found.block_bytes == FAR_BLOCK_BYTES &&
                 strncmp(found.identity, c->book.identity, sizeof found.identity) == 0 &&
                 fstat(c->fd, &facts) == 0 && (uint64_t)facts.st_size == c->size;
    /* Records behind the end of the book were never written. */
    ssize_t n = valid ? pread(c->book_fd, records, c->n_blocks * sizeof *records, sizeof found) : 0;
    uint32_t n_records = n > 0 ? (uint32_t)((size_t)n / sizeof *records) : 0;
    for (uint32_t i = 0; i < n_records; i++) {
        if (records[i].check == check_of(records[i].sum, i)) {
            c->blocks[i] = (block){.sum = records[i].sum, .state = HERE};
            c->n_here++;
        }
    }
    if (valid) {
        c->book.whole = found.whole;
    }
    free(records);
    return valid;
}

bool far_cache_has_all(const char *path)
{
    char name[4096 + 8];
    head found;
    struct stat facts;
    snprintf(name, sizeof name, "%s.far", path);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    bool all = fd >= 0 && read_all(fd, &found, sizeof found, 0) &&
               found.check == XXH3_64bits(&found, offsetof(head, check)) &&
               memcmp(found.mark, MARK, sizeof found.mark) == 0 && found.whole == 1 &&
               found.block_bytes == FAR_BLOCK_BYTES && stat(path, &facts) == 0 &&
               (uint64_t)facts.st_size == found.size;
    if (fd >= 0) {
        close(fd);
    }
    return all;
}

static int begin_anew(far_cache *c)
{
    struct stat facts;
    if (fstat(c->book_fd, &facts) == 0 && facts.st_size > 0) {
        (void)cli_fail(0, "note: %s: the copy of it here is of another version, and begins anew",
                       far_origin_name(c->origin));
    }
    /* The book first: without it no old block counts. */
    if (ftruncate(c->book_fd, 0) != 0 || ftruncate(c->fd, 0) != 0 ||
        ftruncate(c->fd, (off_t)c->size) != 0 || !write_head(c, 0)) {
        return cli_fail(CLI_EXIT_FAILURE, "%s cannot be begun: %s", c->path, strerror(errno));
    }
    return CLI_EXIT_OK;
}

/* Takes the lock: alone, or together with others who evict nothing either. Waits a moment for a
 * process that has it alone only to begin. */
static int take_lock(far_cache *c, bool *alone)
{
    const struct timespec tick = {0, 20000000};
    for (unsigned i = 0; i < 100; i++) {
        *alone = flock(c->book_fd, LOCK_EX | LOCK_NB) == 0;
        if (*alone || (!c->evicts && flock(c->book_fd, LOCK_SH | LOCK_NB) == 0)) {
            return CLI_EXIT_OK;
        }
        if (errno != EWOULDBLOCK && errno != EINTR) {
            return cli_fail(CLI_EXIT_FAILURE, "%s cannot be locked: %s", c->path, strerror(errno));
        }
        nanosleep(&tick, NULL);
    }
    return cli_fail(CLI_EXIT_FAILURE,
                    "%s is in use by another process, and the size in --disk-cache is below the "
                    "file's: give a folder of its own, or a size of the whole file to both",
                    c->path);
}

/* A limit can only be kept where blocks can become holes again. A kill between a block's bytes and
 * its record leaves bytes that no record counts: all absent blocks become holes. */
static int make_holes(const far_cache *c)
{
    int error = 0;
    for (uint32_t i = 0, end; c->evicts && i < c->n_blocks && error == 0; i = end) {
        for (end = i; end < c->n_blocks && c->blocks[end].state == ABSENT; end++) {
        }
        if (end > i && fallocate(c->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                 (off_t)(i * BLOCK), (off_t)((end - i) * BLOCK)) != 0) {
            error = errno;
        }
        end += end == i;
    }
    return error == 0 ? CLI_EXIT_OK
                      : cli_fail(CLI_EXIT_FAILURE,
                                 "%s: its file system cannot keep a part of a file (%s): give "
                                 "--disk-cache a folder elsewhere, or the size of the whole file",
                                 c->path, strerror(error));
}

static int open_files(far_cache *c)
{
    char book[4096 + 8];
    bool alone;
    snprintf(book, sizeof book, "%s.far", c->path);
    c->fd = open(c->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    c->book_fd = c->fd < 0 ? -1 : open(book, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (c->book_fd < 0) {
        return cli_fail(CLI_EXIT_FAILURE, "%s cannot be opened: %s", c->path, strerror(errno));
    }
    int code = take_lock(c, &alone);
    if (code != CLI_EXIT_OK || read_book(c)) {
        if (code == CLI_EXIT_OK && alone && !c->evicts) {
            (void)flock(c->book_fd, LOCK_SH);
        }
        return code;
    }
    if (!alone) {
        return cli_fail(CLI_EXIT_FAILURE, "%s: another process uses an earlier version of %s",
                        c->path, far_origin_name(c->origin));
    }
    code = begin_anew(c);
    if (!c->evicts) {
        (void)flock(c->book_fd, LOCK_SH);
    }
    return code;
}

int far_cache_open(far_cache **out, const char *path, far_origin *origin, uint64_t limit)
{
    far_cache *c = calloc(1, sizeof *c);
    *out = NULL;
    if (c == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for a disk cache");
    }
    c->fd = c->book_fd = -1;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->news, NULL);
    c->origin = origin;
    c->size = far_origin_size(origin);
    c->n_blocks = (uint32_t)((c->size + BLOCK - 1) / BLOCK);
    c->evicts = limit < c->size;
    c->limit_blocks = limit / BLOCK;
    c->path = strdup(path);
    c->blocks = calloc((size_t)c->n_blocks + 1, sizeof *c->blocks);
    memcpy(c->book.mark, MARK, sizeof c->book.mark);
    c->book.size = c->size;
    c->book.block_bytes = FAR_BLOCK_BYTES;
    snprintf(c->book.identity, sizeof c->book.identity, "%s", far_origin_identity(origin));
    int code = CLI_EXIT_OK;
    if (c->path == NULL || c->blocks == NULL) {
        code = cli_fail(CLI_EXIT_FAILURE, "out of memory for a disk cache");
    } else if (c->size == 0 || c->size > LARGEST_FILE) {
        code = cli_fail(CLI_EXIT_FAILURE, "%s has %" PRIu64 " bytes, as no model has",
                        far_origin_name(origin), c->size);
    }
    code = code == CLI_EXIT_OK ? open_files(c) : code;
    code = code == CLI_EXIT_OK ? make_holes(c) : code;
    if (code != CLI_EXIT_OK) {
        far_cache_close(&c);
        return code;
    }
    *out = c;
    return CLI_EXIT_OK;
}

void far_cache_close(far_cache **cache)
{
    far_cache *c = *cache;
    if (c != NULL) {
        if (c->fd >= 0) {
            close(c->fd);
        }
        if (c->book_fd >= 0) {
            close(c->book_fd);
        }
        pthread_mutex_destroy(&c->lock);
        pthread_cond_destroy(&c->news);
        free(c->blocks);
        free(c->path);
        free(c);
    }
    *cache = NULL;
}

const char *far_cache_path(const far_cache *cache)
{
    return cache->path;
}

bool far_cache_is_whole(const far_cache *cache)
{
    return cache->book.whole == 1 && cache->n_here == cache->n_blocks;
}

bool far_cache_evicts(const far_cache *cache)
{
    return cache->evicts;
}

/* ---- Blocks; with the lock held ---- */

/* Makes a hole of the block that was not used for longest. False: none may leave. */
static bool evict_one(far_cache *c)
{
    const record none = {0, 0};
    for (uint64_t tried = 0; tried < 2 * (uint64_t)c->n_blocks; tried++) {
        uint32_t i = c->hand;
        block *b = &c->blocks[i];
        c->hand = i + 1 < c->n_blocks ? i + 1 : 0;
        if (i < c->n_head || b->state < HERE || b->n_readers > 0) {
            continue;
        }
        if (b->used) {
            b->used = false;
            continue;
        }
        /* The record first: a block without one does not count. */
        if (!write_record(c, i, &none) ||
            fallocate(c->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(i * BLOCK),
                      (off_t)block_bytes(c, i)) != 0) {
            return false;
        }
        b->state = ABSENT;
        c->n_here--;
        c->n_evicted++;
        return true;
    }
    return false;
}

/* Takes absent blocks from i on, at most `most`, to be fetched by the caller: their number. */
static uint32_t take_absent(far_cache *c, uint32_t i, uint32_t most)
{
    uint32_t n = 0;
    most = most < MOST_RUN ? most : MOST_RUN;
    while (n < most && i + n < c->n_blocks && c->blocks[i + n].state == ABSENT) {
        c->blocks[i + n].state = COMING;
        c->n_here++;
        c->n_coming++;
        n++;
    }
    while (c->evicts && c->n_here > c->limit_blocks && evict_one(c)) {
    }
    return n;
}

/* ---- Fetching ---- */

/* Fetches blocks that were taken. Those that cannot be kept, because the drive is full, are
 * absent afterwards, and in `bytes` all the same. 0 or an errno. */
static int bring(far_cache *c, uint32_t first, uint32_t n, uint8_t *bytes)
{
    uint64_t size = 0;
    record records[MOST_RUN];
    bool kept[MOST_RUN] = {false};
    int write_error = 0;
    for (uint32_t k = 0; k < n; k++) {
        size += block_bytes(c, first + k);
    }
    int error = far_origin_fetch(c->origin, first * BLOCK, bytes, size);
    for (uint32_t k = 0; k < n && error == 0; k++) {
        const uint8_t *from = bytes + k * BLOCK;
        records[k].sum = XXH3_64bits(from, block_bytes(c, first + k));
        records[k].check = check_of(records[k].sum, first + k);
        errno = EIO;
        kept[k] = write_all(c->fd, from, block_bytes(c, first + k), (first + k) * BLOCK) &&
                  write_record(c, first + k, &records[k]);
        write_error = kept[k] ? write_error : errno;
    }
    pthread_mutex_lock(&c->lock);
    c->n_coming -= n;
    c->write_error = write_error != 0 ? write_error : c->write_error;
    for (uint32_t k = 0; k < n; k++) {
        block *b = &c->blocks[first + k];
        if (kept[k]) {
            *b = (block){.sum = records[k].sum, .state = CHECKED, .used = true};
        } else {
            b->state = ABSENT;
            c->n_here--;
        }
    }
    pthread_cond_broadcast(&c->news);
    pthread_mutex_unlock(&c->lock);
    return error;
}

/* Fetches the run that was taken, and copies what [offset, +size) has of it. The lock is held. */
static int64_t fetch_run(far_cache *c, uint32_t first, uint32_t n, uint8_t *dst, size_t size,
                         uint64_t offset)
{
    pthread_mutex_unlock(&c->lock);
    uint8_t *bytes = malloc(n * BLOCK);
    int error = ENOMEM;
    if (bytes != NULL) {
        error = bring(c, first, n, bytes);
    }
    uint64_t end = (first + n) * BLOCK < c->size ? (first + n) * BLOCK : c->size;
    uint64_t got = offset + size < end ? size : end - offset;
    if (error == 0 && dst != NULL) {
        memcpy(dst, bytes + (offset - first * BLOCK), got);
    }
    free(bytes);
    pthread_mutex_lock(&c->lock);
    for (uint32_t k = 0; bytes == NULL && k < n; k++) {
        c->blocks[first + k].state = ABSENT;
        c->n_here--;
    }
    if (bytes == NULL) {
        c->n_coming -= n;
        pthread_cond_broadcast(&c->news);
    }
    return error == 0 ? (int64_t)got : -error;
}

/* Whether the block's bytes have its sum. */
static bool is_right(const far_cache *c, uint32_t i, uint64_t sum)
{
    uint8_t *bytes = malloc(BLOCK);
    bool right = bytes != NULL && read_all(c->fd, bytes, block_bytes(c, i), i * BLOCK) &&
                 XXH3_64bits(bytes, block_bytes(c, i)) == sum;
    free(bytes);
    return right;
}

/* Reads from a block that is here. 0: it was damaged, and is absent now. The lock is held. */
static int64_t read_block(far_cache *c, uint32_t i, uint8_t *dst, size_t size, uint64_t offset)
{
    block *b = &c->blocks[i];
    uint64_t end = i * BLOCK + block_bytes(c, i);
    size_t n = offset + size < end ? size : (size_t)(end - offset);
    bool checked = b->state == CHECKED;
    uint64_t sum = b->sum;
    b->n_readers++;
    b->used = true;
    pthread_mutex_unlock(&c->lock);
    bool right = checked || is_right(c, i, sum);
    right = right && (dst == NULL || read_all(c->fd, dst, n, offset));
    pthread_mutex_lock(&c->lock);
    b->n_readers--;
    if (right) {
        b->state = CHECKED;
        return (int64_t)n;
    }
    while (b->n_readers > 0) {
        pthread_cond_wait(&c->news, &c->lock);
    }
    if (b->state >= HERE) {
        b->state = ABSENT;
        c->n_here--;
        c->n_damaged++;
    }
    return 0;
}

/* Reads, or with dst NULL only fetches, something of the range: how much, or -errno. */
static int64_t read_some(far_cache *c, uint8_t *dst, size_t size, uint64_t offset)
{
    uint32_t i = (uint32_t)(offset / BLOCK);
    uint32_t last = (uint32_t)((offset + size - 1) / BLOCK);
    int64_t got = 0;
    pthread_mutex_lock(&c->lock);
    while (got == 0) {
        if (c->spoilt) {
            got = -EBADMSG;
            continue;
        }
        if (c->blocks[i].state >= HERE) {
            got = read_block(c, i, dst, size, offset);
            pthread_cond_broadcast(&c->news);
            continue;
        }
        c->n_waiting++;
        if (c->blocks[i].state == COMING) {
            pthread_cond_wait(&c->news, &c->lock);
        } else {
            got = fetch_run(c, i, take_absent(c, i, last - i + 1), dst, size, offset);
        }
        c->n_waiting--;
    }
    pthread_mutex_unlock(&c->lock);
    return got;
}

int64_t far_cache_read(far_cache *c, void *dst, size_t size, uint64_t offset)
{
    uint8_t *to = dst;
    size_t done = 0;
    if (offset >= c->size) {
        return 0;
    }
    size = size < c->size - offset ? size : (size_t)(c->size - offset);
    while (done < size) {
        int64_t got = read_some(c, to + done, size - done, offset + done);
        if (got < 0) {
            return got;
        }
        done += (size_t)got;
    }
    return (int64_t)done;
}

int far_cache_need_head(far_cache *c, uint64_t bytes)
{
    bytes = bytes < c->size ? bytes : c->size;
    for (uint64_t at = 0; at < bytes;) {
        int64_t got = read_some(c, NULL, (size_t)(bytes - at), at);
        if (got < 0) {
            return (int)-got;
        }
        at += (uint64_t)got;
    }
    uint32_t n = (uint32_t)((bytes + BLOCK - 1) / BLOCK);
    pthread_mutex_lock(&c->lock);
    c->n_head = n > c->n_head ? n : c->n_head;
    pthread_mutex_unlock(&c->lock);
    return c->evicts && c->limit_blocks < n + LEAST_BLOCKS ? ENOSPC : 0;
}

/* Compares the whole with what a hub says, and notes that it is here. 0 or an errno. */
static int seal(far_cache *c)
{
    int error = far_origin_check(c->origin, c->fd);
    const head none = {.size = 0};
    if (error == EBADMSG) {
        (void)write_all(c->book_fd, &none, sizeof none, 0); /* then no block counts */
    }
    bool noted = error == 0 && fdatasync(c->fd) == 0 && fdatasync(c->book_fd) == 0;
    return error != 0 ? error : noted && write_head(c, 1) ? 0 : errno;
}

int far_cache_fill_more(far_cache *c)
{
    int64_t got = 0;
    pthread_mutex_lock(&c->lock);
    while (c->next_fill < c->n_blocks && c->blocks[c->next_fill].state >= HERE) {
        c->next_fill++;
    }
    bool all = c->n_here - c->n_coming == c->n_blocks && c->next_fill == c->n_blocks;
    if (c->spoilt || (c->write_error != 0 && !all)) {
        got = c->spoilt ? -EBADMSG : -c->write_error;
    } else if (c->next_fill == c->n_blocks && !all) {
        c->next_fill = 0; /* one came damaged, or found no room */
    } else if (!all && c->n_waiting == 0 && c->blocks[c->next_fill].state == ABSENT) {
        uint32_t first = c->next_fill;
        uint32_t n = take_absent(c, first, MOST_RUN);
        got = fetch_run(c, first, n, NULL, 1, first * BLOCK);
    }
    bool whole = c->book.whole == 1;
    bool seals = all && !whole && !c->seals && !c->spoilt;
    c->seals = c->seals || seals;
    pthread_mutex_unlock(&c->lock);
    if (!seals) {
        return got < 0 ? (int)-got : all && whole;
    }
    int error = seal(c);
    pthread_mutex_lock(&c->lock);
    c->seals = false;
    c->spoilt = error == EBADMSG;
    c->book.whole = error == 0;
    pthread_mutex_unlock(&c->lock);
    return error == 0 ? 1 : error;
}

bool far_cache_is_spoilt(far_cache *c)
{
    pthread_mutex_lock(&c->lock);
    bool spoilt = c->spoilt;
    pthread_mutex_unlock(&c->lock);
    return spoilt;
}

int far_cache_write_error(far_cache *c)
{
    pthread_mutex_lock(&c->lock);
    int error = c->write_error;
    pthread_mutex_unlock(&c->lock);
    return error;
}

void far_cache_count(far_cache *c, far_cache_counts *counts)
{
    pthread_mutex_lock(&c->lock);
    *counts =
        (far_cache_counts){.bytes_here = c->n_here * BLOCK < c->size ? c->n_here * BLOCK : c->size,
                           .bytes_limit = c->evicts ? c->limit_blocks * BLOCK : c->size,
                           .n_evicted = c->n_evicted,
                           .n_damaged = c->n_damaged};
    pthread_mutex_unlock(&c->lock);
}
