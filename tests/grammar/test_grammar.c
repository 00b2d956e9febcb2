/* SPDX-License-Identifier: MIT */
/* Grammars: texts that match and that do not, errors by their line, JSON schemas, masks against
 * trying every token, and what is sampled with and without drafts. Argument: the demo model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <moe/allowance.h>
#include <moe/grammar.h>
#include <moe/lab.h>
#include <moe/moe.h>

#include "runtime/grammar/reasoned_grammar.h"
#include "runtime/grammar/token_constraint.h"

static const char *model;

/* 'y': matches, 'b': begins a text that matches, 'n': neither. */
static char judge(const moe_grammar *grammar, const char *text, size_t size)
{
    moe_matcher m;
    assert_int_equal(moe_matcher_init(&m, grammar, NULL), MOE_OK);
    uint32_t state = moe_matcher_start(&m);
    for (size_t i = 0; i < size; i++) {
        (void)moe_matcher_tidy(&m, &state);
        state = moe_matcher_step(&m, state, (uint8_t)text[i]);
    }
    char result = moe_matcher_is_complete(&m, state) ? 'y' : state == MOE_MATCH_DEAD ? 'n' : 'b';
    moe_matcher_free(&m);
    return result;
}

static moe_grammar *compile(const char *text)
{
    moe_grammar *g;
    moe_error err = {""};
    if (moe_grammar_create(&g, text, strlen(text), &err) != MOE_OK) {
        fail_msg("%s: %s", text, err.message);
    }
    return g;
}

static void texts(void **state)
{
    static const struct {
        const char *grammar, *text;
        char judged;
    } cases[] = {
        {"root ::= \"a\" | \"bc\"", "a", 'y'},
        {"root ::= \"a\" | \"bc\"", "b", 'b'},
        {"root ::= \"a\" | \"bc\"", "bd", 'n'},
        {"root ::= \"a\"\n  | \"bc\" # two lines\n", "bc", 'y'},
        {"root ::= x{2,3} y?\nx ::= \"x\"\ny ::= \"y\"", "xxxy", 'y'},
        {"root ::= x{2,3} y?\nx ::= \"x\"\ny ::= \"y\"", "x", 'b'},
        {"root ::= x{2,3} y?\nx ::= \"x\"\ny ::= \"y\"", "xxxx", 'n'},
        {"root ::= [a-c]{2}", "ac", 'y'},
        {"root ::= [a-c]{2}", "acb", 'n'},
        {"root ::= (\"a\"*)*", "aaaa", 'y'},
        {"root ::= (\"a\"*)+ \"b\"", "aab", 'y'},
        {"root ::= [^a-y]+", "z\xc3\xa4\xf0\x9f\x98\x80", 'y'},
        {"root ::= [^a-y]+", "x", 'n'},
        {"root ::= [^\\x00-\\x7F]", "\xe6\x97\xa5", 'y'},
        {"root ::= [\xc3\xa0-\xc3\xbc]", "\xc3\xa4", 'y'},
        {"root ::= [\xc3\xa0-\xc3\xbc]", "\xc3\xbd", 'n'},
        {"root ::= .", "\xed\xa0\x80", 'n'}, /* a surrogate */
        {"root ::= .", "\xc0\x80", 'n'},     /* overlong */
        {"root ::= .", "\xf4\x90", 'n'},     /* above 10FFFF */
        {"root ::= \"\\x41\\u00e4\\n\\\"\\\\\"", "A\xc3\xa4\n\"\\", 'y'},
        {"root ::= [\\]\\-\\^]+", "]-^", 'y'},
        {"root ::= \"(\" root \")\" | \"\"", "(((())))", 'y'},
        {"root ::= \"(\" root \")\" | \"\"", "(((()))))", 'n'},
        {"root ::= e\ne ::= \"x\" (\"+\" e)?", "x+x+x", 'y'},
        {"root ::= \"\" | \"a\" root", "aaa", 'y'},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        moe_grammar *g = compile(cases[i].grammar);
        char judged = judge(g, cases[i].text, strlen(cases[i].text));
        if (judged != cases[i].judged) {
            fail_msg("%s with %s: %c", cases[i].grammar, cases[i].text, judged);
        }
        moe_grammar_close(&g);
    }
    moe_grammar *g = compile("root ::= <[258]> \"a\"");
    assert_int_equal(judge(g,
                           "\xff\x00\x01\x02"
                           "a",
                           5),
                     'y');
    moe_grammar_close(&g);
}

static void errors(void **state)
{
    static const struct {
        const char *grammar, *words;
    } cases[] = {
        {"", "no rule 'root'"},
        {"a ::= \"b\"", "no rule 'root'"},
        {"root ::= x", "'x' is used and not defined"},
        {"root ::= root \"a\" | \"b\"", "left recursion"},
        {"root ::= a\na ::= \"\" b\nb ::= a?", "left recursion"},
        {"root ::= \"a", "line 1: a text in quotes"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2: a rule is defined twice"},
        {"root ::= [b-a]", "ends before it begins"},
        {"root ::= []", "is empty"},
        {"root ::= [^\\x00-\\U0010FFFF]", "is empty"},
        {"root ::= (\"a\"", "a group has no end"},
        {"root ::= \"a\"{2001}", "2000"},
        {"root ::= \"a\"{3,2}", "{2,5}"},
        {"root ::= \"a\"{x}", "{2,5}"},
        {"root ::= \"\\q\"", "no such escape"},
        {"root ::= \"\\ud800\"", "no character"},
        {"root ::= \"\xff\"", "not UTF-8"},
        {"root := \"a\"", "'::='"},
        {"root ::= <[x]>", "<[ID]>"},
        {"root ::= ((((\"a\"{2000}){2000}){2000}){2000})", "too large"},
        {"root ::= ((((()){2000}){2000}){2000}){2000}", "too large"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        moe_grammar *g;
        moe_error err = {""};
        int status = moe_grammar_create(&g, cases[i].grammar, strlen(cases[i].grammar), &err);
        if (status == MOE_OK || strstr(err.message, cases[i].words) == NULL) {
            fail_msg("%s: %s", cases[i].grammar, err.message);
        }
        assert_null(g);
    }
}

typedef struct schema_case {
    const char *schema, *text;
    char judged;
} schema_case;

static void check_schema(const schema_case *c)
{
    char *text;
    moe_error err = {""};
    if (moe_json_schema_grammar(&text, c->schema, strlen(c->schema), &err) != MOE_OK) {
        fail_msg("%s: %s", c->schema, err.message);
    }
    moe_grammar *g = compile(text);
    char judged = judge(g, c->text, strlen(c->text));
    if (judged != c->judged) {
        fail_msg("%s with %s: %c\n%s", c->schema, c->text, judged, text);
    }
    moe_grammar_close(&g);
    moe_free(text);
}

/* Keywords that narrow a type, or are made of several schemas. */
static void narrow_schemas(void **state)
{
    static const schema_case cases[] = {
        {"{\"type\": \"integer\", \"minimum\": 7, \"maximum\": 123}", "123", 'y'},
        {"{\"type\": \"integer\", \"minimum\": 7, \"maximum\": 123}", "124", 'n'},
        {"{\"type\": \"integer\", \"minimum\": 0}", "-1", 'n'},
        {"{\"type\": \"integer\", \"multipleOf\": 7, \"exclusiveMinimum\": 0}", "1001", 'y'},
        {"{\"type\": \"integer\", \"multipleOf\": 7, \"exclusiveMinimum\": 0}", "0", 'n'},
        {"{\"type\": \"number\", \"minimum\": -1.5, \"exclusiveMaximum\": 2.25}", "2.2499", 'y'},
        {"{\"type\": \"number\", \"minimum\": -1.5, \"exclusiveMaximum\": 2.25}", "-1.51", 'n'},
        {"{\"type\": \"string\", \"pattern\": \"^[a-c\\\"]+$\"}", "\"ab\\\"\"", 'y'},
        {"{\"type\": \"string\", \"pattern\": \"b\"}", "\"abc\"", 'y'},
        {"{\"type\": \"string\", \"pattern\": \"^b\"}", "\"abc\"", 'n'},
        {"{\"type\": \"string\", \"format\": \"date\"}", "\"2024-02-29\"", 'y'},
        {"{\"type\": \"string\", \"format\": \"date\"}", "\"2023-02-29\"", 'n'},
        {"{\"type\": \"string\", \"format\": \"ipv4\"}", "\"10.0.255.1\"", 'y'},
        {"{\"properties\": {\"a\": {\"type\": \"integer\"}}, \"additionalProperties\": "
         "{\"type\": \"string\"}}",
         "{\"a\": \"x\"}", 'n'},
        {"{\"properties\": {\"a\": {\"type\": \"integer\"}}, \"additionalProperties\": "
         "{\"type\": \"string\"}}",
         "{\"a\": 1, \"a\": \"x\"}", 'n'},
        {"{\"properties\": {\"a\": {\"type\": \"integer\"}}, \"additionalProperties\": "
         "{\"type\": \"string\"}}",
         "{\"a\": 1, \"ab\": \"x\"}", 'y'},
        {"{\"type\": \"object\", \"maxProperties\": 1}", "{\"d\": 1, \"e\": 2}", 'n'},
        {"{\"allOf\": [{\"properties\": {\"a\": {\"type\": \"number\"}}}, {\"properties\": "
         "{\"a\": {\"minimum\": 3}}, \"required\": [\"a\"]}]}",
         "{\"a\": 2}", 'n'},
        {"{\"type\": \"string\", \"nullable\": true}", "null", 'y'},
        {"{\"const\": {\"a\": [1, 2]}}", "{\"a\": [1, 2]}", 'y'},
        {"{\"properties\": {\"a\": {}, \"b\": {}}, \"dependentRequired\": {\"a\": [\"b\"]}}",
         "{\"a\": 1}", 'n'},
        {"{\"properties\": {\"a\": {\"enum\": [1, 2]}, \"b\": {}}, \"if\": {\"properties\": "
         "{\"a\": {\"const\": 1}}, \"required\": [\"a\"]}, \"then\": {\"required\": [\"b\"]}}",
         "{\"a\": 1}", 'n'},
        {"{\"properties\": {\"a\": {\"enum\": [1, 2]}, \"b\": {}}, \"if\": {\"properties\": "
         "{\"a\": {\"const\": 1}}, \"required\": [\"a\"]}, \"then\": {\"required\": [\"b\"]}}",
         "{\"a\": 2}", 'y'},
        {"{\"type\": \"object\", \"patternProperties\": {\"^x\": {\"type\": \"null\"}}}",
         "{\"x1\": 2}", 'n'},
        {"{\"type\": \"object\", \"propertyNames\": {\"enum\": [\"k\"]}}", "{\"l\": 2}", 'n'},
        {"{\"items\": {\"enum\": [\"a\", \"b\"]}, \"uniqueItems\": true}", "[\"a\", \"a\"]", 'n'},
        {"{\"enum\": [[1], [\"a\"], []], \"items\": {\"type\": \"string\"}}", "[1]", 'n'},
        {"{\"enum\": [[1], [\"a\"], []], \"items\": {\"type\": \"string\"}}", "[\"a\"]", 'y'},
        {"{\"enum\": [[1], []], \"contains\": {\"type\": \"integer\"}}", "[]", 'n'},
        {"{\"enum\": [{\"a\": 1}, {}], \"required\": [\"a\"]}", "{}", 'n'},
        {"{\"enum\": [{\"a\": 1}, {}], \"properties\": {\"a\": {\"minimum\": 2}}}", "{\"a\": 1}",
         'n'},
        {"{\"items\": {}, \"contains\": {\"const\": 3}}", "[1, 2]", 'n'},
        {"{\"x-note\": 3, \"type\": \"null\"}", "null", 'y'},
        {"{\"properties\": {}, \"required\": [\"q\"]}", "{}", 'n'},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_schema(&cases[i]);
    }
}

static void schemas(void **state)
{
    static const char object[] =
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": "
        "{\"type\": \"string\", \"minLength\": 1, \"maxLength\": 2}, \"c\": {\"enum\": [1, "
        "\"x\", null]}}, \"required\": [\"b\"]}";
    static const char tree[] =
        "{\"$ref\": \"#/$defs/node\", \"$defs\": {\"node\": {\"type\": \"object\", "
        "\"properties\": {\"next\": {\"anyOf\": [{\"type\": \"null\"}, {\"$ref\": "
        "\"#/$defs/node\"}]}}, \"required\": [\"next\"]}}}";
    static const schema_case cases[] = {
        {"{}", "{\"a\": [1, 2.5e3, true, null, \"\\u00e4\\n\"]}", 'y'},
        {"{}", "[1,]", 'n'},
        {"{}", "\"\n\"", 'n'},
        {"{\"type\": \"integer\"}", "-12", 'y'},
        {"{\"type\": \"integer\"}", "01", 'n'},
        {"{\"type\": \"number\"}", "0.5", 'y'},
        {"{\"const\": {\"a\": \"\\\"\"}}", "{\"a\":\"\\\"\"}", 'y'},
        {"{\"type\": [\"null\", \"boolean\"]}", "true", 'y'},
        {object, "{\"b\": \"xy\"}", 'y'},
        {object, "{\"a\": 1, \"b\": \"x\", \"c\": null}", 'y'},
        {object, "{\"b\": \"x\", \"c\": \"x\"}", 'y'},
        {object, "{\"a\": 1}", 'n'},
        {object, "{\"b\": \"xyz\"}", 'n'},
        {object, "{\"b\": \"\"}", 'n'},
        {object, "{\"b\": \"x\", \"d\": 1}", 'n'},
        {"{\"type\": \"object\", \"properties\": {\"a\": {}}, \"additionalProperties\": true}",
         "{\"d\": 1, \"e\": []}", 'y'},
        {"{\"type\": \"object\", \"additionalProperties\": {\"type\": \"integer\"}}",
         "{\"d\": \"x\"}", 'n'},
        {"{\"type\": \"array\", \"items\": {\"type\": \"null\"}, \"minItems\": 1, \"maxItems\": 2}",
         "[null, null]", 'y'},
        {"{\"type\": \"array\", \"items\": {\"type\": \"null\"}, \"minItems\": 1, \"maxItems\": 2}",
         "[]", 'n'},
        {"{\"type\": \"array\", \"items\": {\"type\": \"null\"}, \"minItems\": 1, \"maxItems\": 2}",
         "[null,null,", 'n'},
        {"{\"type\": \"array\", \"maxItems\": 0}", "[]", 'y'},
        {tree, "{\"next\": {\"next\": null}}", 'y'},
        {tree, "{\"next\": {}}", 'n'},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_schema(&cases[i]);
    }
}

static void refused_schemas(void **state)
{
    (void)state;
    static const char *const refused[][2] = {
        {"{\"not\": {}}", "not"},
        {"{\"items\": {\"pattern\": \"(?=a)\"}}", "pattern"},
        {"{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 2}", "no value"},
        {"{\"$ref\": \"http://example.com\"}", "$ref"},
        {"{\"$ref\": \"#/nowhere\"}", "nothing"},
        {"{\"type\": \"thing\"}", "thing"},
        {"{", "JSON object"},
        {"5", "object"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        char *text;
        moe_error err = {""};
        int status = moe_json_schema_grammar(&text, refused[i][0], strlen(refused[i][0]), &err);
        if (status == MOE_OK || strstr(err.message, refused[i][1]) == NULL) {
            fail_msg("%s: %s", refused[i][0], err.message);
        }
    }
}

/* What cannot be held is left out alone, and named with its place. */
static void dropped_keywords(void **state)
{
    static const char schema[] =
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\", \"pattern\": "
        "\"(?=x)\", \"maxLength\": 1}, \"b\": {\"type\": \"integer\", \"not\": {\"const\": 2}, "
        "\"maximum\": 3}}, \"required\": [\"a\", \"b\"]}";
    char *text, *dropped;
    moe_error err = {""};
    (void)state;
    assert_int_equal(
        moe_json_schema_grammar_loose(&text, &dropped, schema, strlen(schema), NULL, &err), MOE_OK);
    assert_string_equal(dropped, "pattern of /a, not of /b");
    moe_grammar *g = compile(text);
    assert_int_equal(judge(g, "{\"a\": \"z\", \"b\": 2}", 18), 'y');
    assert_int_equal(judge(g, "{\"a\": \"zz\", \"b\": 2}", 19), 'n');
    assert_int_equal(judge(g, "{\"a\": \"z\", \"b\": 4}", 18), 'n');
    moe_grammar_close(&g);
    moe_free(text);
    moe_free(dropped);
    assert_int_equal(moe_json_schema_grammar_loose(&text, &dropped, "{}", 2, NULL, &err), MOE_OK);
    assert_null(dropped);
    moe_free(text);
}

/* Tables that fill up are emptied and the text goes on; what is too ambiguous is given up. */
static void bounds(void **state)
{
    (void)state;
    moe_matcher m;
    moe_grammar *g = compile("root ::= \"[\" root \"]\" | [0-9]{2000}");
    assert_int_equal(moe_matcher_init(&m, g, NULL), MOE_OK);
    uint32_t at = moe_matcher_start(&m);
    bool tidied = false;
    const uint32_t depth = 20000;
    for (uint32_t i = 0; i < depth; i++) {
        tidied |= moe_matcher_tidy(&m, &at);
        at = moe_matcher_step(&m, at, '[');
    }
    assert_true(tidied && m.n_stacks <= MOE_MATCH_MOST_STACKS);
    moe_matcher_free(&m);
    moe_grammar_close(&g);
    g = compile("root ::= a*\nb ::= a*\nc ::= a*\n"
                "a ::= \"x\" root \"y\" | \"x\" b \"z\" | \"x\" c \"w\"");
    assert_int_equal(moe_matcher_init(&m, g, NULL), MOE_OK);
    at = moe_matcher_start(&m);
    for (int i = 0; i < 40; i++) {
        (void)moe_matcher_tidy(&m, &at);
        at = moe_matcher_step(&m, at, 'x');
    }
    assert_true(m.exhausted && at == MOE_MATCH_DEAD);
    moe_matcher_free(&m);
    moe_grammar_close(&g);
}

static moe_engine *open_engine(moe_speculate speculate)
{
    moe_engine *engine;
    moe_error err = {""};
    moe_engine_options options;
    moe_lab_options lab;
    moe_engine_options_init(&options);
    moe_lab_options_init(&lab);
    lab.length_control = MOE_LENGTH_STATIC;
    options.model_path = model;
    options.context = 512;
    options.n_threads = 2;
    options.sessions = 2;
    options.speculate = speculate;
    options.lab = speculate == MOE_SPECULATE_OFF ? NULL : &lab;
    if (moe_engine_open(&engine, &options, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    return engine;
}

/* Writes until the text ends; the text is terminated. */
static void write_text(moe_engine *engine, moe_grammar *grammar, float temperature, char *out,
                       size_t size)
{
    moe_session_options options;
    moe_session *session, *fork = NULL;
    int32_t *tokens;
    size_t n, length = 0, n_tokens = 0;
    const char *prompt = "A list of numbers: [1, 2, 3, 4, 5]. A list of numbers: ";
    moe_session_options_init(&options);
    options.sampling.temperature = temperature;
    options.sampling.seed = 3;
    assert_int_equal(moe_tokenize(engine, prompt, strlen(prompt), 3, &tokens, &n, NULL), MOE_OK);
    assert_int_equal(moe_session_create(&session, engine, &options, NULL), MOE_OK);
    assert_int_equal(moe_session_feed(session, tokens, n, NULL), MOE_OK);
    assert_int_equal(moe_session_set_grammar(session, grammar, NULL), MOE_OK);
    moe_free(tokens);
    for (bool ended = false; !ended;) {
        int32_t taken[128];
        if (length > 20 && fork == NULL) {
            /* The fork goes on like the session would. */
            assert_int_equal(moe_session_fork(&fork, session, NULL), MOE_OK);
            moe_session_close(&session);
            session = fork;
        }
        assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
        n = moe_session_take(session, taken, 128);
        for (size_t i = 0; i < n && !ended; i++) {
            size_t bytes;
            const char *piece = moe_token_piece(engine, taken[i], false, &bytes);
            ended = moe_token_is_end(engine, taken[i]) || ++n_tokens == 80;
            if (!ended && length + bytes < size) {
                memcpy(out + length, piece, bytes);
                length += bytes;
            }
        }
    }
    assert_false(moe_session_grammar_failed(session));
    out[length] = '\0';
    moe_session_close(&session);
}

static void sampled(void **state)
{
    static const char *const grammars[] = {
        "root ::= \"[\" [0-9]{1,3} (\", \" [0-9]{1,3}){3,12} \"]\"",
        "root ::= (\"{\" [a-z]{2,8} \"=\" root? \"}\"){1,4}"};
    static const moe_speculate kinds[] = {MOE_SPECULATE_OFF, MOE_SPECULATE_NGRAM,
                                          MOE_SPECULATE_SELF};
    char outs[3][512];
    (void)state;
    for (int g = 0; g < 2; g++) {
        moe_grammar *grammar = compile(grammars[g]);
        for (int t = 0; t < 2; t++) {
            for (int k = 0; k < 3; k++) {
                moe_engine *engine = open_engine(kinds[k]);
                write_text(engine, grammar, t == 0 ? 0.0f : 1.2f, outs[k], sizeof outs[k]);
                moe_engine_close(&engine);
            }
            assert_string_equal(outs[0], outs[1]);
            assert_string_equal(outs[0], outs[2]);
            char judged = judge(grammar, outs[0], strlen(outs[0]));
            assert_true(judged == 'y' || (judged == 'b' && strlen(outs[0]) > 70));
        }
        moe_grammar_close(&grammar);
    }
}

static moe_token_text text_of(const void *user, int32_t token)
{
    moe_token_text text = {.is_end = moe_token_is_end(user, token)};
    text.data = moe_token_piece(user, token, false, &text.size);
    return text;
}

/* Of every third token with plain letters, its text twice: more states than the matcher's tables
 * hold. */
static char *twice_each(const moe_engine *engine, uint32_t n_vocab)
{
    const size_t most = (size_t)n_vocab * 64;
    char *list = malloc(most);
    assert_non_null(list);
    size_t n = (size_t)snprintf(list, most, "root ::= \"?\"");
    for (uint32_t t = 0; t < n_vocab; t += 3) {
        size_t size;
        const char *text = moe_token_piece(engine, (int32_t)t, false, &size);
        bool plain = size > 0 && size < 24;
        for (size_t i = 0; i < size; i++) {
            plain =
                plain && (text[i] == ' ' || (text[i] >= 'A' && text[i] <= 'z' && text[i] != '\\'));
        }
        if (plain) {
            n += (size_t)snprintf(list + n, most - n, " | \"%.*s%.*s\"", (int)size, text, (int)size,
                                  text);
        }
    }
    return list;
}

/* The walk through the trie allows what trying each token by itself allows. */
static void masks(void **state)
{
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine *engine = open_engine(MOE_SPECULATE_OFF);
    moe_token_keys *keys;
    (void)state;
    assert_int_equal(moe_engine_get_info(engine, &info), MOE_OK);
    const moe_token_source source = {info.n_vocab, text_of, engine};
    assert_int_equal(moe_token_keys_create(&keys, &source, NULL), MOE_OK);
    static const char *const grammars[] = {"root ::= [a-z ]+ | \"The\" .*", "root ::= [^e]* \"e\"",
                                           "root ::= ([0-9]{1,2} \" \"?)+ \"\\u00e4\""};
    uint64_t *bits = calloc(info.n_vocab / 64 + 1, sizeof *bits);
    char *list = twice_each(engine, info.n_vocab);
    bool emptied = false;
    for (int g = 0; g < 4; g++) {
        moe_matcher m;
        moe_grammar *grammar = compile(g < 3 ? grammars[g] : list);
        assert_int_equal(moe_matcher_init(&m, grammar, NULL), MOE_OK);
        uint32_t start = moe_matcher_start(&m);
        memset(bits, 0, (info.n_vocab / 64 + 1) * sizeof *bits);
        emptied = moe_token_keys_allow(keys, &m, &start, bits);
        assert_false(m.exhausted);
        uint32_t n_allowed = 0;
        for (uint32_t t = 0; t < info.n_vocab; t++) {
            size_t size;
            const char *text = moe_token_piece(engine, (int32_t)t, false, &size);
            bool fits = size > 0 && judge(grammar, text, size) != 'n';
            assert_int_equal(bits[t / 64] >> (t % 64) & 1, fits);
            n_allowed += fits;
        }
        assert_true(n_allowed > 3 && n_allowed < info.n_vocab);
        if (g == 3) { /* the state has a new number, and is the same one */
            assert_true(moe_matcher_step(&m, start, '?') != MOE_MATCH_DEAD);
        }
        moe_matcher_free(&m);
        moe_grammar_close(&grammar);
    }
    assert_true(emptied);
    free(list);
    free(bits);
    moe_token_keys_free(&keys);
    moe_engine_close(&engine);
}

static uint64_t session_bytes(const moe_engine *engine)
{
    moe_engine_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(moe_engine_get_stats(engine, &stats), MOE_OK);
    return stats.session_bytes;
}

/* The sorted vocabulary is granted once for an engine, and stays. */
static void granted(void **state)
{
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine *engine = open_engine(MOE_SPECULATE_OFF);
    moe_grammar *grammar = compile("root ::= [a-z]+");
    (void)state;
    assert_int_equal(moe_engine_get_info(engine, &info), MOE_OK);
    const uint64_t before = session_bytes(engine);
    uint64_t kept = 0;
    for (int i = 0; i < 3; i++) {
        moe_session *session = NULL;
        assert_int_equal(moe_session_create(&session, engine, NULL, NULL), MOE_OK);
        assert_int_equal(moe_session_set_grammar(session, grammar, NULL), MOE_OK);
        moe_session_close(&session);
        kept = i == 0 ? session_bytes(engine) : kept;
        assert_int_equal(session_bytes(engine), kept);
    }
    assert_true(kept - before > info.n_vocab * UINT64_C(20));
    moe_grammar_close(&grammar);
    moe_engine_close(&engine);
}

static moe_token_text byte_token(const void *user, int32_t token)
{
    static const char pieces[][2] = {"a", "\xff", "", "\x01", "\xfe"};
    (void)user;
    return token == 257 ? (moe_token_text){.is_control = true}
           : token < 5  ? (moe_token_text){.data = pieces[token], .size = 1}
                        : (moe_token_text){.data = ""};
}

/* Tokens of single bytes cannot spell the key of a control token. */
static void spelt_control(void **state)
{
    const moe_token_source source = {258, byte_token, NULL};
    moe_token_keys *keys;
    moe_matcher m;
    uint64_t bits[5] = {0};
    (void)state;
    moe_grammar *grammar = compile("root ::= <[257]> \"a\"");
    assert_int_equal(moe_token_keys_create(&keys, &source, NULL), MOE_OK);
    assert_int_equal(moe_matcher_init(&m, grammar, NULL), MOE_OK);
    uint32_t start = moe_matcher_start(&m);
    (void)moe_token_keys_allow(keys, &m, &start, bits);
    for (uint32_t t = 0; t < 258; t++) {
        assert_int_equal(bits[t / 64] >> (t % 64) & 1, t == 257);
    }
    moe_matcher_free(&m);
    moe_grammar_close(&grammar);
    moe_token_keys_free(&keys);
}

/* A closing mark that is spelt is met at its first place, however its characters came before. */
static void after_reasoning(void **state)
{
    (void)state;
    static const struct {
        const char *close, *text;
        bool is_open;
        char judged;
    } cases[] = {
        {"</t>", "{}", false, 'y'},
        {"</t>", "<t>why</t>{}", false, 'y'},
        {"</t>", "<t>why</t>", false, 'b'},
        {"</t>", "<t>why{}", false, 'b'},
        {"</t>", "why</t>{}", false, 'n'},
        {"</t>", "why</t>\n\n{}", true, 'y'},
        {"</t>", "</t>{}", true, 'y'},
        {"</t>", "{}", true, 'b'},
        {"</t>", "a<</t<</ t<//t></t>{}", true, 'y'},
        {"</t>", "a<</t<</t>{}", true, 'y'},
        {"</t>", "a</t>x</t>{}", true, 'n'},
        {"</t>", "a</t>{}</t>{}", true, 'n'},
        {"\u25c1/t\u25b7", "a\u25c1/\u25c1b\u25c1/t\u25b7 {}", true, 'y'},
        {"\u25c1/t\u25b7", "\u25c1/t\u25b7{}\u25c1", true, 'n'},
    };
    moe_grammar *answer = compile("root ::= \"{}\" # the end");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        moe_grammar *g;
        moe_error err = {""};
        int status = moe_grammar_after_reasoning(&g, answer, (moe_grammar_mark){"<t>", -1},
                                                 (moe_grammar_mark){cases[i].close, -1},
                                                 cases[i].is_open, NULL, &err);
        if (status != MOE_OK) {
            fail_msg("%s", err.message);
        }
        char judged = judge(g, cases[i].text, strlen(cases[i].text));
        if (judged != cases[i].judged) {
            fail_msg("%s: %c", cases[i].text, judged);
        }
        moe_grammar_close(&g);
    }
    moe_grammar_close(&answer);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),          cmocka_unit_test(after_reasoning),
        cmocka_unit_test(errors),         cmocka_unit_test(schemas),
        cmocka_unit_test(bounds),         cmocka_unit_test(masks),
        cmocka_unit_test(granted),        cmocka_unit_test(sampled),
        cmocka_unit_test(spelt_control),  cmocka_unit_test(dropped_keywords),
        cmocka_unit_test(narrow_schemas), cmocka_unit_test(refused_schemas),
    };
    if (argc < 2) {
        return 1;
    }
    model = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
