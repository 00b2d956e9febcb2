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

/* What replaces an expert that the router picked and that is not resident. */
typedef enum moe_resident_fill {
    /* The first expert of the pick's list that is resident and serves no other rank. */
    MOE_RESIDENT_FILL_LIST,
    /* The resident expert that the router ranks best among those not used. */
    MOE_RESIDENT_FILL_ROUTER,
    MOE_RESIDENT_FILL_NONE
} moe_resident_fill;

/* Value of over_link: host memory, from which a move to the device has begun; the pass does not
 * keep it. */
#define MOE_OVER_LINK_COMING 2u

/* Where an expert's parts are: gate, up, down. Undefined for an expert that cannot be read. */
typedef struct moe_expert_address {
    const void *parts[3];
    uint64_t over_link; /* 0: in device memory; 1: in host memory; or MOE_OVER_LINK_COMING */
} moe_expert_address;

/* A spare: a slot that a pass may overwrite with an expert that it reads over the link. */
typedef struct moe_expert_spare {
    moe_expert_address slot; /* where the parts go */
    moe_expert_address home; /* where the slot's present expert is in host memory */
    /* The present expert's entry in the address table; NULL: the slot is empty. */
    moe_expert_address *entry;
    /* In and out: 1: the pass has used the slot's expert, or put another one there; the slot
     * must stay as it is. */
    uint64_t used;
} moe_expert_spare;

/* Spares that some layers share, in the order in which they are taken. */
typedef struct moe_spare_range {
    uint32_t first, end; /* numbers of the spares */
    /* Spares before this one may hold experts of layers still to come; such spares are taken
     * last. */
    uint32_t early_end;
} moe_spare_range;

#define MOE_SPARE_UNTAKEN UINT32_MAX
#define MOE_MAX_SPARES    256u

/* How a layer keeps what it reads over the link: an expert is copied to the next spare slot, once,
 * and is read from there. The table is updated for this expert and for the one that was in the
 * slot. A spare can be taken if it is empty, or if its expert has not been used and belongs to this
 * layer or to one that the pass has been through. The tables of layers lie in the order of layers.
 * While there is no spare, experts are read where they are. All pointers are device memory. */
typedef struct moe_resident_keep {
    moe_expert_spare *spares;     /* of all layers; NULL: nothing is kept */
    const moe_spare_range *range; /* the layer's */
    /* In and out, for each spare: first_key + the expert that is there now, or
     * MOE_SPARE_UNTAKEN. */
    uint32_t *taken;
    moe_expert_address *table; /* the layer's addresses */
    uint32_t first_key;
    size_t bytes[3]; /* of the parts; 0: the part lies at the same place as another one */
} moe_resident_keep;

/* Lossy: substitution by a table, before anything else. In rank order, a pick that is not
 * resident is replaced by the first expert of its list that is resident and serves no rank of
 * the row. Rows whose choice the router is sure of stay as they are; so do all rows if many
 * experts are missing. */
typedef struct moe_substitution {
    const uint32_t *count; /* device, [n_expert]: lengths of the lists */
    const uint16_t *lists; /* device, [n_expert][max], best first */
    uint32_t max;
    uint32_t max_replaced; /* in a row */
    uint32_t search;       /* how many experts of a list are tried; 0: all */
    /* The router is sure of a row if the entropy of its picks is at most entropy_threshold (below
     * 0: never). The entropy is that of the probabilities to the power 1 / temperature,
     * renormalised, as a share of the greatest possible entropy. */
    float entropy_threshold, entropy_temperature;
    float margin_threshold; /* it is also sure if the best two picks differ by this much */
    /* Many are missing from this share of the requested experts on; 1: never. */
    float missing_threshold;
    /* Weights of a changed row follow the mixing rule; otherwise each rank keeps its weight. */
    bool own_weight;
    bool drop_unserved; /* a pick without a substitute is dropped */
} moe_substitution;

/* How a pass stops at its first layer with a pick that is not resident, so that the host can go on
 * from there. This layer and those behind it compute no experts (their outs mean nothing), and the
 * layer copies the inputs that it began with. All pointers are device memory. */
typedef struct moe_resident_stop {
    uint32_t *stopped; /* in and out: 1 when an earlier layer has stopped; NULL: nothing stops */
    bool begins;       /* this is the pass's first such layer: *stopped is only written */
    const float *inputs[2]; /* [n] each, for all rows */
    float *kept[2];         /* copies of these inputs, likewise */
    uint32_t n;
} moe_resident_stop;

/* The routed experts of a few rows in one layer, chosen among the resident ones: router, stand-ins
 * and experts. More than one row is possible only if a missing expert stops the pass. All pointers
 * except `route`'s own fields are device memory. Nothing may write to the experts in the table
 * before the next sync() or download(). */
typedef struct moe_resident_experts {
    uint32_t n_rows;  /* up to max_rows of the recording */
    moe_route route;  /* its experts, weights and probs are not used */
    bool renormalise; /* the mixing rule of edited rows; their scale is the route's */
    const moe_substitution *substitution; /* host; or NULL */
    moe_resident_fill fill;
    /* For `fill`: [n_expert][n_expert], best first; NULL: fills by the router. */
    const uint16_t *lists;
    const bool *resident; /* [n_expert] */
    const moe_expert_address
        /* [n_expert]; for those in host memory the link's reads_host() is true */
        *addresses;
    moe_weight gate, up, down; /* type and shape of all experts; data is not used */
    /* Of gate, up, down: the biases of expert 0; each next expert's are bias_bytes[p] further.
     * NULL: none. */
    const float *biases[3];
    size_t bias_bytes[3];
    moe_activation activation;
    const float *x;  /* [n_rows][gate.n_in] */
    uint32_t *picks; /* out: [n_rows][n_used] what the router chose, best first */
    /* Out: [n_rows][n_used] the router's weights, or those of experts that `fill` put in; or
     * NULL. */
    float *weights;
    float *probs;     /* out: [n_rows][n_expert] the router's probabilities; or NULL */
    uint32_t *chosen; /* out: [n_rows][n_used] the experts that serve the ranks; or NULL */
    /* Out: how many picks of all rows are not resident, have no substitute and must not be
     * dropped; or NULL. */
    uint32_t *n_missing;
    /* Out: [n_rows * n_used][down.n_out], for each row by ascending number of the expert,
     * dropped ranks last. */
    float *outs;
    /* Host, out: the address of the weights of outs, [n_rows][n_used] in the same order; valid
     * until the next call. */
    const float **mixed;
    moe_resident_stop stop;
    moe_resident_keep keep; /* used only if a missing expert stops the pass */
} moe_resident_experts;

/* Operations that are recorded once and replayed in later steps with other inputs. The caller
 * numbers recordings: one for each number of rows, and for each shape of them (rows of one
 * timeline, of one page table with paths, of several page tables). A recording is of a step of up
 * to max_rows rows; its operations return nothing to the host. Host arrays other than the step's
 * inputs must be the same each time. */
typedef struct moe_recording_ops {
    uint32_t max_rows;
    /* Forms of operations that can be recorded. Forms of routed experts stand for
     * resident_experts(). */
    uint64_t forms;
    /* Whether operations of the current step can be recorded. */
    bool (*takes_step)(const moe_device *device);
    int (*resident_experts)(moe_device *device, const moe_resident_experts *experts,
                            moe_error *err);
    /* Plays a recording. *played is false if there is none with this number, or if it is not for
     * positions this far along. */
    int (*play)(moe_device *device, uint32_t number, bool *played, moe_error *err);
    /* Records the operations from here to record_end(), in place of an earlier recording. Call
     * within a step. MOE_ERR_UNSUPPORTED, from here or from record_end(): recording is impossible,
     * nothing is recorded, and the device remains usable. */
    int (*record)(moe_device *device, uint32_t number, moe_error *err);
    /* status: the result of the operations. With MOE_OK the recording is played for the first time.
     * Otherwise it is dropped, and status is returned. */
    int (*record_end)(moe_device *device, int status, moe_error *err);
} moe_recording_ops;

#endif
