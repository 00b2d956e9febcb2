/* SPDX-License-Identifier: MIT */
/* Many engines in one process, opened, used and closed while system calls go wrong. Sessions write
 * the tokens that they write without faults, or a call fails with a message; when nothing goes
 * wrong any more, the same sessions go on where they were; nothing is left behind: descriptors,
 * threads, maps, memory. Run by fault_hunt.
 *
 * fault_api MODEL SIDECAR FOLDER SEED */
#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <moe/moe.h>

#include "tests/faults/fault_page.h"

#define N_SESSIONS   3
#define N_PROMPT     24
#define N_DECODE     20
#define N_LIVES      60
#define N_FAILURES   3  /* of steps, before the faults end */
#define N_TRIES      60 /* of steps, after that; of reads that hung the driver ends them */
#define LEAKED_BYTES 65536

typedef struct world {
    const char *model, *sidecar;
    char saved[128];
    fault_page *page;
    uint64_t random;
    int32_t expected[N_SESSIONS][N_DECODE];
    uint64_t n_calls[FAULT_CLASSES];
    bool may_leak; /* memory that a hung read may still write to */
    char told[1024];
} world;

static uint32_t below(world *w, uint32_t n)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (uint32_t)((w->random >> 20) % n);
}

static void tell(world *w, const char *what, const char *detail)
{
    fprintf(stderr, "fault_api: %s: %s\n", what, detail);
    w->told[0] = '\0';
}

static int n_entries(const char *path)
{
    DIR *folder = opendir(path);
    int n = 0;
    while (folder != NULL && readdir(folder) != NULL) {
        n++;
    }
    closedir(folder);
    return n;
}

typedef struct holdings {
    int n_fds, n_threads, n_maps;
    size_t bytes;
} holdings;

static int n_maps(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    int n = 0;
    for (int c = getc(file); c != EOF; c = getc(file)) {
        n += c == '\n';
    }
    fclose(file);
    return n;
}

static holdings count_holdings(void)
{
    struct mallinfo2 info = mallinfo2();
    return (holdings){n_entries("/proc/self/fd"), n_entries("/proc/self/task"), n_maps(),
                      info.uordblks + info.hblkhd};
}

static void ignore_note(const char *line, void *user)
{
    world *w = user;
    snprintf(w->told, sizeof w->told, "%s", line);
}

/* What an engine of the same text can be. */
static void choose_options(world *w, moe_engine_options *o, fault_profile profile)
{
    static const moe_io_kind ios[] = {MOE_IO_AUTO, MOE_IO_URING, MOE_IO_THREADS, MOE_IO_SYNC};
    static const moe_speculate drafts[] = {MOE_SPECULATE_OFF, MOE_SPECULATE_NGRAM,
                                           MOE_SPECULATE_SELF};
    bool varies = profile != PROFILE_NTH;
    moe_engine_options_init(o);
    o->model_path = w->model;
    o->device = "cpu";
    o->context = 256;
    o->prefill_chunk = varies ? 4 + below(w, 40) : 16;
    o->n_threads = varies ? 1 + below(w, 2) : 2;
    o->io = varies ? ios[below(w, 4)] : MOE_IO_AUTO;
    /* Where nothing hangs, what takes long is a machine that is busy. */
    o->io_timeout = profile == PROFILE_HANG ? 0.25 : 200;
    o->expert_cache_share = varies ? 0.5 + 0.25 * below(w, 3) : 0.5;
    bool with_sidecar = profile == PROFILE_LIE || (varies && below(w, 2) == 0);
    o->calibration = with_sidecar ? w->sidecar : "none";
    o->speculate = varies && with_sidecar ? drafts[below(w, 3)] : MOE_SPECULATE_OFF;
    o->log = ignore_note;
    o->user = w;
}

static int start(moe_session **session, moe_engine *engine, int which, moe_error *err)
{
    moe_session_options options;
    int32_t prompt[N_PROMPT];
    moe_session_options_init(&options);
    options.sampling.temperature = 0.0f;
    for (int i = 0; i < N_PROMPT; i++) {
        prompt[i] = (i * i * 7 + 31 * which) % 96; /* the smallest model's tokens */
    }
    int status = moe_session_create(session, engine, &options, err);
    return status != MOE_OK ? status : moe_session_feed(*session, prompt, N_PROMPT, err);
}

static void end_faults(world *w)
{
    atomic_store(&w->page->armed, 0);
    atomic_store(&w->page->let_go, 1);
}

/* Saved and loaded again, while writing may fail: one of both goes on. */
static void save_and_load(world *w, moe_engine *engine, moe_session **session)
{
    moe_session *loaded = NULL;
    moe_error err = {""};
    int status = moe_session_save(*session, w->saved, &err);
    if (status == MOE_OK) {
        status = moe_session_load(&loaded, engine, w->saved, &err);
    }
    if (status == MOE_OK) {
        moe_session_close(session);
        *session = loaded;
    } else if (err.message[0] == '\0') {
        w->page->n_wrong++;
        tell(w, "saving fails without a word", "");
    }
}

typedef struct life {
    moe_engine *engine;
    moe_session *sessions[N_SESSIONS];
    size_t n_taken[N_SESSIONS];
    int32_t tokens[N_SESSIONS][N_DECODE];
    int n_failures, n_tries;
} life;

static bool take(world *w, life *l)
{
    bool all = true;
    for (int i = 0; i < N_SESSIONS; i++) {
        size_t from = l->n_taken[i];
        l->n_taken[i] += moe_session_take(l->sessions[i], l->tokens[i] + from, N_DECODE - from);
        if (memcmp(l->tokens[i] + from, w->expected[i] + from,
                   (l->n_taken[i] - from) * sizeof(int32_t)) != 0) {
            w->page->n_wrong++;
            tell(w, "other tokens", "");
            return true;
        }
        all &= l->n_taken[i] == N_DECODE;
    }
    return all;
}

/* Steps until all is written. Faults end when they have made some steps fail. */
static void write_all(world *w, life *l)
{
    bool done = false;
    while (!done) {
        moe_error err = {""};
        int status = moe_step(l->engine, l->sessions, N_SESSIONS, &err);
        bool quiet = atomic_load(&w->page->armed) == 0;
        if (status != MOE_OK && err.message[0] == '\0') {
            w->page->n_wrong++;
            tell(w, "a step fails without a word", "");
        }
        l->n_failures += status != MOE_OK;
        bool may_time_out = atomic_load(&w->page->profile) == PROFILE_HANG;
        if (status != MOE_OK && quiet && !may_time_out && ++l->n_tries == N_TRIES) {
            w->page->n_gave_up++;
            tell(w, "steps fail although nothing goes wrong any more", err.message);
            return;
        }
        if (status != MOE_OK && quiet) {
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        }
        if (l->n_failures == N_FAILURES) {
            end_faults(w);
        }
        done = take(w, l);
        if (!done && below(w, 12) == 0) {
            int which = (int)below(w, N_SESSIONS);
            save_and_load(w, l->engine, &l->sessions[which]);
        }
    }
}

/* From opening to closing. */
static void live(world *w, fault_profile profile, uint64_t seed)
{
    life l = {0};
    moe_engine_options options;
    moe_error err = {""};
    choose_options(w, &options, profile);
    fault_page_set(w->page, profile, seed, w->n_calls);
    atomic_store(&w->page->armed, 1);
    int status = moe_engine_open(&l.engine, &options, &err);
    for (int i = 0; i < N_SESSIONS && status == MOE_OK; i++) {
        status = start(&l.sessions[i], l.engine, i, &err);
    }
    if (status == MOE_OK) {
        write_all(w, &l);
    } else if (err.message[0] == '\0') {
        w->page->n_wrong++;
        tell(w, "opening fails without a word", "");
    }
    if ((status != MOE_OK || l.n_failures > 0) && fault_profile_is_mild(profile)) {
        w->page->n_gave_up++;
        tell(w, "mild faults make it fail", err.message);
    }
    w->page->n_failed += status != MOE_OK || l.n_failures > 0;
    w->page->n_runs++;
    if (below(w, 2) == 0) {
        end_faults(w);
    }
    for (int i = 0; i < N_SESSIONS; i++) {
        moe_session_close(&l.sessions[i]);
    }
    moe_engine_close(&l.engine);
    end_faults(w);
}

/* Threads whose reads hung end soon after they are let go. */
static void check_holdings(world *w, const holdings *before, const char *when)
{
    char text[256];
    holdings now = count_holdings();
    for (int i = 0; i < 12000 && (now.n_threads > before->n_threads || now.n_fds > before->n_fds);
         i++) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        now = count_holdings();
    }
    bool more = now.n_threads > before->n_threads || now.n_fds > before->n_fds;
    bool bytes = now.bytes > before->bytes + LEAKED_BYTES || now.n_maps > before->n_maps + 4;
    if (more || (bytes && !w->may_leak)) {
        w->page->n_leaks++;
        snprintf(text, sizeof text,
                 "descriptors %d -> %d, threads %d -> %d, maps %d -> %d, bytes "
                 "%zu -> %zu",
                 before->n_fds, now.n_fds, before->n_threads, now.n_threads, before->n_maps,
                 now.n_maps, before->bytes, now.bytes);
        tell(w, when, text);
    }
}

/* Without faults: what is to be written, and how many calls that takes. */
static bool make_expected(world *w)
{
    moe_engine_options options;
    moe_error err = {""};
    life l = {0};
    choose_options(w, &options, PROFILE_NTH);
    fault_page_set(w->page, PROFILE_NTH, 0, NULL);
    atomic_store(&w->page->armed, 1);
    int status = moe_engine_open(&l.engine, &options, &err);
    for (int i = 0; i < N_SESSIONS && status == MOE_OK; i++) {
        status = start(&l.sessions[i], l.engine, i, &err);
        while (status == MOE_OK && l.n_taken[i] < N_DECODE) {
            status = moe_step(l.engine, &l.sessions[i], 1, &err);
            l.n_taken[i] += moe_session_take(l.sessions[i], w->expected[i] + l.n_taken[i],
                                             N_DECODE - l.n_taken[i]);
        }
        moe_session_close(&l.sessions[i]);
    }
    moe_engine_close(&l.engine);
    atomic_store(&w->page->armed, 0);
    for (int class = 0; class < FAULT_CLASSES; class ++) {
        w->n_calls[class] = w->page->n_calls[class];
    }
    if (status != MOE_OK) {
        tell(w, "without faults", err.message);
    }
    return status == MOE_OK;
}

int main(int argc, char **argv)
{
    const char *page_path = getenv("FAULT_PAGE");
    static world w;
    w.page = page_path != NULL ? fault_page_map(page_path) : NULL;
    if (argc != 5 || w.page == NULL) {
        fprintf(stderr, "usage: FAULT_PAGE=FILE fault_api MODEL SIDECAR FOLDER SEED\n");
        return 2;
    }
    w.model = argv[1];
    w.sidecar = argv[2];
    snprintf(w.saved, sizeof w.saved, "%s/session", argv[3]);
    uint64_t seed = strtoull(argv[4], NULL, 10);
    fault_profile profile = (fault_profile)atomic_load(&w.page->profile);
    w.random = seed * 0x9e3779b97f4a7c15u + 1;
    w.may_leak = profile == PROFILE_HANG;
    if (!make_expected(&w) || !make_expected(&w)) {
        return 1;
    }
    holdings before = count_holdings();
    uint32_t n = profile == PROFILE_HANG ? N_LIVES / 10 : N_LIVES;
    for (uint32_t i = 0; i < n; i++) {
        live(&w, profile, seed * 1000 + i);
        check_holdings(&w, &before, "left behind");
        if (w.page->n_leaks > 0) {
            break;
        }
    }
    remove(w.saved);
    return 0;
}
