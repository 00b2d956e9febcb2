/* SPDX-License-Identifier: MIT */
#include "tests/simulation/fibers.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/simulation/fiber_switch.h"

#define FIBERS      8u
#define STACK_BYTES ((size_t)1 << 20)
#define MAX_STEP_NS 2000u
#define MIN_PHASE   4u

typedef struct fiber {
    sim_context context;
    void *(*fn)(void *);
    void *argument;
    const void *blocked_on; /* NULL: it can run */
    uint64_t deadline_ns;
    bool timed_out, ended;
    uint32_t weight;
} fiber;

typedef struct event {
    uint64_t due_ns;
    void (*act)(void *user, uint32_t argument);
    void *user;
    uint32_t argument;
} event;

static struct {
    sim_settings settings;
    sim_dice dice;
    bool running;
    uint32_t quiet;
    uint64_t now_ns, leapt_ns;
    uint64_t n_events;
    fiber fibers[SIM_MOST_FIBERS];
    uint32_t n_fibers, most_fibers, self;
    event events[SIM_MAX_EVENTS];
    uint32_t n_pending;
    uint32_t device_weight, leap_weight;
    uint32_t phase_left;       /* decisions until weights are drawn again */
    uint32_t stickiness;       /* points that are passed over, of 64 */
    sim_context main, nowhere; /* nowhere: of fibers that do not go on */
    sim_result *result;
    void (*main_fn)(void *);
    void *main_user;
    uint8_t *stacks;
} sim;

/* ---- Numbers ---- */

sim_dice sim_dice_of(uint64_t seed, uint64_t purpose)
{
    sim_dice dice = {seed * 0x9e3779b97f4a7c15u + purpose * 0xd1b54a32d192ed03u + 1};
    (void)sim_roll(&dice);
    return dice;
}

/* splitmix64 */
uint64_t sim_roll(sim_dice *dice)
{
    uint64_t z = dice->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t sim_below(sim_dice *dice, uint32_t n)
{
    return (uint32_t)(((sim_roll(dice) >> 32) * n) >> 32);
}

bool sim_chance(sim_dice *dice, uint32_t per_mille)
{
    return per_mille > 0 && sim_below(dice, 1000) < per_mille;
}

/* ---- The run ---- */

void sim_trace(const char *format, ...)
{
    if (!sim.settings.trace || !sim.running) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    printf("%8llu %12.3f us  f%u  ", (unsigned long long)sim.n_events, (double)sim.now_ns / 1e3,
           sim.self);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

void sim_fail(const char *format, ...)
{
    if (!sim.running) {
        fprintf(stderr, "failed outside of a run: %s\n", format);
        abort();
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sim.result->what, sizeof sim.result->what, format, arguments);
    va_end(arguments);
    sim_trace("FAILED: %s", sim.result->what);
    sim.result->failed = true;
    sim.running = false;
    sim_switch(&sim.nowhere, &sim.main, true);
    abort();
}

bool sim_is_running(void)
{
    return sim.running;
}

void sim_be_patient(uint64_t patience_ns)
{
    sim.settings.patience_ns = patience_ns;
}

uint64_t sim_now_ns(void)
{
    return sim.now_ns;
}

uint64_t sim_leapt_ns(void)
{
    return sim.leapt_ns;
}

uint64_t sim_n_events(void)
{
    return sim.n_events;
}

uint32_t sim_self(void)
{
    return sim.self;
}

void sim_be_quiet(bool quiet)
{
    sim.quiet += quiet ? 1u : UINT32_MAX;
}

static void new_phase(void)
{
    static const uint32_t weights[] = {0, 1, 4, 4, 16, 16, 64, 256};
    sim.phase_left = MIN_PHASE + sim_below(&sim.dice, 1u << (3 + sim_below(&sim.dice, 6)));
    for (uint32_t i = 0; i < sim.most_fibers; i++) {
        sim.fibers[i].weight = weights[sim_below(&sim.dice, 8)];
    }
    sim.device_weight = weights[sim_below(&sim.dice, 8)];
    sim.stickiness = sim.settings.calm ? 64 : sim_below(&sim.dice, 64);
}

static bool can_run(const fiber *f)
{
    return !f->ended && f->blocked_on == NULL;
}

static void time_out_fibers(void)
{
    for (uint32_t i = 0; i < sim.n_fibers; i++) {
        fiber *f = &sim.fibers[i];
        if (f->blocked_on != NULL && f->deadline_ns <= sim.now_ns) {
            f->blocked_on = NULL;
            f->timed_out = true;
        }
    }
}

static void begin_fiber(void)
{
    sim_arrived();
    fiber *f = &sim.fibers[sim.self];
    (void)f->fn(f->argument);
    f->ended = true;
    sim_wake(f, true);
    (void)sim_block(&sim, SIM_NEVER); /* for ever */
    abort();
}

static void switch_to(uint32_t next)
{
    if (next != sim.self) {
        fiber *from = &sim.fibers[sim.self];
        sim.self = next;
        sim_switch(&from->context, &sim.fibers[next].context, false);
    }
}

static void take_place(uint32_t i)
{
    event e = sim.events[i];
    sim.events[i] = sim.events[--sim.n_pending];
    e.act(e.user, e.argument);
    if (sim.settings.look != NULL) {
        sim.quiet++;
        sim.settings.look(sim.settings.user);
        sim.quiet--;
    }
}

/* The next moment at which something is due. */
static uint64_t next_due(bool *of_fiber)
{
    uint64_t due = SIM_NEVER;
    *of_fiber = false;
    for (uint32_t i = 0; i < sim.n_pending; i++) {
        due = sim.events[i].due_ns < due ? sim.events[i].due_ns : due;
    }
    for (uint32_t i = 0; i < sim.n_fibers; i++) {
        const fiber *f = &sim.fibers[i];
        if (f->blocked_on != NULL && f->deadline_ns < due) {
            due = f->deadline_ns;
            *of_fiber = true;
        }
    }
    return due;
}

/* Time passes until something is due. forced: nothing else is possible. */
static void leap(bool forced)
{
    bool of_fiber;
    uint64_t due = next_due(&of_fiber);
    if (due == SIM_NEVER) {
        if (!forced) {
            return;
        }
        if (sim.n_pending > 0) {
            sim_fail("everybody waits for a device that hangs for ever");
        }
        sim_fail("deadlock: nothing can happen any more");
    }
    if (forced && of_fiber && sim.n_pending == 0 && due > sim.now_ns + sim.settings.patience_ns) {
        sim_fail("lost wake-up: nothing would have happened for %.1f ms until a deadline",
                 (double)(due - sim.now_ns) / 1e6);
    }
    if (forced && sim.settings.at_rest != NULL) {
        sim.quiet++;
        sim.settings.at_rest(sim.settings.user);
        sim.quiet--;
    }
    sim_trace("time passes: %.1f us%s", (double)(due - sim.now_ns) / 1e3,
              forced ? "" : " at a leap");
    uint64_t passed = due > sim.now_ns ? due - sim.now_ns : 0;
    sim.now_ns += passed;
    sim.leapt_ns += forced ? 0 : passed;
}

static uint32_t choose_due_event(void)
{
    uint32_t n = 0, chosen = UINT32_MAX;
    for (uint32_t i = 0; i < sim.n_pending; i++) {
        if (sim.events[i].due_ns <= sim.now_ns && sim_below(&sim.dice, ++n) == 0) {
            chosen = i;
        }
    }
    return chosen;
}

static void wake_for_no_reason(void)
{
    uint32_t i = sim_below(&sim.dice, sim.n_fibers);
    if (sim.fibers[i].blocked_on != NULL && sim.fibers[i].blocked_on != &sim) {
        sim.fibers[i].blocked_on = NULL;
    }
}

/* Lets time pass a little, and what may happen at any time happen. */
static void step(void)
{
    sim.n_events++;
    if (sim.n_events > sim.settings.max_events) {
        sim_fail("no end after %llu events", (unsigned long long)sim.n_events);
    }
    sim.now_ns += sim_below(&sim.dice, MAX_STEP_NS);
    time_out_fibers();
    if (sim.phase_left-- == 0) {
        new_phase();
    }
    if (sim_chance(&sim.dice, sim.settings.spurious_per_mille)) {
        wake_for_no_reason();
    }
    if (sim_chance(&sim.dice, sim.settings.leap_per_mille)) {
        leap(false);
        time_out_fibers();
    }
}

/* A fiber that can run, `at` being less than the sum of the weights of those; if that is 0, the
 * last one. */
static uint32_t choose_fiber(uint64_t at)
{
    uint32_t last = UINT32_MAX;
    for (uint32_t i = 0; i < sim.n_fibers; i++) {
        const fiber *f = &sim.fibers[i];
        if (can_run(f)) {
            last = i;
            if (at < f->weight) {
                break;
            }
            at -= f->weight;
        }
    }
    return last;
}

/* Chooses what happens next until a fiber runs. */
static void choose_next(void)
{
    for (;;) {
        step();
        uint64_t fibers = 0;
        bool any = false;
        for (uint32_t i = 0; i < sim.n_fibers; i++) {
            if (can_run(&sim.fibers[i])) {
                fibers += sim.fibers[i].weight;
                any = true;
            }
        }
        uint32_t due = choose_due_event();
        uint64_t devices = due != UINT32_MAX ? sim.device_weight : 0;
        uint64_t at = fibers + devices > 0 ? sim_roll(&sim.dice) % (fibers + devices) : 0;
        if (due != UINT32_MAX && (at < devices || !any)) {
            take_place(due);
        } else if (any) {
            switch_to(choose_fiber(fibers > 0 ? at - devices : 0));
            return;
        } else {
            leap(true);
        }
    }
}

void sim_point(void)
{
    if (!sim.running || sim.quiet > 0 ||
        (sim.stickiness > 0 && sim_below(&sim.dice, 64) < sim.stickiness)) {
        return;
    }
    choose_next();
}

bool sim_block(const void *address, uint64_t deadline_ns)
{
    fiber *f = &sim.fibers[sim.self];
    f->blocked_on = address;
    f->deadline_ns = deadline_ns;
    f->timed_out = false;
    choose_next();
    return !f->timed_out;
}

void sim_wake(const void *address, bool all)
{
    uint32_t n = 0, chosen = UINT32_MAX;
    for (uint32_t i = 0; i < sim.n_fibers; i++) {
        if (sim.fibers[i].blocked_on == address) {
            if (all) {
                sim.fibers[i].blocked_on = NULL;
            } else if (sim_below(&sim.dice, ++n) == 0) {
                chosen = i;
            }
        }
    }
    if (chosen != UINT32_MAX) {
        sim.fibers[chosen].blocked_on = NULL;
    }
}

bool sim_is_awaited(const void *address)
{
    bool awaited = false;
    for (uint32_t i = 0; i < sim.n_fibers; i++) {
        awaited |= sim.fibers[i].blocked_on == address;
    }
    return awaited;
}

uint32_t sim_start(void *(*fn)(void *), void *argument)
{
    if (sim.n_fibers == sim.most_fibers) {
        return 0;
    }
    uint32_t number = sim.n_fibers++;
    fiber *f = &sim.fibers[number];
    *f = (fiber){.fn = fn, .argument = argument, .weight = 1};
    sim_prepare(&f->context, sim.stacks + number * STACK_BYTES, STACK_BYTES, begin_fiber);
    return number;
}

bool sim_has_ended(uint32_t number)
{
    return sim.fibers[number].ended;
}

const void *sim_end_of(uint32_t number)
{
    return &sim.fibers[number];
}

void sim_event(uint64_t due_ns, void (*act)(void *user, uint32_t argument), void *user,
               uint32_t argument)
{
    if (sim.n_pending == SIM_MAX_EVENTS) {
        sim_fail("too many events at once");
    }
    sim.events[sim.n_pending++] = (event){due_ns, act, user, argument};
}

void sim_drain_events(uint64_t until_ns)
{
    for (uint32_t i = 0; i < sim.n_pending;) {
        if (sim.events[i].due_ns <= until_ns) {
            sim.now_ns = sim.events[i].due_ns > sim.now_ns ? sim.events[i].due_ns : sim.now_ns;
            sim.n_events++;
            take_place(i);
            i = 0;
        } else {
            i++;
        }
    }
}

uint32_t sim_n_pending(void)
{
    return sim.n_pending;
}

static void *run_main(void *argument)
{
    (void)argument;
    sim.main_fn(sim.main_user);
    sim.running = false;
    sim_switch(&sim.nowhere, &sim.main, true);
    abort();
}

void sim_run(const sim_settings *settings, void (*main_fn)(void *user), void *user,
             sim_result *result)
{
    if (sim.stacks == NULL) {
        sim.stacks = mmap(NULL, SIM_MOST_FIBERS * STACK_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (sim.stacks == MAP_FAILED) {
            abort();
        }
    }
    *result = (sim_result){.failed = false};
    sim.settings = *settings;
    sim.dice = sim_dice_of(settings->seed, 1);
    sim.quiet = 0;
    sim.now_ns = 1000000000u;
    sim.leapt_ns = 0;
    sim.most_fibers = settings->most_fibers > 0 ? settings->most_fibers : FIBERS;
    sim.n_events = 0;
    sim.n_fibers = sim.self = 0;
    sim.n_pending = 0;
    sim.result = result;
    sim.main_fn = main_fn;
    sim.main_user = user;
    *sim_heap_now() = (sim_heap){.n_live = 0};
    new_phase();
    (void)sim_start(run_main, NULL);
    sim.running = true;
    sim_switch(&sim.main, &sim.fibers[0].context, false);
    result->n_events = sim.n_events;
}
