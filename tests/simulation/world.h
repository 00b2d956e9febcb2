/* SPDX-License-Identifier: MIT */
/* What test_simulation.c needs of a world: it is linked with one. */
#ifndef MOE_TESTS_SIMULATION_WORLD_H
#define MOE_TESTS_SIMULATION_WORLD_H

#include "tests/simulation/fibers.h"

#define SIM_MAX_OPS 400u

/* What is run. Everything follows from it. */
typedef struct sim_plan {
    uint64_t seed;
    uint64_t schedule; /* the order of events; the seed's own unless it is shrunk */
    uint32_t n_ops;    /* at most; 0: as the seed says */
    uint8_t skipped[SIM_MAX_OPS];
    uint32_t without; /* bits: kinds of faults that are left out */
    bool calm;
    bool trace;
} sim_plan;

/* [sim_n_faults] Kinds of faults. */
extern const char *const sim_fault_names[];
extern const uint32_t sim_n_faults;

/* Before the first run. */
void sim_world_prepare(void);
/* A run begins: forgets what the last one has left. */
sim_settings sim_world_begin(const sim_plan *plan);
/* The run; called as the first fiber. */
void sim_world_script(void *user);
/* The operation under way, for shrinking; and how often the invariants were looked at. */
uint32_t sim_world_op(void);
uint64_t sim_world_checks(void);

#endif
