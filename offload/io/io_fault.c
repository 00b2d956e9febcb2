/* SPDX-License-Identifier: MIT */
#include "offload/io/io_fault.h"

#include <stdlib.h>
#include <string.h>

#include "offload/io/io_signal.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

#define SPOILT        0xa5
#define LOOK_AGAIN_NS 2000000u

typedef struct fault_read {
    bool used;
    moe_io_read read;
    moe_fault fault;
} fault_read;

/* A completion that is not reported yet. */
typedef struct held {
    moe_io_completion completion;
    uint64_t due_ns;
} held;

typedef struct fault_engine {
    moe_io_fault *plan; /* belongs to the caller */
    void *inner;
    uint32_t depth;
    fault_read *reads; /* [depth]; a read's index is its user_data at the inner engine */
    held *held;        /* [4 * depth] */
    uint32_t n_held;
    uint32_t n_passed; /* reads that the inner engine has got and not completed */
    uint32_t n_lost;
    uint32_t n_stuck;
} fault_engine;

static int fault_open(void **out, const moe_io_params *params, moe_error *err)
{
    moe_io_fault *plan = params->context;
    if (plan->open_errno != 0) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s is not available here: %s", plan->inner->name,
                        strerror(plan->open_errno));
    }
    fault_engine *e = moe_calloc(1, sizeof *e);
    if (e == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "fault engine: out of memory");
    }
    e->plan = plan;
    e->depth = params->depth;
    e->reads = moe_calloc(e->depth, sizeof *e->reads);
    e->held = moe_calloc(e->depth, 4 * sizeof *e->held);
    int rc = e->reads != NULL && e->held != NULL
                 ? plan->inner->open(&e->inner, params, err)
                 : moe_fail(err, MOE_ERR_MEMORY, "fault engine: out of memory");
    if (rc != MOE_OK) {
        free(e->reads);
        free(e->held);
        free(e);
        return rc;
    }
    *out = e;
    return MOE_OK;
}

static void fault_use_arena(void *engine, void *arena, size_t bytes)
{
    fault_engine *e = engine;
    e->plan->inner->use_arena(e->inner, arena, bytes);
}

static bool fault_set_away(void *engine, void *memory, size_t bytes, bool away)
{
    fault_engine *e = engine;
    return e->plan->inner->set_away(e->inner, memory, bytes, away);
}

/* Waits for stuck reads, as close() waits for reads in the kernel. Drops those released in time. */
static void await_stuck(fault_engine *e, uint64_t timeout_ns)
{
    uint64_t deadline = moe_io_deadline((int64_t)timeout_ns);
    while (e->n_stuck > 0 && !atomic_load(&e->plan->let_go) && moe_now_ns() < deadline) {
        nanosleep(&(struct timespec){.tv_nsec = LOOK_AGAIN_NS}, NULL);
    }
    e->n_stuck = atomic_load(&e->plan->let_go) ? 0 : e->n_stuck;
}

static bool fault_close(void *engine, uint64_t timeout_ns)
{
    fault_engine *e = engine;
    await_stuck(e, timeout_ns);
    bool ended = e->plan->inner->close(e->inner, timeout_ns);
    ended = ended && e->n_lost == 0 && e->n_stuck == 0;
    free(e->reads);
    free(e->held);
    free(e);
    return ended;
}

static void hold(fault_engine *e, uint64_t user_data, int32_t result, uint64_t delay_ns)
{
    e->held[e->n_held++] = (held){.completion = {.user_data = user_data, .result = result},
                                  .due_ns = moe_now_ns() + delay_ns};
}

static bool pass_on(fault_engine *e, uint32_t slot)
{
    moe_io_read passed = e->reads[slot].read;
    passed.user_data = slot;
    e->reads[slot].used = e->plan->inner->submit(e->inner, &passed, 1) == 1;
    e->n_passed += e->reads[slot].used;
    return e->reads[slot].used;
}

static void let_go(fault_engine *e)
{
    for (uint32_t slot = 0; slot < e->depth && e->n_stuck > 0; slot++) {
        fault_read *entry = &e->reads[slot];
        if (entry->used && entry->fault.kind == MOE_FAULT_STUCK) {
            entry->fault.kind = MOE_FAULT_NONE;
            e->n_stuck--;
            (void)pass_on(e, slot);
        }
    }
}

static bool start(fault_engine *e, const moe_io_read *read)
{
    uint32_t slot = 0;
    while (slot < e->depth && e->reads[slot].used) {
        slot++;
    }
    if (slot == e->depth) {
        return false;
    }
    moe_fault fault = e->plan->choose(e->plan->user, read, e->plan->n_reads);
    e->plan->n_reads++;
    e->plan->n_faults[fault.kind]++;
    e->reads[slot] = (fault_read){.used = true, .read = *read, .fault = fault};
    if (fault.kind == MOE_FAULT_LOST) {
        e->n_lost++; /* the read's entry stays used: the read is in flight for ever */
    } else if (fault.kind == MOE_FAULT_ERROR) {
        memset(read->dst, SPOILT, read->size);
        hold(e, read->user_data, -(int32_t)fault.value, 0);
        e->reads[slot].used = false;
    } else if (fault.kind == MOE_FAULT_STUCK && !atomic_load(&e->plan->let_go)) {
        e->n_stuck++;
    } else {
        e->reads[slot].fault.kind = fault.kind == MOE_FAULT_STUCK ? MOE_FAULT_NONE : fault.kind;
        return pass_on(e, slot);
    }
    return true;
}

static uint32_t fault_submit(void *engine, const moe_io_read *reads, uint32_t n)
{
    fault_engine *e = engine;
    uint32_t taken = 0;
    /* Each read may be held twice, so keeps room for two reports of each. */
    while (taken < n && e->n_held + 2 * e->n_passed + 2 <= 4 * e->depth &&
           start(e, &reads[taken])) {
        taken++;
    }
    return taken;
}

/* Changes the inner engine's report of a read by the read's fault, and keeps it until it is due. */
static void apply(fault_engine *e, const moe_io_completion *completion)
{
    fault_read *entry = &e->reads[completion->user_data];
    const moe_io_read *read = &entry->read;
    int32_t result = completion->result;
    uint64_t delay_ns = 0;
    uint32_t value = entry->fault.value;
    switch (entry->fault.kind) {
    case MOE_FAULT_SHORT:
        if (result > 0 && value < (uint32_t)result) {
            memset(read->dst + value, SPOILT, read->size - value);
            result = (int32_t)value;
        }
        break;
    case MOE_FAULT_DELAY:
        delay_ns = value;
        break;
    case MOE_FAULT_FLIP:
        if (result > 0) {
            uint32_t bit = value % (8u * (uint32_t)result);
            read->dst[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        break;
    case MOE_FAULT_TWICE:
        hold(e, read->user_data, result, 0);
        break;
    default:
        break;
    }
    entry->used = false;
    e->n_passed--;
    hold(e, read->user_data, result, delay_ns);
}

static uint32_t take_due(fault_engine *e, moe_io_completion *done, uint32_t capacity)
{
    uint64_t now = moe_now_ns();
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_held && n < capacity;) {
        if (e->held[i].due_ns <= now) {
            done[n++] = e->held[i].completion;
            e->held[i] = e->held[--e->n_held];
        } else {
            i++;
        }
    }
    return n;
}

static uint32_t fault_wait(void *engine, moe_io_completion *done, uint32_t capacity,
                           int64_t timeout_ns, bool *woken)
{
    fault_engine *e = engine;
    uint64_t until = moe_io_deadline(timeout_ns);
    if (e->n_stuck > 0 && atomic_load(&e->plan->let_go)) {
        let_go(e);
    } else if (e->n_stuck > 0) {
        uint64_t soon = moe_now_ns() + LOOK_AGAIN_NS;
        until = soon < until ? soon : until;
    }
    for (uint32_t i = 0; i < e->n_held; i++) {
        until = e->held[i].due_ns < until ? e->held[i].due_ns : until;
    }
    uint64_t now = moe_now_ns();
    int64_t limit = until == UINT64_MAX ? -1 : until > now ? (int64_t)(until - now) : 0;
    moe_io_completion inner[16];
    uint32_t n = e->plan->inner->wait(e->inner, inner, 16, limit, woken);
    for (uint32_t i = 0; i < n; i++) {
        apply(e, &inner[i]);
    }
    return take_due(e, done, capacity);
}

static void fault_wake(void *engine)
{
    fault_engine *e = engine;
    e->plan->inner->wake(e->inner);
}

static const char *fault_detail(const void *engine)
{
    const fault_engine *e = engine;
    return e->plan->inner->detail(e->inner);
}

const moe_io_ops moe_io_fault_ops = {
    .name = "fault injection",
    .open = fault_open,
    .use_arena = fault_use_arena,
    .set_away = fault_set_away,
    .close = fault_close,
    .submit = fault_submit,
    .wait = fault_wait,
    .wake = fault_wake,
    .detail = fault_detail,
};
