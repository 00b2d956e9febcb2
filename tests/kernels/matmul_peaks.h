/* SPDX-License-Identifier: MIT */
/* The most products of 8-bit integers that one core makes: loops of the one instruction that the
 * kernels of a level use, on registers, with nothing to load, unpack or scale. */
#ifndef MOE_TESTS_MATMUL_PEAKS_H
#define MOE_TESTS_MATMUL_PEAKS_H

#include "matmul_cases.h"

/* Multiply-adds a nanosecond, the best of several runs by this thread's CPU time; 0: not known for
 * the level. Call it only with a level of isa_levels(). */
double matmul_peak(const isa_level *level);

#endif
