/* SPDX-License-Identifier: MIT */
/* Compressed keys beside those of a window (DeepSeek-V4). A block of `rate` positions has one key,
 * which is its value, too:
 *
 *    key of block i = rope(norm(sum over its positions p of w[p] * k[p])), w = softmax over p of
 *                     (gate[p] + place[p % rate]), element by element, rope by position i * rate
 *
 * At rate 4 positions have two series of k and gate. The sum is over the second series of the
 * block's own positions, and the first series of those of the block before, which come first.
 *
 * Positions store k and gates behind their own keys, in pages that are freed behind the window
 * (moe_kv_pool.layers). The row that ends a block stores its key in pages of all positions
 * (moe_kv_pool.beside), so a key depends on positions alone, and not on chunks or drafts. An
 * indexer has keys of its own behind these, by the same rule.
 *
 * A row attends first to the keys of whole blocks up to its own position, or to the chosen ones,
 * then to the positions of its window, as if they were a timeline of their own (moe_kv_row.path).
 *
 * A block has one place, so token trees, whose siblings may end the same block, are refused. */
#ifndef MOE_PASS_COMPRESSED_KEYS_H
#define MOE_PASS_COMPRESSED_KEYS_H

#include "runtime/pass/program_run.h"

/* Where a row finds the key of a block: the number of its row in the layer's layout `beside`, and
 * its address. */
uint32_t moe_block_row(const moe_kv_row *row, uint32_t rate, uint32_t block);
uint8_t *moe_block_key(const moe_kv_layout *layout, const moe_kv_row *row, uint32_t rate,
                       uint32_t block);
/* Makes *rows what the rows of the pass attend to. They are valid until the next call. */
int moe_compressed_rows(const moe_run *run, const moe_op *op, const moe_kv_row **rows,
                        moe_error *err);

#endif
