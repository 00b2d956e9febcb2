/* SPDX-License-Identifier: MIT */
/* Compressed keys, which stand beside the keys of a window (DeepSeek-V4). A block of `rate`
 * positions has one key, which is also its value:
 *
 *    key of block i = rope(norm(sum over its positions p of w[p] * k[p])), w = softmax over p of
 *                     (gate[p] + place[p % rate]), element by element, rope by position i * rate
 *
 * At rate 4 each position has two series of k and gate. The sum then runs over the first series of
 * the previous block's positions, followed by the second series of the block's own positions.
 *
 * A position stores its k and gates behind its own key, in pages that are freed behind the window
 * (moe_kv_pool.layers). The row that ends a block stores the block's key in pages that cover all
 * positions (moe_kv_pool.beside). So a key depends on positions alone, and not on chunks or drafts.
 * An indexer stores keys of its own behind the compressed keys, by the same rule.
 *
 * A row attends first to the keys of whole blocks up to its own position, or to those of the chosen
 * blocks, then to the positions of its window. Together they form one path, as if they were a
 * timeline (moe_kv_row.path).
 *
 * Each block has one place for its key. Siblings in a token tree may end the same block, so token
 * trees are refused. */
#ifndef MOE_PASS_COMPRESSED_KEYS_H
#define MOE_PASS_COMPRESSED_KEYS_H

#include "runtime/pass/program_run.h"

/* The row number of a block's key in the layer's layout `beside`, for this row of the pass; and the
 * key's address. */
uint32_t moe_block_row(const moe_kv_row *row, uint32_t rate, uint32_t block);
uint8_t *moe_block_key(const moe_kv_layout *layout, const moe_kv_row *row, uint32_t rate,
                       uint32_t block);
/* Makes *rows what the rows of the pass attend to. They are valid until the next call. */
int moe_compressed_rows(const moe_run *run, const moe_op *op, const moe_kv_row **rows,
                        moe_error *err);

#endif
