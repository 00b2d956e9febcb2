/* SPDX-License-Identifier: MIT */
/* Small vocabularies, whole or with one thing in the metadata left out or written otherwise. */
#ifndef MOE_TESTS_SMALL_VOCABULARY_H
#define MOE_TESTS_SMALL_VOCABULARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/model/tokenizer.h"
#include "tests/tokenizer/tokenizer_fixture.h"

#define MAX_TOKENS 320

typedef struct vocabulary {
    const char *texts[MAX_TOKENS];
    int32_t types[MAX_TOKENS];
    float scores[MAX_TOKENS];
    size_t n;
    char spellings[256][8];
} vocabulary;

/* Byte-level BPE; the id of a byte is the byte. */
enum { IM_START = 256, IM_END, ENDOFTEXT, USER_THINK, USER_THINKING, BPE_AB, BPE_ABC, BPE_EURO };
void bpe_vocabulary(vocabulary *v);

/* SentencePiece: the id of a byte is FIRST_BYTE + the byte. */
enum {
    UNK,
    S_BOS,
    S_EOS,
    FIRST_BYTE,
    S_SPACE = FIRST_BYTE + 256,
    S_A,
    S_B,
    S_AB,
    S_SPACE_A,
    S_MARK
};
void spm_vocabulary(vocabulary *v);

typedef struct fault {
    const char *what;
    const char *drop;                                       /* a key that is not written */
    void (*write)(fixture_gguf *gguf, const vocabulary *v); /* adds what should not be there */
    bool spm;
    int status;
    const char *message; /* a part of it */
} fault;

/* f may be NULL: all is well. */
void build_vocabulary(fixture_gguf *gguf, const vocabulary *v, bool spm, const fault *f);
moe_tokenizer *small_bpe(const fault *f);
moe_tokenizer *small_spm(const fault *f);

#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4
/* Fails unless the text gives these ids. */
void expect_ids(const moe_tokenizer *tokenizer, const char *text, unsigned flags,
                const int32_t *ids, size_t n);

#endif
