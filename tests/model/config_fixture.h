/* SPDX-License-Identifier: MIT */
/* Model configs from metadata made up in memory. */
#ifndef TESTS_MODEL_CONFIG_FIXTURE_H
#define TESTS_MODEL_CONFIG_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/families/families.h"
#include "tests/model/gguf_builder.h"

/* The builder stays as it is. Returns what reading returned. */
int read_config(gguf_builder *b, moe_model_config *config, moe_error *err);
/* The config of a valid builder, which is freed. */
moe_model_config config_of(gguf_builder *b);
/* A small model of this architecture. */
gguf_builder *preset(const char *architecture);

#endif
