/* SPDX-License-Identifier: MIT */
/* Whether running nvcc's code finds what is wrong with it: small kernels, in PTX, each with a fault
 * and mended. The fault must end a process of its own with its message, the mended kernel must not;
 * without one check of ptx/, its case fails. Every case runs in all orders of warps and lanes. */
#include "cuda_runtime.h"
#include "ptx/ptx_warp.h"
#include "watch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
extern "C" {
#include <cmocka.h>
}

namespace
{
constexpr unsigned THREADS = 64;
constexpr size_t BYTES = THREADS * sizeof(uint32_t);
alignas(16) uint32_t static_memory[THREADS + 1];
uint32_t *memory = static_memory;

/* The device has all of `memory` but its last word. */
bool has(const void *at, size_t bytes)
{
    uintptr_t offset = (uintptr_t)at - (uintptr_t)memory;
    return offset + bytes <= BYTES;
}

const char head[] = ".version 9.0\n.target sm_90\n.address_size 64\n";
/* r1: the thread. rd1: its word of the memory. r2: its byte's offset in s. */
const char begin[] =
    "(\n.param .u64 p\n)\n.maxntid 64, 1, 1\n{\n"
    ".reg .pred %p<9>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n"
    ".shared .align 4 .b8 s[256];\n.shared .align 4 .b8 t[16];\n"
    "ld.param.u64 %rd0, [p];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\n"
    "add.s64 %rd1, %rd0, %rd2;\nmov.u32 %r3, s;\nshl.b32 %r2, %r1, 2;\n"
    "add.s32 %r2, %r3, %r2;\nsetp.lt.u32 %p1, %r1, 7;\nsetp.lt.u32 %p2, %r1, 32;\n";

const struct {
    const char *name, *wrong, *right;
    const char *message; /* NULL: the launches' results differ */
    bool is_early = false;
} cases[] = {
    {"misaligned vector", "ld.global.v2.u32 {%r4, %r5}, [%rd1];\n", "ld.global.u32 %r4, [%rd1];\n",
     "a misaligned access"},
    {"misaligned in shared memory", "st.shared.u32 [%r2+2], %r1;\n", "st.shared.u32 [%r2], %r1;\n",
     "a misaligned access"},
    {"behind an allocation", "st.global.u32 [%rd1+4], %r1;\n", "st.global.u32 [%rd1], %r1;\n",
     "outside of what the device has"},
    {"between variables", "ld.shared.u32 %r4, [%r2+4];\n", "ld.shared.u32 %r4, [%r2];\n",
     "outside of the variables in shared memory"},
    {"part of a warp at a shuffle", "@%p1 bra $L;\nshfl.sync.bfly.b32 %r4, %r1, 1, 31, -1;\n$L:\n",
     "@%p1 bra $L;\nmov.u32 %r4, 0;\n$L:\nshfl.sync.bfly.b32 %r4, %r1, 1, 31, -1;\n",
     "without the whole warp"},
    {"part of a warp at a barrier", "@%p1 bra $L;\nbar.sync 0;\n$L:\n",
     "@%p1 bra $L;\nmov.u32 %r4, 0;\n$L:\nbar.sync 0;\n", "a barrier that not all threads reach"},
    {"warps at different barriers", "@%p2 bra $L;\nbar.sync 0;\nbra $M;\n$L:\nbar.sync 0;\n$M:\n",
     "@%p2 bra $M;\nmov.u32 %r4, 0;\n$M:\nbar.sync 0;\n", "a barrier that not all threads reach"},
    {"a race of warps in shared memory", "st.shared.u8 [s+3], %r1;\n",
     "setp.eq.s32 %p3, %r1, 0;\n@%p3 st.shared.u8 [s+3], %r1;\n", "a race in shared memory"},
    {"a race for global memory", "st.global.u32 [%rd0], %r1;\n", "st.global.u32 [%rd1], %r1;\n",
     "a race in global memory"},
    {"an order of warps",
     "atom.global.add.u32 %r4, [%rd0+252], 1;\nsetp.eq.s32 %p3, %r1, 40;\n@%p3 st.global.u32 "
     "[%rd0], %r4;\n",
     "atom.global.add.u32 %r4, [%rd0+252], 1;\n", nullptr},
    {"use of memory before waiting", "ld.global.u32 %r4, [%rd1];\ngriddepcontrol.wait;\n",
     "griddepcontrol.wait;\nld.global.u32 %r4, [%rd1];\n",
     "memory that kernels ahead may still write", true},
    {"an end without waiting", "@%p1 bra $L;\ngriddepcontrol.wait;\n$L:\n",
     "griddepcontrol.wait;\n", "ends without waiting", true},
};

/* All orders, once each. Returns whether they left the same first word. */
bool run_in_all_orders(const std::string &name, bool is_early)
{
    const ptx::kernel *k = ptx::find_kernel(name);
    uint32_t first = 0;
    bool same = true;
    uint64_t parameter = (uint64_t)(uintptr_t)memory;
    for (uint32_t number = 0; number < 3; number++) {
        alignas(16) static char shared[4096];
        memset(memory, 0, BYTES);
        emulation::here.block_size = dim3(THREADS);
        if (emulation::watching != nullptr) {
            emulation::watching->begin_launch(1);
            emulation::watching->begin_block(0, shared, k->shared_bytes);
        }
        emulation::set_early(THREADS, is_early);
        ptx::block b = {k, (const char *)&parameter, shared, 0, THREADS, {}};
        ptx::run_block(&b, number);
        if (emulation::watching != nullptr)
            emulation::watching->end_block();
        first = number == 0 ? memory[0] : first;
        same &= memory[0] == first;
    }
    return same;
}

/* What a process of its own says that runs the kernel. */
std::string said_by(const std::string &name, bool is_early = false)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        if (!run_in_all_orders(name, is_early))
            fprintf(stderr, "orders differ");
        _exit(0);
    }
    close(ends[1]);
    std::string said;
    char bytes[1024];
    for (ssize_t n; (n = read(ends[0], bytes, sizeof(bytes))) > 0;)
        said.append(bytes, (size_t)n);
    close(ends[0]);
    assert_int_equal(waitpid(child, nullptr, 0), child);
    return said;
}

void faults_are_found(void **)
{
    std::string text = head;
    for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
        for (bool wrong : {false, true})
            text += "\n.visible .entry k" + std::to_string(n) + (wrong ? "wrong" : "right") +
                    begin + (wrong ? cases[n].wrong : cases[n].right) + "ret;\n\n}\n";
    }
    ptx::add_module(text);
    auto of_heap = emulation::can_reach;
    emulation::can_reach = has;
    for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
        std::string wrong = said_by("k" + std::to_string(n) + "wrong", cases[n].is_early);
        std::string right = said_by("k" + std::to_string(n) + "right", cases[n].is_early);
        const char *message = cases[n].message != nullptr ? cases[n].message : "orders differ";
        if (wrong.find(message) == std::string::npos)
            fail_msg("%s: not found, but: %s", cases[n].name, wrong.c_str());
        if (!right.empty())
            fail_msg("%s, mended: %s", cases[n].name, right.c_str());
    }
    emulation::can_reach = of_heap;
}

/* Of ordinary memory: a block of the heap ends where it was asked to, and when it is freed. */
void the_heap_has_bounds(void **)
{
    std::string text = head;
    text += "\n.visible .entry behind" + std::string(begin) +
            "ld.global.u32 %r4, [%rd1+4];\nret;\n\n}\n" + "\n.visible .entry inside" + begin +
            "ld.global.u32 %r4, [%rd1];\nret;\n\n}\n";
    ptx::add_module(text);
    memory = (uint32_t *)malloc(BYTES);
    const char *message = "outside of what the device has";
    assert_true(said_by("inside").empty());
    assert_true(said_by("behind").find(message) != std::string::npos);
    memory = (uint32_t *)realloc(memory, BYTES + 4);
    assert_true(said_by("behind").empty());
    free(memory);
    assert_true(said_by("inside").find(message) != std::string::npos);
    memory = static_memory;
}

void unknown_code_is_refused(void **)
{
    std::string text = std::string(head) + "\n.visible .entry approximate" + begin +
                       "div.approx.f32 %r4, %r4, %r4;\nret;\n\n}\n";
    ptx::add_module(text);
    assert_true(said_by("approximate").find("PTX that is not known") != std::string::npos);
}

/* What the build's own nvcc made, where it did. */
void all_kernels_are_known(void **)
{
    size_t n = ptx::parse_all();
    print_message("%zu kernels\n", n);
    if (emulation::translating != nullptr)
        assert_true(n > 200);
}
} // namespace

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_kernels_are_known),
        cmocka_unit_test(faults_are_found),
        cmocka_unit_test(the_heap_has_bounds),
        cmocka_unit_test(unknown_code_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
