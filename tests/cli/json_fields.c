/* SPDX-License-Identifier: MIT */
/* json_fields FILE NAME:TYPE...: true when the file holds one JSON object, nothing else, and the
 * object has these fields of these types (int, number, string, boolean, object, array).
 * json_fields FILE --join ARRAY FIELD: writes the field of each element, without anything between.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include <json-c/json.h>

static char text[1 << 20];

static int has_type(struct json_object *value, const char *type)
{
    static const struct {
        const char *name;
        json_type type;
    } types[] = {
        {"int", json_type_int},         {"number", json_type_double}, {"string", json_type_string},
        {"boolean", json_type_boolean}, {"object", json_type_object}, {"array", json_type_array},
    };
    /* A number that happens to be whole reads as an integer. */
    if (strcmp(type, "number") == 0 && json_object_is_type(value, json_type_int)) {
        return 1;
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(type, types[i].name) == 0) {
            return json_object_is_type(value, types[i].type);
        }
    }
    return 0;
}

static struct json_object *read_object(const char *path)
{
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return NULL;
    }
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    struct json_tokener *tokener = json_tokener_new();
    struct json_object *object = json_tokener_parse_ex(tokener, text, (int)size);
    size_t end = json_tokener_get_parse_end(tokener);
    json_tokener_free(tokener);
    while (end < size && isspace((unsigned char)text[end])) {
        end++;
    }
    if (object == NULL || end != size || !json_object_is_type(object, json_type_object)) {
        fprintf(stderr, "%s: not one JSON object alone: %.200s\n", path, text);
        return NULL;
    }
    return object;
}

static int join(struct json_object *object, const char *array, const char *field)
{
    struct json_object *list;
    struct json_object *value;
    if (!json_object_object_get_ex(object, array, &list)) {
        return 1;
    }
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        if (!json_object_object_get_ex(json_object_array_get_idx(list, i), field, &value)) {
            return 1;
        }
        fputs(json_object_get_string(value), stdout);
    }
    return 0;
}

int main(int argc, char **argv)
{
    int status = 0;
    struct json_object *object = argc < 2 ? NULL : read_object(argv[1]);
    if (object == NULL) {
        return 1;
    }
    if (argc == 5 && strcmp(argv[2], "--join") == 0) {
        status = join(object, argv[3], argv[4]);
        argc = 0;
    }
    for (int i = 2; i < argc; i++) {
        struct json_object *value;
        char *type = strchr(argv[i], ':');
        *type++ = '\0';
        if (!json_object_object_get_ex(object, argv[i], &value) || !has_type(value, type)) {
            fprintf(stderr, "%s: no field %s of type %s\n", argv[1], argv[i], type);
            status = 1;
        }
    }
    json_object_put(object);
    return status;
}
