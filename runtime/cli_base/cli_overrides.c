/* SPDX-License-Identifier: MIT */
#include "cli_overrides.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli_fail.h"

static const char *const types[] = {[MOE_METADATA_INT] = "int:",
                                    [MOE_METADATA_FLOAT] = "float:",
                                    [MOE_METADATA_BOOL] = "bool:",
                                    [MOE_METADATA_TEXT] = "str:"};
#define N_TYPES (sizeof types / sizeof types[0])

/* Finds the type of the override that begins at text. Returns where the type begins; NULL if no
 * override begins at text. */
static char *find_type(char *text, moe_metadata_type *type)
{
    char *equals = text + strcspn(text, ",=");
    for (size_t i = 0; *equals == '=' && i < N_TYPES; i++) {
        if (strncmp(equals + 1, types[i], strlen(types[i])) == 0) {
            *type = (moe_metadata_type)i;
            return equals + 1;
        }
    }
    return NULL;
}

/* Finds the comma behind the override at text, or its end. A comma belongs to a string unless
 * another override follows it. */
static char *find_end(char *text)
{
    moe_metadata_type type;
    char *end = strchr(text, ',');
    while (end != NULL && find_type(end + 1, &type) == NULL) {
        end = strchr(end + 1, ',');
    }
    return end != NULL ? end : text + strlen(text);
}

static bool read_value(const char *value, moe_metadata_override *o)
{
    char *end = NULL;
    errno = 0;
    switch (o->type) {
    case MOE_METADATA_TEXT:
        o->value.text = value;
        return true;
    case MOE_METADATA_BOOL:
        o->value.flag = strcmp(value, "true") == 0;
        return o->value.flag || strcmp(value, "false") == 0;
    case MOE_METADATA_INT:
        o->value.integer = strtoll(value, &end, 10);
        return end != value && *end == '\0' && errno == 0;
    default:
        o->value.real = strtod(value, &end);
        return end != value && *end == '\0' && isfinite(o->value.real);
    }
}

static int read_one(char *text, moe_metadata_override *o)
{
    char *type = find_type(text, &o->type);
    if (type == NULL || type == text + 1 || !read_value(strchr(type, ':') + 1, o)) {
        return cli_fail(CLI_EXIT_USAGE,
                        "metadata override '%s' must be KEY=TYPE:VALUE, TYPE being int, float, "
                        "bool (true or false) or str",
                        text);
    }
    type[-1] = '\0';
    o->key = text;
    return CLI_EXIT_OK;
}

int cli_overrides_read(cli_overrides *overrides, const cli_text_list *given)
{
    int code = CLI_EXIT_OK;
    overrides->text = *given;
    overrides->n = 0;
    char *text = given->text[0] != '\0' ? overrides->text.text : NULL;
    while (text != NULL && code == CLI_EXIT_OK) {
        char *end = find_end(text);
        char *next = *end == ',' ? end + 1 : NULL;
        *end = '\0';
        code = read_one(text, &overrides->list[overrides->n++]);
        text = next;
    }
    return code;
}
