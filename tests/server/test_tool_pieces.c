/* SPDX-License-Identifier: MIT */
/* Calls of tools in texts that come in pieces: byte by byte, in pieces of other sizes, and cut in
 * two at each place. What is read must be what is read of the whole, and what a stream has told of
 * a call's arguments may only grow. The texts are those of tool_corpus/corpus.json. Arguments: the
 * demo model, the corpus, the folder of templates, the folder of the corpus' own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <json-c/json.h>
#include <moe/moe.h>

#include "runtime/server/server_tool_probe.h"
#include "runtime/server/server_tool_reader.h"

enum { FEW_CALLS = 8 };

static char **paths;
static moe_engine *engine;
static size_t n_read;

/* ---- One text, in pieces ---- */

typedef struct reading {
    server_tool_reader reader;
    cli_buffer content;
} reading;

static bool is_same(const cli_buffer *one, const cli_buffer *other)
{
    return one->size == other->size &&
           (one->size == 0 || memcmp(one->data, other->data, one->size) == 0);
}

/* Feeds a piece; what was told of calls stays. */
static void feed(reading *r, const char *text, size_t size, bool ends)
{
    cli_buffer told[FEW_CALLS] = {{NULL, 0, 0}};
    const uint32_t n = r->reader.n_calls;
    for (uint32_t i = 0; i < n && i < FEW_CALLS && r->reader.streams; i++) {
        const cli_buffer *arguments = &r->reader.calls[i].arguments;
        assert_true(arguments->size == 0 ||
                    cli_buffer_append(&told[i], arguments->data, arguments->size));
    }
    const size_t size_before = r->content.size;
    assert_true(server_tool_read(&r->reader, text, size, ends, &r->content));
    n_read++;
    assert_true(r->content.size >= size_before && r->reader.n_calls >= n);
    for (uint32_t i = 0; i < n && i < FEW_CALLS && r->reader.streams; i++) {
        const cli_buffer *arguments = &r->reader.calls[i].arguments;
        assert_true(arguments->size >= told[i].size);
        assert_true(told[i].size == 0 || memcmp(arguments->data, told[i].data, told[i].size) == 0);
        cli_buffer_free(&told[i]);
    }
}

static void begin(reading *r, const server_tool_format *format, struct json_object *tools,
                  bool streams)
{
    *r = (reading){.reader = {.source = {format, tools}, .streams = streams}};
}

static void end(reading *r)
{
    server_tool_reader_free(&r->reader);
    cli_buffer_free(&r->content);
}

/* Pieces of one size; the first has another. */
static void read_pieces(reading *r, const char *text, size_t size, size_t first, size_t piece)
{
    for (size_t at = 0; at < size;) {
        size_t n = at == 0 ? first : piece;
        n = size - at < n ? size - at : n;
        feed(r, text + at, n, false);
        at += n;
    }
    feed(r, "", 0, true);
}

static void compare(const reading *one, const reading *other, const char *what, size_t first,
                    size_t piece)
{
    bool same =
        one->reader.n_calls == other->reader.n_calls && is_same(&one->content, &other->content);
    for (uint32_t i = 0; same && i < one->reader.n_calls; i++) {
        const server_tool_call *a = &one->reader.calls[i], *b = &other->reader.calls[i];
        same = is_same(&a->name, &b->name) && is_same(&a->arguments, &b->arguments);
    }
    if (!same) {
        fail_msg("%s: pieces of %zu, then %zu, are read otherwise", what, first, piece);
    }
}

/* ---- The corpus ---- */

static const char *text_of(struct json_object *object, const char *key)
{
    return json_object_get_string(json_object_object_get(object, key));
}

static void read_case(const server_tool_format *format, struct json_object *tools,
                      struct json_object *one, const char *family)
{
    static const size_t pieces[] = {1, 2, 3, 5, 7, 16};
    char what[200];
    struct json_object *text = json_object_object_get(one, "text");
    const char *data = json_object_get_string(text);
    const size_t size = (size_t)json_object_get_string_len(text);
    bool is_cut = json_object_get_boolean(json_object_object_get(one, "cut"));
    snprintf(what, sizeof what, "%s, %s", family, text_of(one, "case"));
    for (int streams = 0; streams < 2; streams++) {
        reading whole, other;
        begin(&whole, format, tools, streams != 0);
        read_pieces(&whole, data, size, size, size);
        for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
            begin(&other, format, tools, streams != 0);
            read_pieces(&other, data, size, pieces[i], pieces[i]);
            if (!is_cut || streams == 0) { /* of a cut call a stream has told more or less */
                compare(&whole, &other, what, pieces[i], pieces[i]);
            }
            end(&other);
        }
        for (size_t at = 1; at < size; at++) {
            begin(&other, format, tools, streams != 0);
            read_pieces(&other, data, size, at, size);
            if (!is_cut || streams == 0) {
                compare(&whole, &other, what, at, size);
            }
            end(&other);
        }
        end(&whole);
    }
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    static char text[1 << 17];
    if (file == NULL) {
        fail_msg("%s cannot be read", path);
    }
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

static void read_family(struct json_object *tools, const char *name, struct json_object *family)
{
    char path[1024];
    const char *chosen = text_of(family, "template");
    bool is_own = strncmp(chosen, "own/", 4) == 0;
    snprintf(path, sizeof path, "%s/%s.jinja", is_own ? paths[4] : paths[3],
             is_own ? chosen + 4 : chosen);
    const server_options options = {.model = "m", .chat_template_text = read_file(path)};
    server_tools known;
    server_tools_init(&known);
    assert_true(server_tools_find(&known, engine, &options));
    if (known.format.kind == SERVER_TOOLS_UNKNOWN) {
        fail_msg("%s: its format is not found", name);
    }
    struct json_object *cases = json_object_object_get(family, "cases");
    assert_true(json_object_array_length(cases) > 0);
    for (size_t i = 0; i < json_object_array_length(cases); i++) {
        read_case(&known.format, tools, json_object_array_get_idx(cases, i), name);
    }
    server_tools_free(&known);
}

static void test_corpus(void **state)
{
    (void)state;
    size_t n = 0;
    struct json_object *corpus = json_object_from_file(paths[2]);
    struct json_object *tools = json_object_object_get(corpus, "tools");
    assert_non_null(tools);
    json_object_object_foreach(json_object_object_get(corpus, "families"), name, family)
    {
        read_family(tools, name, family);
        n++;
    }
    assert_true(n >= 30);
    json_object_put(corpus);
    printf("%zu families, %zu pieces\n", n, n_read);
}

int main(int argc, char **argv)
{
    moe_error err = {""};
    moe_engine_options options;
    if (argc != 5) {
        fprintf(stderr, "usage: %s MODEL CORPUS TEMPLATES OWN-TEMPLATES\n", argv[0]);
        return 1;
    }
    paths = argv;
    moe_engine_options_init(&options);
    options.model_path = argv[1];
    if (moe_engine_open(&engine, &options, &err) != MOE_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_corpus)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    moe_engine_close(&engine);
    return failed;
}
