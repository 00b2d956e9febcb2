/* SPDX-License-Identifier: MIT */
/* damage_model MODEL COPY TENSOR flips [N | all] | infinite: a copy of a model of one file, in
 * which N bytes (200) in the middle of a tensor are flipped, or all values (or scales) are
 * infinite. `flips all` spares the tensor's first and last 4 KiB, which the model's fingerprint may
 * cover. Prints the tensor's offset. Status 3: the model has no such tensor. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/dtype.h"
#include "tests/engine/damaged_model.h"

#define N_FLIPS  200
#define N_SPARED 4096

int main(int argc, char **argv)
{
    tensor_place place;
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
