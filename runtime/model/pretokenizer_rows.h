/* SPDX-License-Identifier: MIT */
#ifndef MOE_MODEL_PRETOKENIZER_ROWS_H
#define MOE_MODEL_PRETOKENIZER_ROWS_H

#include "runtime/model/pretokenizers.h"

extern const moe_pretokenizer moe_pretokenizer_rows[];
extern const size_t moe_pretokenizer_n_rows;

#endif
