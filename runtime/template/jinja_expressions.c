/* SPDX-License-Identifier: MIT */
#include "runtime/template/jinja_evaluate.h"

#include <string.h>

jinja_scope *jinja_new_scope(jinja_context *c, jinja_scope *parent)
{
    jinja_scope *scope = jinja_alloc(c, 1, sizeof *scope);
    scope->parent = parent;
    return scope;
}

void jinja_scope_set(jinja_context *c, jinja_scope *scope, const char *name, jinja_value value)
{
    for (size_t i = 0; i < scope->n; i++) {
        if (scope->variables[i].name == name) {
            scope->variables[i].value = value;
            return;
        }
    }
    if (scope->n == scope->capacity) {
        size_t capacity = scope->capacity == 0 ? 4 : scope->capacity * 2;
        jinja_variable *grown = jinja_alloc(c, capacity, sizeof *grown);
        if (scope->n > 0) {
            memcpy(grown, scope->variables, scope->n * sizeof *grown);
        }
        scope->variables = grown;
        scope->capacity = capacity;
    }
    scope->variables[scope->n++] = (jinja_variable){name, value};
}

static jinja_value look_up(jinja_context *c, const jinja_scope *scope, const char *name)
{
    for (; scope != NULL; scope = scope->parent) {
        jinja_charge(c, scope->n / 8 + 1);
        for (size_t i = 0; i < scope->n; i++) {
            if (scope->variables[i].name == name) {
                return scope->variables[i].value;
            }
        }
    }
    const jinja_function *function = jinja_find_function(name);
    if (function != NULL) {
        return (jinja_value){.kind = JINJA_FUNCTION, .function = function};
    }
    return jinja_undefined(name);
}

static void add_named(jinja_context *c, jinja_args *out, size_t *capacity, const char *name,
                      jinja_value value)
{
    if (out->n_named == *capacity) {
        size_t grown = *capacity == 0 ? 4 : *capacity * 2;
        const char **names = jinja_alloc(c, grown, sizeof *names);
        jinja_value *named = jinja_alloc(c, grown, sizeof *named);
        for (size_t i = 0; i < out->n_named; i++) {
            names[i] = out->names[i];
            named[i] = out->named[i];
        }
        out->names = names;
        out->named = named;
        *capacity = grown;
    }
    out->names[out->n_named] = name;
    out->named[out->n_named++] = value;
}

static void add_spread_named(jinja_context *c, jinja_args *out, size_t *capacity, jinja_value dict)
{
    if (dict.kind != JINJA_DICT) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "** needs a dict, not %s", jinja_kind_name(dict.kind));
    }
    for (size_t i = 0; i < dict.dict->n; i++) {
        jinja_text name = jinja_need_text(c, "an argument's name", dict.dict->entries[i].key);
        add_named(c, out, capacity, jinja_intern(c, name.data, name.size),
                  dict.dict->entries[i].value);
    }
}

static jinja_args evaluate_arguments(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    jinja_args args = {0};
    jinja_list values = {0};
    size_t capacity = 0;
    for (size_t i = 0; i < node->items.n; i++) {
        const jinja_node *item = node->items.nodes[i];
        if (item->type != JINJA_N_SPREAD) {
            jinja_list_add(c, &values, jinja_evaluate(c, scope, item));
            continue;
        }
        const jinja_list *list = jinja_iterate(c, jinja_evaluate(c, scope, item->a));
        for (size_t j = 0; j < list->n; j++) {
            jinja_list_add(c, &values, list->items[j]);
        }
    }
    for (size_t i = 0; i < node->others.n; i++) {
        const jinja_node *item = node->others.nodes[i];
        jinja_value value = jinja_evaluate(c, scope, item->a);
        if (item->type == JINJA_N_SPREAD_NAMED) {
            add_spread_named(c, &args, &capacity, value);
        } else {
            add_named(c, &args, &capacity, item->name, value);
        }
    }
    args.values = values.items;
    args.n = values.n;
    return args;
}

jinja_value jinja_call(jinja_context *c, jinja_value what, const jinja_args *args)
{
    jinja_value value;
    jinja_enter(c);
    switch (what.kind) {
    case JINJA_FUNCTION:
        value = what.function->call(c, args);
        break;
    case JINJA_METHOD:
        value = what.method->row->call(c, what.method->self, args);
        break;
    case JINJA_MACRO:
        value = c->links->call_macro(c, what.macro, args);
        break;
    case JINJA_JOINER: /* the first call gives nothing, later ones the separator */
        value = jinja_string(c, jinja_text_of("", JINJA_DATA));
        if (what.joiner->at++ > 0) {
            value = what.joiner->items[0];
        }
        break;
    case JINJA_UNDEFINED:
        jinja_fail_undefined(c, what);
    default:
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "%s cannot be called", jinja_kind_name(what.kind));
    }
    jinja_leave(c);
    return value;
}

static jinja_value evaluate_call(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    jinja_value what = jinja_evaluate(c, scope, node->a);
    jinja_args args = evaluate_arguments(c, scope, node);
    if (node->value.kind == JINJA_MACRO) { /* belongs to a call block, as the value of caller() */
        size_t capacity = args.n_named;
        add_named(c, &args, &capacity, jinja_intern(c, "caller", 6), node->value);
    }
    c->line = node->line;
    return jinja_call(c, what, &args);
}

static jinja_value evaluate_filter(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    jinja_value value = node->a == NULL ? *c->block_value : jinja_evaluate(c, scope, node->a);
    jinja_args args = evaluate_arguments(c, scope, node);
    c->line = node->line;
    return jinja_apply_filter(c, node->name, value, &args);
}

static jinja_value evaluate_test(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    jinja_value value = jinja_evaluate(c, scope, node->a);
    jinja_args args = evaluate_arguments(c, scope, node);
    c->line = node->line;
    return jinja_bool(jinja_apply_test(c, node->name, value, &args));
}

static bool holds(jinja_context *c, const char *sign, jinja_value a, jinja_value b)
{
    if (strcmp(sign, "==") == 0 || strcmp(sign, "!=") == 0) {
        return jinja_equal(c, a, b) == (sign[0] == '=');
    }
    if (strcmp(sign, "in") == 0 || strcmp(sign, "not in") == 0) {
        return jinja_contains(c, b, a) == (sign[0] == 'i');
    }
    int order = jinja_compare(c, a, b);
    return sign[0] == '<' ? order < 0 || (order == 0 && sign[1] == '=')
                          : order > 0 || (order == 0 && sign[1] == '=');
}

static jinja_value evaluate_comparison(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    jinja_value left = jinja_evaluate(c, scope, node->a);
    for (size_t i = 0; i < node->items.n; i++) {
        jinja_value right = jinja_evaluate(c, scope, node->items.nodes[i]->a);
        c->line = node->line;
        if (!holds(c, node->items.nodes[i]->name, left, right)) {
            return jinja_bool(false);
        }
        left = right;
    }
    return jinja_bool(true);
}

static jinja_value evaluate_list(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    jinja_value list = jinja_new_list(c, node->type == JINJA_N_LIST ? JINJA_LIST : JINJA_TUPLE);
    for (size_t i = 0; i < node->items.n; i++) {
        jinja_list_add(c, list.list, jinja_evaluate(c, scope, node->items.nodes[i]));
    }
    return list;
}

static jinja_value evaluate_dict(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    jinja_value dict = jinja_new_dict(c);
    for (size_t i = 0; i + 1 < node->items.n; i += 2) {
        jinja_value key = jinja_evaluate(c, scope, node->items.nodes[i]);
        jinja_dict_set(c, dict.dict, key, jinja_evaluate(c, scope, node->items.nodes[i + 1]));
    }
    return dict;
}

static jinja_value evaluate_subscript(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    jinja_value of = jinja_evaluate(c, scope, node->a);
    if (node->b->type != JINJA_N_SLICE) {
        jinja_value key = jinja_evaluate(c, scope, node->b);
        c->line = node->line;
        return jinja_item(c, of, key);
    }
    jinja_value part[3];
    const jinja_node *parts[3] = {node->b->a, node->b->b, node->b->c};
    for (int i = 0; i < 3; i++) {
        part[i] = parts[i] == NULL ? jinja_none() : jinja_evaluate(c, scope, parts[i]);
    }
    c->line = node->line;
    return jinja_slice(c, of, part);
}

static jinja_value evaluate_concat(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    jinja_builder b = jinja_build(c);
    for (size_t i = 0; i < node->items.n; i++) {
        jinja_add(&b, jinja_to_text(c, jinja_evaluate(c, scope, node->items.nodes[i])));
    }
    return jinja_string(c, jinja_built(&b));
}

static jinja_value evaluate_sign(jinja_context *c, const jinja_node *node, jinja_value value)
{
    if (value.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(c, value);
    }
    if (value.kind == JINJA_FLOAT) {
        return jinja_float(node->type == JINJA_N_NEGATE ? -value.number : value.number);
    }
    return jinja_binary(c, node->type == JINJA_N_NEGATE ? '-' : '+', false, jinja_int(0), value);
}

static jinja_value evaluate_logic(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    jinja_value left;
    switch (node->type) {
    case JINJA_N_AND:
        left = jinja_evaluate(c, scope, node->a);
        return jinja_truth(left) ? jinja_evaluate(c, scope, node->b) : left;
    case JINJA_N_OR:
        left = jinja_evaluate(c, scope, node->a);
        return jinja_truth(left) ? left : jinja_evaluate(c, scope, node->b);
    case JINJA_N_NOT:
        return jinja_bool(!jinja_truth(jinja_evaluate(c, scope, node->a)));
    default: /* JINJA_N_CHOICE: a if b else c */
        if (jinja_truth(jinja_evaluate(c, scope, node->b))) {
            return jinja_evaluate(c, scope, node->a);
        }
        return node->c == NULL ? jinja_undefined("an 'if' without 'else'")
                               : jinja_evaluate(c, scope, node->c);
    }
}

static jinja_value evaluate_binary(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    jinja_value left = jinja_evaluate(c, scope, node->a);
    jinja_value right = jinja_evaluate(c, scope, node->b);
    c->line = node->line;
    return jinja_binary(c, node->name[0], node->name[1] != '\0', left, right);
}

static jinja_value evaluate_node(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    switch (node->type) {
    case JINJA_N_VALUE:
        return node->value;
    case JINJA_N_NAME:
        return look_up(c, scope, node->name);
    case JINJA_N_LIST:
    case JINJA_N_TUPLE:
        return evaluate_list(c, scope, node);
    case JINJA_N_DICT:
        return evaluate_dict(c, scope, node);
    case JINJA_N_ATTRIBUTE: {
        jinja_value of = jinja_evaluate(c, scope, node->a);
        c->line = node->line;
        return jinja_attribute(c, of, jinja_text_of(node->name, JINJA_MARKUP));
    }
    case JINJA_N_SUBSCRIPT:
        return evaluate_subscript(c, scope, node);
    case JINJA_N_CALL:
        return evaluate_call(c, scope, node);
    case JINJA_N_FILTER:
        return evaluate_filter(c, scope, node);
    case JINJA_N_TEST:
        return evaluate_test(c, scope, node);
    case JINJA_N_NEGATE:
    case JINJA_N_PLUS:
        return evaluate_sign(c, node, jinja_evaluate(c, scope, node->a));
    case JINJA_N_BINARY:
        return evaluate_binary(c, scope, node);
    case JINJA_N_CONCAT:
        return evaluate_concat(c, scope, node);
    case JINJA_N_COMPARE:
        return evaluate_comparison(c, scope, node);
    case JINJA_N_SLICE:
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "a slice among other subscripts");
    default:
        return evaluate_logic(c, scope, node);
    }
}

jinja_value jinja_evaluate(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    jinja_enter(c);
    c->line = node->line;
    jinja_value value = evaluate_node(c, scope, node);
    jinja_leave(c);
    return value;
}
