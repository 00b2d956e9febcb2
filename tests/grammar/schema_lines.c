/* SPDX-License-Identifier: MIT */
/* What schema_score.py talks to. For each line {"schema": .., "texts": [..]} it writes one: the
 * words of what was dropped or of the error, or an empty text, behind "held", "dropped" or
 * "refused"; then a letter for each text: y if it matches the grammar, b if it begins one that
 * does, n if neither. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>
#include <moe/allowance.h>
#include <moe/grammar.h>
#include <moe/moe.h>

#include "runtime/grammar/grammar_matcher.h"

static char judge(const moe_grammar *grammar, const char *text, size_t size)
{
    moe_matcher m;
    if (moe_matcher_init(&m, grammar, NULL) != MOE_OK) {
        return '?';
    }
    uint32_t at = moe_matcher_start(&m);
    for (size_t i = 0; i < size && at != MOE_MATCH_DEAD; i++) {
        (void)moe_matcher_tidy(&m, &at);
        at = moe_matcher_step(&m, at, (uint8_t)text[i]);
    }
    char judged = at == MOE_MATCH_DEAD              ? m.exhausted ? '?' : 'n'
                  : moe_matcher_is_complete(&m, at) ? 'y'
                                                    : 'b';
    moe_matcher_free(&m);
    return judged;
}

static void answer(struct json_object *asked)
{
    char *text = NULL, *dropped = NULL;
    moe_grammar *grammar = NULL;
    moe_error err = {""};
    struct json_object *schema = NULL, *texts = NULL;
    json_object_object_get_ex(asked, "schema", &schema);
    json_object_object_get_ex(asked, "texts", &texts);
    const char *source = json_object_to_json_string_ext(schema, JSON_C_TO_STRING_PLAIN);
    int status = moe_json_schema_grammar_loose(&text, &dropped, source, strlen(source), NULL, &err);
    if (status == MOE_OK) {
        status = moe_grammar_create(&grammar, text, strlen(text), &err);
    }
    printf("%s\t%s\t",
           status != MOE_OK  ? "refused"
           : dropped != NULL ? "dropped"
                             : "held",
           status != MOE_OK  ? err.message
           : dropped != NULL ? dropped
                             : "");
    for (size_t i = 0; status == MOE_OK && i < json_object_array_length(texts); i++) {
        struct json_object *one = json_object_array_get_idx(texts, i);
        putchar(
            judge(grammar, json_object_get_string(one), (size_t)json_object_get_string_len(one)));
    }
    putchar('\n');
    moe_grammar_close(&grammar);
    moe_free(text);
    moe_free(dropped);
}

int main(void)
{
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0) {
        struct json_object *asked = json_tokener_parse(line);
        answer(asked);
        json_object_put(asked);
        fflush(stdout);
    }
    free(line);
    return 0;
}
