/* SPDX-License-Identifier: MIT */
#include "tests/simulation/virtual_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/embedding.h>
#include <moe/chat.h>
#include <moe/grammar.h>
#include <moe/lab.h>
#include <moe/sampling.h>

#define HANG_NS 30000000000u

virtual_engine the_engine;

int __wrap_moe_engine_get_info(const moe_engine *engine, moe_engine_info *info);
int __wrap_moe_engine_get_stats(const moe_engine *engine, moe_engine_stats *stats);
int __wrap_moe_engine_get_tiers(const moe_engine *engine, uint8_t *tiers, size_t n, moe_error *err);
int __wrap_moe_engine_set_pass_progress(moe_engine *engine, moe_pass_progress_fn progress,
                                        void *user, moe_error *err);
bool __wrap_moe_token_is_end(const moe_engine *engine, int32_t token);
int __wrap_moe_session_create(moe_session **out, moe_engine *engine,
                              const moe_session_options *options, moe_error *err);
void __wrap_moe_session_close(moe_session **session);
int __wrap_moe_session_fork(moe_session **out, moe_session *session, moe_error *err);
int __wrap_moe_session_follow(moe_session *session, const int32_t *tokens, size_t n, size_t *n_kept,
                              moe_error *err);
int __wrap_moe_session_set_sampling(moe_session *session, const moe_sampling *sampling,
                                    moe_error *err);
int __wrap_moe_session_set_biases(moe_session *session, const moe_token_bias *biases, size_t n,
                                  moe_error *err);
int __wrap_moe_session_set_reports(moe_session *session, int n_top, moe_error *err);
int __wrap_moe_session_set_grammar(moe_session *session, moe_grammar *grammar, moe_error *err);
int __wrap_moe_session_watch(moe_session *session, moe_position_fn visit, void *user,
                             moe_error *err);
bool __wrap_moe_session_grammar_failed(const moe_session *session);
size_t __wrap_moe_session_take(moe_session *session, int32_t *tokens, size_t capacity);
size_t __wrap_moe_session_n_tokens(const moe_session *session);
size_t __wrap_moe_session_n_pending(const moe_session *session);
const int32_t *__wrap_moe_session_tokens(const moe_session *session);
bool __wrap_moe_session_is_full(const moe_session *session);
void __wrap_moe_session_cancel(moe_session *session);
int __wrap_moe_step(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err);

void ve_begin(uint64_t seed)
{
    memset(&the_engine, 0, offsetof(virtual_engine, sessions));
    the_engine.dice = sim_dice_of(seed, 70);
}

static int fail(moe_error *err, int status, const char *message)
{
    if (err != NULL) {
        snprintf(err->message, sizeof err->message, "%s", message);
    }
    return status;
}

/* ---- The API's rules ---- */

void ve_enter(const char *call)
{
    if (the_engine.in_turn != NULL) {
        sim_fail("%s during %s: such calls are made in turn", call, the_engine.in_turn);
    }
    the_engine.in_turn = call;
    sim_point();
}

void ve_leave(void)
{
    sim_point();
    the_engine.in_turn = NULL;
}

static void check_alive(const moe_session *session, const char *call)
{
    if (session < the_engine.sessions || session >= the_engine.sessions + VE_MOST_SESSIONS ||
        !session->alive) {
        sim_fail("%s of a session that is closed", call);
    }
}

/* Of a call that takes no time. */
static void touch(const moe_session *session, const char *call)
{
    check_alive(session, call);
    ve_enter(call);
    ve_leave();
}

/* ---- Memory ---- */

static uint32_t pages_of(size_t n_tokens)
{
    return 1 + (uint32_t)((n_tokens + VE_PAGE_TOKENS - 1) / VE_PAGE_TOKENS);
}

uint32_t ve_pages_used(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < the_engine.n_made; i++) {
        const moe_session *s = &the_engine.sessions[i];
        n += s->alive ? pages_of(s->n) : 0;
    }
    return n;
}

static uint32_t pages_free(void)
{
    uint32_t used = ve_pages_used() + the_engine.n_lent;
    if (used > the_engine.n_pages) {
        sim_fail("sessions have %u pages, and there are %u", used, the_engine.n_pages);
    }
    return the_engine.n_pages - used;
}

void ve_lend(uint32_t pages)
{
    uint32_t most = the_engine.n_pages - VE_SESSION_PAGES;
    the_engine.n_lent = 0;
    uint32_t left = pages_free();
    pages = pages < most ? pages : most;
    the_engine.n_lent = pages < left ? pages : left;
}

/* False: there are not so many more pages. */
static bool grant(uint32_t pages)
{
    bool granted = pages <= pages_free();
    the_engine.n_refused += !granted;
    return granted;
}

static bool is_out_of_memory(void)
{
    bool out = sim_chance(&the_engine.dice, the_engine.memory_per_mille);
    the_engine.n_no_memory += out;
    return out;
}

/* ---- Sessions ---- */

moe_session *ve_new_session(const int32_t *tokens, size_t n)
{
    if (the_engine.n_made == VE_MOST_SESSIONS) {
        sim_fail("more than %d sessions", VE_MOST_SESSIONS);
    }
    if (!grant(pages_of(n))) {
        return NULL;
    }
    moe_session *s = &the_engine.sessions[the_engine.n_made++];
    *s = (moe_session){.alive = true, .n = n, .taken = n};
    if (n > 0) {
        memcpy(s->tokens, tokens, n * sizeof *tokens);
    }
    if (++the_engine.n_alive > the_engine.parallel) {
        sim_fail("%u sessions, and %u were planned", the_engine.n_alive, the_engine.parallel);
    }
    return s;
}

int __wrap_moe_session_create(moe_session **out, moe_engine *engine,
                              const moe_session_options *options, moe_error *err)
{
    (void)engine;
    ve_enter("moe_session_create");
    bool refused = is_out_of_memory();
    *out = refused ? NULL : ve_new_session(NULL, 0);
    int status = *out != NULL ? MOE_OK
                              : fail(err, refused ? MOE_ERR_MEMORY : MOE_ERR_BUDGET,
                                     "no memory for a session");
    if (*out != NULL) {
        (*out)->seed = options->sampling.seed;
    }
    ve_leave();
    return status;
}

void __wrap_moe_session_close(moe_session **session)
{
    if (*session == NULL) {
        return;
    }
    check_alive(*session, "moe_session_close");
    (*session)->closing = true;
    ve_enter("moe_session_close");
    (*session)->alive = false;
    the_engine.n_alive--;
    *session = NULL;
    ve_leave();
}

int __wrap_moe_session_fork(moe_session **out, moe_session *session, moe_error *err)
{
    check_alive(session, "moe_session_fork");
    ve_enter("moe_session_fork");
    *out = is_out_of_memory() ? NULL : ve_new_session(session->tokens, session->n);
    if (*out != NULL) {
        (*out)->n_pending = session->n_pending;
        (*out)->seed = session->seed;
    }
    ve_leave();
    return *out != NULL ? MOE_OK : fail(err, MOE_ERR_BUDGET, "no memory for a second session");
}

int __wrap_moe_session_follow(moe_session *session, const int32_t *tokens, size_t n, size_t *n_kept,
                              moe_error *err)
{
    check_alive(session, "moe_session_follow");
    ve_enter("moe_session_follow");
    the_engine.following(tokens, n, the_engine.user);
    size_t kept = 0;
    while (kept < n - 1 && kept < session->n - session->n_pending &&
           session->tokens[kept] == tokens[kept]) {
        kept++;
    }
    session->n = session->taken = kept;
    session->n_pending = 0;
    int status = is_out_of_memory()                    ? MOE_ERR_MEMORY
                 : grant(pages_of(n) - pages_of(kept)) ? MOE_OK
                                                       : MOE_ERR_BUDGET;
    if (status == MOE_OK) {
        memcpy(session->tokens, tokens, n * sizeof *tokens);
        session->n = session->taken = n;
        session->n_pending = n - kept;
        *n_kept = kept;
    }
    ve_leave();
    return status == MOE_OK ? MOE_OK : fail(err, status, "no memory for the prompt");
}

int __wrap_moe_session_set_sampling(moe_session *session, const moe_sampling *sampling,
                                    moe_error *err)
{
    (void)err;
    touch(session, "moe_session_set_sampling");
    session->seed = sampling->seed;
    return MOE_OK;
}

int __wrap_moe_session_set_biases(moe_session *session, const moe_token_bias *biases, size_t n,
                                  moe_error *err)
{
    (void)biases;
    (void)n;
    touch(session, "moe_session_set_biases");
    return is_out_of_memory() ? fail(err, MOE_ERR_MEMORY, "no memory for biases") : MOE_OK;
}

int __wrap_moe_session_set_reports(moe_session *session, int n_top, moe_error *err)
{
    (void)n_top;
    (void)err;
    touch(session, "moe_session_set_reports");
    return MOE_OK;
}

int __wrap_moe_session_set_grammar(moe_session *session, moe_grammar *grammar, moe_error *err)
{
    (void)grammar;
    (void)err;
    touch(session, "moe_session_set_grammar");
    return MOE_OK;
}

int __wrap_moe_session_watch(moe_session *session, moe_position_fn visit, void *user,
                             moe_error *err)
{
    (void)visit;
    (void)user;
    (void)err;
    touch(session, "moe_session_watch");
    return MOE_OK;
}

bool __wrap_moe_session_grammar_failed(const moe_session *session)
{
    touch(session, "moe_session_grammar_failed");
    return false;
}

size_t __wrap_moe_session_take(moe_session *session, int32_t *tokens, size_t capacity)
{
    touch(session, "moe_session_take");
    size_t n = session->n - session->taken < capacity ? session->n - session->taken : capacity;
    memcpy(tokens, session->tokens + session->taken, n * sizeof *tokens);
    session->taken += n;
    return n;
}

size_t __wrap_moe_session_n_tokens(const moe_session *session)
{
    touch(session, "moe_session_n_tokens");
    return session->n;
}

size_t __wrap_moe_session_n_pending(const moe_session *session)
{
    touch(session, "moe_session_n_pending");
    return session->n_pending;
}

const int32_t *__wrap_moe_session_tokens(const moe_session *session)
{
    touch(session, "moe_session_tokens");
    return session->tokens;
}

bool __wrap_moe_session_is_full(const moe_session *session)
{
    touch(session, "moe_session_is_full");
    return session->n >= VE_CONTEXT;
}

void __wrap_moe_session_cancel(moe_session *session)
{
    check_alive(session, "moe_session_cancel");
    if (session->closing) {
        sim_fail("moe_session_cancel beside moe_session_close");
    }
    session->cancelled = true;
    sim_wake(&the_engine, true);
}

/* ---- Steps ---- */

static void end_work(void *user, uint32_t argument)
{
    (void)user;
    (void)argument;
    sim_wake(&the_engine, true);
}

void ve_work(uint64_t ns)
{
    const uint64_t end = sim_now_ns() + ns;
    sim_event(end, end_work, NULL, 0);
    while (sim_now_ns() < end) {
        (void)sim_block(&the_engine, SIM_NEVER);
    }
}

static size_t count_cancelled(moe_session *const *sessions, size_t n)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        found += sessions[i]->cancelled;
    }
    return found;
}

/* Waits for the device; a step of which all sessions are cancelled ends. */
static void wait_for_step(moe_session *const *sessions, size_t n, uint64_t ns)
{
    const uint64_t end = sim_now_ns() + ns;
    sim_event(end, end_work, NULL, 0);
    while (sim_now_ns() < end && count_cancelled(sessions, n) < n) {
        (void)sim_block(&the_engine, SIM_NEVER);
    }
}

static void evaluate(moe_session *s, size_t rows)
{
    s->n_pending -= s->n_pending < rows ? s->n_pending : rows;
    if (s->n_pending > 0) {
        return;
    }
    uint32_t most = 1 + sim_below(&the_engine.dice, the_engine.most_sampled);
    for (uint32_t i = 0; i < most && s->n < VE_CONTEXT; i++) {
        s->tokens[s->n] = ve_next(s->tokens, s->n, s->seed);
        s->n++;
        s->n_pending = 1;
    }
}

/* All of what the step may write, before any of it. */
static int make_step(moe_session *const *sessions, size_t n, moe_error *err)
{
    uint32_t pages = 0;
    size_t n_included = 0;
    for (size_t i = 0; i < n; i++) {
        size_t most = sessions[i]->n + the_engine.most_sampled;
        most = most < VE_CONTEXT ? most : VE_CONTEXT;
        pages += sessions[i]->was_cancelled ? 0 : pages_of(most) - pages_of(sessions[i]->n);
        n_included += !sessions[i]->was_cancelled;
    }
    if (!grant(pages)) {
        return fail(err, MOE_ERR_BUDGET, "no memory for the step");
    }
    size_t rows = VE_CHUNK / n_included > 0 ? VE_CHUNK / n_included : 1;
    for (size_t i = 0; i < n; i++) {
        if (!sessions[i]->was_cancelled) {
            evaluate(sessions[i], rows);
        }
    }
    return MOE_OK;
}

int __wrap_moe_step(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err)
{
    (void)engine;
    ve_enter("moe_step");
    if (n == 0) { /* lets slots follow the machine's memory, while nobody waits */
        ve_leave();
        return MOE_OK;
    }
    the_engine.n_steps++;
    if (n > the_engine.parallel) {
        sim_fail("a step of %zu sessions, and %u were planned", n, the_engine.parallel);
    }
    for (size_t i = 0; i < n; i++) {
        check_alive(sessions[i], "moe_step");
        for (size_t k = 0; k < i; k++) {
            if (sessions[k] == sessions[i]) {
                sim_fail("a session twice in a step");
            }
        }
        the_engine.stepping(sessions[i], the_engine.user);
    }
    bool hangs = sim_chance(&the_engine.dice, the_engine.hang_per_mille);
    bool fails = hangs || sim_chance(&the_engine.dice, the_engine.fail_per_mille);
    uint64_t ns = 100000 + sim_roll(&the_engine.dice) % the_engine.step_ns;
    wait_for_step(sessions, n, hangs ? HANG_NS : ns / 2);
    if (the_engine.progress != NULL) {
        const moe_pass_progress half = {.layer = 1, .n_layer = 2, .rows_done = 3, .n_rows = 6};
        the_engine.progress(&half, the_engine.progress_user);
        wait_for_step(sessions, n, ns / 2);
    }
    size_t n_cancelled = count_cancelled(sessions, n);
    for (size_t i = 0; i < n; i++) {
        sessions[i]->was_cancelled = sessions[i]->cancelled;
        sessions[i]->cancelled = false;
    }
    int status = n_cancelled == n     ? MOE_ERR_CANCELLED
                 : fails              ? fail(err, MOE_ERR_IO, "the disk fails")
                 : is_out_of_memory() ? fail(err, MOE_ERR_MEMORY, "no memory for the step")
                                      : make_step(sessions, n, err);
    the_engine.stepped_ns = sim_now_ns();
    ve_leave();
    return status;
}

/* ---- What it tells ---- */

static void wake(void *user, uint32_t argument)
{
    (void)argument;
    sim_wake(user, true);
}

int __wrap_moe_engine_get_info(const moe_engine *engine, moe_engine_info *info)
{
    (void)engine;
    if (the_engine.info_ns > 0) {
        char place;
        const uint64_t end = sim_now_ns() + sim_roll(&the_engine.dice) % the_engine.info_ns;
        sim_event(end, wake, &place, 0);
        while (sim_now_ns() < end) {
            (void)sim_block(&place, SIM_NEVER);
        }
    }
    *info = (moe_engine_info){.struct_size = info->struct_size,
                              .architecture = "",
                              .family = "",
                              .model_name = "",
                              .device = "cpu",
                              .kernels = "",
                              .n_layer = 2,
                              .n_vocab = VE_VOCABULARY,
                              .n_expert = 4,
                              .n_expert_used = 2,
                              .context = VE_CONTEXT,
                              .context_train = VE_CONTEXT,
                              .chat_template = "",
                              .policy = "",
                              .io = "",
                              .sidecar = ""};
    info->memory.program = the_engine.program_bytes;
    return MOE_OK;
}

int __wrap_moe_engine_get_stats(const moe_engine *engine, moe_engine_stats *stats)
{
    (void)engine;
    ve_enter("moe_engine_get_stats");
    stats->passes = the_engine.n_steps;
    ve_leave();
    return MOE_OK;
}

int __wrap_moe_engine_get_tiers(const moe_engine *engine, uint8_t *tiers, size_t n, moe_error *err)
{
    (void)engine;
    (void)err;
    ve_enter("moe_engine_get_tiers");
    memset(tiers, 1, n);
    ve_leave();
    return MOE_OK;
}

int __wrap_moe_engine_set_pass_progress(moe_engine *engine, moe_pass_progress_fn progress,
                                        void *user, moe_error *err)
{
    (void)engine;
    (void)err;
    ve_enter("moe_engine_set_pass_progress");
    the_engine.progress = progress;
    the_engine.progress_user = user;
    ve_leave();
    return MOE_OK;
}

bool __wrap_moe_token_is_end(const moe_engine *engine, int32_t token)
{
    (void)engine;
    return token == VE_END;
}
