/* SPDX-License-Identifier: MIT */
/* The entry point of every fuzz target, which libFuzzer or fuzz_main.c calls. */
#ifndef MOE_TESTS_FUZZ_H
#define MOE_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
