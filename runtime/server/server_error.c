/* SPDX-License-Identifier: MIT */
#include "server_error.h"

#include <string.h>

#include <stdarg.h>
#include <stdio.h>

bool server_fail(server_error *error, unsigned status, const char *code, const char *field,
                 const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    snprintf(error->field, sizeof error->field, "%s", field == NULL ? "" : field);
    error->status = status;
    error->code = code;
    error->type = status == 401   ? "authentication_error"
                  : status == 403 ? "permission_error"
                  : status >= 500 ? "server_error"
                                  : "invalid_request_error";
    return false;
}

bool server_fail_status(server_error *error, int status, const moe_error *err)
{
    const char *message = err->message[0] != '\0' ? err->message : moe_status_name(status);
    switch (status) {
    case MOE_ERR_ARGUMENT:
    case MOE_ERR_UNSUPPORTED:
        return server_fail(error, 400, "invalid_value", NULL, "%s", message);
    case MOE_ERR_CONTEXT_FULL:
        return server_fail(error, 400, "context_length_exceeded", NULL, "%s", message);
    case MOE_ERR_BUDGET:
    case MOE_ERR_MEMORY:
    case MOE_ERR_CANCELLED:
        return server_fail(error, 503, "overloaded", NULL, "%s", message);
    default:
        return server_fail(error, 500, "engine_failed", NULL, "%s", message);
    }
}

const char *server_dropped_keyword(unsigned i)
{
    static const char *const keywords[] = {"not",
                                           "oneOf",
                                           "anyOf",
                                           "contains",
                                           "maxContains",
                                           "uniqueItems",
                                           "multipleOf",
                                           "a minimum or maximum of this size",
                                           "minProperties",
                                           "maxProperties",
                                           "minLength",
                                           "maxLength",
                                           "pattern",
                                           "format",
                                           "patternProperties",
                                           "unevaluatedProperties",
                                           "$dynamicRef",
                                           "$recursiveRef",
                                           "contentEncoding",
                                           "contentMediaType",
                                           "contentSchema",
                                           "unevaluatedItems",
                                           "the whole schema"};
    return i < sizeof keywords / sizeof keywords[0] ? keywords[i] : NULL;
}

uint32_t server_dropped_bits(const char *dropped)
{
    uint32_t bits = 0;
    for (const char *at = strchr(dropped, ' '); at != NULL; at = strchr(at + 1, ' ')) {
        for (unsigned i = 0; server_dropped_keyword(i) != NULL; i++) {
            const size_t size = strlen(server_dropped_keyword(i));
            bool begins = at[-1] == ':' || at[-1] == ',';
            bits |= begins && strncmp(at + 1, server_dropped_keyword(i), size) == 0 &&
                            strchr(" ,;", at[1 + size]) != NULL
                        ? UINT32_C(1) << i
                        : 0;
        }
    }
    return bits;
}

void server_note_dropped(char *dropped, const char *where, const char *words)
{
    size_t n = strlen(dropped);
    snprintf(dropped + n, SERVER_DROPPED_BYTES - n, "%s%s: %s", n > 0 ? "; " : "", where, words);
}
