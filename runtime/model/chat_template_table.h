/* SPDX-License-Identifier: MIT */
/* Templates for files without one, in the language of runtime/template. */
#ifndef MOE_MODEL_CHAT_TEMPLATE_TABLE_H
#define MOE_MODEL_CHAT_TEMPLATE_TABLE_H

#include <stddef.h>

typedef struct moe_known_template {
    const char *name;
    const char *source;
} moe_known_template;

extern const moe_known_template moe_known_templates[];
extern const size_t moe_n_known_templates;

#endif
