/* SPDX-License-Identifier: MIT */
/* The steps "Split", "ByteLevel", "Digits" and "Punctuation" of tokenizer.json become patterns of a
 * row. Its expressions are Oniguruma's. This file rewrites those parts that mean something else in
 * PCRE2, and refuses an expression that it cannot rewrite. The text is hostile: the worst that an
 * expression can do is to be refused, or to stop a match at PCRE2's limits. */
#include "runtime/model/pretokenizer_json.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/model/json_spans.h"

#define GPT2                                                                                       \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\p{White_Space}\\p{L}\\p{N}]+|"              \
    "\\p{White_Space}+(?!\\P{White_Space})|\\p{White_Space}+"
#define PUNCTUATION "[\\p{P}!-/:-@\\[-`{-~]"
#define WORD        "\\p{L}\\p{M}\\p{Nd}\\p{Pc}"
#define MAX_DEPTH   4

typedef struct reader {
    moe_pretokenizer_json *out;
    size_t n; /* patterns so far */
    moe_error *err;
} reader;

static int refuse(reader *r, const char *what, moe_string_view value)
{
    char shown[80];
    snprintf(shown, sizeof shown, "%.*s", (int)(value.size < 60 ? value.size : 60), value.data);
    return moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                    "key 'tokenizer.huggingface.json': the pre-tokenizer's %s %s is not supported; "
                    "options.metadata_overrides can name one that cuts words alike "
                    "(tokenizer.ggml.pre=str:NAME)",
                    what, shown);
}

/* ---- Expressions ---- */

typedef struct pattern_writer {
    char *out;
    size_t n, capacity;
    bool in_class;
    bool fits; /* the expression fits into `out`, and PCRE2 can express it */
} pattern_writer;

static void put(pattern_writer *w, const char *text, size_t size)
{
    w->fits = w->fits && size < w->capacity - w->n;
    if (w->fits) {
        memcpy(w->out + w->n, text, size);
        w->n += size;
    }
}

static void put_text(pattern_writer *w, const char *text)
{
    put(w, text, strlen(text));
}

/* Rewrites "\p{Han}": in PCRE2 a script's name includes its extensions. */
static size_t rewrite_property(pattern_writer *w, const char *at)
{
    static const char *const scripts[] = {"Han",    "Hiragana", "Katakana", "Hangul",
                                          "Latin",  "Greek",    "Cyrillic", "Arabic",
                                          "Hebrew", "Thai",     "Bopomofo"};
    size_t size = strcspn(at, "}");
    if (at[2] != '{' || at[size] == '\0') {
        put(w, at, 2);
        return 2;
    }
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        size_t n = strlen(scripts[i]);
        if (size == n + 3 && memcmp(at + 3, scripts[i], n) == 0) {
            put(w, at, 3);
            put_text(w, "sc:");
            put(w, at + 3, n + 1);
            return size + 1;
        }
    }
    put(w, at, size + 1);
    return size + 1;
}

/* Rewrites the escape at `at`; returns its size. */
static size_t rewrite_escape(pattern_writer *w, const char *at)
{
    char c = at[1];
    if (c == 's' || c == 'S') {
        put_text(w, c == 's' ? "\\p{White_Space}" : "\\P{White_Space}");
    } else if (c == 'w') {
        put_text(w, w->in_class ? WORD : "[" WORD "]");
    } else if (c == 'W' && !w->in_class) {
        put_text(w, "[^" WORD "]");
    } else if (c == 'p' || c == 'P') {
        return rewrite_property(w, at);
    } else if (c == 'u') {
        size_t digits = strspn(at + 2, "0123456789abcdefABCDEF");
        w->fits = w->fits && digits >= 4;
        put_text(w, "\\x{");
        put(w, at + 2, digits >= 4 ? 4 : 0);
        put_text(w, "}");
        return w->fits ? 6 : 2;
    } else if (c == 'x' || (c != '\0' && strchr("dDrntfvAz", c) != NULL) ||
               (c > 0 && ispunct((unsigned char)c))) {
        put(w, at, 2);
    } else {
        w->fits = false; /* among others \b and \h, which mean something else, \K, \G and \C */
        return c == '\0' ? 1 : 2;
    }
    return 2;
}

/* Rewrites an expression of Oniguruma for PCRE2. */
static bool rewrite(const char *text, char *out, size_t capacity)
{
    pattern_writer w = {.out = out, .capacity = capacity, .fits = true};
    for (const char *at = text; *at != '\0' && w.fits;) {
        if (*at == '\\') {
            at += rewrite_escape(&w, at);
            continue;
        }
        bool odd = strncmp(at, "&&", 2) == 0 || (*at == '[' && at[1] != ':' && at[1] != '.');
        if (w.in_class && odd) {
            return false; /* PCRE2 has no intersections of classes, and no classes inside classes */
        }
        if (!w.in_class && *at == '(' &&
            (at[1] == '*' || (at[1] == '?' && strchr("<:=!i", at[2]) == NULL))) {
            return false; /* verbs, recursion, conditions, named calls */
        }
        if (!w.in_class && (*at == '$' || *at == '^')) {
            /* In Oniguruma these match at lines' ends. */
            put_text(&w, *at == '$' ? "(?=\\n|\\z)" : "(?<![^\\n])");
            at++;
            continue;
        }
        bool begins = !w.in_class && *at == '[';
        put(&w, at, 1);
        if (begins && at[1] == '^') {
            put(&w, ++at, 1);
        }
        if (begins && at[1] == ']') {
            put_text(&w, "\\");
            put(&w, ++at, 1);
        }
        w.in_class = begins || (w.in_class && *at != ']');
        at++;
    }
    if (!w.fits || w.in_class) {
        return false;
    }
    out[w.n] = '\0';
    return true;
}

/* ---- Steps ---- */

static char *next_pattern(reader *r)
{
    if (r->n == MOE_PRETOKENIZER_MAX_PATTERNS) {
        return NULL;
    }
    r->out->row.patterns[r->n] = r->out->texts[r->n];
    return r->out->texts[r->n++];
}

static int add_pattern(reader *r, const char *pattern)
{
    char *out = next_pattern(r);
    if (out == NULL) {
        return refuse(r, "number of steps", (moe_string_view){"", 0});
    }
    snprintf(out, sizeof r->out->texts[0], "%s", pattern);
    return MOE_OK;
}

static bool is_true(moe_string_view step, const char *name, bool absent)
{
    moe_string_view value;
    return moe_json_member(step, name, &value) ? moe_json_is(value, "true") : absent;
}

/* Adds a step that makes each match a separate word. ("Removed" with "invert" keeps only the
 * matches. Published expressions match all of a text, so that this is the same.) */
static int add_split(reader *r, moe_string_view step)
{
    moe_string_view behavior = {"\"Isolated\"", 10};
    moe_string_view pattern;
    moe_string_view value = {"", 0};
    char text[sizeof r->out->texts[0] / 2];
    (void)moe_json_member(step, "behavior", &behavior);
    bool inverted = is_true(step, "invert", false);
    bool isolated = moe_json_is_text(behavior, "Isolated");
    if (!isolated && !(inverted && moe_json_is_text(behavior, "Removed"))) {
        return refuse(r, "behavior", behavior);
    }
    if (!moe_json_member(step, "pattern", &pattern)) {
        return refuse(r, "step", step);
    }
    char *out = next_pattern(r);
    if (out == NULL) {
        return refuse(r, "number of steps", (moe_string_view){"", 0});
    }
    const size_t capacity = sizeof r->out->texts[0];
    if (moe_json_member(pattern, "Regex", &value)) {
        bool written = moe_json_text(value, text, sizeof text) && rewrite(text, out, capacity);
        return written ? MOE_OK : refuse(r, "expression", value);
    }
    if (!moe_json_member(pattern, "String", &value) || !moe_json_text(value, text, sizeof text) ||
        text[0] == '\0' || strstr(text, "\\E") != NULL) {
        return refuse(r, "pattern", pattern);
    }
    snprintf(out, capacity, "\\Q%s\\E", text);
    return MOE_OK;
}

static int add_step(reader *r, moe_string_view step, int depth)
{
    moe_string_view type;
    moe_string_view steps;
    if (depth > MAX_DEPTH || !moe_json_member(step, "type", &type)) {
        return refuse(r, "step", step);
    }
    if (moe_json_is_text(type, "Sequence") && moe_json_member(step, "pretokenizers", &steps)) {
        moe_string_view inner;
        for (size_t at = 0; moe_json_element(steps, &at, &inner);) {
            MOE_TRY(add_step(r, inner, depth + 1));
        }
        return MOE_OK;
    }
    if (moe_json_is_text(type, "Split")) {
        return add_split(r, step);
    }
    if (moe_json_is_text(type, "ByteLevel")) {
        if (is_true(step, "add_prefix_space", true)) {
            return refuse(r, "step with add_prefix_space", type);
        }
        return is_true(step, "use_regex", true) ? add_pattern(r, GPT2) : MOE_OK;
    }
    if (moe_json_is_text(type, "Digits")) {
        return add_pattern(r, is_true(step, "individual_digits", false) ? "\\p{N}" : "\\p{N}+");
    }
    moe_string_view behavior = {"\"Isolated\"", 10};
    (void)moe_json_member(step, "behavior", &behavior);
    if (moe_json_is_text(type, "Punctuation") && moe_json_is_text(behavior, "Isolated")) {
        return add_pattern(r, PUNCTUATION);
    }
    return refuse(r, "step", type);
}

/* Accepts NFC, or no normalisation. */
static int read_normalizer(reader *r, moe_string_view normalizer, int depth)
{
    moe_string_view type = {"", 0};
    moe_string_view steps;
    if (moe_json_is(normalizer, "null")) {
        return MOE_OK;
    }
    (void)moe_json_member(normalizer, "type", &type);
    if (moe_json_is_text(type, "NFC")) {
        r->out->row.nfc = true;
        return MOE_OK;
    }
    if (depth < MAX_DEPTH && moe_json_is_text(type, "Sequence") &&
        moe_json_member(normalizer, "normalizers", &steps)) {
        moe_string_view inner;
        for (size_t at = 0; moe_json_element(steps, &at, &inner);) {
            MOE_TRY(read_normalizer(r, inner, depth + 1));
        }
        return MOE_OK;
    }
    return refuse(r, "normalizer", type.size > 0 ? type : normalizer);
}

int moe_pretokenizer_from_json(moe_pretokenizer_json *out, moe_string_view json, moe_error *err)
{
    *out = (moe_pretokenizer_json){.row = {.names = "tokenizer.huggingface.json"}};
    reader r = {.out = out, .err = err};
    moe_string_view value;
    moe_string_view type = {"", 0};
    if (!moe_json_member(json, "pre_tokenizer", &value)) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "key 'tokenizer.huggingface.json' has no member \"pre_tokenizer\"");
    }
    int status =
        moe_json_is(value, "null") ? refuse(&r, "absence,", value) : add_step(&r, value, 0);
    if (status == MOE_OK && moe_json_member(json, "normalizer", &value)) {
        status = read_normalizer(&r, value, 0);
    }
    if (status == MOE_OK && moe_json_member(json, "model", &value)) {
        bool bpe = moe_json_member(value, "type", &type) && moe_json_is_text(type, "BPE");
        status = bpe ? MOE_OK : refuse(&r, "model beside it,", type);
        out->row.whole_words = is_true(value, "ignore_merges", false);
    }
    return status;
}
