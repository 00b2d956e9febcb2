/* SPDX-License-Identifier: MIT */
/* Sets a session's biases, grammar and reports, and returns the sampler's reports. */
#include <moe/grammar.h>

#include "runtime/base/error.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/engine/session_timeline.h"

int moe_session_set_sampling(moe_session *session, const moe_sampling *sampling, moe_error *err)
{
    if (session == NULL) {
        return moe_fail_null(err, "moe_session_set_sampling", "session");
    }
    moe_sampling settings;
    moe_sampling_init(&settings);
    MOE_TRY(moe_sampling_take(&settings, sampling, err));
    session->sampler.settings = settings;
    moe_sampler_seed(&session->sampler, settings.seed);
    if (session->draft != NULL) {
        moe_session_draft_seed(session->draft, &session->sampler.random);
    }
    return MOE_OK;
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

/* ---- Grammars ---- */

static moe_token_text token_text(const void *user, int32_t token)
{
    const moe_tokenizer *tokenizer = user;
    if ((uint32_t)token >= moe_tokenizer_n_tokens(tokenizer)) {
        return (moe_token_text){.data = ""};
    }
    moe_string_view piece = moe_tokenizer_piece(tokenizer, token, false);
    return (moe_token_text){piece.data, piece.size, moe_tokenizer_is_control(tokenizer, token),
                            moe_tokenizer_is_end(tokenizer, token)};
}

/* Makes the engine's token keys at the first grammar; the engine keeps them. */
static int need_token_keys(moe_engine *engine, moe_error *err)
{
    if (engine->token_keys != NULL) {
        return MOE_OK;
    }
    const moe_token_source source = {engine->config.n_vocab, token_text, engine->tokenizer};
    uint64_t sorting;
    const uint64_t bytes = moe_memory_border_cost(moe_token_keys_bytes(&source, &sorting));
    sorting = moe_memory_border_cost(sorting);
    MOE_TRY(moe_memory_border_take(&engine->border, bytes + sorting, err));
    int status = moe_token_keys_create(&engine->token_keys, &source, err);
    moe_memory_border_give(&engine->border, status == MOE_OK ? sorting : bytes + sorting);
    return status;
}

int moe_session_set_grammar(moe_session *session, moe_grammar *grammar, moe_error *err)
{
    if (session == NULL) {
        return moe_fail_null(err, "moe_session_set_grammar", "session");
    }
    moe_engine *engine = session->engine;
    MOE_TRY(grammar == NULL ? MOE_OK : moe_engine_need_tokenizer(engine, err));
    MOE_TRY(moe_session_take_grammar(session, grammar != NULL, err));
    if (grammar != NULL) {
        MOE_TRY(need_token_keys(engine, err));
    }
    return moe_sampler_set_grammar(&session->sampler, grammar, engine->token_keys,
                                   session->n_tokens, err);
}

bool moe_session_grammar_failed(const moe_session *session)
{
    if (session == NULL || session->sampler.constraint == NULL) {
        return false;
    }
    (void)moe_token_constraint_mask(session->sampler.constraint, session->tokens,
                                    session->n_tokens);
    return session->sampler.constraint->failed;
}
