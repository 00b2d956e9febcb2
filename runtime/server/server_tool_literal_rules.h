/* SPDX-License-Identifier: MIT */
#ifndef SERVER_TOOL_LITERAL_RULES_H
#define SERVER_TOOL_LITERAL_RULES_H

#include "server_tool_rules.h"

/* Adds the rule arguments-NUMBER for a tool whose arguments are literals. */
bool server_rules_add_literals(server_rules_text *g, struct json_object *parameters, size_t number,
                               bool strict);

#endif
