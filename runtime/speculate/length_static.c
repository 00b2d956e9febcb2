/* SPDX-License-Identifier: MIT */
/* Always K. */
#include "runtime/speculate/length_internal.h"

static void init(moe_length_control *c)
{
    (void)c;
}

static uint32_t begin(moe_length_control *c)
{
    return c->options.max_draft;
}

static bool go_on(const moe_length_control *c, uint32_t depth, double path_survival)
{
    (void)path_survival;
    return depth < c->length;
}

static uint32_t cut(const moe_length_control *c, const double *survival, const double *fetch_cost,
                    uint32_t n)
{
    (void)c;
    (void)survival;
    (void)fetch_cost;
    return n;
}

static void end(moe_length_control *c, const moe_length_iteration *iteration, double utility)
{
    (void)c;
    (void)iteration;
    (void)utility;
}

const moe_length_kind_ops moe_length_static = {.state_size = 1,
                                               .init = init,
                                               .begin = begin,
                                               .go_on = go_on,
                                               .cut = cut,
                                               .end = end,
                                               .restart = init};
