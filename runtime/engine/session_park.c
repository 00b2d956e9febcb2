/* SPDX-License-Identifier: MIT */
#include "runtime/engine/session_park.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/engine/session_panel.h"

/* Opens a file in the folder and removes its name. NULL: errno says why it failed. */
static FILE *open_nameless(const char *folder)
{
    static const char name[] = "/moe-parked-XXXXXX";
    size_t size = strlen(folder) + sizeof name;
    char *path = moe_calloc(size, 1);
    if (path == NULL) {
        errno = ENOMEM;
        return NULL;
    }
    memcpy(path, folder, strlen(folder));
    memcpy(path + strlen(folder), name, sizeof name);
    int fd = mkostemp(path, O_CLOEXEC);
    FILE *file = NULL;
    if (fd >= 0) {
        (void)unlink(path);
        file = fdopen(fd, "w+b");
    }
    if (fd >= 0 && file == NULL) {
        close(fd);
    }
    free(path);
    return file;
}

int moe_park_open(moe_engine *engine, const char *folder, moe_error *err)
{
    if (folder == NULL) {
        return MOE_OK;
    }
    FILE *file = open_nameless(folder);
    if (file == NULL) {
        return moe_fail(err, MOE_ERR_IO,
                        "%s: no session can be parked there: %s; name a folder that can be written "
                        "to",
                        folder, strerror(errno));
    }
    fclose(file);
    engine->park_folder = moe_strdup(folder);
    return engine->park_folder != NULL ? MOE_OK
                                       : moe_fail(err, MOE_ERR_MEMORY, "no memory for a path");
}

void moe_park_tell(const moe_engine *engine, const char *what, const moe_session *session,
                   const char *why)
{
    char line[600];
    if (engine->log != NULL) {
        snprintf(line, sizeof line, "session %llu: %s: %.400s", (unsigned long long)session->number,
                 what, why);
        engine->log(line, engine->user);
    }
}

/* ---- The list ---- */

void moe_park_add(moe_session *session)
{
    moe_engine *engine = session->engine;
    session->used = engine->uses;
    session->next = engine->sessions;
    if (session->next != NULL) {
        session->next->before = session;
    }
    engine->sessions = session;
}

void moe_park_drop_file(moe_session *session)
{
    if (session->parked != NULL) {
        fclose(session->parked);
        session->parked = NULL;
    }
}

void moe_park_remove(moe_session *session)
{
    moe_park_drop_file(session);
    if (session->next != NULL) {
        session->next->before = session->before;
    }
    if (session->before != NULL) {
        session->before->next = session->next;
    } else if (session->engine->sessions == session) {
        session->engine->sessions = session->next;
    }
}

void moe_park_use(moe_engine *engine, moe_session *const *sessions, size_t n)
{
    engine->uses++;
    for (size_t i = 0; i < n; i++) {
        sessions[i]->used = engine->uses;
    }
}

/* ---- Parking ---- */

/* Whether the session has pages, or pages are reserved for its fed tokens. */
static bool has_pages(const moe_session *session)
{
    bool any = session->n_evaluated > 0;
    for (uint32_t g = 0; g < session->engine->kv.n_groups; g++) {
        any |= session->kv.n_promised[g] > 0;
    }
    return any;
}

/* Whether a session can be parked: not one with a drafting layer or lookahead, which keep further
 * positions beside the timeline. */
static bool can_park(const moe_session *session)
{
    const moe_session_draft *d = session->draft;
    return session->used < session->engine->uses && session->parked == NULL && has_pages(session) &&
           (d == NULL || (d->head == NULL && d->ahead == NULL));
}

static moe_session *waits_longest(const moe_engine *engine)
{
    moe_session *longest = NULL;
    for (moe_session *s = engine->sessions; s != NULL; s = s->next) {
        longest = can_park(s) && (longest == NULL || s->used < longest->used) ? s : longest;
    }
    return longest;
}

int moe_park_transfer(moe_session_file *f, moe_session *session)
{
    uint32_t *first = session->kv.first_page;
    MOE_TRY(moe_session_file_begin(f, f->err));
    int status = moe_session_file_pages(f, session, first);
    status = status == MOE_OK ? moe_session_file_state(f, session) : status;
    uint64_t sum = XXH3_64bits_digest(f->hash);
    uint64_t in_file = sum;
    status = status == MOE_OK ? moe_session_file_bytes(f, &in_file, sizeof in_file) : status;
    if (status == MOE_OK && f->writes && fflush(f->file) != 0) {
        status = moe_fail(f->err, MOE_ERR_IO, "%s: cannot write: %s", f->path, strerror(errno));
    }
    if (status == MOE_OK && in_file != sum) {
        status = moe_fail(f->err, MOE_ERR_FORMAT, "%s: the checksum does not match; it is damaged",
                          f->path);
    }
    moe_session_file_end(f);
    return status;
}

void moe_park_give_up(moe_session *session)
{
    moe_engine *engine = session->engine;
    moe_panel_leave(session);
    bool begins_turn = session->kv.begins_turn;
    uint32_t first[MOE_KV_GROUPS];
    memcpy(first, session->kv.first_page, sizeof first);
    moe_kv_table_free(&engine->kv, &session->kv);
    memcpy(session->kv.first_page, first, sizeof first);
    session->kv.begins_turn = begins_turn;
    begins_turn = session->states.begins_turn;
    moe_state_table_free(&engine->states, &session->states);
    session->states.begins_turn = begins_turn;
    moe_kv_pool_trim(&engine->kv);
}

bool moe_park_one(moe_engine *engine)
{
    moe_session *session = engine->park_folder != NULL ? waits_longest(engine) : NULL;
    if (session == NULL) {
        return false;
    }
    if (session->n_evaluated == 0) {
        moe_park_give_up(session); /* its next step reserves the pages again */
        return true;
    }
    moe_error why = {""};
    moe_session_file out = {.path = engine->park_folder, .err = &why, .writes = true};
    out.file = open_nameless(engine->park_folder);
    if (out.file == NULL) {
        moe_park_tell(engine, "is not parked", session, strerror(errno));
        return false;
    }
    if (moe_park_transfer(&out, session) != MOE_OK) {
        moe_park_tell(engine, "is not parked", session, why.message);
        fclose(out.file);
        return false;
    }
    session->parked = out.file;
    moe_park_give_up(session);
    engine->n_parked++;
    return true;
}
