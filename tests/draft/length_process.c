/* SPDX-License-Identifier: MIT */
#include "tests/draft/length_process.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/base/random.h"

typedef struct draft {
    uint32_t n, n_verified;
    double confidence[UINT8_MAX];
    double survival[UINT8_MAX];
} draft;

static void make_draft(const length_process *p, moe_length_control *control, double accept,
                       uint32_t limit, moe_random *random, draft *d)
{
    double path = 1;
    d->n = d->n_verified = 0;
    if (limit == 0 || moe_random_uniform(random) < p->no_match) {
        return;
    }
    while (d->n < limit && moe_length_continues(control, d->n, path, 0)) {
        double c = accept + p->spread * (2 * moe_random_uniform(random) - 1);
        c = c < 0 ? 0 : c > 1 ? 1 : c;
        d->confidence[d->n] = c;
        path *= moe_length_survival(control, d->n + 1, (float)c);
        d->survival[d->n++] = path;
        accept *= p->fade;
    }
    d->n_verified = d->n > 0 ? moe_length_cut(control, d->survival, NULL, d->n, 0) : 0;
}

static uint32_t accept_tokens(const draft *d, moe_length_control *control, moe_random *random)
{
    uint32_t accepted = 0;
    bool stands = true;
    for (uint32_t i = 0; i < d->n_verified && stands; i++) {
        stands = moe_random_uniform(random) < d->confidence[i];
        accepted += stands;
        moe_length_note_token(control, i + 1, (float)d->confidence[i], stands);
    }
    return accepted;
}

static void hear_silent_draft(const length_process *p, moe_length_control *control, double accept,
                              moe_random *random)
{
    if (moe_random_uniform(random) >= p->no_match) {
        bool stands = moe_random_uniform(random) < accept;
        moe_length_note_token(control, 1, (float)accept, stands);
    }
}

void length_process_run(const length_process *p, moe_length_control *control,
                        length_outcome *outcome)
{
    moe_random random;
    moe_random_seed(&random, p->seed);
    double true_cost = 0, plain_cost = 0;
    *outcome = (length_outcome){0};
    bool silently = p->draft == 0;
    for (uint32_t t = 0; t < p->n_iterations; t++) {
        bool other = p->phase > 0 && t / p->phase % 2 == 1;
        uint32_t limit = moe_length_begin(control, 1);
        draft d;
        double accept = other ? p->accept_other : p->accept;
        make_draft(p, control, accept, limit, &random, &d);
        if (d.n_verified == 0 && silently && moe_length_hears_silent_drafts(control)) {
            hear_silent_draft(p, control, accept, &random);
        }
        uint32_t n_passes = p->draft > 0 ? d.n : 0;
        double scale = 1 + p->drift * t / p->n_iterations;
        double exact_draft = scale * p->draft * n_passes;
        double exact_verify = scale * (1 + p->row * d.n_verified);
        double noise = 1 + p->noise * (2 * moe_random_uniform(&random) - 1);
        noise *= moe_random_uniform(&random) < p->outliers ? 5 : 1;
        uint32_t accepted = accept_tokens(&d, control, &random);
        moe_length_iteration iteration = {.n_sequences = 1,
                                          .n_drafted = d.n,
                                          .n_draft_passes = n_passes,
                                          .n_rows = 1 + d.n_verified,
                                          .n_emitted = 1 + accepted,
                                          .draft_cost = exact_draft * noise,
                                          .verify_cost = exact_verify * noise,
                                          .fresh = -1,
                                          .resident_share = -1};
        moe_length_end(control, &iteration);
        outcome->tokens += 1 + accepted;
        outcome->cost += (exact_draft + exact_verify) * noise;
        true_cost += exact_draft + exact_verify;
        plain_cost += scale * (1 + accepted);
    }
    outcome->excess = true_cost / plain_cost - 1;
}

moe_length_control *length_control_new(const moe_length_options *options)
{
    moe_length_control *control = NULL;
    moe_error err = {""};
    assert_int_equal(moe_length_control_create(&control, options, &err), MOE_OK);
    return control;
}

moe_length_control *length_control_of(moe_length_kind kind, uint32_t max_draft)
{
    moe_length_options options = {.kind = kind, .max_draft = max_draft};
    return length_control_new(&options);
}

length_process length_process_random(uint64_t seed)
{
    moe_random random;
    moe_random_seed(&random, seed);
    length_process p = {.seed = seed, .n_iterations = N_ITERATIONS, .fade = 0.9};
    bool hopeless = seed % 3 == 0;
    p.accept = hopeless ? 0 : moe_random_uniform(&random);
    p.accept_other = hopeless ? 0 : moe_random_uniform(&random);
    p.phase = seed % 2 == 0 ? 0 : 20 + (uint32_t)(400 * moe_random_uniform(&random));
    p.spread = hopeless ? 0 : 0.3 * moe_random_uniform(&random);
    p.row = 0.05 + 1.2 * moe_random_uniform(&random);
    p.draft = seed % 4 == 0 ? 0 : 0.3 * moe_random_uniform(&random);
    p.no_match = seed % 5 == 0 ? 0.7 : 0;
    p.noise = 0.1 + 0.2 * moe_random_uniform(&random);
    p.outliers = 0.03 * moe_random_uniform(&random);
    p.drift = 2 * moe_random_uniform(&random) - 0.7;
    return p;
}
