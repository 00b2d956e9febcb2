/* SPDX-License-Identifier: MIT */
/* Copies of a file on several drives: which drive reads what, how fast all are together, and what
 * happens when one fails, slows down or hangs. The drives are a double with a clock of its own, so
 * speeds are exact whatever else the machine does: every drive reads its blocks one after the
 * other, at its speed. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "io_fixture.h"
#include "offload/io/read_sources.h"

#define MB          1000000u
#define MAX_DRIVES  3u
#define MAX_PENDING 256u
#define N_SLOTS     24u
#define RANGE_BYTES MB
#define FILE_BYTES  (5 * MB + 1237)

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);

static uint64_t virtual_ns = 1000000000u;

int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    if (clock != CLOCK_MONOTONIC) {
        return __real_clock_gettime(clock, time);
    }
    *time = (struct timespec){(time_t)(virtual_ns / 1000000000u), (long)(virtual_ns % 1000000000u)};
    return 0;
}

/* ---- The drives ---- */

typedef struct drive {
    double mb_per_s;
    uint64_t free_ns; /* when it has read what it was given */
    bool hangs;
    int error;                     /* errno of reads that overlap the next two */
    uint64_t error_from, error_to; /* in the file */
    uint64_t bytes;                /* read so far */
    double slow_mb_per_s;          /* not 0: its speed from slow_ns on */
    uint64_t slow_ns;
} drive;

typedef struct pending {
    moe_io_completion completion;
    uint64_t due_ns;
    uint32_t drive;
    bool stuck;
} pending;

typedef struct drives {
    drive of[MAX_DRIVES];
    uint32_t n, n_files;
    moe_byte_source *const *files;
    pending pending[MAX_PENDING];
    uint32_t n_pending;
} drives;

static int drives_open(void **engine, const moe_io_params *params, moe_error *err)
{
    (void)err;
    drives *d = params->context;
    d->files = params->files;
    *engine = d;
    return MOE_OK;
}

static void drives_use_arena(void *engine, void *arena, size_t bytes)
{
    (void)engine;
    (void)arena;
    (void)bytes;
}

static bool drives_set_away(void *engine, void *memory, size_t bytes, bool away)
{
    (void)engine;
    (void)memory;
    (void)bytes;
    (void)away;
    return true;
}

static bool drives_close(void *engine, uint64_t timeout_ns)
{
    (void)timeout_ns;
    return ((const drives *)engine)->n_pending == 0;
}

static int32_t read_now(const drives *d, const drive *one, const moe_io_read *read)
{
    if (one->error != 0 && read->offset < one->error_to &&
        read->offset + read->size > one->error_from) {
        return -one->error;
    }
    return moe_io_read_now(d->files[read->file], read);
}

static uint32_t drives_submit(void *engine, const moe_io_read *reads, uint32_t n)
{
    drives *d = engine;
    for (uint32_t i = 0; i < n; i++) {
        assert_true(d->n_pending < MAX_PENDING);
        uint32_t index = reads[i].file / d->n_files;
        drive *one = &d->of[index];
        pending *p = &d->pending[d->n_pending++];
        uint64_t begin = one->free_ns > virtual_ns ? one->free_ns : virtual_ns;
        bool slow = one->slow_mb_per_s > 0 && begin >= one->slow_ns;
        double speed = slow ? one->slow_mb_per_s : one->mb_per_s;
        *p = (pending){.drive = index, .stuck = one->hangs};
        p->completion.user_data = reads[i].user_data;
        p->completion.result = read_now(d, one, &reads[i]);
        p->due_ns = begin + (uint64_t)(reads[i].size * 1e3 / speed);
        one->free_ns = p->due_ns;
        one->bytes += p->completion.result > 0 ? (uint32_t)p->completion.result : 0;
    }
    return n;
}

static uint32_t drives_wait(void *engine, moe_io_completion *done, uint32_t capacity,
                            int64_t timeout_ns, bool *woken)
{
    (void)woken;
    drives *d = engine;
    uint64_t first = UINT64_MAX;
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n_pending; i++) {
        uint64_t due = d->pending[i].stuck ? UINT64_MAX : d->pending[i].due_ns;
        first = due < first ? due : first;
    }
    uint64_t until = timeout_ns < 0 ? UINT64_MAX : virtual_ns + (uint64_t)timeout_ns;
    assert_true(first != UINT64_MAX || until != UINT64_MAX); /* else it would wait for ever */
    uint64_t then = first < until ? first : until;
    virtual_ns = then > virtual_ns ? then : virtual_ns;
    for (uint32_t i = 0; i < d->n_pending && n < capacity;) {
        if (!d->pending[i].stuck && d->pending[i].due_ns <= virtual_ns) {
            done[n++] = d->pending[i].completion;
            d->pending[i] = d->pending[--d->n_pending];
        } else {
            i++;
        }
    }
    return n;
}

static void drives_wake(void *engine)
{
    (void)engine;
}

static const char *drives_detail(const void *engine)
{
    (void)engine;
    return "";
}

static const moe_io_ops drives_ops = {.name = "drives",
                                      .open = drives_open,
                                      .use_arena = drives_use_arena,
                                      .set_away = drives_set_away,
                                      .close = drives_close,
                                      .submit = drives_submit,
                                      .wait = drives_wait,
                                      .wake = drives_wake,
                                      .detail = drives_detail};

/* ---- A reader on them ---- */

static io_file files[MAX_DRIVES][2]; /* drive, part */

typedef struct setup {
    drives drives;
    moe_byte_source *range_files[MAX_DRIVES * 2];
    moe_range_reader *reader;
    io_guarded slots[N_SLOTS];
    uint64_t random;
    uint32_t slot_file[N_SLOTS];
    uint64_t slot_offset[N_SLOTS];
    bool used[N_SLOTS];
    char log[8][512];
    uint32_t n_log;
} setup;

static void keep_log(const char *line, void *user)
{
    setup *s = user;
    assert_true(s->n_log < 8);
    snprintf(s->log[s->n_log++], sizeof s->log[0], "%s", line);
}

static bool was_told(const setup *s, const char *path, const char *words)
{
    for (uint32_t i = 0; i < s->n_log; i++) {
        if (strstr(s->log[i], path) != NULL && strstr(s->log[i], words) != NULL) {
            return true;
        }
    }
    return false;
}

static void open_setup(setup *s, uint32_t n_drives, const double *mb_per_s)
{
    memset(s, 0, sizeof *s);
    s->random = 77;
    s->drives.n = n_drives;
    s->drives.n_files = 2;
    for (uint32_t d = 0; d < n_drives; d++) {
        s->drives.of[d].mb_per_s = mb_per_s[d];
        for (uint32_t f = 0; f < 2; f++) {
            s->range_files[d * 2 + f] = io_file_source(&files[d][f]);
        }
    }
    moe_range_reader_options options = {.engine = &drives_ops,
                                        .engine_context = &s->drives,
                                        .files = s->range_files,
                                        .n_files = 2,
                                        .n_copies = n_drives - 1,
                                        .buffered = true,
                                        .block_bytes = 256u << 10,
                                        .log = keep_log,
                                        .user = s};
    moe_error err;
    assert_int_equal(moe_range_reader_open(&s->reader, &options, &err), MOE_OK);
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        io_guarded_create(&s->slots[i], moe_range_buffer_bytes(s->reader, RANGE_BYTES));
    }
}

static void close_setup(setup *s)
{
    assert_true(moe_range_reader_close(&s->reader));
    for (uint32_t i = 0; i < MAX_DRIVES * 2; i++) {
        moe_byte_source_let_go(&s->range_files[i]);
    }
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        io_guarded_free(&s->slots[i]);
    }
}

static void submit(setup *s, uint32_t slot, uint32_t source)
{
    s->slot_file[slot] = (uint32_t)(io_random(&s->random) % 2);
    s->slot_offset[slot] = io_random(&s->random) % (FILE_BYTES - RANGE_BYTES);
    s->used[slot] = true;
    moe_range range = {.file = s->slot_file[slot],
                       .offset = s->slot_offset[slot],
                       .size = RANGE_BYTES,
                       .buffer = s->slots[slot].memory,
                       .tag = slot,
                       .source = source};
    assert_true(moe_range_reader_submit(s->reader, &range));
}

/* Waits for reports until none comes for a virtual time; returns how many were right. */
static uint32_t collect(setup *s, int64_t timeout_ns)
{
    moe_range_done done[N_SLOTS];
    uint32_t n = moe_range_reader_wait(s->reader, done, N_SLOTS, timeout_ns);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = (uint32_t)done[i].tag;
        assert_true(s->used[slot]);
        s->used[slot] = false;
        assert_int_equal(done[i].status, MOE_OK);
        assert_true(done[i].sources != 0);
        assert_memory_equal(done[i].data, files[0][s->slot_file[slot]].bytes + s->slot_offset[slot],
                            RANGE_BYTES);
    }
    return n;
}

/* Reads n ranges with so many under way; MB/s. */
static double transfer(setup *s, uint32_t n, uint32_t under_way)
{
    uint64_t begin = virtual_ns;
    uint32_t n_done = 0, n_submitted = 0;
    while (n_done < n) {
        for (uint32_t i = 0; i < under_way && n_submitted < n; i++) {
            if (!s->used[i]) {
                submit(s, i, 0);
                n_submitted++;
            }
        }
        n_done += collect(s, 5000000000);
    }
    return (double)n * RANGE_BYTES * 1e3 / (double)(virtual_ns - begin);
}

/* ---- Tests ---- */

static void speeds_add_up(void **state)
{
    (void)state;
    static const struct {
        double mb_per_s[MAX_DRIVES];
        uint32_t n;
        double least; /* of the sum */
    } rows[] = {{{1000, 1000}, 2, 0.95},
                {{2000, 1000}, 2, 0.95},
                {{500, 2000}, 2, 0.95},
                {{3000, 300}, 2, 0.95},
                {{1000, 1000, 1000}, 3, 0.95}};
    static setup s;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        open_setup(&s, rows[i].n, rows[i].mb_per_s);
        double sum = 0;
        for (uint32_t d = 0; d < rows[i].n; d++) {
            sum += rows[i].mb_per_s[d];
        }
        double speed = transfer(&s, 150, N_SLOTS);
        print_message("%u drives, %.0f MB/s in all: %.0f MB/s\n", rows[i].n, sum, speed);
        assert_true(speed >= rows[i].least * sum);
        assert_int_equal(s.n_log, 0);
        close_setup(&s);
    }
}

/* One expert at a time: its blocks are shared out, too. */
static void a_single_range_is_shared(void **state)
{
    (void)state;
    static setup s;
    open_setup(&s, 2, (double[]){1000, 1000});
    assert_true(transfer(&s, 50, 1) >= 1.9 * 1000);
    close_setup(&s);
    open_setup(&s, 2, (double[]){4000, 10});
    (void)transfer(&s, 2, 1);
    assert_true(transfer(&s, 50, 1) >= 0.95 * 4000); /* the slow one does not hold it up */
    close_setup(&s);
}

static void a_drive_slows_down(void **state)
{
    (void)state;
    static setup s;
    for (uint32_t which = 0; which < 2; which++) {
        open_setup(&s, 2, (double[]){1000, 1000});
        (void)transfer(&s, 50, N_SLOTS);
        s.drives.of[which].slow_mb_per_s = 10;
        s.drives.of[which].slow_ns = virtual_ns;
        (void)transfer(&s, 50, N_SLOTS); /* what it was given before it was known to be slow */
        double after = transfer(&s, 400, N_SLOTS);
        print_message("drive %u slows down to 10 MB/s: then %.0f MB/s\n", which, after);
        assert_true(after >= 950);
        assert_true(was_told(&s, files[which][0].path, "slow"));
        s.drives.of[which].slow_mb_per_s = 0;
        virtual_ns += 60000000000u;
        (void)transfer(&s, 100, N_SLOTS); /* it is tried again, and found to be fast */
        assert_true(transfer(&s, 200, N_SLOTS) >= 1900);
        close_setup(&s);
    }
}

static void a_drive_hangs(void **state)
{
    (void)state;
    static setup s;
    open_setup(&s, 2, (double[]){1000, 1000});
    (void)transfer(&s, 50, N_SLOTS);
    s.drives.of[1].hangs = true;
    for (uint32_t i = 0; i < 4; i++) {
        submit(&s, i, 0);
    }
    for (uint32_t i = 0; i < 20; i++) { /* these have blocks that never come */
        (void)collect(&s, 500000000);
    }
    assert_true(was_told(&s, files[1][0].path, "slow"));
    uint32_t n_done = 0;
    for (uint32_t round = 0; round < 20; round++) {
        submit(&s, 4 + round, 0);
        n_done += collect(&s, 1000000000);
    }
    assert_int_equal(n_done, 20); /* the other drive reads everything else */
    s.drives.of[1].hangs = false;
    for (uint32_t i = 0; i < s.drives.n_pending; i++) {
        s.drives.pending[i].stuck = false;
    }
    while (s.used[0] || s.used[1] || s.used[2] || s.used[3]) {
        (void)collect(&s, 1000000000);
    }
    close_setup(&s);
}

static void a_drive_fails(void **state)
{
    (void)state;
    static setup s;
    for (uint32_t which = 0; which < 2; which++) {
        open_setup(&s, 2, (double[]){1000, 1000});
        s.drives.of[which].error = EIO;
        s.drives.of[which].error_to = UINT64_MAX;
        (void)transfer(&s, 100, N_SLOTS); /* asserts that all bytes are right */
        assert_true(was_told(&s, files[which][0].path, "read from another copy") ||
                    was_told(&s, files[which][1].path, "read from another copy"));
        assert_int_equal(s.n_log, 2); /* the first failure, and that it is left out */
        assert_int_equal(s.drives.of[which].bytes, 0);
        close_setup(&s);
    }
}

/* Sectors that one drive cannot read are read from the other, although both have some. */
static void drives_fail_in_places(void **state)
{
    (void)state;
    static setup s;
    moe_range_done done;
    open_setup(&s, 2, (double[]){1000, 1000});
    for (uint32_t d = 0; d < 2; d++) {
        s.drives.of[d].error = EIO;
        s.drives.of[d].error_from = (1 + 2 * (uint64_t)d) * MB;
        s.drives.of[d].error_to = s.drives.of[d].error_from + 1;
    }
    (void)transfer(&s, 200, N_SLOTS);
    s.drives.of[1].error_from = s.drives.of[0].error_from;
    s.drives.of[1].error_to = s.drives.of[0].error_to;
    moe_range range = {.offset = MB / 2, .size = RANGE_BYTES, .buffer = s.slots[0].memory};
    assert_true(moe_range_reader_submit(s.reader, &range));
    assert_int_equal(moe_range_reader_wait(s.reader, &done, 1, 1000000000), 1);
    assert_int_equal(done.status, MOE_ERR_IO);
    assert_non_null(strstr(done.error.message, "cannot read"));
    close_setup(&s);
}

static void a_copy_is_truncated(void **state)
{
    (void)state;
    static setup s;
    open_setup(&s, 2, (double[]){1000, 1000});
    assert_int_equal(ftruncate(files[1][0].fd, 4096), 0);
    (void)transfer(&s, 100, N_SLOTS);
    assert_true(was_told(&s, files[1][0].path, "truncated"));
    assert_int_equal(pwrite(files[1][0].fd, files[1][0].bytes, FILE_BYTES, 0), FILE_BYTES);
    close_setup(&s);
}

static void one_source_on_request(void **state)
{
    (void)state;
    static setup s;
    moe_range_done done;
    open_setup(&s, 3, (double[]){1000, 10, 1000});
    for (uint32_t source = 1; source <= 3; source++) {
        submit(&s, 0, source);
        assert_int_equal(moe_range_reader_wait(s.reader, &done, 1, 1000000000), 1);
        assert_int_equal(done.status, MOE_OK);
        assert_int_equal(done.sources, 1u << (source - 1));
        s.used[0] = false;
    }
    s.drives.of[1].error = EIO;
    s.drives.of[1].error_to = UINT64_MAX;
    submit(&s, 0, 2);
    assert_int_equal(moe_range_reader_wait(s.reader, &done, 1, 1000000000), 1);
    assert_int_equal(done.status, MOE_ERR_IO); /* not from elsewhere */
    submit(&s, 0, 4);
    assert_int_equal(moe_range_reader_wait(s.reader, &done, 1, 1000000000), 1);
    assert_int_equal(done.status, MOE_ERR_ARGUMENT);
    moe_range_reader_blame(s.reader, 1, 77, 1u << 2);
    assert_true(was_told(&s, files[2][1].path, "damaged at offset 77"));
    close_setup(&s);
}

static void copies_of_another_size(void **state)
{
    (void)state;
    moe_error err;
    moe_range_reader *reader;
    moe_byte_source file = {.name = "model.gguf", .size = 10};
    moe_byte_source copy = {.name = "copy.gguf", .size = 11};
    moe_byte_source *both[] = {&file, &copy};
    moe_range_reader_options options = {.files = both, .n_files = 1, .n_copies = 1};
    assert_int_equal(moe_range_reader_open(&reader, &options, &err), MOE_ERR_ARGUMENT);
    assert_string_equal(err.message,
                        "copy.gguf: 11 bytes long, and not 10 like model.gguf; it is no copy");
    options.n_copies = MOE_RANGE_COPIES + 1;
    assert_int_equal(moe_range_reader_open(&reader, &options, &err), MOE_ERR_ARGUMENT);
}

static int make_files(void **state)
{
    (void)state;
    for (uint32_t d = 0; d < MAX_DRIVES; d++) {
        for (uint32_t f = 0; f < 2; f++) {
            io_file_create(&files[d][f], FILE_BYTES, 5 + f); /* by part, not by drive */
        }
    }
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    for (uint32_t d = 0; d < MAX_DRIVES; d++) {
        for (uint32_t f = 0; f < 2; f++) {
            io_file_remove(&files[d][f]);
        }
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(speeds_add_up),          cmocka_unit_test(a_single_range_is_shared),
        cmocka_unit_test(a_drive_slows_down),     cmocka_unit_test(a_drive_hangs),
        cmocka_unit_test(a_drive_fails),          cmocka_unit_test(drives_fail_in_places),
        cmocka_unit_test(a_copy_is_truncated),    cmocka_unit_test(one_source_on_request),
        cmocka_unit_test(copies_of_another_size),
    };
    return cmocka_run_group_tests_name("io copies", tests, make_files, remove_files);
}
