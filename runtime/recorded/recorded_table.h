/* SPDX-License-Identifier: MIT */
/* The inputs and results, in the device's memory, of a pass that the device carries out alone:
 *
 *    for each layer: where each expert's parts are, [n_expert]; which are resident, [n_expert]
 *    the slots that the pass may fill, the next of them, and what the pass has put there
 *    missing picks, picks, weights; with substitutes also probabilities and edited choices
 *    whether a layer has stopped the pass, and the x and norm with which that layer began
 *    affinities, or lists of substitutes
 *
 * Only passes that the host may continue have the second and the fourth line; only passes that look
 * up stand-ins have the last one. */
#ifndef MOE_RECORDED_RECORDED_TABLE_H
#define MOE_RECORDED_RECORDED_TABLE_H

#include <moe/status.h>
#include <moe/types.h>

#include "runtime/device/device.h"
#include "runtime/draft/speculation.h"
#include "runtime/lossy/lossy.h"
#include "runtime/model/model_config.h"

typedef struct moe_recorded_table_options {
    const uint16_t *affinity;     /* [n_layer][n_expert][n_expert] or NULL */
    const moe_lossy *substitutes; /* the modes whose lists of substitutes the table holds; or
                                   * NULL */
    uint32_t longest_list;        /* the longest list of substitutes; 0: there are none */
    bool stops;                   /* the host may continue from a layer that misses an expert */
    bool keeps;        /* with stops: the pass may keep experts that it reads in host memory;
                        * changes no sizes */
    uint32_t max_rows; /* the most rows of a pass; 1 unless `stops` */
} moe_recorded_table_options;

/* The results of a pass: places on the host, or on the device. */
typedef struct moe_recorded_results {
    uint32_t *picks;   /* [n_rows][n_used] the experts that the routers chose */
    float *weights;    /* [n_rows][n_used] the routers' weights of the picks */
    uint32_t *missing; /* how many picks, of all rows, had no expert that could be used */
    float *probs;      /* [n_expert] probabilities of one row; NULL without substitutes */
    uint32_t *chosen;  /* [n_used] the experts that were used for the picks of this row */
} moe_recorded_results;

typedef struct moe_recorded_table {
    const moe_model_config *config;
    uint8_t *memory; /* device */
    size_t bytes;
    size_t layer_bytes;
    size_t results_at, results_bytes, stop_at, substitutes_at;
    size_t spares_at, ranges_at, taken_at;
    bool has_affinity, stops, keeps;
    uint32_t max_rows;
    uint32_t n_rows;       /* rows of the running pass; set by the owner, at first 1 */
    uint32_t longest_list; /* the longest list of substitutes; 0: none */
    uint8_t *table;        /* [n_layer][layer_bytes], equal to the device's copy */
    uint8_t *fresh;   /* [layer_bytes] a layer's new entry, until it is compared with `table` */
    uint8_t *reach;   /* [n_layer][n_expert] moe_expert_reach */
    uint8_t *results; /* results of the last pass: the device's bytes from taken_at on */
    moe_slot_offer *offers;   /* [n_offers] slots that the pass may fill; they are the last of the
                               * spares */
    moe_expert_spare *spares; /* [MOE_MOST_OFFERS] equal to the device's, but for `used` */
    moe_spare_range *ranges;  /* [n_layer] for each domain (layers that share slots), its spares */
    moe_kept_expert *kept;    /* [MOE_MOST_OFFERS] the experts that the pass kept in one layer */
    uint32_t n_offers;
    bool offered;     /* the store offered at least half of the slots asked for */
    uint64_t version; /* the store's version when the table was made */
    bool has_version;
    bool was_in_place;
} moe_recorded_table;

/* Returns the bytes of device memory that a table takes. Of the field affinity, it only matters
 * whether it is NULL. */
uint64_t moe_recorded_table_bytes(const moe_model_config *config,
                                  const moe_recorded_table_options *options);
/* Opens a table, which must be closed also after a failure. config must outlive it. */
int moe_recorded_table_open(moe_recorded_table *table, moe_device *device,
                            const moe_model_config *config,
                            const moe_recorded_table_options *options, moe_error *err);
void moe_recorded_table_close(moe_recorded_table *table, moe_device *device);

/* The settings of a refresh. */
typedef struct moe_recorded_reach {
    const moe_speculation *confined; /* the speculation whose drafts use the table
                                      * (moe_draft_residents()); or NULL */
    bool may_change;                 /* the experts that drafts may use can change without a change
                                      * of the store */
    bool in_place;  /* experts in host memory count as resident, if the device can read them there
                     */
    uint32_t first; /* the first layer that is needed */
    uint32_t n_offers; /* how many slots to offer (with `keeps`) */
    bool early;        /* also offers slots of later layers, after the others */
} moe_recorded_reach;

/* Brings changed layers up to date, in one copy. */
int moe_recorded_table_refresh(moe_recorded_table *table, moe_runner *runner,
                               const moe_recorded_reach *by, moe_error *err);
/* Returns where the device can read the layer's experts since the last refresh: [n_expert] of
 * moe_expert_reach, in host memory. */
const uint8_t *moe_recorded_table_reach(const moe_recorded_table *table, uint32_t layer);
/* Returns the experts that the last pass has kept in a layer; *n: their number. Makes the same
 * changes to the table that the device has made. Call once for each layer, in their order; settle()
 * says that all have been noted. */
const moe_kept_expert *moe_recorded_table_take_kept(moe_recorded_table *table, moe_runner *runner,
                                                    uint32_t layer, uint32_t *n);
void moe_recorded_table_settle(moe_recorded_table *table);
/* Call after a failed pass: it is unknown which experts the pass has kept in slots. */
void moe_recorded_table_forget(moe_recorded_table *table, moe_runner *runner);
/* Returns which experts of the layer were resident at the last refresh: [n_expert], in host
 * memory. */
const bool *moe_recorded_table_residents(const moe_recorded_table *table, uint32_t layer);
/* Restores the inputs (x and norm) of the layer that stopped the pass. */
int moe_recorded_table_restore(const moe_recorded_table *table, moe_runner *runner, moe_error *err);
/* Writes the layer's places on the device into the job, and those of its lists into *substitution.
 * first: the layer with which the recording begins. */
void moe_recorded_table_fill(const moe_recorded_table *table, const moe_runner *runner,
                             uint32_t layer, uint32_t first, moe_resident_experts *job,
                             moe_substitution *substitution);
/* download() copies the last pass's results to the host; results() returns a layer's place in them.
 */
int moe_recorded_table_download(moe_recorded_table *table, moe_device *device, moe_error *err);
moe_recorded_results moe_recorded_table_results(const moe_recorded_table *table, uint32_t layer);

#endif
