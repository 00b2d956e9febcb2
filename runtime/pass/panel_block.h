/* SPDX-License-Identifier: MIT */
/* A block: many rows of a panel (pass.h), which go through a layer expert by expert: first the
 * mixers and the routing of all of their chunks; then each expert once, over all of its rows, in
 * ascending order of the experts' numbers; then, for each chunk, what follows the experts' sum. A
 * row's sum is always taken in this order, so a few slots are enough for any number of experts: an
 * expert that is in memory stays until it has been computed, and then gives up its slot. For each
 * row the block keeps the sum, and also the experts' input unless that is just the norm of the
 * row's residual stream. */
#ifndef MOE_PASS_PANEL_BLOCK_H
#define MOE_PASS_PANEL_BLOCK_H

#include "cpu/kernels/vector_ops.h"
#include "offload/layer_plan.h"
#include "runtime/pass/pass.h"

struct moe_panel_block {
    uint32_t first, n_rows; /* of the panel: the rows that the block holds */
    uint32_t max_rows;
    /* The next pointers, down to `chosen`, point into one allocation, `memory`. */
    float *inputs; /* [max_rows][n_expert_in]; NULL: inputs are the norm of x */
    float *sums;   /* [max_rows][n_expert_in]: sums over the experts served so far */
    float *tile_x; /* [rows of a pass][n_expert_in]: inputs that are brought to an expert */
    float *tile_out;
    float *weights;   /* [max_rows][n_expert_used] */
    uint32_t *chosen; /* [max_rows][n_expert_used] */
    void *memory;     /* NULL: the block is closed */
    size_t bytes;
    moe_layer_plan plan; /* of all rows of the block, once they are routed */
    bool is_planned;
    uint32_t n_served;      /* how many of the plan's experts, in its order, have been computed */
    uint32_t n_begun;       /* pairs of the next expert that its rows' sums already have */
    bool *elsewhere;        /* [n_expert], by the plan's entries: a hook computes the expert */
    moe_expert_view *views; /* [n_expert]: of the experts that are being served */
    bool *has_come;         /* [n_expert]: whether each of them has arrived */
    uint32_t *asked;        /* [n_expert]: those of them that are requested from the store ... */
    uint32_t *asked_at;     /* [n_expert] ... and where they stand among those being served */
    moe_vector_kernels vector;
};

/* Bytes that a block of n_rows rows takes, besides what passes of `chunk` rows take. */
uint64_t moe_panel_block_bytes(const moe_program *program, uint32_t n_rows, uint32_t chunk);
int moe_panel_block_open(moe_panel_block *block, const moe_program *program, uint32_t n_rows,
                         uint32_t chunk, moe_error *err);
void moe_panel_block_close(moe_panel_block *block);
/* Begins a block with rows first .. first + n_rows - 1 of a panel. n_rows: at most max_rows. */
void moe_panel_block_begin(moe_panel_block *block, uint32_t first, uint32_t n_rows);
/* Whether all experts have been served. */
bool moe_panel_block_is_served(const moe_panel_block *block);

/* Keeps the inputs, choices and weights of the pass's rows, which are a chunk of the block. */
int moe_panel_block_keep(moe_runner *runner, const moe_pass *pass, moe_error *err);
/* Computes the next experts of the plan: about as many as a chunk's rows would keep busy. */
int moe_panel_block_serve(moe_runner *runner, const moe_pass *pass, moe_error *err);
/* Fetches the inputs of the plan's pairs listed in `pairs` to x ([n][n_expert_in], on the host).
 * n: at most a pass's rows. Overwrites the pass's rows. */
int moe_panel_block_inputs(moe_runner *runner, const moe_pass *pass, const uint32_t *pairs,
                           uint32_t n, float *x, moe_error *err);
/* Copies the sums of the pass's rows to the buffer where a plain pass leaves the experts' sum. */
int moe_panel_block_bring(moe_runner *runner, const moe_pass *pass, moe_error *err);

#endif
