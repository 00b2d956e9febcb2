/* SPDX-License-Identifier: MIT */
#include "cli_hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tokens are hashed as they lie in memory");

void cli_hash_bytes(const void *data, size_t size, uint64_t seed, char hex[CLI_HASH_HEX_SIZE])
{
    XXH128_hash_t hash = XXH3_128bits_withSeed(data, size, seed);
    snprintf(hex, CLI_HASH_HEX_SIZE, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64,
             (uint64_t)hash.low64);
}

void cli_hash_tokens(const int32_t *tokens, size_t n, char hex[CLI_HASH_HEX_SIZE])
{
    cli_hash_bytes(tokens, n * sizeof *tokens, 0, hex);
}
