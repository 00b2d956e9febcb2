/* SPDX-License-Identifier: MIT */
/* One step's rows: which tokens of which sessions it evaluates. */
#ifndef MOE_ENGINE_STEP_ROWS_H
#define MOE_ENGINE_STEP_ROWS_H

#include "runtime/engine/engine_state.h"

/* The rows of a step. `sessions` is the caller's array. */
typedef struct moe_step_work {
    moe_engine *engine;
    moe_session *const *sessions;
    size_t n_sessions;
    const moe_panel_chunk *panel; /* the chunk that this step carries out; NULL: the step is a pass
                                   * over the sessions' next rows */
    uint32_t *n_rows_of;          /* [n_sessions] */
    uint32_t *first_row;          /* [n_sessions] */
    uint32_t n_rows;
    uint32_t n_tree_rows;
    uint32_t *depths; /* [n_rows] depth in a tree, else 0 */
    int32_t *tokens;
    moe_kv_row *kv_rows;
    moe_row_id *row_ids;
    uint32_t *logit_rows;
    uint32_t n_logit_rows;
    size_t *session_of;        /* [n_rows] */
    moe_state_run *state_runs; /* [n_sessions] */
    uint32_t n_state_runs;
    moe_session_draft **drafts; /* [n_sessions], of the sessions; NULL without speculation */
} moe_step_work;

/* True if the session's rows are its token tree. */
static inline bool moe_session_has_tree(const moe_session *session)
{
    return session->draft != NULL && session->draft->active;
}

/* Chooses rows of the sessions, and grants their memory. moe_step_free() releases, also after a
 * failure.
 */
int moe_step_prepare(moe_step_work *step, bool all_logits, moe_error *err);
void moe_step_free(moe_step_work *step);

#endif
