/* SPDX-License-Identifier: MIT */
/* What it costs to hold a text to a JSON schema: the time of the mask of allowed tokens, a token of
 * the text after the other, on a vocabulary of 150,000 tokens that is made here: bytes, numbers,
 * runs of spaces and punctuation, and words of syllables with and without a space before them. The
 * text is chosen by a random walk: any allowed token, mostly a short way through strings.
 * Arguments: tokens to write for each schema, and a vocabulary in place of the one that is made: a
 * GGUF file, or one in the form of tiktoken's (a token in base64 and its number on a line). With
 * "check" behind it each mask is compared with trying every token by itself. Times are those of the
 * processor. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <moe/allowance.h>
#include <moe/grammar.h>
#include <moe/moe.h>

#include "runtime/engine/engine_state.h"

enum { MADE_TOKENS = 150000, MOST_TOKENS = 1 << 18, LONGEST_TOKEN = 128, LONGEST_TEXT = 400 };

typedef struct vocabulary {
    uint32_t n;
    char (*texts)[LONGEST_TOKEN];
    uint8_t *sizes;
} vocabulary;

static uint64_t random_state = 88172645463325252u;

static uint32_t random_below(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 33) % n);
}

static void add(vocabulary *v, const char *text, size_t size)
{
    if (v->n < MOST_TOKENS && size > 0 && size < LONGEST_TOKEN) {
        memcpy(v->texts[v->n], text, size);
        v->sizes[v->n++] = (uint8_t)size;
    }
}

static void make(vocabulary *v)
{
    static const char *const begins[] = {"b", "c", "d", "f", "g", "h", "l",  "m",  "n",  "p", "r",
                                         "s", "t", "v", "w", "k", "",  "st", "tr", "pl", "B", "S"};
    static const char *const middles[] = {"a",  "e",  "i",  "o", "u",
                                          "ea", "ou", "io", "y", "\xc3\xa9"};
    static const char *const ends[] = {"",  "n", "r", "s",  "t",  "l",   "ng",  "ck",
                                       "m", "d", "y", "er", "ed", "ing", "ion", "_"};
    static const char marks[] = "{}[]\":,.-+/\\()<>=_'!?*&%$#@;|~`\n\t ";
    char text[LONGEST_TOKEN];
    for (int i = 0; i < 256; i++) {
        text[0] = (char)i;
        add(v, text, 1);
    }
    for (int i = 10; i < 1000; i++) {
        add(v, text, (size_t)snprintf(text, sizeof text, "%d", i));
    }
    for (size_t i = 0; marks[i] != '\0'; i++) {
        for (size_t k = 0; marks[k] != '\0'; k++) {
            for (size_t j = 0; j < 6; j++) {
                add(v, text,
                    (size_t)snprintf(text, sizeof text, "%c%c%c", marks[i], marks[k], marks[j]));
            }
            add(v, text, (size_t)snprintf(text, sizeof text, "%c%c", marks[i], marks[k]));
        }
    }
    for (int i = 2; i < 100; i++) {
        add(v, text, (size_t)snprintf(text, sizeof text, "%*s", i, ""));
    }
    while (v->n < MADE_TOKENS) {
        size_t size = (size_t)snprintf(text, sizeof text, "%s", random_below(2) == 0 ? " " : "");
        const uint32_t n = 1 + random_below(3);
        for (uint32_t i = 0; i < n; i++) {
            size += (size_t)snprintf(text + size, sizeof text - size, "%s%s%s",
                                     begins[random_below(sizeof begins / sizeof begins[0])],
                                     middles[random_below(sizeof middles / sizeof middles[0])],
                                     ends[random_below(sizeof ends / sizeof ends[0])]);
        }
        add(v, text, size);
    }
}

static int digit_of(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c == '\0' ? NULL : strchr(digits, c);
    return at == NULL ? -1 : (int)(at - digits);
}

static void read_vocabulary(vocabulary *v, const char *path)
{
    char line[512], text[LONGEST_TOKEN * 3];
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        uint32_t word = 0, n_bits = 0;
        size_t size = 0;
        for (const char *at = line; digit_of(*at) >= 0; at++) {
            word = word << 6 | (uint32_t)digit_of(*at);
            n_bits += 6;
            if (n_bits >= 8) {
                n_bits -= 8;
                text[size++] = (char)(word >> n_bits & 255);
            }
        }
        add(v, text, size);
    }
    if (file != NULL) {
        fclose(file);
    }
}

static bool read_gguf(vocabulary *v, const char *path)
{
    moe_engine_options options;
    moe_engine *engine = NULL;
    moe_error err = {""};
    moe_engine_options_init(&options);
    options.model_path = path;
    options.vocabulary_only = true;
    if (moe_engine_open(&engine, &options, &err) != MOE_OK) {
        fprintf(stderr, "%s\n", err.message);
        return false;
    }
    for (uint32_t t = 0; t < moe_tokenizer_n_tokens(engine->tokenizer); t++) {
        size_t size;
        const char *text = moe_token_piece(engine, (int32_t)t, false, &size);
        add(v, text, size);
    }
    moe_engine_close(&engine);
    return true;
}

static moe_token_text text_of(const void *user, int32_t token)
{
    const vocabulary *v = user;
    bool is_end = (uint32_t)token == v->n; /* behind the others */
    return (moe_token_text){is_end ? "" : v->texts[token], is_end ? 0 : v->sizes[token], is_end,
                            is_end};
}

static const struct {
    const char *name, *schema;
} schemas[] = {
    {"tool call", "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{"
                  "\"type\":\"integer\","
                  "\"minimum\":1,\"maximum\":14},\"unit\":{\"enum\":[\"celsius\",\"fahrenheit\"]}},"
                  "\"required\":[\"city\",\"days\"],\"additionalProperties\":false}"},
    {"any object", "{\"type\":\"object\"}"},
    {"formats",
     "{\"type\":\"object\",\"properties\":{\"at\":{\"type\":\"string\",\"format\":\"date-time\"},"
     "\"id\":{"
     "\"type\":\"string\",\"format\":\"uuid\"},\"mail\":{\"type\":\"string\",\"format\":\"email\"},"
     "\"code\":{\"type\":\"string\",\"pattern\":\"^[A-Z]{2,5}-[0-9]+$\"}},"
     "\"required\":[\"at\",\"id\",\"mail\",\"code\"]}"},
    {"nested lists",
     "{\"type\":\"array\",\"minItems\":2,\"items\":{\"type\":\"object\",\"properties\":{\"name\":{"
     "\"type\":"
     "\"string\",\"maxLength\":40},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},"
     "\"score\":{"
     "\"type\":\"number\"},\"next\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"boolean\"}]}},"
     "\"required\":[\"name\",\"tags\",\"score\"]}}"},
    {"counted", "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},"
                "{\"type\":\"string\",\"pattern\":\"^[a-zé漢 ]{1,4}$\"},"
                "{\"type\":\"string\",\"minLength\":2,\"maxLength\":90}]}}"},
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* others may use the processor */
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* An allowed token, at random; one that has a quote or a bracket is preferred, so that texts end.
 */
static int32_t choose(const vocabulary *v, const uint64_t *mask)
{
    int32_t chosen = -1;
    for (uint32_t tries = 0, n_found = 0; tries < 400000 && n_found < 6; tries++) {
        const uint32_t token = random_below(v->n + 1);
        if ((mask[token / 64] >> (token % 64) & 1) == 0) {
            continue;
        }
        n_found++;
        chosen = (int32_t)token;
        if (token == v->n || memchr(v->texts[token], '"', v->sizes[token]) != NULL ||
            memchr(v->texts[token], ']', v->sizes[token]) != NULL) {
            break;
        }
    }
    for (uint32_t token = 0; chosen < 0 && token <= v->n; token++) {
        chosen = (mask[token / 64] >> (token % 64) & 1) != 0 ? (int32_t)token : -1;
    }
    return chosen;
}

/* Whether the mask allows what trying each token by itself allows. */
static bool is_right(const vocabulary *v, moe_token_constraint *c, const uint64_t *mask)
{
    const uint32_t begin = c->n == 0 ? c->first_state : c->states[c->n - 1];
    bool right = !c->failed;
    for (uint32_t t = 0; t < v->n && right; t++) {
        uint32_t state = begin;
        for (size_t i = 0; i < v->sizes[t] && state != MOE_MATCH_DEAD; i++) {
            state = moe_matcher_step(&c->matcher, state, (uint8_t)v->texts[t][i]);
        }
        right = (mask[t / 64] >> (t % 64) & 1) == (state != MOE_MATCH_DEAD);
        if (!right) {
            fprintf(stderr, "token %u '%.*s' is masked wrongly\n", t, (int)v->sizes[t],
                    v->texts[t]);
        }
    }
    return right && !c->matcher.exhausted;
}

/* Returns the number of times, or -1. */
static long measure(const vocabulary *v, const moe_token_keys *keys, const char *schema,
                    bool checks, double *times, long n_times)
{
    static int32_t timeline[LONGEST_TEXT];
    char *text = NULL;
    moe_grammar *grammar = NULL;
    moe_error err = {""};
    moe_allowance allowance = {.bytes = UINT64_C(1) << 30, .steps = UINT64_MAX};
    long n = 0;
    int status = moe_json_schema_grammar_within(&text, schema, strlen(schema), &allowance, &err);
    status = status == 0 ? moe_grammar_create_within(&grammar, text, strlen(text), &allowance, &err)
                         : status;
    while (n < n_times && status == 0) {
        moe_token_constraint *constraint = NULL;
        status = moe_token_constraint_create(&constraint, grammar, keys, 0, &err);
        for (size_t at = 0; at < LONGEST_TEXT && n < n_times && status == 0; at++) {
            const double begin = now_us();
            const uint64_t *mask = moe_token_constraint_mask(constraint, timeline, at);
            times[n++] = now_us() - begin;
            if (checks && !is_right(v, constraint, mask)) {
                status = -1;
                break;
            }
            timeline[at] = choose(v, mask);
            if ((uint32_t)timeline[at] == v->n) {
                break;
            }
        }
        moe_token_constraint_free(&constraint);
    }
    if (status != 0) {
        fprintf(stderr, "%s\n", err.message);
    }
    moe_grammar_close(&grammar);
    moe_free(text);
    return status == 0 ? n : -1;
}

int main(int argc, char **argv)
{
    const long n_times = argc > 1 ? atol(argv[1]) : 2000;
    vocabulary v = {0, calloc(MOST_TOKENS + 1, LONGEST_TOKEN), calloc(MOST_TOKENS + 1, 1)};
    double *times = calloc((size_t)(n_times > 0 ? n_times : 1), sizeof *times);
    moe_error err = {""};
    moe_token_keys *keys = NULL;
    bool failed = v.texts == NULL || v.sizes == NULL || times == NULL || n_times <= 0;
    const char *path = argc > 2 ? argv[2] : "";
    const size_t length = strlen(path);
    if (!failed && length > 5 && strcmp(path + length - 5, ".gguf") == 0) {
        failed = !read_gguf(&v, path);
    } else if (!failed && length > 0) {
        read_vocabulary(&v, path);
    } else if (!failed) {
        make(&v);
    }
    const moe_token_source source = {v.n + 1, text_of, &v};
    failed = failed || v.n == 0 || moe_token_keys_create(&keys, &source, &err) != 0;
    printf("%u tokens, %ld masks for each schema, microseconds\n", v.n, n_times);
    for (size_t i = 0; i < sizeof schemas / sizeof schemas[0] && !failed; i++) {
        const long n = measure(&v, keys, schemas[i].schema, argc > 3, times, n_times);
        failed = n <= 0;
        if (!failed) {
            qsort(times, (size_t)n, sizeof *times, compare);
            printf("%-14s median %8.1f   p99 %8.1f   most %8.1f\n", schemas[i].name, times[n / 2],
                   times[(size_t)((double)n * 0.99)], times[n - 1]);
        }
    }
    moe_token_keys_free(&keys);
    free(v.texts);
    free(v.sizes);
    free(times);
    return failed;
}
