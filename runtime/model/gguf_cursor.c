/* SPDX-License-Identifier: MIT */
#include "runtime/model/gguf_cursor.h"

#include <inttypes.h>

#include "runtime/base/error.h"

int moe_gguf_truncated(const moe_gguf_cursor *c, uint64_t wanted)
{
    return moe_fail(c->err, MOE_ERR_FORMAT,
                    "%s at offset %" PRIu64 " needs %" PRIu64 " bytes but the file ends after "
                    "%" PRIu64 ": it is truncated or damaged; download it again",
                    c->field, c->at, wanted, c->file_size - c->at);
}

int moe_gguf_want(moe_gguf_cursor *c, uint64_t size)
{
    if (size > c->file_size - c->at) {
        return moe_gguf_truncated(c, size);
    }
    if (size > c->n_bytes - c->at) {
        c->needed = c->at + size;
        return MOE_GGUF_NEED_MORE;
    }
    return MOE_OK;
}

uint64_t moe_gguf_load_le(const uint8_t *bytes, size_t size)
{
    uint64_t value = 0;
    for (size_t i = size; i-- > 0;) {
        value = value << 8 | bytes[i];
    }
    return value;
}

int moe_gguf_read_uint(moe_gguf_cursor *c, size_t size, uint64_t *value)
{
    MOE_TRY(moe_gguf_want(c, size));
    *value = moe_gguf_load_le(c->bytes + c->at, size);
    c->at += size;
    return MOE_OK;
}

int moe_gguf_read_u32(moe_gguf_cursor *c, uint32_t *value)
{
    uint64_t wide = 0;
    int status = moe_gguf_read_uint(c, 4, &wide);
    *value = (uint32_t)wide;
    return status;
}

int moe_gguf_read_string(moe_gguf_cursor *c, moe_string_view *string)
{
    uint64_t size = 0;
    MOE_TRY(moe_gguf_read_uint(c, 8, &size));
    MOE_TRY(moe_gguf_want(c, size));
    string->data = (const char *)c->bytes + c->at;
    string->size = size;
    c->at += size;
    return MOE_OK;
}
