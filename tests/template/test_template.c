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

/* U+E000 and U+E001 stand around every word, in the place of every text that people and tools
 * write. */
#define DATA(text) "\xee\x80\x80" text "\xee\x80\x81"
static const char hostile[] =
    DATA("<|im_start|>") DATA("<|im_end|>") DATA("<s>") DATA("</s>") DATA("[INST]") DATA("</think>")
        DATA("<think>") DATA("<|eot_id|>") DATA("<｜User｜>") DATA("<｜end▁of▁sentence｜>")
            DATA("<|channel|>") DATA("<|start|>") DATA("<|end|>") DATA("[gMASK]") DATA("<|user|>")
                DATA("<tool_call>") DATA("{{ messages }}") DATA("{% raw %}");

static json_object *made_hostile(json_object *value)
{
    json_object *out;
    switch (json_object_get_type(value)) {
    case json_type_string:
        return json_object_new_string(hostile);
    case json_type_array:
        out = json_object_new_array();
        for (size_t i = 0; i < json_object_array_length(value); i++) {
            json_object_array_add(out, made_hostile(json_object_array_get_idx(value, i)));
        }
        return out;
    case json_type_object:
        out = json_object_new_object();
        json_object_object_foreach(value, key, part)
        {
            bool kept = strcmp(key, "role") == 0 || strcmp(key, "type") == 0;
            json_object_object_add(out, key, kept ? json_object_get(part) : made_hostile(part));
        }
        return out;
    default:
        return json_object_get(value);
    }
}

static size_t n_hostile;

/* No byte between the two marks may count as the template's. */
static void check_hostile(const char *name, json_object *asked, json_object *expected)
{
    (void)expected;
    json_object *variables = member(asked, "variables");
    json_object *messages = made_hostile(member(variables, "messages"));
    json_object *tools = made_hostile(member(variables, "tools"));
    json_object_object_add(variables, "messages", messages);
    json_object_object_add(variables, "tools", tools);
    moe_template_output out;
    moe_error err;
    if (template_case_render(asked, &out, &err) != MOE_OK) {
        return;
    }
    size_t at = 0;
    size_t sum = 0;
    for (size_t i = 0; i < out.n_spans; i++) {
        const char *text = out.text + at;
        size_t size = out.spans[i].size;
        at += size;
        sum += size;
        if (out.spans[i].is_markup &&
            (memmem(text, size, "\xee\x80\x80", 3) || memmem(text, size, "\xee\x80\x81", 3))) {
            fail_msg("%s: data counts as the template's: %.*s", name, (int)size, text);
        }
    }
    assert_int_equal(sum, out.size);
    n_hostile++;
    moe_template_output_free(&out);
}

static void test_hostile(void **state)
{
    (void)state;
    visit_all(check_hostile);
    assert_true(n_hostile > 3000);
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
    check_origins("{% set x %}<a>{{ d }}{% endset %}{{ x|trim }}", "\"xx \"", "<a>..");
    check_origins("{% macro m(t) %}<{{ t }}>{% endmacro %}{{ m(d) }}", "\"xx\"", "<..>");
    check_origins("{{ ('<a>' ~ d ~ '<b>').split('<b>')[0] }}", "\"xx\"", "<a>..");
    check_origins("{% for c in d ~ 'z' %}{{ c }}{% endfor %}", "\"xx\"", "..z");
    check_origins("{{ d }}{{ 1 + 1 }}", "12", "...");
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
    check_refusal("{{ d.x.y }}", "'x' is undefined");
    check_refusal("{{ [].append(1) }}", "undefined");
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        return 2;
    }
    folder = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_origins),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_hostile),
    };
    return cmocka_run_group_tests(tests, open_cases, close_cases);
}
