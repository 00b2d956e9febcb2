/* SPDX-License-Identifier: MIT */
/* The mover's check of its own state, on one that is put together by hand with a slot in each state
 * and no thread: each field that is changed alone is noticed. And the edges between states. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "offload/mover_state.h"

enum { ABSENT, DEMAND, FIRST, LAST, LOADING, STAGED, COPYING, READY, FAILED, N_SLOTS };

static moe_mover_slot slot_of(moe_slot_state state, moe_move_cause cause)
{
    return (moe_mover_slot){
        .state = state, .move.cause = cause, .next = MOE_MOVER_NONE, .previous = MOE_MOVER_NONE};
}

static void make_mover(moe_mover *mover, moe_mover_slot *slots)
{
    static moe_device device;
    static const moe_expert_ref saved;
    memset(mover, 0, sizeof *mover);
    slots[ABSENT] = slot_of(MOE_SLOT_ABSENT, MOE_CAUSE_DEMAND);
    slots[DEMAND] = slot_of(MOE_SLOT_QUEUED, MOE_CAUSE_DEMAND);
    slots[FIRST] = slot_of(MOE_SLOT_QUEUED, MOE_CAUSE_PREFETCH);
    slots[LAST] = slot_of(MOE_SLOT_QUEUED, MOE_CAUSE_PREFETCH);
    slots[FIRST].next = LAST;
    slots[LAST].previous = FIRST;
    slots[LOADING] = slot_of(MOE_SLOT_LOADING, MOE_CAUSE_PREFETCH);
    slots[LOADING].n_parts_left = 2;
    slots[STAGED] = slot_of(MOE_SLOT_STAGED, MOE_CAUSE_DEMAND);
    slots[COPYING] = slot_of(MOE_SLOT_COPYING, MOE_CAUSE_VERIFY);
    slots[READY] = slot_of(MOE_SLOT_READY, MOE_CAUSE_DEMAND);
    slots[STAGED].in_memory = slots[COPYING].in_memory = slots[READY].in_memory = true;
    slots[FAILED] = slot_of(MOE_SLOT_FAILED, MOE_CAUSE_DEMAND);
    slots[FAILED].status = MOE_ERR_IO;
    slots[DEMAND].move.save.expert = slots[STAGED].move.save.expert = &saved;
    slots[LAST].move.save.expert = &saved;
    slots[DEMAND].save_state = slots[LAST].save_state = MOE_SAVE_WAITING;
    slots[DEMAND].next_save = LAST;
    slots[LAST].next_save = MOE_MOVER_NONE;
    slots[STAGED].save_state = MOE_SAVE_UNDER_WAY;
    mover->saves = (moe_mover_queue){DEMAND, LAST};
    mover->saving[0].slot = STAGED;
    mover->n_saving = 1;
    mover->device = &device;
    mover->slots = slots;
    mover->n_slots = N_SLOTS;
    mover->max_prefetches = 1;
    mover->io_timeout_ns = 1;
    for (int s = 0; s < MOE_STAGE_COUNT; s++) {
        for (int c = 0; c < MOE_CAUSE_COUNT; c++) {
            mover->queues[s][c] = (moe_mover_queue){MOE_MOVER_NONE, MOE_MOVER_NONE};
        }
    }
    mover->queues[MOE_STAGE_READ][MOE_CAUSE_DEMAND] = (moe_mover_queue){DEMAND, DEMAND};
    mover->queues[MOE_STAGE_READ][MOE_CAUSE_PREFETCH] = (moe_mover_queue){FIRST, LAST};
    mover->queues[MOE_STAGE_COPY][MOE_CAUSE_DEMAND] = (moe_mover_queue){STAGED, STAGED};
    mover->n_urgent = 3; /* DEMAND, STAGED, COPYING */
    mover->n_finished = 2;
    mover->stats.n_moves[MOE_CAUSE_DEMAND] = 1;
    mover->stats.n_failed = 1;
    mover->last_status = MOE_ERR_IO;
    mover->last_failed = FAILED;
    mover->n_ranges = 2;
    mover->n_prefetches = 1;
    mover->copies[0].slot = COPYING;
    mover->n_copies = 1;
}

/* The mover is sane, is not when field is value, and is again when it is what it was. */
#define NOTICED_BY(is_sane, field, value)                                                          \
    do {                                                                                           \
        __typeof__((field) + 0) was = field;                                                       \
        assert_true(is_sane(&mover));                                                              \
        field = (value);                                                                           \
        assert_true(field != was);                                                                 \
        assert_false(is_sane(&mover));                                                             \
        field = was;                                                                               \
        assert_true(is_sane(&mover));                                                              \
    } while (0)

static void test_queues(void **state)
{
    (void)state;
    moe_mover mover;
    moe_mover_slot slots[N_SLOTS];
    make_mover(&mover, slots);
    moe_mover_queue *prefetches = &mover.queues[MOE_STAGE_READ][MOE_CAUSE_PREFETCH];
    NOTICED_BY(moe_mover_queues_are_sane, prefetches->first, LAST);
    NOTICED_BY(moe_mover_queues_are_sane, prefetches->first, MOE_MOVER_NONE);
    NOTICED_BY(moe_mover_queues_are_sane, prefetches->first, DEMAND);
    NOTICED_BY(moe_mover_queues_are_sane, prefetches->first, N_SLOTS);
    NOTICED_BY(moe_mover_queues_are_sane, prefetches->last, FIRST);
    NOTICED_BY(moe_mover_queues_are_sane, slots[FIRST].next, MOE_MOVER_NONE);
    NOTICED_BY(moe_mover_queues_are_sane, slots[FIRST].next, FIRST); /* a circle */
    NOTICED_BY(moe_mover_queues_are_sane, slots[FIRST].next, READY);
    NOTICED_BY(moe_mover_queues_are_sane, slots[FIRST].previous, LAST);
    NOTICED_BY(moe_mover_queues_are_sane, slots[LAST].next, FIRST);
    NOTICED_BY(moe_mover_queues_are_sane, slots[LAST].previous, MOE_MOVER_NONE);
    NOTICED_BY(moe_mover_queues_are_sane, slots[FIRST].move.cause, MOE_CAUSE_VERIFY);
    NOTICED_BY(moe_mover_queues_are_sane, mover.queues[MOE_STAGE_COPY][MOE_CAUSE_DEMAND].first,
               MOE_MOVER_NONE);
    NOTICED_BY(moe_mover_queues_are_sane, mover.queues[MOE_STAGE_COPY][MOE_CAUSE_VERIFY].first,
               DEMAND);
}

static void test_slots(void **state)
{
    (void)state;
    moe_mover mover;
    moe_mover_slot slots[N_SLOTS];
    make_mover(&mover, slots);
    NOTICED_BY(moe_mover_queues_are_sane, slots[ABSENT].state, MOE_SLOT_QUEUED);
    NOTICED_BY(moe_mover_queues_are_sane, slots[ABSENT].state, MOE_SLOT_LOADING);
    NOTICED_BY(moe_mover_queues_are_sane, slots[ABSENT].state, 99);
    NOTICED_BY(moe_mover_queues_are_sane, slots[DEMAND].state, MOE_SLOT_ABSENT);
    NOTICED_BY(moe_mover_queues_are_sane, slots[DEMAND].in_memory, true);
    NOTICED_BY(moe_mover_queues_are_sane, slots[DEMAND].status, MOE_ERR_IO);
    NOTICED_BY(moe_mover_queues_are_sane, slots[STAGED].state, MOE_SLOT_COPYING);
    NOTICED_BY(moe_mover_queues_are_sane, slots[STAGED].in_memory, false);
    NOTICED_BY(moe_mover_queues_are_sane, slots[STAGED].status, MOE_ERR_IO);
    NOTICED_BY(moe_mover_queues_are_sane, slots[COPYING].in_memory, false);
    NOTICED_BY(moe_mover_queues_are_sane, slots[COPYING].move.cause, MOE_CAUSE_PREFETCH);
    NOTICED_BY(moe_mover_queues_are_sane, slots[READY].in_memory, false);
    NOTICED_BY(moe_mover_queues_are_sane, slots[READY].status, MOE_ERR_IO);
    NOTICED_BY(moe_mover_queues_are_sane, slots[FAILED].status, MOE_OK);
}

static void test_counts(void **state)
{
    (void)state;
    moe_mover mover;
    moe_mover_slot slots[N_SLOTS];
    make_mover(&mover, slots);
    NOTICED_BY(moe_mover_queues_are_sane, mover.n_slots, N_SLOTS - 6);
    NOTICED_BY(moe_mover_queues_are_sane, mover.device, NULL);
    NOTICED_BY(moe_mover_queues_are_sane, mover.n_urgent, 2);
    NOTICED_BY(moe_mover_queues_are_sane, mover.n_finished, 3);
    NOTICED_BY(moe_mover_queues_are_sane, mover.stats.n_moves[MOE_CAUSE_VERIFY], 1);
    NOTICED_BY(moe_mover_queues_are_sane, mover.stats.n_failed, 0);
    NOTICED_BY(moe_mover_queues_are_sane, mover.last_failed, N_SLOTS);
    NOTICED_BY(moe_mover_queues_are_sane, mover.ended, true);
    NOTICED_BY(moe_mover_queues_are_sane, mover.hangs, true);
}

static void test_what_the_thread_keeps(void **state)
{
    (void)state;
    moe_mover mover;
    moe_mover_slot slots[N_SLOTS];
    make_mover(&mover, slots);
    NOTICED_BY(moe_mover_is_sane, mover.slots, NULL);
    NOTICED_BY(moe_mover_is_sane, mover.max_prefetches, 0);
    NOTICED_BY(moe_mover_is_sane, mover.io_timeout_ns, 0);
    NOTICED_BY(moe_mover_is_sane, mover.n_urgent, 4);
    NOTICED_BY(moe_mover_is_sane, mover.n_ranges, 3);
    NOTICED_BY(moe_mover_is_sane, mover.n_prefetches, 0);
    NOTICED_BY(moe_mover_is_sane, mover.n_copies, 0);
    NOTICED_BY(moe_mover_is_sane, mover.n_copies, MOE_MOVER_COPIES + 1);
    NOTICED_BY(moe_mover_is_sane, mover.copies[0].slot, READY);
    NOTICED_BY(moe_mover_is_sane, mover.copies[0].slot, N_SLOTS);
    NOTICED_BY(moe_mover_is_sane, slots[LOADING].n_parts_left, 0);
    NOTICED_BY(moe_mover_is_sane, slots[LOADING].n_parts_left, MOE_EXPERT_PARTS + 1);
    NOTICED_BY(moe_mover_is_sane, slots[LOADING].n_parts_left, 1);
    NOTICED_BY(moe_mover_is_sane, slots[LOADING].retried[1], 2 + MOE_RANGE_COPIES);
    mover.copies[1].slot = COPYING;
    NOTICED_BY(moe_mover_is_sane, mover.n_copies, 2); /* one slot twice */
    slots[ABSENT] = slots[LOADING];
    mover.n_ranges = 4;
    mover.n_prefetches = 2;
    assert_false(moe_mover_is_sane(&mover)); /* more than max_prefetches */
}

static void test_saves(void **state)
{
    (void)state;
    moe_mover mover;
    moe_mover_slot slots[N_SLOTS];
    make_mover(&mover, slots);
    NOTICED_BY(moe_mover_queues_are_sane, mover.saves.first, LAST);
    NOTICED_BY(moe_mover_queues_are_sane, mover.saves.first, READY);
    NOTICED_BY(moe_mover_queues_are_sane, mover.saves.first, N_SLOTS);
    NOTICED_BY(moe_mover_queues_are_sane, mover.saves.last, DEMAND);
    NOTICED_BY(moe_mover_queues_are_sane, slots[DEMAND].next_save, DEMAND); /* a circle */
    NOTICED_BY(moe_mover_queues_are_sane, slots[DEMAND].next_save, MOE_MOVER_NONE);
    NOTICED_BY(moe_mover_queues_are_sane, slots[DEMAND].save_state, MOE_SAVE_DONE);
    NOTICED_BY(moe_mover_queues_are_sane, slots[FIRST].save_state, MOE_SAVE_WAITING);
    NOTICED_BY(moe_mover_queues_are_sane, slots[COPYING].save_state, MOE_SAVE_UNDER_WAY);
    NOTICED_BY(moe_mover_queues_are_sane, slots[READY].save_state, MOE_SAVE_UNDER_WAY);
    NOTICED_BY(moe_mover_queues_are_sane, slots[LAST].move.save.expert, NULL);
    NOTICED_BY(moe_mover_is_sane, slots[STAGED].save_state, MOE_SAVE_DONE);
    NOTICED_BY(moe_mover_is_sane, mover.n_saving, 0);
    NOTICED_BY(moe_mover_is_sane, mover.n_saving, MOE_MOVER_COPIES + 1);
    NOTICED_BY(moe_mover_is_sane, mover.saving[0].slot, DEMAND);
    NOTICED_BY(moe_mover_is_sane, mover.saving[0].slot, N_SLOTS);
    mover.saving[1].slot = STAGED;
    NOTICED_BY(moe_mover_is_sane, mover.n_saving, 2);                /* one slot twice */
    NOTICED_BY(moe_mover_is_sane, slots[LOADING].awaits_save, true); /* parts are missing */
}

/* Row: from, column: to, in the order of moe_slot_state. */
static void test_edges(void **state)
{
    (void)state;
    static const char *const edges[] = {
        /* A  Q  L  S  C  R  F */
        "ABSENT  11.1.1.", "QUEUED  1.1....", "LOADING ...1.11", "STAGED  1...1..",
        "COPYING .....11", "READY   1......", "FAILED  1......",
    };
    for (int from = MOE_SLOT_ABSENT; from <= MOE_SLOT_FAILED; from++) {
        for (int to = MOE_SLOT_ABSENT; to <= MOE_SLOT_FAILED; to++) {
            assert_int_equal(moe_mover_is_edge((moe_slot_state)from, (moe_slot_state)to),
                             edges[from][8 + to] == '1');
        }
    }
}

static void test_lock(void **state)
{
    (void)state;
    moe_mover mover;
    pthread_mutex_init(&mover.lock, NULL);
    pthread_mutex_lock(&mover.lock);
    assert_true(moe_mover_is_locked(&mover));
    pthread_mutex_unlock(&mover.lock);
    assert_false(moe_mover_is_locked(&mover)); /* which takes it */
    pthread_mutex_unlock(&mover.lock);
    pthread_mutex_destroy(&mover.lock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queues), cmocka_unit_test(test_slots),
        cmocka_unit_test(test_counts), cmocka_unit_test(test_what_the_thread_keeps),
        cmocka_unit_test(test_edges),  cmocka_unit_test(test_lock),
        cmocka_unit_test(test_saves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
