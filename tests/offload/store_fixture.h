/* SPDX-License-Identifier: MIT */
/* An engine whose experts come through a fault-injecting I/O engine. */
#ifndef MOE_TESTS_STORE_FIXTURE_H
#define MOE_TESTS_STORE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdatomic.h>

#include "offload/io/io_fault.h"
#include "runtime/engine/engine_state.h"

typedef struct expert_name {
    uint32_t layer, expert;
} expert_name;

typedef struct store_fixture {
    moe_engine *engine;
    const moe_tensor_map *map;
    moe_io_fault fault;
    uint8_t *file; /* the model's bytes */
    size_t file_bytes;
    moe_weight_sums sums; /* of the experts in the file; all readings are compared */

    /* Rules that choose() goes by, on the mover's thread. */
    uint64_t dice;
    uint32_t short_per_mille, transient_per_mille, delay_per_mille, flip_per_mille, hard_per_mille;
    uint32_t max_delay_ns;
    _Atomic bool fail_all;       /* every read fails with EIO */
    _Atomic bool fail_chosen;    /* reads of `chosen` do */
    _Atomic bool flip_chosen;    /* reads of `chosen` have a wrong bit */
    _Atomic bool choose_next;    /* the next expert of chosen.layer that is read is `chosen` */
    _Atomic bool hold;           /* the reader's thread waits before a read until this is false */
    _Atomic uint32_t n_held;     /* reads that it has waited before */
    _Atomic bool stick_chosen;   /* reads of `chosen` are stuck until fault.let_go */
    _Atomic uint32_t n_failed;   /* reads that were failed */
    _Atomic uint32_t n_injected; /* faults of any kind */
    _Atomic uint64_t n_chosen;   /* reads that choose() is through with */
    expert_name chosen;
    uint8_t *_Atomic stuck_at; /* where the last stuck read will write */
} store_fixture;

typedef void (*store_change_fn)(moe_expert_store_options *options, void *user);

/* path: a model of one file. share: of the experts, for the cache; change: may be NULL. */
void store_fixture_open(store_fixture *f, const char *path, double share, store_change_fn change,
                        void *user);
/* On another device than the CPU; its host tier has a third of the experts. */
void store_fixture_open_on(store_fixture *f, const char *device, const char *path, double share,
                           store_change_fn change, void *user);
void store_fixture_close(store_fixture *f);

/* The bytes of a view are the file's. */
void store_check_view(const store_fixture *f, uint32_t layer, uint32_t expert,
                      const moe_expert_view *view);

/* Asks for a layer's experts, checks every byte that is delivered; the status. */
int store_request(store_fixture *f, uint32_t layer, uint64_t pass, const uint32_t *experts,
                  uint32_t n, moe_error *err);
/* The rest of a request that begin() has been called for. */
int store_finish(store_fixture *f, uint32_t layer, const uint32_t *experts, uint32_t n,
                 moe_error *err);

void store_sleep_ms(uint32_t ms);
/* xorshift; never 0. */
uint64_t store_random(uint64_t *state);

#endif
