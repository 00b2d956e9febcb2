/* SPDX-License-Identifier: MIT */
/* A table of n-grams: which of its rows the tokens of a pass read, and what these rows add to the
 * streams.
 *
 * Each position's token is stored beside its keys and values. A row reads the tokens before it from
 * there, so it gets those of its own timeline, fork, or branch of a token tree. */
#include "runtime/pass/op_ngrams.h"

#include <string.h>

#include "cpu/kernels/matmul_reference.h"
#include "runtime/base/error.h"
#include "runtime/base/finite_blocks.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/program_run.h"
#include "runtime/pass/runner.h"

#define ROWS_AT_A_TIME 16u

static int32_t *token_at(const moe_runner *runner, const moe_kv_row *row, uint32_t stored)
{
    const moe_kv_layout *layout = moe_kv_side(runner->kv, runner->config->ngrams.layer);
    uint8_t *page = row->pages[moe_kv_entry(layout, stored / MOE_KV_PAGE)];
    return (int32_t *)(void *)(page + layout->k_offset +
                               (size_t)(stored % MOE_KV_PAGE) * layout->k_row_bytes);
}

/* Finds the rows of the table that a row of a pass reads. */
static void rows_of(const moe_runner *runner, const moe_kv_row *row, uint64_t *rows)
{
    const moe_ngram_table *t = &runner->config->ngrams;
    int32_t last[MOE_MAX_NGRAM];
    for (uint32_t n = 0; n < t->ngram_size; n++) {
        last[n] = n > row->position
                      ? t->end_token
                      : *token_at(runner, row, moe_kv_row_stored(row, row->position - n));
    }
    moe_ngram_rows(t, last, rows);
}

void moe_ngrams_begin(const moe_runner *runner, const moe_pass *pass)
{
    const moe_ngram_table *t = &runner->config->ngrams;
    uint64_t rows[ROWS_AT_A_TIME * MOE_MAX_TABLE_HEADS];
    if (t->ngram_size == 0 || (pass->panel != NULL && pass->panel->layer > t->layer)) {
        return;
    }
    MOE_ASSERT((runner->device->features & MOE_DEVICE_READABLE) != 0);
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        *token_at(runner, &pass->kv_rows[r], pass->kv_rows[r].stored) = pass->tokens[r];
    }
    for (uint32_t first = 0, n; first < pass->n_rows; first += n) {
        n = pass->n_rows - first < ROWS_AT_A_TIME ? pass->n_rows - first : ROWS_AT_A_TIME;
        for (uint32_t r = 0; r < n; r++) {
            rows_of(runner, &pass->kv_rows[first + r], rows + (size_t)r * t->n_heads);
        }
        moe_row_table_want(runner->ngrams, rows, (size_t)n * t->n_heads);
    }
}

void moe_ngrams_foresee(const moe_runner *runner, const int32_t *tokens, uint32_t first,
                        uint32_t end)
{
    const moe_ngram_table *t = &runner->config->ngrams;
    uint64_t rows[MOE_MAX_TABLE_HEADS];
    int32_t last[MOE_MAX_NGRAM];
    for (uint32_t p = first; p < end && t->ngram_size > 0; p++) {
        for (uint32_t n = 0; n < t->ngram_size; n++) {
            last[n] = n > p ? t->end_token : tokens[p - n];
        }
        moe_ngram_rows(t, last, rows);
        moe_row_table_want(runner->ngrams, rows, t->n_heads);
    }
}

int moe_op_look_up(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_runner *runner = run->runner;
    const moe_pass *pass = run->pass;
    const moe_ngram_table *t = &runner->config->ngrams;
    const moe_dtype type = runner->ngrams_type;
    const moe_dequantize_fn dequantize = moe_dequantize_of(type);
    moe_finite_scan scan;
    float *out = runner->buffers.values[op->y.value];
    uint64_t rows[MOE_MAX_TABLE_HEADS];
    MOE_TRY(runner->device->ops->sync(runner->device, err));
    for (uint32_t r = 0; r < run->n_rows; r++) {
        rows_of(runner, &pass->kv_rows[r], rows);
        for (uint32_t h = 0; h < t->n_heads; h++, out += t->row_dim) {
            const uint8_t *bytes;
            MOE_TRY(moe_row_table_take(runner->ngrams, rows[h], &bytes, pass->is_cancelled,
                                       pass->cancel_user, err));
            moe_finite_scan_begin(&scan, type, t->row_dim);
            moe_finite_scan_bytes(&scan, bytes, moe_dtype_row_bytes(type, t->row_dim));
            dequantize(bytes, out, t->row_dim);
            if (!scan.finite) {
                return moe_fail(err, MOE_ERR_FORMAT,
                                "row %llu of tensor '" MOE_NGRAM_TENSOR
                                "' has a value that is not finite: the file is damaged",
                                (unsigned long long)rows[h]);
            }
        }
    }
    return MOE_OK;
}

int moe_op_match(const moe_run *run, const moe_op *op, moe_error *err)
{
    float *const *values = run->runner->buffers.values;
    const moe_stream_match match = {.keys = values[op->x.value],
                                    .queries = values[op->z.value],
                                    .values = values[op->u.match.value],
                                    .n_streams = op->each,
                                    .n = op->n};
    return run->runner->device->ops->stream_match(run->runner->device, &match, run->n_rows, err);
}

int moe_op_ngram_convolve(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_ngram_table *t = &run->runner->config->ngrams;
    const moe_short_conv conv = {.n = op->n,
                                 .conv_kernel = t->conv_kernel,
                                 .step = t->ngram_size,
                                 .conv = moe_op_weight(run, op->tensor)->data,
                                 .silu = true,
                                 .sequences = run->sequences,
                                 .n_sequences = run->n_sequences};
    return run->runner->device->ops->short_conv(run->runner->device, &conv, err);
}
