/* SPDX-License-Identifier: MIT */
/* Renders chat templates: the part of the Jinja language that they use, with the settings and
 * functions of the transformers library.
 *
 * A template comes from a downloaded file and is not trusted. Its steps, memory and depth are
 * bounded, and an error in it gives a message that names the line. The result says for every byte
 * whether the template wrote it or whether it came from the caller's data. */
#ifndef MOE_TEMPLATE_TEMPLATE_H
#define MOE_TEMPLATE_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>

#include "runtime/base/allowance_charge.h"

/* A variable of the template. */
typedef struct moe_template_variable {
    const char *name;
    const char *text; /* JSON, or, where is_markup, the string itself */
    size_t size;
    bool is_markup; /* a string that counts as written by the template: bos_token, eos_token */
} moe_template_variable;

typedef struct moe_template_input {
    const char *source; /* size bytes */
    size_t size;
    const moe_template_variable *variables; /* if two have the same name, the later one counts */
    size_t n_variables;
    /* A JSON object whose members are variables too, none of them named above; or NULL. */
    const char *more_variables;
    /* Roles that count as written by the template when messages[].role is one of them, because
     * templates build control tokens from them ("<|" + role + "|>"). NULL-terminated. */
    const char *const *markup_roles;
    int64_t now; /* seconds since 1970, local time, for strftime_now() */
    /* Accept messages as clients of OpenAI's interface write them. Reasoning is given under each
     * name that templates use. Arguments of tool calls that are JSON in a string become objects,
     * which still print as that string. Contents in parts of text become one text for a template
     * that does not handle parts. */
    bool adapt_messages;
    /* Whether the rendered text ends where the content of the last message ends, so that the
     * model continues that message. */
    bool continue_final_message;
    moe_allowance *allowance; /* within its own bounds, too; NULL: those of this folder alone */
} moe_template_input;

/* A part of the rendered text whose bytes all have the same origin. */
typedef struct moe_template_span {
    size_t size;
    bool is_markup; /* the template wrote it */
} moe_template_span;

typedef struct moe_template_output {
    char *text; /* size bytes and a NUL */
    size_t size;
    moe_template_span *spans; /* sizes add up to size */
    size_t n_spans;
} moe_template_output;

/* MOE_ERR_ARGUMENT if a variable is not valid JSON or the template refused the conversation
 * (raise_exception); MOE_ERR_UNSUPPORTED if the template is wrong, needs something that is not
 * supported, or exceeds a limit. Release *out with moe_template_output_free(). */
int moe_template_render(const moe_template_input *input, moe_template_output *out, moe_error *err);
/* Returns how many bytes the output takes; they stay charged to the allowance. */
uint64_t moe_template_output_bytes(const moe_template_output *out);
void moe_template_output_free(moe_template_output *out);

#endif
