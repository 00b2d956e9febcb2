/* SPDX-License-Identifier: MIT */
/* A step: the next chunk of a long prompt's panel, if there is one, and a pass over the other
 * sessions. */
#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/engine/session_panel.h"
#include "runtime/engine/session_wake.h"
#include "runtime/engine/step.h"

/* Checks that every session belongs to this engine and occurs once. */
static int check_sessions(const moe_engine *engine, moe_session *const *sessions, size_t n,
                          moe_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (sessions[i] == NULL) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "session %zu is NULL", i);
        }
        if (sessions[i]->engine != engine) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "session %zu belongs to another engine", i);
        }
        for (size_t k = 0; k < i; k++) {
            if (sessions[k] == sessions[i]) {
                return moe_fail(err, MOE_ERR_ARGUMENT, "sessions %zu and %zu are the same", k, i);
            }
        }
    }
    return MOE_OK;
}

size_t moe_step_leave_out_cancelled(moe_session **sessions, size_t n)
{
    size_t n_left = 0;
    for (size_t i = 0; i < n; i++) {
        sessions[i]->was_cancelled = atomic_exchange(&sessions[i]->cancelled, false);
        if (!sessions[i]->was_cancelled) {
            sessions[n_left++] = sessions[i];
        } else {
            moe_panel_leave(sessions[i]);
        }
    }
    return n_left;
}

/* Called after a chunk failed. If the chunk's session was cancelled, the session leaves the panel,
 * and the others stay in it: the chunk has changed nothing of theirs. Otherwise the
 * panel is dropped. No timeline changes. Returns whether the step goes on: the session is not in
 * this step, and the panel still has prompts. */
static bool leave_or_drop(moe_engine *engine, moe_session *const *sessions, size_t n, int status)
{
    moe_session *session = moe_panel_at_work(engine)->session;
    if (status != MOE_ERR_CANCELLED || engine->panel.part == MOE_PANEL_EXPERTS ||
        !atomic_load_explicit(&session->cancelled, memory_order_relaxed)) {
        moe_panel_drop(engine);
        return false;
    }
    moe_panel_leave(session);
    size_t i = 0;
    while (i < n && sessions[i] != session) {
        i++;
    }
    return i == n && engine->panel.n_prompts > 0;
}

/* Carries out the next chunk. */
static int run_chunk(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err)
{
    const moe_panel_chunk chunk = moe_panel_next_chunk(engine);
    moe_step_work s = {.engine = engine,
                       .sessions = &moe_panel_at_work(engine)->session,
                       .n_sessions = 1,
                       .panel = &chunk};
    int status = moe_step_run(&s, false, moe_step_keep_logits, &s, err);
    if (status == MOE_OK) {
        moe_panel_go_on(engine, s.n_rows);
    } else if (leave_or_drop(engine, sessions, n, status)) {
        status = MOE_OK;
    }
    moe_step_free(&s);
    return status;
}

/* Carries out chunks until the panel has used its turn; all chunks of a panel with no more rows
 * than a pass, which ends within a step, as the pass would. */
static int run_chunks(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err)
{
    const bool at_once = engine->panel.n_rows <= engine->prefill_chunk;
    int status = MOE_OK;
    while (status == MOE_OK && (at_once || engine->panel.left_ns >= 0) &&
           !moe_panel_is_done(engine)) {
        const uint64_t begin = moe_now_ns();
        status = run_chunk(engine, sessions, n, err);
        engine->panel.left_ns -= (int64_t)(moe_now_ns() - begin);
    }
    return status;
}

/* Called after each pass of other sessions: gives the panel its share of time. If the panel's last
 * chunk overran its share, subtracts the excess. */
static void give_turn(moe_engine *engine, bool any_others, uint64_t others_ns)
{
    const double others = engine->panel_others / 100.0;
    int64_t *left = &engine->panel.left_ns;
    const int64_t turn = (int64_t)((double)others_ns * (1.0 - others) / others);
    *left = !any_others ? 0 : *left < 0 ? *left + turn : turn;
}

/* Runs a pass of the sessions that do not wait for a panel. */
static int pass_of_others(moe_engine *engine, moe_session *const *sessions, size_t n,
                          moe_error *err)
{
    moe_session **others = moe_calloc(n, sizeof *others);
    size_t n_others = 0;
    bool any_busy = false;
    if (others == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a step of %zu sessions", n);
    }
    for (size_t i = 0; i < n; i++) {
        if (!moe_panel_has(engine, sessions[i]) && !moe_panel_is_awaited(sessions[i])) {
            others[n_others++] = sessions[i];
            any_busy |= moe_session_n_unevaluated(sessions[i]) > 0;
        }
    }
    const uint64_t begin = moe_now_ns();
    int status = n_others > 0 ? moe_step_pass(engine, others, n_others, err) : MOE_OK;
    give_turn(engine, any_busy, moe_now_ns() - begin);
    free(others);
    return status;
}

static int try_step(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err)
{
    if (!moe_panel_find(engine, sessions, n)) {
        return moe_step_pass(engine, sessions, n, err);
    }
    MOE_TRY(run_chunks(engine, sessions, n, err));
    MOE_TRY(pass_of_others(engine, sessions, n, err));
    if (moe_panel_is_done(engine)) {
        const moe_step_work s = {.engine = engine, .sessions = sessions, .n_sessions = n};
        MOE_TRY(moe_step_take_panel(engine, engine->panel.n_rows, err));
        moe_step_sample(&s);
    }
    return MOE_OK;
}

/* Repeats the step without sessions that were cancelled meanwhile, until it completes. */
static int step_uncancelled(moe_engine *engine, moe_session **sessions, size_t n, moe_error *err)
{
    size_t n_left = moe_step_leave_out_cancelled(sessions, n);
    int status = MOE_OK;
    do {
        if (n_left == 0 && n > 0) {
            return moe_fail(err, MOE_ERR_CANCELLED, "the step was cancelled");
        }
        n = n_left;
        status = try_step(engine, sessions, n, err);
        n_left = status == MOE_ERR_CANCELLED ? moe_step_leave_out_cancelled(sessions, n) : n;
    } while (n_left < n);
    return status;
}

int moe_step(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err)
{
    if (engine == NULL || (sessions == NULL && n > 0)) {
        return moe_fail_null(err, "moe_step", "engine or sessions");
    }
    MOE_TRY(check_sessions(engine, sessions, n, err));
    MOE_TRY(moe_memory_follow_look(&engine->follow, moe_now_ns(), err));
    moe_session *few[8] = {NULL};
    moe_session **list = n <= sizeof few / sizeof few[0] ? few : moe_calloc(n, sizeof *list);
    if (list == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a step of %zu sessions", n);
    }
    for (size_t i = 0; i < n; i++) {
        list[i] = sessions[i];
    }
    int status = moe_park_wake(engine, list, n, err);
    status = status == MOE_OK ? step_uncancelled(engine, list, n, err) : status;
    if (list != few) {
        free(list);
    }
    return status;
}
