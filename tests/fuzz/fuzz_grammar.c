/* SPDX-License-Identifier: MIT */
/* A grammar in GBNF, or a JSON schema that becomes one, and a text that is read by it. The first
 * byte says which; a 0 byte ends the grammar. Memory and steps are bounded, and a refusal has a
 * message. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <moe/grammar.h>
#include <moe/moe.h>

#include "runtime/grammar/grammar_matcher.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_text(const moe_grammar *grammar, const uint8_t *text, size_t size)
{
    moe_matcher m;
    if (moe_matcher_init(&m, grammar, NULL) != MOE_OK) {
        return;
    }
    uint32_t state = moe_matcher_start(&m);
    for (size_t i = 0; i < size && i < 256; i++) {
        (void)moe_matcher_tidy(&m, &state);
        uint32_t next = moe_matcher_step(&m, state, text[i]);
        /* The same byte leads to the same state, and a dead end is one for good. */
        if (next != moe_matcher_step(&m, state, text[i]) ||
            (state == MOE_MATCH_DEAD && next != MOE_MATCH_DEAD) ||
            m.n_states > MOE_MATCH_MOST_STATES || m.n_stacks > MOE_MATCH_MOST_STACKS) {
            abort();
        }
        state = next;
    }
    moe_matcher_free(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > 4096) {
        return 0;
    }
    const char *source = (const char *)data + 1;
    size_t length = strnlen(source, size - 1);
    char *text = NULL;
    moe_error err = {""};
    moe_grammar *grammar;
    int status = MOE_OK;
    if (data[0] % 2 == 1) {
        status = moe_json_schema_grammar(&text, source, length, &err);
    }
    if (status == MOE_OK) {
        status = text != NULL ? moe_grammar_create(&grammar, text, strlen(text), &err)
                              : moe_grammar_create(&grammar, source, length, &err);
        if (status == MOE_OK) {
            read_text(grammar, data + 1 + length, size - 1 - length);
            moe_grammar_close(&grammar);
        }
    }
    if (status != MOE_OK && err.message[0] == '\0') {
        abort();
    }
    moe_free(text);
    return 0;
}
