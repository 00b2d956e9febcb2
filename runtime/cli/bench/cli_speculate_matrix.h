/* SPDX-License-Identifier: MIT */
/* Runs configurations of speculation on the same prompts, for every cache size and batch. Runs are
 * interleaved, and every configuration that keeps the text must write the tokens of the first, the
 * baseline, or the run fails. Used by bench speculate and its suite. */
#ifndef CLI_SPECULATE_MATRIX_H
#define CLI_SPECULATE_MATRIX_H

#include "cli_speculate_decode.h"

/* Reads the options, which must outlive the matrix. Call cli_speculate_close() in any case. Exit
 * codes. */
int cli_speculate_open(cli_speculate_matrix *matrix, const cli_options *options);
int cli_speculate_run(cli_speculate_matrix *matrix);
const cli_speculate_outcome *cli_speculate_outcome_of(const cli_speculate_matrix *matrix,
                                                      size_t cache, size_t batch, size_t config);
/* Returns the first configuration's modelled cost of a token divided by this one's; NaN: costs are
 * not modelled. */
double cli_speculate_gain(const cli_speculate_outcome *first, const cli_speculate_outcome *outcome);
void cli_speculate_close(cli_speculate_matrix *matrix);

#endif
