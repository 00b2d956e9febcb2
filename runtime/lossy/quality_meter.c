/* SPDX-License-Identifier: MIT */
#include "runtime/lossy/quality_meter.h"

#include <math.h>

#include "runtime/base/random.h"

void moe_quality_meter_init(moe_quality_meter *meter, double share, double limit, uint64_t seed)
{
    *meter = (moe_quality_meter){.share = share, .limit = limit, .seed = seed};
}

bool moe_quality_meter_next(moe_quality_meter *meter)
{
    moe_random random;
    moe_random_seed(&random, meter->seed + meter->n_positions++);
    return moe_random_uniform(&random) < meter->share;
}

static double log_sum_exp(const float *x, uint32_t n, uint32_t *greatest)
{
    *greatest = 0;
    for (uint32_t i = 1; i < n; i++) {
        *greatest = x[i] > x[*greatest] ? i : *greatest;
    }
    double max = x[*greatest];
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        sum += exp((double)x[i] - max);
    }
    return max + log(sum);
}

void moe_quality_meter_add(moe_quality_meter *meter, const float *exact, const float *lossy,
                           uint32_t n_vocab)
{
    if (n_vocab == 0) {
        return;
    }
    uint32_t best_exact, best_lossy;
    double exact_total = log_sum_exp(exact, n_vocab, &best_exact);
    double lossy_total = log_sum_exp(lossy, n_vocab, &best_lossy);
    double kl = 0.0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        double log_p = (double)exact[i] - exact_total;
        double p = exp(log_p);
        kl += p > 0.0 ? p * (log_p - ((double)lossy[i] - lossy_total)) : 0.0;
    }
    /* Rounding can leave the KL of equal logits slightly below 0. Logits that are NaN count as
     * infinitely far from the exact ones. */
    kl = isnan(kl) ? INFINITY : kl > 0.0 ? kl : 0.0;
    meter->n_sampled++;
    meter->n_agreed += best_exact == best_lossy;
    meter->kl_sum += kl;
    meter->kl_max = kl > meter->kl_max ? kl : meter->kl_max;
    uint64_t n =
        meter->n_sampled > MOE_QUALITY_MIN_SAMPLES ? meter->n_sampled : MOE_QUALITY_MIN_SAMPLES;
    meter->exceeded |= meter->limit > 0.0 && meter->kl_sum > meter->limit * (double)n;
}

double moe_quality_meter_mean_kl(const moe_quality_meter *meter)
{
    return meter->n_sampled > 0 ? meter->kl_sum / (double)meter->n_sampled : NAN;
}
