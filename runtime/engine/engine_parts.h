/* SPDX-License-Identifier: MIT */
/* Declares the steps of opening an engine, and further functions that the engine's files share.
 * Each comment begins with the file that has the function. */
#ifndef MOE_ENGINE_PARTS_H
#define MOE_ENGINE_PARTS_H

#include <moe/workers.h>

#include "runtime/engine/engine_state.h"

/* ---- Opening. The functions are called in this order; moe_engine_close() undoes each of them.
 * ---- */

/* engine_options.c */
int moe_engine_check_options(const moe_engine_options *options, unsigned *cpu_features,
                             moe_error *err);
/* engine_reading.c: how the engine's files are read. */
int moe_engine_check_timeout(const moe_engine_options *options, moe_error *err);
void moe_engine_set_reading(moe_engine *engine, const moe_engine_options *options);
/* engine_open.c: opens everything that the model's file determines, except weights. */
int moe_engine_open_model(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* text_api.c, called by open_model: sets the model's name, and opens tokenizer and chat template,
 * both of which the file may lack. */
int moe_engine_open_texts(moe_engine *engine, moe_error *err);
/* engine_sidecar.c */
int moe_engine_open_sidecar(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* engine_sidecar.c, for open_memory: loads the known checksums. */
int moe_engine_open_book(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* engine_sidecar.c, when all is open: starts the thread that makes the missing checksums. */
int moe_engine_make_checksums(moe_engine *engine, const moe_engine_options *options,
                              moe_error *err);
/* engine_sidecar.c: decides, by the options and the calibration, whether free slots are filled
 * ahead of demand, and sets engine->warms. Fails with MOE_ERR_ARGUMENT if the option is on but
 * cannot have an effect. */
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
/* engine_ngrams.c: returns how much memory the rows of a table of n-grams take, in bytes; 0: the
 * model has no such table. */
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
/* engine_low_bit.c: adds the cost of low-bit copies to the statistics. */
void moe_engine_count_low_bit(const moe_engine *engine, moe_engine_stats *stats);
/* engine_open.c: computes engine->plan. */
int moe_engine_plan(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* engine_open.c: allocates the memory that the plan counts. */
int moe_engine_open_memory(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* engine_runner.c, called by open_memory: the first computes the rotary frequencies for the
 * engine's context; the second adds the hooks of drafts, lossy modes, observers and recorded
 * passes. */
int moe_engine_open_frequencies(moe_engine *engine, moe_error *err);
int moe_engine_attach_hooks(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* engine_workers.c, called by open_memory: connects to the workers that the options name, if any.
 */
/* Opens the model's header alone, for what needs no memory plan. */
int moe_engine_open_header(moe_engine **out, const moe_engine_options *options, moe_error *err);
int moe_engine_open_workers(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* The same over this wire, which the engine then owns. pause_ns: the wait before a worker that is
 * away is tried again; 0: 1 s. */
int moe_engine_join_workers(moe_engine *engine, const moe_engine_options *options, moe_wire *wire,
                            uint64_t pause_ns, moe_error *err);
/* engine_workers.c: moe_worker_serve() over a wire that listens. */
int moe_engine_serve_wire(moe_engine *engine, const moe_worker_options *options, moe_wire *wire,
                          moe_error *err);
/* engine_workers.c: returns how much host memory the workers' connections take. */
uint64_t moe_engine_worker_bytes(const moe_engine *engine, const moe_engine_options *options);
void moe_engine_count_workers(const moe_engine *engine, moe_engine_stats *stats);
/* engine_sidecar.c, called by open_memory: loads all experts if they fit the memory of a device
 * that replays whole passes. */
int moe_engine_fill(moe_engine *engine, const moe_engine_options *options, moe_error *err);

/* Whether experts stay in memory after use, so that a device may replay passes with the experts
 * that it has. */
static inline bool moe_engine_keeps_experts(const moe_engine *engine)
{
    return engine->offload == MOE_OFFLOAD_AUTO || engine->offload == MOE_OFFLOAD_CACHING;
}

/* engine_open.c, called instead of open_memory if the engine is only planned: checks that the
 * cache policy, speculation and lossy modes could be opened, although no memory is allocated. */
int moe_engine_check_parts(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* text_api.c, called instead of all others if only the vocabulary is wanted: opens the tokenizer
 * and the chat template. */
int moe_engine_open_vocabulary(moe_engine *engine, const moe_engine_options *options,
                               moe_error *err);

/* ---- An opened engine ---- */

/* engine_users.c: every object that points into an engine holds it. When the last hold is
 * released, the engine is freed. */
void moe_engine_hold(const moe_engine *engine);
void moe_engine_release(const moe_engine *engine);
/* text_api.c: fails with MOE_ERR_UNSUPPORTED if the model's file has no tokenizer. */
int moe_engine_need_tokenizer(const moe_engine *engine, moe_error *err);
/* text_api.c: fails with MOE_ERR_UNSUPPORTED if only the vocabulary was opened. what: names, in the
 * message, the function that needs a model. */
int moe_engine_need_model(const moe_engine *engine, const char *what, moe_error *err);

#endif
