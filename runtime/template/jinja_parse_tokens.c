/* SPDX-License-Identifier: MIT */
/* The base of the parser: creates nodes, and steps through the tokens. */
#include <string.h>

#include "runtime/template/jinja_tree.h"

jinja_node *jinja_new_node(jinja_parser *p, jinja_node_type type)
{
    jinja_node *node = jinja_alloc(p->c, 1, sizeof *node);
    node->type = type;
    node->line = p->at->line;
    p->c->line = p->at->line;
    return node;
}

void jinja_add_node(jinja_context *c, jinja_nodes *list, jinja_node *node)
{
    if (list->n == list->capacity) {
        size_t capacity = list->capacity == 0 ? 2 : list->capacity * 2;
        jinja_node **grown = jinja_alloc(c, capacity, sizeof(jinja_node *));
        if (list->n > 0) {
            memcpy(grown, list->nodes, list->n * sizeof(jinja_node *));
        }
        list->nodes = grown;
        list->capacity = capacity;
    }
    list->nodes[list->n++] = node;
}

void jinja_unexpected(jinja_parser *p)
{
    p->c->line = p->at->line;
    if (p->at->type == JINJA_T_NAME || p->at->type == JINJA_T_OPERATOR) {
        jinja_fail(p->c, MOE_ERR_UNSUPPORTED, "unexpected '%.60s'", p->at->name);
    }
    jinja_fail(p->c, MOE_ERR_UNSUPPORTED, "unexpected %s",
               p->at->type == JINJA_T_END            ? "end of the template"
               : p->at->type == JINJA_T_CLOSE_BLOCK  ? "end of a block's tag"
               : p->at->type == JINJA_T_CLOSE_OUTPUT ? "end of an expression"
                                                     : "string or number");
}

bool jinja_at_name(const jinja_parser *p, const char *name)
{
    return p->at->type == JINJA_T_NAME && strcmp(p->at->name, name) == 0;
}

bool jinja_at_sign(const jinja_parser *p, const char *sign)
{
    return p->at->type == JINJA_T_OPERATOR && strcmp(p->at->name, sign) == 0;
}

bool jinja_take_name(jinja_parser *p, const char *name)
{
    bool found = jinja_at_name(p, name);
    p->at += found;
    return found;
}

bool jinja_take_sign(jinja_parser *p, const char *sign)
{
    bool found = jinja_at_sign(p, sign);
    p->at += found;
    return found;
}

void jinja_expect_sign(jinja_parser *p, const char *sign)
{
    if (!jinja_take_sign(p, sign)) {
        jinja_unexpected(p);
    }
}

const char *jinja_expect_name(jinja_parser *p)
{
    if (p->at->type != JINJA_T_NAME) {
        jinja_unexpected(p);
    }
    return p->at++->name;
}
