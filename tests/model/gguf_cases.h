/* SPDX-License-Identifier: MIT */
/* The named table of malformed GGUF files. */
#ifndef MOE_TESTS_GGUF_CASES_H
#define MOE_TESTS_GGUF_CASES_H

#include "tests/model/gguf_builder.h"

typedef struct gguf_case {
    const char *name;
    /* Spoils a builder that holds one string key and the F32 tensors "first" [64], "second" [32].
     */
    void (*spoil)(gguf_builder *b);
    int status;       /* expected */
    const char *says; /* expected within the message */
    long cut;         /* bytes kept of the file; from its end when negative; 0: all */
} gguf_case;

extern const gguf_case gguf_cases[];
extern const size_t n_gguf_cases;

/* The well-formed file that the cases spoil. */
gguf_builder *gguf_case_base(void);

/* The file of a case; the builder owns the bytes. */
const uint8_t *gguf_case_make(const gguf_case *c, gguf_builder *b, size_t *size);

#endif
