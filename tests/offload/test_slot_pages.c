/* SPDX-License-Identifier: MIT */
/* Pages of slots that threads bring in: some beyond the slot that was taken last, by size class,
 * and none far beyond it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "offload/slot_pages.h"
#include "tests/pages_present.h"

#define MIB   ((size_t)1 << 20)
#define SLOT  (4 * MIB)
#define HALF  (256 * MIB)
#define BYTES (2 * HALF)

static void test_slots(void **state)
{
    (void)state;
    uint8_t *memory = map_pages(BYTES);
    assert_non_null(memory);
    if (!pages_can_come(memory)) {
        munmap(memory, BYTES);
        skip();
    }
    moe_slot_class classes[2] = {{.slot_bytes = SLOT, .n_slots = HALF / SLOT},
                                 {.slot_bytes = SLOT / 2,
                                  .n_slots = 2 * HALF / SLOT,
                                  .first_slot = HALF / SLOT,
                                  .arena_offset = HALF}};
    const moe_slot_arena arena = {.classes = classes,
                                  .n_classes = 2,
                                  .n_slots = 3 * HALF / SLOT,
                                  .memory = memory,
                                  .bytes = BYTES};
    moe_slot_pages *pages = moe_slot_pages_start(&arena, 2);
    assert_non_null(pages);
    /* Both classes have pages before a slot is taken. */
    assert_true(pages_come(memory, 12 * MIB, 80 * MIB));
    assert_true(pages_come(memory, HALF + 12 * MIB, HALF + 80 * MIB));
    assert_int_equal(pages_present(memory, 112 * MIB, HALF), 0);
    /* A slot of the second class, and one before it. */
    moe_slot_pages_taken(pages, HALF / SLOT + 29);
    moe_slot_pages_taken(pages, HALF / SLOT + 3);
    assert_true(pages_come(memory, HALF + 76 * MIB, HALF + 140 * MIB));
    assert_int_equal(pages_present(memory, HALF + 172 * MIB, BYTES), 0);
    assert_int_equal(pages_present(memory, 112 * MIB, HALF), 0);
    /* A slot out of turn, alone. */
    moe_slot_pages_hurry(pages, 40);
    assert_true(pages_come(memory, 40 * SLOT, 41 * SLOT));
    assert_int_equal(pages_present(memory, 112 * MIB, 40 * SLOT), 0);
    assert_int_equal(pages_present(memory, 41 * SLOT, HALF), 0);
    moe_slot_pages_stop(&pages);
    assert_null(pages);
    moe_slot_pages_taken(pages, 0);
    moe_slot_pages_hurry(pages, 0);
    moe_slot_pages_stop(&pages);
    munmap(memory, BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slots)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
