/* SPDX-License-Identifier: MIT */
/* The controller that always drafts K tokens. Also has the functions for controllers that look at
 * no costs while drafting (length_fixed.h). */
#include "runtime/draft/length_fixed.h"

uint32_t moe_length_fixed_cut(const moe_length_control *control, const double *survival,
                              const double *fetch_cost, uint32_t n, uint32_t n_sharing)
{
    (void)n_sharing;
    (void)survival;
    (void)fetch_cost;
    return n < control->draft_length ? n : control->draft_length;
}

double moe_length_fixed_survival(const moe_length_control *control, uint32_t depth,
                                 float confidence)
{
    (void)control;
    (void)depth;
    return confidence;
}

bool moe_length_fixed_continues(const moe_length_control *control, uint32_t depth,
                                double path_survival, uint32_t n_sharing)
{
    (void)path_survival;
    (void)n_sharing;
    return depth < control->draft_length;
}

void moe_length_fixed_note(moe_length_control *control, uint32_t depth, float confidence,
                           bool accepted)
{
    (void)control;
    (void)depth;
    (void)confidence;
    (void)accepted;
}

static int static_create(moe_length_control *control, moe_error *err)
{
    (void)control;
    (void)err;
    return MOE_OK;
}

static uint32_t static_begin(moe_length_control *control)
{
    return control->options.max_draft;
}

/* Takes the baseline from iterations that happen to have no draft, because this controller never
 * stops drafting to measure it. */
static void static_end(moe_length_control *control, const moe_length_iteration *iteration)
{
    moe_length_base *base = control->base;
    if (moe_length_is_plain(iteration)) {
        double cost = iteration->verify_cost / iteration->n_sequences;
        base->n_samples += base->n_samples < MOE_LENGTH_WINDOW;
        base->cost += (cost - base->cost) / base->n_samples;
        base->age = 0;
    }
}

const moe_length_ops moe_length_static = {.create = static_create,
                                          .begin = static_begin,
                                          .survival = moe_length_fixed_survival,
                                          .continues = moe_length_fixed_continues,
                                          .cut = moe_length_fixed_cut,
                                          .note_token = moe_length_fixed_note,
                                          .end = static_end};
