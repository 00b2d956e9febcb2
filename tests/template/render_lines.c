/* SPDX-License-Identifier: MIT */
/* Renders the requests of make_cases.py and compare.py: a line of JSON in, a line of JSON out.
 *   {"template": TEXT, "variables": {NAME: VALUE}, "markup": {NAME: TEXT}, "now": SECONDS}
 *   {"text": TEXT} or {"error": TEXT}
 * "adapt": true and "continue": true are adapt_messages and continue_final_message.
 * With "hostile": true all texts in the variables are replaced (hostile_data.h):
 *   {"tokens": N, "words": N, "tokens from data": N, ...} or {"error": TEXT} */
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/template/hostile_data.h"
#include "tests/template/template_case.h"

static void put(struct json_object *answer, const char *name, size_t n)
{
    json_object_object_add(answer, name, json_object_new_uint64(n));
}

static void render(struct json_object *asked, struct json_object *answer)
{
    moe_template_output out;
    moe_error err = {""};
    if (template_case_render(asked, &out, &err) == MOE_OK) {
        json_object_object_add(answer, "text", json_object_new_string_len(out.text, (int)out.size));
        moe_template_output_free(&out);
    } else {
        json_object_object_add(answer, "error", json_object_new_string(err.message));
    }
}

static void render_hostile(struct json_object *asked, struct json_object *answer)
{
    static hostile_words words;
    static char *source;
    static moe_tokenizer *tokenizer;
    moe_error err = {""};
    const char *text = json_object_get_string(json_object_object_get(asked, "template"));
    if (source == NULL || strcmp(source, text) != 0) {
        free(source);
        source = strdup(text);
        moe_tokenizer_destroy(&tokenizer);
        hostile_find_words(&words, text);
        tokenizer = hostile_vocabulary(&words);
    }
    struct json_object *variables =
        hostile_variables(json_object_object_get(asked, "variables"), &words);
    hostile_counts counts = hostile_count(tokenizer, text, variables, &err);
    if (counts.rendered) {
        put(answer, "tokens", counts.n_tokens);
        put(answer, "words", counts.n_data);
        put(answer, "tokens from data", counts.n_from_data);
        put(answer, "words that count as the template's", counts.n_marked);
    } else {
        json_object_object_add(answer, "error", json_object_new_string(err.message));
    }
    json_object_put(variables);
}

int main(void)
{
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, stdin) >= 0) {
        struct json_object *asked = json_tokener_parse(line);
        struct json_object *answer = json_object_new_object();
        if (json_object_get_boolean(json_object_object_get(asked, "hostile"))) {
            render_hostile(asked, answer);
        } else {
            render(asked, answer);
        }
        puts(json_object_to_json_string_ext(answer, JSON_C_TO_STRING_PLAIN));
        fflush(stdout);
        json_object_put(answer);
        json_object_put(asked);
    }
    free(line);
    return EXIT_SUCCESS;
}
