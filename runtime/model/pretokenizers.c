/* SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/model/pretokenizers.h"

#include <stdlib.h>
#include <string.h>

#include <pcre2.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

/* PCRE2's \s also takes U+180E, which Unicode moved out of the spaces; the published patterns are
 * run by engines that follow Unicode. */
#define S     "\\p{White_Space}"
#define NOT_S "\\P{White_Space}"

#define TAIL "|" S "+(?!" NOT_S ")|" S "+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" S "\\p{L}\\p{N}]+" TAIL
#define CL100K(digits)                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" S                 \
    "\\p{L}\\p{N}]+[\\r\\n]*|" S "*[\\r\\n]+" TAIL

/* Letters of scripts with case, as DeepSeek's first tokenizers list them; by number, because some
 * of them normalise to others. */
#define CASED                                                                                      \
    "A-Za-z\\x{00B5}\\x{00C0}-\\x{00D6}\\x{00D8}-\\x{00F6}\\x{00F8}-\\x{01BA}"                     \
    "\\x{01BC}-\\x{01BF}\\x{01C4}-\\x{0293}\\x{0295}-\\x{02AF}\\x{0370}-\\x{0373}"                 \
    "\\x{0376}\\x{0377}\\x{037B}-\\x{037D}\\x{037F}\\x{0386}\\x{0388}-\\x{038A}\\x{038C}"          \
    "\\x{038E}-\\x{03A1}\\x{03A3}-\\x{03F5}\\x{03F7}-\\x{0481}\\x{048A}-\\x{052F}"                 \
    "\\x{0531}-\\x{0556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}"                 \
    "\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}"                 \
    "\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}"                 \
    "\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}"         \
    "\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}"                           \
    "\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}"                 \
    "\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}"         \
    "\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}"         \
    "\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}"                   \
    "\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}"                  \
    "\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}"                 \
    "\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}"                 \
    "\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}"             \
    "\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}"         \
    "\\x{1E900}-\\x{1E943}"
#define CJK "[一-龥ࠀ-一가-\\x{D7FF}]+"

static const moe_pretokenizer pretokenizers[] = {
    {.names = "gpt-2 gpt2", .patterns = {GPT2}},
    {.names = "llama-bpe llama3 llama-v3",
     .whole_words = true,
     .add_bos = true,
     .patterns = {CL100K("\\p{N}{1,3}")}},
    {.names = "qwen2 qwen3", .nfc = true, .patterns = {CL100K("\\p{N}")}},
    {.names = "deepseek-r1-qwen", .patterns = {CL100K("\\p{N}")}},
    {.names = "olmo", .nfc = true, .patterns = {GPT2}},
    {.names = "dbrx", .patterns = {CL100K("\\p{N}{1,3}")}},
    /* In "spaces at the end" the look-behind changes nothing but the cost: a run of spaces is tried
     * once instead of from each of its characters. */
    {.names = "deepseek-llm",
     .patterns = {"[\\r\\n]", S "?[" CASED "]+", S "?[!-/:-~！-／：-～‘-‟\\x{3000}-\\x{3002}]+",
                  "(?<!" S ")" S "++$", CJK, "\\p{N}"}},
    {.names = "deepseek-coder",
     .patterns = {"[\\r\\n]", S "?\\p{L}+", S "?\\p{P}+", CJK, "\\p{N}"}},
    {.names = "deepseek-v3",
     .patterns = {"\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
                  "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" S
                  "*[\\r\\n]+" TAIL}},
    {.names = "default",
     .patterns = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

#define N_PRETOKENIZERS (sizeof pretokenizers / sizeof pretokenizers[0])

struct moe_pretokenizer_code {
    pcre2_code *patterns[MOE_PRETOKENIZER_MAX_PATTERNS];
    size_t n;
};

struct moe_pretokenizer_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
};

const moe_pretokenizer *moe_pretokenizer_find(const char *name, size_t size)
{
    for (size_t i = 0; i < N_PRETOKENIZERS; i++) {
        const char *at = pretokenizers[i].names;
        while (*at != '\0') {
            size_t length = strcspn(at, " ");
            if (length == size && memcmp(at, name, size) == 0) {
                return &pretokenizers[i];
            }
            at += length + (at[length] == ' ');
        }
    }
    return NULL;
}

void moe_pretokenizer_names(char *out, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < N_PRETOKENIZERS; i++) {
        for (const char *at = pretokenizers[i].names; n + 1 < size; at++) {
            out[n++] = *at == '\0' ? ' ' : *at;
            if (*at == '\0') {
                break;
            }
        }
    }
    out[n > 0 ? n - 1 : 0] = '\0';
}

int moe_pretokenizer_compile(moe_pretokenizer_code **out, const moe_pretokenizer *pretokenizer,
                             moe_error *err)
{
    *out = NULL;
    moe_pretokenizer_code *code = moe_calloc(1, sizeof *code);
    if (code == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the pre-tokenizer's patterns");
    }
    for (; code->n < MOE_PRETOKENIZER_MAX_PATTERNS; code->n++) {
        const char *pattern = pretokenizer->patterns[code->n];
        if (pattern == NULL) {
            break;
        }
        int number;
        PCRE2_SIZE at;
        pcre2_code *compiled =
            pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &number, &at, NULL);
        if (compiled == NULL) {
            moe_pretokenizer_free(&code);
            return moe_fail(err, MOE_ERR_INTERNAL,
                            "pre-tokenizer pattern refused by PCRE2 (error %d at %zu)", number,
                            (size_t)at);
        }
        /* Where there is no JIT the interpreter gives the same matches. */
        (void)pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
        code->patterns[code->n] = compiled;
    }
    *out = code;
    return MOE_OK;
}

void moe_pretokenizer_free(moe_pretokenizer_code **code)
{
    if (*code != NULL) {
        for (size_t i = 0; i < (*code)->n; i++) {
            pcre2_code_free((*code)->patterns[i]);
        }
        free(*code);
        *code = NULL;
    }
}

moe_pretokenizer_scratch *moe_pretokenizer_scratch_create(void)
{
    moe_pretokenizer_scratch *scratch = moe_calloc(1, sizeof *scratch);
    if (scratch == NULL) {
        return NULL;
    }
    scratch->data = pcre2_match_data_create(1, NULL);
    scratch->context = pcre2_match_context_create(NULL);
    if (scratch->data == NULL || scratch->context == NULL) {
        moe_pretokenizer_scratch_destroy(&scratch);
    }
    return scratch;
}

void moe_pretokenizer_scratch_destroy(moe_pretokenizer_scratch **scratch)
{
    if (*scratch != NULL) {
        pcre2_match_data_free((*scratch)->data);
        pcre2_match_context_free((*scratch)->context);
        free(*scratch);
        *scratch = NULL;
    }
}

static bool push_end(moe_split_list *list, size_t end)
{
    if (list->n == list->capacity) {
        size_t capacity = list->capacity * 2 + 64;
        uint32_t *ends = moe_realloc_array(list->ends, capacity, sizeof *ends);
        if (ends == NULL) {
            return false;
        }
        list->ends = ends;
        list->capacity = capacity;
    }
    list->ends[list->n++] = (uint32_t)end;
    return true;
}

/* A pattern sees one piece only: look-around and anchors stop at its ends. */
static int split_piece(const pcre2_code *pattern, moe_pretokenizer_scratch *scratch,
                       const char *text, size_t start, size_t end, moe_split_list *list,
                       moe_error *err)
{
    const size_t size = end - start;
    size_t at = 0;
    while (at < size) {
        int rc = pcre2_match(pattern, (PCRE2_SPTR)text + start, size, at, PCRE2_NO_UTF_CHECK,
                             scratch->data, scratch->context);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
            rc = pcre2_match(pattern, (PCRE2_SPTR)text + start, size, at,
                             PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, scratch->data, scratch->context);
        }
        if (rc == PCRE2_ERROR_NOMATCH) {
            break;
        }
        if (rc < 0) {
            return moe_fail(err, MOE_ERR_INTERNAL,
                            "splitting a text of %zu bytes failed (PCRE2 error %d): encode it in "
                            "parts",
                            size, rc);
        }
        const PCRE2_SIZE *found = pcre2_get_ovector_pointer(scratch->data);
        bool stored = found[0] <= at || push_end(list, start + found[0]);
        stored = stored && push_end(list, start + found[1]);
        if (!stored) {
            return moe_fail(err, MOE_ERR_MEMORY, "out of memory while splitting a text");
        }
        at = found[1];
    }
    if (at < size && !push_end(list, end)) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory while splitting a text");
    }
    return MOE_OK;
}

int moe_pretokenizer_split(const moe_pretokenizer_code *code, moe_pretokenizer_scratch *scratch,
                           const char *text, size_t size, moe_split_lists *lists, moe_error *err)
{
    /* Each pattern gives back at most the run it has read, so the work is linear; the limits are
     * there for what was overlooked. */
    pcre2_set_match_limit(scratch->context, (uint32_t)(1000000 + 4 * (uint64_t)size > UINT32_MAX
                                                           ? UINT32_MAX
                                                           : 1000000 + 4 * (uint64_t)size));
    pcre2_set_heap_limit(scratch->context, 1u << 16); /* KiB */
    lists->current.n = 0;
    if (size > 0 && !push_end(&lists->current, size)) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory while splitting a text");
    }
    for (size_t p = 0; p < code->n; p++) {
        lists->next.n = 0;
        size_t start = 0;
        for (size_t i = 0; i < lists->current.n; i++) {
            int status = split_piece(code->patterns[p], scratch, text, start,
                                     lists->current.ends[i], &lists->next, err);
            if (status != MOE_OK) {
                return status;
            }
            start = lists->current.ends[i];
        }
        moe_split_list done = lists->current;
        lists->current = lists->next;
        lists->next = done;
    }
    return MOE_OK;
}
