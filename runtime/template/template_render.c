/* SPDX-License-Identifier: MIT */
/* Reads the variables, parses the template, runs it, and returns the text with its origins. */
#include "runtime/template/template.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/template/jinja_evaluate.h"
#include "runtime/template/jinja_json.h"
#include "runtime/template/jinja_messages.h"

static void set_more_variables(jinja_context *c)
{
    const char *text = c->input->more_variables;
    jinja_value more = jinja_read_json(c, "the arguments", text, strlen(text));
    if (more.kind != JINJA_DICT) {
        jinja_fail(c, MOE_ERR_ARGUMENT,
                   "the arguments are no JSON object, such as {\"enable_thinking\": false}");
    }
    for (size_t i = 0; i < more.dict->n; i++) {
        jinja_text key = *more.dict->entries[i].key.text;
        for (size_t j = 0; j < c->input->n_variables; j++) {
            if (jinja_text_is(key, c->input->variables[j].name)) {
                jinja_fail(c, MOE_ERR_ARGUMENT, "the arguments set %.40s, which is set already",
                           c->input->variables[j].name);
            }
        }
        jinja_scope_set(c, c->globals, jinja_intern(c, key.data, key.size),
                        more.dict->entries[i].value);
    }
}

static void set_variables(jinja_context *c)
{
    const moe_template_input *input = c->input;
    c->globals = jinja_new_scope(c, NULL);
    for (size_t i = 0; i < input->n_variables; i++) {
        const moe_template_variable *variable = &input->variables[i];
        const char *name = jinja_intern(c, variable->name, strlen(variable->name));
        jinja_value value;
        if (variable->is_markup) {
            value = jinja_string(c, (jinja_text){.data = variable->text,
                                                 .size = variable->size,
                                                 .whole = JINJA_MARKUP});
        } else {
            value = jinja_read_json(c, variable->name, variable->text, variable->size);
        }
        if (strcmp(name, "messages") == 0) {
            jinja_prepare_messages(c, value);
        }
        jinja_scope_set(c, c->globals, name, value);
    }
    if (input->more_variables != NULL) {
        set_more_variables(c);
    }
}

static int copy_out(const jinja_builder *b, moe_template_output *out, moe_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < b->size; i++) {
        n += i == 0 || b->origin[i] != b->origin[i - 1];
    }
    moe_allowance *allowance = b->c->input->allowance;
    const uint64_t before = moe_allowance_now(allowance);
    out->text = moe_allowance_grow(allowance, NULL, 0, b->size + 1, 1);
    out->spans = out->text == NULL
                     ? NULL
                     : moe_allowance_grow(allowance, NULL, 0, n + 1, sizeof *out->spans);
    if (out->text == NULL || out->spans == NULL) {
        moe_template_output_free(out);
        moe_allowance_give(allowance, moe_allowance_now(allowance) - before);
        return moe_allowance_fail(allowance, err, "a rendered conversation");
    }
    memset(out->spans, 0, (n + 1) * sizeof *out->spans);
    if (b->size > 0) {
        memcpy(out->text, b->data, b->size);
    }
    out->text[b->size] = '\0';
    out->size = b->size;
    for (size_t i = 0; i < b->size; i++) {
        if (i == 0 || b->origin[i] != b->origin[i - 1]) {
            out->spans[out->n_spans++].is_markup = b->origin[i] == JINJA_MARKUP;
        }
        out->spans[out->n_spans - 1].size++;
    }
    return MOE_OK;
}

static const jinja_links links = {.call_macro = jinja_call_macro,
                                  .find_method = jinja_find_method,
                                  .find_string_method = jinja_find_string_method};

/* Renders the template. Errors within it jump to c->failed, which the caller has set. */
static void render(jinja_context *c, jinja_builder *out)
{
    jinja_tokens tokens = {0};
    if (c->input->size > JINJA_MAX_SOURCE) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "more than %zu bytes", JINJA_MAX_SOURCE);
    }
    jinja_tokenize(c, c->input->source, c->input->size, &tokens);
    jinja_nodes body = jinja_parse(c, &tokens);
    c->line = 0;
    set_variables(c);
    c->out = out;
    jinja_run(c, jinja_new_scope(c, c->globals), &body);
    if (c->input->continue_final_message) {
        out->size = jinja_find_continuation(c, out);
    }
}

int moe_template_render(const moe_template_input *input, moe_template_output *out, moe_error *err)
{
    jinja_context c = {.err = err, .input = input, .line = 1, .links = &links};
    jinja_builder built = {.c = &c};
    size_t size = input->size;
    *out = (moe_template_output){0};
    for (size_t i = 0; i < input->n_variables; i++) {
        size += input->variables[i].size;
    }
    size += input->more_variables != NULL ? strlen(input->more_variables) : 0;
    c.memory_left = JINJA_MAX_MEMORY + (size < JINJA_MAX_MEMORY ? size * 64 : 0);
    c.steps_left = JINJA_MAX_STEPS + (size < JINJA_MAX_MEMORY ? size * 64 : 0);
    /* Numbers are read and written with a point, independent of the program's locale. */
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t before = plain == (locale_t)0 ? plain : uselocale(plain);
    if (setjmp(c.failed) == 0) {
        render(&c, &built);
    }
    int status = c.status == MOE_OK ? copy_out(&built, out, err) : c.status;
    moe_allowance_give(input->allowance, jinja_free_all(&c));
    if (plain != (locale_t)0) {
        uselocale(before);
        freelocale(plain);
    }
    return status;
}

uint64_t moe_template_output_bytes(const moe_template_output *out)
{
    return out->text == NULL ? 0 : out->size + 1 + (out->n_spans + 1) * sizeof *out->spans;
}

void moe_template_output_free(moe_template_output *out)
{
    free(out->text);
    free(out->spans);
    *out = (moe_template_output){0};
}
