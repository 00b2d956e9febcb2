/* SPDX-License-Identifier: MIT */
/* Writes the grammar of objects: the listed properties in the schema's order, some of which are
 * optional, and then members with other keys. */
#include "runtime/grammar/schema_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/grammar/schema_merge.h"
#include "runtime/grammar/schema_regex.h"
#include "runtime/grammar/schema_value.h"

enum { STEPS_OF_NAME = 16, MOST_COUNTED = 2000 };

typedef struct member {
    char rule[16]; /* with its key; "": it cannot be there */
    bool required;
} member;

typedef struct members {
    moe_schema_writer *w;
    member *list;
    size_t n;
    char extra[16];      /* a member with another key; "": there are none */
    int64_t least, most; /* of all; most < 0: any number */
} members;

/* ---- The properties ---- */

/* Returns all properties, including those that are required but not listed. The writer owns the
 * result. */
static struct json_object *all_properties(moe_schema_writer *w, struct json_object *plain)
{
    struct json_object *given = json_object_object_get(plain, "properties"),
                       *required = json_object_object_get(plain, "required");
    struct json_object *all = json_object_new_object();
    if (all == NULL || json_object_array_add(w->kept, all) != 0) {
        moe_schema_fail(w, MOE_ERR_MEMORY, "out of memory", "");
        return NULL;
    }
    if (given != NULL && !json_object_is_type(given, json_type_object)) {
        moe_schema_fail(w, MOE_ERR_ARGUMENT, "properties must be an object", "");
    } else if (given != NULL) {
        json_object_object_foreach(given, key, value)
        {
            if (moe_schema_step(w, 1)) {
                json_object_object_add(all, key, json_object_get(value));
            }
        }
    }
    size_t n =
        json_object_is_type(required, json_type_array) ? json_object_array_length(required) : 0;
    for (size_t i = 0; i < n && moe_schema_step(w, STEPS_OF_NAME); i++) {
        const char *name = json_object_get_string(json_object_array_get_idx(required, i));
        struct json_object *more = json_object_object_get(plain, "additionalProperties");
        if (name != NULL && !json_object_object_get_ex(all, name, NULL)) {
            json_object_object_add(all, name,
                                   more != NULL ? json_object_get(more) : json_object_new_object());
        }
    }
    return all;
}

static bool is_required(moe_schema_writer *w, struct json_object *names, const char *key)
{
    (void)moe_schema_step(w, STEPS_OF_NAME);
    return json_object_object_get_ex(names, key, NULL);
}

/* Returns an object whose keys are the names in the schema's `required`. */
static struct json_object *required_names(moe_schema_writer *w, struct json_object *plain)
{
    struct json_object *required = json_object_object_get(plain, "required"),
                       *names = json_object_new_object();
    size_t n =
        json_object_is_type(required, json_type_array) ? json_object_array_length(required) : 0;
    for (size_t i = 0; i < n && moe_schema_step(w, STEPS_OF_NAME); i++) {
        const char *name = json_object_get_string(json_object_array_get_idx(required, i));
        if (name == NULL || json_object_object_add(names, name, NULL) != 0) {
            moe_schema_fail(w, MOE_ERR_ARGUMENT, "required must be an array of names", "");
        }
    }
    return names;
}

/* Returns the property's schema, merged with the schemas of all patternProperties that match its
 * key. NULL: no value is valid for the property. */
static struct json_object *schema_of(moe_schema_writer *w, struct json_object *plain,
                                     const char *key, struct json_object *schema)
{
    struct json_object *patterns = json_object_object_get(plain, "patternProperties");
    struct json_object *names = json_object_object_get(plain, "propertyNames");
    struct json_object *out = schema;
    if (names != NULL) {
        struct json_object *allowed = moe_schema_plain(w, names);
        struct json_object *text = json_object_new_string(key);
        bool fits = allowed != NULL && moe_schema_allows(w, allowed, text);
        json_object_put(text);
        if (!fits) {
            return NULL;
        }
    }
    if (json_object_is_type(patterns, json_type_object)) {
        json_object_object_foreach(patterns, pattern, more)
        {
            if (moe_schema_regex_matches(w, pattern, key)) {
                struct json_object *a = moe_schema_plain(w, out), *b = moe_schema_plain(w, more);
                out = a == NULL || b == NULL ? NULL : moe_schema_both(w, a, b);
                if (out == NULL) {
                    return NULL;
                }
            }
        }
    }
    return out;
}

/* Writes the rule of one member: its key, a colon and its value. */
static bool write_member(moe_schema_writer *w, const char *key, struct json_object *schema,
                         char rule[16])
{
    char value[16];
    moe_schema_piece m = {NULL, 0, 0};
    size_t before = moe_schema_enter(w, key);
    bool valid = moe_schema_write_rule(w, schema, value);
    moe_schema_leave(w, before);
    rule[0] = '\0';
    if (valid && w->status == MOE_OK) {
        struct json_object *quoted = json_object_new_string(key);
        moe_schema_add_value(w, &m, quoted);
        json_object_put(quoted);
        moe_schema_add(w, &m, " ws \":\" ws ");
        moe_schema_add(w, &m, value);
        moe_schema_finish_rule(w, &m, rule, w->n_rules++);
    }
    return valid;
}

/* ---- Other keys ---- */

/* Whether a listed property's key matches the pattern. If so, a member that the pattern allows
 * might be that property. */
static bool takes_listed(moe_schema_writer *w, struct json_object *properties, const char *pattern)
{
    json_object_object_foreach(properties, key, value)
    {
        (void)value;
        if (moe_schema_regex_matches(w, pattern, key)) {
            return true;
        }
    }
    return false;
}

static void add_pair(moe_schema_writer *w, moe_schema_piece *out, const moe_schema_piece *key,
                     struct json_object *schema, bool *any)
{
    char value[16];
    if (schema != NULL && !moe_schema_write_rule(w, schema, value)) {
        return;
    }
    moe_schema_add(w, out, *any ? " | " : "");
    moe_schema_add_bytes(w, out, key->data, key->size);
    moe_schema_add(w, out, " ws \":\" ws ");
    moe_schema_add(w, out, schema == NULL ? "value" : value);
    *any = true;
}

/* Adds members whose keys match patterns. If a schema has patterns, the grammar allows no other
 * keys, because it cannot ensure that these match none of the patterns. */
static bool add_patterns(moe_schema_writer *w, moe_schema_piece *out,
                         struct json_object *properties, struct json_object *patterns)
{
    bool any = false;
    size_t n = (size_t)json_object_object_length(patterns);
    json_object_object_foreach(patterns, pattern, schema)
    {
        moe_schema_piece key = {NULL, 0, 0};
        moe_schema_add(w, &key, "\"\\\"\" ");
        if (!moe_schema_add_regex(w, &key, pattern)) {
            moe_schema_note(w, "patternProperties");
        } else if (n > 1 && schema != NULL) {
            moe_schema_note(w, "patternProperties of several patterns");
        } else if (!takes_listed(w, properties, pattern)) {
            moe_schema_add(w, &key, " \"\\\"\"");
            add_pair(w, out, &key, schema, &any);
        }
        moe_schema_drop(w, &key);
    }
    return any;
}

/* Adds the keys that propertyNames allows: the keys that it lists, or all keys with the length or
 * the pattern that it demands. */
static bool add_named(moe_schema_writer *w, moe_schema_piece *out, struct json_object *properties,
                      struct json_object *names, struct json_object *schema)
{
    bool any = false;
    struct json_object *plain = moe_schema_plain(w, names);
    struct json_object *choices = json_object_object_get(plain, "enum");
    moe_schema_piece key = {NULL, 0, 0};
    if (plain == NULL || !moe_schema_has_type(plain, "string")) {
        return false;
    }
    if (json_object_is_type(choices, json_type_array)) {
        bool first = true;
        moe_schema_add(w, &key, "(");
        for (size_t i = 0; i < json_object_array_length(choices); i++) {
            struct json_object *choice = json_object_array_get_idx(choices, i);
            const char *text = json_object_get_string(choice);
            if (json_object_is_type(choice, json_type_string) &&
                !json_object_object_get_ex(properties, text, NULL)) {
                moe_schema_add(w, &key, first ? "" : " | ");
                moe_schema_add_value(w, &key, choice);
                first = false;
            }
        }
        moe_schema_add(w, &key, ")");
        if (!first) {
            add_pair(w, out, &key, schema, &any);
        }
    } else if (json_object_object_length(properties) == 0) {
        moe_schema_write_string(w, plain, &key);
        add_pair(w, out, &key, schema, &any);
    }
    moe_schema_drop(w, &key);
    return any;
}

/* Writes the rule of members whose keys are not listed, and sets `rule` to its name. The name is
 * empty if no such member is allowed. */
static void write_extra(moe_schema_writer *w, struct json_object *plain,
                        struct json_object *properties, char rule[16])
{
    struct json_object *more = json_object_object_get(plain, "additionalProperties");
    struct json_object *patterns = json_object_object_get(plain, "patternProperties");
    struct json_object *names = json_object_object_get(plain, "propertyNames");
    bool has_patterns =
        json_object_is_type(patterns, json_type_object) && json_object_object_length(patterns) > 0;
    bool is_open = more == NULL ? json_object_object_length(properties) == 0
                                : !json_object_is_type(more, json_type_boolean) ||
                                      json_object_get_boolean(more);
    struct json_object *schema = json_object_is_type(more, json_type_object) ? more : NULL;
    moe_schema_piece p = {NULL, 0, 0};
    bool any = false;
    if (has_patterns && names != NULL) {
        any = false; /* keys by both cannot be held: there are none */
    } else if (has_patterns) {
        any = add_patterns(w, &p, properties, patterns);
    } else if (is_open && names != NULL) {
        any = add_named(w, &p, properties, names, schema);
    } else if (is_open) {
        moe_schema_piece key = {NULL, 0, 0};
        moe_schema_write_other_key(w, properties, &key);
        add_pair(w, &p, &key, schema, &any);
        moe_schema_drop(w, &key);
    }
    rule[0] = '\0';
    if (any) {
        moe_schema_finish_rule(w, &p, rule, w->n_rules++);
    }
    moe_schema_drop(w, &p);
}

/* ---- Members ---- */

/* Adds extra members behind `count` others, so that their number meets minProperties and
 * maxProperties. False: this is not possible. */
static bool add_extras(const members *m, moe_schema_piece *out, int64_t count)
{
    int64_t least = m->least > count ? m->least - count : 0;
    int64_t most = m->most < 0 ? -1 : m->most - count;
    if (m->extra[0] == '\0' || most == 0) {
        moe_schema_add(m->w, out, "\"\"");
        return least == 0;
    }
    moe_schema_add(m->w, out, "(");
    moe_schema_add(m->w, out, count > 0 ? "ws \",\" ws " : "");
    moe_schema_add(m->w, out, m->extra);
    moe_schema_add(m->w, out, " (ws \",\" ws ");
    moe_schema_add(m->w, out, m->extra);
    moe_schema_add(m->w, out, ")");
    moe_schema_add_repeats(m->w, out, least > 0 ? least - 1 : 0, most < 0 ? -1 : most - 1);
    moe_schema_add(m->w, out, least == 0 ? ")?" : ")");
    return true;
}

/* Rules for what may follow from member `i` on, where `count` came before (no more than `top` are
 * told apart), built from the last member to the first:
 *   rest(i, count) ::= ","? member(i) rest(i+1, count+1) | rest(i+1, count)     the second if it
 * may be left out. The name of rest(0, 0); false: there is none. */
static bool write_members(const members *m, int64_t top, char name[16])
{
    moe_schema_writer *w = m->w;
    size_t width = (size_t)top + 1;
    char(*rows)[16] = moe_allowance_grow(w->allowance, NULL, 0, 2 * width, sizeof *rows);
    if (rows == NULL) {
        moe_schema_fail(w, MOE_ERR_MEMORY, "out of memory", "");
        return false;
    }
    char(*next)[16] = rows, (*now)[16] = rows + width;
    for (size_t c = 0; c < width && moe_schema_step(w, 1); c++) {
        moe_schema_piece p = {NULL, 0, 0};
        next[c][0] = '\0';
        if (add_extras(m, &p, (int64_t)c)) {
            moe_schema_finish_rule(w, &p, next[c], w->n_rules++);
        }
        moe_schema_drop(w, &p);
    }
    for (size_t i = m->n; i-- > 0;) {
        for (size_t c = 0; c < width && moe_schema_step(w, 1); c++) {
            moe_schema_piece p = {NULL, 0, 0};
            bool may = m->list[i].rule[0] != '\0' && (m->most < 0 || (int64_t)c < m->most);
            const char *with = next[c + 1 < width ? c + 1 : c];
            bool comes = may && with[0] != '\0', stays = !m->list[i].required && next[c][0] != '\0';
            now[c][0] = '\0';
            if (comes) {
                moe_schema_add(w, &p, c > 0 ? "ws \",\" ws " : "");
                moe_schema_add(w, &p, m->list[i].rule);
                moe_schema_add(w, &p, " ");
                moe_schema_add(w, &p, with);
            }
            moe_schema_add(w, &p, comes && stays ? " | " : "");
            moe_schema_add(w, &p, stays ? next[c] : "");
            if (comes || stays) {
                moe_schema_finish_rule(w, &p, now[c], w->n_rules++);
            }
            moe_schema_drop(w, &p);
        }
        char(*swap)[16] = now;
        now = next;
        next = swap;
    }
    memcpy(name, next[0], 16);
    free(rows);
    moe_allowance_give(w->allowance, 2 * width * sizeof *rows);
    return name[0] != '\0';
}

/* Returns the largest number of members that the rules must tell apart. It is 1 (has any member
 * come yet?), unless the schema limits the number of members. */
static int64_t counted(members *m)
{
    int64_t n_required = 0;
    for (size_t i = 0; i < m->n; i++) {
        n_required += m->list[i].required;
    }
    bool has_extra = m->extra[0] != '\0';
    if (m->least <= n_required) {
        m->least = 0;
    }
    if (m->most >= (int64_t)m->n && !has_extra) {
        m->most = -1;
    }
    if (m->least > 1 && has_extra) {
        moe_schema_note(m->w, "minProperties"); /* keys that come twice count once */
    }
    int64_t top = m->most > m->least ? m->most : m->least;
    top = top < 1 ? 1 : top;
    if (top > 1 && top * (int64_t)(m->n + 1) > MOST_COUNTED) {
        moe_schema_note(m->w, m->most >= 0 ? "maxProperties" : "minProperties");
        m->least = 0;
        m->most = -1;
        top = 1;
    }
    return top;
}

bool moe_schema_write_object(moe_schema_writer *w, struct json_object *plain, moe_schema_piece *out)
{
    members m = {.w = w,
                 .least = moe_schema_count(w, plain, "minProperties", 0),
                 .most = moe_schema_count(w, plain, "maxProperties", -1)};
    char name[16] = "";
    bool valid = true;
    struct json_object *properties = all_properties(w, plain);
    struct json_object *required = required_names(w, plain);
    size_t n = w->status == MOE_OK ? (size_t)json_object_object_length(properties) : 0;
    m.list = moe_allowance_grow(w->allowance, NULL, 0, n + 1, sizeof *m.list);
    if (m.list == NULL) {
        moe_schema_fail(w, MOE_ERR_MEMORY, "out of memory", "");
    }
    if (w->status == MOE_OK) {
        json_object_object_foreach(properties, key, value)
        {
            member *one = &m.list[m.n++];
            struct json_object *schema = schema_of(w, plain, key, value);
            one->required = is_required(w, required, key);
            one->rule[0] = '\0';
            bool possible = schema != NULL && write_member(w, key, schema, one->rule);
            valid = valid && (possible || !one->required);
        }
        write_extra(w, plain, properties, m.extra);
        int64_t top = counted(&m);
        valid = valid && w->status == MOE_OK && write_members(&m, top, name);
    }
    free(m.list);
    moe_allowance_give(w->allowance, m.list == NULL ? 0 : (n + 1) * sizeof *m.list);
    json_object_put(required);
    moe_schema_add(w, out, "\"{\" ws ");
    moe_schema_add(w, out, name);
    moe_schema_add(w, out, " ws \"}\"");
    return valid;
}
