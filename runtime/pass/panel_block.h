/* SPDX-License-Identifier: MIT */
/* Rows of a panel that go through a layer expert by expert: first the mixers and the routing of all
 * of their chunks, then each expert once over all of its rows, in ascending order of the experts'
 * numbers, then for each chunk what follows the experts' sum. Since a row's sum is taken in this
 * order, experts may pass through a few slots, whatever the layer has: those in memory stay until
 * it is their turn, and then give up their slots. Of a row is kept the sum, and what its experts
 * read, if that is more than the norm of the row's stream. */
#ifndef MOE_PASS_PANEL_BLOCK_H
#define MOE_PASS_PANEL_BLOCK_H

#include "cpu/kernels/vector_ops.h"
#include "offload/layer_plan.h"
#include "runtime/pass/pass.h"

struct moe_panel_block {
    uint32_t first, n_rows; /* of the panel */
    uint32_t max_rows;
    /* Of one mapping: */
    float *inputs; /* [max_rows][n_expert_in]; NULL: they are the norm of x */
    float *sums;   /* likewise: of the experts that have been served */
    float *tile_x; /* [rows of a pass][n_expert_in]: rows on their way to an expert, */
    float *tile_out;
    float *weights;   /* [max_rows][n_expert_used] */
    uint32_t *chosen; /* likewise */
    void *memory;     /* NULL: the block is closed */
    size_t bytes;
    moe_layer_plan plan; /* of all rows, once they are routed */
    bool is_planned;
    uint32_t n_served;      /* of the plan's experts, the first ones */
    moe_expert_view *views; /* [n_expert]: of those that are served now, */
    bool *has_come;         /* and which have arrived */
    moe_vector_kernels vector;
};

/* What a block of so many rows takes, beside passes of chunk rows. */
uint64_t moe_panel_block_bytes(const moe_program *program, uint32_t n_rows, uint32_t chunk);
int moe_panel_block_open(moe_panel_block *block, const moe_program *program, uint32_t n_rows,
                         uint32_t chunk, moe_error *err);
void moe_panel_block_close(moe_panel_block *block);
/* Begins with rows first .. first + n_rows - 1 of a panel, at most max_rows. */
void moe_panel_block_begin(moe_panel_block *block, uint32_t first, uint32_t n_rows);
/* Whether all experts have been served. */
bool moe_panel_block_is_served(const moe_panel_block *block);

/* Keeps what the pass's rows, which are a chunk of the block, have brought to their experts. */
int moe_panel_block_keep(moe_runner *runner, const moe_pass *pass, moe_error *err);
/* Serves the next experts: about as many as a chunk's rows would keep busy. */
int moe_panel_block_serve(moe_runner *runner, const moe_pass *pass, moe_error *err);
/* Brings the sums of the pass's rows back to the buffers, where their combination would be. */
int moe_panel_block_bring(moe_runner *runner, const moe_pass *pass, moe_error *err);

#endif
