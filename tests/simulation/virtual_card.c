/* SPDX-License-Identifier: MIT */
#include "tests/simulation/virtual_card.h"

#include <string.h>

#include "runtime/base/error.h"
#include "tests/simulation/virtual_memory.h"

#define UNKNOWN 0xcc /* what a copy's destination holds until it is done */

/* ---- Memory ---- */

static int allocate(virtual_card *card, size_t bytes, int kind, void **memory, moe_error *err)
{
    *memory = NULL;
    if (sim_chance(&card->dice, card->alloc_refused)) {
        return moe_fail(err, MOE_ERR_MEMORY, "refused on purpose");
    }
    *memory = vm_alloc(bytes, kind, true);
    return *memory != NULL ? MOE_OK : moe_fail(err, MOE_ERR_MEMORY, "the room is used up");
}

static int device_kind(const virtual_card *card)
{
    return card->number == 0 ? VC_DEVICE_MEMORY : VC_FURTHER_MEMORY + (int)card->number - 1;
}

static int vc_alloc(moe_device *device, size_t bytes, void **memory, moe_error *err)
{
    virtual_card *card = (virtual_card *)device;
    return allocate(card, bytes, device_kind(card), memory, err);
}

static int vc_host_alloc(moe_device *device, size_t bytes, void **memory, moe_error *err)
{
    return allocate((virtual_card *)device, bytes, VC_HOST_MEMORY, memory, err);
}

static void vc_free(moe_device *device, void *memory, size_t bytes)
{
    (void)device;
    vm_free(memory, bytes);
}

static bool vc_give_up(moe_device *device, void *memory, size_t bytes)
{
    virtual_card *card = (virtual_card *)device;
    if (sim_chance(&card->dice, card->give_up_refused)) {
        return false;
    }
    vm_set_away(memory, bytes, true);
    return true;
}

static void vc_take_back(moe_device *device, void *memory, size_t bytes)
{
    (void)device;
    if (vm_kind_of(memory, bytes) < 0) { /* else giving it up was refused */
        vm_set_away(memory, bytes, false);
    }
}

static int vc_sync(moe_device *device, moe_error *err)
{
    (void)device;
    (void)err;
    sim_point();
    return MOE_OK;
}

/* ---- The link ---- */

static void start_oldest(vc_queue *queue);

static void end_copy(void *user, uint32_t argument)
{
    (void)argument;
    vc_queue *queue = user;
    virtual_card *card = queue->card;
    vc_copy *copy = &queue->copies[queue->n_done % 256];
    for (uint32_t i = 0; i < copy->n_ranges; i++) {
        vm_end(copy->uses[2 * i]);
        vm_end(copy->uses[2 * i + 1]);
        if (copy->state == MOE_OK) {
            memcpy(copy->ranges[i].dst, copy->ranges[i].src, copy->ranges[i].bytes);
        }
    }
    queue->n_done++;
    queue->moving = false;
    card->last_end_ns = sim_now_ns();
    sim_trace("link: copy %llu %s the device has ended: %d", (unsigned long long)queue->n_done - 1,
              queue->to_host ? "from" : "to", copy->state);
    start_oldest(queue);
    if (!sim_chance(&card->dice, card->deaf_per_mille)) {
        card->news = true;
        sim_wake(&card->news, true);
    }
}

static void start_oldest(vc_queue *queue)
{
    virtual_card *card = queue->card;
    if (queue->moving || queue->n_done == queue->n_begun) {
        return;
    }
    const vc_faults *f = queue->to_host ? &card->saves : &card->copies;
    uint64_t takes = card->copy_ns / 4 + sim_roll(&card->dice) % card->copy_ns;
    if (sim_chance(&card->dice, f->hangs)) {
        card->n_hung++;
        takes = sim_chance(&card->dice, card->never_per_mille)
                    ? SIM_NEVER
                    : sim_roll(&card->dice) % card->hang_ns;
    } else if (sim_chance(&card->dice, f->slow)) {
        takes = sim_roll(&card->dice) % card->slow_ns;
    }
    vc_copy *copy = &queue->copies[queue->n_done % 256];
    copy->state = sim_chance(&card->dice, f->fails) ? MOE_ERR_DEVICE : MOE_OK;
    card->n_failed += copy->state != MOE_OK;
    queue->moving = true;
    sim_event(takes == SIM_NEVER ? SIM_NEVER : sim_now_ns() + takes, end_copy, queue, 0);
}

static int begin(vc_queue *queue, const moe_copy_range *ranges, uint32_t n, uint64_t *ticket,
                 moe_error *err)
{
    virtual_card *card = queue->card;
    const vc_faults *f = queue->to_host ? &card->saves : &card->copies;
    sim_point();
    if (n == 0 || n > MOE_MAX_COPY_RANGES || queue->n_begun - queue->n_done >= MOE_MAX_COPIES) {
        sim_fail("a copy of %u ranges, %llu under way", n,
                 (unsigned long long)(queue->n_begun - queue->n_done));
    }
    if (sim_chance(&card->dice, f->refused)) {
        card->n_failed++;
        return moe_fail(err, queue->to_host ? MOE_ERR_UNSUPPORTED : MOE_ERR_DEVICE,
                        "refused on purpose");
    }
    vc_copy *copy = &queue->copies[queue->n_begun % 256];
    *copy = (vc_copy){.n_ranges = n};
    for (uint32_t i = 0; i < n; i++) {
        const moe_copy_range *r = &ranges[i];
        int dst = vm_kind_of(r->dst, r->bytes), src = vm_kind_of(r->src, r->bytes);
        const int own = device_kind(card);
        if (dst != (queue->to_host ? VC_HOST_MEMORY : own) ||
            src != (queue->to_host ? own : VC_HOST_MEMORY)) {
            sim_fail("a copy %s the device from memory of kind %d to memory of kind %d",
                     queue->to_host ? "from" : "to", src, dst);
        }
        copy->ranges[i] = *r;
        copy->uses[2 * i] = vm_begin(r->src, r->bytes, VM_READ,
                                     queue->to_host ? "a save reads it" : "a copy reads it");
        copy->uses[2 * i + 1] = vm_begin(r->dst, r->bytes, VM_WRITE,
                                         queue->to_host ? "a save writes it" : "a copy writes it");
        memset(r->dst, UNKNOWN, r->bytes);
    }
    *ticket = queue->n_begun++;
    start_oldest(queue);
    return MOE_OK;
}

static int vc_copy_begin(moe_device *device, const moe_copy_range *ranges, uint32_t n,
                         uint64_t *ticket, moe_error *err)
{
    return begin(&((virtual_card *)device)->to_device, ranges, n, ticket, err);
}

static int vc_save_begin(moe_device *device, const moe_copy_range *ranges, uint32_t n,
                         uint64_t *ticket, moe_error *err)
{
    return begin(&((virtual_card *)device)->from_device, ranges, n, ticket, err);
}

static int state_of(const vc_queue *queue, uint64_t ticket)
{
    sim_point();
    if (ticket >= queue->n_begun || queue->n_begun - ticket > 256) {
        sim_fail("the state of a copy that was not begun, or long ago");
    }
    return ticket < queue->n_done ? queue->copies[ticket % 256].state : MOE_COPY_UNDER_WAY;
}

static int vc_copy_state(moe_device *device, uint64_t ticket)
{
    return state_of(&((virtual_card *)device)->to_device, ticket);
}

static int vc_save_state(moe_device *device, uint64_t ticket)
{
    return state_of(&((virtual_card *)device)->from_device, ticket);
}

static int vc_copy_wait(moe_device *device, uint64_t ticket, moe_error *err)
{
    virtual_card *card = (virtual_card *)device;
    while (state_of(&card->to_device, ticket) == MOE_COPY_UNDER_WAY) {
        (void)sim_block(&card->news, sim_now_ns() + 1000000u);
    }
    int state = state_of(&card->to_device, ticket);
    return state == MOE_OK ? state : moe_fail(err, state, "a copy failed on purpose");
}

static bool vc_reads_host(moe_device *device, const void *memory, size_t bytes)
{
    const virtual_card *card = (const virtual_card *)device;
    if (vm_kind_of(memory, bytes) != VC_HOST_MEMORY) {
        sim_fail("reads_host() of memory that is not the host's");
    }
    sim_dice dice = sim_dice_of(card->seed, vm_offset_of(memory) / 4096 + 100);
    return !sim_chance(&dice, card->unreadable_per_mille);
}

/* ---- Notices, on a thread of their own ---- */

static void *notify_main(void *user)
{
    virtual_card *card = user;
    for (;;) {
        while (!card->news) {
            (void)sim_block(&card->news, SIM_NEVER);
        }
        card->news = false;
        if (card->notify != NULL) {
            card->notifying = true;
            card->notify(card->notify_user);
            card->notifying = false;
            sim_wake(&card->notifying, true);
        }
    }
    return NULL;
}

static void vc_copy_notify(moe_device *device, moe_copy_notify_fn fn, void *user)
{
    virtual_card *card = (virtual_card *)device;
    while (card->notifying) {
        (void)sim_block(&card->notifying, SIM_NEVER);
    }
    card->notify = fn;
    card->notify_user = user;
}

static void vc_host_share(moe_device *device, moe_device *owner)
{
    (void)device;
    (void)owner;
}

static void vc_close(moe_device *device)
{
    (void)device;
}

static const moe_link_ops link_ops = {
    .host_share = vc_host_share,
    .host_alloc = vc_host_alloc,
    .host_free = vc_free,
    .host_give_up = vc_give_up,
    .host_take_back = vc_take_back,
    .copy_begin = vc_copy_begin,
    .copy_state = vc_copy_state,
    .copy_wait = vc_copy_wait,
    .save_begin = vc_save_begin,
    .save_state = vc_save_state,
    .reads_host = vc_reads_host,
    .copy_notify = vc_copy_notify,
};

void virtual_card_open(virtual_card *card, bool has_link)
{
    card->ops = (moe_device_ops){
        .close = vc_close,
        .alloc = vc_alloc,
        .free = vc_free,
        .give_up = vc_give_up,
        .take_back = vc_take_back,
        .sync = vc_sync,
    };
    card->base = (moe_device){.ops = &card->ops, .name = "virtual"};
    card->dice = sim_dice_of(card->seed, 3 + 1000 * card->number);
    card->to_device.card = card->from_device.card = card;
    card->from_device.to_host = true;
    if (has_link) {
        card->base.link = &link_ops;
        card->base.memory_bytes = (uint64_t)1 << 30;
        card->base.link_bytes_per_s = 8000000000u;
        card->base.link_latency_ns = 2000;
        card->base.simulated = true;
        card->notifier = sim_start(notify_main, card);
    }
}

bool virtual_card_ended_after(const virtual_card *card, uint64_t ns)
{
    const vc_queue *to = &card->to_device, *from = &card->from_device;
    return to->n_done == to->n_begun && from->n_done == from->n_begun && card->last_end_ns > ns;
}
