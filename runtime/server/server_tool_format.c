/* SPDX-License-Identifier: MIT */
#include "server_tool_format.h"

#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>

/* Positions of the parts of one call in a rendered text. */
typedef struct call_place {
    size_t begin, end; /* of what call_open and call_close enclose */
    size_t name, arguments, arguments_end;
} call_place;

/* ---- Preparing the rendered text ---- */

/* If a call's number follows its name here (":0"), returns the length of that part; otherwise 0. */
static size_t number_at(server_span text, size_t at)
{
    static const char *const names[] = {SERVER_PROBE_NAME_A, SERVER_PROBE_NAME_B};
    size_t end = at + 1;
    bool follows = false;
    for (size_t i = 0; i < 2; i++) {
        size_t size = strlen(names[i]);
        follows |= at >= size && memcmp(text.data + at - size, names[i], size) == 0;
    }
    while (end < text.size && text.data[end] >= '0' && text.data[end] <= '9') {
        end++;
    }
    return follows && text.data[at] == ':' && end > at + 1 ? end - at : 0;
}

/* Copies the text, with everything that differs between calls or arguments (ids, numbers, keys)
 * replaced by a special byte (SERVER_TOOL_ID and so on). */
static char *replace_ids(char *out, server_span text)
{
    static const struct {
        const char *word, *mark;
    } words[] = {{SERVER_PROBE_ID, "\1"},
                 {SERVER_PROBE_NUMBER, "\2"},
                 {" string=\"true\"", " string=\"\3\""},
                 {" type=\"string\"", " type=\"\6\""},
                 {" index=\"1\"", " index=\"\5\""},
                 {" index=\"2\"", " index=\"\5\""},
                 {"</" SERVER_PROBE_KEY_A ">", "</\4>"},
                 {"</" SERVER_PROBE_KEY_B ">", "</\4>"}};
    for (size_t i = 0; i < text.size;) {
        size_t step = number_at(text, i);
        if (step > 0) {
            *out++ = SERVER_TOOL_NUMBER;
        }
        for (size_t k = 0; k < sizeof words / sizeof words[0] && step == 0; k++) {
            size_t size = strlen(words[k].word);
            if (text.size - i >= size && memcmp(text.data + i, words[k].word, size) == 0) {
                out = stpcpy(out, words[k].mark);
                step = size;
            }
        }
        if (step == 0) {
            *out++ = text.data[i];
            step = 1;
        }
        i += step;
    }
    return out;
}

static server_span take_text(char **out, server_span text)
{
    char *begin = *out;
    *out = replace_ids(begin, text);
    return (server_span){begin, (size_t)(*out - begin)};
}

/* ---- Finding a call ---- */

static struct json_object *parse_span(server_span text)
{
    struct json_tokener *tokener = json_tokener_new_ex(32);
    struct json_object *value =
        tokener == NULL ? NULL : json_tokener_parse_ex(tokener, text.data, (int)text.size);
    if (tokener != NULL && json_tokener_get_error(tokener) != json_tokener_success) {
        json_object_put(value);
        value = NULL;
    }
    json_tokener_free(tokener);
    return value;
}

/* Whether the JSON object contains this name, and an object (or an object as a string) with the
 * arguments. */
static bool is_call_object(server_span text, const char *name)
{
    bool has_name = false, has_arguments = false;
    struct json_object *object = parse_span(text);
    if (json_object_is_type(object, json_type_object)) {
        json_object_object_foreach(object, key, value)
        {
            const char *written = value == NULL ? "" : json_object_get_string(value);
            (void)key;
            has_name |= json_object_is_type(value, json_type_string) && strcmp(written, name) == 0;
            has_arguments |= !json_object_is_type(value, json_type_array) &&
                             strstr(written, SERVER_PROBE_KEY_A) != NULL &&
                             strstr(written, name) == NULL;
        }
    }
    json_object_put(object);
    return has_name && has_arguments;
}

/* Finds the JSON object that holds the name and the arguments of a call. */
static bool find_object(server_span text, size_t from, const char *name, call_place *place)
{
    place->name = server_span_find(text, from, name);
    for (size_t at = place->name == SERVER_TEXT_DIFFERS ? from : place->name; at > from; at--) {
        size_t end = text.data[at - 1] == '{' ? server_json_end(text, at - 1) : SERVER_TEXT_SHORT;
        if (end < text.size + 1 && end > place->name &&
            is_call_object(server_span_cut(text, at - 1, end), name)) {
            place->begin = at - 1;
            place->end = end;
            size_t key = server_span_find(text, at - 1, SERVER_PROBE_KEY_A);
            while (key > at && text.data[key] != '{') {
                key--;
            }
            /* If the arguments are a quoted string, they begin with the quote, one character
             * earlier. */
            place->arguments = key > at && text.data[key - 1] == '"' ? key - 1 : key;
            place->arguments_end = server_json_end(text, place->arguments);
            return place->arguments_end <= end && key > at;
        }
    }
    return false;
}

/* Finds a name that is followed by a JSON object with the arguments. */
static bool find_named(server_span text, size_t from, const char *name, call_place *place)
{
    size_t at = place->begin = place->name = server_span_find(text, from, name);
    while (at < text.size && text.data[at] != '{') {
        at++;
    }
    size_t end = server_json_end(text, at);
    size_t key = server_span_find(text, place->name, SERVER_PROBE_KEY_A);
    if (place->name == SERVER_TEXT_DIFFERS || end > text.size || key > end || key < at) {
        return false;
    }
    struct json_object *object = parse_span(server_span_cut(text, at, end));
    bool has_key = json_object_object_get_ex(object, SERVER_PROBE_KEY_A, NULL);
    json_object_put(object);
    place->arguments = at;
    place->arguments_end = place->end = end;
    return has_key;
}

/* Finds a name that is followed by keys and values between tags. */
static bool find_tagged(server_span text, size_t from, const char *name, call_place *place)
{
    static const char *const words[] = {SERVER_PROBE_KEY_A, SERVER_PROBE_VALUE_A,
                                        SERVER_PROBE_KEY_B, SERVER_PROBE_VALUE_B};
    size_t at = place->begin = place->name = server_span_find(text, from, name);
    for (size_t i = 0; i < 4 && at != SERVER_TEXT_DIFFERS; i++) {
        at = server_span_find(text, at, words[i]);
        place->arguments = i == 0 ? at : place->arguments;
    }
    place->arguments_end = place->end = at + strlen(SERVER_PROBE_VALUE_B);
    return at != SERVER_TEXT_DIFFERS;
}

typedef bool (*find_fn)(server_span text, size_t from, const char *name, call_place *place);

/* ---- Learning the literals around calls ---- */

static size_t behind(size_t at, const char *word)
{
    return at + strlen(word);
}

/* Learns the literals around keys and values. *tail is the text behind the last value; the
 * function removes value_close from its beginning. */
static bool learn_tags(server_tool_format *f, server_span text, const call_place *place,
                       server_span *tail)
{
    size_t name_end = behind(place->name, SERVER_PROBE_NAME_A);
    size_t key_end = behind(place->arguments, SERVER_PROBE_KEY_A);
    size_t value = server_span_find(text, key_end, SERVER_PROBE_VALUE_A);
    size_t value_end = behind(value, SERVER_PROBE_VALUE_A);
    size_t next = server_span_find(text, value_end, SERVER_PROBE_KEY_B);
    server_span before = server_span_cut(text, name_end, place->arguments);
    server_span middle = server_span_cut(text, value_end, next);
    size_t shared = server_common_end(before, middle);
    f->key_open = server_span_cut(before, before.size - shared, before.size);
    f->after_name = server_span_cut(before, 0, before.size - shared);
    f->value_open = server_span_cut(text, key_end, value);
    size_t closing = server_common_start(server_span_cut(middle, 0, middle.size - shared), *tail);
    f->value_close = server_span_cut(*tail, 0, closing);
    *tail = server_span_cut(*tail, closing, tail->size);
    return !server_is_blank(f->key_open) && !server_is_blank(f->value_open) &&
           !server_is_blank(f->value_close);
}

/* For calls that are JSON objects: learns the keys of the name and of the arguments, and the text
 * between the two. */
static bool learn_object(server_tool_format *f, server_span text, const call_place *place)
{
    server_span object = server_span_cut(text, place->begin, place->end);
    if (place->arguments < place->name) {
        return false;
    }
    size_t name = place->name - place->begin;
    size_t arguments = place->arguments - place->begin;
    f->object_open = server_span_cut(object, 0, name);
    f->after_name = server_span_cut(object, behind(name, SERVER_PROBE_NAME_A), arguments);
    f->object_close = server_span_cut(object, place->arguments_end - place->begin, object.size);
    server_span *const keys[] = {&f->name_key, &f->arguments_key};
    const size_t ends[] = {name - (name > 0), arguments};
    for (size_t i = 0; i < 2; i++) {
        size_t to = ends[i];
        while (to > 0 && object.data[to - 1] != '"') {
            to--;
        }
        size_t from = to > 0 ? to - 1 : 0;
        while (from > 0 && object.data[from - 1] != '"') {
            from--;
        }
        *keys[i] = server_span_cut(object, from, to > 0 ? to - 1 : 0);
    }
    return f->name_key.size > 0 && f->arguments_key.size > 0;
}

/* Learns the literals before, between and after calls. before: the text up to the first call;
 * after: the text behind the last call. */
static void learn_frame(server_tool_format *f, server_span before, server_span middle,
                        server_span after)
{
    if (!f->several) {
        f->call_open = before;
        f->call_close = after;
        return;
    }
    size_t closing = server_common_start(middle, after);
    server_span rest = server_span_cut(middle, closing, middle.size);
    size_t opening = server_common_end(before, rest);
    f->call_close = server_span_cut(after, 0, closing);
    f->section_close = server_span_cut(after, closing, after.size);
    f->call_open = server_span_cut(before, before.size - opening, before.size);
    f->section_open = server_span_cut(before, 0, before.size - opening);
    f->between = server_span_cut(rest, 0, rest.size - opening);
}

/* If the call's number follows the name, the name is part of an id such as functions.NAME:0.
 * Learns the part before the name. */
static void learn_prefix(server_tool_format *f)
{
    static const char prefix[] = "functions.";
    const size_t size = sizeof prefix - 1;
    const char *end = f->call_open.data + f->call_open.size;
    f->has_name = memchr(f->after_name.data, SERVER_TOOL_NUMBER, f->after_name.size) != NULL;
    if (f->kind == SERVER_TOOLS_NAMED && f->has_name && f->call_open.size > size &&
        memcmp(end - size, prefix, size) == 0) {
        f->call_open.size -= size;
        f->name_prefix = server_span_of(prefix);
    }
}

/* Learns the format if the function `find` finds the calls in the renderings of one call and of
 * two. */
static bool learn_with(server_tool_format *f, find_fn find, server_span one, server_span two,
                       size_t start, server_span ending)
{
    call_place place, first, second;
    server_span middle = {"", 0};
    size_t end = one.size - server_common_end(one, ending);
    if (!find(one, start, SERVER_PROBE_NAME_A, &place) || place.end > end) {
        return false;
    }
    f->several = two.data != NULL && find(two, start, SERVER_PROBE_NAME_A, &first) &&
                 find(two, first.end, SERVER_PROBE_NAME_B, &second);
    server_span before = server_span_cut(one, start, place.begin);
    server_span after = server_span_cut(one, place.end, end);
    if (f->several) {
        middle = server_span_cut(two, first.end, second.begin);
        after = server_span_cut(two, second.end, two.size - server_common_end(two, ending));
    }
    if (f->kind == SERVER_TOOLS_JSON && !learn_object(f, one, &place)) {
        return false;
    }
    if (f->kind == SERVER_TOOLS_NAMED) {
        f->after_name =
            server_span_cut(one, behind(place.name, SERVER_PROBE_NAME_A), place.arguments);
    }
    if (f->kind == SERVER_TOOLS_TAGGED) {
        if (!learn_tags(f, one, &place, &after)) {
            return false;
        }
        size_t closing = f->value_close.size < middle.size ? f->value_close.size : middle.size;
        middle = server_span_cut(middle, closing, middle.size);
    }
    learn_frame(f, before, middle, after);
    const size_t closed = server_common_start(f->section_open, ending);
    if (!server_is_blank(server_span_cut(ending, 0, closed))) {
        f->answer_close = server_span_cut(f->section_open, 0, closed);
        f->section_open = server_span_cut(f->section_open, closed, f->section_open.size);
    }
    learn_prefix(f);
    bool is_message = server_span_find(before, 0, "to=functions.") != SERVER_TEXT_DIFFERS;
    f->kind = is_message && f->kind == SERVER_TOOLS_NAMED ? SERVER_TOOLS_CHANNELS : f->kind;
    /* A format that marks its calls neither by literals nor by an object is useless, because a
     * bare name cannot be told from ordinary text. A bare object can, at the beginning of an
     * answer. */
    return f->kind == SERVER_TOOLS_JSON ||
           !(server_is_blank(f->section_open) && server_is_blank(f->call_open));
}

bool server_tool_learn(server_tool_format *format, server_span content, server_span one,
                       server_span two)
{
    static const struct {
        server_tool_kind kind;
        find_fn find;
    } kinds[] = {{SERVER_TOOLS_JSON, find_object},
                 {SERVER_TOOLS_NAMED, find_named},
                 {SERVER_TOOLS_TAGGED, find_tagged}};
    const server_span empty = {"", 0};
    const server_tool_format none = {.section_open = empty,
                                     .call_open = empty,
                                     .call_close = empty,
                                     .between = empty,
                                     .section_close = empty,
                                     .answer_close = empty,
                                     .after_name = empty,
                                     .key_open = empty,
                                     .value_open = empty,
                                     .value_close = empty,
                                     .block_open = empty,
                                     .block_close = empty,
                                     .name_key = empty,
                                     .arguments_key = empty,
                                     .object_open = empty,
                                     .object_close = empty,
                                     .name_prefix = empty,
                                     .quote = empty,
                                     .may_open = empty,
                                     .may_close = empty};
    *format = none;
    char *text = malloc(content.size + one.size + two.size + 1);
    char *out = text;
    if (text == NULL) {
        return false;
    }
    content = take_text(&out, content);
    one = take_text(&out, one);
    two = two.data == NULL ? two : take_text(&out, two);
    size_t answer = server_span_find(content, 0, SERVER_PROBE_CONTENT);
    size_t start = server_common_start(content, one);
    if (answer != SERVER_TEXT_DIFFERS) {
        start = start < answer ? start : answer;
        server_span ending =
            server_span_cut(content, behind(answer, SERVER_PROBE_CONTENT), content.size);
        for (size_t i = 0; i < 3; i++) {
            *format = none;
            format->kind = kinds[i].kind;
            if (learn_with(format, kinds[i].find, one, two, start, ending)) {
                format->text = text;
                return true;
            }
        }
    }
    free(text);
    *format = none;
    return true;
}

bool server_tool_learn_block(server_tool_format *f, server_span one)
{
    char *text = malloc(one.size + 1), *out = text;
    if (text == NULL) {
        return false;
    }
    one = take_text(&out, one);
    const server_span closing = server_span_trim(f->call_close);
    const size_t name = server_span_find(one, 0, SERVER_PROBE_NAME_A);
    const size_t named = name == SERVER_TEXT_DIFFERS ? one.size : behind(name, SERVER_PROBE_NAME_A);
    const size_t begin = named + f->after_name.size;
    const bool follows =
        begin <= one.size && memcmp(one.data + named, f->after_name.data, f->after_name.size) == 0;
    const size_t whole =
        follows ? server_span_find(one, begin, SERVER_PROBE_WHOLE) : SERVER_TEXT_DIFFERS;
    const size_t end = whole == SERVER_TEXT_DIFFERS ? one.size : behind(whole, SERVER_PROBE_WHOLE);
    const char *closed = closing.size == 0
                             ? NULL
                             : memmem(one.data + end, one.size - end, closing.data, closing.size);
    const server_span open = closed == NULL ? closing : server_span_cut(one, begin, whole);
    const server_span close =
        closed == NULL ? closing : server_span_cut(one, end, (size_t)(closed - one.data));
    if (closed != NULL && !server_is_blank(open) && !server_is_blank(close)) {
        f->block_open = open;
        f->block_close = close;
        f->block_text = text;
        return true;
    }
    free(text);
    return true;
}

void server_tool_format_free(server_tool_format *format)
{
    free(format->text);
    free(format->block_text);
    memset(format, 0, sizeof *format);
}
