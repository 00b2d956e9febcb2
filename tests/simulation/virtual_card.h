/* SPDX-License-Identifier: MIT */
/* A simulated device behind the contract of runtime/device/device.h: memory, and a link whose
 * copies are refused, fail, take long or hang. Without a link it is like the CPU: the disk reads
 * into its memory. It does no arithmetic. */
#ifndef MOE_TESTS_VIRTUAL_CARD_H
#define MOE_TESTS_VIRTUAL_CARD_H

#include "runtime/device/device.h"
#include "tests/simulation/fibers.h"

/* In thousandths of copies, or of calls. */
typedef struct vc_faults {
    uint32_t refused, fails, slow, hangs;
} vc_faults;

typedef struct vc_copy {
    moe_copy_range ranges[MOE_MAX_COPY_RANGES];
    uint32_t n_ranges;
    uint32_t uses[2 * MOE_MAX_COPY_RANGES];
    int state;
} vc_copy;

/* One direction; copies end in the order in which they were begun. */
typedef struct vc_queue {
    struct virtual_card *card;
    bool to_host, moving; /* an event is pending for the oldest */
    vc_copy copies[256];
    uint64_t n_begun, n_done;
} vc_queue;

typedef struct virtual_card {
    moe_device base;
    moe_device_ops ops;
    /* Set before use. */
    uint32_t number; /* 0: the first card, or the only one */
    vc_faults copies, saves;
    uint32_t alloc_refused, give_up_refused; /* in thousandths of calls */
    uint32_t unreadable_per_mille;           /* of host memory, by page */
    uint32_t deaf_per_mille;                 /* of the notices, those that are lost */
    uint64_t copy_ns, slow_ns, hang_ns;
    uint32_t never_per_mille;
    uint64_t seed;
    /* From open on. */
    sim_dice dice;
    vc_queue to_device, from_device;
    moe_copy_notify_fn notify;
    void *notify_user;
    bool news, notifying;
    uint32_t notifier; /* a fiber */
    uint64_t n_hung, n_failed;
    uint64_t last_end_ns; /* when the last copy ended */
} virtual_card;

/* Kinds of memory; that of further cards behind them. */
enum { VC_DEVICE_MEMORY, VC_HOST_MEMORY, VC_FURTHER_MEMORY };

/* Inside a run. */
void virtual_card_open(virtual_card *card, bool has_link);
/* All copies have ended, the last of them after a time. */
bool virtual_card_ended_after(const virtual_card *card, uint64_t ns);

#endif
