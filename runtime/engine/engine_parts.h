/* SPDX-License-Identifier: MIT */
/* The parts of opening an engine, and the functions that the engine's other files call. Each names
 * its file. */
#ifndef MOE_ENGINE_PARTS_H
#define MOE_ENGINE_PARTS_H

#include "runtime/engine/engine_state.h"

/* ---- Opening: in this order, each part undone by moe_engine_close() ---- */

/* engine_options.c */
int moe_engine_check_options(const moe_engine_options *options, unsigned *cpu_features,
                             moe_error *err);
/* engine_reading.c: how the engine's files are read. */
int moe_engine_check_timeout(const moe_engine_options *options, moe_error *err);
void moe_engine_set_reading(moe_engine *engine, const moe_engine_options *options);
/* engine_open.c: everything from the file except weights. */
int moe_engine_open_model(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* text_api.c, for open_model: name, tokenizer, chat template. The file may lack tokenizer and
 * template. */
int moe_engine_open_texts(moe_engine *engine, moe_error *err);
/* engine_sidecar.c */
int moe_engine_open_sidecar(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* engine_sidecar.c, for open_memory: loads the known checksums. */
int moe_engine_open_book(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* engine_sidecar.c, when all is open: starts the thread that makes the missing checksums. */
int moe_engine_make_checksums(moe_engine *engine, const moe_engine_options *options,
                              moe_error *err);
/* engine_sidecar.c: decides by the options and the calibration whether to fill slots ahead; sets
 * engine->warms. MOE_ERR_ARGUMENT when the option is set and cannot act. */
int moe_engine_open_warm_start(moe_engine *engine, const moe_engine_options *options,
                               moe_error *err);
/* engine_sidecar.c, after the plan: sets engine->reads_all. */
void moe_engine_choose_reads(moe_engine *engine, const moe_engine_options *options);
/* engine_open.c: opens the device with its threads and kernels; allocates no memory yet. */
int moe_engine_open_device(moe_engine *engine, const moe_engine_options *options,
                           unsigned cpu_features, moe_error *err);
/* engine_head.c: open_head() opens the drafting layer that the options ask for, if any; load_head()
 * loads it, for open_memory. */
int moe_engine_open_head(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* Bytes that rows of a table of n-grams take in memory; 0: the model has none. */
uint64_t moe_engine_ngram_bytes(const moe_engine *engine, const moe_engine_options *o);
void moe_engine_count_rows(const moe_engine *engine, moe_engine_stats *stats);
int moe_engine_open_ngrams(moe_engine *engine, const moe_engine_options *o, moe_error *err);
int moe_engine_load_head(moe_engine *engine, moe_error *err);
/* engine_low_bit.c: open_low_bit() opens the file of low-bit copies that the options ask for, if
 * any; open_low_bit_store() allocates their slots, for open_memory. */
int moe_engine_open_low_bit(moe_engine *engine, const moe_engine_options *options, moe_error *err);
int moe_engine_open_low_bit_store(moe_engine *engine, const moe_engine_options *options,
                                  moe_error *err);
void moe_engine_close_low_bit(moe_engine *engine);
/* Adds the costs of low-bit copies to the statistics. */
void moe_engine_count_low_bit(const moe_engine *engine, moe_engine_stats *stats);
/* engine_open.c: computes engine->plan. */
int moe_engine_plan(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* engine_open.c: allocates the memory that the plan counts. */
int moe_engine_open_memory(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* engine_runner.c, for open_memory: the rotary frequencies of the context that the engine has; then
 * the hooks of drafts, lossy modes, observers and recorded passes. */
int moe_engine_open_frequencies(moe_engine *engine, moe_error *err);
int moe_engine_attach_hooks(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* engine_sidecar.c, for open_memory: if all experts fit the memory of a device that replays passes,
 * loads them all. */
int moe_engine_fill(moe_engine *engine, const moe_engine_options *options, moe_error *err);

/* True if experts stay after use, so a device may replay passes with those that it has. */
static inline bool moe_engine_keeps_experts(const moe_engine *engine)
{
    return engine->offload == MOE_OFFLOAD_AUTO || engine->offload == MOE_OFFLOAD_CACHING;
}

/* engine_open.c, instead of open_memory if the engine is only planned: checks that the parts which
 * opening would find by name or which need a calibration are available: cache policy, speculation,
 * lossy modes. */
int moe_engine_check_parts(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* text_api.c, instead of all the others: opens the tokenizer and the chat template alone. */
int moe_engine_open_vocabulary(moe_engine *engine, const moe_engine_options *options,
                               moe_error *err);

/* ---- An opened engine ---- */

/* engine_users.c: each object that points into an engine holds it; releasing the last hold frees
 * it. */
void moe_engine_hold(const moe_engine *engine);
void moe_engine_release(const moe_engine *engine);
/* text_api.c: MOE_ERR_UNSUPPORTED if the model's file has no tokenizer. */
int moe_engine_need_tokenizer(const moe_engine *engine, moe_error *err);
/* text_api.c: MOE_ERR_UNSUPPORTED, naming what needs a model, if only the vocabulary was opened. */
int moe_engine_need_model(const moe_engine *engine, const char *what, moe_error *err);

#endif
