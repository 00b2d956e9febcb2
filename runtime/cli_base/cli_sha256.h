/* SPDX-License-Identifier: MIT */
/* SHA-256 (FIPS 180-4), for tokens_sha256: a hash that other tools can check. The need is too small
 * for a cryptography library. */
#ifndef CLI_SHA256_H
#define CLI_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define CLI_SHA256_HEX_SIZE 65

typedef struct cli_sha256 {
    uint32_t state[8];
    uint64_t n_bytes;
    uint8_t block[64];
} cli_sha256;

void cli_sha256_init(cli_sha256 *hash);
void cli_sha256_update(cli_sha256 *hash, const void *data, size_t size);
/* Lower-case hexadecimal digits, terminated. */
void cli_sha256_finish(cli_sha256 *hash, char hex[CLI_SHA256_HEX_SIZE]);

/* The hash of the ids as little-endian 32-bit numbers. */
void cli_sha256_tokens(const int32_t *tokens, size_t n, char hex[CLI_SHA256_HEX_SIZE]);

#endif
