/* SPDX-License-Identifier: MIT */
/* A machine, a model and a store, all chosen by a seed; and what the store hands out is compared
 * with the model's bytes. */
#ifndef MOE_TESTS_STORE_WORLD_H
#define MOE_TESTS_STORE_WORLD_H

#include "offload/expert_store.h"
#include "offload/memory_border.h"
#include "tests/simulation/fibers.h"
#include "tests/simulation/virtual_card.h"
#include "tests/simulation/virtual_disk.h"
#include "tests/simulation/world.h"

#define W_MAX_LAYERS  6u
#define W_MAX_EXPERTS 12u
#define W_MAX_KEYS    (W_MAX_LAYERS * W_MAX_EXPERTS)

/* Kinds of faults (sim_fault_names). */
typedef enum w_fault {
    W_FAULT_SHORT,
    W_FAULT_TRANSIENT,
    W_FAULT_SLOW,
    W_FAULT_SOFT,
    W_FAULT_HARD,
    W_FAULT_FLIP,
    W_FAULT_HANG,
    W_FAULT_TWICE,
    W_FAULT_REFUSED,
    W_FAULT_COPY,
    W_FAULT_SAVE,
    W_FAULT_DEAF,
    W_FAULT_MEMORY,
    W_FAULT_CANCEL,
    W_FAULT_SPURIOUS,
    W_FAULT_LEAP,
    W_FAULTS
} w_fault;

typedef struct world {
    const sim_plan *plan;
    /* The model. */
    moe_tensor_map map;
    moe_layer_map layers[W_MAX_LAYERS];
    moe_expert_ref experts[W_MAX_KEYS];
    moe_weight_sums sums;
    _Atomic uint64_t known[W_MAX_KEYS * MOE_EXPERT_PARTS];
    _Atomic uint8_t n_reads[W_MAX_KEYS * MOE_EXPERT_PARTS];
    bool is_checked; /* wrong bytes are noticed */
    float hotness[W_MAX_KEYS];
    uint32_t routed[W_MAX_LAYERS]; /* layers with experts */
    uint32_t n_routed, n_classes;
    /* The machine. */
    virtual_disk disk;
    virtual_card card, second_card;
    uint32_t n_cards;
    uint64_t card_bytes[2];
    bool has_link;
    bool uses_host; /* experts are computed in host memory */
    bool may_fail;  /* a layer can fail although nothing hangs */
    bool may_hang;  /* something can hang, or a machine can stand still */
    bool is_healed; /* no more faults */
    /* The store. */
    moe_expert_store_options options;
    uint32_t kept[W_MAX_KEYS];
    moe_expert_store *store;
    moe_memory_border border;
    bool has_border;
    uint32_t n_slots;  /* of the device */
    bool told_left;    /* the log said that memory stays allocated */
    uint64_t close_ns; /* when its closing began */
    /* The script's (store_script.c). */
    bool between_calls; /* the store can be looked at */
    uint64_t n_checks;
    uint32_t op; /* the one under way */
} world;

/* Chooses everything, and opens devices. Inside a run. */
void world_choose(world *w, const sim_plan *plan);
/* The store is closed, and nothing uses the devices any more. */
void world_close_cards(world *w);
/* Ends all faults. */
void world_heal(world *w);

uint32_t world_key(const world *w, uint32_t layer, uint32_t expert);
/* Fails the run unless the parts hold the bytes of the expert. */
void world_check_parts(const world *w, uint32_t layer, uint32_t expert,
                       const void *const parts[MOE_EXPERT_PARTS], const char *what);
void world_check_view(const world *w, uint32_t layer, uint32_t expert, const moe_expert_view *view,
                      const char *what);
/* Relies on the parts' bytes from here on (virtual_memory.h). */
void world_rely(const world *w, uint32_t layer, uint32_t expert,
                const void *const parts[MOE_EXPERT_PARTS], const char *what);
/* The invariants, if the store can be looked at now. */
void world_look(void *user);

#endif
