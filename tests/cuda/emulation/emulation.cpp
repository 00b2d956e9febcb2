/* SPDX-License-Identifier: MIT */
/* The threads of a block as fibers. A thread is READY until it waits or ends; a warp runs on until
 * all of its threads are at a barrier of the block or have ended. AT_EXCHANGE becomes READY when
 * the whole warp is there (run_warp), AT_BARRIER when the whole block is (run_block). */
#include "cuda_pipeline_primitives.h"
#include "fiber.h"

#include <stdio.h>
#include <stdlib.h>

#include <memory>
#include <deque>
#include <vector>

namespace emulation
{
namespace
{
constexpr unsigned WARP = 32;
constexpr unsigned MAX_THREADS = 1024;
constexpr size_t MAX_SHARED = 48u << 10; /* without asking for more */

enum state { READY, AT_BARRIER, AT_EXCHANGE, ENDED };

/* Of each thread; apart, because a round looks at one of them for all threads. */
std::vector<moe_fiber> fibers;
std::vector<std::unique_ptr<char[]>> stacks;
state states[MAX_THREADS];
uint32_t n_exchanges[MAX_THREADS];
uint32_t given[2][MAX_THREADS]; /* in the last two exchanges: nobody is more than one ahead */

struct copy {
    void *shared;
    const void *global;
    size_t bytes;
};
/* Of each thread: the commitments that it has not waited for, the last one still open. */
std::deque<std::vector<copy>> copies[MAX_THREADS];

std::vector<char> shared;
const std::function<void()> *program;

[[noreturn]] void broken(const char *what)
{
    fprintf(stderr, "emulated kernel: %s (block %u %u %u, thread %u)\n", what, block_index.x,
            block_index.y, block_index.z, thread_index.x);
    abort();
}

void wait_in(state s)
{
    unsigned self = thread_index.x;
    states[self] = s;
    moe_fiber_leave(&fibers[self]);
}

void run_thread()
{
    (*program)();
    wait_in(ENDED);
}

unsigned count(unsigned first, unsigned n, state s)
{
    unsigned found = 0;
    for (unsigned i = first; i < first + n; i++)
        found += states[i] == s;
    return found;
}

void release(unsigned first, unsigned n)
{
    for (unsigned i = first; i < first + n; i++)
        states[i] = READY;
}

/* Until no thread of the warp can go on by itself. */
void run_warp(unsigned first)
{
    for (;;) {
        for (unsigned i = first; i < first + WARP; i++) {
            if (states[i] != READY)
                continue;
            thread_index.x = i;
            moe_fiber_enter(&fibers[i]);
        }
        unsigned exchanging = count(first, WARP, AT_EXCHANGE);
        if (exchanging == 0)
            return;
        if (exchanging < WARP)
            broken("a shuffle without the whole warp");
        release(first, WARP);
    }
}

void run_block(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        n_exchanges[i] = 0;
        states[i] = READY;
        copies[i].assign(1, {});
        moe_fiber_prepare(&fibers[i], run_thread);
    }
    for (;;) {
        for (unsigned first = 0; first < n; first += WARP)
            run_warp(first);
        if (count(0, n, ENDED) == n)
            return;
        if (count(0, n, AT_BARRIER) < n)
            broken("a barrier that not all threads reach");
        release(0, n);
    }
}
} // namespace

void (*defer)(cudaStream_t stream, std::function<void()> kernel);
uint3 thread_index;
uint3 block_index;
dim3 block_size;
dim3 grid_size;

void block_barrier(void)
{
    wait_in(AT_BARRIER);
}

uint32_t exchange(uint32_t value, uint32_t mask)
{
    unsigned self = thread_index.x;
    unsigned turn = n_exchanges[self]++ % 2;
    given[turn][self] = value;
    wait_in(AT_EXCHANGE);
    return given[turn][self ^ mask];
}

void copy_async(void *target, const void *global, size_t bytes)
{
    if ((bytes != 4 && bytes != 8 && bytes != 16) ||
        ((uintptr_t)target | (uintptr_t)global) % bytes != 0)
        broken("a copy to shared memory that the hardware does not take");
    memset(target, 0xff, bytes);
    copies[thread_index.x].back().push_back({target, global, bytes});
}

void commit_copies(void)
{
    copies[thread_index.x].push_back({});
}

void wait_for_copies(size_t commits_under_way)
{
    auto &own = copies[thread_index.x];
    while (own.size() > commits_under_way + 1) {
        for (const copy &c : own.front())
            memcpy(c.shared, c.global, c.bytes);
        own.pop_front();
    }
}

void *shared_memory(void)
{
    return (void *)(((uintptr_t)shared.data() + 63) / 64 * 64);
}

static void run_grid(dim3 grid, dim3 block, size_t shared_bytes,
                     const std::function<void()> &thread)
{
    unsigned n = block.x;
    while (fibers.size() < n) {
        stacks.push_back(std::make_unique<char[]>(MOE_FIBER_STACK));
        fibers.push_back({stacks.back().get(), nullptr, nullptr});
    }
    program = &thread;
    grid_size = grid;
    block_size = block;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                shared.assign(shared_bytes + 64, (char)0xff);
                block_index = {x, y, z};
                run_block(n);
            }
}
void launch(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes,
            const std::function<void()> &thread)
{
    unsigned n = block.x;
    if (n == 0 || n % WARP != 0 || n > MAX_THREADS || block.y != 1 || block.z != 1)
        broken("a block that is not of whole warps in one dimension, 1024 threads at most");
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535)
        broken("a grid that the hardware does not take");
    if (shared_bytes > MAX_SHARED)
        broken("more shared memory than a block has");
    if (defer != nullptr)
        defer(stream, [=] { run_grid(grid, block, shared_bytes, thread); });
    else
        run_grid(grid, block, shared_bytes, thread);
}
} // namespace emulation
