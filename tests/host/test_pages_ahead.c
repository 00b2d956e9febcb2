/* SPDX-License-Identifier: MIT */
/* Pages that threads bring in ahead of a filler: they come, what the filler wrote stays, and small
 * or unmapped memory is left alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <cmocka.h>

#include "runtime/host/pages_ahead.h"

#define PAGE  4096u
#define BYTES ((size_t)64 << 20)
#define FILL  ((size_t)24 << 20)

static uint8_t *map(void)
{
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    return memory;
}

/* How many pages of the bytes [from, to) of the mapping are in memory. */
static size_t present(uint8_t *memory, size_t from, size_t to)
{
    static unsigned char in[BYTES / PAGE];
    size_t n = 0;
    assert_int_equal(mincore(memory, BYTES, in), 0);
    for (size_t page = from / PAGE; page < to / PAGE; page++) {
        n += in[page] & 1u;
    }
    return n;
}

static bool kernel_can(uint8_t *memory)
{
    return madvise(memory, PAGE, 23 /* MADV_POPULATE_WRITE */) == 0;
}

/* The threads bring in all that is beyond the filler, without its doing. */
static void test_pages_come(void **state)
{
    (void)state;
    uint8_t *memory = map();
    if (!kernel_can(memory)) {
        munmap(memory, BYTES);
        skip();
    }
    moe_pages_ahead *ahead = moe_pages_ahead_start(memory, BYTES, 2);
    assert_non_null(ahead);
    const struct timespec moment = {.tv_nsec = 1000000};
    const size_t behind = BYTES / 2;
    for (int i = 0; i < 20000 && present(memory, behind, BYTES) < (BYTES - behind) / PAGE; i++) {
        nanosleep(&moment, NULL);
    }
    assert_int_equal(present(memory, behind, BYTES), (BYTES - behind) / PAGE);
    moe_pages_ahead_stop(&ahead);
    assert_null(ahead);
    munmap(memory, BYTES);
}

/* What is written beside the threads is there at the end. */
static void test_bytes_stay(void **state)
{
    (void)state;
    uint8_t *memory = map();
    moe_pages_ahead *ahead = moe_pages_ahead_start(memory, BYTES, 4);
    for (size_t at = 0; at < FILL; at += PAGE) {
        memset(memory + at, (int)(1 + at / PAGE % 251), PAGE);
        moe_pages_ahead_filled(ahead, at + PAGE);
    }
    moe_pages_ahead_stop(&ahead);
    for (size_t at = 0; at < BYTES; at += 997) {
        assert_int_equal(memory[at], at < FILL ? 1 + at / PAGE % 251 : 0);
    }
    munmap(memory, BYTES);
}

static void test_nothing_to_do(void **state)
{
    (void)state;
    uint8_t small[PAGE];
    assert_null(moe_pages_ahead_start(small, sizeof small, 2));
    uint8_t *memory = map();
    assert_null(moe_pages_ahead_start(memory, BYTES, 0));
    munmap(memory, BYTES);
    moe_pages_ahead *none = NULL;
    moe_pages_ahead_filled(none, 1);
    moe_pages_ahead_stop(&none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_come),
        cmocka_unit_test(test_bytes_stay),
        cmocka_unit_test(test_nothing_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
