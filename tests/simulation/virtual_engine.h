/* SPDX-License-Identifier: MIT */
/* A double of the engine's API (moe/moe.h): what a server calls, by the linker's --wrap. The text
 * of a session is a function of its tokens and its seed, so it can be known beforehand. It fails by
 * seed, and fails the run where a caller breaks the API's rules: two calls `in turn` at once, a
 * session that is used after its end, twice in a step, or by more sessions than were planned. */
#ifndef MOE_TESTS_VIRTUAL_ENGINE_H
#define MOE_TESTS_VIRTUAL_ENGINE_H

#include <moe/moe.h>

#include "tests/simulation/fibers.h"

enum {
    VE_CONTEXT = 96,
    VE_VOCABULARY = 64,
    VE_PAGE_TOKENS = 8,
    VE_SESSION_PAGES = 1 + VE_CONTEXT / VE_PAGE_TOKENS, /* of one with a full context */
    VE_CHUNK = 24,                                      /* rows of a step */
    VE_END = 0,                                         /* the token that ends a text */
    VE_MOST_SESSIONS = 4096,                            /* of a run */
    VE_MOST_PIECE = 400,                                /* bytes of a token's text */
    VE_TEXT_BYTES = VE_MOST_PIECE * VE_CONTEXT,
};

struct moe_session {
    bool alive, closing, cancelled, was_cancelled;
    int32_t tokens[VE_CONTEXT];
    size_t n, n_pending, taken; /* taken: what was sampled before has been handed out */
    uint64_t seed;
};

typedef struct virtual_engine {
    sim_dice dice;
    uint32_t parallel; /* sessions that were planned */
    uint32_t n_pages;  /* of memory that sessions may have */
    uint32_t n_lent;   /* of them, to others for the moment */
    uint32_t fail_per_mille, hang_per_mille, memory_per_mille;
    uint64_t step_ns;      /* most of one */
    uint32_t most_sampled; /* tokens of a step */
    uint64_t program_bytes;
    uint32_t padding; /* bytes more of each token's text, below VE_MOST_PIECE - 2 */
    uint64_t info_ns; /* most of a call that tells of the model; 0: they take no time */
    /* Before a step, of each session; and where one is to follow a prompt. */
    void (*stepping)(const moe_session *session, void *user);
    void (*following)(const int32_t *tokens, size_t n, void *user);
    void *user;

    moe_pass_progress_fn progress; /* told in the middle of each step */
    void *progress_user;
    const char *in_turn; /* the call under way */
    uint32_t n_alive, n_made;
    uint64_t n_steps, stepped_ns; /* the last step's end */
    uint64_t n_refused;           /* for want of pages */
    uint64_t n_no_memory;         /* MOE_ERR_MEMORY */
    moe_session sessions[VE_MOST_SESSIONS];
} virtual_engine;

extern virtual_engine the_engine;

/* Everything at its beginning. */
void ve_begin(uint64_t seed);
/* Lends what sessions do not have to others, or takes it back. One full session always fits. */
void ve_lend(uint32_t pages);
uint32_t ve_pages_used(void);
/* A call `in turn` begins and ends. */
void ve_enter(const char *call);
void ve_leave(void);
/* A session with these tokens, all evaluated; NULL: no memory. Within a call `in turn`. */
moe_session *ve_new_session(const int32_t *tokens, size_t n);
/* Waits as long as a device takes. */
void ve_work(uint64_t ns);

/* What comes next in a text. */
int32_t ve_next(const int32_t *tokens, size_t n, uint64_t seed);
/* The text of tokens, whole characters; cut_off: what is left of a character at the end is dropped.
 * Returns its size, at most `room`. */
size_t ve_spell(const int32_t *tokens, size_t n, bool cut_off, char *out, size_t room);

#endif
