/* SPDX-License-Identifier: MIT */
/* The vocabulary: pieces in one block, a hash table from piece to id for pieces that merging may
 * build, and the sorted sets of tokens that are searched for in the text itself. */
#define XXH_INLINE_ALL
#include "runtime/model/tokenizer_state.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/model/chat_marks.h"

/* The byte for a character of byte-level BPE's alphabet; -1: the character is not in it. Printable
 * Latin-1 characters stand for themselves; the other bytes, in order, are written as U+0100 and the
 * characters after it. */
static int byte_of_character(uint32_t character)
{
    if ((character >= 0x21 && character <= 0x7E) || (character >= 0xA1 && character <= 0xAC) ||
        (character >= 0xAE && character <= 0xFF)) {
        return (int)character;
    }
    if (character >= 0x100 && character <= 0x120) {
        return (int)(character - 0x100); /* 00..20 */
    }
    if (character >= 0x121 && character <= 0x142) {
        return (int)(character - 0x121 + 0x7F); /* 7F..A0 */
    }
    return character == 0x143 ? 0xAD : -1;
}

bool moe_byte_level_decode(const char *text, size_t size, char *out, size_t *out_size)
{
    const uint8_t *bytes = (const uint8_t *)text;
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        uint32_t character = bytes[i];
        if (character >= 0x80) {
            if (character < 0xC2 || character > 0xDF || i + 1 == size ||
                (bytes[i + 1] & 0xC0) != 0x80) {
                break;
            }
            character = (character & 0x1F) << 6 | (bytes[++i] & 0x3Fu);
        }
        int byte = byte_of_character(character);
        if (byte < 0) {
            break;
        }
        out[n++] = (char)byte;
        if (i + 1 == size) {
            *out_size = n;
            return true;
        }
    }
    memcpy(out, text, size);
    *out_size = size;
    return size == 0;
}

#define SPM_SPACE "\xE2\x96\x81" /* U+2581 */

bool moe_spaces_decode(const char *text, size_t size, char *out, size_t *out_size)
{
    bool plain = true;
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        if (size - i >= 3 && memcmp(text + i, SPM_SPACE, 3) == 0) {
            out[n++] = ' ';
            i += 2;
        } else {
            plain = plain && text[i] != ' ';
            out[n++] = text[i];
        }
    }
    *out_size = n;
    return plain;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "<0xNN>" */
static int byte_token_value(moe_string_view text)
{
    if (text.size != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') {
        return -1;
    }
    int high = hex_digit(text.data[3]);
    int low = hex_digit(text.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static uint64_t piece_hash(const char *piece, size_t size)
{
    return XXH3_64bits(piece, size);
}

static moe_vocab_slot *find_slot(const moe_vocab *vocab, const char *piece, size_t size)
{
    uint64_t hash = piece_hash(piece, size);
    uint32_t tag = (uint32_t)(hash >> 32);
    for (size_t at = hash & vocab->slot_mask;; at = (at + 1) & vocab->slot_mask) {
        moe_vocab_slot *slot = &vocab->slots[at];
        if (slot->id == MOE_NO_TOKEN) {
            slot->tag = tag;
            return slot;
        }
        if (slot->tag == tag) {
            moe_string_view found = moe_vocab_piece(vocab, slot->id);
            if (found.size == size && memcmp(found.data, piece, size) == 0) {
                return slot;
            }
        }
    }
}

int32_t moe_vocab_find(const moe_vocab *vocab, const char *piece, size_t size)
{
    if (size > vocab->max_size) {
        return MOE_NO_TOKEN;
    }
    uint64_t hash = piece_hash(piece, size);
    uint32_t tag = (uint32_t)(hash >> 32);
    for (size_t at = hash & vocab->slot_mask;; at = (at + 1) & vocab->slot_mask) {
        const moe_vocab_slot *slot = &vocab->slots[at];
        if (slot->id == MOE_NO_TOKEN) {
            return MOE_NO_TOKEN;
        }
        if (slot->tag == tag) {
            moe_string_view found = moe_vocab_piece(vocab, slot->id);
            if (found.size == size && memcmp(found.data, piece, size) == 0) {
                return slot->id;
            }
        }
    }
}

static int compare_special(const void *a, const void *b, void *context)
{
    const moe_vocab *vocab = context;
    moe_string_view x = moe_vocab_piece(vocab, *(const int32_t *)a);
    moe_string_view y = moe_vocab_piece(vocab, *(const int32_t *)b);
    int order = memcmp(x.data, y.data, x.size < y.size ? x.size : y.size);
    if (order != 0) {
        return order;
    }
    return x.size < y.size ? -1 : x.size > y.size;
}

static bool is_special(const moe_vocab *vocab, uint32_t id, bool with_control)
{
    uint8_t type = vocab->types[id];
    return vocab->offsets[id + 1] > vocab->offsets[id] &&
           (type == MOE_TOKEN_USER_DEFINED ||
            (with_control && (type == MOE_TOKEN_CONTROL || type == MOE_TOKEN_UNKNOWN)));
}

static bool build_special_set(moe_vocab *vocab, moe_special_set *set, bool with_control)
{
    size_t n = 0;
    for (uint32_t id = 0; id < vocab->n_tokens; id++) {
        n += is_special(vocab, id, with_control);
    }
    set->ids = moe_calloc(n, sizeof *set->ids);
    if (set->ids == NULL) {
        return false;
    }
    for (uint32_t id = 0; id < vocab->n_tokens; id++) {
        if (is_special(vocab, id, with_control)) {
            set->ids[set->n++] = (int32_t)id;
            set->starts[(uint8_t)vocab->pieces[vocab->offsets[id]]] = true;
        }
    }
    qsort_r(set->ids, set->n, sizeof *set->ids, compare_special, vocab);
    return true;
}

/* The tokens ids[low .. high) agree in their first `depth` bytes, and are sorted. Returns the first
 * one whose byte at `depth` is at least `byte`. A token that ends at `depth` comes before all
 * others. */
static size_t lower_bound(const moe_vocab *vocab, const moe_special_set *set, size_t low,
                          size_t high, size_t depth, unsigned byte)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        moe_string_view piece = moe_vocab_piece(vocab, set->ids[middle]);
        if (piece.size <= depth || (uint8_t)piece.data[depth] < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

int32_t moe_special_match(const moe_vocab *vocab, const moe_special_set *set, const char *text,
                          size_t size)
{
    if (size == 0 || !set->starts[(uint8_t)text[0]]) {
        return MOE_NO_TOKEN;
    }
    int32_t found = MOE_NO_TOKEN;
    size_t low = 0;
    size_t high = set->n;
    for (size_t depth = 0; depth < size; depth++) {
        unsigned byte = (uint8_t)text[depth];
        low = lower_bound(vocab, set, low, high, depth, byte);
        high = lower_bound(vocab, set, low, high, depth, byte + 1);
        if (low == high) {
            break;
        }
        if (moe_vocab_piece(vocab, set->ids[low]).size == depth + 1) {
            found = set->ids[low];
        }
    }
    return found;
}

/* "<...>", "[...]" */
static bool looks_like_markup(moe_string_view text)
{
    return text.size >= 3 && ((text.data[0] == '<' && text.data[text.size - 1] == '>') ||
                              (text.data[0] == '[' && text.data[text.size - 1] == ']'));
}

bool moe_special_set_without(const moe_vocab *vocab, const moe_special_set *set,
                             moe_string_view source, moe_special_set *out)
{
    *out = (moe_special_set){.ids = moe_calloc(set->n, sizeof *out->ids)};
    for (size_t i = 0; out->ids != NULL && i < set->n; i++) {
        moe_string_view piece = moe_vocab_piece(vocab, set->ids[i]);
        if (moe_chat_is_mark(piece) ||
            (looks_like_markup(piece) &&
             memmem(source.data, source.size, piece.data, piece.size) != NULL)) {
            continue;
        }
        out->ids[out->n++] = set->ids[i];
        out->starts[(uint8_t)piece.data[0]] = true;
    }
    return out->ids != NULL;
}

/* Markup that some files declare as ordinary text. A user's text must not become such a token. */
static const char *const control_texts[] = {
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<|start_header_id|>",
    "<|EOT|>",
    "<|end_header_id|>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<|end|>",
    "<｜end▁of▁sentence｜>",
    "<｜begin▁of▁sentence｜>",
};

static bool is_control_text(moe_string_view text)
{
    if (text.size < 2 || text.data[0] != '<') {
        return false;
    }
    for (size_t i = 0; i < sizeof control_texts / sizeof control_texts[0]; i++) {
        if (strlen(control_texts[i]) == text.size &&
            memcmp(control_texts[i], text.data, text.size) == 0) {
            return true;
        }
    }
    return false;
}

/* If the file declares tokens that begin or end texts as ordinary words, marks them as control
 * tokens. */
static void mark_ends_as_control(moe_vocab *vocab, const moe_gguf *gguf,
                                 const moe_string_view *texts)
{
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint32_t id = UINT32_MAX;
        if (moe_gguf_get_u32(gguf, keys[i], &id, NULL) == MOE_OK && id < vocab->n_tokens &&
            (vocab->types[id] == MOE_TOKEN_NORMAL || vocab->types[id] == MOE_TOKEN_USER_DEFINED) &&
            looks_like_markup(texts[id])) {
            vocab->types[id] = MOE_TOKEN_CONTROL;
        }
    }
}

/* BPE of characters: returns the true type of an ordinary or user-defined token, by its text.
 * Converters do not distinguish byte tokens from words. They also call runs of spaces user-defined,
 * although merges build these. */
static int64_t type_by_text(int64_t type, moe_string_view text)
{
    if (type == MOE_TOKEN_NORMAL && byte_token_value(text) >= 0) {
        return MOE_TOKEN_BYTE;
    }
    bool has_space =
        type == MOE_TOKEN_USER_DEFINED && memmem(text.data, text.size, SPM_SPACE, 3) != NULL;
    return has_space ? MOE_TOKEN_NORMAL : type;
}

static int read_types(moe_vocab *vocab, const moe_gguf *gguf, moe_spelling spelling,
                      const moe_string_view *texts, moe_error *err)
{
    const bool is_spm = spelling != MOE_SPELT_IN_BYTES;
    const moe_gguf_kv *kv = moe_gguf_find(gguf, "tokenizer.ggml.token_type");
    if (kv != NULL && (kv->type != MOE_GGUF_ARRAY || kv->n_elements != vocab->n_tokens)) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "tokenizer.ggml.token_type has not one number for each of the %u tokens",
                        vocab->n_tokens);
    }
    for (uint32_t id = 0; id < vocab->n_tokens; id++) {
        int64_t type = MOE_TOKEN_NORMAL;
        if (kv == NULL && is_spm && byte_token_value(texts[id]) >= 0) {
            type = MOE_TOKEN_BYTE;
        } else if (kv != NULL && (moe_gguf_array_i64(kv, id, &type) != MOE_OK || type < 0 ||
                                  type > MOE_TOKEN_BYTE)) {
            return moe_fail(err, MOE_ERR_FORMAT,
                            "tokenizer.ggml.token_type[%u] is not a token type (0 to 6)", id);
        }
        type = spelling == MOE_SPELT_IN_CHARACTERS ? type_by_text(type, texts[id]) : type;
        if (type == MOE_TOKEN_BYTE && is_spm && byte_token_value(texts[id]) < 0) {
            return moe_fail(err, MOE_ERR_FORMAT,
                            "tokenizer.ggml.tokens[%u] is a byte token but not spelt <0xNN>", id);
        }
        bool is_markup = (type == MOE_TOKEN_NORMAL || type == MOE_TOKEN_USER_DEFINED) &&
                         is_control_text(texts[id]);
        vocab->types[id] = is_markup ? MOE_TOKEN_CONTROL : (uint8_t)type;
    }
    mark_ends_as_control(vocab, gguf, texts);
    return MOE_OK;
}

/* Writes one piece at its offset; returns whether merging may build it. */
static bool write_piece(moe_vocab *vocab, uint32_t id, bool is_spm, moe_string_view text)
{
    char *out = vocab->pieces + vocab->offsets[id];
    size_t size = text.size;
    bool mergeable = false;
    switch (vocab->types[id]) {
    case MOE_TOKEN_CONTROL:
    case MOE_TOKEN_UNKNOWN:
        memcpy(out, text.data, size);
        break;
    case MOE_TOKEN_USER_DEFINED:
        memcpy(out, text.data, size);
        mergeable = true;
        break;
    case MOE_TOKEN_BYTE:
        if (is_spm) {
            out[0] = (char)byte_token_value(text);
            size = 1;
        } else {
            memcpy(out, text.data, size);
        }
        break;
    default:
        mergeable = is_spm ? moe_spaces_decode(text.data, size, out, &size)
                           : moe_byte_level_decode(text.data, size, out, &size);
        break;
    }
    vocab->offsets[id + 1] = vocab->offsets[id] + size;
    vocab->max_size = size > vocab->max_size ? size : vocab->max_size;
    return mergeable && size > 0;
}

static int fill(moe_vocab *vocab, bool is_spm, const moe_string_view *texts, moe_error *err)
{
    size_t n_slots = 64;
    while (n_slots < (size_t)vocab->n_tokens * 2) {
        n_slots *= 2;
    }
    vocab->slots = moe_calloc(n_slots, sizeof *vocab->slots);
    if (vocab->slots == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for %u tokens", vocab->n_tokens);
    }
    vocab->slot_mask = n_slots - 1;
    for (size_t i = 0; i < n_slots; i++) {
        vocab->slots[i].id = MOE_NO_TOKEN;
    }
    for (uint32_t id = 0; id < vocab->n_tokens; id++) {
        if (!write_piece(vocab, id, is_spm, texts[id])) {
            continue;
        }
        moe_string_view piece = moe_vocab_piece(vocab, (int32_t)id);
        moe_vocab_slot *slot = find_slot(vocab, piece.data, piece.size);
        /* If two tokens have the same text, the later one counts; but an ordinary token is
         * preferred to a user-defined one. */
        if (slot->id == MOE_NO_TOKEN || vocab->types[id] != MOE_TOKEN_USER_DEFINED ||
            vocab->types[slot->id] == MOE_TOKEN_USER_DEFINED) {
            slot->id = (int32_t)id;
        }
    }
    if (!build_special_set(vocab, &vocab->user_defined, false) ||
        !build_special_set(vocab, &vocab->all_special, true)) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for %u tokens", vocab->n_tokens);
    }
    return MOE_OK;
}

int moe_vocab_create(moe_vocab *vocab, const moe_gguf *gguf, moe_spelling spelling, moe_error *err)
{
    const moe_gguf_kv *kv = moe_gguf_find(gguf, "tokenizer.ggml.tokens");
    if (kv == NULL || kv->type != MOE_GGUF_ARRAY || kv->element_type != MOE_GGUF_STRING ||
        kv->n_elements == 0 || kv->n_elements > MOE_TOKENS_MAX) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "tokenizer.ggml.tokens must be an array of 1 to %u strings",
                        MOE_TOKENS_MAX);
    }
    const moe_string_view *texts = kv->value.strings;
    vocab->n_tokens = (uint32_t)kv->n_elements;
    size_t bytes = 0;
    for (uint32_t id = 0; id < vocab->n_tokens; id++) {
        if (texts[id].size > MOE_TOKEN_MAX_BYTES) {
            return moe_fail(err, MOE_ERR_FORMAT,
                            "tokenizer.ggml.tokens[%u] has %zu bytes; at most %d are allowed", id,
                            texts[id].size, MOE_TOKEN_MAX_BYTES);
        }
        bytes += texts[id].size;
    }
    vocab->types = moe_calloc(vocab->n_tokens, 1);
    vocab->offsets = moe_calloc((size_t)vocab->n_tokens + 1, sizeof *vocab->offsets);
    vocab->pieces = moe_calloc(bytes + 1, 1);
    if (vocab->types == NULL || vocab->offsets == NULL || vocab->pieces == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for %u tokens", vocab->n_tokens);
    }
    MOE_TRY(read_types(vocab, gguf, spelling, texts, err));
    return fill(vocab, spelling != MOE_SPELT_IN_BYTES, texts, err);
}

bool moe_vocab_words_are_apart(const moe_vocab *vocab)
{
    for (size_t i = 0; i <= vocab->slot_mask; i++) {
        if (vocab->slots[i].id == MOE_NO_TOKEN) {
            continue;
        }
        moe_string_view piece = moe_vocab_piece(vocab, vocab->slots[i].id);
        for (size_t at = 1; at < piece.size; at++) {
            if (piece.data[at] == ' ' && piece.data[at - 1] != ' ') {
                return false;
            }
        }
    }
    return true;
}

void moe_vocab_destroy(moe_vocab *vocab)
{
    free(vocab->types);
    free(vocab->pieces);
    free(vocab->offsets);
    free(vocab->slots);
    free(vocab->user_defined.ids);
    free(vocab->all_special.ids);
    memset(vocab, 0, sizeof *vocab);
}
