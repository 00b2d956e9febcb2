/* SPDX-License-Identifier: MIT */
/* The model families. A new family is a new row. */
#ifndef MOE_MODEL_FAMILIES_H
#define MOE_MODEL_FAMILIES_H

#include <stddef.h>

#include "runtime/model/family.h"

/* NULL if no family has this architecture. */
const moe_family *moe_family_find(const char *architecture);
size_t moe_family_count(void);
const moe_family *moe_family_at(size_t index);

#endif
