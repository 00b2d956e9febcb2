/* SPDX-License-Identifier: MIT */
/* Brings messages into the shape that templates are written for. */
#ifndef MOE_TEMPLATE_JINJA_MESSAGES_H
#define MOE_TEMPLATE_JINJA_MESSAGES_H

#include "runtime/template/jinja_value.h"

/* Changes what `messages` holds, as moe_template_input asks for it. */
void jinja_prepare_messages(jinja_context *c, jinja_value messages);

/* Where the rendered text has to end for the last message to be continued. Call it only with
 * input->continue_final_message. Ends the rendering where that message is not in the text. */
size_t jinja_find_continuation(jinja_context *c, const jinja_builder *out);

#endif
