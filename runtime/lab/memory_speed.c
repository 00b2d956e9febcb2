/* SPDX-License-Identifier: MIT */
#include "runtime/lab/memory_speed.h"

#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"

#define N_STREAMS  8
#define PART_BYTES ((size_t)8 << 20)

typedef uint64_t vector __attribute__((vector_size(64), aligned(64)));

typedef struct read_job {
    const uint8_t *buffer;
    moe_task_queue parts;
    _Atomic uint64_t sink; /* so that the compiler keeps the sums */
} read_job;

/* Sums a part of the buffer. Compiled for several instruction sets, like the kernels: one load per
 * cache line (AVX-512) reads a quarter faster than four loads. */
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
    for (size_t p; (p = moe_task_next(&job->parts)) < MOE_MEMORY_SPEED_BYTES / PART_BYTES;) {
        const vector *part = (const vector *)(job->buffer + p * PART_BYTES);
        atomic_fetch_xor(&job->sink, read_vectors(part, PART_BYTES / sizeof(vector)));
    }
}

int moe_memory_speed(moe_team *team, moe_device *device, double *bytes_per_s, moe_error *err)
{
    void *buffer;
    MOE_TRY(device->ops->alloc(device, MOE_MEMORY_SPEED_BYTES, &buffer, err));
    memset(buffer, 1, MOE_MEMORY_SPEED_BYTES);
    for (int repeat = 0; repeat < 3; repeat++) {
        read_job job = {.buffer = buffer};
        uint64_t begin = moe_now_ns();
        moe_team_run(team, read_parts, &job);
        double speed = (double)MOE_MEMORY_SPEED_BYTES * 1e9 / (double)(moe_now_ns() - begin);
        *bytes_per_s = speed > *bytes_per_s ? speed : *bytes_per_s;
    }
    device->ops->free(device, buffer, MOE_MEMORY_SPEED_BYTES);
    return MOE_OK;
}
