/* SPDX-License-Identifier: MIT */
/* A template as a tree. */
#ifndef MOE_TEMPLATE_JINJA_TREE_H
#define MOE_TEMPLATE_JINJA_TREE_H

#include "runtime/template/jinja_lexer.h"

typedef enum jinja_node_type {
    /* Expressions. a, b, c are their parts in the order in which they are written. */
    JINJA_N_VALUE,     /* value */
    JINJA_N_NAME,      /* name */
    JINJA_N_LIST,      /* items */
    JINJA_N_TUPLE,     /* items */
    JINJA_N_DICT,      /* items: key, value, key, value */
    JINJA_N_ATTRIBUTE, /* a.name */
    JINJA_N_SUBSCRIPT, /* a[b] */
    JINJA_N_SLICE,     /* a:b:c, of a subscript; parts may be NULL */
    JINJA_N_CALL,      /* a(items, named) */
    JINJA_N_FILTER,    /* a|name(items, named); a NULL: what a block holds */
    JINJA_N_TEST,      /* a is name(items, named) */
    JINJA_N_NAMED, /* name=a: an argument, or a macro's parameter, a NULL where it has no default */
    JINJA_N_SPREAD,       /* *a: an argument */
    JINJA_N_SPREAD_NAMED, /* **a */
    JINJA_N_NEGATE,
    JINJA_N_PLUS,
    JINJA_N_NOT,
    JINJA_N_AND,
    JINJA_N_OR,
    JINJA_N_BINARY,     /* a name b: arithmetic */
    JINJA_N_CONCAT,     /* items, with ~ between */
    JINJA_N_COMPARE,    /* a, then items: JINJA_N_NAMED with the sign as name */
    JINJA_N_CHOICE,     /* a if b else c; c may be NULL */
    JINJA_N_NAMESPACED, /* name.value: what is assigned to */
    /* Statements. */
    JINJA_N_TEXT,       /* value */
    JINJA_N_OUTPUT,     /* a */
    JINJA_N_FOR,        /* for a in b if c: items, else others */
    JINJA_N_IF,         /* items: JINJA_N_BRANCH */
    JINJA_N_BRANCH,     /* if a (NULL: else): items */
    JINJA_N_SET,        /* a = b */
    JINJA_N_CAPTURE,    /* a = items, through the filter b, which may be NULL */
    JINJA_N_MACRO,      /* name(others): items; value: 1 where they use varargs, and 2 for kwargs */
    JINJA_N_CALL_BLOCK, /* call(others) a: items */
    JINJA_N_FILTER_BLOCK, /* filter b: items */
    JINJA_N_WITH,         /* others: JINJA_N_SET: items */
    JINJA_N_SCOPE,        /* items, with variables of their own */
    JINJA_N_BREAK,
    JINJA_N_CONTINUE
} jinja_node_type;

typedef struct jinja_node jinja_node;

typedef struct jinja_nodes {
    jinja_node **nodes;
    size_t n;
    size_t capacity;
} jinja_nodes;

struct jinja_node {
    jinja_node_type type;
    unsigned line;
    const char *name;
    jinja_value value;
    jinja_node *a, *b, *c;
    jinja_nodes items;
    jinja_nodes others;
};

typedef struct jinja_parser jinja_parser;

struct jinja_parser {
    jinja_context *c;
    jinja_token *at;
    unsigned loops; /* loops around the current place */
    int64_t uses;   /* of a macro's body: 1 for varargs, 2 for kwargs */
    /* Brackets contain any expression, so the parser of operands calls back here. */
    jinja_node *(*parse_expression)(jinja_parser *p);
    jinja_node *(*parse_tuple)(jinja_parser *p, bool has_choice, bool explicit);
};

jinja_nodes jinja_parse(jinja_context *c, const jinja_tokens *tokens);

/* Functions of the parser's parts. */
jinja_node *jinja_new_node(jinja_parser *p, jinja_node_type type);
void jinja_add_node(jinja_context *c, jinja_nodes *list, jinja_node *node);
__attribute__((noreturn)) void jinja_unexpected(jinja_parser *p);
bool jinja_at_name(const jinja_parser *p, const char *name);
bool jinja_at_sign(const jinja_parser *p, const char *sign);
bool jinja_take_name(jinja_parser *p, const char *name);
bool jinja_take_sign(jinja_parser *p, const char *sign);
void jinja_expect_sign(jinja_parser *p, const char *sign);
const char *jinja_expect_name(jinja_parser *p);

jinja_node *jinja_parse_expression(jinja_parser *p);
/* Parses names or values separated by commas, which form a tuple. With `explicit` it may be
 * empty. */
jinja_node *jinja_parse_tuple(jinja_parser *p, bool has_choice, bool explicit);
jinja_node *jinja_parse_primary(jinja_parser *p);
jinja_node *jinja_parse_unary(jinja_parser *p, bool with_filter);
/* Parses the filters behind `node`, which may be NULL. With `begins`, the first filter has no "|"
 * before it. */
jinja_node *jinja_parse_filters(jinja_parser *p, jinja_node *node, bool begins);
void jinja_parse_arguments(jinja_parser *p, jinja_node *call);
jinja_node *jinja_parse_test(jinja_parser *p, jinja_node *node);

#endif
