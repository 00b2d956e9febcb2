/* SPDX-License-Identifier: MIT */
/* Attention to chosen positions (DeepSeek-V3.2's sparse attention). A layer's indexer has a key for
 * each position, which is stored behind the layer's own key, and queries for each row. It scores
 *
 *    score(row, position) = sum over heads of weight[head] * relu(query[head] . key(position))
 *
 * and the row attends to the index_top_k positions with the highest scores, of equal ones to the
 * lowest. A row that sees no more positions than that attends to all of them, and its indexer's
 * queries are not computed.
 *
 * Where keys are pooled (GLM-5.3-Flash), a whole pool of positions has one key, a sum of theirs by
 * the softmax of their gates, which are stored behind their keys. The row that ends a pool computes
 * it, and stores it in place of its own gate. A row attends to the positions of the best pools, and
 * to those behind the last whole pool.
 *
 * Where blocks are chosen (MiniMax-M3), each head of the indexer chooses for a group of the layer's
 * heads: the row's last blocks, and of the others those with the highest product of the head's
 * query and a key.
 *
 * Chosen positions are a path (moe_kv_row): attention adds up the chosen positions in ascending
 * order as if they were a timeline of their own. */
#ifndef MOE_PASS_POSITION_INDEX_H
#define MOE_PASS_POSITION_INDEX_H

#include "runtime/pass/pass.h"

/* Sets rows and chosen positions of attention in a layer with an indexer, its own or that of an
 * earlier layer, for a group of its heads (moe_choosing_groups()). They are valid until the pass
 * ends. */
void moe_index_chosen(const moe_runner *runner, const moe_pass *pass, uint32_t group,
                      moe_attention *attention);
/* [rows][moe_most_chosen()] The positions that the last layer with an indexer chose for the rows of
 * a pass. fetch() copies them from the buffers to `chosen`; bring() copies them back, for the
 * layers behind. */
int moe_index_bring(moe_runner *runner, const moe_pass *pass, const uint32_t *chosen,
                    moe_error *err);
int moe_index_fetch(moe_runner *runner, const moe_pass *pass, uint32_t *chosen, moe_error *err);
/* The most positions of a timeline among which the device can choose. */
uint64_t moe_index_most_positions(const moe_device *device, const moe_model_config *config);

#endif
