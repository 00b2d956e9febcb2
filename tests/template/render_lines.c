/* SPDX-License-Identifier: MIT */
/* Renders what make_cases.py and compare.py ask for: a line of JSON in, a line of JSON out.
 *   {"template": TEXT, "variables": {NAME: VALUE}, "markup": {NAME: TEXT}, "now": SECONDS}
 *   {"text": TEXT, "spans": [[SIZE, IS_MARKUP], ...]} or {"error": TEXT} */
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/template/template_case.h"

int main(void)
{
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, stdin) >= 0) {
        struct json_object *asked = json_tokener_parse(line);
        struct json_object *answer = json_object_new_object();
        moe_template_output out;
        moe_error err = {""};
        if (template_case_render(asked, &out, &err) == MOE_OK) {
            struct json_object *spans = json_object_new_array();
            for (size_t i = 0; i < out.n_spans; i++) {
                struct json_object *span = json_object_new_array();
                json_object_array_add(span, json_object_new_int64((int64_t)out.spans[i].size));
                json_object_array_add(span, json_object_new_boolean(out.spans[i].is_markup));
                json_object_array_add(spans, span);
            }
            json_object_object_add(answer, "text",
                                   json_object_new_string_len(out.text, (int)out.size));
            json_object_object_add(answer, "spans", spans);
            moe_template_output_free(&out);
        } else {
            json_object_object_add(answer, "error", json_object_new_string(err.message));
        }
        puts(json_object_to_json_string_ext(answer, JSON_C_TO_STRING_PLAIN));
        fflush(stdout);
        json_object_put(answer);
        json_object_put(asked);
    }
    free(line);
    return EXIT_SUCCESS;
}
