/* SPDX-License-Identifier: MIT */
/* Keeps the sessions of finished answers, for prompts that begin in the same way. */
#ifndef SERVER_SESSIONS_H
#define SERVER_SESSIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/moe.h>

#include "server.h"
#include "server_disk.h"

typedef struct server_sessions {
    struct {
        moe_session *session;
        uint64_t last_used; /* of clock */
        bool saved;         /* it is on disk, or there is no disk folder */
    } idle[SERVER_MOST_PARALLEL];
    uint32_t n_idle;
    uint64_t clock;    /* counts sessions that were kept */
    server_disk *disk; /* NULL: finished prompts are not kept on disk */
} server_sessions;

/* The session that a job needs. */
typedef struct server_wanted {
    const int32_t *tokens; /* [n_tokens] the prompt */
    size_t n_tokens;
    const moe_sampling *sampling;
    bool is_new;         /* every token of the prompt is to be evaluated now */
    bool evaluates_only; /* nothing is sampled */
} server_wanted;

/* Returns a session for a prompt: one that continues from the idle or active session with the
 * most in common, or a new one. Closes idle sessions so that there are at most `parallel`
 * sessions. If this fails, *out may still be a session, which the caller must close. */
int server_sessions_get(server_sessions *sessions, moe_engine *engine, uint32_t parallel,
                        moe_session *const *active, uint32_t n_active, const server_wanted *wanted,
                        moe_session **out, moe_error *err);
void server_sessions_keep(server_sessions *sessions, moe_session *session);
/* Writes one idle session to the disk that is not there yet. Returns false if there is none. */
bool server_sessions_save_one(server_sessions *sessions);
bool server_sessions_has_unsaved(const server_sessions *sessions);
/* Closes the idle session that was used longest ago, but never `except`. Returns false if there
 * is none. */
bool server_sessions_close_oldest(server_sessions *sessions, const moe_session *except);

#endif
