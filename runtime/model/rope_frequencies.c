/* SPDX-License-Identifier: MIT */
/* Frequencies of the rotary embedding: frequency i turns pair i by position * frequency radians.
 * Plain: base^(-2i / n_rot). Linear scaling divides all of them by the factor. YaRN (Peng et al.,
 * 2023, section 3.4) divides only those that turn fewer than beta_slow times over the original
 * context, keeps those that turn more than beta_fast times, and blends in between. */
#include <math.h>

#include "runtime/model/model_config.h"

/* The index, as a real number, of the pair that turns `turns` times over the original context. */
static double pair_turning(const moe_model_config *config, double turns)
{
    const double two_pi = 6.283185307179586;
    return config->n_rot * log(config->rope_original_context / (turns * two_pi)) /
           (2 * log((double)config->rope_freq_base));
}

void moe_rope_frequencies(const moe_model_config *config, const float *factors, float *frequencies)
{
    uint32_t n_pairs = config->n_rot / 2;
    double low = 0;
    double width = 1;
    if (config->rope_scaling == MOE_ROPE_SCALING_YARN) {
        low = pair_turning(config, (double)config->yarn_beta_fast);
        double high = pair_turning(config, (double)config->yarn_beta_slow);
        low = fmax(0, config->yarn_fractions ? low : floor(low));
        high = fmin(config->n_rot - 1, config->yarn_fractions ? high : ceil(high));
        width = fmax(0.001, high - low);
    }
    for (uint32_t i = 0; i < n_pairs; i++) {
        double frequency = pow((double)config->rope_freq_base, -2.0 * i / config->n_rot);
        if (factors != NULL) {
            frequency /= (double)factors[i];
        }
        double scaled = frequency / (double)config->rope_factor;
        if (config->rope_scaling == MOE_ROPE_SCALING_LINEAR) {
            frequency = scaled;
        } else if (config->rope_scaling == MOE_ROPE_SCALING_YARN) {
            double blend = fmin(1, fmax(0, (i - low) / width)); /* 0: kept, 1: divided */
            frequency = frequency * (1 - blend) + scaled * blend;
        }
        frequencies[i] = (float)frequency;
    }
}

void moe_window_frequencies(const moe_model_config *config, float *frequencies)
{
    for (uint32_t i = 0; i < config->window_n_rot / 2; i++) {
        frequencies[i] =
            (float)pow((double)config->window_freq_base, -2.0 * i / config->window_n_rot);
    }
}
