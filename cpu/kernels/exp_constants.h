/* SPDX-License-Identifier: MIT */
/* The numbers of moe_exp(), shared by every implementation of it.
 *
 * exp(r) on |r| <= ln(2)/2 is 1 + r + r^2 (C2 + r (C3 + r (C4 + r (C5 + r C6)))), as one Horner
 * chain by fmaf. The coefficients minimise the greatest relative error (3.2e-9, a twentieth of an
 * ulp). They were rounded to float one by one, and after each rounding the remaining ones were
 * fitted again. */
#ifndef MOE_CPU_EXP_CONSTANTS_H
#define MOE_CPU_EXP_CONSTANTS_H

#define MOE_EXP_LOG2E  0x1.715476p+0f
#define MOE_EXP_LN2_HI 0x1.62e43p-1f /* n * LN2_HI and x - n * LN2_HI are exact under fmaf */
#define MOE_EXP_LN2_LO -0x1.05c61p-29f
#define MOE_EXP_C2     0x1.fffffcp-2f
#define MOE_EXP_C3     0x1.55549p-3f
#define MOE_EXP_C4     0x1.5558a6p-5f
#define MOE_EXP_C5     0x1.123aeep-7f
#define MOE_EXP_C6     0x1.6a5a5cp-10f
#define MOE_EXP_LOW    -87.0f /* exp(x) is 0 for lower x; exp(-87) is still a normal number */
#define MOE_EXP_HIGH   88.0f  /* exp(x) is +infinity for higher x */

#endif
