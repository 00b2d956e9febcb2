/* SPDX-License-Identifier: MIT */
/* Reads what a model's indexers choose: positions, pools or blocks of them, compressed keys. */
#include <inttypes.h>
#include <stdio.h>

#include "runtime/base/error.h"
#include "runtime/model/config_reader.h"
#include "runtime/model/tensor_claims.h"

/* MiniMax-M3's numbers, where a file without indexers states none. */
#define DEFAULT_BLOCKS 16u
#define DEFAULT_BLOCK  128u

/* All rows see the last positions that do not yet fill a pool. */
static void read_pool(moe_config_reader *r, moe_model_config *config)
{
    static const char *const tails[] = {"attention.indexer.kpool_select_tail",
                                        "attention.indexer.kpool_always_select_tail"};
    config->index_pool = moe_config_size(r, "attention.indexer.kpool", 2, MOE_MAX_INDEX_POOL);
    if (r->status == MOE_OK && config->index_top_k % config->index_pool != 0) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT,
                             "key '%s' (%" PRIu32 ") does not divide top_k (%" PRIu32 ")", r->key,
                             config->index_pool, config->index_top_k);
    }
    for (int i = 0; i < 2 && r->status == MOE_OK; i++) {
        if (!moe_config_bool(r, tails[i], true) && r->status == MOE_OK) {
            r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                                 "key '%s' is false; supported are rows that see the last "
                                 "positions",
                                 r->key);
        }
    }
}

/* Pools with mean keys: all layers with attention have the same pools. */
static void read_mean_pool(moe_config_reader *r, moe_model_config *config)
{
    config->index_means = true;
    if (moe_config_require(r, "attention.compress_ratios")) {
        config->index_pool = moe_config_most_u32(r, "attention.compress_ratios", 0);
    }
    if (r->status == MOE_OK && (config->index_pool < 2 || config->index_pool > MOE_MAX_INDEX_POOL ||
                                config->index_top_k % config->index_pool != 0)) {
        r->status =
            moe_fail(r->err, MOE_ERR_FORMAT,
                     "key '%s' has %" PRIu32 ", not 2 to %u that divide top_k (%" PRIu32 ")",
                     r->key, config->index_pool, MOE_MAX_INDEX_POOL, config->index_top_k);
    }
}

bool moe_config_has_indexer(const moe_config_reader *r, const moe_model_config *config,
                            uint32_t layer)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%" PRIu32 ".%s", layer,
             moe_tensor_name(config, MOE_LAYER_INDEX_K));
    return moe_gguf_find_tensor(r->gguf, name) != NULL;
}

/* Blocks: each group of heads chooses its own; the last blocks are always among them. */
static void read_blocks(moe_config_reader *r, moe_model_config *config)
{
    const uint32_t blocks = moe_config_size(r, "attention.indexer.top_k", 1, MOE_MAX_INDEX_BLOCKS);
    const uint32_t block =
        moe_config_size(r, "attention.indexer.block_size", 2, MOE_MAX_INDEX_BLOCK);
    config->index_local = moe_config_size(r, "attention.indexer.local_blocks", 1,
                                          blocks > 0 ? blocks : MOE_MAX_INDEX_BLOCKS);
    config->index_block = block;
    config->index_top_k = blocks * block;
    if (r->status == MOE_OK && config->n_head_kv % config->index_heads != 0) {
        r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                             "key '%s.attention.indexer.head_count' (%" PRIu32
                             ") does not divide head_count_kv (%" PRIu32
                             "): each head of an indexer chooses for a group of heads",
                             r->family->architecture, config->index_heads, config->n_head_kv);
    }
}

/* Whether the file has what the model's indexers need. If it does not, the model attends to all
 * positions. In families that choose blocks, all layers with experts have indexers; without them
 * the text changes as soon as there are more positions than would be chosen. Families with pools or
 * compressed keys always have indexers, but not in every layer. */
static bool has_indexers(moe_config_reader *r, moe_model_config *config)
{
    if ((r->family->keys & (MOE_KEY_POOLED_INDEX | MOE_KEY_MEAN_INDEX)) != 0 ||
        config->attention == MOE_ATTENTION_SHARED) {
        return true;
    }
    if ((r->family->keys & MOE_KEY_BLOCK_INDEX) == 0) {
        return moe_config_has_indexer(r, config, 0);
    }
    bool has = false;
    for (uint32_t l = 0; l < config->n_layer && l < MOE_MAX_LAYERS; l++) {
        has = has || moe_config_has_indexer(r, config, l);
    }
    if (!has) {
        const uint64_t n = (uint64_t)moe_config_u32(r, "attention.indexer.top_k", DEFAULT_BLOCKS) *
                           moe_config_u32(r, "attention.indexer.block_size", DEFAULT_BLOCK);
        config->index_missing = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
    }
    return has;
}

void moe_config_read_indexer(moe_config_reader *r, moe_model_config *config)
{
    const unsigned keys = r->family->keys;
    const bool compressed = config->attention == MOE_ATTENTION_SHARED;
    config->index_pool = 1;
    config->index_rate = compressed ? MOE_INDEXED_RATE : 0;
    if (r->status != MOE_OK || (keys & MOE_KEY_INDEXER) == 0 || !has_indexers(r, config)) {
        return;
    }
    config->index_heads =
        moe_config_size(r, "attention.indexer.head_count", 1, MOE_MAX_INDEX_HEADS);
    config->index_dim =
        moe_config_size(r, "attention.indexer.key_length", config->n_rot > 0 ? config->n_rot : 1,
                        MOE_CONFIG_MAX_DIMENSION / MOE_MAX_INDEX_HEADS);
    if ((keys & MOE_KEY_BLOCK_INDEX) != 0) {
        read_blocks(r, config);
        return;
    }
    config->index_top_k = moe_config_size(r, "attention.indexer.top_k", 1, MOE_CONFIG_MAX_CONTEXT);
    if ((keys & MOE_KEY_MEAN_INDEX) != 0) {
        read_mean_pool(r, config);
    } else if ((keys & MOE_KEY_POOLED_INDEX) != 0) {
        read_pool(r, config);
    }
    if (r->status == MOE_OK && config->q_lora_rank == 0 && !config->index_means) {
        r->status =
            moe_fail(r->err, MOE_ERR_FORMAT,
                     "key '%s.attention.q_lora_rank' is missing, but the file has indexers, "
                     "which read queries of that width",
                     r->family->architecture);
    }
}
