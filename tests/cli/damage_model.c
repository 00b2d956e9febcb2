/* SPDX-License-Identifier: MIT */
/* damage_model MODEL COPY TENSOR flips [N | all] | infinite: a copy of a model of one file, in
 * which N bytes (200) in the middle of a tensor are flipped, or all values (or scales) are
 * infinite. `flips all` spares the tensor's first and last 4 KiB, which the model's fingerprint may
 * cover. Prints the tensor's offset. Status 3: the model has no such tensor.
 * damage_model SUMS COPY checksum first | last: a copy of a file of checksums, in which the first
 * or last one is another. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/base/dtype.h"
#include "tests/engine/damaged_model.h"

#define N_FLIPS  200
#define N_SPARED 4096

#define SUMS_HEADER 48

static bool copy_with_other_checksum(const char *from, const char *to, bool last)
{
    static uint8_t bytes[1 << 20];
    FILE *file = fopen(from, "rb");
    size_t n = file != NULL ? fread(bytes, 1, sizeof bytes, file) : 0;
    size_t at = 0;
    if (file == NULL || fclose(file) != 0 || n < SUMS_HEADER + 2 * sizeof(uint64_t)) {
        return false;
    }
    n -= sizeof(uint64_t);
    for (size_t i = SUMS_HEADER; i < n && (at == 0 || last); i += sizeof(uint64_t)) {
        uint64_t sum;
        memcpy(&sum, bytes + i, sizeof sum);
        at = sum != 0 ? i : at;
    }
    bytes[at] ^= 0x10;
    uint64_t sum = XXH3_64bits(bytes, n);
    memcpy(bytes + n, &sum, sizeof sum);
    file = fopen(to, "wb");
    bool written = file != NULL && fwrite(bytes, 1, n + sizeof sum, file) == n + sizeof sum;
    return file != NULL && fclose(file) == 0 && written && at != 0;
}

int main(int argc, char **argv)
{
    tensor_place place;
    if (argc == 5 && strcmp(argv[3], "checksum") == 0) {
        return copy_with_other_checksum(argv[1], argv[2], strcmp(argv[4], "last") == 0) ? 0 : 1;
    }
    if (argc < 5) {
        fprintf(stderr, "usage: damage_model MODEL COPY TENSOR flips [N | all] | infinite\n");
        return 2;
    }
    if (!find_tensor(argv[1], argv[3], &place)) {
        return 3;
    }
    printf("%llu\n", (unsigned long long)place.offset);
    if (strcmp(argv[4], "flips") == 0) {
        uint64_t n = N_FLIPS;
        if (argc > 5 && strcmp(argv[5], "all") == 0) {
            n = place.size > 2 * N_SPARED ? place.size - 2 * N_SPARED : 0;
        } else if (argc > 5) {
            n = strtoull(argv[5], NULL, 10);
        }
        n = n < place.size ? n : place.size;
        uint64_t first = place.offset + (place.size - n) / 2;
        return copy_with_flips(argv[1], argv[2], first, n) ? 0 : 1;
    }
    uint8_t *bytes = calloc(1, place.size);
    for (uint64_t i = 0; bytes != NULL && i + 4 <= place.size; i += 4) {
        uint32_t infinity = place.type == MOE_DTYPE_F32 ? 0x7f800000u : 0x7c007c00u;
        memcpy(bytes + i, &infinity, sizeof infinity);
    }
    bool copied =
        bytes != NULL && copy_with_bytes(argv[1], argv[2], place.offset, bytes, (size_t)place.size);
    free(bytes);
    return copied ? 0 : 1;
}
