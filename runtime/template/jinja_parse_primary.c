/* SPDX-License-Identifier: MIT */
/* Parses the operands of operators: literals, names, subscripts, calls, filters and tests. */
#include <string.h>

#include "runtime/template/jinja_tree.h"

static jinja_node *constant(jinja_parser *p, jinja_value value)
{
    jinja_node *node = jinja_new_node(p, JINJA_N_VALUE);
    node->value = value;
    return node;
}

static jinja_node *parse_name(jinja_parser *p)
{
    const char *name = p->at->name;
    jinja_node *node;
    if (strcmp(name, "true") == 0 || strcmp(name, "True") == 0) {
        node = constant(p, jinja_bool(true));
    } else if (strcmp(name, "false") == 0 || strcmp(name, "False") == 0) {
        node = constant(p, jinja_bool(false));
    } else if (strcmp(name, "none") == 0 || strcmp(name, "None") == 0) {
        node = constant(p, jinja_none());
    } else {
        node = jinja_new_node(p, JINJA_N_NAME);
        node->name = name;
        p->uses |= strcmp(name, "varargs") == 0 ? 1 : strcmp(name, "kwargs") == 0 ? 2 : 0;
    }
    p->at++;
    return node;
}

/* Adjacent strings are joined. */
static jinja_node *parse_strings(jinja_parser *p)
{
    jinja_node *node = constant(p, p->at->value);
    p->at++;
    for (; p->at->type == JINJA_T_STRING; p->at++) {
        jinja_text text = jinja_concat(p->c, *node->value.text, *p->at->value.text);
        node->value = jinja_string(p->c, text);
    }
    return node;
}

static jinja_node *parse_list(jinja_parser *p)
{
    jinja_node *node = jinja_new_node(p, JINJA_N_LIST);
    jinja_expect_sign(p, "[");
    while (!jinja_at_sign(p, "]")) {
        jinja_add_node(p->c, &node->items, p->parse_expression(p));
        if (!jinja_take_sign(p, ",")) {
            break;
        }
    }
    jinja_expect_sign(p, "]");
    return node;
}

static jinja_node *parse_dict(jinja_parser *p)
{
    jinja_node *node = jinja_new_node(p, JINJA_N_DICT);
    jinja_expect_sign(p, "{");
    while (!jinja_at_sign(p, "}")) {
        jinja_add_node(p->c, &node->items, p->parse_expression(p));
        jinja_expect_sign(p, ":");
        jinja_add_node(p->c, &node->items, p->parse_expression(p));
        if (!jinja_take_sign(p, ",")) {
            break;
        }
    }
    jinja_expect_sign(p, "}");
    return node;
}

jinja_node *jinja_parse_primary(jinja_parser *p)
{
    jinja_node *node;
    if (p->at->type == JINJA_T_NAME) {
        return parse_name(p);
    }
    if (p->at->type == JINJA_T_STRING) {
        return parse_strings(p);
    }
    if (p->at->type == JINJA_T_NUMBER) {
        node = constant(p, p->at->value);
        p->at++;
        return node;
    }
    if (jinja_at_sign(p, "[")) {
        return parse_list(p);
    }
    if (jinja_at_sign(p, "{")) {
        return parse_dict(p);
    }
    jinja_expect_sign(p, "(");
    node = p->parse_tuple(p, true, true);
    jinja_expect_sign(p, ")");
    return node;
}

static bool ends_slice_part(const jinja_parser *p)
{
    return jinja_at_sign(p, ":") || jinja_at_sign(p, "]") || jinja_at_sign(p, ",");
}

static jinja_node *parse_subscribed(jinja_parser *p)
{
    jinja_node *first = jinja_at_sign(p, ":") ? NULL : p->parse_expression(p);
    if (!jinja_take_sign(p, ":")) {
        return first;
    }
    jinja_node *slice = jinja_new_node(p, JINJA_N_SLICE);
    slice->a = first;
    if (!ends_slice_part(p)) {
        slice->b = p->parse_expression(p);
    }
    if (jinja_take_sign(p, ":") && !ends_slice_part(p)) {
        slice->c = p->parse_expression(p);
    }
    return slice;
}

static jinja_node *parse_subscript(jinja_parser *p, jinja_node *of)
{
    jinja_node *node = jinja_new_node(p, JINJA_N_SUBSCRIPT);
    node->a = of;
    if (jinja_take_sign(p, ".")) {
        if (p->at->type == JINJA_T_NUMBER && p->at->value.kind == JINJA_INT) {
            node->b = constant(p, p->at++->value);
            return node;
        }
        node->type = JINJA_N_ATTRIBUTE;
        node->name = jinja_expect_name(p);
        return node;
    }
    jinja_expect_sign(p, "[");
    node->b = parse_subscribed(p);
    if (jinja_at_sign(p, ",")) {
        jinja_node *tuple = jinja_new_node(p, JINJA_N_TUPLE);
        jinja_add_node(p->c, &tuple->items, node->b);
        while (jinja_take_sign(p, ",")) {
            jinja_add_node(p->c, &tuple->items, parse_subscribed(p));
        }
        node->b = tuple;
    }
    jinja_expect_sign(p, "]");
    return node;
}

static jinja_node *parse_argument(jinja_parser *p)
{
    jinja_node *node;
    if (jinja_at_sign(p, "*") || jinja_at_sign(p, "**")) {
        node = jinja_new_node(p, jinja_at_sign(p, "*") ? JINJA_N_SPREAD : JINJA_N_SPREAD_NAMED);
        p->at++;
        node->a = p->parse_expression(p);
        return node;
    }
    if (p->at->type == JINJA_T_NAME && p->at[1].type == JINJA_T_OPERATOR &&
        strcmp(p->at[1].name, "=") == 0) {
        node = jinja_new_node(p, JINJA_N_NAMED);
        node->name = p->at->name;
        p->at += 2;
        node->a = p->parse_expression(p);
        return node;
    }
    return p->parse_expression(p);
}

void jinja_parse_arguments(jinja_parser *p, jinja_node *call)
{
    bool named = false;
    jinja_expect_sign(p, "(");
    while (!jinja_at_sign(p, ")")) {
        jinja_node *argument = parse_argument(p);
        bool is_named = argument->type == JINJA_N_NAMED || argument->type == JINJA_N_SPREAD_NAMED;
        if (named && !is_named && argument->type != JINJA_N_SPREAD) {
            jinja_unexpected(p);
        }
        named = named || is_named;
        jinja_add_node(p->c, is_named ? &call->others : &call->items, argument);
        if (!jinja_take_sign(p, ",")) {
            break;
        }
    }
    jinja_expect_sign(p, ")");
}

static jinja_node *parse_call(jinja_parser *p, jinja_node *of)
{
    jinja_node *node = jinja_new_node(p, JINJA_N_CALL);
    node->a = of;
    jinja_parse_arguments(p, node);
    return node;
}

static jinja_node *parse_postfix(jinja_parser *p, jinja_node *node)
{
    for (unsigned n = 0;; n++) {
        if (n == JINJA_MAX_DEPTH) {
            jinja_fail(p->c, MOE_ERR_UNSUPPORTED, "nested more than %d deep", JINJA_MAX_DEPTH);
        }
        if (jinja_at_sign(p, ".") || jinja_at_sign(p, "[")) {
            node = parse_subscript(p, node);
        } else if (jinja_at_sign(p, "(")) {
            node = parse_call(p, node);
        } else {
            return node;
        }
    }
}

jinja_node *jinja_parse_filters(jinja_parser *p, jinja_node *node, bool begins)
{
    while (begins || jinja_take_sign(p, "|")) {
        jinja_node *filter = jinja_new_node(p, JINJA_N_FILTER);
        begins = false;
        filter->a = node;
        filter->name = jinja_expect_name(p);
        if (jinja_at_sign(p, "(")) {
            jinja_parse_arguments(p, filter);
        }
        node = filter;
    }
    return node;
}

static bool begins_argument(const jinja_parser *p)
{
    return (p->at->type == JINJA_T_NAME && !jinja_at_name(p, "else") && !jinja_at_name(p, "or") &&
            !jinja_at_name(p, "and")) ||
           p->at->type == JINJA_T_STRING || p->at->type == JINJA_T_NUMBER ||
           jinja_at_sign(p, "[") || jinja_at_sign(p, "{");
}

jinja_node *jinja_parse_test(jinja_parser *p, jinja_node *node)
{
    bool negated = jinja_take_name(p, "not");
    jinja_node *test = jinja_new_node(p, JINJA_N_TEST);
    test->a = node;
    test->name = jinja_expect_name(p);
    if (jinja_at_sign(p, "(")) {
        jinja_parse_arguments(p, test);
    } else if (begins_argument(p)) {
        if (jinja_at_name(p, "is")) {
            jinja_fail(p->c, MOE_ERR_UNSUPPORTED, "two tests follow each other");
        }
        jinja_add_node(p->c, &test->items, parse_postfix(p, jinja_parse_primary(p)));
    }
    if (!negated) {
        return test;
    }
    jinja_node *not = jinja_new_node(p, JINJA_N_NOT);
    not ->a = test;
    return not ;
}

jinja_node *jinja_parse_unary(jinja_parser *p, bool with_filter)
{
    jinja_node *node;
    jinja_enter(p->c);
    if (jinja_at_sign(p, "-") || jinja_at_sign(p, "+")) {
        node = jinja_new_node(p, jinja_at_sign(p, "-") ? JINJA_N_NEGATE : JINJA_N_PLUS);
        p->at++;
        node->a = jinja_parse_unary(p, false);
    } else {
        node = jinja_parse_primary(p);
    }
    node = parse_postfix(p, node);
    while (with_filter) {
        if (jinja_at_sign(p, "|")) {
            node = jinja_parse_filters(p, node, false);
        } else if (jinja_take_name(p, "is")) {
            node = jinja_parse_test(p, node);
        } else if (jinja_at_sign(p, "(")) {
            node = parse_call(p, node);
        } else {
            break;
        }
    }
    jinja_leave(p->c);
    return node;
}
