/* SPDX-License-Identifier: MIT */
/* Writes the grammar of arrays: prefixItems (a schema for each of the first items), items (one
 * schema for all others), contains (at least one item must match a schema) and uniqueItems. */
#include "runtime/grammar/schema_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/grammar/schema_merge.h"

enum { MOST_UNIQUE = 8, MOST_COUNTED = 32 };

/* Adds from `least` to `most` items, each by the rule with that name; most < 0: no upper limit. */
static void add_items(moe_schema_writer *w, moe_schema_piece *out, const char *rule, int64_t least,
                      int64_t most)
{
    if (most == 0) {
        return;
    }
    moe_schema_add(w, out, least == 0 ? "(" : "");
    moe_schema_add(w, out, rule);
    moe_schema_add(w, out, " (ws \",\" ws ");
    moe_schema_add(w, out, rule);
    moe_schema_add(w, out, ")");
    moe_schema_add_repeats(w, out, least == 0 ? 0 : least - 1, most < 0 ? -1 : most - 1);
    moe_schema_add(w, out, least == 0 ? ")? " : " ");
}

/* Adds the first items, each of which has a schema of its own. Writes their rules from the last
 * item to the first, because each rule refers to the next one. */
static bool add_front(moe_schema_writer *w, moe_schema_piece *out, struct json_object *front,
                      const char *rest, int64_t least, int64_t most)
{
    size_t n = json_object_array_length(front);
    char next[16] = "";
    bool has_next = rest != NULL && (most < 0 || most > (int64_t)n);
    if (most >= 0 && (size_t)most < n) {
        n = (size_t)most;
    }
    bool any = (int64_t)n >= least || has_next;
    if (has_next) {
        moe_schema_piece p = {NULL, 0, 0};
        int64_t low = least > (int64_t)n ? least - (int64_t)n : 0;
        moe_schema_add(w, &p, low == 0 ? "(" : "");
        moe_schema_add(w, &p, "ws \",\" ws ");
        add_items(w, &p, rest, low == 0 ? 1 : low, most < 0 ? -1 : most - (int64_t)n);
        moe_schema_add(w, &p, low == 0 ? ")?" : "");
        moe_schema_finish_rule(w, &p, next, w->n_rules++);
    }
    for (size_t i = n; i-- > 0 && w->status == MOE_OK;) {
        char item[16], name[16];
        moe_schema_piece p = {NULL, 0, 0};
        bool is_valid = moe_schema_write_rule(w, json_object_array_get_idx(front, i), item);
        bool may_end = (int64_t)i >= least;
        if (!is_valid) { /* the array ends before it */
            any = may_end;
            next[0] = '\0';
            if (i > 0) {
                moe_schema_add(w, &p, "\"\"");
                moe_schema_finish_rule(w, &p, next, w->n_rules++);
            }
            least = may_end ? least : INT64_MAX;
            continue;
        }
        moe_schema_add(w, &p, may_end ? "(" : "");
        moe_schema_add(w, &p, i > 0 ? "ws \",\" ws " : "");
        moe_schema_add(w, &p, item);
        moe_schema_add(w, &p, " ");
        moe_schema_add(w, &p, next);
        moe_schema_add(w, &p, may_end ? ")?" : "");
        moe_schema_finish_rule(w, &p, name, w->n_rules++);
        memcpy(next, name, sizeof name);
    }
    moe_schema_add(w, out, next);
    return any;
}

/* Adds items that are all different and come from a few listed values. There is one rule for each
 * set of values that have been used. */
static bool add_unique(moe_schema_writer *w, moe_schema_piece *out, struct json_object *choices,
                       int64_t least, int64_t most)
{
    size_t n = json_object_array_length(choices);
    char names[1 << MOST_UNIQUE][16];
    for (size_t set = (size_t)1 << n; set-- > 0 && moe_schema_step(w, n);) {
        moe_schema_piece p = {NULL, 0, 0};
        int64_t count = __builtin_popcountll(set);
        bool any = count >= least;
        moe_schema_add(w, &p, any ? "\"\"" : "");
        for (size_t i = 0; i < n && (most < 0 || count < most); i++) {
            size_t with = set | (size_t)1 << i;
            if (with != set && names[with][0] != '\0') {
                moe_schema_add(w, &p, any ? " | " : "");
                moe_schema_add(w, &p, set == 0 ? "" : "ws \",\" ws ");
                moe_schema_add_value(w, &p, json_object_array_get_idx(choices, i));
                moe_schema_add(w, &p, " ");
                moe_schema_add(w, &p, names[with]);
                any = true;
            }
        }
        names[set][0] = '\0';
        if (any) {
            moe_schema_finish_rule(w, &p, names[set], w->n_rules++);
        }
        moe_schema_drop(w, &p);
    }
    moe_schema_add(w, out, w->status == MOE_OK ? names[0] : "");
    return w->status != MOE_OK || names[0][0] != '\0';
}

/* Adds items of which at least one matches `contains` (a hit). There is one rule for each number of
 * items before the hit, and for each number of items up to and behind it. */
static bool add_containing(moe_schema_writer *w, moe_schema_piece *out, const char *item,
                           const char *hit, int64_t least, int64_t most)
{
    char after[16], before[16] = "";
    int64_t top = most < 0 ? least : most;
    top = top < 1 ? 1 : top;
    char behind[MOST_COUNTED + 2][16];
    for (int64_t i = top; i >= 0 && w->status == MOE_OK; i--) {
        moe_schema_piece p = {NULL, 0, 0}, q = {NULL, 0, 0};
        bool last = i == top;
        snprintf(after, sizeof after, "%s", last ? "" : behind[i + 1]);
        /* The rule for the case that i items have come and one of them was a hit. */
        if (last) {
            moe_schema_add(w, &p, "\"\" ");
            if (most < 0) {
                moe_schema_add(w, &p, "| (ws \",\" ws ");
                moe_schema_add(w, &p, item);
                moe_schema_add(w, &p, ")+");
            }
        } else {
            moe_schema_add(w, &p, i >= least ? "\"\" | " : "");
            moe_schema_add(w, &p, "ws \",\" ws ");
            moe_schema_add(w, &p, item);
            moe_schema_add(w, &p, " ");
            moe_schema_add(w, &p, after);
        }
        moe_schema_finish_rule(w, &p, behind[i], w->n_rules++);
        /* Before one. */
        bool can = !last || most < 0;
        if (can) {
            char self[16];
            uint32_t number = w->n_rules++;
            snprintf(self, sizeof self, "r%" PRIu32, number);
            const char *sep = i > 0 ? "ws \",\" ws " : "";
            moe_schema_add(w, &q, sep);
            moe_schema_add(w, &q, hit);
            moe_schema_add(w, &q, " ");
            moe_schema_add(w, &q, last ? behind[i] : behind[i + 1]);
            if (last || before[0] != '\0') {
                moe_schema_add(w, &q, " | ");
                moe_schema_add(w, &q, sep);
                moe_schema_add(w, &q, item);
                moe_schema_add(w, &q, " ");
                moe_schema_add(w, &q, last ? self : before);
            }
            moe_schema_finish_rule(w, &q, before, number);
        }
    }
    moe_schema_add(w, out, before);
    return before[0] != '\0';
}

/* Returns the list of values that an item may have, or NULL if there is no list or it is too long
 * for a rule per subset. */
static struct json_object *finite_items(moe_schema_writer *w, struct json_object *items)
{
    struct json_object *plain = items == NULL ? NULL : moe_schema_plain(w, items);
    struct json_object *choices = json_object_object_get(plain, "enum");
    return json_object_is_type(choices, json_type_array) &&
                   json_object_array_length(choices) <= MOST_UNIQUE
               ? choices
               : NULL;
}

static bool write_containing(moe_schema_writer *w, struct json_object *plain, moe_schema_piece *out,
                             const char *item, int64_t least, int64_t most, bool *any)
{
    struct json_object *contains = json_object_object_get(plain, "contains"),
                       *items = json_object_object_get(plain, "items");
    int64_t at_least = moe_schema_count(w, plain, "minContains", 1);
    char hit[16];
    if (contains == NULL || at_least == 0) {
        return false;
    }
    struct json_object *all = items == NULL ? contains : NULL;
    if (items != NULL) {
        struct json_object *a = moe_schema_plain(w, items), *b = moe_schema_plain(w, contains);
        all = a == NULL || b == NULL ? NULL : moe_schema_both(w, a, b);
    }
    if (at_least > 1 || json_object_object_get(plain, "maxContains") != NULL ||
        least > MOST_COUNTED || most > MOST_COUNTED) {
        moe_schema_note(w, "contains");
        return false;
    }
    *any = all != NULL && moe_schema_write_rule(w, all, hit) && most != 0 &&
           add_containing(w, out, item, hit, least, most);
    return true;
}

bool moe_schema_write_array(moe_schema_writer *w, struct json_object *plain, moe_schema_piece *out)
{
    char item[16] = "value";
    struct json_object *front = json_object_object_get(plain, "prefixItems"),
                       *items = json_object_object_get(plain, "items");
    int64_t least = moe_schema_count(w, plain, "minItems", 0);
    int64_t most = moe_schema_count(w, plain, "maxItems", -1);
    bool any = true, has_front = json_object_is_type(front, json_type_array) &&
                                 json_object_array_length(front) > 0;
    bool unique = json_object_get_boolean(json_object_object_get(plain, "uniqueItems"));
    struct json_object *choices = unique && !has_front ? finite_items(w, items) : NULL;
    bool has_items = items == NULL || moe_schema_write_rule(w, items, item);
    if (!has_items && !has_front) {
        most = 0;
    }
    moe_schema_add(w, out, "\"[\" ws ");
    if (has_front) {
        if (json_object_object_get(plain, "contains") != NULL) {
            moe_schema_note(w, "contains");
        }
        /* Without `items`, JSON Schema allows any items behind prefixItems; this grammar allows
         * none. */
        any = add_front(w, out, front, has_items && items != NULL ? item : NULL, least, most);
    } else if (choices != NULL) {
        any = add_unique(w, out, choices, least, most);
        unique = false;
    } else if (!write_containing(w, plain, out, item, least, most, &any)) {
        any = most < 0 || least <= most;
        add_items(w, out, item, least, any ? most : least);
    }
    if (unique && (most < 0 || most > 1)) {
        moe_schema_note(w, "uniqueItems");
    }
    moe_schema_add(w, out, " ws \"]\"");
    return any && w->status == MOE_OK;
}
