/* SPDX-License-Identifier: MIT */
/* Writes a trace as JSON lines while a model runs. For each row the caller calls begin_row(), and
 * then add_list() for each of the n_layer layers in order (with an empty list if a layer has no
 * experts). */
#ifndef MOE_CACHE_TRACE_WRITER_H
#define MOE_CACHE_TRACE_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/status.h>

typedef struct moe_trace_writer moe_trace_writer;

/* Opens the file. whole false: each row is in the file as soon as it has been written. whole true:
 * the file appears under its name, in place of an older one, only when it is closed and everything
 * has been written. */
int moe_trace_writer_open(moe_trace_writer **out, const char *path, uint32_t n_layer,
                          uint32_t n_expert, bool has_gates, bool whole, moe_error *err);
/* Begins a row. `pass` never falls; consecutive rows with the same number belong to one pass. */
int moe_trace_writer_begin_row(moe_trace_writer *writer, uint64_t pass, uint64_t token,
                               uint32_t sequence, moe_error *err);
/* Adds the experts of the row's next layer. gates: the router's probabilities of these experts,
 * or NULL in a trace without gates. */
void moe_trace_writer_add_list(moe_trace_writer *writer, const uint16_t *ids, const float *gates,
                               uint32_t n);
/* Adds a forecast that was made before the row's pass, for the pass `passes_ahead` later. Call it
 * with the first row of a pass. */
void moe_trace_writer_add_forecast(moe_trace_writer *writer, uint32_t passes_ahead, uint32_t layer,
                                   uint32_t expert, float chance);
/* Ends the row and passes all rows to the operating system, so that a write error is reported
 * now. */
int moe_trace_writer_flush(moe_trace_writer *writer, moe_error *err);
/* Closes the file and reports any error since it was opened. Always sets the handle to NULL. */
int moe_trace_writer_close(moe_trace_writer **writer, moe_error *err);

#endif
