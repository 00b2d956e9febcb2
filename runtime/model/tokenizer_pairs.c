/* SPDX-License-Identifier: MIT */
/* BPE's list of merges: a hash table from a pair of tokens to the rank and the merged token. */
#include "runtime/model/tokenizer_state.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

static size_t merge_slot(const moe_tokenizer *tokenizer, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key *= 0x9E3779B97F4A7C15u;
    return (size_t)(key ^ key >> 32) & tokenizer->merge_mask;
}

uint32_t moe_bpe_pair_rank(const moe_tokenizer *tokenizer, const char *word, const moe_symbol *left,
                           const moe_symbol *right, int32_t *merged)
{
    (void)word;
    if (left->id == MOE_NO_TOKEN || right->id == MOE_NO_TOKEN) {
        return MOE_NO_RANK;
    }
    for (size_t at = merge_slot(tokenizer, left->id, right->id);;
         at = (at + 1) & tokenizer->merge_mask) {
        const moe_merge_entry *entry = &tokenizer->merges[at];
        if (entry->left == left->id && entry->right == right->id) {
            *merged = entry->merged;
            return entry->rank;
        }
        if (entry->left == MOE_NO_TOKEN) {
            return MOE_NO_RANK;
        }
    }
}

static void add_merge(moe_tokenizer *tokenizer, moe_merge_entry entry)
{
    size_t at = merge_slot(tokenizer, entry.left, entry.right);
    while (tokenizer->merges[at].left != MOE_NO_TOKEN) {
        if (tokenizer->merges[at].left == entry.left &&
            tokenizer->merges[at].right == entry.right) {
            return; /* the list names the pair twice: the first merge counts */
        }
        at = (at + 1) & tokenizer->merge_mask;
    }
    tokenizer->merges[at] = entry;
}

/* Reads a merge, "left right"; at most one of the two tokens may contain a space. */
static int read_merge(moe_tokenizer *tokenizer, moe_string_view line, uint32_t rank, moe_error *err)
{
    const char *space = line.size > 1 ? memchr(line.data + 1, ' ', line.size - 1) : NULL;
    if (space == NULL || line.size > 2 * MOE_TOKEN_MAX_BYTES) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "tokenizer.ggml.merges[%u] is not two tokens with a space between", rank);
    }
    char buffer[512];
    char *bytes = line.size <= sizeof buffer ? buffer : malloc(line.size);
    if (bytes == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the merges");
    }
    size_t left_size;
    size_t right_size;
    size_t at = (size_t)(space - line.data);
    bool (*decode)(const char *, size_t, char *, size_t *) =
        tokenizer->by_characters ? moe_spaces_decode : moe_byte_level_decode;
    bool spelt = decode(line.data, at, bytes, &left_size);
    spelt = decode(space + 1, line.size - at - 1, bytes + left_size, &right_size) && spelt;
    int status = MOE_OK;
    /* No word has a character outside the byte-level alphabet, so such a pair never occurs. */
    if (spelt) {
        const moe_vocab *vocab = &tokenizer->vocab;
        moe_merge_entry entry = {
            .left = moe_vocab_find(vocab, bytes, left_size),
            .right = moe_vocab_find(vocab, bytes + left_size, right_size),
            .rank = rank,
            .merged = moe_vocab_find(vocab, bytes, left_size + right_size),
        };
        bool known = entry.left != MOE_NO_TOKEN && entry.right != MOE_NO_TOKEN &&
                     entry.merged != MOE_NO_TOKEN;
        /* BPE of characters may list merges that give control tokens; these are skipped, because no
         * text may become a control token. */
        if (!known && !tokenizer->by_characters) {
            status = moe_fail(err, MOE_ERR_FORMAT,
                              "tokenizer.ggml.merges[%u] (\"%.*s\") names a token that the "
                              "vocabulary does not have",
                              rank, (int)(line.size < 80 ? line.size : 80), line.data);
        } else if (known) {
            add_merge(tokenizer, entry);
        }
    }
    if (bytes != buffer) {
        free(bytes);
    }
    return status;
}

int moe_bpe_read_merges(moe_tokenizer *tokenizer, const moe_gguf *gguf, moe_error *err)
{
    const moe_gguf_kv *kv = moe_gguf_find(gguf, "tokenizer.ggml.merges");
    if (kv == NULL || kv->type != MOE_GGUF_ARRAY || kv->n_elements > MOE_TOKENS_MAX ||
        (kv->n_elements > 0 && kv->element_type != MOE_GGUF_STRING)) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "tokenizer.ggml.merges must be an array of at most %u strings",
                        MOE_TOKENS_MAX);
    }
    size_t n_slots = 64;
    while (n_slots < kv->n_elements * 2) {
        n_slots *= 2;
    }
    tokenizer->merges = moe_calloc(n_slots, sizeof *tokenizer->merges);
    if (tokenizer->merges == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the merges");
    }
    tokenizer->merge_mask = n_slots - 1;
    for (size_t i = 0; i < n_slots; i++) {
        tokenizer->merges[i].left = MOE_NO_TOKEN;
    }
    for (uint64_t i = 0; i < kv->n_elements; i++) {
        MOE_TRY(read_merge(tokenizer, kv->value.strings[i], (uint32_t)i, err));
    }
    return MOE_OK;
}
