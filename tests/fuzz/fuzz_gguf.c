/* SPDX-License-Identifier: MIT */
/* Any bytes through the GGUF reader, the config and the tensor map: none may read out of bounds,
 * overflow, leak or take long, and what is accepted must keep its promises. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    moe_gguf *gguf = NULL;
    moe_error err = {""};
    if (moe_gguf_parse(&gguf, data, size, &err) == MOE_OK) {
        fuzz_check_model(gguf);
    } else {
        fuzz_expect(gguf == NULL && err.message[0] != '\0');
    }
    moe_gguf_close(&gguf);
    return 0;
}
