/* SPDX-License-Identifier: MIT */
/* Instructions that use memory. Each access of each lane must
 *
 *   - begin at a multiple of its bytes, a vector's at a multiple of all of them;
 *   - lie in one variable of shared memory, or in the thread's own array, or in one allocation: of
 * the stand-in for CUDA's runtime, or of the heap where guarded_heap.c is loaded;
 *   - not race with another (../emulation/races.cpp), in programs that look for races.
 *
 * An address of shared memory is an offset in the block's, an address of a thread's own memory one
 * in the thread's; as generic ones they are those of the host. */
#include "ptx_warp.h"

#include "cuda_pipeline_primitives.h"
#include "watch.h"

namespace ptx
{
namespace
{
constexpr uintptr_t PAGE = 4096;
constexpr size_t N_RECENT = 1024;

/* Pages all of which the device reaches, in this launch. */
struct {
    uintptr_t number;
    const void *launch;
} recent[N_RECENT];

void check_shared(const warp &w, const instruction &i, unsigned lane, uintptr_t at, size_t bytes)
{
    for (const shared_variable &v : w.of->code->shared) {
        size_t all = v.bytes != UINT32_MAX ? v.bytes : w.of->variable_bytes;
        if (at >= v.first && at + bytes <= v.first + all)
            return;
    }
    fail(w, i, lane, "it is outside of the variables in shared memory");
}

void copy(warp &w, const instruction &i);

/* Copies to shared memory may run ahead: they are of weights, which no kernel writes. */
void check_global(const warp &w, const instruction &i, unsigned lane, const char *memory,
                  size_t bytes)
{
    if (emulation::is_early(w.first + lane) && i.run != copy && !is_table(memory, bytes))
        fail(w, i, lane, "memory that kernels ahead may still write");
    if (emulation::can_reach == nullptr)
        return;
    auto &page = recent[(uintptr_t)memory / PAGE % N_RECENT];
    uintptr_t number = (uintptr_t)memory / PAGE;
    if (page.number == number && page.launch == w.of->parameters &&
        (uintptr_t)memory % PAGE + bytes <= PAGE)
        return;
    if (emulation::can_reach((const void *)(number * PAGE), PAGE))
        page = {number, w.of->parameters};
    else if (!emulation::can_reach(memory, bytes) && !is_table(memory, bytes))
        fail(w, i, lane, "it is outside of what the device has or reaches");
}

/* The host's address of a lane's operand, after all checks but those of races. */
char *reach(const warp &w, const instruction &i, unsigned lane, size_t bytes, size_t alignment)
{
    uint64_t at = w.get(i.in[0], lane) + (uint64_t)i.offset;
    if (i.in[0].bytes == 4)
        at = (uint32_t)at;
    if (i.where == space::PARAM) {
        if (at % alignment != 0 || at + bytes > w.of->code->all_parameter_bytes)
            fail(w, i, lane, "it is outside of the parameters");
        return (char *)w.of->parameters + at;
    }
    if (at % alignment != 0)
        fail(w, i, lane, "a misaligned access");
    uintptr_t shared = (uintptr_t)w.of->shared;
    size_t all_shared = w.of->code->shared_bytes + w.of->variable_bytes;
    size_t own_bytes = w.of->code->local_bytes;
    uintptr_t own = (uintptr_t)w.of->locals.data() + (w.first + lane) * own_bytes;
    bool generic = i.where == space::GENERIC;
    if (i.where == space::SHARED || (generic && at - shared < all_shared)) {
        uint64_t offset = generic ? at - shared : at;
        check_shared(w, i, lane, offset, bytes);
        return (char *)shared + offset;
    }
    if (i.where == space::LOCAL || (generic && at - own < own_bytes)) {
        uint64_t offset = generic ? at - own : at;
        if (offset + bytes > own_bytes)
            fail(w, i, lane, "it is outside of the thread's own memory");
        return (char *)own + offset;
    }
    check_global(w, i, lane, (char *)at, bytes);
    return (char *)at;
}

/* What the watcher has to know before an access. */
void begin_touch(const warp &w, const instruction &i, unsigned lane)
{
    emulation::here.thread.x = w.first + lane;
    emulation::line = i.line;
    if (emulation::watching == nullptr)
        return;
    emulation::watching->begin_thread(w.first + lane, nullptr);
    emulation::watching->begin_kernel();
}

void touch(const warp &w, const instruction &i, unsigned lane, const char *memory, size_t bytes,
           emulation::access how)
{
    if (emulation::watching == nullptr || i.where == space::PARAM || i.where == space::LOCAL)
        return;
    const std::vector<char> &own = w.of->locals;
    if ((uintptr_t)memory - (uintptr_t)own.data() < own.size())
        return;
    begin_touch(w, i, lane);
    emulation::watching->touch(memory, bytes, how, nullptr);
}

template <typename T> void load(warp &w, const instruction &i)
{
    each_lane_in_turn(w, [&](unsigned lane) {
        size_t bytes = i.n * sizeof(T);
        const char *memory = reach(w, i, lane, bytes, bytes);
        touch(w, i, lane, memory, bytes, emulation::READ);
        T values[4];
        memcpy(values, memory, bytes);
        for (unsigned part = 0; part < i.n; part++)
            w.set(i.out[part], lane, (uint64_t)(int64_t)values[part]);
    });
}

template <typename T> void store(warp &w, const instruction &i)
{
    each_lane_in_turn(w, [&](unsigned lane) {
        size_t bytes = i.n * sizeof(T);
        char *memory = reach(w, i, lane, bytes, bytes);
        touch(w, i, lane, memory, bytes, emulation::WRITE);
        for (unsigned part = 0; part < i.n; part++) {
            T value = (T)w.get(i.in[1 + part], lane);
            memcpy(memory + part * sizeof(T), &value, sizeof(T));
        }
    });
}

template <typename Change> void change(warp &w, const instruction &i, Change changed)
{
    each_lane_in_turn(w, [&](unsigned lane) {
        uint32_t *word = (uint32_t *)reach(w, i, lane, sizeof(uint32_t), sizeof(uint32_t));
        begin_touch(w, i, lane);
        w.set(i.out[0], lane, changed(word, (uint32_t)w.get(i.in[1], lane), lane));
    });
}

void add_atomically(warp &w, const instruction &i)
{
    change(w, i, [](uint32_t *word, uint32_t value, unsigned) {
        return emulation::atomic_add(word, value);
    });
}

void or_atomically(warp &w, const instruction &i)
{
    change(w, i, [](uint32_t *word, uint32_t value, unsigned) {
        return emulation::atomic_or(word, value);
    });
}

void exchange_atomically(warp &w, const instruction &i)
{
    change(w, i, [&](uint32_t *word, uint32_t expected, unsigned lane) {
        return emulation::atomic_cas(word, expected, (uint32_t)w.get(i.in[2], lane));
    });
}

/* Four matrices of 8 x 8 halves, whose rows the lanes name. Lane 4 * i + j gets columns 2 * j and
 * 2 * j + 1 of row i of each; or, EXCHANGED, these rows of column i. */
template <bool EXCHANGED> void load_matrices(warp &w, const instruction &i)
{
    uint16_t rows[WARP][8];
    each_lane_in_turn(w, [&](unsigned lane) {
        const char *memory = reach(w, i, lane, sizeof(rows[0]), sizeof(rows[0]));
        touch(w, i, lane, memory, sizeof(rows[0]), emulation::READ);
        memcpy(rows[lane], memory, sizeof(rows[0]));
    });
    for (unsigned lane = 0; lane < WARP; lane++) {
        const unsigned at = lane / 4, two = lane % 4 * 2;
        for (unsigned m = 0; m < 4; m++) {
            const uint16_t(*matrix)[8] = rows + 8 * m;
            const uint32_t low = EXCHANGED ? matrix[two][at] : matrix[at][two];
            const uint32_t high = EXCHANGED ? matrix[two + 1][at] : matrix[at][two + 1];
            w.set(i.out[m], lane, high << 16 | low);
        }
    }
}

/* From global memory, in[1], to shared memory, in[0]. */
void copy(warp &w, const instruction &i)
{
    instruction from = i;
    from.in[0] = i.in[1];
    from.where = space::GLOBAL;
    from.offset = i.source_offset;
    each_lane_in_turn(w, [&](unsigned lane) {
        char *target = reach(w, i, lane, i.n, i.n);
        const char *source = reach(w, from, lane, i.n, i.n);
        begin_touch(w, i, lane);
        emulation::copy_async(target, source, i.n);
    });
}

void commit(warp &w, const instruction &)
{
    each_lane_in_turn(w, [&](unsigned lane) {
        emulation::here.thread.x = w.first + lane;
        emulation::commit_copies();
    });
}

void wait(warp &w, const instruction &i)
{
    each_lane_in_turn(w, [&](unsigned lane) {
        begin_touch(w, i, lane);
        emulation::wait_for_copies(w.get(i.in[0], lane));
    });
}

void nothing(warp &, const instruction &)
{
}

void wait_for_stream(warp &w, const instruction &)
{
    each_lane_in_turn(w, [&](unsigned lane) {
        emulation::here.thread.x = w.first + lane;
        emulation::wait_for_stream();
    });
}

/* Addresses of a thread's own memory and of shared memory as generic ones, and back. */
template <int SIGN, bool SHARED> void convert_address(warp &w, const instruction &i)
{
    size_t own_bytes = w.of->code->local_bytes;
    each_lane_in_turn(w, [&](unsigned lane) {
        uintptr_t base = SHARED ? (uintptr_t)w.of->shared
                                : (uintptr_t)w.of->locals.data() + (w.first + lane) * own_bytes;
        w.set(i.out[0], lane, w.get(i.in[0], lane) + (uint64_t)SIGN * base);
    });
}

struct named {
    const char *name;
    handler run;
};

const named others[] = {
    {"atom.shared.add.u32", add_atomically},
    {"atom.global.add.u32", add_atomically},
    {"atom.add.u32", add_atomically},
    {"atom.shared.or.b32", or_atomically},
    {"atom.global.or.b32", or_atomically},
    {"atom.or.b32", or_atomically},
    {"atom.shared.cas.b32", exchange_atomically},
    {"atom.global.cas.b32", exchange_atomically},
    {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", load_matrices<false>},
    {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", load_matrices<true>},
    {"cp.async.cg.shared.global", copy},
    {"cp.async.ca.shared.global", copy},
    {"cp.async.commit_group", commit},
    {"cp.async.wait_group", wait},
    {"prefetch.global.L2", nothing},
    {"griddepcontrol.launch_dependents", nothing},
    {"griddepcontrol.wait", wait_for_stream},
    {"cvta.shared.u64", convert_address<1, true>},
    {"cvta.to.shared.u64", convert_address<-1, true>},
    {"cvta.local.u64", convert_address<1, false>},
    {"cvta.to.local.u64", convert_address<-1, false>},
};

const named loads[] = {{"u8", load<uint8_t>},   {"s8", load<int8_t>},    {"b8", load<uint8_t>},
                       {"u16", load<uint16_t>}, {"s16", load<int16_t>},  {"b16", load<uint16_t>},
                       {"u32", load<uint32_t>}, {"s32", load<int32_t>},  {"b32", load<uint32_t>},
                       {"u64", load<uint64_t>}, {"b64", load<uint64_t>}, {"s64", load<uint64_t>},
                       {"f32", load<uint32_t>}, {"f64", load<uint64_t>}};
const named stores[] = {
    {"u8", store<uint8_t>},   {"b8", store<uint8_t>},   {"u16", store<uint16_t>},
    {"b16", store<uint16_t>}, {"u32", store<uint32_t>}, {"b32", store<uint32_t>},
    {"s32", store<uint32_t>}, {"u64", store<uint64_t>}, {"b64", store<uint64_t>},
    {"f32", store<uint32_t>}, {"f64", store<uint64_t>}};

template <size_t N> handler find(const named (&all)[N], const std::string &name)
{
    for (const named &n : all)
        if (name == n.name)
            return n.run;
    return nullptr;
}
} // namespace

handler memory_of(const std::string &opcode, instruction *i)
{
    i->n = 1;
    size_t dot = opcode.find('.');
    std::string verb = opcode.substr(0, dot);
    if (opcode.find(".shared") != std::string::npos)
        i->where = space::SHARED;
    if (verb != "ld" && verb != "st")
        return find(others, opcode);
    std::string last;
    while (dot != std::string::npos) {
        size_t next = opcode.find('.', dot + 1);
        last = opcode.substr(dot + 1, next == std::string::npos ? next : next - dot - 1);
        dot = next;
        if (last == "v2" || last == "v4")
            i->n = (uint8_t)(last[1] - '0');
        else if (last == "global")
            i->where = space::GLOBAL;
        else if (last == "local")
            i->where = space::LOCAL;
        else if (last == "param")
            i->where = space::PARAM;
        else if (last != "nc" && last != "shared" && dot != std::string::npos)
            return nullptr;
    }
    return verb == "ld" ? find(loads, last) : find(stores, last);
}
} // namespace ptx
