/* SPDX-License-Identifier: MIT */
#include "offload/io/read_sources.h"

#include "runtime/base/moe_assert.h"

#define MEMORY_NS 200000000u /* of busy time; what is older than this counts half */
/* Bytes a nanosecond that a source is taken to read before its first answer. */
#define ASSUMED 1.0
/* After so long without a block, a source counts as four times as fast. */
#define FORGIVING_NS  10e9
#define REMEMBERED_NS 1000000u /* after that time, no more of the past than this counts */
/* A source is called slow if it is this much slower than the best, ... */
#define SLOWER      16.0
#define MEASURED_NS 100000000u /* ... once it has been busy for so long */
#define SILENT_NS   1000000000u
#define MOST_FAILED 4u

/* The source's speed, in bytes a nanosecond; 0: not known. */
static double speed_of(const moe_read_source *s)
{
    return s->busy_ns > 0 ? (double)s->bytes / (double)s->busy_ns : 0.0;
}

static double best_speed(const moe_read_sources *sources)
{
    double best = 0.0;
    for (uint32_t i = 0; i < sources->n; i++) {
        double speed = speed_of(&sources->of[i]);
        best = speed > best ? speed : best;
    }
    return best;
}

/* When the source would have read the block, in nanoseconds from now. */
static double eta_ns(const moe_read_source *s, double unknown_speed, uint64_t bytes,
                     uint64_t now_ns)
{
    double speed = speed_of(s);
    double since = now_ns > s->last_ns ? (double)(now_ns - s->last_ns) : 0.0;
    speed = speed > 0.0 ? speed : unknown_speed;
    if (s->n_blocks == 0) { /* a drive that was slow once gets another chance */
        double factor = 1.0 + since / FORGIVING_NS;
        return (double)bytes / (speed * factor * factor);
    }
    double eta = (double)(s->waiting_bytes + bytes) / speed;
    return eta > 2.0 * since ? eta : 2.0 * since; /* the source may hang */
}

uint32_t moe_sources_choose(const moe_read_sources *sources, uint64_t bytes, uint32_t failed,
                            uint64_t now_ns)
{
    uint32_t best = MOE_NO_SOURCE;
    double best_eta = 0.0, known = best_speed(sources);
    bool best_fails = false;
    for (uint32_t i = 0; i < sources->n; i++) {
        const moe_read_source *s = &sources->of[i];
        if ((failed & 1u << i) != 0) {
            continue;
        }
        bool fails = s->n_failed >= MOST_FAILED;
        double eta = eta_ns(s, known > 0.0 ? known : ASSUMED, bytes, now_ns);
        if (best == MOE_NO_SOURCE || (best_fails && !fails) ||
            (best_fails == fails && eta < best_eta)) {
            best = i;
            best_eta = eta;
            best_fails = fails;
        }
    }
    bool full = best != MOE_NO_SOURCE && sources->of[best].n_blocks >= sources->most_blocks;
    return full ? MOE_NO_SOURCE : best;
}

void moe_sources_give(moe_read_sources *sources, uint32_t source, uint64_t bytes, uint64_t now_ns)
{
    moe_read_source *s = &sources->of[source];
    MOE_ASSERT(source < sources->n);
    if (s->n_blocks == 0) {
        if (now_ns > s->last_ns && (double)(now_ns - s->last_ns) > FORGIVING_NS &&
            s->busy_ns > REMEMBERED_NS) { /* the next answer will say more than the old ones */
            s->bytes = s->bytes * REMEMBERED_NS / s->busy_ns;
            s->busy_ns = REMEMBERED_NS;
        }
        s->last_ns = now_ns;
    }
    s->n_blocks++;
    s->waiting_bytes += bytes;
}

void moe_sources_take(moe_read_sources *sources, uint32_t source, uint64_t bytes)
{
    moe_read_source *s = &sources->of[source];
    MOE_ASSERT(source < sources->n && s->n_blocks > 0 && s->waiting_bytes >= bytes);
    s->n_blocks--;
    s->waiting_bytes -= bytes;
}

void moe_sources_note(moe_read_sources *sources, uint32_t source, uint64_t bytes, uint64_t began_ns,
                      uint64_t now_ns)
{
    moe_read_source *s = &sources->of[source];
    uint64_t from = began_ns > s->last_ns ? began_ns : s->last_ns;
    s->bytes += bytes;
    s->busy_ns += now_ns > from ? now_ns - from : 0;
    s->last_ns = now_ns;
    if (s->busy_ns > MEMORY_NS) {
        s->bytes /= 2;
        s->busy_ns /= 2;
    }
}

bool moe_sources_blame(moe_read_sources *sources, uint32_t source)
{
    return ++sources->of[source].n_failed == MOST_FAILED;
}

uint32_t moe_sources_find_slow(moe_read_sources *sources, uint64_t now_ns)
{
    double best = best_speed(sources);
    for (uint32_t i = 0; i < sources->n; i++) {
        moe_read_source *s = &sources->of[i];
        double speed = speed_of(s);
        bool silent = s->n_blocks > 0 && now_ns > s->last_ns && now_ns - s->last_ns > SILENT_NS;
        bool slow = s->busy_ns > MEASURED_NS && speed * SLOWER < best;
        if (!s->told_slow && (silent || slow)) {
            s->told_slow = true;
            return i;
        }
    }
    return MOE_NO_SOURCE;
}

double moe_sources_speed(const moe_read_sources *sources, uint32_t source)
{
    return speed_of(&sources->of[source]) * 1e9;
}
