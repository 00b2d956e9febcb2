/* SPDX-License-Identifier: MIT */
/* The device as a place: its kernels compute experts on the card whose memory has them. The device
 * may queue the work. */
#include "runtime/base/clock.h"
#include "runtime/device/cards.h"
#include "runtime/place/place.h"

static uint32_t rows_of(const moe_place_job *job)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < job->n_works; i++) {
        n += job->works[i].n_rows;
    }
    return n;
}

/* Notes how long the job took. On a device that queues, its clock tells how long earlier jobs took,
 * and that is noted instead. */
static void note(moe_device_place *p, const moe_place_job *job, uint64_t begin_ns)
{
    moe_device *device = p->device;
    moe_timed_work work = {job->n_works, rows_of(job)};
    if (device->clock == NULL) {
        moe_place_note(&p->base.times, work.n_experts, work.n_rows, moe_now_ns() - begin_ns);
        return;
    }
    device->clock->end(device, &work);
    for (uint64_t ns; device->clock->take(device, &work, &ns);) {
        moe_place_note(&p->base.times, work.n_experts, work.n_rows, ns);
    }
}

static int device_submit(moe_place *place, const moe_place_job *job, moe_error *err)
{
    moe_device_place *p = (moe_device_place *)place;
    uint64_t begin_ns = p->timed ? moe_now_ns() : 0;
    if (p->timed && p->device->clock != NULL) {
        p->device->clock->begin(p->device);
    }
    int status = moe_cards_experts(p->device, job->x, job->n_x_rows, p->n_in, job->works,
                                   job->n_works, job->out, p->n_in, err);
    if (p->timed) {
        note(p, job, begin_ns);
    }
    return status;
}

static const moe_place_ops device_ops = {.submit = device_submit};

void moe_device_place_init(moe_device_place *place, moe_device *device, uint32_t n_in, bool timed)
{
    *place = (moe_device_place){
        .base = {.ops = &device_ops}, .device = device, .n_in = n_in, .timed = timed};
}
