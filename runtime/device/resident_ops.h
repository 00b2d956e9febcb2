/* SPDX-License-Identifier: MIT */
/* The part of the device contract for layers that a device carries out without the host, and for
 * recordings of operations: both optional (moe_device.recording). */
#ifndef MOE_DEVICE_RESIDENT_OPS_H
#define MOE_DEVICE_RESIDENT_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>

#include "runtime/device/row_ops.h"

typedef struct moe_device moe_device;

/* What replaces a pick of the router that is not resident. */
typedef enum moe_resident_fill {
    MOE_RESIDENT_FILL_LIST,   /* the first of the pick's list that is resident and free */
    MOE_RESIDENT_FILL_ROUTER, /* the best of the other resident ones, by the router */
    MOE_RESIDENT_FILL_NONE
} moe_resident_fill;

/* Of an address: the host's memory, and a move to the device has begun: it is not kept. */
#define MOE_OVER_LINK_COMING 2u

/* Where an expert's parts are: gate, up, down. Undefined if it is not resident. */
typedef struct moe_expert_address {
    const void *parts[3];
    uint64_t over_link; /* 0: device memory; 1: the host's; MOE_OVER_LINK_COMING */
} moe_expert_address;

/* A slot that a pass may overwrite with an expert that it would read over the link. */
typedef struct moe_expert_spare {
    moe_expert_address slot;   /* where the parts go */
    moe_expert_address home;   /* in host memory, the expert that the slot has */
    moe_expert_address *entry; /* where the table says that this one is; NULL: the slot is empty */
    uint64_t used;             /* in and out: 1: the pass has used it, or put another expert there,
                                * so the slot stays as it is */
} moe_expert_spare;

/* Spares that some layers share, in the order in which they are to be taken. */
typedef struct moe_spare_range {
    uint32_t first, end; /* their numbers */
    /* Those before it may be taken from layers that are still to come, after the others. */
    uint32_t early_end;
} moe_spare_range;

#define MOE_SPARE_UNTAKEN UINT32_MAX
#define MOE_MAX_SPARES    256u

/* How a layer keeps what it reads over the link: an expert goes to the next spare slot, once, and
 * is read from there. The table then says so of it and of the expert that was there. A spare can
 * be had that is empty, or whose expert is of this layer or of one that the pass has been through,
 * and has not been used; layers' tables lie in their order. While there is no spare, experts are
 * read where they are. All pointers are device memory. */
typedef struct moe_resident_keep {
    moe_expert_spare *spares;     /* of all layers; NULL: nothing is kept */
    const moe_spare_range *range; /* the layer's */
    uint32_t *taken; /* in and out: of each spare: first_key + the expert that is there now, or
                      * MOE_SPARE_UNTAKEN */
    moe_expert_address *table; /* the layer's addresses */
    uint32_t first_key;
    size_t bytes[3]; /* of the parts; 0: lies where another one does */
} moe_resident_keep;

/* Lossy: substitution by a table, before anything else. In rank order, a pick that is not resident
 * gives its place to the first expert of its list that is resident and serves no rank of the row.
 * Rows of whose picks the router is sure stay as they are, and all rows where much is missing. */
typedef struct moe_substitution {
    const uint32_t *count; /* device, [n_expert]: how long the lists are */
    const uint16_t *lists; /* device, [n_expert][max], best first */
    uint32_t max;
    uint32_t max_replaced; /* in a row */
    uint32_t search;       /* so much of a list is looked at; 0: all */
    /* A row is sure at or below this entropy of its picks (of probabilities to the power 1 /
     * temperature, renormalised, as a share of the most; below 0: never), .. */
    float entropy_threshold, entropy_temperature;
    float margin_threshold;  /* .. or if the best two picks differ by this much */
    float missing_threshold; /* this share of the experts asked for is much; 1: never */
    bool own_weight;         /* a changed row is weighed by the mixing rule, else rank by rank */
    bool drop_unserved;      /* a pick without a substitute is dropped */
} moe_substitution;

/* How a pass stops at its first layer with a pick that is not resident, so that the host can go on
 * from there: that layer and those behind it compute no experts (outs is of no meaning), and it
 * copies what it has begun with. All pointers are device memory. */
typedef struct moe_resident_stop {
    uint32_t *stopped; /* in and out: 1 when an earlier layer has stopped; NULL: nothing stops */
    bool begins;       /* the pass's first such layer: *stopped is out alone */
    const float *inputs[2]; /* [n] each, of all rows */
    float *kept[2];         /* likewise: their copies */
    uint32_t n;
} moe_resident_stop;

/* The routed experts of a few rows in one layer, chosen among the resident ones: router, stand-ins
 * and experts. Several rows only where a missing expert stops the pass. All pointers
 * except `route`'s own fields are device memory. Nothing may write to the experts in the table
 * before the next sync() or download(). */
typedef struct moe_resident_experts {
    uint32_t n_rows;  /* up to max_rows of the recording */
    moe_route route;  /* its experts, weights and probs are not used */
    bool renormalise; /* the mixing rule of the edited rows; its scale is the route's */
    const moe_substitution *substitution; /* host; or NULL */
    moe_resident_fill fill;
    const uint16_t *lists; /* of `fill`: [n_expert][n_expert], best first; or NULL: by the router */
    const bool *resident;  /* [n_expert] */
    const moe_expert_address
        *addresses;            /* [n_expert]; the link's reads_host() is true of host memory */
    moe_weight gate, up, down; /* type and shape of all experts; data is not used */
    /* Of gate, up, down: an expert's bias is bias_bytes[p] further than the last one's; or NULL. */
    const float *biases[3];
    size_t bias_bytes[3];
    moe_activation activation;
    const float *x;      /* [n_rows][gate.n_in] */
    uint32_t *picks;     /* out: [n_rows][n_used] what the router chose, best first */
    float *weights;      /* out: [n_rows][n_used] the router's, unless `fill` put an expert in; or
                          * NULL */
    float *probs;        /* out: [n_rows][n_expert] the router's; or NULL */
    uint32_t *chosen;    /* out: [n_rows][n_used] the experts that serve the ranks; or NULL */
    uint32_t *n_missing; /* out: how many picks of all rows are not resident, and neither have a
                          * substitute nor may be dropped; or NULL */
    float *outs;         /* out: [n_rows * n_used][down.n_out], each row's by ascending number of
                          * the expert, dropped ranks last */
    /* Host, out: where the weights of outs are, [n_rows][n_used] in their order, until the next
     * call. */
    const float **mixed;
    moe_resident_stop stop;
    moe_resident_keep keep; /* only where a missing expert stops the pass */
} moe_resident_experts;

/* Operations recorded once and replayed in later steps with other inputs. The user numbers
 * recordings, separately for each number of rows and each shape: rows of one timeline, of one page
 * table with paths, of several page tables. A recording is of a step of up to max_rows rows, and
 * its operations return nothing to the host. Host arrays other than the step's inputs must be the
 * same each time. */
typedef struct moe_recording_ops {
    uint32_t max_rows;
    uint64_t forms; /* of operations that can be recorded; those of routed experts stand for
                     * resident_experts() */
    /* Whether operations of the step that has been begun can be recorded. */
    bool (*takes_step)(const moe_device *device);
    int (*resident_experts)(moe_device *device, const moe_resident_experts *experts,
                            moe_error *err);
    /* *played is false when nothing has been recorded under this number, or not for positions this
     * far along. */
    int (*play)(moe_device *device, uint32_t number, bool *played, moe_error *err);
    /* Records the operations from here to record_end() in place of an earlier recording. Within a
     * step. MOE_ERR_UNSUPPORTED, from here or from record_end(): recording is impossible, nothing
     * is recorded, and the device remains usable. */
    int (*record)(moe_device *device, uint32_t number, moe_error *err);
    /* status: the result of the operations. With MOE_OK the recording is played for the first time.
     * Otherwise it is dropped, and status is returned. */
    int (*record_end)(moe_device *device, int status, moe_error *err);
} moe_recording_ops;

#endif
