/* SPDX-License-Identifier: MIT */
/* Bounds of the heap for programs that hand ordinary memory to kernels: an access to the heap
 * outside of a live block ends the test, by the byte. Linked with --wrap of malloc() and its like.
 * It is asked by what knows each access, nvcc's code (../ptx). Static data, stacks and mappings
 * (guarded_new()) count as reachable. */
#include "watch.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <map>
#include <mutex>

extern "C" {
void *__real_realloc(void *memory, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *memory);
}

namespace
{
constexpr size_t HEAP_BYTES = (size_t)1 << 36; /* of addresses; memory is taken as it is touched */
constexpr size_t ALIGNMENT = 64;
constexpr size_t GAP = 64; /* between blocks, at least */

struct heap {
    std::mutex lock; /* of blocks and free_ones */
    char *begin, *end, *top;
    std::map<uintptr_t, size_t> blocks;      /* live ones, with the bytes that were asked for */
    std::multimap<size_t, char *> free_ones; /* by room */
};

heap *made; /* by the first allocation, before there are threads */

/* Its containers take their memory from the library's own malloc(). */
heap &the(void)
{
    if (made == nullptr) {
        void *memory = mmap(nullptr, HEAP_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        made = new heap;
        made->begin = made->top = memory == MAP_FAILED ? nullptr : (char *)memory;
        made->end = memory == MAP_FAILED ? nullptr : made->begin + HEAP_BYTES;
    }
    return *made;
}

bool is_ours(const void *memory)
{
    return memory >= the().begin && memory < the().end;
}

size_t room_for(size_t bytes)
{
    return (bytes + GAP + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

size_t bytes_of(const void *memory)
{
    std::lock_guard<std::mutex> guard(the().lock);
    return the().blocks.at((uintptr_t)memory);
}

bool can_reach(const void *memory, size_t bytes)
{
    if (!is_ours(memory))
        return true;
    std::lock_guard<std::mutex> guard(the().lock);
    auto behind = the().blocks.upper_bound((uintptr_t)memory);
    if (behind == the().blocks.begin())
        return false;
    const auto &block = *--behind;
    return (uintptr_t)memory + bytes <= block.first + block.second;
}

[[maybe_unused]] const bool is_set = [] {
    emulation::can_reach = can_reach;
    return true;
}();
} // namespace

void *__wrap_malloc(size_t bytes)
{
    heap &h = the();
    size_t room = room_for(bytes);
    std::lock_guard<std::mutex> guard(h.lock);
    char *memory = h.top;
    auto found = h.free_ones.find(room);
    if (found != h.free_ones.end()) {
        memory = found->second;
        h.free_ones.erase(found);
    } else if (bytes < HEAP_BYTES && (size_t)(h.end - h.top) >= room) {
        h.top += room;
    } else {
        return nullptr;
    }
    h.blocks[(uintptr_t)memory] = bytes;
    return memory;
}

void __wrap_free(void *memory)
{
    if (!is_ours(memory)) {
        __real_free(memory);
        return;
    }
    std::lock_guard<std::mutex> guard(the().lock);
    auto block = the().blocks.find((uintptr_t)memory);
    the().free_ones.emplace(room_for(block->second), (char *)memory);
    the().blocks.erase(block);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    if (bytes > 0 && n > HEAP_BYTES / bytes)
        return nullptr;
    void *memory = __wrap_malloc(n * bytes);
    return memory == nullptr ? nullptr : memset(memory, 0, n * bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    if (memory != nullptr && !is_ours(memory))
        return __real_realloc(memory, bytes);
    void *other = __wrap_malloc(bytes);
    if (memory != nullptr && other != nullptr) {
        size_t old = bytes_of(memory);
        memcpy(other, memory, old < bytes ? old : bytes);
        __wrap_free(memory);
    }
    return other;
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return alignment <= ALIGNMENT ? __wrap_malloc(bytes) : nullptr;
}
