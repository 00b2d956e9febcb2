/* SPDX-License-Identifier: MIT */
/* moe_plan_speed(): the time of a token from the bytes that it moves. */
#include <moe/speed.h>

#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"

static double seconds(double bytes, double bytes_per_s)
{
    return bytes_per_s > 0.0 ? bytes / bytes_per_s : 0.0;
}

/* The time that a token waits for the disk. */
static double disk_seconds(const moe_memory_plan *plan, const moe_speed_rates *rates, double bytes)
{
    if (rates->disk_bytes_per_s <= 0.0 || plan->expert_bytes == 0) {
        return seconds(bytes, rates->disk_bytes_per_s);
    }
    const double n_experts = bytes * (double)plan->experts / (double)plan->expert_bytes;
    const double s = bytes / rates->disk_bytes_per_s + n_experts * rates->wait_s_per_expert;
    return s > 0.0 ? s : 0.0;
}

static moe_speed_estimate estimate_of(const moe_memory_plan *plan, const moe_speed_rates *rates)
{
    double bytes = (double)plan->token_expert_bytes;
    double missing = bytes * (1.0 - plan->expected_hit_rate);
    double read = bytes * (1.0 - plan->expected_memory_hit_rate);
    bool moves = plan->has_device_memory && missing > 0.0;
    moe_speed_estimate estimate = {
        .disk_bytes = (uint64_t)read,
        .link_bytes = moves ? (uint64_t)missing : 0,
        .disk_s = disk_seconds(plan, rates, read),
        .link_s = moves ? seconds(missing, rates->link_bytes_per_s) : 0.0,
        .compute_s = rates->compute_s_per_token,
        .complete = rates->compute_s_per_token > 0.0 &&
                    (read <= 0.0 || rates->disk_bytes_per_s > 0.0) &&
                    (!moves || rates->link_bytes_per_s > 0.0),
    };
    double total = estimate.disk_s + estimate.link_s + estimate.compute_s;
    estimate.tokens_per_s = total > 0.0 ? 1.0 / total : 0.0;
    return estimate;
}

int moe_plan_speed(const moe_memory_plan *plan, const moe_speed_rates *rates,
                   moe_speed_estimate *estimate)
{
    moe_memory_plan own_plan = {0};
    moe_speed_rates own_rates = {0};
    MOE_TRY(moe_struct_take(&moe_kind_memory_plan, &own_plan, plan, NULL));
    MOE_TRY(moe_struct_take(&moe_kind_speed_rates, &own_rates, rates, NULL));
    moe_speed_estimate made = estimate_of(&own_plan, &own_rates);
    return moe_struct_give(&moe_kind_speed_estimate, estimate, &made, NULL);
}
