/* SPDX-License-Identifier: MIT */
/* For analysis: the shortlist that a budget would choose if it knew the experts' outputs (MoE-Spec,
 * section 3). It needs what a budget is there to avoid: every natural expert computed. */
#ifndef MOE_LOSSY_BUDGET_ORACLE_H
#define MOE_LOSSY_BUDGET_ORACLE_H

#include <stddef.h>

#include "runtime/pass/route_edit.h"

/* Greedily, n_list times: the natural expert that leaves the least of sum over rows of
 * |O* - sum over the row's listed natural experts of weight * output|^2, ties to the lower id; what
 * the rows' weights make of their natural experts' outputs is O*. It goes on where another expert
 * makes that worse. outs: [n_rows * n_used][n], of the natural picks; a dropped rank's row is not
 * read. gram: scratch, [n_rows][n_used][n_used]; gain: scratch, [n_expert]. list: [n_list] or more.
 * Returns how many were listed: n_list, or all natural experts when those are fewer. */
uint32_t moe_budget_oracle_list(const moe_route_edit *edit, const float *outs, uint32_t n,
                                double *gram, double *gain, uint32_t *list, uint32_t n_list);

/* sum |now - exact|^2 / sum |exact|^2 over [n_rows][n]; 0 where exact is all 0. */
double moe_relative_square_error(const float *exact, const float *now, size_t n_rows, size_t n);

#endif
