/* SPDX-License-Identifier: MIT */
/* Copies of models with some bytes of a tensor replaced. */
#ifndef MOE_TESTS_DAMAGED_MODEL_H
#define MOE_TESTS_DAMAGED_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a tensor lies in a model of one file; false when it has none of that name. */
typedef struct tensor_place {
    uint64_t offset, size;
    uint32_t type;
} tensor_place;
bool find_tensor(const char *path, const char *name, tensor_place *place);

/* Copies FROM to TO, and replaces n bytes at that offset (n = 0: none). False on any failure. */
bool copy_with_bytes(const char *from, const char *to, uint64_t offset, const void *bytes,
                     size_t n);
/* Likewise with n bytes from `offset` on flipped. */
bool copy_with_flips(const char *from, const char *to, uint64_t offset, size_t n);

#endif
