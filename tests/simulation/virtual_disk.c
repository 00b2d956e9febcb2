/* SPDX-License-Identifier: MIT */
#include "tests/simulation/virtual_disk.h"

#include <errno.h>
#include <string.h>

#include "runtime/base/error.h"
#include "tests/simulation/virtual_memory.h"

#define UNKNOWN 0xee /* what a buffer holds while it is read into */

static int vd_open(void **engine, const moe_io_params *params, moe_error *err)
{
    virtual_disk *d = params->context;
    if (d->refuses_to_open) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "refused on purpose");
    }
    d->dice = sim_dice_of(d->seed, 2);
    d->n_read_files = params->n_files;
    *engine = d;
    return MOE_OK;
}

static void vd_use_arena(void *engine, void *arena, size_t bytes)
{
    (void)engine;
    (void)arena;
    (void)bytes;
}

static bool vd_set_away(void *engine, void *memory, size_t bytes, bool away)
{
    virtual_disk *d = engine;
    (void)memory;
    (void)bytes;
    if (away && d->n_in_flight > 0) {
        sim_fail("set_away() while reads are in flight");
    }
    return !away || !sim_chance(&d->dice, d->faults[0].refused);
}

static uint32_t file_of(const virtual_disk *d, const moe_io_read *read)
{
    return read->file % d->n_files;
}

static uint32_t drive_of(const virtual_disk *d, const moe_io_read *read)
{
    return read->file / d->n_files;
}

static void report(virtual_disk *d, uint64_t user_data, int32_t result)
{
    if (d->n_done == 2 * VD_MAX_READS) {
        sim_fail("completions are not taken");
    }
    d->done[d->n_done++] = (moe_io_completion){user_data, result};
    sim_wake(d, true);
}

static void end_read(void *user, uint32_t i)
{
    virtual_disk *d = user;
    vd_read *r = &d->reads[i];
    const uint32_t file = file_of(d, &r->read);
    vm_end(r->use);
    if (r->result > 0) {
        memcpy(r->read.dst, d->bytes[file] + r->read.offset, (size_t)r->result);
        if (r->flipped) {
            /* All of it, since the part that is used may be anywhere in it. */
            for (int32_t at = (int32_t)(r->read.user_data % 61); at < r->result; at += 61) {
                r->read.dst[at] ^= 0x10;
            }
        }
    }
    r->live = false;
    d->n_in_flight--;
    sim_trace("disk: file %u, offset %llu: %d%s%s", r->read.file,
              (unsigned long long)r->read.offset, r->result, r->flipped ? ", wrong bytes" : "",
              d->closed ? ", after closing" : "");
    if (d->closed) {
        return;
    }
    report(d, r->read.user_data, r->result);
    if (sim_chance(&d->dice, d->faults[drive_of(d, &r->read)].twice)) {
        report(d, r->read.user_data, r->result);
    }
}

static int transient_error(virtual_disk *d)
{
    static const int errors[] = {EAGAIN, EINTR, ECANCELED, EBUSY, ENOMEM};
    return errors[sim_below(&d->dice, 5)];
}

/* Decides what becomes of a read; returns when it ends. */
static uint64_t decide(virtual_disk *d, vd_read *r)
{
    const vd_faults *f = &d->faults[drive_of(d, &r->read)];
    const uint32_t file = file_of(d, &r->read);
    uint8_t *in_row = &d->in_row[(uint32_t)r->read.user_data % VD_MAX_READS];
    uint64_t takes = d->read_ns / 4 + sim_roll(&d->dice) % d->read_ns;
    uint64_t left = d->sizes[file] - r->read.offset;
    bool mended = *in_row >= VD_MOST_IN_ROW;
    r->result = (int32_t)(r->read.size < left ? r->read.size : left);
    r->flipped = sim_chance(&d->dice, f->flip);
    if (sim_chance(&d->dice, f->hard_error)) {
        r->result = -EIO;
    } else if (!mended && sim_chance(&d->dice, f->soft_error)) {
        r->result = -EIO;
    } else if (!mended && sim_chance(&d->dice, f->transient)) {
        r->result = -transient_error(d);
    } else if (!mended && sim_chance(&d->dice, f->short_read)) {
        r->result = (int32_t)sim_below(&d->dice, (uint32_t)r->result);
    } else if (r->read.direct && d->no_direct) {
        r->result = -EINVAL;
    } else {
        *in_row = 0;
    }
    bool whole = r->result == (int32_t)(r->read.size < left ? r->read.size : left);
    *in_row += (uint8_t)!whole;
    d->n_faults += !whole || r->flipped;
    if (sim_chance(&d->dice, f->hang)) {
        d->n_hung++;
        if (sim_chance(&d->dice, d->never_per_mille)) {
            return SIM_NEVER;
        }
        takes = sim_roll(&d->dice) % d->hang_ns;
    } else if (sim_chance(&d->dice, f->slow)) {
        takes = sim_roll(&d->dice) % d->slow_ns;
    }
    return sim_now_ns() + takes;
}

static void start_read(virtual_disk *d, const moe_io_read *read)
{
    uint32_t i = 0;
    while (i < VD_MAX_READS && d->reads[i].live) {
        i++;
    }
    if (i == VD_MAX_READS) {
        sim_fail("more reads are in flight than were announced");
    }
    vd_read *r = &d->reads[i];
    *r = (vd_read){.read = *read, .live = true};
    const uint32_t file = file_of(d, read);
    if (read->file >= d->n_read_files || read->offset >= d->sizes[file] || read->size == 0) {
        sim_fail("a read of file %u, offset %llu, %u bytes", read->file,
                 (unsigned long long)read->offset, read->size);
    }
    if (vm_kind_of(read->dst, read->size) < 0) {
        sim_fail("a read into memory that is not allocated, or given up");
    }
    r->use = vm_begin(read->dst, read->size, VM_WRITE, "the disk writes it");
    memset(read->dst, UNKNOWN, read->size);
    d->n_in_flight++;
    d->n_reads++;
    sim_event(decide(d, r), end_read, d, i);
}

static uint32_t vd_submit(void *engine, const moe_io_read *reads, uint32_t n)
{
    virtual_disk *d = engine;
    sim_point();
    if (d->closed) {
        sim_fail("a read is submitted to a closed engine");
    }
    if (sim_chance(&d->dice, d->faults[0].refused)) {
        n = sim_below(&d->dice, n + 1);
    }
    for (uint32_t i = 0; i < n; i++) {
        start_read(d, &reads[i]);
        while (d->blocks && d->n_in_flight > 0) {
            (void)sim_block(d, SIM_NEVER);
        }
    }
    return n;
}

static uint32_t take_done(virtual_disk *d, moe_io_completion *done, uint32_t capacity)
{
    uint32_t n = d->n_done < capacity ? d->n_done : capacity;
    if (n > 1 && sim_below(&d->dice, 2) == 0) {
        n = 1 + sim_below(&d->dice, n);
    }
    memcpy(done, d->done, n * sizeof *done);
    d->n_done -= n;
    memmove(d->done, d->done + n, d->n_done * sizeof *d->done);
    return n;
}

static uint32_t vd_wait(void *engine, moe_io_completion *done, uint32_t capacity,
                        int64_t timeout_ns, bool *woken)
{
    virtual_disk *d = engine;
    uint64_t deadline = timeout_ns < 0 ? SIM_NEVER : sim_now_ns() + (uint64_t)timeout_ns;
    sim_point();
    if (d->n_done == 0 && !d->woken && timeout_ns != 0) {
        (void)sim_block(d, deadline);
    }
    *woken = *woken || d->woken;
    d->woken = false;
    return take_done(d, done, capacity);
}

static void vd_wake(void *engine)
{
    virtual_disk *d = engine;
    sim_point();
    if (d->closed) {
        sim_fail("a closed engine is woken");
    }
    d->woken = true;
    sim_wake(d, true);
}

static bool vd_close(void *engine, uint64_t timeout_ns)
{
    virtual_disk *d = engine;
    uint64_t deadline = sim_now_ns() + timeout_ns;
    while (d->n_in_flight > 0 && sim_now_ns() < deadline) {
        d->n_done = 0;
        (void)sim_block(d, deadline);
    }
    d->closed = true;
    return d->n_in_flight == 0;
}

static const char *vd_detail(const void *engine)
{
    (void)engine;
    return "";
}

const moe_io_ops virtual_disk_ops = {
    .name = "virtual",
    .open = vd_open,
    .use_arena = vd_use_arena,
    .set_away = vd_set_away,
    .close = vd_close,
    .submit = vd_submit,
    .wait = vd_wait,
    .wake = vd_wake,
    .detail = vd_detail,
};
