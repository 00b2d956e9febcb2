/* SPDX-License-Identifier: MIT */
/* Runs a model's program (runtime/program/program.h). Passes, drafts, drafting layers, recordings
 * and searches all compute layers in this one way. Each kind of operation has one body; the values
 * that it reads and writes are in buffers->values. program.h draws a layer, with the places first,
 * mixed, rest, summed and end in its list of operations. */
#ifndef MOE_PASS_PROGRAM_RUN_H
#define MOE_PASS_PROGRAM_RUN_H

#include "runtime/pass/pass.h"
#include "runtime/program/program.h"

/* The rows and layer for which the operations of a span are carried out. */
struct moe_run {
    moe_runner *runner;
    const moe_pass *pass; /* NULL if no operation of the span reads it */
    uint32_t layer;       /* the layer whose operations are run */
    uint32_t n_rows;
    const uint32_t *rows; /* for SELECT: [n_rows] the rows that it selects */
    const float *mixed;   /* for COMBINE: the weights in device memory; NULL: the host's weights */
    /* For the operations behind STATES: the sequences whose tokens they compute. */
    const moe_delta_sequence *sequences;
    uint32_t n_sequences;
};

/* Whether the device computes some layer's attention by an arithmetic of its own
 * (moe_device_ops.own_attention). */
bool moe_has_own_attention(const moe_runner *runner);

/* Carries out operations in their order; fused operations in one call, where the device can. */
int moe_program_run(const moe_run *run, moe_span span, moe_error *err);

/* ---- Layers ---- */

/* Run a layer in two parts. The front goes up to `rest`, the place where the host needs the
 * router's logits; the part from `rest` on may be empty. Each part reads x of the buffers and adds
 * to it. */
int moe_layer_front(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err);
int moe_layer_rest(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err);
/* Runs a layer from `mixed` to its end. Call it when the layer's mixer (attention or a recurrent
 * rule) has been computed, as when a recording stopped in this layer. The recording may have run
 * the operations from `mixed` to `rest`, too; they are run again, because they are cheap. */
int moe_layer_network(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err);
/* Runs the operations before the layers and, for a drafting layer, those that join its inputs. */
int moe_program_front(moe_runner *runner, const moe_pass *pass, moe_error *err);
/* Computes what the model's head reads of n rows of the residual stream, up to MOE_LOGIT_ROWS, to
 * y. x: room for these rows of a single stream; several streams have their own. Both are on the
 * device. */
int moe_program_last_norm(moe_runner *runner, const uint32_t *rows, float *x, float *y, uint32_t n,
                          moe_error *err);
/* Copies n_rows rows of the stream's width from host memory to the input of the layer's routed
 * experts, projected if the layer projects it. */
int moe_bring_experts_x(moe_runner *runner, uint32_t layer, const float *x, uint32_t n_rows,
                        moe_error *err);
/* Queues the router of `layer` ahead of its turn: on the residual stream of the layer before. */
int moe_program_router_ahead(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err);
/* Advances a layer's states from run->from over the first n_rows rows of run->log, and writes them
 * to run->to (moe_state_run). Does nothing in layers without states. */
int moe_advance_states(moe_runner *runner, const moe_state_run *run, uint32_t layer,
                       moe_error *err);

/* ---- Bodies ---- */

/* The functions with which a runner carries out operations. */
extern const moe_op_body moe_op_bodies[MOE_OPS];

/* The weight that stands for a tensor of the operation; its data is NULL if the model lacks it. */
const moe_weight *moe_op_weight(const moe_run *run, int tensor);

int moe_op_embed(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_norm(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_linear(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_head_linear(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_rope(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_clamp(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_scale(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_soft_cap(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_add(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_copy(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_read(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_write(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_gate(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_select(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_network(const moe_run *run, const moe_op *op, moe_error *err);
/* Fused operations. op: the first of those that are fused. */
int moe_op_add_norm(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_heads(const moe_run *run, const moe_op *op, moe_error *err);
/* op_attention.c, compressed_keys.c, position_index.c */
int moe_op_kv_store(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_compress(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_pool(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_choose(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_attend(const moe_run *run, const moe_op *op, moe_error *err);
/* op_states.c */
int moe_op_states(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_convolve(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_delta_rule(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_state_space(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_channel_rule(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_scan(const moe_run *run, const moe_op *op, moe_error *err);
/* op_ngrams.c */
int moe_op_look_up(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_match(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_ngram_convolve(const moe_run *run, const moe_op *op, moe_error *err);
/* op_experts.c */
int moe_op_route(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_experts(const moe_run *run, const moe_op *op, moe_error *err);
int moe_op_combine(const moe_run *run, const moe_op *op, moe_error *err);
moe_combine moe_op_combine_of(const moe_run *run, const moe_op *op);
/* If router weights scale the experts' inputs, fills in these scales for the rows of buffers->plan,
 * and the weights that the outputs still need. */
void moe_place_weights(moe_runner *runner, uint32_t layer, uint32_t n_rows);

#endif
