/* SPDX-License-Identifier: MIT */
/* Architectures with experts that are known and do not run. */
#ifndef MOE_FAMILIES_FAMILIES_MISSING_H
#define MOE_FAMILIES_FAMILIES_MISSING_H

#include <stddef.h>

typedef struct moe_missing_family {
    const char *architecture;
    const char *name;    /* for people */
    const char *missing; /* what the engine does not have */
} moe_missing_family;

/* NULL if none has this architecture. */
const moe_missing_family *moe_missing_family_find(const char *architecture);
size_t moe_missing_family_count(void);
const moe_missing_family *moe_missing_family_at(size_t index);

#endif
