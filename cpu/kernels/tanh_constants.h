/* SPDX-License-Identifier: MIT */
/* The numbers of moe_tanh(), shared by every implementation of it.
 *
 * Up to MOE_TANH_SMALL, tanh(x) is x + x^3 (C0 + z (C1 + z (C2 + z (C3 + z C4)))) with z = x^2. The
 * coefficients minimise the greatest relative error (6e-9). They were rounded to float one by one,
 * and after each rounding the remaining ones were fitted again. */
#ifndef MOE_CPU_TANH_CONSTANTS_H
#define MOE_CPU_TANH_CONSTANTS_H

#define MOE_TANH_SMALL 0.625f
#define MOE_TANH_C0    -0x1.55553p-2f
#define MOE_TANH_C1    0x1.11068ep-3f
#define MOE_TANH_C2    -0x1.b8265cp-5f
#define MOE_TANH_C3    0x1.518b14p-6f
#define MOE_TANH_C4    -0x1.72fc46p-8f

/* gelu(x) = x * sigmoid(x * (GELU_A + GELU_B * x^2)): twice sqrt(2 / pi), and 0.044715 of it. */
#define MOE_GELU_A 0x1.988454p+0f
#define MOE_GELU_B 0x1.2444f2p-4f

#endif
