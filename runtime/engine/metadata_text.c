/* SPDX-License-Identifier: MIT */
#include "runtime/engine/metadata_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/alloc.h"

/* A text of limited size. After the first piece that does not fit, nothing more is added. */
typedef struct line_writer {
    char *out;
    size_t size;
    size_t used;
    bool full;
} line_writer;

static void put_bytes(line_writer *line, const char *bytes, size_t n)
{
    if (line->full || n >= line->size - line->used) {
        line->full = true;
        return;
    }
    memcpy(line->out + line->used, bytes, n);
    line->used += n;
    line->out[line->used] = '\0';
}

static void put_text(line_writer *line, const char *text)
{
    put_bytes(line, text, strlen(text));
}

static void put_escaped(line_writer *line, moe_string_view text)
{
    for (size_t i = 0; i < text.size && !line->full; i++) {
        unsigned char byte = (unsigned char)text.data[i];
        char escape[8];
        if (byte == '\n') {
            put_text(line, "\\n");
        } else if (byte == '\t') {
            put_text(line, "\\t");
        } else if (byte == '\\') {
            put_text(line, "\\\\");
        } else if (byte < 0x20 || byte == 0x7F) {
            snprintf(escape, sizeof escape, "\\x%02x", byte);
            put_text(line, escape);
        } else {
            put_bytes(line, text.data + i, 1);
        }
    }
}

/* Returns the largest position up to `at` that does not cut a UTF-8 character. */
static size_t whole_characters(const char *text, size_t at)
{
    size_t start = at;
    while (start > 0 && at - start < 4 && ((unsigned char)text[start - 1] & 0xC0) == 0x80) {
        start--;
    }
    if (start == 0 || ((unsigned char)text[start - 1] & 0xC0) != 0xC0) {
        return at;
    }
    unsigned char lead = (unsigned char)text[start - 1];
    size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    return at - (start - 1) < length ? start - 1 : at;
}

static void finish(line_writer *line)
{
    static const char mark[] = "...";
    if (!line->full || line->size < sizeof mark) {
        return;
    }
    size_t at = line->used < line->size - sizeof mark ? line->used : line->size - sizeof mark;
    memcpy(line->out + whole_characters(line->out, at), mark, sizeof mark);
}

static const char *type_name(moe_gguf_type type)
{
    static const char *const names[] = {
        [MOE_GGUF_U8] = "u8",       [MOE_GGUF_I8] = "i8",     [MOE_GGUF_U16] = "u16",
        [MOE_GGUF_I16] = "i16",     [MOE_GGUF_U32] = "u32",   [MOE_GGUF_I32] = "i32",
        [MOE_GGUF_F32] = "f32",     [MOE_GGUF_BOOL] = "bool", [MOE_GGUF_STRING] = "string",
        [MOE_GGUF_ARRAY] = "array", [MOE_GGUF_U64] = "u64",   [MOE_GGUF_I64] = "i64",
        [MOE_GGUF_F64] = "f64",
    };
    return (size_t)type < sizeof names / sizeof names[0] ? names[type] : "unknown";
}

void moe_metadata_type_text(const moe_gguf_kv *kv, char *out, size_t size)
{
    if (kv->type == MOE_GGUF_ARRAY) {
        snprintf(out, size, "%s[%" PRIu64 "]", type_name(kv->element_type), kv->n_elements);
    } else {
        snprintf(out, size, "%s", type_name(kv->type));
    }
}

static void put_number(line_writer *line, const moe_gguf_kv *kv)
{
    char text[40];
    switch (kv->type) {
    case MOE_GGUF_BOOL:
        snprintf(text, sizeof text, "%s", kv->value.u64 != 0 ? "true" : "false");
        break;
    case MOE_GGUF_F32:
        snprintf(text, sizeof text, "%.9g", kv->value.f64);
        break;
    case MOE_GGUF_F64:
        snprintf(text, sizeof text, "%.17g", kv->value.f64);
        break;
    case MOE_GGUF_I8:
    case MOE_GGUF_I16:
    case MOE_GGUF_I32:
    case MOE_GGUF_I64:
        snprintf(text, sizeof text, "%" PRId64, kv->value.i64);
        break;
    default:
        snprintf(text, sizeof text, "%" PRIu64, kv->value.u64);
        break;
    }
    put_text(line, text);
}

static void put_element(line_writer *line, const moe_gguf_kv *kv, uint64_t index)
{
    char text[40] = "?";
    int64_t integer;
    float real;
    if (kv->element_type == MOE_GGUF_STRING) {
        put_text(line, "\"");
        put_escaped(line, kv->value.strings[index]);
        put_text(line, "\"");
        return;
    }
    if (kv->element_type == MOE_GGUF_F32 || kv->element_type == MOE_GGUF_F64) {
        if (moe_gguf_array_f32(kv, index, &real) == MOE_OK) {
            snprintf(text, sizeof text, "%.9g", (double)real);
        }
    } else if (moe_gguf_array_i64(kv, index, &integer) == MOE_OK) {
        snprintf(text, sizeof text, "%" PRId64, integer);
    }
    put_text(line, text);
}

void moe_metadata_value_text(const moe_gguf_kv *kv, char *out, size_t size)
{
    line_writer line = {out, size, 0, false};
    if (size == 0) {
        return;
    }
    out[0] = '\0';
    if (kv->type == MOE_GGUF_STRING) {
        put_escaped(&line, kv->value.string);
    } else if (kv->type != MOE_GGUF_ARRAY) {
        put_number(&line, kv);
    } else {
        put_text(&line, "[");
        for (uint64_t i = 0; i < kv->n_elements && !line.full; i++) {
            put_text(&line, i == 0 ? "" : ", ");
            put_element(&line, kv, i);
        }
        put_text(&line, "]");
    }
    finish(&line);
}

char *moe_metadata_copy_text(moe_string_view text)
{
    uint64_t size;
    if (!moe_mul_u64(text.size, 4, &size) || !moe_add_u64(size, 1, &size)) {
        return NULL;
    }
    char *copy = moe_calloc(size, 1);
    if (copy != NULL) {
        line_writer line = {copy, size, 0, false};
        put_escaped(&line, text);
    }
    return copy;
}
