/* SPDX-License-Identifier: MIT */
/* SHA-256 against the vectors of FIPS 180-4 and around its block boundaries. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/cli_base/cli_sha256.h"

static void check(const void *data, size_t size, const char *expected)
{
    char hex[CLI_SHA256_HEX_SIZE];
    cli_sha256 hash;
    cli_sha256_init(&hash);
    cli_sha256_update(&hash, data, size);
    cli_sha256_finish(&hash, hex);
    assert_string_equal(hex, expected);
}

static void test_vectors(void **state)
{
    (void)state;
    check("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56,
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

/* 55 bytes leave room for the length, 56 do not, 64 are a block. */
static void test_boundaries(void **state)
{
    (void)state;
    char data[64];
    memset(data, 'a', sizeof data);
    check(data, 55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
    check(data, 56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
    check(data, 64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

static void test_million(void **state)
{
    (void)state;
    char hex[CLI_SHA256_HEX_SIZE];
    char data[1000];
    cli_sha256 hash;
    memset(data, 'a', sizeof data);
    cli_sha256_init(&hash);
    for (int i = 0; i < 1000; i++) {
        cli_sha256_update(&hash, data, sizeof data);
    }
    cli_sha256_finish(&hash, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* Ids are hashed as little-endian 32-bit numbers: "abcd" is 0x64636261. */
static void test_tokens(void **state)
{
    (void)state;
    char hex[CLI_SHA256_HEX_SIZE];
    const int32_t token = 0x64636261;
    cli_sha256_tokens(&token, 1, hex);
    check("abcd", 4, hex);
    cli_sha256_tokens(NULL, 0, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_boundaries),
        cmocka_unit_test(test_million),
        cmocka_unit_test(test_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
