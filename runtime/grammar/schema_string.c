/* SPDX-License-Identifier: MIT */
/* Writes the grammars of strings, of listed values (enum, const), and of keys of objects. */
#include "runtime/grammar/schema_parts.h"

#include <inttypes.h>
#include <stdio.h>

#include "runtime/grammar/schema_enum.h"
#include "runtime/grammar/schema_merge.h"
#include "runtime/grammar/schema_regex.h"
#include "runtime/grammar/schema_value.h"

int64_t moe_schema_count(moe_schema_writer *w, struct json_object *schema, const char *key,
                         int64_t missing)
{
    struct json_object *value = json_object_object_get(schema, key);
    if (value == NULL) {
        return missing;
    }
    double n = json_object_get_double(value);
    bool is_number =
        json_object_is_type(value, json_type_int) || json_object_is_type(value, json_type_double);
    if (!is_number || n < 0 || n != (double)(int64_t)n) {
        moe_schema_fail(w, MOE_ERR_ARGUMENT, "a whole number is expected for ", key);
        return missing;
    }
    if (n > 2000) {
        moe_schema_note(w, key);
        return missing;
    }
    return (int64_t)n;
}

void moe_schema_add_repeats(moe_schema_writer *w, moe_schema_piece *out, int64_t least,
                            int64_t most)
{
    char text[48];
    if (most < 0) {
        snprintf(text, sizeof text, "{%" PRId64 ",}", least);
    } else {
        snprintf(text, sizeof text, "{%" PRId64 ",%" PRId64 "}", least, most);
    }
    if (most >= 0 && most < least) {
        moe_schema_fail(w, MOE_ERR_ARGUMENT, "a least number is above the most", "");
    }
    moe_schema_add(w, out, text);
}

void moe_schema_write_string(moe_schema_writer *w, struct json_object *plain, moe_schema_piece *out)
{
    int64_t least = moe_schema_count(w, plain, "minLength", 0);
    int64_t most = moe_schema_count(w, plain, "maxLength", -1);
    struct json_object *pattern = json_object_object_get(plain, "pattern"),
                       *format = json_object_object_get(plain, "format");
    const char *regex =
        json_object_is_type(pattern, json_type_string) ? json_object_get_string(pattern) : NULL;
    const char *named = json_object_is_type(format, json_type_string)
                            ? moe_schema_format(json_object_get_string(format))
                            : NULL;
    if (format != NULL && (named == NULL || regex != NULL)) {
        moe_schema_note(w, "format");
    }
    regex = regex != NULL ? regex : named;
    if (regex != NULL) {
        moe_schema_piece text = {NULL, 0, 0};
        bool whole = moe_schema_add_regex(w, &text, regex);
        if (whole) {
            moe_schema_add(w, out, "\"\\\"\" ");
            moe_schema_add_bytes(w, out, text.data, text.size);
            moe_schema_add(w, out, " \"\\\"\"");
        } else {
            moe_schema_note(w, "pattern");
        }
        moe_schema_drop(w, &text);
        if (whole) {
            if (least > 0 || most >= 0) {
                moe_schema_note(w, least > 0 ? "minLength" : "maxLength");
            }
            return;
        }
    }
    if (least == 0 && most < 0) {
        moe_schema_add(w, out, "string");
        return;
    }
    moe_schema_add(w, out, "\"\\\"\" char");
    moe_schema_add_repeats(w, out, least, most);
    moe_schema_add(w, out, " \"\\\"\"");
}

/* ---- Listed values ---- */

/* Adds a listed value. Within arrays and objects it allows the white space that models write. */
static void add_spaced(moe_schema_writer *w, moe_schema_piece *out, struct json_object *value)
{
    bool first = true;
    if (!moe_schema_step(w, 16)) {
        return;
    }
    if (json_object_is_type(value, json_type_array)) {
        moe_schema_add(w, out, "\"[\" ws ");
        for (size_t i = 0; i < json_object_array_length(value); i++) {
            moe_schema_add(w, out, i > 0 ? "ws \",\" ws " : "");
            add_spaced(w, out, json_object_array_get_idx(value, i));
        }
        moe_schema_add(w, out, "ws \"]\" ");
    } else if (json_object_is_type(value, json_type_object)) {
        moe_schema_add(w, out, "\"{\" ws ");
        json_object_object_foreach(value, key, member)
        {
            struct json_object *quoted = json_object_new_string(key);
            moe_schema_add(w, out, first ? "" : "ws \",\" ws ");
            moe_schema_add_value(w, out, quoted);
            moe_schema_add(w, out, " ws \":\" ws ");
            add_spaced(w, out, member);
            json_object_put(quoted);
            first = false;
        }
        moe_schema_add(w, out, "ws \"}\" ");
    } else {
        moe_schema_add_value(w, out, value);
        moe_schema_add(w, out, " ");
    }
}

bool moe_schema_write_choices(moe_schema_writer *w, struct json_object *plain,
                              moe_schema_piece *out)
{
    struct json_object *choices = json_object_object_get(plain, "enum"),
                       *scalars = json_object_new_array();
    size_t n =
        json_object_is_type(choices, json_type_array) ? json_object_array_length(choices) : 0;
    struct json_object *rest = moe_schema_without(w, plain, "enum");
    bool any = false;
    moe_schema_add(w, out, "(");
    for (size_t i = 0; i < n && moe_schema_step(w, 1); i++) {
        struct json_object *value = json_object_array_get_idx(choices, i);
        bool is_group = json_object_is_type(value, json_type_array) ||
                        json_object_is_type(value, json_type_object);
        if (!moe_schema_allows(w, rest, value)) {
            continue;
        }
        if (is_group) {
            moe_schema_add(w, out, any ? " | " : "");
            add_spaced(w, out, value);
            any = true;
        } else if (json_object_array_add(scalars, json_object_get(value)) != 0) {
            moe_schema_fail(w, MOE_ERR_MEMORY, "out of memory", "");
        }
    }
    if (json_object_array_length(scalars) > 0) {
        moe_schema_add(w, out, any ? " | " : "");
        moe_schema_write_enum(w, scalars, out);
        any = true;
    }
    json_object_put(scalars);
    moe_schema_add(w, out, ")");
    return any;
}

/* ---- Keys ---- */

/* Writes all keys that differ from the n given ones. Follows the given keys character by character,
 * as a trie, and leaves that trie at any character that continues none of them. */
static void add_other_keys(moe_schema_writer *w, moe_schema_piece *out, const char *const *keys,
                           size_t n, size_t at)
{
    /* The keys are sorted, and equal in their first `at` bytes. */
    bool ends = n > 0 && keys[0][at] == '\0';
    size_t from = ends ? 1 : 0;
    if (!moe_schema_step(w, n + 1)) {
        return;
    }
    moe_schema_add(w, out, ends ? "(" : "(\"\" | ");
    bool any = false;
    moe_schema_piece others = {NULL, 0, 0};
    for (size_t i = from, next; i < n; i = next) {
        unsigned char c = (unsigned char)keys[i][at];
        size_t size = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        for (next = i + 1; next < n && strncmp(keys[i] + at, keys[next] + at, size) == 0;) {
            next++;
        }
        size = strnlen(keys[i] + at, size);
        bool is_plain =
            c >= 0x20 && c != '"' && c != '\\' && c != ']' && c != '[' && c != '^' && c != '-';
        if (c < 0x20 || c == '"' || c == '\\') {
            continue; /* would need an escape, which plain-char leaves out anyway */
        }
        moe_schema_add(w, &others, is_plain ? "" : "\\");
        moe_schema_add_bytes(w, &others, keys[i] + at, size);
        moe_schema_add(w, out, any ? " | " : "");
        moe_schema_add_literal(w, out, keys[i] + at, size);
        moe_schema_add(w, out, " ");
        add_other_keys(w, out, keys + i, next - i, at + size);
        any = true;
    }
    moe_schema_add(w, out, any ? " | [^\"\\\\\\x00-\\x1F" : "[^\"\\\\\\x00-\\x1F");
    moe_schema_add_bytes(w, out, others.data == NULL ? "" : others.data, others.size);
    moe_schema_add(w, out, "] plain-char*)");
    moe_schema_drop(w, &others);
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void moe_schema_write_other_key(moe_schema_writer *w, struct json_object *properties,
                                moe_schema_piece *out)
{
    size_t n = properties == NULL ? 0 : (size_t)json_object_object_length(properties), at = 0;
    if (n == 0) {
        moe_schema_add(w, out, "string");
        return;
    }
    const char **keys = moe_allowance_grow(w->allowance, NULL, 0, n, sizeof *keys);
    if (keys == NULL) {
        moe_schema_fail(w, MOE_ERR_MEMORY, "out of memory", "");
        return;
    }
    json_object_object_foreach(properties, key, value)
    {
        (void)value;
        keys[at++] = key;
    }
    qsort(keys, n, sizeof *keys, compare);
    moe_schema_add(w, out, "\"\\\"\" ");
    add_other_keys(w, out, keys, n, 0);
    moe_schema_add(w, out, " \"\\\"\"");
    free(keys);
    moe_allowance_give(w->allowance, n * sizeof *keys);
}
