/* SPDX-License-Identifier: MIT */
/* Keeps some rows of a table of n-grams in memory; the table stays on disk. */
#include "runtime/engine/engine_parts.h"
#include "runtime/pass/op_ngrams.h"

/* The fewest rows that are kept: for Qwen3.8-Flash-Next the rows of some 4,000 tokens, 7 MiB. */
#define LEAST_SLOTS 65536u

/* Room for the rows of at least two passes, so that no row is overwritten before its pass takes
 * it. */
static uint32_t n_slots(const moe_engine *engine, const moe_engine_options *o)
{
    if (o->lab->row_slots > 0) {
        return o->lab->row_slots < UINT32_MAX ? (uint32_t)o->lab->row_slots : UINT32_MAX;
    }
    const uint32_t least = 2 * engine->prefill_chunk * engine->config.ngrams.n_heads;
    return least > LEAST_SLOTS ? least : LEAST_SLOTS;
}

uint64_t moe_engine_ngram_bytes(const moe_engine *engine, const moe_engine_options *o)
{
    const moe_tensor_ref *tensor = &engine->map.ngrams;
    return tensor->size > 0 ? moe_row_table_bytes(tensor, n_slots(engine, o)) : 0;
}

void moe_engine_count_rows(const moe_engine *engine, moe_engine_stats *stats)
{
    moe_row_table_stats rows = {0};
    if (engine->runner.ngrams != NULL) {
        moe_row_table_get_stats(engine->runner.ngrams, &rows);
    }
    stats->rows_taken = rows.n_taken;
    stats->rows_waited = rows.n_waited;
    stats->rows_wait_ns = rows.wait_ns;
    stats->rows_read = rows.n_read;
    stats->rows_bytes_disk = rows.bytes_read;
    stats->rows_failed = rows.n_failed;
}

int moe_engine_open_ngrams(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    const moe_tensor_ref *tensor = &engine->map.ngrams;
    const moe_row_table_options options = {.gguf = engine->gguf,
                                           .copies = (const moe_gguf *const *)engine->copies,
                                           .n_copies = engine->n_copies,
                                           .tensor = tensor,
                                           .name = MOE_NGRAM_TENSOR,
                                           .n_slots = n_slots(engine, o),
                                           .io = o->io,
                                           .buffered_io = o->buffered_io,
                                           .io_timeout_ns = (uint64_t)(o->io_timeout * 1e9),
                                           .log = o->log,
                                           .user = o->user};
    engine->runner.ngrams_type = tensor->type;
    return tensor->size > 0 ? moe_row_table_open(&engine->runner.ngrams, &options, err) : MOE_OK;
}
