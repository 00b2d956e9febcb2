/* SPDX-License-Identifier: MIT */
/* Evaluates the tree: expressions give values, statements write. */
#ifndef MOE_TEMPLATE_JINJA_EVALUATE_H
#define MOE_TEMPLATE_JINJA_EVALUATE_H

#include "runtime/template/jinja_tree.h"

typedef struct jinja_variable {
    const char *name; /* interned */
    jinja_value value;
} jinja_variable;

struct jinja_scope {
    jinja_scope *parent;
    jinja_variable *variables;
    size_t n;
    size_t capacity;
};

struct jinja_loop {
    const jinja_list *list;
    size_t index;
    size_t level;
    bool has_changed_before;
    jinja_value changed; /* the last argument of changed() */
};

struct jinja_macro {
    const jinja_node *node;
    jinja_scope *scope; /* the scope that it was defined in */
};

struct jinja_function {
    const char *name;
    jinja_value (*call)(jinja_context *c, const jinja_args *args);
};

typedef struct jinja_method_row {
    jinja_kind of;
    const char *name;
    jinja_value (*call)(jinja_context *c, jinja_value self, const jinja_args *args);
} jinja_method_row;

typedef struct jinja_filter {
    const char *name;
    jinja_value (*call)(jinja_context *c, jinja_value value, const jinja_args *args);
} jinja_filter;

typedef struct jinja_test {
    const char *name;
    bool (*call)(jinja_context *c, jinja_value value, const jinja_args *args);
} jinja_test;

/* Functions that are called through pointers, because their files need each other.
 * template_render.c sets them. */
typedef struct jinja_links {
    jinja_value (*call_macro)(jinja_context *c, const jinja_macro *macro, const jinja_args *args);
    const jinja_method_row *(*find_method)(jinja_kind of, jinja_text name);
    const jinja_method_row *(*find_string_method)(jinja_text name);
} jinja_links;

jinja_scope *jinja_new_scope(jinja_context *c, jinja_scope *parent);
void jinja_scope_set(jinja_context *c, jinja_scope *scope, const char *name, jinja_value value);

jinja_value jinja_evaluate(jinja_context *c, jinja_scope *scope, const jinja_node *node);
jinja_value jinja_attribute(jinja_context *c, jinja_value of, jinja_text name);
jinja_value jinja_item(jinja_context *c, jinja_value of, jinja_value key);
jinja_value jinja_slice(jinja_context *c, jinja_value of, const jinja_value part[3]);
jinja_value jinja_binary(jinja_context *c, char sign, bool twice, jinja_value a, jinja_value b);
jinja_value jinja_call(jinja_context *c, jinja_value what, const jinja_args *args);
jinja_value jinja_call_macro(jinja_context *c, const jinja_macro *macro, const jinja_args *args);
jinja_value jinja_apply_filter(jinja_context *c, const char *name, jinja_value value,
                               const jinja_args *args);
bool jinja_apply_test(jinja_context *c, const char *name, jinja_value value,
                      const jinja_args *args);

void jinja_run(jinja_context *c, jinja_scope *scope, const jinja_nodes *body);

/* Look names up in the tables; NULL for an unknown name. */
const jinja_function *jinja_find_function(const char *name);
const jinja_method_row *jinja_find_method(jinja_kind of, jinja_text name);
const jinja_method_row *jinja_find_string_method(jinja_text name);
const jinja_filter *jinja_find_text_filter(const char *name);
const jinja_filter *jinja_find_list_filter(const char *name);
const jinja_filter *jinja_find_select_filter(const char *name);
const jinja_filter *jinja_find_number_filter(const char *name);
const jinja_test *jinja_find_test(const char *name);

jinja_text jinja_format(jinja_context *c, jinja_text format, jinja_value args); /* % */
jinja_value jinja_format_braces(jinja_context *c, jinja_text format, const jinja_args *args);

#endif
