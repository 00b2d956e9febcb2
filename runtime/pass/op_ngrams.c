/* SPDX-License-Identifier: MIT */
/* A table of n-grams: which of its rows the tokens of a pass read, and what these rows add to the
 * streams.
 *
 * Each position's token is stored beside its keys and values, in the device's memory. A row reads
 * the tokens before it from there, so it gets those of its own timeline, fork, or branch of a token
 * tree. Tokens of the same pass are not fetched. */
#include "runtime/pass/op_ngrams.h"

#include <string.h>

#include "cpu/kernels/matmul_reference.h"
#include "runtime/base/error.h"
#include "runtime/base/finite_blocks.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/program_run.h"
#include "runtime/pass/runner.h"

/* Finds the token that is n positions before a row's. */
static int token_before(const moe_runner *runner, const moe_pass *pass, uint32_t r, uint32_t n,
                        int32_t *token, moe_error *err)
{
    const moe_kv_layout *layout = moe_kv_side(runner->kv, runner->config->ngrams.layer);
    const moe_kv_row *row = &pass->kv_rows[r];
    const uint32_t stored = moe_kv_row_stored(row, row->position - n);
    /* In a timeline, the row before has the position before. */
    if (n <= r && pass->kv_rows[r - n].pages == row->pages &&
        pass->kv_rows[r - n].stored == stored) {
        *token = pass->tokens[r - n];
        return MOE_OK;
    }
    const uint8_t *page = row->pages[moe_kv_entry(layout, stored / MOE_KV_PAGE)];
    return runner->device->ops->download(runner->device, token,
                                         page + layout->k_offset +
                                             (size_t)(stored % MOE_KV_PAGE) * layout->k_row_bytes,
                                         sizeof *token, err);
}

/* Finds the rows of the table that a row of a pass reads. */
static int rows_of(const moe_runner *runner, const moe_pass *pass, uint32_t r, uint64_t *rows,
                   moe_error *err)
{
    const moe_ngram_table *t = &runner->config->ngrams;
    int32_t last[MOE_MAX_NGRAM];
    for (uint32_t n = 0; n < t->ngram_size; n++) {
        last[n] = t->end_token;
        if (n <= pass->kv_rows[r].position) {
            MOE_TRY(token_before(runner, pass, r, n, &last[n], err));
        }
    }
    moe_ngram_rows(t, last, rows);
    return MOE_OK;
}

/* Stores the rows' tokens: as keys of one float each, whose bits are the tokens'. */
static int store_tokens(const moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const moe_kv_layout *layout = moe_kv_side(runner->kv, runner->config->ngrams.layer);
    const moe_device_ops *ops = runner->device->ops;
    float *tokens = runner->buffers.values[MOE_VALUE_NGRAM_ROWS];
    MOE_ASSERT(layout->k_dim == 1 && layout->type == MOE_KV_F32);
    MOE_TRY(ops->upload(runner->device, tokens, pass->tokens, pass->n_rows * sizeof *pass->tokens,
                        err));
    return ops->kv_store(runner->device, layout, pass->kv_rows, pass->n_rows, tokens, 1, tokens, 1,
                         err);
}

int moe_ngrams_begin(const moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const moe_ngram_table *t = &runner->config->ngrams;
    uint64_t rows[MOE_NGRAM_ROWS_AT_A_TIME * MOE_MAX_TABLE_HEADS];
    if (t->ngram_size == 0 || (pass->panel != NULL && pass->panel->layer > t->layer)) {
        return MOE_OK;
    }
    MOE_TRY(store_tokens(runner, pass, err));
    for (uint32_t first = 0, n; first < pass->n_rows; first += n) {
        n = pass->n_rows - first < MOE_NGRAM_ROWS_AT_A_TIME ? pass->n_rows - first
                                                            : MOE_NGRAM_ROWS_AT_A_TIME;
        for (uint32_t r = 0; r < n; r++) {
            MOE_TRY(rows_of(runner, pass, first + r, rows + (size_t)r * t->n_heads, err));
        }
        moe_row_table_want(runner->ngrams, rows, (size_t)n * t->n_heads);
    }
    return MOE_OK;
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

/* Decodes the rows of the table that one row of a pass reads. */
static int look_up_row(const moe_run *run, uint32_t r, float *out, moe_error *err)
{
    const moe_runner *runner = run->runner;
    const moe_pass *pass = run->pass;
    const moe_ngram_table *t = &runner->config->ngrams;
    const moe_dtype type = runner->ngrams_type;
    const moe_dequantize_fn dequantize = moe_dequantize_of(type);
    moe_finite_scan scan;
    uint64_t rows[MOE_MAX_TABLE_HEADS];
    MOE_TRY(rows_of(runner, pass, r, rows, err));
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
    return MOE_OK;
}

int moe_op_look_up(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_runner *runner = run->runner;
    const size_t n_floats = moe_ngram_floats(&runner->config->ngrams);
    float *host = runner->buffers.ngram_host, *out = runner->buffers.values[op->y.value];
    for (uint32_t first = 0, n; first < run->n_rows; first += n) {
        n = run->n_rows - first < MOE_NGRAM_ROWS_AT_A_TIME ? run->n_rows - first
                                                           : MOE_NGRAM_ROWS_AT_A_TIME;
        for (uint32_t r = 0; r < n; r++) {
            MOE_TRY(look_up_row(run, first + r, host + r * n_floats, err));
        }
        MOE_TRY(runner->device->ops->upload(runner->device, out + first * n_floats, host,
                                            n * n_floats * sizeof *host, err));
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
