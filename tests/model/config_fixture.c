/* SPDX-License-Identifier: MIT */
#include "tests/model/config_fixture.h"

int read_config(gguf_builder *b, moe_model_config *config, moe_error *err)
{
    moe_gguf *gguf = NULL;
    size_t size;
    const uint8_t *bytes = gb_finish(b, &size);
    int status = moe_gguf_parse(&gguf, bytes, size, err);
    if (status == MOE_OK) {
        status = moe_model_config_read(config, gguf, err);
    }
    moe_gguf_close(&gguf);
    return status;
}

moe_model_config config_of(gguf_builder *b)
{
    moe_model_config config;
    moe_error err = {""};
    if (read_config(b, &config, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    gb_free(b);
    return config;
}

gguf_builder *preset(const char *architecture)
{
    gb_model model = gb_model_preset(architecture);
    return gb_model_build(&model);
}
