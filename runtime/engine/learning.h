/* SPDX-License-Identifier: MIT */
/* Counts of the routers' choices in use, for the sidecar (moe/calibrate.h, learning from use). */
#ifndef MOE_ENGINE_LEARNING_H
#define MOE_ENGINE_LEARNING_H

#include <moe/moe.h>

typedef struct moe_learning moe_learning;

/* NULL is allowed. */
void moe_learning_free(moe_learning **learning);

#endif
