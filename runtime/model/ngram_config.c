/* SPDX-License-Identifier: MIT */
/* Reads which rows of a table of n-grams a token chooses. */
#include <inttypes.h>

#include "runtime/base/error.h"
#include "runtime/model/config_reader.h"

static void read_list(moe_config_reader *r, const char *suffix, uint32_t n, int64_t least,
                      int64_t *values)
{
    if (!moe_config_require(r, suffix)) {
        return;
    }
    const moe_gguf_kv *list = moe_config_find(r, suffix);
    for (uint32_t i = 0; i < n && r->status == MOE_OK; i++) {
        if (list->type != MOE_GGUF_ARRAY || moe_gguf_array_i64(list, i, &values[i]) != MOE_OK ||
            values[i] < least) {
            r->status = moe_fail(r->err, MOE_ERR_FORMAT,
                                 "key '%s' is not a list of %" PRIu32 " numbers from %" PRId64,
                                 r->key, n, least);
        }
    }
}

static void read_layer(moe_config_reader *r, const moe_model_config *config, moe_ngram_table *t)
{
    const moe_gguf_kv *layers = moe_config_find(r, "ple.layers");
    int64_t layer = -1;
    if (layers == NULL || layers->type != MOE_GGUF_ARRAY || layers->n_elements != 1 ||
        moe_gguf_array_i64(layers, 0, &layer) != MOE_OK || layer < 0 || layer >= config->n_layer) {
        r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                             "key '%s' is not a list of one layer; supported is one table", r->key);
    }
    t->layer = (uint32_t)layer;
}

void moe_config_read_ngrams(moe_config_reader *r, moe_model_config *config)
{
    moe_ngram_table *t = &config->ngrams;
    if ((r->family->keys & MOE_KEY_NGRAMS) == 0 || !moe_config_has(r, "ple.layers")) {
        return;
    }
    read_layer(r, config, t);
    t->ngram_size = moe_config_size(r, "ple.ngram_size", 2, MOE_MAX_NGRAM);
    t->heads_per_ngram = moe_config_size(r, "ple.heads_per_ngram", 1, MOE_MAX_TABLE_HEADS);
    t->conv_kernel = moe_config_size(r, "ple.conv_kernel", 2, MOE_RECURRENCE_MAX_KERNEL);
    t->row_dim =
        moe_config_size(r, "embedding_length_per_layer_input", 1, MOE_CONFIG_MAX_DIMENSION);
    t->end_token = (int32_t)moe_config_size(r, "ple.eos_token_id", 0, config->n_vocab - 1);
    t->n_heads = (t->ngram_size - 1) * t->heads_per_ngram;
    if (r->status == MOE_OK && t->n_heads > MOE_MAX_TABLE_HEADS) {
        r->status =
            moe_fail(r->err, MOE_ERR_UNSUPPORTED, "a table of %" PRIu32 " heads; supported are %u",
                     t->n_heads, MOE_MAX_TABLE_HEADS);
    }
    if (r->status != MOE_OK) {
        return;
    }
    read_list(r, "ple.layer_multipliers", t->ngram_size, 0, t->multipliers);
    read_list(r, "ple.head_offsets", t->n_heads, 0, t->first_rows);
    read_list(r, "ple.head_vocab_sizes", t->n_heads, 1, t->head_rows);
    for (uint32_t h = 0; h < t->n_heads && r->status == MOE_OK; h++) {
        if (t->first_rows[h] > INT64_MAX / 2 || t->head_rows[h] > INT64_MAX / 2) {
            r->status =
                moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' is not a number of rows", r->key);
            return;
        }
        const int64_t end = t->first_rows[h] + t->head_rows[h];
        t->n_rows = end > t->n_rows ? end : t->n_rows;
    }
}

void moe_ngram_rows(const moe_ngram_table *t, const int32_t *last, uint64_t *rows)
{
    uint64_t mixed = (uint64_t)last[0] * (uint64_t)t->multipliers[0];
    bool ended = false;
    for (uint32_t n = 1; n < t->ngram_size; n++) {
        ended = ended || last[n] == t->end_token;
        mixed ^= (uint64_t)(ended ? t->end_token : last[n]) * (uint64_t)t->multipliers[n];
        for (uint32_t i = 0; i < t->heads_per_ngram; i++) {
            const uint32_t h = (n - 1) * t->heads_per_ngram + i;
            const int64_t row = (int64_t)mixed % t->head_rows[h];
            rows[h] = (uint64_t)(t->first_rows[h] + (row < 0 ? row + t->head_rows[h] : row));
        }
    }
}
