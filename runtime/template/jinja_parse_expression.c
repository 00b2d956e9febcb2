/* SPDX-License-Identifier: MIT */
/* Parses expressions, from the loosest operator to the tightest. */
#include <string.h>

#include "runtime/template/jinja_tree.h"

static jinja_node *pair(jinja_parser *p, jinja_node_type type, jinja_node *a, jinja_node *b)
{
    jinja_node *node = jinja_new_node(p, type);
    node->line = a->line;
    node->a = a;
    node->b = b;
    return node;
}

static jinja_node *parse_power(jinja_parser *p)
{
    jinja_node *left = jinja_parse_unary(p, true);
    while (jinja_at_sign(p, "**")) {
        const char *sign = p->at++->name;
        left = pair(p, JINJA_N_BINARY, left, jinja_parse_unary(p, true));
        left->name = sign;
    }
    return left;
}

static jinja_node *parse_product(jinja_parser *p)
{
    jinja_node *left = parse_power(p);
    while (jinja_at_sign(p, "*") || jinja_at_sign(p, "/") || jinja_at_sign(p, "//") ||
           jinja_at_sign(p, "%")) {
        const char *sign = p->at++->name;
        left = pair(p, JINJA_N_BINARY, left, parse_power(p));
        left->name = sign;
    }
    return left;
}

static jinja_node *parse_concat(jinja_parser *p)
{
    jinja_node *first = parse_product(p);
    if (!jinja_at_sign(p, "~")) {
        return first;
    }
    jinja_node *node = jinja_new_node(p, JINJA_N_CONCAT);
    jinja_add_node(p->c, &node->items, first);
    while (jinja_take_sign(p, "~")) {
        jinja_add_node(p->c, &node->items, parse_product(p));
    }
    return node;
}

static jinja_node *parse_sum(jinja_parser *p)
{
    jinja_node *left = parse_concat(p);
    while (jinja_at_sign(p, "+") || jinja_at_sign(p, "-")) {
        const char *sign = p->at++->name;
        left = pair(p, JINJA_N_BINARY, left, parse_concat(p));
        left->name = sign;
    }
    return left;
}

/* Reads a comparison operator, and returns its text; NULL: there is none. */
static const char *take_comparison(jinja_parser *p)
{
    static const char *const signs[] = {"==", "!=", "<=", ">=", "<", ">"};
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        if (jinja_take_sign(p, signs[i])) {
            return signs[i];
        }
    }
    if (jinja_take_name(p, "in")) {
        return "in";
    }
    if (jinja_at_name(p, "not") && p->at[1].type == JINJA_T_NAME &&
        strcmp(p->at[1].name, "in") == 0) {
        p->at += 2;
        return "not in";
    }
    return NULL;
}

static jinja_node *parse_comparison(jinja_parser *p)
{
    jinja_node *left = parse_sum(p);
    const char *sign = take_comparison(p);
    if (sign == NULL) {
        return left;
    }
    jinja_node *node = pair(p, JINJA_N_COMPARE, left, NULL);
    for (; sign != NULL; sign = take_comparison(p)) {
        jinja_node *right = jinja_new_node(p, JINJA_N_NAMED);
        right->name = sign;
        right->a = parse_sum(p);
        jinja_add_node(p->c, &node->items, right);
    }
    return node;
}

static jinja_node *parse_not(jinja_parser *p)
{
    if (!jinja_at_name(p, "not")) {
        return parse_comparison(p);
    }
    jinja_node *node = jinja_new_node(p, JINJA_N_NOT);
    p->at++;
    jinja_enter(p->c);
    node->a = parse_not(p);
    jinja_leave(p->c);
    return node;
}

static jinja_node *parse_and(jinja_parser *p)
{
    jinja_node *left = parse_not(p);
    while (jinja_take_name(p, "and")) {
        left = pair(p, JINJA_N_AND, left, parse_not(p));
    }
    return left;
}

static jinja_node *parse_or(jinja_parser *p)
{
    jinja_node *left = parse_and(p);
    while (jinja_take_name(p, "or")) {
        left = pair(p, JINJA_N_OR, left, parse_and(p));
    }
    return left;
}

jinja_node *jinja_parse_expression(jinja_parser *p)
{
    jinja_enter(p->c);
    jinja_node *node = parse_or(p);
    while (jinja_take_name(p, "if")) {
        node = pair(p, JINJA_N_CHOICE, node, parse_or(p));
        if (jinja_take_name(p, "else")) {
            node->c = jinja_parse_expression(p);
        }
    }
    jinja_leave(p->c);
    return node;
}

static bool is_tuple_end(const jinja_parser *p, bool has_choice)
{
    return p->at->type == JINJA_T_CLOSE_OUTPUT || p->at->type == JINJA_T_CLOSE_BLOCK ||
           jinja_at_sign(p, ")") || (!has_choice && jinja_at_name(p, "if"));
}

jinja_node *jinja_parse_tuple(jinja_parser *p, bool has_choice, bool explicit)
{
    jinja_node *tuple = jinja_new_node(p, JINJA_N_TUPLE);
    bool is_tuple = false;
    while (!is_tuple_end(p, has_choice)) {
        jinja_add_node(p->c, &tuple->items, has_choice ? jinja_parse_expression(p) : parse_or(p));
        if (!jinja_take_sign(p, ",")) {
            break;
        }
        is_tuple = true;
    }
    if (!is_tuple && tuple->items.n == 1) {
        return tuple->items.nodes[0];
    }
    if (!is_tuple && !explicit) {
        jinja_unexpected(p);
    }
    return tuple;
}
