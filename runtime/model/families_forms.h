/* SPDX-License-Identifier: MIT */
/* The second part of the table that moe_family_at() reads. */
#ifndef MOE_MODEL_FAMILIES_FORMS_H
#define MOE_MODEL_FAMILIES_FORMS_H

#include <stddef.h>

#include "runtime/model/family.h"

extern const moe_family moe_families_of_forms[];
extern const size_t moe_n_families_of_forms;

#endif
