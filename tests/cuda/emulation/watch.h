/* SPDX-License-Identifier: MIT */
/* What the emulation tells whoever watches the kernels' use of memory (races.cpp), and what the
 * watcher may know of the emulation. */
#ifndef MOE_EMULATION_WATCH_H
#define MOE_EMULATION_WATCH_H

#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <string>
#include <vector>

namespace emulation
{
enum access {
    READ,
    WRITE,
    ATOMIC,     /* read and written at once */
    COPY_BEGUN, /* a copy to here is asked for: nobody may touch it ... */
    COPY_DONE   /* ... until the thread that asked has waited */
};

struct watcher {
    void (*begin_launch)(uint32_t n_blocks);
    /* Block `number` of the launch begins; its variable shared memory. */
    void (*begin_block)(uint32_t number, char *shared, size_t shared_bytes);
    void (*begin_thread)(unsigned thread, const char *stack); /* it runs until the next of these */
    void (*begin_kernel)(void); /* the thread begins with the kernel itself */
    void (*end_block)(void);
    void (*barrier)(void);
    void (*warp_barrier)(unsigned warp);
    void (*touch)(const void *memory, size_t bytes, access how, const void *code);
};

/* NULL: nobody watches. */
extern const watcher *watching;
/* Whether it is memory of the device or page-locked (fake_runtime.cpp). NULL: kernels are handed
 * ordinary memory. */
extern bool (*can_reach)(const void *memory, size_t bytes);

/* Who runs blocks in place of the fibers: the code that nvcc made (../ptx). */
struct translator {
    const void *(*find)(const char *name);                      /* of a bound kernel */
    size_t (*shared_bytes)(const void *found, size_t variable); /* of a block */
    /* Runs a block; number gives the order of its threads. */
    void (*run)(const void *found, const std::vector<std::string> &arguments, unsigned n_threads,
                char *shared, size_t variable, uint32_t number);
};
extern const translator *translating; /* NULL: nobody */
/* Before main(): of the code that the environment names; NULL: none. */
const translator *translator_asked_for(void);
/* Whether the thread may not yet use memory that kernels ahead may write, because its launch may
 * have begun before they ended (MOE_LAUNCH_EARLY). */
bool is_early(unsigned thread);
void set_early(unsigned n_threads, bool early); /* of a block that begins */
extern std::atomic<uint64_t> n_early_kernels;   /* that ran */
/* Of nvcc's code, where the thread is; 0: it runs the kernels' sources. */
extern uint32_t line;

/* Ends the test. */
[[noreturn]] void broken(const char *what);
} // namespace emulation

#endif
