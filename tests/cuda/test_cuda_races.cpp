/* SPDX-License-Identifier: MIT */
/* The emulation's watch for races (emulation/races.cpp): kernels that have one must be reported,
 * each in a process of its own, which a report ends; the same kernels put right must not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include <cuda_pipeline_primitives.h>

#include "cuda/kernels/vector_math.cuh"

#define THREADS 64u
#define BLOCKS  3u

/* What a kernel does to be right, or leaves out. */
enum way { RIGHT, WRONG };

__device__ static void meet(way how)
{
    if (how == RIGHT)
        __syncthreads();
}

/* Written by one warp, read by the other. */
__global__ void write_read(way how, uint32_t *out)
{
    __shared__ uint32_t values[THREADS];
    values[threadIdx.x] = threadIdx.x;
    meet(how);
    out[blockIdx.x * THREADS + threadIdx.x] = values[THREADS - 1 - threadIdx.x];
}

/* Read by one warp, then written by the other; in variable shared memory. */
__global__ void read_write(way how, uint32_t *out)
{
    MOE_DYNAMIC_SHARED(uint32_t, values);
    values[threadIdx.x] = 7;
    __syncthreads();
    out[blockIdx.x * THREADS + threadIdx.x] = values[THREADS - 1 - threadIdx.x];
    meet(how);
    values[threadIdx.x] = 8;
}

/* Two warps write one word. */
__global__ void write_write(way how, uint32_t *out)
{
    __shared__ uint32_t value;
    if (threadIdx.x == 0)
        value = 1;
    meet(how);
    if (threadIdx.x == MOE_WARP)
        value = 2;
    __syncthreads();
    out[blockIdx.x * THREADS + threadIdx.x] = value;
}

/* Within a warp. A shuffle puts nothing in order. */
__global__ void write_read_in_warp(way how, uint32_t *out)
{
    __shared__ uint32_t values[THREADS];
    uint32_t other = __shfl_xor_sync(MOE_ALL_WARP, threadIdx.x, 1);
    values[threadIdx.x] = threadIdx.x;
    if (how == RIGHT)
        __syncwarp();
    else
        other = __shfl_xor_sync(MOE_ALL_WARP, threadIdx.x, 1);
    out[blockIdx.x * THREADS + threadIdx.x] = values[other];
}

/* Several threads read; a barrier of one warp orders it, and not the other. */
__global__ void warps_in_step(way how, uint32_t *out)
{
    __shared__ uint32_t value;
    if (threadIdx.x == 0)
        value = 1;
    __syncthreads();
    uint32_t seen = value;
    __syncwarp();
    meet(how);
    if (threadIdx.x == 0)
        value = 2;
    out[blockIdx.x * THREADS + threadIdx.x] = seen;
}

/* Neighbours in one word are no race, the same byte is one. */
__global__ void bytes(way how, uint32_t *out)
{
    uint8_t *target = (uint8_t *)out;
    target[blockIdx.x * THREADS + threadIdx.x / (how == RIGHT ? 1 : 2)] = (uint8_t)threadIdx.x;
}

/* Between blocks: nothing but the end of the launch orders them. */
__global__ void blocks(way how, uint32_t *out)
{
    if (threadIdx.x > 0)
        return;
    out[how == RIGHT ? blockIdx.x : 0] = blockIdx.x;
}

__global__ void atomics(way how, uint32_t *out)
{
    atomicAdd(&out[0], 1u);
    if (how == WRONG && threadIdx.x == 0)
        out[1] = out[0];
}

struct alignas(16) piece {
    uint32_t v[4];
};

/* What a neighbour had copied. */
__global__ void copies(way waits, way in_step, const piece *from, uint32_t *out)
{
    __shared__ piece pieces[THREADS];
    __pipeline_memcpy_async(&pieces[threadIdx.x], from, sizeof(piece));
    __pipeline_commit();
    if (waits == RIGHT)
        __pipeline_wait_prior(0);
    if (in_step == RIGHT)
        __syncwarp();
    out[blockIdx.x * THREADS + threadIdx.x] = pieces[threadIdx.x ^ 1].v[0];
}

/* A place is filled while others of the warp may still read what was there. */
__global__ void copy_over(way how, const piece *from, uint32_t *out)
{
    __shared__ piece pieces[THREADS];
    pieces[threadIdx.x].v[0] = 1;
    __syncwarp();
    uint32_t seen = pieces[threadIdx.x ^ 1].v[0];
    if (how == RIGHT)
        __syncwarp();
    __pipeline_memcpy_async(&pieces[threadIdx.x], from, sizeof(piece));
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[blockIdx.x * THREADS + threadIdx.x] = seen;
}

static piece source;
static uint32_t result[THREADS * BLOCKS];

#define RUN(kernel, bytes, ...) MOE_LAUNCH(kernel, BLOCKS, THREADS, bytes, NULL, __VA_ARGS__)

typedef void (*run_fn)(way how);

static const struct {
    const char *name;
    run_fn run;
} cases[] = {
    {"write_read", [](way how) { RUN(write_read, 0, how, result); }},
    {"read_write", [](way how) { RUN(read_write, THREADS * 4, how, result); }},
    {"write_write", [](way how) { RUN(write_write, 0, how, result); }},
    {"write_read_in_warp", [](way how) { RUN(write_read_in_warp, 0, how, result); }},
    {"warps_in_step", [](way how) { RUN(warps_in_step, 0, how, result); }},
    {"bytes", [](way how) { RUN(bytes, 0, how, result); }},
    {"blocks", [](way how) { RUN(blocks, 0, how, result); }},
    {"atomics", [](way how) { RUN(atomics, 0, how, result); }},
    {"copies, no wait", [](way how) { RUN(copies, 0, how, RIGHT, &source, result); }},
    {"copies, not in step", [](way how) { RUN(copies, 0, RIGHT, how, &source, result); }},
    {"copy_over", [](way how) { RUN(copy_over, 0, how, &source, result); }},
};

/* Whether the kernel, in a process of its own, ends with a report. */
static bool is_reported(run_fn run, way how)
{
    int ends[2];
    char said[4096] = "";
    size_t length = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        run(how);
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], said + length, sizeof(said) - 1 - length)) > 0;)
        length += (size_t)n;
    close(ends[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    bool raced = strstr(said, ": a race in ") != NULL;
    if (raced ? !WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT : status != 0)
        fail_msg("the kernel ended otherwise: status %d, %s", status, said);
    return raced;
}

static void races_are_reported(void **)
{
    for (const auto &c : cases) {
        if (!is_reported(c.run, WRONG))
            fail_msg("%s: its race is not reported", c.name);
        if (is_reported(c.run, RIGHT))
            fail_msg("%s: a race is reported that it does not have", c.name);
    }
}

/* Who comes when. Not a race, and still no two launches need agree. */
__global__ void tickets(uint32_t *n, uint32_t *order)
{
    order[atomicAdd(n, 1u)] = blockIdx.x * THREADS + threadIdx.x;
}

static void orders_take_turns(void **)
{
    bool forward = false, backward = false, mixed = false;
    for (int launch = 0; launch < 3; launch++) {
        uint32_t n = 0;
        uint32_t ascending = 0, descending = 0;
        RUN(tickets, 0, &n, result);
        assert_int_equal(n, THREADS * BLOCKS);
        for (uint32_t i = 0; i < n; i++) {
            ascending += result[i] == i;
            descending += result[i] == n - 1 - i;
        }
        forward |= ascending == n;
        backward |= descending == n;
        mixed |= ascending < n && descending < n;
        /* A block runs to its end, and a warp as far as it can. */
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(result[i] / MOE_WARP, result[i / MOE_WARP * MOE_WARP] / MOE_WARP);
    }
    assert_true(forward && backward && mixed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(races_are_reported),
        cmocka_unit_test(orders_take_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
