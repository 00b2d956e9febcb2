/* SPDX-License-Identifier: MIT */
/* Grammars, schemas, conversations and texts that are small and made to cost much: each ends within
 * its steps and its bytes, with an error or with a result, and ends when the caller stops it. Steps
 * are counted, not timed. Argument: the demo model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <moe/allowance.h>
#include <moe/moe.h>

#include "runtime/grammar/grammar_matcher.h"

static const char *model;

typedef struct text {
    char *data;
    size_t size, capacity;
} text;

static void add(text *t, const char *part)
{
    size_t n = strlen(part);
    if (t->size + n + 1 > t->capacity) {
        t->capacity = 2 * (t->size + n + 1);
        t->data = realloc(t->data, t->capacity);
        assert_non_null(t->data);
    }
    memcpy(t->data + t->size, part, n + 1);
    t->size += n;
}

static void add_many(text *t, const char *part, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        add(t, part);
    }
}

static void add_numbered(text *t, const char *format, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char part[128];
        snprintf(part, sizeof part, format, i, i);
        add(t, part);
    }
}

/* ---- What costs much ---- */

static text spaces_repeated(void)
{
    text t = {NULL, 0, 0};
    add(&t, "root ::= (( \"\" ");
    add_many(&t, " ", 300000);
    add(&t, "){240}){250}");
    return t;
}

static text comments_repeated(void)
{
    text t = {NULL, 0, 0};
    add(&t, "root ::= (( #");
    add_many(&t, "x", 300000);
    add(&t, "\n \"\"){240}){250}");
    return t;
}

static text literals_repeated(void)
{
    text t = {NULL, 0, 0};
    add(&t, "root ::= ((\"");
    add_many(&t, "x", 100000);
    add(&t, "\"){2000}){2000}");
    return t;
}

static text classes_repeated(void)
{
    text t = {NULL, 0, 0};
    add(&t, "root ::= ((([^");
    add_many(&t, "ab", 100);
    add(&t, "]{0,0}){2000}){2000}){2000}");
    return t;
}

/* All names have one hash: every call looks at all of them. */
static text names_alike(void)
{
    text t = {NULL, 0, 0};
    uint32_t n = 0;
    text names = {NULL, 0, 0};
    for (uint32_t i = 0; n < 3000; i++) {
        char name[16];
        uint32_t hash = 2166136261u;
        snprintf(name, sizeof name, "a%07u", i);
        for (size_t k = 0; name[k] != '\0'; k++) {
            hash = (hash ^ (unsigned char)name[k]) * 16777619u;
        }
        if (hash % MOE_GRAMMAR_BUCKETS == 7) {
            add(&t, name);
            add(&t, " ::= \"\"\n");
            add(&names, " ");
            add(&names, name);
            n++;
        }
    }
    add(&t, "root ::= (");
    add(&t, names.data);
    add(&t, "){40}");
    free(names.data);
    return t;
}

/* Each rule can read nothing only if one that comes elsewhere can. */
static text nullable_in_disorder(void)
{
    text t = {NULL, 0, 0};
    add(&t, "root ::= r0\n");
    for (size_t i = 0; i < 4000; i++) {
        char part[160];
        size_t next = (i * 1999 + 1) % 4001;
        snprintf(part, sizeof part, "r%zu ::= r%zu r%zu r%zu r%zu | \"a\"\n", i, next, next, next,
                 next);
        add(&t, part);
    }
    add(&t, "r4000 ::= \"\"\n");
    return t;
}

/* A row of rules, each of which calls the next before it reads. */
static text deep_rules(void)
{
    text t = {NULL, 0, 0};
    add(&t, "root ::= r0\n");
    for (size_t i = 0; i < 4000; i++) {
        char part[64];
        snprintf(part, sizeof part, "r%zu ::= r%zu\n", i, i + 1);
        add(&t, part);
    }
    add(&t, "r4000 ::= \"x\"\n");
    return t;
}

static text required_and_properties(void)
{
    text t = {NULL, 0, 0};
    add(&t, "{\"type\": \"object\", \"properties\": {");
    add_numbered(&t, "\"property%06zu\": {},", 900);
    add(&t, "\"z\": {}}, \"required\": [");
    add_numbered(&t, "\"property%06zu\",", 900);
    add(&t, "\"z\"]}");
    return t;
}

static text many_required(void)
{
    text t = {NULL, 0, 0};
    add(&t, "{\"type\": [");
    add_many(&t, "\"object\",", 5000);
    add(&t, "\"null\"], \"properties\": {\"a\": {}}, \"additionalProperties\": false, "
            "\"required\": [");
    add_many(&t, "\"a\",", 60000);
    add(&t, "\"a\"]}");
    return t;
}

static text refs_to_all(void)
{
    text t = {NULL, 0, 0};
    add(&t, "{\"$defs\": {");
    add_numbered(&t, "\"d%zu\": {\"enum\": [%zu]},", 400);
    add(&t, "\"e\": {}}, \"anyOf\": [");
    add_numbered(&t, "{\"$ref\": \"#/$defs/d%zu\"},", 400);
    add_many(&t, "{\"$ref\": \"#/$defs/d399\"},", 20000);
    add(&t, "{}]}");
    return t;
}

static const struct {
    const char *name;
    text (*make)(void);
    bool is_schema;
    bool is_read; /* no error */
} costly[] = {
    {"white space that is repeated", spaces_repeated, false, false},
    {"comments that are repeated", comments_repeated, false, false},
    {"literals that are repeated", literals_repeated, false, false},
    {"classes that are repeated", classes_repeated, false, false},
    {"names with one hash", names_alike, false, false},
    {"rules that may read nothing", nullable_in_disorder, false, false},
    {"rules that call each other in a row", deep_rules, false, true},
    {"required, and as many properties", required_and_properties, true, true},
    {"required of many types", many_required, true, false},
    {"references", refs_to_all, true, true},
};

static int read_within(const text *t, bool is_schema, moe_allowance *allowance, moe_error *err)
{
    moe_grammar *g = NULL;
    char *grammar = NULL;
    int status = is_schema
                     ? moe_json_schema_grammar_within(&grammar, t->data, t->size, allowance, err)
                     : MOE_OK;
    const char *source = is_schema ? grammar : t->data;
    if (status == MOE_OK) {
        status = moe_grammar_create_within(&g, source, strlen(source), allowance, err);
    }
    allowance->bytes_now -= grammar != NULL ? allowance->bytes_now - moe_grammar_bytes(g) : 0;
    moe_free(grammar);
    if (g != NULL) {
        assert_true(moe_grammar_bytes(g) <= allowance->bytes_now);
        allowance->bytes_now -= moe_grammar_bytes(g);
    }
    moe_grammar_close(&g);
    return status;
}

/* By the library's own limits. */
static void ends(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof costly / sizeof costly[0]; i++) {
        text t = costly[i].make();
        moe_allowance allowance = {.bytes = 0};
        moe_error err = {""};
        int status = read_within(&t, costly[i].is_schema, &allowance, &err);
        if ((status == MOE_OK) != costly[i].is_read || allowance.steps_taken > 20100000 ||
            allowance.bytes_now != 0 || (status != MOE_OK && err.message[0] == '\0')) {
            fail_msg("%s: %d (%s), %llu steps, %llu bytes of %llu left", costly[i].name, status,
                     err.message, (unsigned long long)allowance.steps_taken,
                     (unsigned long long)allowance.bytes_now,
                     (unsigned long long)allowance.bytes_peak);
        }
        free(t.data);
    }
}

static bool stops(void *user)
{
    ++*(unsigned *)user;
    return true;
}

/* By the caller's limits: whatever they are, the call ends there and all is given back. */
static void allowed(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof costly / sizeof costly[0]; i++) {
        text t = costly[i].make();
        moe_allowance whole = {.bytes = 0};
        moe_error err = {""};
        int status = read_within(&t, costly[i].is_schema, &whole, &err);
        for (uint64_t part = 2; part <= 64; part *= 2) {
            moe_allowance few = {.steps = whole.steps_taken / part};
            int with_few = read_within(&t, costly[i].is_schema, &few, &err);
            moe_allowance small = {.bytes = whole.bytes_peak / part};
            moe_error small_err = {""};
            int with_small = read_within(&t, costly[i].is_schema, &small, &small_err);
            if (with_few != MOE_ERR_BUDGET || strstr(err.message, "steps") == NULL ||
                with_small != MOE_ERR_BUDGET || strstr(small_err.message, "bytes") == NULL ||
                small.bytes_peak > small.bytes || few.bytes_now + small.bytes_now != 0) {
                fail_msg("%s: a part of 1/%u: %d (%s), %d (%s)", costly[i].name, (unsigned)part,
                         with_few, err.message, with_small, small_err.message);
            }
        }
        unsigned asked = 0;
        moe_allowance stopped = {.stopped = stops, .user = &asked};
        int now = read_within(&t, costly[i].is_schema, &stopped, &err);
        assert_int_equal(now, whole.steps_taken >= 65536 ? MOE_ERR_CANCELLED : status);
        assert_int_equal(asked, whole.steps_taken >= 65536);
        free(t.data);
    }
}

/* ---- Enums of many values ---- */

static char judge(const moe_grammar *grammar, const char *said)
{
    moe_matcher m;
    assert_int_equal(moe_matcher_init(&m, grammar, NULL), MOE_OK);
    uint32_t at = moe_matcher_start(&m);
    for (size_t i = 0; said[i] != '\0'; i++) {
        (void)moe_matcher_tidy(&m, &at);
        at = moe_matcher_step(&m, at, (uint8_t)said[i]);
    }
    assert_false(m.exhausted);
    char result = moe_matcher_is_complete(&m, at) ? 'y' : at == MOE_MATCH_DEAD ? 'n' : 'b';
    moe_matcher_free(&m);
    return result;
}

static moe_grammar *grammar_of(const text *schema)
{
    moe_error err = {""};
    char *said;
    moe_grammar *g;
    if (moe_json_schema_grammar(&said, schema->data, schema->size, &err) != MOE_OK ||
        moe_grammar_create(&g, said, strlen(said), &err) != MOE_OK) {
        fail_msg("%.100s: %s", schema->data, err.message);
        return NULL;
    }
    moe_free(said);
    return g;
}

static void enums(void **state)
{
    (void)state;
    text t = {NULL, 0, 0};
    add(&t, "{\"enum\": [null, -5, -51, \"\", \"\\u00e9\", \"\\u00ea\", \"a\\\"\", \"a\", \"a\", "
            "{\"k\": 1},");
    add_numbered(&t, "\"value %zu of many\",", 10000);
    add(&t, "12]}");
    moe_grammar *g = grammar_of(&t);
    static const struct {
        const char *said;
        char judged;
    } cases[] = {{"null", 'y'},
                 {"-5", 'y'},
                 {"-51", 'y'},
                 {"-52", 'n'},
                 {"12", 'y'},
                 {"1", 'b'},
                 {"\"\"", 'y'},
                 {"\"\xc3\xa9\"", 'y'},
                 {"\"\xc3\xaa\"", 'y'},
                 {"\"\xc3\xab\"", 'n'},
                 {"\"a\"", 'y'},
                 {"\"a\\\"\"", 'y'},
                 {"{\"k\":1}", 'y'},
                 {"\"value 0 of many\"", 'y'},
                 {"\"value 9999 of many\"", 'y'},
                 {"\"value 10000 of many\"", 'n'},
                 {"\"value 999 of", 'b'},
                 {"", 'b'}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char judged = judge(g, cases[i].said);
        if (judged != cases[i].judged) {
            fail_msg("%s: %c", cases[i].said, judged);
        }
    }
    moe_grammar_close(&g);
    /* Each value begins another one: the tree is as deep as they are many. */
    t.size = 0;
    add(&t, "{\"enum\": [");
    char value[512] = "";
    for (size_t i = 0; i < 300; i++) {
        value[i] = 'x';
        add(&t, i == 0 ? "\"" : ",\"");
        add(&t, value);
        add(&t, "\"");
    }
    add(&t, "]}");
    g = grammar_of(&t);
    char said[520];
    for (size_t i = 0; i < 302; i += 43) {
        snprintf(said, sizeof said, "\"%.*s\"", (int)i,
                 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
        assert_int_equal(judge(g, said), i == 0 ? 'n' : 'y');
    }
    snprintf(said, sizeof said, "\"%s\"", value);
    assert_int_equal(judge(g, said), 'y');
    snprintf(said, sizeof said, "\"%sx", value);
    assert_int_equal(judge(g, said), 'n');
    moe_grammar_close(&g);
    free(t.data);
}

/* ---- Lists of many alternatives ---- */

typedef struct cost {
    uint64_t steps, bytes;
} cost;

static const struct {
    const char *first, *next, *behind; /* of the root rule */
    const char *others;                /* rules, or NULL */
    size_t most;
} lists[] = {
    {"\"value %zu of many\"", " | \"value %zu of many\"", "", NULL, 100000},
    {"(\"(\" (\"value %zu of many\"", " | \"value %zu of many\"", ") \")\"?)", NULL, 100000},
    {"\"value %zu \" word", " | \"value %zu \" word", "", "word ::= \"of \" (\"many\" | \"few\")\n",
     100000},
    {"word%zu", " | word%zu", "", "word%zu ::= \"value %zu of many\"\n", 4000},
};

static moe_grammar *read_list(size_t which, size_t n, cost *taken)
{
    text t = {NULL, 0, 0};
    char part[128];
    moe_grammar *g = NULL;
    moe_error err = {""};
    moe_allowance allowance = {.bytes = 0};
    add(&t, "root ::= ");
    for (size_t i = 0; i < n; i++) {
        snprintf(part, sizeof part, i == 0 ? lists[which].first : lists[which].next, i);
        add(&t, part);
    }
    add(&t, lists[which].behind);
    add(&t, "\n");
    if (lists[which].others != NULL) {
        add_numbered(&t, lists[which].others, strchr(lists[which].others, '%') != NULL ? n : 1);
    }
    if (moe_grammar_create_within(&g, t.data, t.size, &allowance, &err) != MOE_OK) {
        fail_msg("list %zu, %zu alternatives: %s", which, n, err.message);
    }
    assert_int_equal(moe_grammar_bytes(g), allowance.bytes_now);
    *taken = (cost){allowance.steps_taken, allowance.bytes_peak};
    free(t.data);
    return g;
}

/* As many alternatives as users have: reading them costs in proportion, and following them costs
 * what the text says, not what the others might have said. */
static void alternatives(void **state)
{
    (void)state;
    for (size_t which = 0; which < sizeof lists / sizeof lists[0]; which++) {
        const char *open = which == 1 ? "(" : "", *close = which == 1 ? ")" : "";
        cost before = {0, 0};
        for (size_t n = lists[which].most / 100; n <= lists[which].most; n *= 10) {
            const struct {
                size_t number;
                const char *rest;
                char judged;
            } cases[] = {{0, " of many", 'y'},     {n - 1, " of many", 'y'},
                         {n - 1, " of man", 'b'},  {n, " of many", 'n'},
                         {n / 2, " of many", 'y'}, {n / 2, " of lots", 'n'},
                         {n - 1, " of many)", 'n'}};
            cost taken;
            moe_grammar *g = read_list(which, n, &taken);
            for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
                char said[64];
                char right = which == 1 && i == 6 ? 'y' : cases[i].judged;
                snprintf(said, sizeof said, "%svalue %zu%s%s", open, cases[i].number, cases[i].rest,
                         i < 2 ? close : "");
                if (judge(g, said) != right) {
                    fail_msg("list %zu of %zu: '%s' is not judged %c", which, n, said, right);
                }
            }
            moe_matcher m;
            assert_int_equal(moe_matcher_init(&m, g, NULL), MOE_OK);
            uint32_t at = moe_matcher_start(&m);
            for (const char *c = which == 1 ? "(value 1" : "value 1"; *c != '\0'; c++) {
                at = moe_matcher_step(&m, at, (uint8_t)*c);
            }
            assert_true(which == 3 ? m.n_followed <= 16 * n : m.n_followed < 200);
            moe_matcher_free(&m);
            moe_grammar_close(&g);
            if (before.steps != 0 &&
                (taken.steps >= 14 * before.steps || taken.bytes >= 21 * before.bytes)) {
                fail_msg("list %zu of %zu: %llu steps and %llu bytes, of a tenth %llu and %llu",
                         which, n, (unsigned long long)taken.steps, (unsigned long long)taken.bytes,
                         (unsigned long long)before.steps, (unsigned long long)before.bytes);
            }
            before = taken;
        }
    }
}

/* ---- Texts and conversations ---- */

static moe_engine *open_vocabulary(void)
{
    moe_engine *engine = NULL;
    moe_engine_options options;
    moe_error err = {""};
    moe_engine_options_init(&options);
    options.model_path = model;
    options.vocabulary_only = true;
    if (moe_engine_open(&engine, &options, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    return engine;
}

static void tokens_within(void **state)
{
    (void)state;
    moe_engine *engine = open_vocabulary();
    static const char *const parts[] = {"a", "The cat sat. ", "a ", "e\xcc\x81", "\xff", "\n", "1"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        text t = {NULL, 0, 0};
        int32_t *tokens, *same;
        size_t n, n_same;
        moe_error err = {""};
        add_many(&t, parts[i], 100000 / strlen(parts[i]));
        moe_allowance whole = {.bytes = 0};
        assert_int_equal(moe_tokenize_within(engine, t.data, t.size, 0, &tokens, &n, &whole, &err),
                         MOE_OK);
        assert_int_equal(moe_tokenize(engine, t.data, t.size, 0, &same, &n_same, &err), MOE_OK);
        assert_int_equal(n, n_same);
        assert_memory_equal(tokens, same, n * sizeof *tokens);
        assert_true(whole.bytes_now >= n * sizeof *tokens && whole.bytes_now <= 8 * t.size + 1024);
        moe_free(tokens);
        moe_free(same);
        for (uint64_t bytes = 1000; bytes < whole.bytes_peak; bytes *= 3) {
            moe_allowance few = {.bytes = bytes};
            assert_int_equal(
                moe_tokenize_within(engine, t.data, t.size, 0, &tokens, &n, &few, &err),
                MOE_ERR_BUDGET);
            assert_true(few.bytes_now == 0 && few.bytes_peak <= bytes && tokens == NULL);
        }
        unsigned asked = 0;
        moe_allowance stopped = {.stopped = stops, .user = &asked};
        assert_int_equal(
            moe_tokenize_within(engine, t.data, t.size, 0, &tokens, &n, &stopped, &err),
            MOE_ERR_CANCELLED);
        free(t.data);
    }
    /* A word of a megabyte: what `serve` has for taking a request apart, from a budget of 256 MiB
     * on. */
    text word = {NULL, 0, 0};
    int32_t *tokens;
    size_t n;
    moe_error err = {""};
    add_many(&word, "a", 1000000);
    moe_allowance most = {.bytes = 0};
    assert_int_equal(moe_tokenize_within(engine, word.data, word.size, 0, &tokens, &n, &most, &err),
                     MOE_OK);
    if (most.bytes_peak > 30000000) {
        fail_msg("a word of 1 MB: %llu bytes", (unsigned long long)most.bytes_peak);
    }
    moe_free(tokens);
    free(word.data);
    moe_engine_close(&engine);
}

static int render(const moe_engine *engine, const char *messages, const char *chat_template,
                  moe_allowance *allowance, moe_error *err)
{
    moe_chat_prompt *prompt = NULL;
    moe_chat_options options;
    moe_chat_options_init(&options);
    options.messages = messages;
    options.template_text = chat_template;
    int status = moe_chat_render_within(&prompt, engine, &options, allowance, err);
    moe_chat_prompt_close(&prompt);
    return status;
}

static void conversations_within(void **state)
{
    (void)state;
    static const char joins[] =
        "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t + m.content %}"
        "{% endfor %}{{ ns.t }}";
    moe_engine *engine = open_vocabulary();
    moe_error err = {""};
    text t = {NULL, 0, 0};
    add(&t, "[");
    add_numbered(&t, "{\"role\": \"user\", \"content\": \"The cat %zu sat down.\"},", 2000);
    add(&t, "{\"role\": \"user\", \"content\": \"\"}]");
    moe_allowance whole = {.bytes = 0};
    assert_int_equal(render(engine, t.data, joins, &whole, &err), MOE_OK);
    assert_true(whole.bytes_now < 20 * t.size);
    for (uint64_t part = 2; part <= 1024; part *= 4) {
        moe_allowance small = {.bytes = whole.bytes_peak / part};
        moe_allowance few = {.steps = whole.steps_taken / part};
        assert_int_equal(render(engine, t.data, joins, &small, &err), MOE_ERR_BUDGET);
        assert_true(small.bytes_now == 0 && small.bytes_peak <= small.bytes);
        assert_int_equal(render(engine, t.data, joins, &few, &err), MOE_ERR_BUDGET);
        assert_int_equal(few.bytes_now, 0);
    }
    unsigned asked = 0;
    moe_allowance stopped = {.stopped = stops, .user = &asked};
    assert_int_equal(render(engine, t.data, joins, &stopped, &err), MOE_ERR_CANCELLED);
    assert_int_equal(asked, 1);
    free(t.data);
    moe_engine_close(&engine);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends),          cmocka_unit_test(allowed),
        cmocka_unit_test(enums),         cmocka_unit_test(alternatives),
        cmocka_unit_test(tokens_within), cmocka_unit_test(conversations_within),
    };
    if (argc != 2) {
        return 1;
    }
    model = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
