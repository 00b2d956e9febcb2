/* SPDX-License-Identifier: MIT */
/* Shared by the files of the tokenizer.
 *
 * All work is done on the bytes of the text. Vocabularies use two other spellings (byte-level BPE's
 * alphabet of 256 printable characters, SentencePiece's U+2581 for a space). These are undone once,
 * when the vocabulary is read, so that a token's piece serves both for lookup while encoding and as
 * output while decoding.
 *
 *  text --specials--> segments --normalise, split--> words --merge--> token ids
 *       (tokenizer_encode.c)     (pretokenizer_split.c)            (tokenizer_merge.c)
 *
 * SentencePiece and BPE of characters (tokenizer_characters.c) have no pattern for words; they cut
 * at spaces, if no token crosses the border between a word and a space behind it.
 */
#ifndef MOE_MODEL_TOKENIZER_STATE_H
#define MOE_MODEL_TOKENIZER_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/model/pretokenizer_json.h"
#include "runtime/model/pretokenizers.h"
#include "runtime/model/tokenizer.h"

enum {
    MOE_TOKEN_NORMAL = 1,
    MOE_TOKEN_UNKNOWN = 2,
    MOE_TOKEN_CONTROL = 3,
    MOE_TOKEN_USER_DEFINED = 4,
    MOE_TOKEN_UNUSED = 5,
    MOE_TOKEN_BYTE = 6
};

#define MOE_TOKEN_MAX_BYTES 65535
#define MOE_TOKENS_MAX      (1u << 24)
#define MOE_NO_RANK         UINT32_MAX

typedef struct moe_vocab_slot {
    uint32_t tag; /* upper half of the hash of the piece */
    int32_t id;   /* MOE_NO_TOKEN: free */
} moe_vocab_slot;

/* Tokens that are searched for in the text itself, sorted by their bytes. */
typedef struct moe_special_set {
    int32_t *ids;
    size_t n;
    bool starts[256]; /* whether a token begins with this byte */
} moe_special_set;

typedef struct moe_vocab {
    uint32_t n_tokens;
    uint8_t *types;
    char *pieces;    /* one after another */
    size_t *offsets; /* [n_tokens + 1]: where each token's piece begins */
    size_t max_size; /* of the longest piece */

    /* Finds the pieces that merging may build: never control, unknown or byte tokens. */
    moe_vocab_slot *slots;
    size_t slot_mask;

    moe_special_set user_defined;
    moe_special_set all_special; /* user-defined, control and unknown tokens */
} moe_vocab;

typedef struct moe_merge_entry {
    int32_t left, right; /* left == MOE_NO_TOKEN: free */
    uint32_t rank;
    int32_t merged;
} moe_merge_entry;

struct moe_tokenizer {
    moe_vocab vocab;
    bool is_spm;
    bool by_characters; /* BPE that merges characters, not bytes */
    int32_t bos, eos, eot, eom, unknown, padding;
    uint8_t *ends; /* [n_tokens]: whether the token ends a generation */
    bool add_bos, add_eos, add_space_prefix;

    /* The tokens of single bytes. Byte-level BPE merges them; the other kinds spell unknown
     * characters with them. */
    int32_t byte_ids[256];

    /* BPE */
    const moe_pretokenizer *pretokenizer;
    moe_pretokenizer_json *own_pretokenizer; /* the file's own, if its name is not in the table */
    moe_pretokenizer_code *code;
    moe_merge_entry *merges;
    size_t merge_mask;

    /* SPM */
    uint32_t *ranks; /* [n_tokens]: rank by falling score; equal scores share a rank */

    /* SPM and BPE of characters: in no piece does a space follow another character. */
    bool words_are_apart;
};

/* --- tokenizer_vocab.c ---------------------------------------------------------------------- */

typedef enum moe_spelling {
    MOE_SPELT_IN_BYTES, /* byte-level BPE's alphabet */
    MOE_SPELT_BY_SPM,   /* SentencePiece: U+2581 for a space, byte tokens "<0xNN>" */
    /* BPE of characters: the same, but byte tokens have the type of ordinary tokens, and runs of
     * spaces may have the user-defined type. */
    MOE_SPELT_IN_CHARACTERS
} moe_spelling;

/* Reads .tokens and .token_type. Stores each piece as it stands in text, with the file's spelling
 * undone. */
int moe_vocab_create(moe_vocab *vocab, const moe_gguf *gguf, moe_spelling spelling, moe_error *err);
void moe_vocab_destroy(moe_vocab *vocab);

static inline moe_string_view moe_vocab_piece(const moe_vocab *vocab, int32_t id)
{
    moe_string_view piece = {vocab->pieces + vocab->offsets[id],
                             vocab->offsets[id + 1] - vocab->offsets[id]};
    return piece;
}

/* The ordinary token with this piece, or MOE_NO_TOKEN. */
int32_t moe_vocab_find(const moe_vocab *vocab, const char *piece, size_t size);
/* The longest special token that text starts with, or MOE_NO_TOKEN. */
int32_t moe_special_match(const moe_vocab *vocab, const moe_special_set *set, const char *text,
                          size_t size);
/* Copies the set, without tokens that are known markup, and without tokens that look like markup
 * and occur in `source`. Release out->ids with free(). */
bool moe_special_set_without(const moe_vocab *vocab, const moe_special_set *set,
                             moe_string_view source, moe_special_set *out);
/* Whether in no piece a space follows another character: then words can be merged one by one. */
bool moe_vocab_words_are_apart(const moe_vocab *vocab);
/* Undoes SentencePiece's spelling of spaces; out has room for `size` bytes. False if the text has a
 * plain space: such a token never matches text. */
bool moe_spaces_decode(const char *text, size_t size, char *out, size_t *out_size);
/* Undoes the byte-level alphabet. out has room for size bytes. If a character is not in the
 * alphabet, out is a copy of the text and the result is false. */
bool moe_byte_level_decode(const char *text, size_t size, char *out, size_t *out_size);

/* --- tokenizer_merge.c ---------------------------------------------------------------------- */

typedef struct moe_symbol {
    uint32_t start, size; /* the symbol's bytes in the word; size 0: merged into another symbol */
    int32_t prev, next;   /* -1 at the ends */
    int32_t id;           /* MOE_NO_TOKEN: no token yet */
} moe_symbol;

typedef struct moe_merge_candidate {
    uint32_t rank, left; /* of merging the symbol at `left` with the next one */
} moe_merge_candidate;

typedef struct moe_word_entry {
    uint64_t hash;
    uint32_t start, size; /* the word's bytes in the segment; size 0: free */
    uint32_t first, n;    /* where its ids are in the output, and how many */
} moe_word_entry;

#define MOE_WORD_CACHE_SIZE 8192

/* Everything that one call of encode owns. */
typedef struct moe_encoder {
    const moe_tokenizer *tokenizer;
    moe_allowance *allowance; /* NULL: no limit */
    uint64_t bytes_before;    /* what the allowance had given out before this call */
    moe_error *err;
    int32_t *tokens;
    size_t n_tokens, capacity;
    moe_symbol *symbols;
    size_t symbol_capacity;
    moe_merge_candidate *heap;
    size_t n_heap, heap_capacity;
    moe_split_lists splits;
    /* The words of this segment seen so far: a repeated word costs one lookup. NULL for short
     * texts. */
    moe_word_entry *words;
    moe_pretokenizer_scratch *scratch;
} moe_encoder;

int moe_encoder_push(moe_encoder *encoder, int32_t token);
/* Makes room for n symbols. */
int moe_encoder_reserve_symbols(moe_encoder *encoder, size_t n);
/* Returns the error for too little memory, or too small an allowance. */
int moe_encoder_out_of_memory(moe_encoder *encoder);

/* Returns the rank of merging two neighbours, and the merged token; MOE_NO_RANK if they do not
 * merge. */
typedef uint32_t (*moe_pair_rank)(const moe_tokenizer *tokenizer, const char *word,
                                  const moe_symbol *left, const moe_symbol *right, int32_t *merged);

/* Merges neighbours, lowest rank first and leftmost among equals, until none can be merged. The
 * symbols are linked from index 0. O(n log n). */
int moe_merge_symbols(moe_encoder *encoder, const char *word, size_t n, moe_pair_rank pair_rank);

/* Encodes a word, or reuses the ids of an equal word seen earlier in the segment. */
typedef int (*moe_word_encode)(moe_encoder *encoder, const char *word, size_t size);
int moe_encode_word_cached(moe_encoder *encoder, const char *segment, size_t start, size_t size,
                           moe_word_encode encode);
void moe_word_cache_clear(moe_encoder *encoder);

/* --- tokenizer_pairs.c ----------------------------------------------------------------------- */

int moe_bpe_read_merges(moe_tokenizer *tokenizer, const moe_gguf *gguf, moe_error *err);
/* The moe_pair_rank of BPE: ranks are those of the file's list of merges. */
uint32_t moe_bpe_pair_rank(const moe_tokenizer *tokenizer, const char *word, const moe_symbol *left,
                           const moe_symbol *right, int32_t *merged);

/* --- tokenizer_bpe.c, tokenizer_characters.c, tokenizer_spm.c -------------------------------- */

/* Finds how the file's BPE cuts words, before its vocabulary is read. */
int moe_bpe_find_pretokenizer(moe_tokenizer *tokenizer, const moe_gguf *gguf, moe_error *err);
int moe_bpe_create(moe_tokenizer *tokenizer, const moe_gguf *gguf, moe_error *err);
void moe_characters_create(moe_tokenizer *tokenizer);
int moe_characters_encode(moe_encoder *encoder, const char *text, size_t size);
int moe_bpe_encode(moe_encoder *encoder, const char *text, size_t size);
int moe_spm_create(moe_tokenizer *tokenizer, const moe_gguf *gguf, moe_error *err);
int moe_spm_encode(moe_encoder *encoder, const char *text, size_t size, bool space_prefix);

/* --- tokenizer_encode.c ---------------------------------------------------------------------- */

typedef struct moe_text_span {
    const char *text;
    size_t size;
    bool is_markup; /* searched for control tokens */
} moe_text_span;

/* Encodes the spans as one text, without adding tokens. Tokens that the vocabulary marks as
 * user-defined ("<think>", "<tool_call>") are found in plain text, too. But a token that
 * markup_source (the template's text) contains counts as markup, and is not found in plain text. */
int moe_tokenizer_encode_spans(const moe_tokenizer *tokenizer, const moe_text_span *spans, size_t n,
                               moe_string_view markup_source, int32_t **tokens, size_t *n_tokens,
                               moe_allowance *allowance, moe_error *err);

#endif
