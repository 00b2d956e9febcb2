/* SPDX-License-Identifier: MIT */
#include "cli_sampling.h"

#include <sys/random.h>

#include "cli_format.h"

static uint64_t random_seed(void)
{
    uint32_t seed;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed) {
        seed = (uint32_t)cli_now_ns();
    }
    return seed;
}

void cli_session_options(moe_session_options *session_options, const cli_options *options)
{
    moe_session_options_init(session_options);
    moe_sampling *sampling = &session_options->sampling;
    sampling->temperature = (float)options->temperature;
    sampling->top_k = (uint32_t)options->top_k;
    sampling->top_p = (float)options->top_p;
    sampling->min_p = (float)options->min_p;
    sampling->repeat_penalty = (float)options->repeat_penalty;
    sampling->seed = options->seed < 0 ? random_seed() : (uint64_t)options->seed;
    session_options->evaluate_only = options->predict == 0;
}
