/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include <json-c/json.h>
#include <moe/machine.h>
#include <moe/moe.h>

#include "cli_engine.h"
#include "cli_format.h"
#include "commands.h"

static bool ends_with(const char *text, const char *end)
{
    size_t size = strlen(text);
    size_t end_size = strlen(end);
    return size >= end_size && strcmp(text + size - end_size, end) == 0;
}

/* Prints "limit_bytes" as "limit", in units. */
static void print_label(const char *key, int indent)
{
    int size = (int)strlen(key) - (ends_with(key, "_bytes") ? 6 : 0);
    size = size == -1 || strcmp(key, "bytes") == 0 ? 4 : size;
    printf("%*s", indent, "");
    for (int i = 0; i < size; i++) {
        putchar(strcmp(key, "bytes") == 0 ? "size"[i] : key[i] == '_' ? ' ' : key[i]);
    }
}

static void print_scalar(const char *key, struct json_object *value)
{
    char text[CLI_FORMAT_SIZE];
    if (value == NULL) {
        fputs("-", stdout);
    } else if (json_object_is_type(value, json_type_boolean)) {
        fputs(json_object_get_boolean(value) ? "yes" : "no", stdout);
    } else if (json_object_is_type(value, json_type_int) && ends_with(key, "bytes")) {
        fputs(cli_format_bytes(text, json_object_get_uint64(value)), stdout);
    } else {
        fputs(json_object_get_string(value), stdout);
    }
}

/* Prints an element of a list on one line: its values with their names. */
static void print_element(struct json_object *element, int indent)
{
    const char *separator = "";
    printf("%*s", indent, "");
    json_object_object_foreach(element, key, value)
    {
        fputs(separator, stdout);
        print_label(key, 0);
        putchar(' ');
        print_scalar(key, value);
        separator = ", ";
    }
    putchar('\n');
}

/* Prints an object with its members. The library's description has three levels. */
static void print_object(struct json_object *object, int indent)
{
    json_object_object_foreach(object, key, value)
    {
        print_label(key, indent);
        if (json_object_is_type(value, json_type_object)) {
            putchar('\n');
            print_object(value, indent + 2);
        } else if (json_object_is_type(value, json_type_array)) {
            size_t n = json_object_array_length(value);
            puts(n == 0 ? ": none" : "");
            for (size_t i = 0; i < n; i++) {
                print_element(json_object_array_get_idx(value, i), indent + 2);
            }
        } else {
            fputs(": ", stdout);
            print_scalar(key, value);
            putchar('\n');
        }
    }
}

int cmd_devices(const cli_options *options)
{
    char *json = NULL;
    moe_error err = {""};
    int status = moe_machine_describe(options->model, &json, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    int code = CLI_EXIT_OK;
    if (options->json) {
        puts(json);
    } else {
        struct json_object *machine = json_tokener_parse(json);
        if (machine == NULL) {
            code = cli_fail(CLI_EXIT_FAILURE, "out of memory for the machine's description");
        } else {
            print_object(machine, 0);
        }
        json_object_put(machine);
    }
    moe_free(json);
    return code;
}
