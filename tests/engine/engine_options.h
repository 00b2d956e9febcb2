/* SPDX-License-Identifier: MIT */
/* The structs attached to an engine's options, for tests: one of each kind in each test file. */
#ifndef MOE_TESTS_ENGINE_OPTIONS_H
#define MOE_TESTS_ENGINE_OPTIONS_H

#include <moe/lab.h>
#include <moe/lossy_modes.h>
#include <moe/moe.h>

/* The struct that hangs on the options; with none there yet, defaults are hung on them. Options
 * that were copied share it. */
static inline moe_lab_options *lab_of(moe_engine_options *options)
{
    static moe_lab_options lab;
    if (options->lab != &lab) {
        moe_lab_options_init(&lab);
        options->lab = &lab;
    }
    return &lab;
}

static inline moe_lossy_options *lossy_of(moe_engine_options *options)
{
    static moe_lossy_options lossy;
    if (options->lossy != &lossy) {
        moe_lossy_options_init(&lossy);
        options->lossy = &lossy;
    }
    return &lossy;
}

#endif
