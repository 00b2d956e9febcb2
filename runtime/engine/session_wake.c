/* SPDX-License-Identifier: MIT */
#include "runtime/engine/session_wake.h"

#include <string.h>

#include "runtime/base/error.h"
#include "runtime/engine/session_park.h"
#include "runtime/engine/session_timeline.h"

/* Called if a session's pages cannot be read back: the next steps evaluate its tokens again. */
static void evaluate_anew(moe_session *session)
{
    uint32_t n = session->n_evaluated;
    moe_park_give_up(session);
    memset(session->kv.first_page, 0, sizeof session->kv.first_page);
    session->replay_end = session->replay_end > n ? session->replay_end : n;
    session->n_evaluated = 0;
    session->engine->n_replayed++;
}

static int read_back(moe_session *session, moe_error *why)
{
    moe_engine *engine = session->engine;
    moe_session_file in = {.file = session->parked, .path = engine->park_folder, .err = why};
    bool begins_turn = session->states.begins_turn;
    rewind(in.file);
    int status = moe_kv_table_reserve(&engine->kv, &session->kv, 0, session->n_evaluated, why);
    status = status == MOE_OK ? moe_park_transfer(&in, session) : status;
    session->states.begins_turn = begins_turn;
    return status;
}

static int wake(moe_session *session, moe_error *err)
{
    MOE_TRY(moe_session_grant(session, session->n_tokens, session->n_tokens, err));
    moe_error why = {""};
    int status = read_back(session, &why);
    if (status == MOE_ERR_BUDGET || status == MOE_ERR_MEMORY) {
        moe_park_give_up(session);
        return moe_fail(err, status, "%s", why.message);
    }
    if (status != MOE_OK) {
        moe_park_tell(session->engine,
                      "what was parked cannot be read, so its tokens are evaluated again", session,
                      why.message);
        evaluate_anew(session);
    }
    moe_park_drop_file(session);
    return MOE_OK;
}

int moe_park_wake(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err)
{
    moe_park_use(engine, sessions, n);
    for (size_t i = 0; i < n; i++) {
        MOE_TRY(sessions[i]->parked != NULL ? wake(sessions[i], err) : MOE_OK);
    }
    return MOE_OK;
}
