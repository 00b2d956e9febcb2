/* SPDX-License-Identifier: MIT */
/* NFC against utf8proc's own on short texts, and on a text on which that takes quadratic time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <utf8proc.h>

#include "runtime/model/text_nfc.h"

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Mostly marks and what they combine with, some of anything. */
static utf8proc_int32_t random_character(uint64_t *seed)
{
    switch (next_random(seed) % 8) {
    case 0:
        return 'a' + (utf8proc_int32_t)(next_random(seed) % 26);
    case 1:
        return 0xAC00 + (utf8proc_int32_t)(next_random(seed) % 11172); /* Hangul syllables */
    case 2:
        return 0x1100 + (utf8proc_int32_t)(next_random(seed) % 256); /* and their parts */
    case 3:
        return 0xC0 + (utf8proc_int32_t)(next_random(seed) % 400);
    case 4: {
        utf8proc_int32_t any = (utf8proc_int32_t)(next_random(seed) % 0x110000);
        return any >= 0xD800 && any < 0xE000 ? 0xFFFD : any;
    }
    default:
        return 0x300 + (utf8proc_int32_t)(next_random(seed) % 0x70);
    }
}

static void test_random(void **state)
{
    (void)state;
    uint64_t seed = 11;
    unsigned n_changed = 0;
    for (int round = 0; round < 20000; round++) {
        char text[4 * 64];
        size_t size = 0;
        size_t n = next_random(&seed) % (round % 50 == 0 ? 64 : 12);
        for (size_t i = 0; i < n; i++) {
            size += (size_t)utf8proc_encode_char(random_character(&seed),
                                                 (utf8proc_uint8_t *)text + size);
        }
        utf8proc_uint8_t *expected;
        utf8proc_ssize_t n_expected =
            utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size, &expected,
                         UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        assert_true(n_expected >= 0);
        size_t n_actual;
        char *actual = moe_nfc(text, size, &n_actual);
        assert_non_null(actual);
        assert_int_equal(n_actual, n_expected);
        assert_memory_equal(actual, expected, n_actual);
        bool changed = n_actual != size || memcmp(actual, text, size) != 0;
        assert_true(!changed || moe_nfc_may_change(text, size));
        n_changed += changed;
        free(actual);
        free(expected);
    }
    assert_true(n_changed > 5000);
    assert_false(moe_nfc_may_change("caf\xC3\xA9 \xCB\xBF", 8));
}

/* Half a million marks in the wrong order: done at once, or, if it were quadratic, in an hour. */
static void test_long_run(void **state)
{
    (void)state;
    enum { PAIRS = 250000 };
    char *text = malloc(1 + 4 * PAIRS);
    assert_non_null(text);
    text[0] = 'a';
    for (size_t i = 0; i < PAIRS; i++) {
        memcpy(text + 1 + 4 * i, "\xCC\x81\xCC\xA3", 4); /* acute above, dot below */
    }
    size_t n;
    char *actual = moe_nfc(text, 1 + 4 * PAIRS, &n);
    assert_non_null(actual);
    /* U+1EA1 takes one dot; the other dots, then all acutes. */
    assert_int_equal(n, 3 + 2 * (PAIRS - 1) + 2 * PAIRS);
    assert_memory_equal(actual, "\xE1\xBA\xA1\xCC\xA3", 5);
    assert_memory_equal(actual + 3 + 2 * (PAIRS - 1) - 2, "\xCC\xA3\xCC\x81", 4);
    assert_memory_equal(actual + n - 2, "\xCC\x81", 2);
    free(actual);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_long_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
