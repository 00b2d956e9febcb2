/* SPDX-License-Identifier: MIT */
/* The tokenizer against hostile metadata and hostile text. The first byte chooses:
 *   0     the rest is a GGUF header
 *   1, 2  the rest is edits (offset u16, byte) to the header of a small BPE or SPM vocabulary
 *   3, 4  the rest is text for such a vocabulary: decoding must give it back
 *   5     the rest is text for every pre-tokenizer
 * Any other byte is as that byte modulo 6. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/pretokenizers.h"
#include "runtime/model/tokenizer.h"
#include "tests/tokenizer/small_vocabulary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool condition)
{
    if (!condition) {
        abort();
    }
}

/* Encodes, and pushes what comes out through a stream. */
static void use(const moe_tokenizer *tokenizer, const char *text, size_t size, unsigned flags,
                bool exact)
{
    moe_error err;
    int32_t *tokens;
    size_t n;
    if (moe_tokenizer_encode(tokenizer, text, size, flags, &tokens, &n, &err) != MOE_OK) {
        check(!exact && tokens == NULL && memchr(err.message, '\0', sizeof err.message) != NULL);
        return;
    }
    moe_text_stream stream = {0};
    size_t limit = moe_text_stream_max(tokenizer);
    char *out = malloc(limit + 4);
    check(out != NULL);
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        check(tokens[i] >= 0 && (uint32_t)tokens[i] < moe_tokenizer_n_tokens(tokenizer));
        check(moe_text_stream_push(&stream, tokenizer, tokens[i], out) <= limit);
        moe_string_view piece = moe_tokenizer_piece(tokenizer, tokens[i], true);
        if (exact) {
            check(at + piece.size <= size && memcmp(piece.data, text + at, piece.size) == 0);
        }
        at += piece.size;
    }
    check(moe_text_stream_finish(&stream, out) <= 3);
    check(!exact || at == size);
    free(out);
    free(tokens);
}

static void fuzz_metadata(const void *data, size_t size)
{
    moe_gguf *gguf;
    moe_tokenizer *tokenizer;
    moe_error err;
    if (moe_gguf_parse(&gguf, data, size, &err) != MOE_OK) {
        return;
    }
    if (moe_tokenizer_create(&tokenizer, gguf, &err) == MOE_OK) {
        static const char text[] = "abcab \xE2\x82\xAC <|im_end|><mark> a\xFF";
        use(tokenizer, text, sizeof text - 1, 0, false);
        use(tokenizer, text, sizeof text - 1, MOE_ENCODE_ADD_SPECIAL | MOE_ENCODE_PARSE_SPECIAL,
            false);
        moe_tokenizer_destroy(&tokenizer);
    } else {
        check(tokenizer == NULL);
    }
    moe_gguf_close(&gguf);
}

static void fuzz_edits(const uint8_t *data, size_t size, bool spm)
{
    vocabulary v;
    fixture_gguf gguf;
    if (spm) {
        spm_vocabulary(&v);
    } else {
        bpe_vocabulary(&v);
    }
    build_vocabulary(&gguf, &v, spm, NULL);
    for (; size >= 3; data += 3, size -= 3) {
        gguf.data[(size_t)(data[0] | data[1] << 8) % gguf.size] = (char)data[2];
    }
    fuzz_metadata(gguf.data, gguf.size);
    fixture_free(&gguf);
}

static const char *const pretokenizer_names[] = {"gpt-2",       "llama-bpe",    "qwen2",
                                                 "dbrx",        "deepseek-llm", "deepseek-coder",
                                                 "deepseek-v3", "default"};
enum { N_PRETOKENIZERS = sizeof pretokenizer_names / sizeof pretokenizer_names[0] };

/* Vocabularies and compiled patterns that no input changes. */
static struct {
    moe_tokenizer *bpe, *spm;
    moe_pretokenizer_code *codes[N_PRETOKENIZERS];
    moe_pretokenizer_scratch *scratch;
} once;

static void free_once(void)
{
    moe_tokenizer_destroy(&once.bpe);
    moe_tokenizer_destroy(&once.spm);
    for (size_t i = 0; i < N_PRETOKENIZERS; i++) {
        moe_pretokenizer_free(&once.codes[i]);
    }
    moe_pretokenizer_scratch_destroy(&once.scratch);
}

static void make_once(void)
{
    if (once.bpe != NULL) {
        return;
    }
    once.bpe = small_bpe(NULL);
    once.spm = small_spm(NULL);
    once.scratch = moe_pretokenizer_scratch_create();
    check(once.scratch != NULL);
    for (size_t i = 0; i < N_PRETOKENIZERS; i++) {
        moe_error err;
        const char *name = pretokenizer_names[i];
        const moe_pretokenizer *row = moe_pretokenizer_find(name, strlen(name));
        check(row != NULL && moe_pretokenizer_compile(&once.codes[i], row, &err) == MOE_OK);
    }
    atexit(free_once);
}

static void fuzz_splits(const char *text, size_t size)
{
    moe_error err;
    moe_split_lists lists = {0};
    /* Splitting wants valid UTF-8, which the caller of it sees to. */
    char *valid = malloc(size + 1);
    check(valid != NULL);
    for (size_t i = 0; i < size; i++) {
        valid[i] = (char)(text[i] & 0x7F);
    }
    for (size_t i = 0; i < N_PRETOKENIZERS; i++) {
        check(moe_pretokenizer_split(once.codes[i], once.scratch, valid, size, &lists, &err) ==
              MOE_OK);
        size_t start = 0;
        for (size_t s = 0; s < lists.current.n; s++) {
            check(lists.current.ends[s] > start);
            start = lists.current.ends[s];
        }
        check(start == size);
    }
    free(valid);
    free(lists.current.ends);
    free(lists.next.ends);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    const char *text = (const char *)data + 1;
    make_once();
    switch (data[0] % 6) {
    case 0:
        fuzz_metadata(data + 1, size - 1);
        break;
    case 1:
    case 2:
        fuzz_edits(data + 1, size - 1, data[0] % 6 == 2);
        break;
    case 3:
        use(once.bpe, text, size - 1, 0, true);
        use(once.bpe, text, size - 1, MOE_ENCODE_PARSE_SPECIAL, true);
        break;
    case 4:
        use(once.spm, text, size - 1, MOE_ENCODE_PARSE_SPECIAL, false);
        break;
    default:
        fuzz_splits(text, size - 1);
        break;
    }
    return 0;
}
