/* SPDX-License-Identifier: MIT */
/* The constants of exp2.cuh, which the tests' reference in C shares. */
#ifndef MOE_CUDA_EXP2_CONSTANTS_H
#define MOE_CUDA_EXP2_CONSTANTS_H

#define MOE_LOG2_OF_E 1.44269502f
/* 2^f in [-1/2, 1/2] within 1.1e-7: 1 + f (C1 + f (C2 + ..)). Fitted to the least greatest error.
 */
#define MOE_EXP2_C1  0.693147004f
#define MOE_EXP2_C2  0.240222424f
#define MOE_EXP2_C3  0.0555073358f
#define MOE_EXP2_C4  0.00967151299f
#define MOE_EXP2_C5  0.00132647308f
#define MOE_EXP2_LOW -127.0f
/* 1.5 * 2^23: the sum of this and a small float is rounded to an integer, which is in its low bits.
 */
#define MOE_EXP2_ROUND 12582912.0f

#endif
