/* SPDX-License-Identifier: MIT */
#include "runtime/grammar/schema_keywords.h"

#include <string.h>

/* It is compared with all that are known. */
enum { STEPS_OF_KEYWORD = 16 };

void moe_schema_check_keywords(moe_schema_writer *w, struct json_object *schema)
{
    static const char *const known[] = {"type",
                                        "enum",
                                        "const",
                                        "properties",
                                        "required",
                                        "items",
                                        "prefixItems",
                                        "minItems",
                                        "maxItems",
                                        "minLength",
                                        "maxLength",
                                        "anyOf",
                                        "oneOf",
                                        "allOf",
                                        "$ref",
                                        "title",
                                        "description",
                                        "default",
                                        "additionalProperties",
                                        "examples",
                                        "example",
                                        "$schema",
                                        "$id",
                                        "id",
                                        "$comment",
                                        "deprecated",
                                        "readOnly",
                                        "writeOnly",
                                        "format",
                                        "$defs",
                                        "definitions",
                                        "strict",
                                        "contentEncoding",
                                        "contentMediaType",
                                        "nullable",
                                        "$anchor",
                                        "name",
                                        NULL};
    json_object_object_foreach(schema, key, value)
    {
        if (!moe_schema_step(w, STEPS_OF_KEYWORD)) {
            return;
        }
        bool says_no = json_object_is_type(value, json_type_boolean) &&
                       !json_object_get_boolean(value) &&
                       (strcmp(key, "uniqueItems") == 0 || strcmp(key, "nullable") == 0);
        if (!says_no && (!moe_schema_is_listed(key, known) || strcmp(key, "nullable") == 0)) {
            moe_schema_fail(w, MOE_ERR_UNSUPPORTED, "this keyword is not supported: ", key);
        }
    }
}
