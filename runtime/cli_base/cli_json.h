/* SPDX-License-Identifier: MIT */
/* json-c with the checks that keep it from asserting when memory is short. */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <json-c/json.h>

/* Adds value under key. If it cannot, or value is NULL because memory was short, it releases value
 * and marks the object as incomplete: cli_json_print() then fails. */
void cli_json_put(struct json_object *object, const char *key, struct json_object *value);
void cli_json_null(struct json_object *object, const char *key);
void cli_json_append(struct json_object *array, struct json_object *value);
void cli_json_u64(struct json_object *object, const char *key, uint64_t value);
/* Infinity and NaN, which JSON does not have, become null. */
void cli_json_real(struct json_object *object, const char *key, double value);
/* Bytes that are not UTF-8 become U+FFFD: JSON is UTF-8. */
void cli_json_text(struct json_object *object, const char *key, const char *text);
struct json_object *cli_json_new_text(const char *text, size_t size);

/* False: the object or array is NULL, or lacks something because memory was short. */
bool cli_json_is_complete(struct json_object *object);
/* Prints the object on a line of its own and releases it. Returns an exit code. */
int cli_json_print(struct json_object *object, FILE *file);

#endif
