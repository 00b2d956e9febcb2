/* SPDX-License-Identifier: MIT */
/* A template and its variables, as the case files and render_lines hold them. */
#ifndef MOE_TESTS_TEMPLATE_CASE_H
#define MOE_TESTS_TEMPLATE_CASE_H

#include <json-c/json.h>

#include "runtime/template/template.h"

/* Renders the case's "template" with its "variables", which are data, and its "markup", strings
 * that count as the template's. */
int template_case_render(struct json_object *asked, moe_template_output *out, moe_error *err);

#endif
