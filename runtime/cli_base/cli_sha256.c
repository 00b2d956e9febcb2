/* SPDX-License-Identifier: MIT */
#include "cli_sha256.h"

#include <stdio.h>
#include <string.h>

/* Fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/* Fractional parts of the square roots of the first 8 primes. */
static const uint32_t initial_state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static uint32_t rotate_right(uint32_t value, unsigned bits)
{
    return value >> bits | value << (32 - bits);
}

static uint32_t load_big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* w: the message schedule of one 64-byte block. */
static void expand_block(uint32_t w[64], const uint8_t *block)
{
    for (int i = 0; i < 16; i++) {
        w[i] = load_big_endian(block + 4 * i);
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15];
        uint32_t b = w[i - 2];
        uint32_t s0 = rotate_right(a, 7) ^ rotate_right(a, 18) ^ a >> 3;
        uint32_t s1 = rotate_right(b, 17) ^ rotate_right(b, 19) ^ b >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
}

static void hash_block(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[64];
    uint32_t v[8]; /* the working variables a..h of the standard */
    expand_block(w, block);
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = rotate_right(v[4], 6) ^ rotate_right(v[4], 11) ^ rotate_right(v[4], 25);
        uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t t1 = v[7] + s1 + choice + round_constants[i] + w[i];
        uint32_t s0 = rotate_right(v[0], 2) ^ rotate_right(v[0], 13) ^ rotate_right(v[0], 22);
        uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t1;
        v[0] = t1 + s0 + majority;
    }
    for (int i = 0; i < 8; i++) {
        state[i] += v[i];
    }
}

void cli_sha256_init(cli_sha256 *hash)
{
    memcpy(hash->state, initial_state, sizeof hash->state);
    hash->n_bytes = 0;
}

void cli_sha256_update(cli_sha256 *hash, const void *data, size_t size)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size; i++) {
        hash->block[hash->n_bytes++ % 64] = bytes[i];
        if (hash->n_bytes % 64 == 0) {
            hash_block(hash->state, hash->block);
        }
    }
}

void cli_sha256_finish(cli_sha256 *hash, char hex[CLI_SHA256_HEX_SIZE])
{
    uint64_t n_bits = hash->n_bytes * 8;
    uint8_t length[8];
    cli_sha256_update(hash, "\x80", 1);
    while (hash->n_bytes % 64 != 56) {
        cli_sha256_update(hash, "", 1);
    }
    for (int i = 0; i < 8; i++) {
        length[i] = (uint8_t)(n_bits >> (56 - 8 * i));
    }
    cli_sha256_update(hash, length, sizeof length);
    for (int i = 0; i < 8; i++) {
        snprintf(hex + 8 * i, 9, "%08x", hash->state[i]);
    }
}

void cli_sha256_tokens(const int32_t *tokens, size_t n, char hex[CLI_SHA256_HEX_SIZE])
{
    cli_sha256 hash;
    cli_sha256_init(&hash);
    for (size_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)tokens[i];
        uint8_t bytes[4] = {(uint8_t)id, (uint8_t)(id >> 8), (uint8_t)(id >> 16),
                            (uint8_t)(id >> 24)};
        cli_sha256_update(&hash, bytes, sizeof bytes);
    }
    cli_sha256_finish(&hash, hex);
}
