/* SPDX-License-Identifier: MIT */
#include "tests/template/template_case.h"

#include <string.h>

#define MAX_VARIABLES 64

static size_t add_variables(struct json_object *from, bool is_markup, moe_template_variable *out,
                            size_t n)
{
    if (from == NULL) {
        return n;
    }
    json_object_object_foreach(from, name, value)
    {
        const char *text =
            is_markup ? json_object_get_string(value)
                      : json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN |
                                                                  JSON_C_TO_STRING_NOSLASHESCAPE);
        if (n < MAX_VARIABLES) {
            out[n++] = (moe_template_variable){
                .name = name, .text = text, .size = strlen(text), .is_markup = is_markup};
        }
    }
    return n;
}

int template_case_render(struct json_object *asked, moe_template_output *out, moe_error *err)
{
    static const char *const roles[] = {"system", "user",    "assistant",   "tool",     "developer",
                                        "model",  "ipython", "observation", "function", NULL};
    moe_template_variable variables[MAX_VARIABLES];
    struct json_object *source = json_object_object_get(asked, "template");
    size_t n = add_variables(json_object_object_get(asked, "variables"), false, variables, 0);
    n = add_variables(json_object_object_get(asked, "markup"), true, variables, n);
    const moe_template_input input = {
        .source = json_object_get_string(source),
        .size = (size_t)json_object_get_string_len(source),
        .variables = variables,
        .n_variables = n,
        .markup_roles = roles,
        .now = json_object_get_int64(json_object_object_get(asked, "now")),
        .adapt_messages = json_object_get_boolean(json_object_object_get(asked, "adapt")),
        .continue_final_message =
            json_object_get_boolean(json_object_object_get(asked, "continue")),
    };
    return moe_template_render(&input, out, err);
}
