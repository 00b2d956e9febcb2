/* SPDX-License-Identifier: MIT */
/* Memory of the CUDA device, on the emulated runtime. The host's is page-locked piece by piece,
 * ahead of its use, small blocks at once; what the driver refuses to lock is copied all the same,
 * and downloaded to. The device's pages are parts of chunks. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/cuda_internal.h"
#include "fake_runtime.h"
#include "runtime/device/cards.h"

#define PIECE ((size_t)4 << 20) /* of the emulated machine's 1 GiB */

const moe_cuda_module *moe_cuda_module_entry(void);

static moe_device *open_on(const fake_machine *machine)
{
    moe_device *device = NULL;
    moe_error err = {""};
    fake_machine_set(machine);
    if (moe_cuda_module_entry()->open(&device, &(moe_cuda_device_options){0}, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    assert_int_equal(moe_cuda_device_of(device)->pin_bytes, PIECE);
    return device;
}

static uint64_t n_locked(void)
{
    fake_usage usage;
    fake_get_usage(&usage);
    return usage.host_blocks;
}

static void close_all(moe_device *device)
{
    fake_usage usage;
    device->ops->close(device);
    fake_get_usage(&usage);
    assert_int_equal(usage.host_blocks + usage.device_blocks + usage.events + usage.streams, 0);
}

static void *host_alloc(moe_device *device, size_t bytes)
{
    void *memory = NULL;
    moe_error err = {""};
    if (device->link->host_alloc(device, bytes, &memory, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    return memory;
}

/* Copies these bytes of the block to the device and back, and compares. */
static void check_copy(moe_device *device, const uint8_t *block, size_t at, size_t bytes)
{
    moe_error err = {""};
    void *on_device = NULL;
    uint8_t *back = malloc(bytes);
    uint64_t ticket;
    assert_int_equal(device->ops->alloc(device, bytes, &on_device, &err), MOE_OK);
    moe_copy_range range = {on_device, block + at, bytes};
    if (device->link->copy_begin(device, &range, 1, &ticket, &err) != MOE_OK ||
        device->link->copy_wait(device, ticket, &err) != MOE_OK ||
        device->ops->download(device, back, on_device, bytes, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    assert_memory_equal(back, block + at, bytes);
    free(back);
    device->ops->free(device, on_device, bytes);
}

/* Saves these bytes from the device; false if that is refused. */
static bool save(moe_device *device, uint8_t *block, size_t at, size_t bytes)
{
    moe_error err = {""};
    void *on_device = NULL;
    uint8_t *sent = malloc(bytes);
    uint64_t ticket;
    memcpy(sent, block + at, bytes);
    assert_int_equal(device->ops->alloc(device, bytes, &on_device, &err), MOE_OK);
    assert_int_equal(device->ops->upload(device, on_device, sent, bytes, &err), MOE_OK);
    assert_int_equal(device->ops->sync(device, &err), MOE_OK);
    memset(block + at, 0, bytes);
    moe_copy_range range = {block + at, on_device, bytes};
    int status = device->link->save_begin(device, &range, 1, &ticket, &err);
    while (status == MOE_OK && device->link->save_state(device, ticket) == MOE_COPY_UNDER_WAY) {
        sched_yield();
    }
    assert_true(status == MOE_OK || status == MOE_ERR_UNSUPPORTED);
    if (status == MOE_OK) {
        assert_int_equal(device->link->save_state(device, ticket), MOE_OK);
        assert_memory_equal(block + at, sent, bytes);
    }
    memcpy(block + at, sent, bytes);
    free(sent);
    device->ops->free(device, on_device, bytes);
    return status == MOE_OK;
}

static void fill(uint8_t *block, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        block[i] = (uint8_t)(i * 2654435761u >> 13);
    }
}

static void await_locked(uint64_t n)
{
    while (n_locked() < n) {
        sched_yield();
    }
}

/* The last piece is needed first; a thread locks the others though nobody asks for them. */
static void pieces_ahead(void **state)
{
    (void)state;
    fake_machine machine;
    fake_machine_init(&machine);
    moe_device *device = open_on(&machine);
    uint64_t before = n_locked();
    size_t bytes = 3 * PIECE + 4096;
    uint8_t *block = host_alloc(device, bytes);
    fill(block, bytes);
    check_copy(device, block, 3 * PIECE + 64, 1000);
    assert_true(save(device, block, 3 * PIECE + 3, 1000));
    await_locked(before + 4);
    check_copy(device, block, PIECE - 512, PIECE + 1024); /* over two borders */
    check_copy(device, block, 0, bytes);
    assert_true(save(device, block, PIECE - 512, PIECE + 1024));
    assert_int_equal(n_locked(), before + 4); /* once each */
    /* A second block beside the first; and blocks that are freed while they are being locked. */
    uint8_t *second = host_alloc(device, 2 * PIECE);
    await_locked(before + 6);
    device->link->host_free(device, second, 2 * PIECE);
    for (int i = 0; i < 50; i++) {
        second = host_alloc(device, 4 * PIECE);
        device->link->host_free(device, second, 4 * PIECE);
    }
    assert_int_equal(n_locked(), before + 4);
    device->link->host_free(device, block, bytes);
    assert_int_equal(n_locked(), before);
    uint8_t *small = host_alloc(device, PIECE);
    assert_int_equal(n_locked(), before + 1); /* at once */
    fill(small, PIECE);
    check_copy(device, small, 0, PIECE);
    close_all(device);
}

/* The driver locks nothing more, from the n-th request on. */
static void refused(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 3; n++) {
        fake_machine machine;
        fake_machine_init(&machine);
        moe_device *device = open_on(&machine);
        machine.fail_call = "cudaHostRegister";
        machine.fail_code = cudaErrorMemoryAllocation;
        machine.fail_after = n;
        machine.fail_each = true;
        fake_machine_set(&machine);
        uint64_t before = n_locked();
        size_t bytes = 3 * PIECE;
        uint8_t *block = host_alloc(device, bytes);
        fill(block, bytes);
        check_copy(device, block, 100, bytes - 200);
        check_copy(device, block, PIECE - 1, 2);
        assert_true(save(device, block, 0, bytes) == (n == 3));
        assert_true(save(device, block, 0, PIECE) == (n > 0));
        assert_int_equal(n_locked(), before + n);
        close_all(device);
    }
}

/* Neither way to lock memory works: results still arrive, later ones too. */
static void downloads(void **state)
{
    (void)state;
    fake_machine machine;
    fake_machine_init(&machine);
    moe_device *device = open_on(&machine);
    machine.fail_call = "cudaHostRegister";
    machine.fail_code = cudaErrorMemoryAllocation;
    machine.fail_each = true;
    fake_machine_set(&machine);
    size_t bytes = 2 * PIECE + 64;
    moe_error err = {""};
    void *on_device = NULL;
    uint8_t *block = host_alloc(device, bytes);
    uint8_t *sent = malloc(bytes);
    fill(sent, bytes);
    assert_int_equal(device->ops->alloc(device, bytes, &on_device, &err), MOE_OK);
    assert_int_equal(device->ops->upload(device, on_device, sent, bytes, &err), MOE_OK);
    assert_int_equal(device->ops->download_later(device, block, on_device, bytes, &err), MOE_OK);
    assert_int_equal(device->ops->sync(device, &err), MOE_OK);
    assert_memory_equal(block, sent, bytes);
    memset(block, 0, bytes);
    assert_int_equal(device->ops->download(device, block, on_device, bytes, &err), MOE_OK);
    assert_memory_equal(block, sent, bytes);
    free(sent);
    device->ops->free(device, on_device, bytes);
    close_all(device);
}

/* The link of a sleeping GPU is measured once it is awake. */
static void sleeping_link(void **state)
{
    (void)state;
    fake_machine machine;
    fake_machine_init(&machine);
    machine.n_slow_copies = 3;
    machine.slow_copy_us = 60000;
    moe_device *device = open_on(&machine);
    assert_true(device->link_bytes_per_s > 2u * (16u << 20) * 1000000ull / machine.slow_copy_us);
    close_all(device);
}

#define N_PAGES 60u

/* Pages of DeepSeek-V3's KV cache (61 layers of 64 positions of 576 halves): how many calls they
 * are, what a GPU takes for them; none overlaps another, and all come back. */
static void pages_in_chunks(void **state)
{
    (void)state;
    const size_t page = (size_t)61 * 64 * 576 * 2;
    fake_machine machine;
    fake_machine_init(&machine);
    fake_usage before, usage;
    moe_device *device = open_on(&machine);
    uint8_t *pages[N_PAGES];
    void *large = NULL;
    uint32_t mark;
    fake_get_usage(&before);
    for (uint32_t i = 0; i < N_PAGES; i++) {
        void *memory = NULL;
        assert_int_equal(device->ops->alloc(device, page, &memory, NULL), MOE_OK);
        assert_int_equal((uintptr_t)memory % 64, 0);
        pages[i] = memory;
        mark = i;
        assert_int_equal(device->ops->upload(device, memory, &mark, sizeof mark, NULL), MOE_OK);
        assert_int_equal(
            device->ops->upload(device, pages[i] + page - sizeof mark, &mark, sizeof mark, NULL),
            MOE_OK);
    }
    fake_get_usage(&usage);
    uint64_t calls = usage.n_allocations - before.n_allocations;
    double taken = (double)(usage.device_rounded_bytes - before.device_rounded_bytes);
    print_message("%u pages of %.1f MiB: %u calls, %.3f of their bytes\n", N_PAGES,
                  (double)page / 1048576.0, (unsigned)calls, taken / (double)(N_PAGES * page));
    assert_true(calls <= 15 && taken <= 1.13 * (double)(N_PAGES * page));
    for (uint32_t i = 0; i < N_PAGES; i++) {
        uint32_t ends[2];
        device->ops->download(device, &ends[0], pages[i], sizeof mark, NULL);
        device->ops->download(device, &ends[1], pages[i] + page - sizeof mark, sizeof mark, NULL);
        assert_true(ends[0] == i && ends[1] == i);
    }
    assert_int_equal(device->ops->alloc(device, 64u << 20, &large, NULL), MOE_OK);
    for (uint32_t i = 0; i < N_PAGES; i++) { /* 7 and 60 have no divisor in common */
        device->ops->free(device, pages[i * 7 % N_PAGES], page);
    }
    device->ops->free(device, large, 64u << 20);
    fake_get_usage(&usage);
    assert_int_equal(usage.device_blocks, before.device_blocks);
    assert_int_equal(usage.device_bytes, before.device_bytes);
    close_all(device);
}

/* Two GPUs joined: the second copies from and to host memory of the first, over its own link, also
 * memory that cannot be page-locked (which nothing is saved to). */
static void joined(void **state)
{
    (void)state;
    for (int locks = 1; locks >= 0; locks--) {
        fake_machine machine;
        fake_machine_init(&machine);
        machine.n_devices = 2;
        moe_device *first = open_on(&machine);
        moe_device *second = NULL;
        moe_cuda_device_options options = {.index = 1};
        assert_int_equal(moe_cuda_module_entry()->open(&second, &options, NULL), MOE_OK);
        if (!locks) {
            machine.fail_call = "cudaHostRegister";
            machine.fail_code = cudaErrorMemoryAllocation;
            machine.fail_each = true;
            fake_machine_set(&machine);
        }
        assert_int_equal(moe_cards_join(first, &second, 1, NULL), MOE_OK);
        const size_t bytes = 2 * PIECE;
        uint8_t *host = host_alloc(first, 3 * PIECE);
        void *there = NULL;
        uint64_t ticket;
        assert_int_equal(moe_cards_alloc(first, 1, bytes, &there, NULL), MOE_OK);
        for (size_t i = 0; i < bytes; i++) {
            host[i] = (uint8_t)(i % 251);
        }
        moe_copy_range range = {there, host, bytes};
        assert_int_equal(first->link->copy_begin(first, &range, 1, &ticket, NULL), MOE_OK);
        assert_int_equal(first->link->copy_wait(first, ticket, NULL), MOE_OK);
        assert_int_equal(first->link->copy_state(first, ticket), MOE_OK);
        uint8_t *back = host + PIECE;
        range = (moe_copy_range){back, there, bytes};
        int status = first->link->save_begin(first, &range, 1, &ticket, NULL);
        assert_int_equal(status, locks ? MOE_OK : MOE_ERR_UNSUPPORTED);
        while (locks && first->link->save_state(first, ticket) == MOE_COPY_UNDER_WAY) {
            sched_yield();
        }
        for (size_t i = 0; i < bytes; i++) {
            assert_true(!locks || back[i] == (uint8_t)(i % 251));
        }
        moe_cards_free(first, 1, there, bytes);
        first->link->host_free(first, host, 3 * PIECE);
        close_all(first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_ahead),  cmocka_unit_test(refused),
        cmocka_unit_test(sleeping_link), cmocka_unit_test(downloads),
        cmocka_unit_test(joined),        cmocka_unit_test(pages_in_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
