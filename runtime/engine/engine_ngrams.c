/* SPDX-License-Identifier: MIT */
/* The rows of a table of n-grams that are kept in memory. */
#include "runtime/engine/engine_parts.h"
#include "runtime/pass/op_ngrams.h"

/* Rows that are kept at least: some 4,000 tokens' of Qwen3.8-Flash-Next, in 7 MiB. */
#define LEAST_SLOTS 65536u

/* Two passes' rows at least, so that a pass's own are not overwritten before it takes them. */
static uint32_t n_slots(const moe_engine *engine)
{
    const uint32_t least = 2 * engine->prefill_chunk * engine->config.ngrams.n_heads;
    return least > LEAST_SLOTS ? least : LEAST_SLOTS;
}

uint64_t moe_engine_ngram_bytes(const moe_engine *engine)
{
    const moe_tensor_ref *tensor = &engine->map.ngrams;
    return tensor->size > 0 ? moe_row_table_bytes(tensor, n_slots(engine)) : 0;
}

int moe_engine_open_ngrams(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    const moe_tensor_ref *tensor = &engine->map.ngrams;
    const moe_row_table_options options = {.gguf = engine->gguf,
                                           .tensor = tensor,
                                           .name = MOE_NGRAM_TENSOR,
                                           .n_slots = n_slots(engine),
                                           .io = o->io,
                                           .buffered_io = o->buffered_io,
                                           .io_timeout_ns = (uint64_t)(o->io_timeout * 1e9),
                                           .log = o->log,
                                           .user = o->user};
    engine->runner.ngrams_type = tensor->type;
    return tensor->size > 0 ? moe_row_table_open(&engine->runner.ngrams, &options, err) : MOE_OK;
}
