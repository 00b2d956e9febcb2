/* SPDX-License-Identifier: MIT */
/* Measures how fast this engine's threads read memory when they do nothing else. This bounds
 * decoding, which reads every active weight once for each token. The threads sum parts of a buffer
 * far larger than the caches. */
#include <string.h>

#include <moe/lab.h>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine_state.h"

#define BUFFER_BYTES ((size_t)512 << 20)
#define N_STREAMS    8
#define PART_BYTES   ((size_t)8 << 20)

typedef uint64_t vector __attribute__((vector_size(64), aligned(64)));

typedef struct read_job {
    const uint8_t *buffer;
    moe_task_queue parts;
    _Atomic uint64_t sink; /* so that the compiler keeps the sums */
} read_job;

/* In versions by instruction set, like the kernels: one load per cache line reads a quarter faster
 * than four loads. */
__attribute__((target_clones("avx512f", "avx2", "default"))) static uint64_t
read_vectors(const vector *v, size_t n)
{
    vector sums[N_STREAMS] = {0};
    for (size_t i = 0; i < n; i += N_STREAMS) {
        for (int s = 0; s < N_STREAMS; s++) {
            sums[s] ^= v[i + (size_t)s];
        }
    }
    uint64_t sum = 0;
    for (int s = 0; s < N_STREAMS; s++) {
        sum ^= sums[s][0] ^ sums[s][7];
    }
    return sum;
}

static void read_parts(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)worker;
    (void)n_workers;
    read_job *job = arg;
    for (size_t p; (p = moe_task_next(&job->parts)) < BUFFER_BYTES / PART_BYTES;) {
        const vector *part = (const vector *)(job->buffer + p * PART_BYTES);
        atomic_fetch_xor(&job->sink, read_vectors(part, PART_BYTES / sizeof(vector)));
    }
}

int moe_engine_measure_bandwidth(moe_engine *engine, double *bytes_per_s, moe_error *err)
{
    if (engine == NULL || bytes_per_s == NULL) {
        return moe_fail_null(err, "moe_engine_measure_bandwidth", "engine or bytes_per_s");
    }
    void *buffer;
    *bytes_per_s = 0.0;
    int status = moe_engine_need_model(engine, "measuring", err);
    if (status != MOE_OK) {
        return status;
    }
    if (engine->plan.has_device_memory && !engine->device->simulated) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the threads' read bandwidth is no bound for %s, which has memory of its "
                        "own",
                        engine->device->name);
    }
    if (engine->plan.total + BUFFER_BYTES > engine->plan.budget) {
        return moe_fail(err, MOE_ERR_BUDGET,
                        "the memory budget has no room for the %zu MiB that measuring takes",
                        BUFFER_BYTES >> 20);
    }
    status = engine->device->ops->alloc(engine->device, BUFFER_BYTES, &buffer, err);
    if (status != MOE_OK) {
        return status;
    }
    memset(buffer, 1, BUFFER_BYTES);
    for (int repeat = 0; repeat < 3; repeat++) {
        read_job job = {.buffer = buffer};
        uint64_t begin = moe_now_ns();
        moe_team_run(engine->team, read_parts, &job);
        double speed = (double)BUFFER_BYTES * 1e9 / (double)(moe_now_ns() - begin);
        *bytes_per_s = speed > *bytes_per_s ? speed : *bytes_per_s;
    }
    engine->device->ops->free(engine->device, buffer, BUFFER_BYTES);
    return MOE_OK;
}
