/* SPDX-License-Identifier: MIT */
/* Sidecars of a small model, with checksums that are always right (trusting_hash.c). The first byte
 * says whether Gram matrices are wanted; the rest is the file. What is accepted must be within the
 * bounds that users of the tables rely on. */
#include "runtime/sidecar/calibration.h"

#include <stdbool.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/fuzz/sidecar_shape.h"

static void check_tables(const moe_calibration *c)
{
    uint32_t n = c->shape.n_expert;
    for (size_t row = 0; row < (size_t)c->shape.n_layer * n; row++) {
        fuzz_expect(c->counts[row] <= c->n_tokens);
        for (uint32_t e = 0; e < n && moe_calibration_has_tables(c); e++) {
            fuzz_expect(c->coactivation[row * n + e] >= 0);
            for (int kind = 0; kind < MOE_AFFINITY_KINDS; kind++) {
                fuzz_expect(c->affinity[kind][row * n + e] < n);
            }
        }
    }
}

static void use(moe_calibration *c)
{
    uint32_t order[FUZZ_SIDECAR_EXPERTS];
    uint64_t counts[FUZZ_SIDECAR_LAYERS * FUZZ_SIDECAR_EXPERTS] = {1, 1};
    check_tables(c);
    for (uint32_t l = 0; l < c->shape.n_layer; l++) {
        moe_calibration_hottest(c, l, order);
    }
    float *hotness = moe_calibration_hotness(c);
    for (size_t i = 0; hotness != NULL && i < sizeof counts / sizeof *counts; i++) {
        fuzz_expect(hotness[i] >= 0 && hotness[i] <= 1);
    }
    free(hotness);
    moe_calibration_learn(c, counts, 1);
    check_tables(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fuzz_file file;
    if (size == 0) {
        return 0;
    }
    moe_calibration *c = NULL;
    moe_error err = {""};
    const char *path = fuzz_file_write(&file, data + 1, size - 1);
    if (moe_calibration_load(&c, path, &fuzz_sidecar_shape, data[0] & 1, NULL, &err) == MOE_OK) {
        use(c);
    } else {
        fuzz_expect(c == NULL && err.message[0] != '\0');
    }
    moe_calibration_free(&c);
    return 0;
}
