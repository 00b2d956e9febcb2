/* SPDX-License-Identifier: MIT */
/* The inputs and results, in the device's memory, of a pass that the device carries out alone:
 *
 *    | where each expert's parts are, [n_expert] | which are resident, [n_expert] |  x n_layer
 *    | slots that the pass may fill, and which of them the next one is, and what has been put there
 * | | missing picks, picks, weights | probabilities, edited choices (with substitutes) | | whether
 * a layer has stopped the pass, and the x and norm that it began with  | | affinities, or lists of
 * substitutes |
 *
 * The second line and the fourth exist for passes that the host may go on with, the last one if
 * stand-ins are looked up. */
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
    const moe_lossy *substitutes; /* whose lists the table holds; or NULL */
    uint32_t longest_list;        /* ... the longest of them; 0: there are none */
    bool stops;                   /* the host may go on from a layer that misses an expert */
    bool keeps;        /* it stops, and may keep what it reads in host memory; changes no size */
    uint32_t max_rows; /* of a pass; 1 unless it stops */
} moe_recorded_table_options;

/* The results of a pass: places on the host, or on the device. */
typedef struct moe_recorded_results {
    uint32_t *picks;   /* [n_rows][n_used] the routers' */
    float *weights;    /* [n_rows][n_used] likewise */
    uint32_t *missing; /* number of picks of all rows that nothing could serve */
    float *probs;      /* [n_expert] of one row, or NULL without substitutes */
    uint32_t *chosen;  /* [n_used] of the same row: the experts that served the ranks */
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
    uint32_t n_rows;          /* of the pass that runs: set by its owner, 1 at first */
    uint32_t longest_list;    /* of substitutes; 0: none */
    uint8_t *table;           /* [n_layer][layer_bytes], equal to the device's copy */
    uint8_t *fresh;           /* of one layer */
    uint8_t *reach;           /* [n_layer][n_expert] moe_expert_reach */
    uint8_t *results;         /* of the last pass; from taken_at on */
    moe_slot_offer *offers;   /* [n_offers] what the pass may fill: the last of the spares */
    moe_expert_spare *spares; /* [MOE_MOST_OFFERS] equal to the device's, but for `used` */
    moe_spare_range *ranges;  /* [n_layer], of domains */
    moe_kept_expert *kept;    /* [MOE_MOST_OFFERS] of one layer */
    uint32_t n_offers;
    bool offered;     /* at least half of what was asked for */
    uint64_t version; /* the store's, when the table was made */
    bool has_version;
    bool was_in_place;
} moe_recorded_table;

/* Bytes of the device's memory. Only whether affinity is NULL matters. */
uint64_t moe_recorded_table_bytes(const moe_model_config *config,
                                  const moe_recorded_table_options *options);
/* After a failure it must be closed, too. config must outlive it. */
int moe_recorded_table_open(moe_recorded_table *table, moe_device *device,
                            const moe_model_config *config,
                            const moe_recorded_table_options *options, moe_error *err);
void moe_recorded_table_close(moe_recorded_table *table, moe_device *device);

/* What a refresh depends on. */
typedef struct moe_recorded_reach {
    const moe_speculation *confined; /* whose drafts use the table, by moe_draft_residents(); or
                                      * NULL */
    bool may_change;                 /* what it lets drafts use may change without the store */
    bool in_place;  /* experts in host memory count as resident, if the device can read them there
                     */
    uint32_t first; /* layers before are not needed */
    uint32_t n_offers; /* how many slots to offer, of a table that keeps; */
    bool early;        /* also of layers to come, after the others */
} moe_recorded_reach;

/* Brings changed layers up to date, in one copy. */
int moe_recorded_table_refresh(moe_recorded_table *table, moe_runner *runner,
                               const moe_recorded_reach *by, moe_error *err);
/* Where the device can read the layer's experts since the last refresh (moe_expert_reach); host,
 * [n_expert]. */
const uint8_t *moe_recorded_table_reach(const moe_recorded_table *table, uint32_t layer);
/* Returns the experts that the last pass has kept in a layer; *n: their number. Makes the same
 * changes to the table that the device has made. Call once for each layer, in their order; settle()
 * says that all have been noted. */
const moe_kept_expert *moe_recorded_table_take_kept(moe_recorded_table *table, moe_runner *runner,
                                                    uint32_t layer, uint32_t *n);
void moe_recorded_table_settle(moe_recorded_table *table);
/* Call after a pass that has failed: it is unknown what the pass kept. */
void moe_recorded_table_forget(moe_recorded_table *table, moe_runner *runner);
/* Which experts of the layer were resident at the last refresh; host, [n_expert]. */
const bool *moe_recorded_table_residents(const moe_recorded_table *table, uint32_t layer);
/* Restores the x and norm with which the layer began that stopped the pass. */
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
