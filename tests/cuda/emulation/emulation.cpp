/* SPDX-License-Identifier: MIT */
/* The threads of a block as fibers. A thread is READY until it waits or ends; a warp runs on until
 * all of its threads are at a barrier of the block or have ended. AT_EXCHANGE and AT_WARP_BARRIER
 * become READY when the whole warp is there (run_warp), AT_BARRIER when the whole block is
 * (run_block).
 *
 * Nothing says in which order the hardware runs blocks, the warps of a block, and threads between
 * two points where they meet. So one launch runs them forward, the next one backward, the third one
 * mixed anew each time. */
#include "cuda_fp16.h"
#include "cuda_pipeline_primitives.h"
#include "fiber.h"
#include "watch.h"

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <vector>

namespace emulation
{
namespace
{
constexpr unsigned WARP = 32;
constexpr unsigned MAX_THREADS = 1024;

enum state : uint8_t { READY, AT_BARRIER, AT_EXCHANGE, AT_WARP_BARRIER, ENDED };

/* Of each thread; apart, because a round looks at one of them for all threads. */
std::vector<moe_fiber> fibers;
std::vector<std::unique_ptr<char[]>> stacks;
state states[MAX_THREADS];
uint32_t n_exchanges[MAX_THREADS];
uint32_t given[2][MAX_THREADS]; /* in the last two exchanges: nobody is more than one ahead */
uint32_t fragments[2][MAX_THREADS][6]; /* likewise: four words of a, two of b */
float halves[2][MAX_THREADS][12];      /* likewise, eight of a, four of b */
uint32_t asked[MAX_THREADS];           /* by which mask, in the last one */
enum : uint32_t { ASKS_BYTES = WARP, ASKS_HALVES = WARP + 1, ASKS_MATRICES, ASKS_COLUMNS };

struct copy {
    void *shared;
    const void *global;
    size_t bytes;
};
/* Of each thread: the commitments that it has not waited for, the last one still open. */
std::deque<std::vector<copy>> copies[MAX_THREADS];

std::vector<char> shared;
const std::function<void()> *program;

/* Of a launch that may begin early: the threads that have not waited for the kernels ahead. */
bool early_threads[MAX_THREADS];

/* The orders of a launch. */
uint32_t launch_number;
uint32_t mixing;

/* Does something for each of 0 .. n - 1, in the launch's order. An odd multiple modulo a power of
 * two goes through all numbers below it; those from n on are passed over. */
template <typename Do> void in_some_order(uint32_t n, Do something)
{
    uint32_t mask = 0;
    while (mask < n - 1)
        mask = 2 * mask + 1;
    uint32_t factor = 1;
    uint32_t first = 0;
    if (launch_number % 3 == 1) {
        factor = mask;
        first = n - 1;
    } else if (launch_number % 3 == 2) {
        mixing = mixing * 1664525u + 1013904223u;
        factor = mixing >> 8 | 1;
        first = mixing >> 16;
    }
    for (uint32_t i = 0; i <= mask; i++) {
        uint32_t number = (i * factor + first) & mask;
        if (number < n)
            something(number);
    }
}

/* The warp's threads that run until each of them waits, in the launch's order: threads first +
 * lane, without those that are not READY. */
unsigned turns[WARP];
unsigned n_turns, next_turn;

void take_turn(unsigned thread)
{
    here.thread.x = thread;
    if (watching != nullptr)
        watching->begin_thread(thread, fibers[thread].stack);
}

/* The next thread of the warp goes on, or run_warp() when there is none. */
void wait_in(state s)
{
    unsigned self = here.thread.x;
    states[self] = s;
    if (next_turn == n_turns) {
        moe_fiber_leave(&fibers[self]);
        return;
    }
    unsigned next = turns[next_turn++];
    take_turn(next);
    moe_fiber_pass(&fibers[self], &fibers[next]);
}

void run_thread()
{
    (*program)();
    if (early_threads[here.thread.x])
        broken("a thread of an early launch that ends without waiting for the kernels ahead");
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
        n_turns = 0;
        in_some_order(WARP, [=](unsigned lane) {
            if (states[first + lane] == READY)
                turns[n_turns++] = first + lane;
        });
        if (n_turns > 0) {
            next_turn = 1;
            take_turn(turns[0]);
            moe_fiber_enter(&fibers[turns[0]]);
        }
        unsigned exchanging = count(first, WARP, AT_EXCHANGE);
        unsigned in_step = count(first, WARP, AT_WARP_BARRIER);
        if (exchanging + in_step == 0)
            return;
        for (unsigned i = first; exchanging == WARP && i < first + WARP; i++)
            if (asked[i] != asked[first])
                broken("a shuffle by different masks");
        if (exchanging != WARP && in_step != WARP)
            broken("a shuffle or a barrier of the warp without the whole warp");
        if (in_step != 0 && watching != nullptr)
            watching->warp_barrier(first / WARP);
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
        in_some_order(n / WARP, [](unsigned warp) { run_warp(warp * WARP); });
        if (count(0, n, ENDED) == n)
            return;
        if (count(0, n, AT_BARRIER) < n)
            broken("a barrier that not all threads reach");
        if (watching != nullptr)
            watching->barrier();
        release(0, n);
    }
}
} // namespace

void (*defer)(cudaStream_t stream, std::function<void()> kernel);
place here;
const watcher *watching;
bool (*can_reach)(const void *memory, size_t bytes);
#ifdef MOE_EMULATION_HAS_PTX
const translator *translating = translator_asked_for();
#else
const translator *translating;
#endif
static uint32_t seed_asked_for(void)
{
    const char *seed = getenv("MOE_EMULATION_SEED");
    return seed != nullptr ? (uint32_t)strtoul(seed, nullptr, 10) : 0;
}
uint32_t line;

[[noreturn]] void broken(const char *what)
{
    fprintf(stderr, "emulated kernel: %s (block %u %u %u, thread %u; launch %u)\n", what,
            here.block.x, here.block.y, here.block.z, here.thread.x, launch_number);
    abort();
}

void begin_kernel(void)
{
    if (watching != nullptr)
        watching->begin_kernel();
}

void wait_for_stream(void)
{
    early_threads[here.thread.x] = false;
}

void set_early(unsigned n_threads, bool early)
{
    std::fill_n(early_threads, n_threads, early);
}

bool is_early(unsigned thread)
{
    return early_threads[thread];
}

void block_barrier(void)
{
    wait_in(AT_BARRIER);
}

void warp_barrier(void)
{
    wait_in(AT_WARP_BARRIER);
}

uint32_t exchange(uint32_t threads, uint32_t value, uint32_t mask)
{
    if (threads != UINT32_MAX)
        broken("a shuffle that is not the whole warp's");
    unsigned self = here.thread.x;
    unsigned turn = n_exchanges[self]++ % 2;
    given[turn][self] = value;
    asked[self] = mask;
    wait_in(AT_EXCHANGE);
    return given[turn][self ^ mask];
}

/* Thread 4 * i + j of a warp holds words of a's rows i and i + 8 and of b's column i; it computes
 * the outputs of these two rows and of columns 2 * j and 2 * j + 1. The bytes of both are put in a
 * line first, so that the compiler makes vectors of the products. */
void multiply(unsigned k, const uint32_t *a, const uint32_t *b, int c, int *out)
{
    unsigned self = here.thread.x;
    unsigned turn = n_exchanges[self]++ % 2;
    memcpy(fragments[turn][self], a, k / 8 * sizeof *a);
    memcpy(fragments[turn][self] + 4, b, k / 16 * sizeof *b);
    asked[self] = ASKS_BYTES * k; /* no mask of a shuffle */
    wait_in(AT_EXCHANGE);
    const uint32_t(*warp)[6] = &fragments[turn][self - self % WARP];
    const unsigned first_row = self % WARP / 4, first_column = self % 4 * 2;
    int8_t rows[2][32], columns[2][32];
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned word = 0; word < k / 4; word++) {
            const uint32_t *of_row = warp[first_row * 4 + word % 4];
            const uint32_t *of_column = warp[(first_column + i) * 4 + word % 4];
            memcpy(rows[i] + 4 * word, &of_row[i + word / 4 * 2], 4);
            memcpy(columns[i] + 4 * word, &of_column[4 + word / 4], 4);
        }
    }
    for (unsigned i = 0; i < 4; i++) {
        int sum = c;
        for (unsigned at = 0; at < k; at++)
            sum += rows[i / 2][at] * columns[i % 2][at];
        out[i] = sum;
    }
}

/* The fragments of half_units.cuh: each thread widens its own. A product of halves is exact in
 * floats. */
void multiply_halves(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    unsigned self = here.thread.x;
    unsigned turn = n_exchanges[self]++ % 2;
    const uint32_t words[6] = {a[0], a[1], a[2], a[3], b0, b1};
    for (unsigned i = 0; i < 12; i++)
        halves[turn][self][i] = moe_half_to_float((uint16_t)(words[i / 2] >> i % 2 * 16));
    asked[self] = ASKS_HALVES;
    wait_in(AT_EXCHANGE);
    const float(*warp)[12] = &halves[turn][self - self % WARP];
    const unsigned first_row = self % WARP / 4 * 4, first_column = self % 4 * 2 * 4;
    for (unsigned k = 0; k < 16; k++) {
        const float *of_row = warp[first_row + k % 8 / 2] + k / 8 * 4 + k % 2;
        for (unsigned i = 0; i < 4; i++)
            c[i] += of_row[i / 2 * 2] *
                    warp[first_column + i % 2 * 4 + k % 8 / 2][8 + k / 8 * 2 + k % 2];
    }
}

void load_matrices(uint32_t *out, const void *row, bool exchanged)
{
    unsigned self = here.thread.x, lane = self % WARP;
    unsigned turn = n_exchanges[self]++ % 2;
    if ((uintptr_t)row % 16 != 0)
        broken("a row of a matrix that is not aligned");
    if (watching != nullptr)
        watching->touch(row, 16, READ, __builtin_return_address(0));
    memcpy(fragments[turn][self], row, 16);
    asked[self] = exchanged ? ASKS_COLUMNS : ASKS_MATRICES;
    wait_in(AT_EXCHANGE);
    const uint32_t(*warp)[6] = &fragments[turn][self - lane];
    for (unsigned i = 0; i < 4; i++) {
        if (!exchanged) {
            out[i] = warp[8 * i + lane / 4][lane % 4];
            continue;
        }
        out[i] = 0;
        for (unsigned r = 0; r < 2; r++) {
            const uint32_t word = warp[8 * i + lane % 4 * 2 + r][lane / 8];
            out[i] |= (word >> lane / 4 % 2 * 16 & 0xffff) << 16 * r;
        }
    }
}

void copy_async(void *target, const void *global, size_t bytes)
{
    if ((bytes != 4 && bytes != 8 && bytes != 16) ||
        ((uintptr_t)target | (uintptr_t)global) % bytes != 0)
        broken("a copy to shared memory that the hardware does not take");
    if (watching != nullptr)
        watching->touch(target, bytes, COPY_BEGUN, __builtin_return_address(0));
    memset(target, 0xff, bytes);
    copies[here.thread.x].back().push_back({target, global, bytes});
}

void commit_copies(void)
{
    copies[here.thread.x].push_back({});
}

void wait_for_copies(size_t commits_under_way)
{
    auto &own = copies[here.thread.x];
    while (own.size() > commits_under_way + 1) {
        for (const copy &c : own.front()) {
            if (watching != nullptr) {
                watching->touch(c.global, c.bytes, READ, __builtin_return_address(0));
                watching->touch(c.shared, c.bytes, COPY_DONE, __builtin_return_address(0));
            }
            memcpy(c.shared, c.global, c.bytes);
        }
        own.pop_front();
    }
}

void *shared_memory(void)
{
    return (void *)(((uintptr_t)shared.data() + 63) / 64 * 64);
}

/* Whatever it does, nobody else does anything in between: fibers take turns only where they wait.
 */
template <typename Change> static uint32_t change_atomically(uint32_t *word, Change change)
{
    if (watching != nullptr)
        watching->touch(word, sizeof(*word), ATOMIC, __builtin_return_address(0));
    uint32_t before = *word;
    *word = change(before);
    return before;
}

uint32_t atomic_or(uint32_t *word, uint32_t bits)
{
    return change_atomically(word, [=](uint32_t before) { return before | bits; });
}

uint32_t atomic_add(uint32_t *word, uint32_t value)
{
    return change_atomically(word, [=](uint32_t before) { return before + value; });
}

uint32_t atomic_cas(uint32_t *word, uint32_t expected, uint32_t value)
{
    return change_atomically(word,
                             [=](uint32_t before) { return before == expected ? value : before; });
}

std::atomic<uint64_t> n_early_kernels;

static void run_grid(uint32_t number, dim3 grid, dim3 block, size_t shared_bytes,
                     const bound_kernel &kernel)
{
    unsigned n = block.x;
    const void *found = translating != nullptr ? translating->find(kernel.name) : nullptr;
    size_t all_shared =
        found != nullptr ? translating->shared_bytes(found, shared_bytes) : shared_bytes;
    uint32_t n_blocks = grid.x * grid.y * grid.z;
    while (fibers.size() < n) {
        /* Not all at the same place in a page: their tops would share a few sets of the cache. */
        size_t shift = fibers.size() * 320 % 4096;
        stacks.push_back(std::make_unique<char[]>(shift + MOE_FIBER_STACK));
        fibers.push_back({stacks.back().get() + shift, nullptr, nullptr});
    }
    n_early_kernels += kernel.early;
    launch_number = number;
    mixing = number;
    program = &kernel.thread;
    here.grid_size = grid;
    here.block_size = block;
    if (watching != nullptr)
        watching->begin_launch(n_blocks);
    in_some_order(n_blocks, [=](uint32_t i) {
        shared.assign(all_shared + 64, (char)0xff);
        here.block = {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
        set_early(n, kernel.early);
        if (watching != nullptr)
            watching->begin_block(i, (char *)shared_memory(), all_shared);
        if (found != nullptr) {
            for (unsigned thread = 0; thread < n; thread++)
                copies[thread].assign(1, {});
            translating->run(found, kernel.arguments, n, (char *)shared_memory(), shared_bytes,
                             number + i);
        } else {
            run_block(n);
        }
        if (watching != nullptr)
            watching->end_block();
    });
}

void launch(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes,
            const bound_kernel &kernel, size_t max_shared)
{
    static std::atomic<uint32_t> n_launches;
    unsigned n = block.x;
    if (n == 0 || n % WARP != 0 || n > MAX_THREADS || block.y != 1 || block.z != 1)
        broken("a block that is not of whole warps in one dimension, 1024 threads at most");
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > INT32_MAX || grid.y > 65535 ||
        grid.z > 65535)
        broken("a grid that the hardware does not take");
    if (shared_bytes > max_shared)
        broken("more shared memory than a block has");
    static const uint32_t seed = seed_asked_for();
    uint32_t number = seed + n_launches++;
    if (defer != nullptr)
        defer(stream, [=] { run_grid(number, grid, block, shared_bytes, kernel); });
    else
        run_grid(number, grid, block, shared_bytes, kernel);
}
} // namespace emulation
