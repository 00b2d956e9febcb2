/* SPDX-License-Identifier: MIT */
/* A warp that runs, and what the functions of instructions need of it. */
#ifndef MOE_PTX_WARP_H
#define MOE_PTX_WARP_H

#include "ptx_module.h"

namespace ptx
{
struct block {
    const kernel *code;
    const char *parameters;
    char *shared;
    size_t variable_bytes; /* of shared memory, which the launch asked for */
    size_t n_threads;
    std::vector<char> locals;
};

enum class state : uint8_t { READY, AT_WARP_WIDE, AT_BARRIER, ENDED };

struct warp {
    block *of;
    uint32_t first;  /* thread */
    uint32_t active; /* lanes for which an instruction runs */
    bool backward;   /* accesses of one instruction, from the last lane on */
    char *registers;
    uint32_t at[WARP]; /* instruction */
    state states[WARP];

    char *cells(const operand &o) const
    {
        return o.fixed != nullptr ? (char *)o.fixed : registers + o.at;
    }
    uint64_t get(const operand &o, unsigned lane) const
    {
        const char *all = cells(o);
        return o.bytes == 8 ? ((const uint64_t *)all)[lane] : ((const uint32_t *)all)[lane];
    }
    void set(const operand &o, unsigned lane, uint64_t value) const
    {
        char *all = cells(o);
        if (o.bytes == 8)
            ((uint64_t *)all)[lane] = value;
        else if (o.bytes == 4)
            ((uint32_t *)all)[lane] = (uint32_t)value;
    }
};

/* Does something for each active lane. Lanes do not meet, so loops over all of them become vectors.
 */
template <typename Do>
static inline __attribute__((always_inline)) void each_lane(uint32_t active, Do something)
{
    if (active == WHOLE_WARP) {
#pragma GCC ivdep
        for (unsigned lane = 0; lane < WARP; lane++)
            something(lane);
        return;
    }
    for (uint32_t left = active; left != 0; left &= left - 1)
        something((unsigned)__builtin_ctz(left));
}

/* The same, each lane's after another's, in the warp's order. */
template <typename Do> static inline void each_lane_in_turn(const warp &w, Do something)
{
    for (uint32_t left = w.active; left != 0;) {
        unsigned lane = (unsigned)(w.backward ? 31 - __builtin_clz(left) : __builtin_ctz(left));
        something(lane);
        left &= ~((uint32_t)1 << lane);
    }
}

/* Ends the test: what is wrong, the kernel, and the line of its text. */
[[noreturn]] void fail(const warp &w, const instruction &i, unsigned lane, const char *what);

/* Runs the threads of one block: parameters are those of the launch, shared memory has the bytes
 * that the kernel and the launch ask for. The order of warps and lanes is that of the number. */
void run_block(block *b, uint32_t order);
} // namespace ptx

#endif
