/* SPDX-License-Identifier: MIT */
#include "cli_json.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include <json-c/json_visit.h>

#include "cli_buffer.h"
#include "cli_options.h"

/* Marks an object or array from which something is missing, because memory was short. */
static char incomplete;

static void mark_incomplete(struct json_object *container)
{
    if (container != NULL) {
        json_object_set_userdata(container, &incomplete, NULL);
    }
}

void cli_json_put(struct json_object *object, const char *key, struct json_object *value)
{
    if (object == NULL || value == NULL || json_object_object_add(object, key, value) != 0) {
        json_object_put(value);
        mark_incomplete(object);
    }
}

void cli_json_null(struct json_object *object, const char *key)
{
    if (object != NULL && json_object_object_add(object, key, NULL) != 0) {
        mark_incomplete(object);
    }
}

void cli_json_append(struct json_object *array, struct json_object *value)
{
    if (array == NULL || value == NULL || json_object_array_add(array, value) != 0) {
        json_object_put(value);
        mark_incomplete(array);
    }
}

void cli_json_u64(struct json_object *object, const char *key, uint64_t value)
{
    cli_json_put(object, key, json_object_new_uint64(value));
}

/* Six significant digits suffice for a measurement; json-c would write seventeen. */
void cli_json_real(struct json_object *object, const char *key, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.6g", value);
    if (isfinite(value)) {
        cli_json_put(object, key, json_object_new_double_s(value, text));
    } else {
        cli_json_null(object, key);
    }
}

/* Length of the well-formed UTF-8 character at text, 0 when there is none. */
static size_t utf8_character(const unsigned char *text, size_t size)
{
    size_t length = text[0] < 0x80   ? 1
                    : text[0] < 0xC2 ? 0
                    : text[0] < 0xE0 ? 2
                    : text[0] < 0xF0 ? 3
                    : text[0] < 0xF5 ? 4
                                     : 0;
    if (length == 0 || length > size) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    bool overlong = (text[0] == 0xE0 && text[1] < 0xA0) || (text[0] == 0xF0 && text[1] < 0x90);
    bool surrogate = text[0] == 0xED && text[1] >= 0xA0;
    bool too_large = text[0] == 0xF4 && text[1] >= 0x90;
    return overlong || surrogate || too_large ? 0 : length;
}

struct json_object *cli_json_new_text(const char *text, size_t size)
{
    cli_buffer clean = {NULL, 0, 0};
    for (size_t at = 0; at < size;) {
        size_t length = utf8_character((const unsigned char *)text + at, size - at);
        bool stored = length > 0 ? cli_buffer_append(&clean, text + at, length)
                                 : cli_buffer_append(&clean, "\xEF\xBF\xBD", 3);
        if (!stored) {
            cli_buffer_free(&clean);
            return NULL;
        }
        at += length > 0 ? length : 1;
    }
    struct json_object *value =
        json_object_new_string_len(clean.size == 0 ? "" : clean.data, (int)clean.size);
    cli_buffer_free(&clean);
    return value;
}

void cli_json_text(struct json_object *object, const char *key, const char *text)
{
    cli_json_put(object, key, cli_json_new_text(text, strlen(text)));
}

static int find_incomplete(struct json_object *value, int flags, struct json_object *parent,
                           const char *key, size_t *index, void *user)
{
    (void)flags;
    (void)parent;
    (void)key;
    (void)index;
    bool *found = user;
    bool is_container =
        json_object_is_type(value, json_type_object) || json_object_is_type(value, json_type_array);
    *found |= is_container && json_object_get_userdata(value) == &incomplete;
    return *found ? JSON_C_VISIT_RETURN_STOP : JSON_C_VISIT_RETURN_CONTINUE;
}

bool cli_json_is_complete(struct json_object *object)
{
    bool found = object == NULL;
    return !found && json_c_visit(object, 0, find_incomplete, &found) == 0 && !found;
}

int cli_json_print(struct json_object *object, FILE *file)
{
    const int style = JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE;
    const char *text =
        !cli_json_is_complete(object) ? NULL : json_object_to_json_string_ext(object, style);
    int code = CLI_EXIT_OK;
    if (text == NULL) {
        code = cli_fail(CLI_EXIT_FAILURE, "out of memory for the JSON output");
    } else if (fprintf(file, "%s\n", text) < 0 || fflush(file) != 0) {
        code = cli_fail(CLI_EXIT_FAILURE, "cannot write the JSON output: %s", strerror(errno));
    }
    json_object_put(object);
    return code;
}
