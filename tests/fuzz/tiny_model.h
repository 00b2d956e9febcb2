/* SPDX-License-Identifier: MIT */
/* The smallest valid models, for seeds and for the engine that loads fuzzed sessions. */
#ifndef MOE_TESTS_FUZZ_TINY_MODEL_H
#define MOE_TESTS_FUZZ_TINY_MODEL_H

#include <moe/moe.h>

#include "tests/model/gguf_builder.h"

/* A family's model of one layer with experts, widths as small as the family allows. */
gb_model fuzz_tiny_model(const char *architecture);

/* An engine on a small model that lives in memory; context 128, one thread. Fails the program where
 * it cannot be opened. */
moe_engine *fuzz_tiny_engine(void);

#endif
