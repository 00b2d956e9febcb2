/* SPDX-License-Identifier: MIT */
/* Runs the warps of a block.
 *
 * Lanes that are at the same instruction go together. Where a branch parts them, the warp's order
 * says who goes first: those furthest behind (so that they meet again soon), those furthest ahead,
 * or anybody. A lane waits at a shuffle, a matrix product or a barrier of the warp until all 32 are
 * at that very instruction; it waits at a barrier of the block until all threads are. The test ends
 * when no lane can go on and they are not.
 *
 *              BRANCH, PLAIN
 *              +---------+
 *              v         |   WARP_WIDE, without the whole warp           when all 32 are there
 *      READY --+---------+---------------------------------> AT_WARP_WIDE ----------------> READY
 *        |  \   BARRIER                                   when all of the block are there
 *        |   +---------------------------------------------> AT_BARRIER ------------------> READY
 *        +--> ENDED */
#include "ptx_warp.h"

#include "cuda_fp16.h"
#include "cuda_runtime.h"
#include "watch.h"

#include <stdio.h>

namespace ptx
{
namespace
{
enum order : uint32_t { FORWARD, BACKWARD, MIXED, N_ORDERS };

struct turns {
    order kind;
    uint32_t mixing;

    uint32_t draw(uint32_t n)
    {
        mixing = mixing * 1664525u + 1013904223u;
        return (mixing >> 8) % n;
    }
};

uint32_t lanes_in(const warp &w, state s)
{
    uint32_t found = 0;
    for (unsigned lane = 0; lane < WARP; lane++)
        found |= (uint32_t)(w.states[lane] == s) << lane;
    return found;
}

/* Those of the lanes that are where this one is. */
uint32_t lanes_beside(const warp &w, uint32_t lanes, unsigned one)
{
    uint32_t found = 0;
    for (unsigned lane = 0; lane < WARP; lane++)
        found |= (uint32_t)((lanes >> lane & 1) != 0 && w.at[lane] == w.at[one]) << lane;
    return found;
}

void put(warp *w, uint32_t lanes, uint32_t at, state s)
{
    for (uint32_t left = lanes; left != 0; left &= left - 1) {
        unsigned lane = (unsigned)__builtin_ctz(left);
        w->at[lane] = at;
        w->states[lane] = s;
    }
}

/* Which lane goes on, of those that can. */
unsigned choose(const warp &w, uint32_t ready, turns *t)
{
    unsigned chosen = (unsigned)__builtin_ctz(ready);
    if (t->kind == MIXED) {
        for (uint32_t n = t->draw((uint32_t)__builtin_popcount(ready)); n > 0; n--)
            ready &= ready - 1;
        return (unsigned)__builtin_ctz(ready);
    }
    for (uint32_t left = ready; left != 0; left &= left - 1) {
        unsigned lane = (unsigned)__builtin_ctz(left);
        if (t->kind == FORWARD ? w.at[lane] < w.at[chosen] : w.at[lane] > w.at[chosen])
            chosen = lane;
    }
    return chosen;
}

/* The next instruction at which a lane waits that may go on: the group stops there, to be joined.
 */
uint32_t meeting_place(const warp &w, uint32_t others, uint32_t at)
{
    uint32_t nearest = UINT32_MAX;
    for (uint32_t left = others; left != 0; left &= left - 1) {
        uint32_t its = w.at[__builtin_ctz(left)];
        if (its > at && its < nearest)
            nearest = its;
    }
    return nearest;
}

uint32_t holds(const warp &w, const instruction &i, uint32_t lanes)
{
    if (!i.guarded)
        return lanes;
    const uint32_t *predicate = (const uint32_t *)w.cells(i.guard);
    uint32_t found = 0;
    for (unsigned lane = 0; lane < WARP; lane++)
        found |= (uint32_t)((predicate[lane] != 0) != i.guard_is_negative) << lane;
    return found & lanes;
}

void check_waited(const warp &w, const instruction &i, uint32_t lanes)
{
    for (uint32_t left = lanes; left != 0; left &= left - 1) {
        unsigned lane = (unsigned)__builtin_ctz(left);
        if (emulation::is_early(w.first + lane))
            fail(w, i, lane, "an early launch that ends without waiting for the kernels ahead");
    }
}

/* Lanes at one instruction go on until they part, wait, end, or have done so many instructions. */
void run_group(warp *w, uint32_t lanes, uint32_t at, uint32_t stop, uint32_t n)
{
    const std::vector<instruction> &code = w->of->code->code;
    for (; n > 0; n--) {
        const instruction &i = code[at];
        uint32_t those = holds(*w, i, lanes);
        if (i.kind == flow::PLAIN) {
            w->active = those;
            if (those != 0)
                i.run(*w, i);
        } else if (i.kind == flow::BRANCH && those != 0 && those != lanes) {
            put(w, those, i.target, state::READY);
            put(w, lanes & ~those, at + 1, state::READY);
            return;
        } else if (i.kind == flow::BRANCH && those != 0) {
            at = i.target;
            if (at >= stop)
                break;
            continue;
        } else if (i.kind == flow::WARP_WIDE && those == WHOLE_WARP) {
            w->active = those;
            i.run(*w, i);
        } else if (i.kind != flow::BRANCH && those != 0) {
            if (i.kind == flow::END)
                check_waited(*w, i, those);
            put(w, lanes & ~those, at + 1, state::READY);
            put(w, those, at,
                i.kind == flow::END       ? state::ENDED
                : i.kind == flow::BARRIER ? state::AT_BARRIER
                                          : state::AT_WARP_WIDE);
            return;
        }
        if (++at >= stop)
            break;
    }
    put(w, lanes, at, state::READY);
}

/* All lanes of the warp have come to one instruction. */
void run_warp_wide(warp *w, uint32_t waiting)
{
    unsigned lane = (unsigned)__builtin_ctz(waiting);
    const instruction &i = w->of->code->code[w->at[lane]];
    if (lanes_beside(*w, waiting, lane) != WHOLE_WARP)
        fail(*w, i, lane, "a shuffle or a barrier of the warp without the whole warp");
    w->active = WHOLE_WARP;
    i.run(*w, i);
    put(w, WHOLE_WARP, w->at[lane] + 1, state::READY);
}

/* Until no lane can go on, or for a turn. Returns whether any went on. */
bool run_warp(warp *w, turns *t)
{
    bool any = false;
    for (;;) {
        uint32_t ready = lanes_in(*w, state::READY);
        uint32_t waiting = lanes_in(*w, state::AT_WARP_WIDE);
        if (ready == 0 && waiting == 0)
            return any;
        any = true;
        if (ready == 0) {
            run_warp_wide(w, waiting);
            continue;
        }
        unsigned lane = choose(*w, ready, t);
        uint32_t group = lanes_beside(*w, ready, lane);
        uint32_t n = t->kind == MIXED ? 1 + t->draw(200) : UINT32_MAX;
        run_group(w, group, w->at[lane], meeting_place(*w, ready & ~group, w->at[lane]), n);
        if (t->kind == MIXED)
            return true;
    }
}

/* No thread can go on. Returns false when all have ended. */
bool pass_barrier(std::vector<warp> *warps)
{
    const warp &first = warps->front();
    size_t n_ended = 0;
    bool same = true;
    for (const warp &w : *warps) {
        for (unsigned lane = 0; lane < WARP; lane++) {
            n_ended += w.states[lane] == state::ENDED;
            same &= w.at[lane] == first.at[0] && w.states[lane] == state::AT_BARRIER;
        }
    }
    if (n_ended == warps->size() * WARP)
        return false;
    if (!same)
        fail(first, first.of->code->code[first.at[0]], 0,
             "a barrier that not all threads reach, or at another place");
    if (emulation::watching != nullptr)
        emulation::watching->barrier();
    uint32_t next = first.at[0] + 1;
    for (warp &w : *warps)
        put(&w, WHOLE_WARP, next, state::READY);
    return true;
}

uint32_t value_of(const std::string &special, uint32_t thread)
{
    const emulation::place &p = emulation::here;
    const std::pair<const char *, uint32_t> all[] = {
        {"%tid.x", thread},           {"%tid.y", 0},
        {"%ctaid.x", p.block.x},      {"%ctaid.y", p.block.y},
        {"%ctaid.z", p.block.z},      {"%ntid.x", p.block_size.x},
        {"%nctaid.x", p.grid_size.x}, {"%nctaid.y", p.grid_size.y},
        {"%nctaid.z", p.grid_size.z}, {"%laneid", thread % WARP},
    };
    for (auto &[name, value] : all)
        if (special == name)
            return value;
    emulation::broken(("there is no register " + special).c_str());
}

void shuffle(warp &w, const instruction &i)
{
    uint32_t given[WARP];
    for (unsigned lane = 0; lane < WARP; lane++) {
        given[lane] = (uint32_t)w.get(i.in[0], lane);
        if (w.get(i.in[1], lane) != w.get(i.in[1], 0))
            fail(w, i, lane, "a shuffle by different masks");
        if (w.get(i.in[2], lane) != 31 || (uint32_t)w.get(i.in[3], lane) != WHOLE_WARP)
            fail(w, i, lane, "a shuffle that is not the whole warp's");
    }
    unsigned mask = (unsigned)w.get(i.in[1], 0);
    for (unsigned lane = 0; lane < WARP; lane++) {
        w.set(i.out[0], lane, given[lane ^ mask]);
        w.set(i.out[1], lane, 1);
    }
}

void meet(warp &w, const instruction &i)
{
    for (unsigned lane = 0; lane < WARP; lane++)
        if ((uint32_t)w.get(i.in[0], lane) != WHOLE_WARP)
            fail(w, i, lane, "a barrier that is not the whole warp's");
    if (emulation::watching != nullptr)
        emulation::watching->warp_barrier(w.first / WARP);
}

/* 16 rows of K bytes times 8 columns of K bytes, by the layout of the PTX ISA: lane 4 * i + j has
 * words j (and j + 4) of rows i and i + 8 and of column i, and gets columns 2 * j and 2 * j + 1 of
 * the two rows. */
template <unsigned K> void multiply(warp &w, const instruction &i)
{
    int8_t rows[16][K], columns[8][K];
    for (unsigned lane = 0; lane < WARP; lane++) {
        for (unsigned word = 0; word < K / 8; word++) {
            uint32_t bytes = (uint32_t)w.get(i.in[word], lane);
            memcpy(rows[lane / 4 + word % 2 * 8] + (lane % 4 + word / 2 * 4) * 4, &bytes, 4);
        }
        for (unsigned word = 0; word < K / 16; word++) {
            uint32_t bytes = (uint32_t)w.get(i.in[K / 8 + word], lane);
            memcpy(columns[lane / 4] + (lane % 4 + word * 4) * 4, &bytes, 4);
        }
    }
    for (unsigned lane = 0; lane < WARP; lane++) {
        uint32_t sums[4];
        for (unsigned part = 0; part < 4; part++) {
            const int8_t *row = rows[lane / 4 + part / 2 * 8],
                         *column = columns[lane % 4 * 2 + part % 2];
            int sum = 0;
            for (unsigned at = 0; at < K; at++)
                sum += row[at] * column[at];
            sums[part] = (uint32_t)w.get(i.in[K / 8 + K / 16 + part], lane) + (uint32_t)sum;
        }
        for (unsigned part = 0; part < 4; part++)
            w.set(i.out[part], lane, sums[part]);
    }
}

/* 16 rows of 16 halves times 8 columns of 16 halves, to floats, by the layout of the PTX ISA: as of
 * bytes, with two halves in a word. One product after the other; the hardware's order is its own.
 */
void multiply_halves(warp &w, const instruction &i)
{
    float rows[16][16], columns[8][16];
    for (unsigned lane = 0; lane < WARP; lane++) {
        for (unsigned n = 0; n < 6; n++) {
            uint32_t word = (uint32_t)w.get(i.in[n], lane);
            unsigned k = lane % 4 * 2 + (n < 4 ? n / 2 : n - 4) * 8;
            float *to = n < 4 ? rows[lane / 4 + n % 2 * 8] : columns[lane / 4];
            to[k] = moe_half_to_float((uint16_t)word);
            to[k + 1] = moe_half_to_float((uint16_t)(word >> 16));
        }
    }
    for (unsigned lane = 0; lane < WARP; lane++) {
        for (unsigned part = 0; part < 4; part++) {
            const float *row = rows[lane / 4 + part / 2 * 8],
                        *column = columns[lane % 4 * 2 + part % 2];
            uint32_t bits = (uint32_t)w.get(i.in[6 + part], lane);
            float sum;
            memcpy(&sum, &bits, sizeof(sum));
            for (unsigned k = 0; k < 16; k++)
                sum += row[k] * column[k];
            memcpy(&bits, &sum, sizeof(bits));
            w.set(i.out[part], lane, bits);
        }
    }
}
} // namespace

handler warp_wide_of(const std::string &opcode)
{
    return opcode == "shfl.sync.bfly.b32"                                  ? shuffle
           : opcode == "bar.warp.sync"                                     ? meet
           : opcode == "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32"   ? multiply<16>
           : opcode == "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"   ? multiply<32>
           : opcode == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" ? multiply_halves
                                                                           : nullptr;
}

void fail(const warp &w, const instruction &i, unsigned lane, const char *what)
{
    static char text[512];
    emulation::here.thread.x = w.first + lane;
    snprintf(text, sizeof(text), "%s, at line %u of the PTX with %s", what, i.line,
             w.of->code->name.c_str());
    emulation::broken(text);
}

void run_block(block *b, uint32_t number)
{
    static std::vector<char> registers; /* of one block at a time */
    const kernel &k = *b->code;
    size_t n_warps = b->n_threads / WARP;
    turns t = {(order)(number % N_ORDERS), number};
    registers.resize(n_warps * k.register_bytes + 64);
    b->locals.assign(b->n_threads * k.local_bytes + 16, (char)0xff);
    std::vector<warp> warps(n_warps);
    for (size_t n = 0; n < n_warps; n++) {
        warp &w = warps[n];
        w = {b,
             (uint32_t)n * WARP,
             0,
             t.kind == BACKWARD,
             registers.data() + n * k.register_bytes,
             {},
             {}};
        for (const special_register &s : k.specials)
            for (unsigned lane = 0; lane < WARP; lane++)
                w.set(s.cells, lane, value_of(s.name, w.first + lane));
    }
    for (;;) {
        bool any = false;
        for (size_t n = 0; n < n_warps; n++) {
            size_t chosen = t.kind == FORWARD    ? n
                            : t.kind == BACKWARD ? n_warps - 1 - n
                                                 : t.draw((uint32_t)n_warps);
            any |= run_warp(&warps[chosen], &t);
        }
        /* Mixed, a warp that could go on may not have been drawn. */
        for (size_t n = 0; !any && n < n_warps; n++)
            any = run_warp(&warps[n], &t);
        if (!any && !pass_barrier(&warps))
            return;
    }
}
} // namespace ptx
