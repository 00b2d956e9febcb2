/* SPDX-License-Identifier: MIT */
/* The results of bench speculate for a configuration: statistics summed over runs, as cells of a
 * row. */
#ifndef CLI_SPECULATE_ROWS_H
#define CLI_SPECULATE_ROWS_H

#include <moe/moe.h>

#include "cli_bench_table.h"

/* Adds the counts between two moments of one engine. */
void cli_speculate_add_stats(moe_engine_stats *sum, const moe_engine_stats *before,
                             const moe_engine_stats *after);
/* Adds cells for this many emitted tokens in this many seconds. */
void cli_speculate_add_cells(cli_bench_table *table, const moe_engine_stats *stats, double tokens,
                             double seconds);

/* The numbers of layers and draft positions that have results. */
typedef struct cli_speculate_extent {
    size_t n_layers, n_positions;
} cli_speculate_extent;
void cli_speculate_widen(cli_speculate_extent *extent, const moe_speculation_stats *stats);
/* Recall of foresight, in percent: "layer_0"..., "position_0".... The first function names its
 * cells foreseen_..., and leaves them out of the table for people. */
void cli_speculate_add_recall(cli_bench_table *table, const moe_speculation_stats *stats,
                              const cli_speculate_extent *extent);
void cli_speculate_add_recall_cells(cli_bench_table *table, const moe_speculation_stats *stats,
                                    const cli_speculate_extent *extent);

#endif
