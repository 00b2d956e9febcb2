/* SPDX-License-Identifier: MIT */
/* Parser of one GGUF header:
 *
 *  magic "GGUF" | version u32 | n_tensors u64 | n_kvs u64
 *  n_kvs     x { key string | type u32 | value }            string: length u64, bytes
 *  n_tensors x { name string | n_dims u32 | dims u64[n_dims] | type u32 | offset u64 }
 *  padding to the alignment | tensor data
 *
 * A length is used only after it was compared with the rest of the file, and memory is allocated
 * only for entries whose bytes were read. The allocation is therefore a small multiple of the
 * header's true size, whatever its counts claim. */
#include "runtime/model/gguf_cursor.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/dtype.h"
#include "runtime/base/error.h"

#define DEFAULT_ALIGNMENT 32
#define MAX_KEY_BYTES     65535 /* the format's own limit */
#define MAX_NAME_BYTES    255   /* the format says 64; some converters write more */
#define MIN_KV_BYTES      14    /* a key of one byte and a value of one byte */
#define MIN_TENSOR_BYTES  33    /* a name of one byte and one dimension */

/* Makes room for one more entry of a growing table. */
static int reserve_one(void **table, size_t *capacity, size_t count, size_t entry_size,
                       moe_error *err)
{
    if (count < *capacity) {
        return MOE_OK;
    }
    size_t larger = *capacity == 0 ? 16 : *capacity * 2;
    void *grown = moe_realloc_array(*table, larger, entry_size);
    if (grown == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the header's tables (%zu entries)",
                        larger);
    }
    *table = grown;
    *capacity = larger;
    return MOE_OK;
}

static int decode_scalar(moe_gguf_kv *kv, const uint8_t *bytes, size_t size)
{
    uint64_t bits = moe_gguf_load_le(bytes, size);
    switch (kv->type) {
    case MOE_GGUF_I8:
        kv->value.i64 = (int8_t)bits;
        break;
    case MOE_GGUF_I16:
        kv->value.i64 = (int16_t)bits;
        break;
    case MOE_GGUF_I32:
        kv->value.i64 = (int32_t)bits;
        break;
    case MOE_GGUF_I64:
        kv->value.i64 = (int64_t)bits;
        break;
    case MOE_GGUF_F32: {
        uint32_t low = (uint32_t)bits;
        float narrow;
        memcpy(&narrow, &low, sizeof narrow);
        kv->value.f64 = (double)narrow;
        break;
    }
    case MOE_GGUF_F64:
        memcpy(&kv->value.f64, &bits, sizeof bits);
        break;
    default:
        kv->value.u64 = bits;
        break;
    }
    return kv->type == MOE_GGUF_BOOL && bits > 1 ? MOE_ERR_FORMAT : MOE_OK;
}

static int read_string_array(moe_gguf_header *header, moe_gguf_cursor *c, moe_gguf_kv *kv)
{
    /* Before views are allocated, the 8 bytes of each string's length must be in memory. */
    uint64_t least;
    if (!moe_mul_u64(kv->n_elements, 8, &least)) {
        least = UINT64_MAX;
    }
    MOE_TRY(moe_gguf_want(c, least));
    MOE_TRY(reserve_one((void **)&header->string_arrays, &header->string_arrays_capacity,
                        header->n_string_arrays, sizeof *header->string_arrays, c->err));
    moe_string_view *strings = moe_calloc(kv->n_elements, sizeof *strings);
    if (strings == NULL) {
        return moe_fail(c->err, MOE_ERR_MEMORY, "out of memory for an array of %" PRIu64 " strings",
                        kv->n_elements);
    }
    header->string_arrays[header->n_string_arrays++] = strings;
    for (uint64_t i = 0; i < kv->n_elements; i++) {
        MOE_TRY(moe_gguf_read_string(c, &strings[i]));
    }
    kv->value.strings = strings;
    return MOE_OK;
}

static int read_array(moe_gguf_header *header, moe_gguf_cursor *c, moe_gguf_kv *kv)
{
    char shown[MOE_GGUF_SHOWN];
    uint32_t element_type = 0;
    MOE_TRY(moe_gguf_read_u32(c, &element_type));
    MOE_TRY(moe_gguf_read_uint(c, 8, &kv->n_elements));
    kv->element_type = (moe_gguf_type)element_type;
    if (element_type == MOE_GGUF_ARRAY) {
        return moe_fail(c->err, MOE_ERR_UNSUPPORTED,
                        "key '%s' (before offset %" PRIu64 ") is an array of arrays, which no "
                        "model needs and this reader does not read",
                        moe_gguf_show(kv->key, shown), c->at);
    }
    if (element_type == MOE_GGUF_STRING) {
        return read_string_array(header, c, kv);
    }
    size_t element_size = moe_gguf_scalar_size(element_type);
    if (element_size == 0) {
        return moe_fail(c->err, MOE_ERR_FORMAT,
                        "key '%s': array element type %" PRIu32 " at offset %" PRIu64
                        " is not a GGUF type",
                        moe_gguf_show(kv->key, shown), element_type, c->at - 12);
    }
    uint64_t size;
    if (!moe_mul_u64(kv->n_elements, element_size, &size)) {
        return moe_gguf_truncated(c, UINT64_MAX);
    }
    MOE_TRY(moe_gguf_want(c, size));
    kv->value.raw = c->bytes + c->at;
    c->at += size;
    return MOE_OK;
}

static int read_value(moe_gguf_header *header, moe_gguf_cursor *c, moe_gguf_kv *kv)
{
    char shown[MOE_GGUF_SHOWN];
    if (kv->type == MOE_GGUF_STRING) {
        return moe_gguf_read_string(c, &kv->value.string);
    }
    if (kv->type == MOE_GGUF_ARRAY) {
        return read_array(header, c, kv);
    }
    size_t size = moe_gguf_scalar_size(kv->type);
    if (size == 0) {
        return moe_fail(c->err, MOE_ERR_FORMAT,
                        "key '%s': value type %u at offset %" PRIu64 " is not a GGUF type",
                        moe_gguf_show(kv->key, shown), (unsigned)kv->type, c->at - 4);
    }
    MOE_TRY(moe_gguf_want(c, size));
    if (decode_scalar(kv, c->bytes + c->at, size) != MOE_OK) {
        return moe_fail(c->err, MOE_ERR_FORMAT,
                        "key '%s': bool at offset %" PRIu64 " is neither 0 nor 1",
                        moe_gguf_show(kv->key, shown), c->at);
    }
    c->at += size;
    return MOE_OK;
}

static int read_kv(moe_gguf_header *header, moe_gguf_cursor *c)
{
    char field[MOE_GGUF_SHOWN + 32];
    char shown[MOE_GGUF_SHOWN];
    uint64_t start = c->at;
    c->field = "a metadata key";
    MOE_TRY(reserve_one((void **)&header->kvs, &header->kvs_capacity, header->n_kvs,
                        sizeof *header->kvs, c->err));
    moe_gguf_kv *kv = &header->kvs[header->n_kvs];
    memset(kv, 0, sizeof *kv);
    kv->n_elements = 1;
    MOE_TRY(moe_gguf_read_string(c, &kv->key));
    if (kv->key.size == 0 || kv->key.size > MAX_KEY_BYTES) {
        return moe_fail(c->err, MOE_ERR_FORMAT,
                        "metadata key %zu at offset %" PRIu64 " has %zu bytes, not 1 to %d",
                        header->n_kvs, start, kv->key.size, MAX_KEY_BYTES);
    }
    moe_gguf_show(kv->key, shown);
    memcpy(field, "the value of key ", 17);
    memcpy(field + 17, shown, strlen(shown) + 1);
    c->field = field;
    uint32_t type = 0;
    int status = moe_gguf_read_u32(c, &type);
    if (status == MOE_OK) {
        kv->type = (moe_gguf_type)type;
        status = read_value(header, c, kv);
    }
    c->field = NULL;
    header->n_kvs += status == MOE_OK;
    return status;
}

static int fail_tensor(const moe_gguf_cursor *c, const moe_gguf_tensor *tensor, const char *what,
                       uint64_t offset)
{
    char shown[MOE_GGUF_SHOWN];
    return moe_fail(c->err, MOE_ERR_FORMAT, "tensor '%s': %s (entry at offset %" PRIu64 ")",
                    moe_gguf_show(tensor->name, shown), what, offset);
}

/* Computes a tensor's bytes from its dimensions and type; 0 for a type that the engine does not
 * know. */
static int measure_tensor(const moe_gguf_cursor *c, moe_gguf_tensor *tensor, uint64_t start)
{
    uint64_t n_elements = 1;
    for (uint32_t i = 0; i < 4; i++) {
        if (tensor->dims[i] == 0) {
            return fail_tensor(c, tensor, "a dimension is 0", start);
        }
        if (!moe_mul_u64(n_elements, tensor->dims[i], &n_elements) || n_elements > INT64_MAX) {
            return fail_tensor(c, tensor, "the product of its dimensions overflows", start);
        }
    }
    const moe_dtype_info *info = moe_dtype_info_of(tensor->type);
    tensor->size = 0;
    if (info == NULL) {
        return tensor->type != MOE_TYPE_I32 || moe_mul_u64(n_elements, 4, &tensor->size)
                   ? MOE_OK
                   : fail_tensor(c, tensor, "its size in bytes overflows", start);
    }
    if (tensor->dims[0] % info->block_elems != 0) {
        return fail_tensor(c, tensor, "its row length is not a multiple of its type's block",
                           start);
    }
    uint64_t n_rows = n_elements / tensor->dims[0];
    uint64_t heads = 0;
    if (!moe_mul_u64(n_elements / info->block_elems, info->block_bytes, &tensor->size) ||
        !moe_mul_u64(n_rows, info->head_bytes, &heads) || tensor->size > UINT64_MAX - heads) {
        return fail_tensor(c, tensor, "its size in bytes overflows", start);
    }
    tensor->size += heads;
    return MOE_OK;
}

static int read_tensor(moe_gguf_header *header, moe_gguf_cursor *c)
{
    uint64_t start = c->at;
    c->field = "a tensor's entry";
    MOE_TRY(reserve_one((void **)&header->tensors, &header->tensors_capacity, header->n_tensors,
                        sizeof *header->tensors, c->err));
    moe_gguf_tensor *tensor = &header->tensors[header->n_tensors];
    *tensor = (moe_gguf_tensor){.dims = {1, 1, 1, 1}};
    MOE_TRY(moe_gguf_read_string(c, &tensor->name));
    if (tensor->name.size == 0 || tensor->name.size > MAX_NAME_BYTES) {
        return moe_fail(c->err, MOE_ERR_FORMAT,
                        "name of tensor %zu at offset %" PRIu64 " has %zu bytes, not 1 to %d",
                        header->n_tensors, start, tensor->name.size, MAX_NAME_BYTES);
    }
    int status = moe_gguf_read_u32(c, &tensor->n_dims);
    if (status == MOE_OK && (tensor->n_dims == 0 || tensor->n_dims > 4)) {
        return fail_tensor(c, tensor, "its number of dimensions is not 1 to 4", start);
    }
    for (uint32_t i = 0; i < tensor->n_dims && status == MOE_OK; i++) {
        status = moe_gguf_read_uint(c, 8, &tensor->dims[i]);
    }
    if (status == MOE_OK) {
        status = moe_gguf_read_u32(c, &tensor->type);
    }
    if (status == MOE_OK) {
        status = moe_gguf_read_uint(c, 8, &tensor->offset);
    }
    if (status == MOE_OK) {
        status = measure_tensor(c, tensor, start);
    }
    header->n_tensors += status == MOE_OK;
    return status;
}

/* Recognises other kinds of files that people mistake for a model, and says so. */
static int fail_magic(const moe_gguf_cursor *c)
{
    const uint8_t *b = c->bytes;
    if (memcmp(b, "vers", 4) == 0) {
        return moe_fail(c->err, MOE_ERR_FORMAT,
                        "not a GGUF file but, it seems, a Git LFS pointer to one: fetch the file "
                        "itself (git lfs pull)");
    }
    if (c->n_bytes > 8 && b[8] == '{') { /* the length of a JSON header, and the header */
        return moe_fail(c->err, MOE_ERR_FORMAT,
                        "not a GGUF file but one of safetensors: convert the model's folder (by "
                        "llama.cpp's convert_hf_to_gguf.py), or look for its GGUF files");
    }
    if (memcmp(b, "FUGG", 4) == 0) {
        return moe_fail(c->err, MOE_ERR_UNSUPPORTED,
                        "big-endian GGUF file: only little-endian files are supported");
    }
    return moe_fail(c->err, MOE_ERR_FORMAT,
                    "not a GGUF file: it begins with bytes %02x %02x %02x %02x, not with \"GGUF\"",
                    b[0], b[1], b[2], b[3]);
}

static int read_preamble(moe_gguf_header *header, moe_gguf_cursor *c, uint64_t *n_kvs,
                         uint64_t *n_tensors)
{
    c->field = "the GGUF magic number";
    MOE_TRY(moe_gguf_want(c, 4));
    if (memcmp(c->bytes, "GGUF", 4) != 0) {
        return fail_magic(c);
    }
    c->at = 4;
    c->field = "the GGUF version";
    MOE_TRY(moe_gguf_read_u32(c, &header->version));
    if (header->version != 0 && (header->version & 0xffff) == 0) {
        return moe_fail(c->err, MOE_ERR_UNSUPPORTED,
                        "big-endian GGUF file (version field %08" PRIx32 " at offset 4): only "
                        "little-endian files are supported",
                        header->version);
    }
    if (header->version != 2 && header->version != 3) {
        return moe_fail(c->err, MOE_ERR_UNSUPPORTED,
                        "GGUF version %" PRIu32 " (at offset 4): only versions 2 and 3 are "
                        "supported; convert the model again",
                        header->version);
    }
    c->field = "the number of tensors";
    MOE_TRY(moe_gguf_read_uint(c, 8, n_tensors));
    c->field = "the number of metadata keys";
    return moe_gguf_read_uint(c, 8, n_kvs);
}

/* Refuses a count before the first entry is read, if even the smallest entries would not fit. */
static int check_count(const moe_gguf_cursor *c, const char *what, uint64_t count, uint64_t least,
                       uint64_t offset)
{
    if (count > (c->file_size - c->at) / least || count >= UINT32_MAX) {
        return moe_fail(c->err, MOE_ERR_FORMAT,
                        "%s, %" PRIu64 " (at offset %" PRIu64 "), is more than the file's %" PRIu64
                        " bytes can hold: it is truncated or damaged; download it again",
                        what, count, offset, c->file_size);
    }
    return MOE_OK;
}

static int read_alignment(moe_gguf_header *header, moe_error *err)
{
    header->alignment = DEFAULT_ALIGNMENT;
    const moe_gguf_kv *kv = moe_gguf_header_find(header, "general.alignment");
    if (kv == NULL) {
        return MOE_OK;
    }
    uint64_t value;
    if (!moe_gguf_scalar_u64(kv, &value)) {
        return moe_fail(err, MOE_ERR_FORMAT, "key 'general.alignment' is %s, not an integer",
                        moe_gguf_type_name(kv->type));
    }
    if (value == 0 || value > (1u << 30) || (value & (value - 1)) != 0) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "key 'general.alignment' is %" PRIu64 ", not a power of two up to 2^30",
                        value);
    }
    header->alignment = (uint32_t)value;
    return MOE_OK;
}

static int index_kvs(moe_gguf_header *header, moe_error *err)
{
    char shown[MOE_GGUF_SHOWN];
    if (moe_gguf_index_init(&header->kv_index, header->n_kvs, header->kvs) != MOE_OK) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the index of %zu keys",
                        header->n_kvs);
    }
    for (size_t i = 0; i < header->n_kvs; i++) {
        if (moe_gguf_index_add(&header->kv_index, &header->kvs[0].key, sizeof *header->kvs, i) !=
            SIZE_MAX) {
            return moe_fail(err, MOE_ERR_FORMAT, "key '%s' stands in the metadata twice",
                            moe_gguf_show(header->kvs[i].key, shown));
        }
    }
    return MOE_OK;
}

int moe_gguf_header_parse(moe_gguf_header *header, const uint8_t *bytes, uint64_t n_bytes,
                          uint64_t file_size, uint64_t *needed, moe_error *err)
{
    moe_gguf_cursor c = {.bytes = bytes, .n_bytes = n_bytes, .file_size = file_size, .err = err};
    uint64_t n_kvs = 0;
    uint64_t n_tensors = 0;
    int status = read_preamble(header, &c, &n_kvs, &n_tensors);
    if (status == MOE_OK) {
        status = check_count(&c, "the number of metadata keys", n_kvs, MIN_KV_BYTES, 16);
    }
    if (status == MOE_OK) {
        status = check_count(&c, "the number of tensors", n_tensors, MIN_TENSOR_BYTES, 8);
    }
    for (uint64_t i = 0; i < n_kvs && status == MOE_OK; i++) {
        status = read_kv(header, &c);
    }
    for (uint64_t i = 0; i < n_tensors && status == MOE_OK; i++) {
        status = read_tensor(header, &c);
    }
    if (status == MOE_OK) {
        status = index_kvs(header, err);
    }
    if (status == MOE_OK) {
        status = read_alignment(header, err);
    }
    *needed = c.needed;
    header->size = c.at;
    return status;
}
