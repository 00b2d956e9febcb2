/* SPDX-License-Identifier: MIT */
/* A coordinator's connections to its workers. A worker that fails, hangs or says something wrong is
 * left out, and tried again later: after a second, and after twice as long each time that it fails
 * again. Not thread-safe: the thread of the passes uses it. */
#ifndef MOE_WORKERS_WORKER_LINKS_H
#define MOE_WORKERS_WORKER_LINKS_H

#include <sys/socket.h>

#include <moe/types.h>

#include "runtime/workers/worker_choice.h"
#include "runtime/workers/worker_messages.h"

typedef enum moe_worker_state {
    MOE_WORKER_AWAY,    /* tried again at next_ns */
    MOE_WORKER_GREETED, /* HELLO is sent */
    MOE_WORKER_PROVED,  /* PROOF is sent */
    MOE_WORKER_READY,
    MOE_WORKER_REFUSED /* for good: it has another model, or another key */
} moe_worker_state;

typedef struct moe_worker_link {
    char name[96]; /* host:port, as it was given, or the address */
    struct sockaddr_storage address;
    socklen_t address_bytes;
    moe_worker_state state;
    uint64_t peer;     /* of the wire; 0: none */
    uint64_t since_ns; /* of GREETED and PROVED */
    uint64_t next_ns, pause_ns;
    moe_nonce of_coordinator, of_worker;
    uint32_t max_rows;
    uint8_t *experts;       /* a bit for each: those that the worker has */
    moe_worker_costs costs; /* from a job's sending until its result is there */
    char refusal[160];
    bool was_ready;
} moe_worker_link;

typedef struct moe_worker_links {
    moe_wire *wire; /* owned */
    moe_worker_identity identity;
    moe_worker_key key;  /* must live as long */
    uint64_t timeout_ns; /* without the answer that is due */
    uint64_t pause_ns;   /* before a worker that is away is tried again, at first */
    moe_log_fn log;
    void *user;
    uint32_t n;
    uint32_t n_lost; /* workers that were ready, and then left out */
    moe_worker_link list[MOE_MOST_WORKERS];
} moe_worker_links;

/* Adds the workers at "host:port"; a host name may stand for several addresses. option: for
 * messages. */
int moe_worker_links_add(moe_worker_links *links, const char *address, moe_error *err);
/* Connects to all, and waits for as long as the time-out until each is ready, or away. Fails if one
 * refuses; one that is away is logged. */
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
    MOE_WORKERS_OTHER, /* something that has been dealt with; states may have changed */
    MOE_WORKERS_ANSWER
} moe_worker_news;

/* Takes the next thing that workers say; waits for it up to timeout_ns. An answer is to be freed
 * with moe_worker_answer_free(). */
moe_worker_news moe_worker_links_next(moe_worker_links *links, uint64_t timeout_ns,
                                      moe_worker_answer *answer);
void moe_worker_answer_free(moe_worker_answer *answer);
/* Ends what has waited too long, and tries again those that are away. */
void moe_worker_links_tend(moe_worker_links *links);

/* Leaves a worker out: it did not do what it should. */
void moe_worker_leave_out(moe_worker_links *links, moe_worker_link *link, const char *why);

static inline bool moe_worker_has(const moe_worker_links *links, const moe_worker_link *link,
                                  uint32_t layer, uint32_t expert)
{
    size_t bit = (size_t)layer * links->identity.n_expert + expert;
    return link->state == MOE_WORKER_READY && (link->experts[bit / 8] >> bit % 8 & 1) != 0;
}

#endif
