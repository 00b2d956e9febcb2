/* SPDX-License-Identifier: MIT */
/* Statements. */
#include <string.h>

#include "runtime/template/jinja_tree.h"

static void expect_type(jinja_parser *p, jinja_token_type type)
{
    if (p->at->type != type) {
        jinja_unexpected(p);
    }
    p->at++;
}

static void parse_body(jinja_parser *p, jinja_nodes *body, const char *const *ends);

/* Parses statements up to one of the tags in `ends`. That tag's opening bracket is then read, and
 * its name is the next token. */
static void parse_block_body(jinja_parser *p, jinja_nodes *body, const char *const *ends)
{
    expect_type(p, JINJA_T_CLOSE_BLOCK);
    jinja_enter(p->c);
    parse_body(p, body, ends);
    jinja_leave(p->c);
}

static void parse_until(jinja_parser *p, jinja_nodes *body, const char *end)
{
    const char *const ends[] = {end, NULL};
    parse_block_body(p, body, ends);
    p->at++;
}

/* Parses the target of an assignment: names, names of a namespace, or a tuple of them. */
static jinja_node *parse_target(jinja_parser *p, bool with_namespace)
{
    jinja_node *tuple = jinja_new_node(p, JINJA_N_TUPLE);
    bool is_tuple = false;
    do {
        if (tuple->items.n > 0 && p->at->type != JINJA_T_NAME && !jinja_at_sign(p, "(")) {
            break;
        }
        if (tuple->items.n > 0 && jinja_at_name(p, "in")) {
            break;
        }
        jinja_node *one;
        if (jinja_take_sign(p, "(")) {
            jinja_enter(p->c);
            one = parse_target(p, with_namespace);
            jinja_leave(p->c);
            jinja_expect_sign(p, ")");
        } else {
            one = jinja_new_node(p, JINJA_N_NAME);
            one->name = jinja_expect_name(p);
            if (with_namespace && jinja_take_sign(p, ".")) {
                const char *name = jinja_expect_name(p);
                one->type = JINJA_N_NAMESPACED;
                one->value = jinja_string(p->c, jinja_text_of(name, JINJA_MARKUP));
            }
        }
        jinja_add_node(p->c, &tuple->items, one);
        is_tuple = is_tuple || jinja_at_sign(p, ",");
    } while (jinja_take_sign(p, ","));
    return is_tuple ? tuple : tuple->items.nodes[0];
}

static jinja_node *parse_for(jinja_parser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    jinja_node *node = jinja_new_node(p, JINJA_N_FOR);
    node->a = parse_target(p, false);
    if (!jinja_take_name(p, "in")) {
        jinja_unexpected(p);
    }
    node->b = jinja_parse_tuple(p, false, false);
    if (jinja_take_name(p, "if")) {
        node->c = jinja_parse_expression(p);
    }
    if (jinja_at_name(p, "recursive")) {
        jinja_fail(p->c, MOE_ERR_UNSUPPORTED, "recursive loops are not supported");
    }
    p->loops++;
    parse_block_body(p, &node->items, ends);
    p->loops--;
    if (jinja_take_name(p, "else")) {
        parse_until(p, &node->others, "endfor");
    } else {
        p->at++;
    }
    return node;
}

static jinja_node *parse_if(jinja_parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    jinja_node *node = jinja_new_node(p, JINJA_N_IF);
    for (;;) {
        jinja_node *branch = jinja_new_node(p, JINJA_N_BRANCH);
        branch->a = jinja_parse_tuple(p, false, false);
        parse_block_body(p, &branch->items, ends);
        jinja_add_node(p->c, &node->items, branch);
        if (jinja_take_name(p, "endif")) {
            return node;
        }
        if (jinja_take_name(p, "else")) {
            branch = jinja_new_node(p, JINJA_N_BRANCH);
            parse_until(p, &branch->items, "endif");
            jinja_add_node(p->c, &node->items, branch);
            return node;
        }
        p->at++; /* elif */
    }
}

static jinja_node *parse_set(jinja_parser *p)
{
    jinja_node *node = jinja_new_node(p, JINJA_N_SET);
    node->a = parse_target(p, true);
    if (jinja_take_sign(p, "=")) {
        node->b = jinja_parse_tuple(p, true, false);
        return node;
    }
    node->type = JINJA_N_CAPTURE;
    node->b = jinja_parse_filters(p, NULL, false);
    parse_until(p, &node->items, "endset");
    return node;
}

/* "(a, b=1)" */
static void parse_parameters(jinja_parser *p, jinja_nodes *out)
{
    jinja_expect_sign(p, "(");
    while (!jinja_at_sign(p, ")")) {
        jinja_node *one = jinja_new_node(p, JINJA_N_NAMED);
        one->name = jinja_expect_name(p);
        if (jinja_take_sign(p, "=")) {
            one->a = jinja_parse_expression(p);
        } else if (out->n > 0 && out->nodes[out->n - 1]->a != NULL) {
            jinja_fail(p->c, MOE_ERR_UNSUPPORTED, "a parameter without default follows one with");
        }
        jinja_add_node(p->c, out, one);
        if (!jinja_take_sign(p, ",")) {
            break;
        }
    }
    jinja_expect_sign(p, ")");
}

static jinja_node *parse_macro(jinja_parser *p)
{
    jinja_node *node = jinja_new_node(p, JINJA_N_MACRO);
    unsigned loops = p->loops;
    node->name = jinja_expect_name(p);
    int64_t uses = p->uses;
    parse_parameters(p, &node->others);
    p->loops = 0;
    p->uses = 0;
    parse_until(p, &node->items, "endmacro");
    node->value = jinja_int(p->uses);
    p->uses = uses;
    p->loops = loops;
    return node;
}

static jinja_node *parse_call_block(jinja_parser *p)
{
    jinja_node *node = jinja_new_node(p, JINJA_N_CALL_BLOCK);
    unsigned loops = p->loops;
    if (jinja_at_sign(p, "(")) {
        parse_parameters(p, &node->others);
    }
    node->a = jinja_parse_expression(p);
    if (node->a->type != JINJA_N_CALL) {
        jinja_fail(p->c, MOE_ERR_UNSUPPORTED, "{%% call %%} needs a call");
    }
    p->loops = 0;
    parse_until(p, &node->items, "endcall");
    p->loops = loops;
    return node;
}

static jinja_node *parse_filter_block(jinja_parser *p)
{
    jinja_node *node = jinja_new_node(p, JINJA_N_FILTER_BLOCK);
    node->b = jinja_parse_filters(p, NULL, true);
    parse_until(p, &node->items, "endfilter");
    return node;
}

static jinja_node *parse_with(jinja_parser *p)
{
    jinja_node *node = jinja_new_node(p, JINJA_N_WITH);
    while (p->at->type != JINJA_T_CLOSE_BLOCK) {
        jinja_node *set = jinja_new_node(p, JINJA_N_SET);
        if (node->others.n > 0) {
            jinja_expect_sign(p, ",");
        }
        set->a = jinja_new_node(p, JINJA_N_NAME);
        set->a->name = jinja_expect_name(p);
        jinja_expect_sign(p, "=");
        set->b = jinja_parse_expression(p);
        jinja_add_node(p->c, &node->others, set);
    }
    parse_until(p, &node->items, "endwith");
    return node;
}

/* transformers marks the assistant's text by this block; the text itself is unchanged. */
static jinja_node *parse_generation(jinja_parser *p)
{
    jinja_node *node = jinja_new_node(p, JINJA_N_SCOPE);
    unsigned loops = p->loops;
    p->loops = 0;
    parse_until(p, &node->items, "endgeneration");
    p->loops = loops;
    return node;
}

static jinja_node *parse_jump(jinja_parser *p, jinja_node_type type)
{
    if (p->loops == 0) {
        jinja_fail(p->c, MOE_ERR_UNSUPPORTED, "break and continue stand in loops only");
    }
    return jinja_new_node(p, type);
}

static jinja_node *parse_statement(jinja_parser *p)
{
    static const struct {
        const char *name;
        jinja_node *(*parse)(jinja_parser *p);
    } statements[] = {
        {"for", parse_for},         {"if", parse_if},
        {"set", parse_set},         {"macro", parse_macro},
        {"call", parse_call_block}, {"filter", parse_filter_block},
        {"with", parse_with},       {"generation", parse_generation},
    };
    if (jinja_take_name(p, "break")) {
        return parse_jump(p, JINJA_N_BREAK);
    }
    if (jinja_take_name(p, "continue")) {
        return parse_jump(p, JINJA_N_CONTINUE);
    }
    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++) {
        if (jinja_take_name(p, statements[i].name)) {
            return statements[i].parse(p);
        }
    }
    if (p->at->type == JINJA_T_NAME) {
        p->c->line = p->at->line;
        jinja_fail(p->c, MOE_ERR_UNSUPPORTED, "unknown or misplaced tag '%.60s'", p->at->name);
    }
    jinja_unexpected(p);
}

static bool ends_body(const jinja_parser *p, const char *const *ends)
{
    for (; ends != NULL && *ends != NULL; ends++) {
        if (p->at[1].type == JINJA_T_NAME && strcmp(p->at[1].name, *ends) == 0) {
            return true;
        }
    }
    return false;
}

static void parse_body(jinja_parser *p, jinja_nodes *body, const char *const *ends)
{
    for (;;) {
        jinja_node *node;
        if (p->at->type == JINJA_T_END) {
            if (ends != NULL) {
                jinja_fail(p->c, MOE_ERR_UNSUPPORTED, "a block has no {%% %s %%}", ends[0]);
            }
            return;
        }
        if (p->at->type == JINJA_T_TEXT) {
            node = jinja_new_node(p, JINJA_N_TEXT);
            node->value = p->at++->value;
        } else if (p->at->type == JINJA_T_OPEN_OUTPUT) {
            node = jinja_new_node(p, JINJA_N_OUTPUT);
            p->at++;
            node->a = jinja_parse_tuple(p, true, false);
            expect_type(p, JINJA_T_CLOSE_OUTPUT);
        } else {
            if (ends_body(p, ends)) {
                p->at++;
                return;
            }
            expect_type(p, JINJA_T_OPEN_BLOCK);
            node = parse_statement(p);
            expect_type(p, JINJA_T_CLOSE_BLOCK);
        }
        jinja_add_node(p->c, body, node);
    }
}

jinja_nodes jinja_parse(jinja_context *c, const jinja_tokens *tokens)
{
    jinja_parser p = {.c = c,
                      .at = tokens->items,
                      .parse_expression = jinja_parse_expression,
                      .parse_tuple = jinja_parse_tuple};
    jinja_nodes body = {0};
    parse_body(&p, &body, NULL);
    return body;
}
