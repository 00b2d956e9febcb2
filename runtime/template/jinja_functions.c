/* SPDX-License-Identifier: MIT */
/* Functions that templates call. */
#include <string.h>
#include <time.h>

#include "runtime/template/jinja_evaluate.h"

static jinja_value function_range(jinja_context *c, const jinja_args *args)
{
    jinja_value a[3];
    jinja_value list = jinja_new_list(c, JINJA_LIST);
    jinja_bind(c, "range", args, "start stop step", 1, a);
    int64_t from = jinja_need_integer(c, "range", a[0]);
    int64_t to = from;
    int64_t step = a[2].kind == JINJA_ABSENT ? 1 : jinja_need_integer(c, "range", a[2]);
    if (a[1].kind == JINJA_ABSENT) {
        from = 0;
    } else {
        to = jinja_need_integer(c, "range", a[1]);
    }
    if (step == 0) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "range: a step of 0");
    }
    for (int64_t at = from; step > 0 ? at < to : at > to;) {
        if (list.list->n == JINJA_MAX_RANGE) {
            jinja_fail(c, MOE_ERR_UNSUPPORTED, "range: more than %d numbers", JINJA_MAX_RANGE);
        }
        jinja_list_add(c, list.list, jinja_int(at));
        if (__builtin_add_overflow(at, step, &at)) {
            break;
        }
    }
    return list;
}

static void add_all(jinja_context *c, jinja_dict *dict, jinja_value from)
{
    if (from.kind == JINJA_DICT) {
        for (size_t i = 0; i < from.dict->n; i++) {
            jinja_dict_set(c, dict, from.dict->entries[i].key, from.dict->entries[i].value);
        }
        return;
    }
    const jinja_list *pairs = jinja_iterate(c, from);
    for (size_t i = 0; i < pairs->n; i++) {
        const jinja_list *pair = jinja_iterate(c, pairs->items[i]);
        if (pair->n != 2) {
            jinja_fail(c, MOE_ERR_UNSUPPORTED, "dict: %zu values in place of two", pair->n);
        }
        jinja_dict_set(c, dict, pair->items[0], pair->items[1]);
    }
}

static jinja_value function_dict(jinja_context *c, const jinja_args *args)
{
    jinja_value dict = jinja_new_dict(c);
    if (args->n > 1) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "dict takes one value, not %zu", args->n);
    }
    if (args->n == 1) {
        add_all(c, dict.dict, args->values[0]);
    }
    for (size_t i = 0; i < args->n_named; i++) {
        jinja_text name = jinja_text_of(args->names[i], JINJA_MARKUP);
        jinja_dict_set(c, dict.dict, jinja_string(c, name), args->named[i]);
    }
    return dict;
}

static jinja_value function_namespace(jinja_context *c, const jinja_args *args)
{
    jinja_value space = function_dict(c, args);
    space.kind = JINJA_NAMESPACE;
    return space;
}

static jinja_value function_raise(jinja_context *c, const jinja_args *args)
{
    jinja_value message;
    jinja_bind(c, "raise_exception", args, "message", 1, &message);
    jinja_text text = jinja_to_text(c, message);
    jinja_fail(c, MOE_ERR_ARGUMENT, "the template refuses the conversation: %.*s",
               (int)(text.size < 250 ? text.size : 250), text.data);
}

static jinja_value function_strftime_now(jinja_context *c, const jinja_args *args)
{
    char format[128];
    char out[512];
    jinja_value value;
    struct tm parts;
    time_t now = (time_t)c->input->now;
    jinja_bind(c, "strftime_now", args, "format", 1, &value);
    jinja_text text = jinja_need_text(c, "strftime_now", value);
    if (text.size >= sizeof format || memchr(text.data, '\0', text.size) != NULL) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "strftime_now: a format too long");
    }
    memcpy(format, text.data, text.size);
    format[text.size] = '\0';
    if (localtime_r(&now, &parts) == NULL) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "strftime_now: the time has no date");
    }
    size_t n = strftime(out, sizeof out, format, &parts);
    jinja_builder b = jinja_build(c);
    jinja_add_bytes(&b, out, n, JINJA_DATA);
    return jinja_string(c, jinja_built(&b));
}

static jinja_value function_cycler(jinja_context *c, const jinja_args *args)
{
    jinja_value cycler = jinja_new_list(c, JINJA_CYCLER);
    if (args->n == 0) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "cycler needs values");
    }
    for (size_t i = 0; i < args->n; i++) {
        jinja_list_add(c, cycler.list, args->values[i]);
    }
    return cycler;
}

static jinja_value function_joiner(jinja_context *c, const jinja_args *args)
{
    jinja_value between;
    jinja_bind(c, "joiner", args, "sep", 0, &between);
    if (between.kind == JINJA_ABSENT) {
        between = jinja_string(c, jinja_text_of(", ", JINJA_DATA));
    }
    jinja_value joiner = {.kind = JINJA_JOINER, .joiner = jinja_new_list(c, JINJA_LIST).list};
    jinja_list_add(c, joiner.joiner, between);
    return joiner;
}

const jinja_function *jinja_find_function(const char *name)
{
    static const jinja_function functions[] = {
        {"range", function_range},
        {"dict", function_dict},
        {"namespace", function_namespace},
        {"raise_exception", function_raise},
        {"strftime_now", function_strftime_now},
        {"cycler", function_cycler},
        {"joiner", function_joiner},
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (strcmp(functions[i].name, name) == 0) {
            return &functions[i];
        }
    }
    return NULL;
}
