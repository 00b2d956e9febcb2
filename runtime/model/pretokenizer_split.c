/* SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/model/pretokenizers.h"

#include <stdlib.h>
#include <string.h>

#include <pcre2.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/model/pretokenizer_rows.h"

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
    for (size_t i = 0; i < moe_pretokenizer_n_rows; i++) {
        const char *at = moe_pretokenizer_rows[i].names;
        while (*at != '\0') {
            size_t length = strcspn(at, " ");
            if (length == size && memcmp(at, name, size) == 0) {
                return &moe_pretokenizer_rows[i];
            }
            at += length + (at[length] == ' ');
        }
    }
    return NULL;
}

void moe_pretokenizer_names(char *out, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < moe_pretokenizer_n_rows; i++) {
        const char *name = moe_pretokenizer_rows[i].names;
        size_t length = strcspn(name, " ");
        if (n + length + 2 > size) {
            break;
        }
        memcpy(out + n, name, length);
        n += length;
        out[n++] = ' ';
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
                          PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C,
                          &number, &at, NULL);
        if (compiled == NULL) {
            moe_pretokenizer_free(&code);
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "an expression of the pre-tokenizer '%s' is refused by PCRE2 (error %d "
                            "at %zu); options.metadata_overrides can name one that cuts words "
                            "alike (tokenizer.ggml.pre=str:NAME)",
                            pretokenizer->names, number, (size_t)at);
        }
        /* If there is no JIT, the interpreter finds the same matches. */
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
        uint32_t *ends =
            moe_allowance_grow(list->allowance, list->ends, list->capacity, capacity, sizeof *ends);
        if (ends == NULL) {
            return false;
        }
        list->ends = ends;
        list->capacity = capacity;
    }
    list->ends[list->n++] = (uint32_t)end;
    return true;
}

static size_t next_character(const char *text, size_t size, size_t at)
{
    at++;
    while (at < size && ((unsigned char)text[at] & 0xC0) == 0x80) {
        at++;
    }
    return at;
}

/* Splits one piece by a pattern. The pattern sees only this piece: look-around and anchors stop at
 * its ends. An empty match cuts the piece at its place. */
static int split_piece(const pcre2_code *pattern, moe_pretokenizer_scratch *scratch,
                       const char *text, size_t start, size_t end, moe_split_list *list,
                       moe_error *err)
{
    const size_t size = end - start;
    size_t at = 0;   /* where the last piece ends */
    size_t from = 0; /* where the search goes on */
    while (from < size) {
        int rc = pcre2_match(pattern, (PCRE2_SPTR)text + start, size, from, PCRE2_NO_UTF_CHECK,
                             scratch->data, scratch->context);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
            rc = pcre2_match(pattern, (PCRE2_SPTR)text + start, size, from,
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
        bool empty = found[0] == found[1];
        stored = stored && (empty || push_end(list, start + found[1]));
        if (!stored) {
            return moe_allowance_fail(list->allowance, err, "splitting a text");
        }
        at = found[1];
        from = empty ? next_character(text + start, size, at) : at;
    }
    if (at < size && !push_end(list, end)) {
        return moe_allowance_fail(list->allowance, err, "splitting a text");
    }
    return MOE_OK;
}

/* What the matcher may allocate, in KiB. */
static uint32_t heap_limit(const moe_allowance *allowance)
{
    const uint32_t most = 1u << 16;
    uint64_t left = allowance == NULL || allowance->bytes == 0
                        ? UINT64_MAX
                        : (allowance->bytes - allowance->bytes_now) >> 10;
    return left < most ? (uint32_t)left : most;
}

int moe_pretokenizer_split(const moe_pretokenizer_code *code, moe_pretokenizer_scratch *scratch,
                           const char *text, size_t size, moe_split_lists *lists, moe_error *err)
{
    /* Each pattern backtracks at most over the run that it has just read, so the work is linear.
     * The limits guard against cases that this reasoning missed. */
    pcre2_set_match_limit(scratch->context, (uint32_t)(1000000 + 4 * (uint64_t)size > UINT32_MAX
                                                           ? UINT32_MAX
                                                           : 1000000 + 4 * (uint64_t)size));
    pcre2_set_heap_limit(scratch->context, heap_limit(lists->current.allowance));
    lists->current.n = 0;
    if (size > 0 && !push_end(&lists->current, size)) {
        return moe_allowance_fail(lists->current.allowance, err, "splitting a text");
    }
    for (size_t p = 0; p < code->n; p++) {
        lists->next.n = 0;
        size_t start = 0;
        for (size_t i = 0; i < lists->current.n; i++) {
            MOE_TRY(split_piece(code->patterns[p], scratch, text, start, lists->current.ends[i],
                                &lists->next, err));
            start = lists->current.ends[i];
        }
        moe_split_list done = lists->current;
        lists->current = lists->next;
        lists->next = done;
    }
    return MOE_OK;
}
