/* SPDX-License-Identifier: MIT */
/* Statements. */
#include <string.h>

#include "runtime/template/jinja_evaluate.h"

typedef enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } flow;

static flow run_body(jinja_context *c, jinja_scope *scope, const jinja_nodes *body);

static void assign(jinja_context *c, jinja_scope *scope, const jinja_node *target,
                   jinja_value value);

static void assign_namespaced(jinja_context *c, jinja_scope *scope, const jinja_node *target,
                              jinja_value value)
{
    jinja_node name = {.type = JINJA_N_NAME, .line = target->line, .name = target->name};
    jinja_value space = jinja_evaluate(c, scope, &name);
    if (space.kind != JINJA_NAMESPACE) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "'%.60s' is no namespace: its attributes cannot be set",
                   target->name);
    }
    jinja_dict_set(c, space.dict, target->value, value);
}

static void assign_tuple(jinja_context *c, jinja_scope *scope, const jinja_node *target,
                         jinja_value value)
{
    const jinja_list *list = jinja_iterate(c, value);
    if (list->n != target->items.n) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "%zu values for %zu names", list->n, target->items.n);
    }
    for (size_t i = 0; i < list->n; i++) {
        assign(c, scope, target->items.nodes[i], list->items[i]);
    }
}

static void assign(jinja_context *c, jinja_scope *scope, const jinja_node *target,
                   jinja_value value)
{
    if (target->type == JINJA_N_NAME) {
        jinja_scope_set(c, scope, target->name, value);
    } else if (target->type == JINJA_N_NAMESPACED) {
        assign_namespaced(c, scope, target, value);
    } else if (value.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(c, value);
    } else {
        jinja_enter(c);
        assign_tuple(c, scope, target, value);
        jinja_leave(c);
    }
}

/* Runs the body, and returns what it would have written to the output. */
static jinja_value capture(jinja_context *c, jinja_scope *scope, const jinja_nodes *body)
{
    jinja_builder built = jinja_build(c);
    jinja_builder *out = c->out;
    c->out = &built;
    run_body(c, scope, body);
    c->out = out;
    return jinja_string(c, jinja_built(&built));
}

static jinja_value filtered(jinja_context *c, jinja_scope *scope, const jinja_node *filter,
                            jinja_value value)
{
    if (filter == NULL) {
        return value;
    }
    const jinja_value *outer = c->block_value;
    c->block_value = &value;
    jinja_value result = jinja_evaluate(c, scope, filter);
    c->block_value = outer;
    return result;
}

static const jinja_list *items_of_loop(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    const jinja_list *all = jinja_iterate(c, jinja_evaluate(c, scope, node->b));
    if (node->c == NULL) {
        return all;
    }
    jinja_list *some = jinja_new_list(c, JINJA_LIST).list;
    for (size_t i = 0; i < all->n; i++) {
        jinja_scope *inner = jinja_new_scope(c, scope);
        assign(c, inner, node->a, all->items[i]);
        if (jinja_truth(jinja_evaluate(c, inner, node->c))) {
            jinja_list_add(c, some, all->items[i]);
        }
    }
    return some;
}

static flow run_for(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    jinja_loop *loop = jinja_alloc(c, 1, sizeof *loop);
    jinja_value value = {.kind = JINJA_LOOP, .loop = loop};
    const char *name = jinja_intern(c, "loop", 4);
    loop->list = items_of_loop(c, scope, node);
    for (; loop->index < loop->list->n; loop->index++) {
        jinja_scope *inner = jinja_new_scope(c, scope);
        jinja_scope_set(c, inner, name, value);
        assign(c, inner, node->a, loop->list->items[loop->index]);
        if (run_body(c, inner, &node->items) == FLOW_BREAK) {
            break;
        }
    }
    if (loop->list->n == 0) {
        return run_body(c, jinja_new_scope(c, scope), &node->others);
    }
    return FLOW_ON;
}

static flow run_if(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    for (size_t i = 0; i < node->items.n; i++) {
        const jinja_node *branch = node->items.nodes[i];
        if (branch->a == NULL || jinja_truth(jinja_evaluate(c, scope, branch->a))) {
            return run_body(c, scope, &branch->items);
        }
    }
    return FLOW_ON;
}

static jinja_value new_macro(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    jinja_macro *macro = jinja_alloc(c, 1, sizeof *macro);
    macro->node = node;
    macro->scope = scope;
    return (jinja_value){.kind = JINJA_MACRO, .macro = macro};
}

static void run_call_block(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    jinja_node call = *node->a;
    call.value = new_macro(c, scope, node);
    jinja_add(c->out, jinja_to_text(c, jinja_evaluate(c, scope, &call)));
}

static flow run_with(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    jinja_scope *inner = jinja_new_scope(c, scope);
    for (size_t i = 0; i < node->others.n; i++) {
        const jinja_node *set = node->others.nodes[i];
        assign(c, inner, set->a, jinja_evaluate(c, scope, set->b));
    }
    return run_body(c, inner, &node->items);
}

static flow run_node(jinja_context *c, jinja_scope *scope, const jinja_node *node)
{
    jinja_value value;
    switch (node->type) {
    case JINJA_N_TEXT:
        jinja_add(c->out, *node->value.text);
        return FLOW_ON;
    case JINJA_N_OUTPUT:
        jinja_add(c->out, jinja_to_text(c, jinja_evaluate(c, scope, node->a)));
        return FLOW_ON;
    case JINJA_N_FOR:
        return run_for(c, scope, node);
    case JINJA_N_IF:
        return run_if(c, scope, node);
    case JINJA_N_SET:
        assign(c, scope, node->a, jinja_evaluate(c, scope, node->b));
        return FLOW_ON;
    case JINJA_N_CAPTURE:
        value = capture(c, jinja_new_scope(c, scope), &node->items);
        assign(c, scope, node->a, filtered(c, scope, node->b, value));
        return FLOW_ON;
    case JINJA_N_MACRO:
        jinja_scope_set(c, scope, node->name, new_macro(c, scope, node));
        return FLOW_ON;
    case JINJA_N_CALL_BLOCK:
        run_call_block(c, scope, node);
        return FLOW_ON;
    case JINJA_N_FILTER_BLOCK:
        value = capture(c, jinja_new_scope(c, scope), &node->items);
        jinja_add(c->out, jinja_to_text(c, filtered(c, scope, node->b, value)));
        return FLOW_ON;
    case JINJA_N_WITH:
        return run_with(c, scope, node);
    case JINJA_N_SCOPE:
        return run_body(c, jinja_new_scope(c, scope), &node->items);
    default:
        return node->type == JINJA_N_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
    }
}

static flow run_body(jinja_context *c, jinja_scope *scope, const jinja_nodes *body)
{
    for (size_t i = 0; i < body->n; i++) {
        jinja_enter(c);
        c->line = body->nodes[i]->line;
        flow how = run_node(c, scope, body->nodes[i]);
        jinja_leave(c);
        if (how != FLOW_ON) {
            return how;
        }
    }
    return FLOW_ON;
}

void jinja_run(jinja_context *c, jinja_scope *scope, const jinja_nodes *body)
{
    run_body(c, scope, body);
}

static const jinja_value *find_named(const jinja_args *args, const char *name, bool *taken)
{
    for (size_t i = 0; i < args->n_named; i++) {
        if (args->names[i] == name || strcmp(args->names[i], name) == 0) {
            taken[i] = true;
            return &args->named[i];
        }
    }
    return NULL;
}

/* Handles arguments that a macro has no parameter for: "caller", which call blocks give, or else an
 * error. */
static void take_rest(jinja_context *c, jinja_scope *scope, const jinja_macro *macro,
                      const jinja_args *args, const bool *taken)
{
    const jinja_nodes *parameters = &macro->node->others;
    jinja_value extra = jinja_new_list(c, JINJA_TUPLE);
    jinja_value named = jinja_new_dict(c);
    for (size_t i = parameters->n; i < args->n; i++) {
        jinja_list_add(c, extra.list, args->values[i]);
    }
    for (size_t i = 0; i < args->n_named; i++) {
        if (!taken[i] && strcmp(args->names[i], "caller") == 0) {
            jinja_scope_set(c, scope, jinja_intern(c, "caller", 6), args->named[i]);
        } else if (!taken[i]) {
            jinja_text name = jinja_text_of(args->names[i], JINJA_MARKUP);
            jinja_dict_set(c, named.dict, jinja_string(c, name), args->named[i]);
        }
    }
    /* The macro's node says which of the two (varargs, kwargs) the body mentions. */
    int64_t uses = macro->node->value.kind == JINJA_INT ? macro->node->value.integer : 0;
    if ((extra.list->n > 0 && (uses & 1) == 0) || (named.dict->n > 0 && (uses & 2) == 0)) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "macro '%.60s' was given more than it takes",
                   macro->node->name == NULL ? "caller" : macro->node->name);
    }
    if ((uses & 1) != 0) {
        jinja_scope_set(c, scope, jinja_intern(c, "varargs", 7), extra);
    }
    if ((uses & 2) != 0) {
        jinja_scope_set(c, scope, jinja_intern(c, "kwargs", 6), named);
    }
}

jinja_value jinja_call_macro(jinja_context *c, const jinja_macro *macro, const jinja_args *args)
{
    jinja_scope *scope = jinja_new_scope(c, macro->scope);
    const jinja_nodes *parameters = &macro->node->others;
    bool *taken = jinja_alloc(c, args->n_named + 1, sizeof *taken);
    for (size_t i = 0; i < parameters->n; i++) {
        const jinja_node *parameter = parameters->nodes[i];
        const jinja_value *named = find_named(args, parameter->name, taken);
        jinja_value value = jinja_undefined(parameter->name);
        if (named != NULL && i < args->n) {
            jinja_fail(c, MOE_ERR_UNSUPPORTED, "the argument '%.60s' is given twice",
                       parameter->name);
        }
        if (named != NULL || i < args->n) {
            value = named != NULL ? *named : args->values[i];
        } else if (parameter->a != NULL) {
            value = jinja_evaluate(c, scope, parameter->a);
        }
        jinja_scope_set(c, scope, parameter->name, value);
    }
    take_rest(c, scope, macro, args, taken);
    return capture(c, scope, &macro->node->items);
}
