/* SPDX-License-Identifier: MIT */
#include "cli_score.h"

#include "cli_engine.h"
#include "cli_interrupt.h"

int cli_score_open(moe_session **session, moe_engine *engine)
{
    moe_session_options session_options;
    moe_error err = {""};
    moe_session_options_init(&session_options);
    session_options.evaluate_only = true;
    int status = moe_session_create(session, engine, &session_options, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    cli_interrupt_watch(*session);
    return CLI_EXIT_OK;
}

void cli_score_close(moe_session **session)
{
    cli_interrupt_watch(NULL);
    moe_session_close(session);
}

int cli_score(moe_session *session, const int32_t *tokens, size_t n, moe_logits_fn visit,
              void *user)
{
    moe_error err = {""};
    int status = moe_session_truncate(session, 0, &err);
    if (status == MOE_OK) {
        status = moe_session_score(session, tokens, n, visit, user, &err);
    }
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}
