/* SPDX-License-Identifier: MIT */
/* Shared by the files of the simulated device; no other file includes it. */
#ifndef MOE_DEVICE_SIM_INTERNAL_H
#define MOE_DEVICE_SIM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/device/sim_device.h"

typedef struct moe_sim_copy {
    moe_copy_range ranges[MOE_MAX_COPY_RANGES];
    uint32_t n_ranges;
    uint64_t asked_ns;
} moe_sim_copy;

/* One direction of the link: its copies, and the thread that carries them out. */
typedef struct moe_sim_queue {
    struct moe_sim_device *sim;
    pthread_t thread;
    /* Under the device's lock. */
    pthread_cond_t begun;
    moe_sim_copy copies[MOE_MAX_COPIES]; /* ticket t at t % MOE_MAX_COPIES */
    uint64_t n_begun;
    uint64_t free_ns; /* when the current transfer in this direction ends */
    uint64_t bytes;
    _Atomic uint64_t n_done; /* copies with lower tickets are done */
} moe_sim_queue;

typedef struct moe_sim_device {
    moe_device base;
    /* Set at open, never changed. */
    moe_device_ops ops;
    moe_device *inner;
    moe_sim_spec spec;
    char name[96];

    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool stop;
    uint64_t bytes_allocated;
    moe_sim_queue to_device, to_host;

    /* Held during a notification, so that copy_notify() waits for it to end. */
    pthread_mutex_t notify_lock;
    moe_copy_notify_fn notify;
    void *notify_user;
} moe_sim_device;

static inline moe_device *moe_sim_inner(moe_device *device)
{
    return ((moe_sim_device *)device)->inner;
}

/* Fills in the arithmetic operations, which forward to the inner device. */
void moe_sim_forward_arithmetic(moe_device_ops *ops);

#endif
