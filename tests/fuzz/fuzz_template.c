/* SPDX-License-Identifier: MIT */
/* A chat template of any text over a small conversation; what follows a 0 byte are the arguments in
 * JSON. What is rendered has origins for all of its bytes; what is not has an error that names the
 * template's line, or the arguments. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/template/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char messages[] =
        "[{\"role\":\"system\",\"content\":\" s \"},{\"role\":\"user\",\"content\":\"u\\u00e9\"},"
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"function\":"
        "{\"name\":\"f\",\"arguments\":{\"a\":1.5,\"b\":[true,{}]}}}]}]";
    const moe_template_variable variables[] = {
        {.name = "messages", .text = messages, .size = sizeof messages - 1},
        {.name = "add_generation_prompt", .text = "true", .size = 4},
        {.name = "bos_token", .text = "<s>", .size = 3, .is_markup = true},
    };
    const uint8_t *zero = size > 0 ? memchr(data, 0, size) : NULL;
    char *more = NULL;
    if (zero != NULL) {
        const size_t n = (size_t)(data + size - zero) - 1;
        more = malloc(n + 1);
        if (more == NULL) {
            return 0;
        }
        memcpy(more, zero + 1, n);
        more[n] = '\0';
        size = (size_t)(zero - data);
    }
    const moe_template_input input = {.source = (const char *)data,
                                      .size = size,
                                      .more_variables = more,
                                      .variables = variables,
                                      .n_variables = 3,
                                      .now = 1753358400};
    moe_template_output out;
    moe_error err = {""};
    const int status = moe_template_render(&input, &out, &err);
    free(more);
    if (status != MOE_OK) {
        if (strstr(err.message, "line ") == NULL && strstr(err.message, "the arguments") == NULL) {
            abort();
        }
        return 0;
    }
    size_t sum = 0;
    for (size_t i = 0; i < out.n_spans; i++) {
        sum += out.spans[i].size;
    }
    if (sum != out.size) {
        abort();
    }
    moe_template_output_free(&out);
    return 0;
}
