/* SPDX-License-Identifier: MIT */
/* For analysis: the shortlist that a budget would choose if it knew the experts' outputs (MoE-Spec,
 * section 3). It needs the outputs of every natural expert, which a budget exists to avoid. */
#ifndef MOE_LAB_BUDGET_ORACLE_H
#define MOE_LAB_BUDGET_ORACLE_H

#include <stddef.h>

#include "runtime/pass/route_edit.h"

/* Chooses greedily, n_list times, the natural expert that leaves the least sum over rows of |O* -
 * sum over the row's listed natural experts of weight * output|^2, ties to the lower id. O* is the
 * weighted sum of the outputs of a row's natural experts. It continues even if another expert makes
 * the error larger. outs: [n_rows * n_used][n], of the natural picks; a dropped rank's row is not
 * read. gram: scratch, [n_rows][n_used][n_used]; gain: scratch, [n_expert]. list: [n_list] or more.
 * Returns how many were listed: n_list, or all natural experts if those are fewer. */
uint32_t moe_budget_oracle_list(const moe_route_edit *edit, const float *outs, uint32_t n,
                                double *gram, double *gain, uint32_t *list, uint32_t n_list);

/* sum |now - exact|^2 / sum |exact|^2 over [n_rows][n]; 0 if exact is all 0. */
double moe_relative_square_error(const float *exact, const float *now, size_t n_rows, size_t n);

#endif
