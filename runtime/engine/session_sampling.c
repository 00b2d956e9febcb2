/* SPDX-License-Identifier: MIT */
/* What a session's sampler obeys, and what it tells. */
#include "runtime/base/error.h"
#include "runtime/engine/engine_state.h"

int moe_session_set_sampling(moe_session *session, const moe_sampling *sampling, moe_error *err)
{
    if (session == NULL) {
        return moe_fail_null(err, "moe_session_set_sampling", "session");
    }
    moe_sampling settings;
    moe_sampling_init(&settings);
    int status = moe_sampling_take(&settings, sampling, err);
    if (status == MOE_OK) {
        session->sampler.settings = settings;
        moe_sampler_seed(&session->sampler, settings.seed);
        if (session->draft != NULL) {
            moe_session_draft_seed(session->draft, &session->sampler.random);
        }
    }
    return status;
}

int moe_session_set_biases(moe_session *session, const moe_token_bias *biases, size_t n,
                           moe_error *err)
{
    if (session == NULL || (biases == NULL && n > 0)) {
        return moe_fail_null(err, "moe_session_set_biases", "session or biases");
    }
    return moe_sampler_set_biases(&session->sampler, biases, n, err);
}

int moe_session_set_reports(moe_session *session, int n_top, moe_error *err)
{
    if (session == NULL) {
        return moe_fail_null(err, "moe_session_set_reports", "session");
    }
    return moe_token_reports_set(&session->sampler.reports, n_top, err);
}

size_t moe_session_take_reports(moe_session *session, moe_token_report *reports, size_t capacity)
{
    if (session == NULL || reports == NULL) {
        return 0;
    }
    return moe_token_reports_take(&session->sampler.reports, session->n_tokens, reports, capacity);
}
