/* SPDX-License-Identifier: MIT */
#include "runtime/pass/trial_gate.h"

#include <stdlib.h>

#define FIRST_HOLD 128u
#define MOST_HOLD  1024u
/* "On" must be better by this share, because it has costs that are not measured here. */
#define LEAST_GAIN 0.01
#define MOST_BUSY  0.5
/* If the first run with it costs more by this share, there is no second one. */
#define CLEAR_LOSS 0.05
#define N_DEAREST  2u

void moe_trial_gate_init(moe_trial_gate *gate)
{
    *gate = (moe_trial_gate){.hold = FIRST_HOLD};
}

static bool run_is_on(uint32_t n)
{
    return n / MOE_TRIAL_RUN % 2 == 1;
}

bool moe_trial_gate_is_on(const moe_trial_gate *gate)
{
    return gate->holding ? gate->on : run_is_on(gate->n);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double mean_without_dearest(double *values, uint32_t n)
{
    double sum = 0.0;
    qsort(values, n, sizeof *values, compare);
    n -= n > 2 * N_DEAREST ? N_DEAREST : 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += values[i];
    }
    return sum / n;
}

/* The cost of a pass with the measure divided by the cost of a pass without it. */
static double relative_cost(moe_trial_gate *gate)
{
    double off = mean_without_dearest(gate->costs[0], gate->n_costs[0]);
    double on = mean_without_dearest(gate->costs[1], gate->n_costs[1]);
    return off > 0.0 ? on / off : 1.0;
}

static bool pays(moe_trial_gate *gate)
{
    double bytes_off = gate->bytes[0] / gate->work[0];
    double bytes_on = gate->bytes[1] / gate->work[1];
    double more = bytes_off > 0.0 && bytes_on > bytes_off ? bytes_on / bytes_off - 1.0 : 0.0;
    double busy = gate->busy_ns / gate->time_ns;
    return relative_cost(gate) < 1.0 - LEAST_GAIN - busy * more;
}

static void hold(moe_trial_gate *gate, bool on)
{
    bool same = gate->n_trials > 0 && on == gate->on;
    gate->hold = !same ? FIRST_HOLD : gate->hold < MOST_HOLD ? 2 * gate->hold : MOST_HOLD;
    gate->on = on;
    gate->holding = true;
    gate->left = gate->hold;
    gate->n_trials++;
}

void moe_trial_gate_note(moe_trial_gate *gate, const moe_trial_pass *pass)
{
    if (gate->holding) {
        gate->n_held_on += gate->on;
        gate->n_held_off += !gate->on;
        if (--gate->left == 0) {
            gate->holding = false;
            gate->n = gate->n_costs[0] = gate->n_costs[1] = 0;
            gate->busy_ns = gate->time_ns = 0.0;
            gate->bytes[0] = gate->bytes[1] = gate->work[0] = gate->work[1] = 0.0;
        }
        return;
    }
    bool on = run_is_on(gate->n);
    if (gate->n % MOE_TRIAL_RUN != 0) {
        gate->costs[on][gate->n_costs[on]++] = pass->time_ns / pass->work;
        gate->bytes[on] += pass->bytes;
        gate->work[on] += pass->work;
    }
    if (gate->n < MOE_TRIAL_RUN) {
        gate->busy_ns += pass->busy_ns;
        gate->time_ns += pass->time_ns;
    }
    gate->n++;
    bool no_room = gate->n == MOE_TRIAL_RUN && gate->busy_ns > MOST_BUSY * gate->time_ns;
    bool loses = gate->n == 2 * MOE_TRIAL_RUN && relative_cost(gate) > 1.0 + CLEAR_LOSS;
    if (no_room || loses) {
        hold(gate, false);
    } else if (gate->n == MOE_TRIAL_RUN * MOE_TRIAL_RUNS) {
        hold(gate, pays(gate));
    }
}
