/* SPDX-License-Identifier: MIT */
/* Finds races of kernels, in shared and in global memory.
 *
 * The kernels' sources are compiled with -fsanitize=thread, which calls a function at each access
 * to memory. Those functions are here, in place of the sanitizer's own library, which knows nothing
 * of a GPU's threads. Two accesses to a byte, one of them writing, are a race unless one comes
 * before the other by these rules, which are CUDA's at their strictest:
 *
 *   - a thread's own accesses are in order;
 *   - __syncthreads() orders all threads of a block;
 *   - __syncwarp() orders those of a warp. Shuffles do not: they converge a warp and order nothing;
 *   - blocks of one launch are not ordered by anything, those of different launches are;
 *   - atomic operations do not race with each other, and order nothing;
 *   - the target of an asynchronous copy is out of bounds for everybody until the thread that asked
 *     has waited; the copy then counts as that thread's.
 *
 * So what is found does not depend on the order in which the emulation runs the threads, as long as
 * they take the same way through the kernel. The first race ends the test.
 *
 * Of each word (or byte, in pages where somebody was seen to use less than a word) there are two
 * records: the last write, and the reads since. Several reads need but one record, because what
 * orders a write behind the reads of a warp, or of a block, orders it behind all of them: it is the
 * last one and whether there were others that it does not stand for. */
#include "cuda_runtime.h"
#include "fiber.h"
#include "watch.h"

#include <stdio.h>
#include <string.h>

#include <memory>
#include <unordered_map>
#include <vector>

extern "C" {
extern const char __executable_start[], __data_start[]; /* code and constants are between */
extern const char __start_moe_device_tables[] __attribute__((weak));
extern const char __stop_moe_device_tables[] __attribute__((weak));
/* Of the linker: where the kernels' __shared__ variables are. Those of templates are not (gcc puts
 * them elsewhere whatever it is told), and would be reported as raced for by blocks. */
extern char __start_moe_shared[] __attribute__((weak));
extern char __stop_moe_shared[] __attribute__((weak));
}

namespace
{
constexpr unsigned WARP = 32;
constexpr unsigned MAX_WARPS = 32;
constexpr size_t PAGE = 4096;
constexpr size_t N_RECENT = 256;

enum flag : uint8_t {
    THREADS = 1, /* other threads of the warp too since it was last in step */
    WARPS = 2,   /* other warps of the block too since its last barrier */
    BLOCKS = 4,  /* other blocks of the launch too */
    IS_ATOMIC = 8,
    UNDER_WAY = 16, /* a copy that nobody has waited for */
};

/* Who touched it last, and when: as many barriers and warp barriers as he had passed. */
struct record {
    uint32_t block; /* counted through all launches; 0: nobody */
    uint32_t barriers;
    uint32_t warp_barriers;
    uint16_t thread;
    uint8_t flags;
    uint32_t code; /* from the program's start */
};

struct cell {
    record written;
    record read; /* since then */
};

struct page {
    size_t grain;     /* bytes that share a cell: 4 or 1 */
    uint32_t reached; /* the last launch that may use all of it, by its first block */
    std::vector<cell> cells;
};

std::unordered_map<uintptr_t, std::unique_ptr<page>> pages;
struct {
    uintptr_t number;
    page *found;
} recent[N_RECENT];

uint32_t first_block; /* of the launch */
uint32_t n_blocks = 1;
record now;
/* Host code is compiled in the same way, and may run on other threads of the host meanwhile. */
thread_local bool in_block;
bool in_kernel[MAX_WARPS * WARP]; /* by thread */
uint32_t warp_barriers[MAX_WARPS];
const char *own_stack;
char *variable_shared;
size_t variable_bytes;

bool is_shared(uintptr_t at)
{
    return at - (uintptr_t)variable_shared < variable_bytes ||
           at - (uintptr_t)__start_moe_shared < (uintptr_t)(__stop_moe_shared - __start_moe_shared);
}

bool is_device_table(uintptr_t at)
{
    return at - (uintptr_t)__start_moe_device_tables <
           (uintptr_t)__stop_moe_device_tables - (uintptr_t)__start_moe_device_tables;
}

/* Of an earlier launch, or of another block's shared memory. */
bool is_void(const record &r, bool shared)
{
    return r.block < first_block || (shared && r.block != now.block);
}

/* Whether all that the record stands for comes before this thread's now. */
bool is_before(const record &r, bool shared)
{
    if (is_void(r, shared))
        return true;
    if ((r.flags & BLOCKS) != 0 || r.block != now.block)
        return false;
    if ((r.flags & UNDER_WAY) == 0 && r.barriers < now.barriers)
        return true;
    if ((r.flags & (UNDER_WAY | WARPS)) != 0 || r.thread / WARP != now.thread / WARP)
        return false;
    return r.warp_barriers < now.warp_barriers ||
           ((r.flags & THREADS) == 0 && r.thread == now.thread);
}

/* One more like those that the record stands for, which may be unordered. */
void join(record *r, bool shared)
{
    uint8_t flags = 0;
    if (!is_void(*r, shared)) {
        flags = r->flags & BLOCKS;
        if (r->block != now.block)
            flags |= BLOCKS;
        else if (r->barriers == now.barriers) {
            flags |= r->flags & WARPS;
            if (r->thread / WARP != now.thread / WARP)
                flags |= WARPS;
            else if (r->warp_barriers == now.warp_barriers)
                flags |= (r->flags & THREADS) | (r->thread != now.thread ? THREADS : 0);
        }
    }
    *r = now;
    r->flags = flags;
}

const char *name_of(bool writing, uint8_t flags)
{
    return (flags & UNDER_WAY) != 0   ? "an asynchronous copy"
           : (flags & IS_ATOMIC) != 0 ? "an atomic operation"
           : writing                  ? "a write"
                                      : "a read";
}

[[noreturn]] void report(uintptr_t at, bool shared, const char *what, const record &other,
                         const char *its)
{
    static char text[512];
    snprintf(text, sizeof(text),
             "a race in %s memory at 0x%zx: %s here, %s by thread %u of block %u of the launch "
             "(%s 0x%x 0x%x)",
             shared ? "shared" : "global", (size_t)at, what, its, other.thread,
             other.block - first_block,
             emulation::line != 0 ? "lines of the PTX:" : "addr2line -ipfe PROGRAM", now.code,
             other.code);
    emulation::broken(text);
}

/* Whether the record's last is this thread, which has met nobody since. */
bool is_now(const record &r)
{
    return r.block == now.block && r.thread == now.thread && r.barriers == now.barriers &&
           r.warp_barriers == now.warp_barriers;
}

void touch_cell(cell *c, uintptr_t at, emulation::access how)
{
    bool reads = how == emulation::READ;
    if (reads && is_now(c->read))
        return; /* once more */
    bool shared = is_shared(at);
    bool atomic = how == emulation::ATOMIC;
    uint8_t own = atomic ? IS_ATOMIC : how == emulation::COPY_BEGUN ? UNDER_WAY : 0;
    bool joins = atomic && (c->written.flags & IS_ATOMIC) != 0;
    bool ends = how == emulation::COPY_DONE && (c->written.flags & UNDER_WAY) != 0 &&
                c->written.block == now.block && c->written.thread == now.thread;
    if (!joins && !ends && !is_before(c->written, shared))
        report(at, shared, name_of(!reads, own), c->written, name_of(true, c->written.flags));
    if (!reads && !is_before(c->read, shared))
        report(at, shared, name_of(true, own), c->read, name_of(false, 0));
    if (reads) {
        join(&c->read, shared);
        return;
    }
    if (joins)
        join(&c->written, shared);
    else
        c->written = now;
    c->written.flags |= own;
    c->read = {};
}

page *page_of(uintptr_t number)
{
    auto &slot = recent[number % N_RECENT];
    if (slot.number != number || slot.found == nullptr) {
        std::unique_ptr<page> &found = pages[number];
        if (found == nullptr)
            found.reset(new page{4, 0, std::vector<cell>(PAGE / 4)});
        slot = {number, found.get()};
    }
    return slot.found;
}

void refine(page *p)
{
    std::vector<cell> bytes(PAGE);
    for (size_t i = 0; i < PAGE; i++)
        bytes[i] = p->cells[i / 4];
    p->cells = std::move(bytes);
    p->grain = 1;
}

/* Ends the test where a GPU would find nothing. */
void check_reach(page *p, const void *memory, size_t bytes)
{
    uintptr_t at = (uintptr_t)memory;
    if (p->reached == first_block || is_shared(at) || is_device_table(at))
        return;
    if (emulation::can_reach == nullptr) {
        if (at - (uintptr_t)__executable_start < (uintptr_t)(__data_start - __executable_start))
            emulation::broken("it is given a constant of the program, which no GPU can reach");
        return;
    }
    if (emulation::can_reach((const void *)(at / PAGE * PAGE), PAGE))
        p->reached = first_block;
    else if (!emulation::can_reach(memory, bytes))
        emulation::broken("it uses memory that no GPU can reach");
}

void touch(const void *memory, size_t bytes, emulation::access how, const void *code)
{
    uintptr_t at = (uintptr_t)memory;
    if (!in_block || at - (uintptr_t)own_stack < MOE_FIBER_STACK || !in_kernel[now.thread] ||
        at - (uintptr_t)&emulation::here < sizeof(emulation::here))
        return;
    now.code = emulation::line != 0 ? emulation::line
                                    : (uint32_t)((uintptr_t)code - (uintptr_t)__executable_start);
    if (emulation::is_early(now.thread) && !is_shared(at) && !is_device_table(at) &&
        how != emulation::COPY_BEGUN)
        emulation::broken("memory that kernels ahead may still write");
    if (emulation::line == 0)
        check_reach(page_of(at / PAGE), memory, bytes);
    for (uintptr_t end = at + bytes; at < end;) {
        page *p = page_of(at / PAGE);
        if (p->grain != 1 && ((at | bytes) & 3) != 0)
            refine(p);
        uintptr_t page_end = (at / PAGE + 1) * PAGE;
        for (; at < end && at < page_end; at += p->grain)
            touch_cell(&p->cells[at % PAGE / p->grain], at, how);
    }
}

void begin_launch(uint32_t n)
{
    first_block += n_blocks;
    n_blocks = n;
}

void begin_block(uint32_t number, char *shared, size_t shared_bytes)
{
    now = {first_block + number, 0, 0, 0, 0, 0};
    memset(warp_barriers, 0, sizeof(warp_barriers));
    variable_shared = shared;
    variable_bytes = shared_bytes;
    /* As the variable shared memory, it begins as NaNs. */
    if (__start_moe_shared != nullptr)
        memset(__start_moe_shared, 0xff, (size_t)(__stop_moe_shared - __start_moe_shared));
    memset(in_kernel, 0, sizeof(in_kernel));
    in_block = true;
}

void end_block()
{
    in_block = false;
}

void begin_kernel()
{
    in_kernel[now.thread] = true;
}

void begin_thread(unsigned thread, const char *stack)
{
    now.thread = (uint16_t)thread;
    now.warp_barriers = warp_barriers[thread / WARP];
    own_stack = stack;
}

void barrier()
{
    now.barriers++;
}

void warp_barrier(unsigned warp)
{
    warp_barriers[warp]++;
}

const emulation::watcher races = {begin_launch, begin_block, begin_thread, begin_kernel,
                                  end_block,    barrier,     warp_barrier, touch};
} // namespace

/* ---- What the compiler calls ---- */

extern "C" {
#define CALLER __builtin_return_address(0)
#define ACCESS(name, bytes, how)                                                                   \
    void __tsan_##name(const void *memory);                                                        \
    void __tsan_##name(const void *memory)                                                         \
    {                                                                                              \
        touch(memory, bytes, emulation::how, CALLER);                                              \
    }
#define ACCESSES(bytes)                                                                            \
    ACCESS(read##bytes, bytes, READ)                                                               \
    ACCESS(write##bytes, bytes, WRITE)                                                             \
    ACCESS(unaligned_read##bytes, bytes, READ)                                                     \
    ACCESS(unaligned_write##bytes, bytes, WRITE)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

void __tsan_init(void);
void __tsan_func_entry(void *);
void __tsan_func_exit(void *);
void __tsan_read_range(const void *memory, size_t bytes);
void __tsan_write_range(const void *memory, size_t bytes);
void *__tsan_memcpy(void *to, const void *from, size_t bytes);
void *__tsan_memset(void *to, int value, size_t bytes);

/* Before main(), by every source that is compiled so. */
void __tsan_init(void)
{
    emulation::watching = &races;
}

void __tsan_func_entry(void *)
{
}

void __tsan_func_exit(void *)
{
}

void __tsan_read_range(const void *memory, size_t bytes)
{
    touch(memory, bytes, emulation::READ, CALLER);
}

void __tsan_write_range(const void *memory, size_t bytes)
{
    touch(memory, bytes, emulation::WRITE, CALLER);
}

void *__tsan_memcpy(void *to, const void *from, size_t bytes)
{
    touch(from, bytes, emulation::READ, CALLER);
    touch(to, bytes, emulation::WRITE, CALLER);
    return memcpy(to, from, bytes);
}

void *__tsan_memset(void *to, int value, size_t bytes)
{
    touch(to, bytes, emulation::WRITE, CALLER);
    return memset(to, value, bytes);
}
}
