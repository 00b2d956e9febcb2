/* SPDX-License-Identifier: MIT */
/* The interpreter against what jinja2 rendered (cases.json), and what must hold beyond that: where
 * each byte came from, and that no template runs long, deep or large.
 * Usage: test_template FOLDER */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <json-c/json.h>
#include <xxhash.h>

#include "runtime/model/chat_marks.h"
#include "runtime/model/chat_reply.h"
#include "tests/template/hostile_data.h"
#include "tests/template/template_case.h"

static const char *folder;
static json_object *cases;

static json_object *member(json_object *object, const char *key)
{
    json_object *value = NULL;
    assert_true(json_object_object_get_ex(object, key, &value));
    return value;
}

static int open_cases(void **state)
{
    char path[4096];
    (void)state;
    snprintf(path, sizeof path, "%s/cases.json", folder);
    cases = json_object_from_file(path);
    return cases == NULL ? -1 : 0;
}

static int close_cases(void **state)
{
    (void)state;
    json_object_put(cases);
    return 0;
}

static json_object *read_template(const char *name)
{
    static char text[1 << 20];
    char path[4096];
    snprintf(path, sizeof path, "%s/templates/%s", folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(text, 1, sizeof text, file);
    fclose(file);
    return json_object_new_string_len(text, (int)n);
}

/* The variables of a conversation under one of the settings. */
static json_object *variables_of(json_object *conversation, json_object *settings)
{
    json_object *out = json_object_new_object();
    json_object_object_add(out, "messages", json_object_get(member(conversation, "messages")));
    json_object_object_add(out, "tools", json_object_get(member(conversation, "tools")));
    json_object_object_add(out, "documents", NULL);
    json_object_object_foreach(settings, name, value)
    {
        json_object_object_add(out, name, json_object_get(value));
    }
    return out;
}

typedef void (*visit)(const char *name, json_object *asked, json_object *expected);

static void visit_all(visit see)
{
    json_object *talks = member(cases, "conversations");
    json_object *settings = member(cases, "settings");
    json_object_object_foreach(member(cases, "expected"), name, hashes)
    {
        size_t at = 0;
        json_object *source = read_template(name);
        for (size_t i = 0; i < json_object_array_length(talks); i++) {
            for (size_t j = 0; j < json_object_array_length(settings); j++) {
                json_object *asked = json_object_new_object();
                json_object_object_add(asked, "template", json_object_get(source));
                json_object_object_add(asked, "markup", json_object_get(member(cases, "markup")));
                json_object_object_add(asked, "now", json_object_get(member(cases, "now")));
                json_object_object_add(asked, "variables",
                                       variables_of(json_object_array_get_idx(talks, i),
                                                    json_object_array_get_idx(settings, j)));
                see(name, asked, json_object_array_get_idx(hashes, at++));
                json_object_put(asked);
            }
        }
        assert_int_equal(at, json_object_array_length(hashes));
        json_object_put(source);
    }
}

static size_t n_rendered, n_refused;

static void check_case(const char *name, json_object *asked, json_object *expected)
{
    moe_template_output out;
    moe_error err = {""};
    int status = template_case_render(asked, &out, &err);
    if (expected == NULL) {
        n_refused++;
        assert_int_not_equal(status, MOE_OK);
        assert_non_null(strstr(err.message, "line "));
        return;
    }
    char hash[32];
    if (status != MOE_OK) {
        fail_msg("%s: %s", name, err.message);
    }
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)XXH3_64bits(out.text, out.size));
    if (strcmp(hash, json_object_get_string(expected)) != 0) {
        fail_msg("%s renders differently:\n%s\nof %s", name, out.text,
                 json_object_to_json_string(member(asked, "variables")));
    }
    n_rendered++;
    moe_template_output_free(&out);
}

static void test_cases(void **state)
{
    (void)state;
    visit_all(check_case);
    assert_true(n_rendered > 3000 && n_refused > 500);
    print_message("rendered equal: %zu, refused equal: %zu\n", n_rendered, n_refused);
}

static size_t n_hostile;
static hostile_words words;
static moe_tokenizer *tokenizer;
static char words_of[64]; /* the template that they are of */
static hostile_counts sums;

/* Between the two marks that stand around each word of data no byte may count as the template's,
 * and no word may have become a token. */
static void check_hostile(const char *name, json_object *asked, json_object *expected)
{
    (void)expected;
    const char *source = json_object_get_string(member(asked, "template"));
    if (strcmp(words_of, name) != 0) {
        snprintf(words_of, sizeof words_of, "%s", name);
        moe_tokenizer_destroy(&tokenizer);
        hostile_find_words(&words, source);
        tokenizer = hostile_vocabulary(&words);
    }
    json_object *variables = hostile_variables(member(asked, "variables"), &words);
    json_object_object_add(asked, "variables", variables);
    moe_error err;
    hostile_counts counts = hostile_count(tokenizer, source, variables, &err);
    if (counts.n_from_data + counts.n_marked > 0) {
        fail_msg("%s: %zu control tokens from data, %zu words of data that count as the template's",
                 name, counts.n_from_data, counts.n_marked);
    }
    sums.n_tokens += counts.n_tokens;
    sums.n_data += counts.n_data;
    n_hostile += counts.rendered;
}

static void test_hostile(void **state)
{
    (void)state;
    visit_all(check_hostile);
    moe_tokenizer_destroy(&tokenizer);
    assert_true(n_hostile > 3000 && sums.n_tokens > 10000 && sums.n_data > 100000);
    print_message("hostile words: %zu, control tokens from the templates: %zu, from data: 0\n",
                  sums.n_data, sums.n_tokens);
}

/* What a reader makes of the tokens of a text. */
static void read_parts(const moe_tokenizer *vocabulary, const moe_chat_marks *marks,
                       const char *written, bool in_reasoning, bool keeps_markup,
                       char parts[2][256])
{
    moe_reply_reader reader;
    moe_error err;
    int32_t *tokens;
    size_t n;
    parts[0][0] = parts[1][0] = '\0';
    assert_int_equal(moe_tokenizer_encode(vocabulary, written, strlen(written),
                                          MOE_ENCODE_PARSE_SPECIAL, &tokens, &n, &err),
                     MOE_OK);
    assert_int_equal(moe_reply_open(&reader, vocabulary, marks, in_reasoning, &err), MOE_OK);
    reader.keeps_markup = keeps_markup;
    for (size_t i = 0; i <= n; i++) {
        if (i < n) {
            moe_reply_push(&reader, tokens[i]);
        } else {
            moe_reply_finish(&reader);
        }
        strncat(parts[0], reader.out[MOE_REPLY_REASONING].data, 60);
        strncat(parts[1], reader.out[MOE_REPLY_CONTENT].data, 60);
    }
    free(tokens);
    moe_reply_close(&reader);
}

/* gpt-oss writes messages with headers, all of whose marks are control tokens. */
static void expect_parts(const char *written, bool keeps_markup, const char *reasoning,
                         const char *content)
{
    static const char *const marks[] = {"<|start|>",   "<|return|>", "<|message|>",
                                        "<|channel|>", "<|call|>",   "<|end|>"};
    hostile_words of = {.n = sizeof marks / sizeof marks[0]};
    for (size_t i = 0; i < of.n; i++) {
        strcpy(of.words[i], marks[i]);
    }
    moe_tokenizer *vocabulary = hostile_vocabulary(&of);
    static const char source[] = "<|channel|>analysis<|message|>";
    moe_chat_marks found;
    char parts[2][256];
    assert_true(moe_chat_marks_in((moe_string_view){source, strlen(source)}, &found));
    assert_true(found.has_channels);
    read_parts(vocabulary, &found, written, false, keeps_markup, parts);
    assert_string_equal(parts[0], reasoning);
    assert_string_equal(parts[1], content);
    /* A message's end is not the answer's. */
    assert_false(moe_tokenizer_is_end(vocabulary, moe_tokenizer_find(vocabulary, "<|end|>", 7)));
    assert_true(moe_tokenizer_is_end(vocabulary, moe_tokenizer_find(vocabulary, "<|call|>", 8)));
    moe_tokenizer_destroy(&vocabulary);
}

static void expect_channels(const char *written, const char *reasoning, const char *content)
{
    expect_parts(written, false, reasoning, content);
}

/* For a program that reads calls of tools a message to one comes with its header. */
static void test_kept_markup(void **state)
{
    (void)state;
    expect_parts("<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>commentary "
                 "to=functions.f json<|message|>{}<|call|>",
                 true, "So.",
                 "<|start|>assistant commentary to=functions.f json<|message|>{}<|call|>");
    expect_parts(" to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}", true, "",
                 "<|start|> to=functions.f commentary json<|message|>{\"a\": 1}");
    expect_parts("No header at all", true, "", "No header at all");
    /* Without channels, control tokens that are no marks of reasoning are text. */
    hostile_words of = {.n = 3};
    static const char *const marked[] = {"<|tool|>", "<|think|>", "<|/think|>"};
    for (size_t i = 0; i < of.n; i++) {
        strcpy(of.words[i], marked[i]);
    }
    static const char written[] = "a<|think|>b<|/think|>c<|tool|>d";
    const moe_chat_marks marks = {.open = "<|think|>", .close = "<|/think|>"};
    moe_tokenizer *vocabulary = hostile_vocabulary(&of);
    for (int kept = 0; kept < 2; kept++) {
        char parts[2][256];
        read_parts(vocabulary, &marks, written, false, kept != 0, parts);
        assert_string_equal(parts[1], kept ? "ac<|tool|>d" : "acd");
    }
    moe_tokenizer_destroy(&vocabulary);
}

static void test_channels(void **state)
{
    (void)state;
    expect_channels("<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final"
                    "<|message|>Yes.\n",
                    "So.", "Yes.\n");
    expect_channels("<|channel|>final<|message|>At once.", "", "At once.");
    expect_channels("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>"
                    "commentary to=functions.f <|message|>{}<|call|>",
                    "{}", "I look.");
    expect_channels("No header at all", "", "No header at all");
}

#define OPEN(tag)  "<|open|>" tag "<|sep|>"
#define CLOSE(tag) "<|close|>" tag "<|sep|>"
#define ENDS       CLOSE("response") CLOSE("message") "<|end_of_msg|>"

/* Kimi-K3 writes an answer between marks, which nobody is shown; of its marks the tags are control
 * tokens or, in another vocabulary, text. Its template joins them from pieces. */
static void test_frames(void **state)
{
    (void)state;
    static const struct {
        const char *written;
        bool in_reasoning;
        const char *reasoning, *content;
    } texts[] = {
        {"So." CLOSE("think") OPEN("response") "Yes." ENDS, true, "So.", "Yes."},
        {"Yes." ENDS, false, "", "Yes."},
        {OPEN("think") "So." CLOSE("think") OPEN("response") " a <|close " ENDS, false, "So.",
         "a <|close "},
        {"So." CLOSE("think") OPEN("response") CLOSE("response") OPEN("tools") "x" CLOSE("tools")
             CLOSE("message"),
         true, "So.", OPEN("tools") "x" CLOSE("tools")},
        {"So." CLOSE("think") OPEN("tools") "x", true, "So.", OPEN("tools") "x"},
        {"a" OPEN("response") "b" CLOSE("response") CLOSE("think") "c", true,
         "a" OPEN("response") "b" CLOSE("response"), "c"},
        {"a " CLOSE("respond") " b<|close|>" CLOSE("response") "c<|close|>mess", false, "",
         "a " CLOSE("respond") " b<|close|>c<|close|>mess"},
    };
    static const char source[] =
        "{% macro open(t) %}{{ '<|open|>' + t + '<|sep|>' }}{% endmacro %}{# <|close|> #}"
        "{{ open('think' if thinking else 'response') }}";
    static const char *const tags[] = {"<s>",       "</s>",    "<|open|>",
                                       "<|close|>", "<|sep|>", "<|end_of_msg|>"};
    hostile_words of = {.n = sizeof tags / sizeof tags[0]};
    for (size_t i = 0; i < of.n; i++) {
        strcpy(of.words[i], tags[i]);
    }
    for (int spelt = 0; spelt < 2; spelt++) {
        moe_tokenizer *vocabulary = hostile_vocabulary(&of);
        moe_chat_input input = {.chat_template = {.source = {source, sizeof source - 1}},
                                .messages = "[]"};
        moe_chat_output out;
        moe_chat_marks marks = {.open = ""};
        for (input.thinking = -1; input.thinking <= 1; input.thinking += 2) {
            assert_int_equal(moe_chat_render_input(vocabulary, &input, &out, NULL), MOE_OK);
            assert_string_equal(out.marks.open, OPEN("think"));
            assert_string_equal(out.marks.message_close, CLOSE("message"));
            assert_int_equal(out.in_reasoning, input.thinking > 0);
            assert_int_equal(out.n_tokens,
                             spelt ? out.size
                                   : 2 + strlen("response") - (input.thinking > 0 ? 3 : 0));
            marks = out.marks;
            moe_chat_output_free(&out);
        }
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
            char parts[2][256], *end;
            read_parts(vocabulary, &marks, texts[i].written, texts[i].in_reasoning, true, parts);
            if (spelt && (end = strstr(parts[1], "<|end_of_msg|>")) != NULL) {
                *end = '\0'; /* no end of a text in this vocabulary */
            }
            assert_string_equal(parts[0], texts[i].reasoning);
            assert_string_equal(parts[1], texts[i].content);
        }
        assert_true(spelt ||
                    moe_tokenizer_is_end(vocabulary, moe_tokenizer_find(vocabulary, tags[5], 14)));
        moe_tokenizer_destroy(&vocabulary);
        of.n = 2;
    }
}

static int render(const char *source, const char *data, moe_template_output *out, moe_error *err)
{
    const moe_template_variable variables[] = {
        {.name = "d", .text = data, .size = strlen(data)},
        {.name = "bos", .text = "<s>", .size = 3, .is_markup = true}};
    const moe_template_input input = {
        .source = source, .size = strlen(source), .variables = variables, .n_variables = 2};
    return moe_template_render(&input, out, err);
}

/* Bytes of markup as they are, of data as dots. */
static void check_origins(const char *source, const char *data, const char *expected)
{
    moe_template_output out;
    moe_error err = {""};
    if (render(source, data, &out, &err) != MOE_OK) {
        fail_msg("%s: %s", source, err.message);
    }
    size_t at = 0;
    for (size_t i = 0; i < out.n_spans; i++) {
        if (!out.spans[i].is_markup) {
            memset(out.text + at, '.', out.spans[i].size);
        }
        at += out.spans[i].size;
    }
    assert_string_equal(out.text, expected);
    moe_template_output_free(&out);
}

static void test_origins(void **state)
{
    (void)state;
    check_origins("<a>{{ d }}</a>{{ bos }}", "\"<s>\"", "<a>...</a><s>");
    check_origins("{{ '<a>' + d + '</a>' }}", "\"xx\"", "<a>..</a>");
    check_origins("{{ ('<a>' ~ d)[1:4] }}", "\"xx\"", "a>.");
    check_origins("{{ ('<a>' ~ d)[::-1] }}", "\"xx\"", "..>a<");
    check_origins("{{ ('ab' ~ d)|upper }}", "\"xx\"", "AB..");
    check_origins("{{ d|replace('x', '<a>') }}", "\"yxy\"", ".<a>.");
    check_origins("{{ ['<a>', d]|join('|') }}", "\"xx\"", "<a>|..");
    check_origins("{{ {'<a>': d}|tojson }}", "\"xx\"", "..<a>........");
    check_origins("{{ '<%s>' % d }}", "\"xx\"", "<..>");
    check_origins("{{ '<{}>{{'.format(d) }}", "\"xx\"", "<..>{");
    check_origins("{{ '<{a:*>4}{a!r}>'.format(a=d) }}", "\"xx\"", "<**......>");
    check_origins("{{ '<{:03d}|{:.1f}>'.format(7, 1.25) }}", "\"xx\"", "<...|...>");
    check_origins("{% set x %}<a>{{ d }}{% endset %}{{ x|trim }}", "\"xx \"", "<a>..");
    check_origins("{% macro m(t) %}<{{ t }}>{% endmacro %}{{ m(d) }}", "\"xx\"", "<..>");
    check_origins("{{ ('<a>' ~ d ~ '<b>').split('<b>')[0] }}", "\"xx\"", "<a>..");
    check_origins("{% for c in d ~ 'z' %}{{ c }}{% endfor %}", "\"xx\"", "..z");
    check_origins("{{ d }}{{ 1 + 1 }}", "12", "...");
    check_origins("{% set l = [] %}{% set x = l.append('<a>') %}{% set x = l.append(d) %}"
                  "{% set m = l|list %}{% set x = m.append('z') %}{{ l.pop(0) }}{{ l.pop() }}"
                  "{{ m[2] }}{{ l|length }}",
                  "\"xx\"", "<a>..z.");
}

/* ---- Marks with a suffix ---- */

static void expect_suffixed(const char *source, const char *open)
{
    moe_chat_marks found = {.open = ""};
    const bool is_found = moe_chat_marks_in((moe_string_view){source, strlen(source)}, &found);
    assert_int_equal(is_found, open[0] != '\0');
    assert_string_equal(found.open, open);
    assert_true(!is_found || (found.close[1] == '/' && strcmp(found.close + 2, open + 1) == 0));
}

/* Hunyuan's models have a suffix of their own in every mark. It is found in the template or, if the
 * template joins its marks from pieces, in the vocabulary. */
static void test_suffixed_marks(void **state)
{
    (void)state;
    expect_suffixed("{% set end = '</think:6124c78e>' %}", "<think:6124c78e>");
    expect_suffixed("</think: x> </think:> </think:a.b> </think:a_B-9>", "<think:a_B-9>");
    expect_suffixed("</think:opensource", "");
    expect_suffixed("</think:", "");
    expect_suffixed("</think:0123456789012345678901234567890123456789>", "");
    static const char *const marks[] = {"<think:x1>", "</think:x1>", "<arg_key:x1>", "</think>"};
    hostile_words of = {.n = sizeof marks / sizeof marks[0]};
    for (size_t i = 0; i < of.n; i++) {
        strcpy(of.words[i], marks[i]);
    }
    static const char source[] = "{{ messages[0].content }}{{ '<think' ~ ':x1>' }}";
    moe_tokenizer *vocabulary = hostile_vocabulary(&of);
    const moe_chat_input input = {.chat_template = {.source = {source, sizeof source - 1}},
                                  .messages =
                                      "[{\"role\": \"user\", \"content\": \"</think:x1>\"}]"};
    moe_chat_output out;
    moe_error err = {""};
    if (moe_chat_render_input(vocabulary, &input, &out, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    assert_string_equal(out.marks.open, "<think:x1>");
    assert_string_equal(out.marks.close, "</think:x1>");
    assert_true(out.in_reasoning);
    /* The mark of the question is text, that of the template is a token. */
    assert_int_equal(out.n_tokens, strlen("</think:x1>") + 1);
    moe_chat_output_free(&out);
    moe_tokenizer_destroy(&vocabulary);
    static const char *const yes[] = {"<think>", "</think:x>", "<tool_calls:ab>", "</arg_value>",
                                      "[THINK]"};
    static const char *const no[] = {"<thinkx>",     "<think",    "<think:x",
                                     "<tool_call>>", "[THINK:x]", "<think:"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        assert_true(moe_chat_is_mark((moe_string_view){yes[i], strlen(yes[i])}));
    }
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) {
        assert_false(moe_chat_is_mark((moe_string_view){no[i], strlen(no[i])}));
    }
}

static void check_refusal(const char *source, const char *expected)
{
    moe_template_output out;
    moe_error err = {""};
    assert_int_not_equal(render(source, "\"xx\"", &out, &err), MOE_OK);
    if (strstr(err.message, expected) == NULL) {
        fail_msg("%s: %s", source, err.message);
    }
}

static void test_limits(void **state)
{
    (void)state;
    check_refusal("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
                  "line 1: the template ");
    check_refusal("{{ 'xxxxxxxxxxxxxxxx' * 1000000000 }}", "more than 128 MiB of memory");
    check_refusal("{% set n = namespace(s='x') %}{% for i in range(60) %}"
                  "{% set n.s = n.s ~ n.s %}{% endfor %}",
                  "takes more than ");
    check_refusal("\n\n{{ range(100001) }}", "line 3: range: more than 100000");
    check_refusal("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "deep");
    check_refusal("{% set n = namespace() %}{% set n.x = [n] %}{{ n.x }}", "cannot be printed");
    char deep[4096];
    memset(deep, '(', sizeof deep);
    memcpy(deep, "{{ ", 3);
    deep[sizeof deep - 1] = '\0';
    check_refusal(deep, "deep");
    memset(deep + 3, '-', sizeof deep - 4);
    memcpy(deep + sizeof deep - 6, "1 }}", 5);
    deep[sizeof deep - 1] = '\0';
    check_refusal(deep, "deep");
    check_refusal("a\n{{ raise_exception('no ' ~ d) }}",
                  "line 2: the template refuses the conversation: no xx");
    check_refusal("{% if %}", "line 1");
    check_refusal("{{ '{}{}'.format(d) }}", "format(): too few values");
    check_refusal("{{ '{:9999}'.format(d) }}", "more than 1000");
    check_refusal("{{ '{'.format(d) }}", "ends within a field");
    check_refusal("{{ d.x.y }}", "'x' is undefined");
    check_refusal("{{ [].extend([1]) }}", "undefined");
    check_refusal("{{ [].pop() }}", "no such item");
    check_refusal("{{ [1].pop(1) }}", "no such item");
    check_refusal("{% set l = [] %}{{ l.append(l) }}{{ l }}", "deep");
    check_refusal("{% set l = [1] %}{% for x in l %}{{ l.append(x) }}{% endfor %}", "memory");
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        return 2;
    }
    folder = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_origins),        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_cases),          cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_channels),       cmocka_unit_test(test_kept_markup),
        cmocka_unit_test(test_suffixed_marks), cmocka_unit_test(test_frames),
    };
    return cmocka_run_group_tests(tests, open_cases, close_cases);
}
