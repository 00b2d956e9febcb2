/* SPDX-License-Identifier: MIT */
/* XXH3 (128 bits), for tokens_xxh128 and for other fields that distinguish texts. `xxhsum -H128`
 * prints the same digits. */
#ifndef CLI_HASH_H
#define CLI_HASH_H

#include <stddef.h>
#include <stdint.h>

#define CLI_HASH_HEX_SIZE 33

/* Writes lower-case hexadecimal digits, terminated. seed: 0 for a hash that xxhsum also prints. */
void cli_hash_bytes(const void *data, size_t size, uint64_t seed, char hex[CLI_HASH_HEX_SIZE]);
/* The hash of the ids as little-endian 32-bit numbers. */
void cli_hash_tokens(const int32_t *tokens, size_t n, char hex[CLI_HASH_HEX_SIZE]);

#endif
