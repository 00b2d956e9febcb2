/* SPDX-License-Identifier: MIT */
#include "server_values.h"

#include <math.h>
#include <string.h>

bool server_wrong(server_reading *r, const char *what)
{
    return server_fail(r->error, 400, "invalid_value", r->name, "'%s' must be %s.", r->name, what);
}

bool server_unsupported(server_reading *r, struct json_object *value)
{
    (void)value;
    return server_fail(r->error, 400, "unsupported_parameter", r->name,
                       "'%s' is not supported by this server: leave it out.", r->name);
}

bool server_get_number(server_reading *r, struct json_object *value, double least, double most,
                       const char *what, double *out)
{
    if (!json_object_is_type(value, json_type_double) &&
        !json_object_is_type(value, json_type_int)) {
        return server_wrong(r, what);
    }
    *out = json_object_get_double(value);
    return isfinite(*out) && *out >= least && *out <= most ? true : server_wrong(r, what);
}

bool server_get_count(server_reading *r, struct json_object *value, int64_t least, int64_t most,
                      const char *what, int64_t *out)
{
    if (!json_object_is_type(value, json_type_int)) {
        return server_wrong(r, what);
    }
    *out = json_object_get_int64(value);
    return *out >= least && *out <= most ? true : server_wrong(r, what);
}

bool server_get_flag(server_reading *r, struct json_object *value, bool *out)
{
    if (!json_object_is_type(value, json_type_boolean)) {
        return server_wrong(r, "true or false");
    }
    *out = json_object_get_boolean(value);
    return true;
}

bool server_is_text(struct json_object *value, const char *text)
{
    return json_object_is_type(value, json_type_string) &&
           strcmp(json_object_get_string(value), text) == 0;
}

bool server_is_nothing(struct json_object *value)
{
    switch (json_object_get_type(value)) {
    case json_type_boolean:
        return !json_object_get_boolean(value);
    case json_type_int:
    case json_type_double:
        return json_object_get_double(value) == 0;
    case json_type_string:
        return json_object_get_string_len(value) == 0;
    case json_type_array:
        return json_object_array_length(value) == 0;
    case json_type_object:
        return json_object_object_length(value) == 0;
    default:
        return true;
    }
}
