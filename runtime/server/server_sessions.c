/* SPDX-License-Identifier: MIT */
#include "server_sessions.h"

#include <moe/embedding.h>
#include <moe/grammar.h>

/* A prompt reuses a session only if the two have at least this many tokens in common. */
enum { LEAST_SHARED_TOKENS = 16 };
/* A file is read only if it has at least this many more tokens in common with the prompt than any
 * session. */
enum { LEAST_GAIN = 48 };

void server_sessions_keep(server_sessions *s, moe_session *session)
{
    (void)moe_session_set_grammar(session, NULL, NULL); /* releases the grammar's memory */
    (void)moe_session_watch(session, NULL, NULL, NULL);
    s->idle[s->n_idle].session = session;
    s->idle[s->n_idle].saved = s->disk == NULL;
    s->idle[s->n_idle++].last_used = ++s->clock;
}

/* Removes the session from the list of idle sessions. */
static void remove_idle(server_sessions *s, const moe_session *session)
{
    uint32_t i = 0;
    while (s->idle[i].session != session) {
        i++;
    }
    s->idle[i] = s->idle[--s->n_idle];
}

static uint32_t find_unsaved(const server_sessions *s)
{
    uint32_t i = 0;
    while (i < s->n_idle && s->idle[i].saved) {
        i++;
    }
    return i;
}

bool server_sessions_has_unsaved(const server_sessions *s)
{
    return find_unsaved(s) < s->n_idle;
}

bool server_sessions_save_one(server_sessions *s)
{
    uint32_t i = find_unsaved(s);
    if (i == s->n_idle) {
        return false;
    }
    s->idle[i].saved = true;
    server_disk_keep(s->disk, s->idle[i].session);
    return true;
}

bool server_sessions_close_oldest(server_sessions *s, const moe_session *except)
{
    uint32_t oldest = s->n_idle;
    for (uint32_t i = 0; i < s->n_idle; i++) {
        if (s->idle[i].session != except &&
            (oldest == s->n_idle || s->idle[i].last_used < s->idle[oldest].last_used)) {
            oldest = i;
        }
    }
    if (oldest == s->n_idle) {
        return false;
    }
    moe_session *session = s->idle[oldest].session;
    if (!s->idle[oldest].saved) {
        server_disk_keep(s->disk, session);
    }
    remove_idle(s, session);
    moe_session_close(&session);
    return true;
}

static size_t shared_tokens(const moe_session *session, const server_wanted *wanted)
{
    const int32_t *tokens = moe_session_tokens(session);
    size_t n = moe_session_n_tokens(session);
    size_t most = n < wanted->n_tokens ? n : wanted->n_tokens;
    size_t shared = 0;
    while (shared < most && tokens[shared] == wanted->tokens[shared]) {
        shared++;
    }
    return shared;
}

/* Returns the session with the longest common beginning with the prompt, idle ones before active
 * ones. NULL: no session has enough in common. */
static moe_session *most_alike(const server_sessions *s, moe_session *const *active,
                               uint32_t n_active, const server_wanted *wanted, bool *is_idle)
{
    moe_session *best = NULL;
    size_t most = LEAST_SHARED_TOKENS - 1;
    *is_idle = false;
    for (uint32_t i = 0; i < s->n_idle + n_active; i++) {
        bool idle = i < s->n_idle;
        moe_session *session = idle ? s->idle[i].session : active[i - s->n_idle];
        size_t shared = shared_tokens(session, wanted);
        if (shared > most) {
            best = session;
            most = shared;
            *is_idle = idle;
        }
    }
    return best;
}

/* Loads a session from a file if the file has far more in common with the prompt than any
 * session. Returns whether it did. */
static bool read_from_disk(server_sessions *s, uint32_t parallel, uint32_t n_active,
                           const moe_session *source, const server_wanted *wanted,
                           moe_session **out)
{
    size_t here = source == NULL ? 0 : shared_tokens(source, wanted);
    size_t there = server_disk_shared(s->disk, wanted->tokens, wanted->n_tokens);
    if (there < LEAST_SHARED_TOKENS || there < here + LEAST_GAIN ||
        (n_active + s->n_idle >= parallel && !server_sessions_close_oldest(s, NULL))) {
        return false;
    }
    return server_disk_load(s->disk, wanted->tokens, wanted->n_tokens, out) == MOE_OK;
}

static int create(server_sessions *s, moe_engine *engine, uint32_t parallel, uint32_t n_active,
                  const server_wanted *wanted, moe_session **out, moe_error *err)
{
    moe_session_options options;
    if (n_active + s->n_idle >= parallel) {
        (void)server_sessions_close_oldest(s, NULL);
    }
    moe_session_options_init(&options);
    options.sampling = *wanted->sampling;
    options.evaluate_only = wanted->evaluates_only;
    return moe_session_create(out, engine, &options, err);
}

int server_sessions_get(server_sessions *s, moe_engine *engine, uint32_t parallel,
                        moe_session *const *active, uint32_t n_active, const server_wanted *wanted,
                        moe_session **out, moe_error *err)
{
    bool is_idle;
    if (wanted->is_new) {
        return create(s, engine, parallel, n_active, wanted, out, err);
    }
    moe_session *source = most_alike(s, active, n_active, wanted, &is_idle);
    if (read_from_disk(s, parallel, n_active, source, wanted, out)) {
        return moe_session_set_sampling(*out, wanted->sampling, err);
    }
    source = most_alike(s, active, n_active, wanted, &is_idle); /* a session may have been closed */
    /* Continue the idle session itself only if the prompt shares at least half of it. Otherwise
     * copy it, because the rest of it may be useful for other prompts. */
    bool continues = is_idle && 2 * shared_tokens(source, wanted) >= moe_session_n_tokens(source);
    bool room =
        n_active + s->n_idle < parallel || (!continues && server_sessions_close_oldest(s, source));
    if (is_idle && (continues || !room)) {
        remove_idle(s, source);
        *out = source;
        return moe_session_set_sampling(source, wanted->sampling, err);
    }
    if (source != NULL && moe_session_fork(out, source, NULL) == MOE_OK) {
        return moe_session_set_sampling(*out, wanted->sampling, err);
    }
    return create(s, engine, parallel, n_active, wanted, out, err);
}
