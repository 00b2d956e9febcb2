/* SPDX-License-Identifier: MIT */
/* A device of bounded memory behind a link of stated speed, made from another device. Arithmetic is
 * that of the inner device, copies are real, and the time of a transfer follows this model:
 *
 *    start = the latest of: the request, the end of the previous transfer in this direction
 *    end  >= start + latency + bytes / bandwidth
 *
 * So a transfer is never faster than the model; it is slower only if this machine's memcpy or
 * scheduler is. upload() and download() take turns on the link with queued copies. Two things are
 * not modelled: the time of arithmetic (that is the inner device's real time, on cores that also do
 * the host's work), and the transfer of small tables that operations get by host pointers. */
#ifndef MOE_DEVICE_SIM_DEVICE_H
#define MOE_DEVICE_SIM_DEVICE_H

#include "runtime/device/device.h"
#include "runtime/device/sim_spec.h"

typedef struct moe_sim_device_stats {
    uint64_t bytes_to_device; /* by the copy queue and by upload() */
    uint64_t bytes_to_host;
    uint64_t n_copies; /* copies of the queue */
    uint64_t bytes_allocated;
} moe_sim_device_stats;

/* Takes over inner, also on failure. */
int moe_sim_device_open(moe_device **out, const moe_sim_spec *spec, moe_device *inner,
                        moe_error *err);
void moe_sim_device_get_stats(moe_device *device, moe_sim_device_stats *stats);

#endif
