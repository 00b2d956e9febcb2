/* SPDX-License-Identifier: MIT */
#include "runtime/engine/trial_gate.h"

#include <stdlib.h>

#define FIRST_HOLD 64u
#define MOST_HOLD  1024u
/* On has to be better by this share, or it is off: it costs what is not measured here too. */
#define LEAST_GAIN 0.01

void moe_trial_gate_init(moe_trial_gate *gate)
{
    *gate = (moe_trial_gate){.hold = FIRST_HOLD};
}

static bool run_is_on(uint32_t n)
{
    return n / MOE_TRIAL_RUN % 2 == 0;
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

static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, compare);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static void decide(moe_trial_gate *gate)
{
    double off = median(gate->costs[0], gate->n_costs[0]);
    double on = median(gate->costs[1], gate->n_costs[1]);
    bool pays = on < (1.0 - LEAST_GAIN) * off;
    bool same = gate->n_trials > 0 && pays == gate->on;
    gate->hold = !same ? FIRST_HOLD : gate->hold < MOST_HOLD ? 2 * gate->hold : MOST_HOLD;
    gate->on = pays;
    gate->holding = true;
    gate->left = gate->hold;
    gate->n_trials++;
}

void moe_trial_gate_note(moe_trial_gate *gate, double cost)
{
    if (gate->holding) {
        gate->n_held_on += gate->on;
        gate->n_held_off += !gate->on;
        if (--gate->left == 0) {
            gate->holding = false;
            gate->n = gate->n_costs[0] = gate->n_costs[1] = 0;
        }
        return;
    }
    bool on = run_is_on(gate->n);
    if (gate->n % MOE_TRIAL_RUN != 0) {
        gate->costs[on][gate->n_costs[on]++] = cost;
    }
    if (++gate->n == MOE_TRIAL_RUN * MOE_TRIAL_RUNS) {
        decide(gate);
    }
}
