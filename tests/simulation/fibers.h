/* SPDX-License-Identifier: MIT */
/* Threads that one thread runs, in an order that a seed decides.
 *
 * Code under simulation is compiled with points.h and linked with the wraps of thread_wraps.c. What
 * it believes to be threads are then fibers. At each scheduling point (a lock, a condition, an
 * atomic access, a call of a simulated device) the seed chooses what happens next:
 *
 *   - this fiber goes on, or another one that is not blocked;
 *   - an event of a simulated device takes place (sim_event) that is due by now;
 *   - time passes, up to the next event or the next deadline.
 *
 * If nothing can happen at all, a wake-up has been lost. The clock is virtual, so no run waits. The
 * choices have phases in which one fiber or device is much slower than the others: without them two
 * looks of one fiber would hardly ever see all the work of another one between them. */
#ifndef MOE_TESTS_FIBERS_H
#define MOE_TESTS_FIBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_NEVER       UINT64_MAX
#define SIM_MAX_EVENTS  512u
#define SIM_MOST_FIBERS 16u

/* A generator of numbers, for each purpose one of its own. */
typedef struct sim_dice {
    uint64_t state;
} sim_dice;

sim_dice sim_dice_of(uint64_t seed, uint64_t purpose);
uint64_t sim_roll(sim_dice *dice);
/* 0 .. n - 1; n > 0. */
uint32_t sim_below(sim_dice *dice, uint32_t n);
/* True in so many of a thousand. */
bool sim_chance(sim_dice *dice, uint32_t per_mille);

typedef struct sim_settings {
    uint64_t seed; /* of the order of events */
    uint64_t max_events;
    /* Nothing may lie still for longer than this until a deadline wakes it, unless a device has
     * something to do. */
    uint64_t patience_ns;
    uint32_t spurious_per_mille; /* wake-ups of conditions for no reason, of all decisions */
    uint32_t leap_per_mille;     /* of the decisions: time passes up to the next deadline although
                                  * something could be done; a machine that has stood still */
    bool trace;
    bool calm;            /* fibers change only where one blocks */
    uint32_t most_fibers; /* up to SIM_MOST_FIBERS; 0: 8 */
    /* Called after each event of a device; or NULL. */
    void (*look)(void *user);
    /* Called when nothing can happen before time has passed; or NULL. Who waits then for something
     * that has happened already has not been woken, whatever deadline will end the wait. */
    void (*at_rest)(void *user);
    void *user;
} sim_settings;

typedef struct sim_result {
    bool failed;
    char what[256];
    uint64_t n_events; /* decisions between several possibilities, and events of devices */
} sim_result;

/* Runs main_fn(user) as the first fiber, and the threads that it starts; ends when it returns or
 * something fails. Fibers that are left are forgotten. */
void sim_run(const sim_settings *settings, void (*main_fn)(void *user), void *user,
             sim_result *result);
/* Ends the run: something is wrong. From any fiber, event or signal handler. */
_Noreturn void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A line of the trace. */
void sim_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool sim_is_running(void);
/* Changes the settings' patience_ns. */
void sim_be_patient(uint64_t patience_ns);

/* A place where something else may happen. */
void sim_point(void);
/* Until the matching call with false, points do nothing: for checks between two events. */
void sim_be_quiet(bool quiet);
uint64_t sim_now_ns(void);
/* So much of it has passed at leaps (leap_per_mille). */
uint64_t sim_leapt_ns(void);
uint64_t sim_n_events(void);

/* Blocks the fiber until sim_wake() for the same address, or the deadline; false: the deadline.
 * May return true for no reason. */
bool sim_block(const void *address, uint64_t deadline_ns);
void sim_wake(const void *address, bool all);
/* A fiber is blocked on it. */
bool sim_is_awaited(const void *address);
/* Starts a fiber; its number, or 0 when there are too many. */
uint32_t sim_start(void *(*fn)(void *), void *argument);
bool sim_has_ended(uint32_t fiber);
uint32_t sim_self(void);
/* The address on which sim_has_ended() is waited for. */
const void *sim_end_of(uint32_t fiber);

/* Something that a device does later: act() is called once at due_ns or some time after, on any
 * fiber's stack, and must not block. SIM_NEVER: never. */
void sim_event(uint64_t due_ns, void (*act)(void *user, uint32_t argument), void *user,
               uint32_t argument);
/* Lets all events take place that are due before `until_ns`. */
void sim_drain_events(uint64_t until_ns);
/* Pending events, those that never take place included. */
uint32_t sim_n_pending(void);

/* The heap, as code under simulation sees it (thread_wraps.c). */
typedef struct sim_heap {
    int64_t n_live;       /* blocks allocated and not freed */
    uint64_t n_allocated; /* in all */
    uint64_t refuse_at;   /* the allocation of this number, from 1, is refused; 0: none */
    uint64_t n_refused;
} sim_heap;
sim_heap *sim_heap_now(void);

#endif
