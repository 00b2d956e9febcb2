/* SPDX-License-Identifier: MIT */
/* Brings messages into the shape that templates are written for. */
#ifndef MOE_TEMPLATE_JINJA_MESSAGES_H
#define MOE_TEMPLATE_JINJA_MESSAGES_H

#include "runtime/template/jinja_value.h"

/* Changes `messages` as moe_template_input describes. */
void jinja_prepare_messages(jinja_context *c, jinja_value messages);

/* Finds where the rendered text must end so that the model continues the last message. Call it only
 * with input->continue_final_message. Ends the rendering if that message is not in the text. */
size_t jinja_find_continuation(jinja_context *c, const jinja_builder *out);

#endif
