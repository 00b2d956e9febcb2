/* SPDX-License-Identifier: MIT */
/* A server over a virtual engine, and its clients, all chosen by a seed. What a client must get is
 * known beforehand. */
#ifndef MOE_TESTS_SERVER_WORLD_H
#define MOE_TESTS_SERVER_WORLD_H

#include "tests/simulation/virtual_engine.h"
#include "tests/simulation/virtual_http.h"
#include "tests/simulation/world.h"

enum {
    SW_CONNECTIONS = 6,
    SW_CLIENTS = 4,
    SW_MOST_CHOICES = 8,
    SW_MOST_STOPS = 2,
    SW_TEXT_BYTES = VE_TEXT_BYTES,
    SW_BODY_BYTES = 2048,
};

/* Kinds of faults (sim_fault_names). */
typedef enum sw_fault {
    SW_FAULT_FAIL,   /* steps fail */
    SW_FAULT_HANG,   /* steps hang until they fail */
    SW_FAULT_TIGHT,  /* sessions do not all fit */
    SW_FAULT_LENT,   /* memory is lent to others, and taken back */
    SW_FAULT_MEMORY, /* calls of the engine have none */
    SW_FAULT_HEAP,   /* an allocation is refused */
    SW_FAULT_LEAVE,  /* clients leave */
    SW_FAULT_SLOW,   /* clients are slow */
    SW_FAULT_STOP,   /* the server is stopped while it works */
    SW_FAULT_DISK,   /* prompts are kept on a disk, which fails */
    SW_FAULT_ROOM,   /* requests have little memory */
    SW_FAULT_SPURIOUS,
    SW_FAULT_LEAP,
    SW_FAULTS
} sw_fault;

/* A request of the script: what it asks for, how it is sent, and what was counted on its way. */
typedef struct sw_request {
    bool made;   /* it is on its way, or was */
    bool let_go; /* the server has forgotten it */
    uint32_t client;
    int32_t tokens[VE_CONTEXT];
    size_t n_tokens;
    uint64_t seed;
    uint32_t n; /* answers */
    uint32_t max_tokens;
    char stops[SW_MOST_STOPS][4];
    uint32_t n_stops;
    bool streams, is_wrong; /* is_wrong: it is no request */
    uint32_t n_late_steps;  /* that began with a session of it after it was let go */
    uint32_t most_jobs;     /* of all requests at a time, while this one was under way */
    vh_request how;
    char body[SW_BODY_BYTES];
} sw_request;

/* A choice's text and why it ended. */
typedef struct sw_text {
    char bytes[SW_TEXT_BYTES];
    size_t size;
    const char *finish;
} sw_text;

typedef struct server_world {
    const sim_plan *plan;
    server_options options;
    uint32_t n_requests;
    sw_request requests[SIM_MAX_OPS];
    uint32_t next;           /* request that is made next */
    uint32_t n_clients_left; /* fibers */
    uint32_t n_jobs;         /* of requests that are under way */
    bool stop;               /* SIGTERM has come */
    uint64_t stop_ns, leapt_at_stop_ns;
    bool has_room; /* of requests' memory */
    bool lends;
    uint64_t n_checks;
    sim_dice dice;
} server_world;

extern server_world the_server_world;

/* Chooses everything. */
void sw_choose(server_world *w);
bool sw_may(const server_world *w, sw_fault fault);
/* Fails the run unless the answer is what the request was to get. */
void sw_check_answer(const server_world *w, const sw_request *r, const vh_answer *answer);
/* The invariants. */
void sw_look(void *user);
void sw_at_rest(void *user);
void sw_stepping(const moe_session *session, void *user);
void sw_following(const int32_t *tokens, size_t n, void *user);

#endif
