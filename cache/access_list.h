/* SPDX-License-Identifier: MIT */
/* Lists a trace's accesses as a cache sees them: for each layer of each pass, the distinct
 * experts in ascending order, with the rows that chose them and the time at which each expert is
 * used next. */
#ifndef MOE_CACHE_ACCESS_LIST_H
#define MOE_CACHE_ACCESS_LIST_H

#include <moe/policy.h>

#include "cache/trace_rows.h"

typedef struct moe_access_list {
    uint32_t n_layer;
    uint64_t n_passes;
    size_t *start;               /* [n_passes * n_layer + 1] */
    uint32_t *keys;              /* layer * n_expert + expert */
    moe_policy_access *accesses; /* one for each key */
    uint64_t *rows_before;       /* [n_passes + 1] rows of earlier passes */
} moe_access_list;

/* Gives the list of this trace, which is made once and kept until the trace is closed; it takes 36
 * bytes an access. Several threads may call it at once. is_sequential: a next use is the number of
 * an access; otherwise it is pass * n_layer + layer. */
int moe_access_list_of(const moe_access_list **list, const moe_trace *trace, bool is_sequential,
                       moe_error *err);

/* Returns the number of accesses in this trace. */
uint64_t moe_trace_count_accesses(const moe_trace *trace);

#endif
