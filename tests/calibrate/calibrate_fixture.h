/* SPDX-License-Identifier: MIT */
/* An oracle model that is calibrated once, for tests of calibrations and of engines that use them.
 * The sidecar is "cal.gguf" of a folder of its own, with "trace.jsonl", the routing that was
 * recorded beside it. */
#ifndef TESTS_CALIBRATE_FIXTURE_H
#define TESTS_CALIBRATE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <moe/calibrate.h>

#include "cpu/kernels/matmul.h"
#include "runtime/sidecar/calibration.h"
#include "runtime/families/families.h"
#include "runtime/program/program.h"
#include "tests/engine/engine_fixture.h"

#define N_TOKENS 700 /* more than a window, and no multiple of one */

typedef struct calibrated_model {
    const char *path; /* set by main() */
    char folder[64];
    int32_t text[N_TOKENS];
    moe_engine_info info; /* its strings are gone */
} calibrated_model;

extern calibrated_model calibrated;

/* What cmocka's group calls: calibrates, and removes the folder. */
int calibrated_setup(void **state);
int calibrated_teardown(void **state);

/* out: [128]. Returns it. */
const char *in_folder(char *out, const char *name);
/* Of the model, without a sidecar. */
moe_engine_options engine_options(void);
/* Of the fixture's text. */
moe_calibrate_options calibrate_options(const char *path);
void calibrate(const moe_engine_options *engine_opts, const char *path);
moe_calibration *load(const char *path);
/* malloc()ed. */
uint8_t *read_file(const char *path, size_t *size);
void assert_same_file(const char *a, const char *b);

/* The model's file, for what is looked up behind the engine's back. */
typedef struct model_file {
    moe_gguf *gguf;
    moe_model_config config;
    moe_tensor_map map;
    moe_matmul_kernels kernels;
} model_file;

void open_model(model_file *m);
void close_model(model_file *m);

#endif
