/* SPDX-License-Identifier: MIT */
/* Tokenizers from GGUF metadata: SentencePiece-style ("llama"), byte-level BPE ("gpt2") and BPE of
 * characters ("gemma4", and "gpt2" with some pre-tokenizers).
 * Immutable after creation: any number of threads may use one. */
#ifndef MOE_MODEL_TOKENIZER_H
#define MOE_MODEL_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/allowance_charge.h"
#include "runtime/model/gguf.h"

typedef struct moe_tokenizer moe_tokenizer;

enum {
    MOE_ENCODE_ADD_SPECIAL = 1,  /* BOS/EOS if the metadata asks for them */
    MOE_ENCODE_PARSE_SPECIAL = 2 /* text such as "<|im_end|>" becomes its control token */
};

#define MOE_NO_TOKEN (-1)

int moe_tokenizer_create(moe_tokenizer **out, const moe_gguf *gguf, moe_error *err);
void moe_tokenizer_destroy(moe_tokenizer **tokenizer);

uint32_t moe_tokenizer_n_tokens(const moe_tokenizer *tokenizer);
/* Both return the token's id, or MOE_NO_TOKEN if the model has no such token. */
int32_t moe_tokenizer_bos(const moe_tokenizer *tokenizer);
int32_t moe_tokenizer_eos(const moe_tokenizer *tokenizer);
/* True for every token that ends a generation: EOS, end of turn, end of message. */
bool moe_tokenizer_is_end(const moe_tokenizer *tokenizer, int32_t token);
/* True for control tokens, whose text is not written out. */
bool moe_tokenizer_is_control(const moe_tokenizer *tokenizer, int32_t token);
/* The id of the control or ordinary token whose text is exactly this, or MOE_NO_TOKEN. */
int32_t moe_tokenizer_find(const moe_tokenizer *tokenizer, const char *text, size_t size);
/* The first control or user-defined token whose text begins with `begin`; empty if there is
 * none. */
moe_string_view moe_tokenizer_special(const moe_tokenizer *tokenizer, const char *begin);

/* Encodes `size` bytes, fewer than 2^31; they may be any bytes, also invalid UTF-8. The tokens'
 * pieces restore the bytes, except for changes that the family's own tokenizer makes, too: NFC
 * (qwen2, olmo), the space that SPM adds, U+2581 in SPM. *tokens is malloc'ed and the caller's. */
int moe_tokenizer_encode(const moe_tokenizer *tokenizer, const char *text, size_t size,
                         unsigned flags, int32_t **tokens, size_t *n_tokens, moe_error *err);
/* Like moe_tokenizer_encode(), but takes its memory from an allowance, which may be NULL. */
int moe_tokenizer_encode_within(const moe_tokenizer *tokenizer, const char *text, size_t size,
                                unsigned flags, int32_t **tokens, size_t *n_tokens,
                                moe_allowance *allowance, moe_error *err);

/* The bytes that a token stands for in the text. "" for an id out of range and, unless
 * with_control, for control tokens. The view lives as long as the tokenizer. */
moe_string_view moe_tokenizer_piece(const moe_tokenizer *tokenizer, int32_t token,
                                    bool with_control);

/* Streaming decoding: bytes are held back until they form whole UTF-8 characters, and a leading
 * space that SPM adds is dropped once at the start. At most 4 bytes are held back. */
typedef struct moe_text_stream {
    uint8_t pending[4];
    uint8_t n_pending;
    bool started;
} moe_text_stream;

/* The longest output of one push. Each bad byte can become a U+FFFD, so it is three times the size
 * of the longest piece and the pending bytes. */
size_t moe_text_stream_max(const moe_tokenizer *tokenizer);
/* Appends one token; writes the characters that are now complete to out (capacity at least
 * moe_text_stream_max()) and returns their bytes. Bytes that can never become UTF-8 are written as
 * U+FFFD. */
size_t moe_text_stream_push(moe_text_stream *stream, const moe_tokenizer *tokenizer, int32_t token,
                            char *out);
/* Writes what is still pending at the end as U+FFFD; at most 3 bytes. */
size_t moe_text_stream_finish(moe_text_stream *stream, char *out);

#endif
