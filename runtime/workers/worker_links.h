/* SPDX-License-Identifier: MIT */
/* A coordinator's connections to its workers. A worker that fails, hangs or sends something wrong
 * is left out and tried again later: after a second, then after twice as long each time that it
 * fails again. Not thread-safe: only the thread that runs passes uses it. */
#ifndef MOE_WORKERS_WORKER_LINKS_H
#define MOE_WORKERS_WORKER_LINKS_H

#include <sys/socket.h>

#include <moe/types.h>

#include "runtime/workers/worker_choice.h"
#include "runtime/workers/worker_messages.h"

typedef enum moe_worker_state {
    MOE_WORKER_AWAY,    /* tried again at next_ns */
    MOE_WORKER_GREETED, /* HELLO was sent */
    MOE_WORKER_PROVED,  /* PROOF was sent */
    MOE_WORKER_READY,
    MOE_WORKER_REFUSED /* never tried again: it has another model, or another key */
} moe_worker_state;

typedef struct moe_worker_link {
    char name[96]; /* host:port, as it was given, or the address */
    struct sockaddr_storage address;
    socklen_t address_bytes;
    moe_worker_state state;
    uint64_t peer;     /* of the wire; 0: none */
    uint64_t since_ns; /* when it became GREETED or PROVED */
    uint64_t heard_ns; /* when its last answer to a job came */
    uint64_t next_ns, pause_ns;
    moe_nonce of_coordinator, of_worker;
    uint32_t max_rows;
    uint32_t n_slots;                   /* experts that its memory has room for */
    uint8_t *experts;                   /* bits of the experts that the worker has */
    uint8_t *able;                      /* bits of those that its file has */
    moe_worker_costs costs;             /* times from sending a job until its result comes */
    uint64_t n_jobs, n_experts, n_lost; /* jobs sent, their experts; how often it was left out */
    char refusal[160];
    bool was_ready;
} moe_worker_link;

typedef struct moe_worker_links {
    moe_wire *wire; /* owned */
    moe_worker_identity identity;
    moe_worker_key key;  /* its bytes must outlive the links */
    uint64_t timeout_ns; /* a worker whose answer takes longer is left out */
    uint64_t pause_ns;   /* the first pause before a worker that is away is tried again */
    moe_log_fn log;
    void *user;
    uint32_t n;
    uint32_t n_lost; /* workers that were ready, and then left out */
    moe_worker_link list[MOE_MOST_WORKERS];
} moe_worker_links;

/* Adds the workers at "host:port"; a host name may stand for several addresses. */
int moe_worker_links_add(moe_worker_links *links, const char *address, moe_error *err);
/* Connects to all workers, and waits, at most for the time-out, until each is ready or away. Fails
 * if a worker refuses; logs a worker that is away. */
int moe_worker_links_join(moe_worker_links *links, moe_error *err);
void moe_worker_links_close(moe_worker_links *links);

/* A job's answer. */
typedef struct moe_worker_answer {
    moe_worker_link *from;
    moe_message message;
    uint64_t time_ns;
    uint8_t *bytes; /* of the message */
} moe_worker_answer;

typedef enum moe_worker_news {
    MOE_WORKERS_QUIET, /* nothing has come */
    MOE_WORKERS_OTHER, /* an event that was handled; states may have changed */
    MOE_WORKERS_ANSWER
} moe_worker_news;

/* Takes the next event from the workers; waits up to timeout_ns. Free an answer with
 * moe_worker_answer_free(). */
moe_worker_news moe_worker_links_next(moe_worker_links *links, uint64_t timeout_ns,
                                      moe_worker_answer *answer);
void moe_worker_answer_free(moe_worker_answer *answer);
/* Leaves out workers whose answer is overdue, and tries to connect to those that are away. */
void moe_worker_links_tend(moe_worker_links *links);

/* Leaves a worker out after a fault. why: for the log. */
void moe_worker_leave_out(moe_worker_links *links, moe_worker_link *link, const char *why);

static inline bool moe_worker_has(const moe_worker_links *links, const moe_worker_link *link,
                                  uint32_t layer, uint32_t expert)
{
    size_t bit = (size_t)layer * links->identity.n_expert + expert;
    return link->state == MOE_WORKER_READY && (link->experts[bit / 8] >> bit % 8 & 1) != 0;
}

#endif
