/* SPDX-License-Identifier: MIT */
/* Architectures with experts that this engine knows but cannot run. */
#ifndef MOE_FAMILIES_FAMILIES_MISSING_H
#define MOE_FAMILIES_FAMILIES_MISSING_H

#include <stddef.h>

typedef struct moe_missing_family {
    const char *architecture;
    const char *name;    /* for people */
    const char *missing; /* what the engine would need for it */
} moe_missing_family;

/* Finds the architecture in the list; NULL if it is not there. */
const moe_missing_family *moe_missing_family_find(const char *architecture);
size_t moe_missing_family_count(void);
const moe_missing_family *moe_missing_family_at(size_t index);

#endif
