/* SPDX-License-Identifier: MIT */
/* Typed reads of metadata values, converted between widths if no information is lost. */
#include "runtime/model/gguf_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "runtime/base/error.h"

static bool is_signed(moe_gguf_type type)
{
    return type == MOE_GGUF_I8 || type == MOE_GGUF_I16 || type == MOE_GGUF_I32 ||
           type == MOE_GGUF_I64;
}

static bool is_unsigned(moe_gguf_type type)
{
    return type == MOE_GGUF_U8 || type == MOE_GGUF_U16 || type == MOE_GGUF_U32 ||
           type == MOE_GGUF_U64 || type == MOE_GGUF_BOOL;
}

bool moe_gguf_scalar_u64(const moe_gguf_kv *kv, uint64_t *value)
{
    if (is_signed(kv->type) && kv->value.i64 >= 0) {
        *value = (uint64_t)kv->value.i64;
        return true;
    }
    if (is_unsigned(kv->type)) {
        *value = kv->value.u64;
        return true;
    }
    return false;
}

/* Fails for a wrong type. override_type: the name that overrides have for the expected type. */
static int fail_type(const char *key, const moe_gguf_kv *kv, const char *expected,
                     const char *override_type, moe_error *err)
{
    if (moe_gguf_key_is_of_the_reader(key)) {
        return moe_fail(err, MOE_ERR_FORMAT, "key '%s' is %s, not %s", key,
                        moe_gguf_type_name(kv->type), expected);
    }
    return moe_fail(err, MOE_ERR_FORMAT,
                    "key '%s' is %s, not %s; options.metadata_overrides can give it (%s=%s:VALUE)",
                    key, moe_gguf_type_name(kv->type), expected, key, override_type);
}

int moe_gguf_get_u32(const moe_gguf *gguf, const char *key, uint32_t *value, moe_error *err)
{
    const moe_gguf_kv *kv = moe_gguf_find(gguf, key);
    uint64_t wide;
    if (kv == NULL) {
        return MOE_OK;
    }
    if (!is_signed(kv->type) && !is_unsigned(kv->type)) {
        return fail_type(key, kv, "an integer", "int", err);
    }
    if (!moe_gguf_scalar_u64(kv, &wide)) {
        return moe_fail(err, MOE_ERR_FORMAT, "key '%s' is negative (%" PRId64 ")", key,
                        kv->value.i64);
    }
    if (wide > UINT32_MAX) {
        return moe_fail(err, MOE_ERR_FORMAT, "key '%s' is out of range (%" PRIu64 ")", key, wide);
    }
    *value = (uint32_t)wide;
    return MOE_OK;
}

int moe_gguf_get_f32(const moe_gguf *gguf, const char *key, float *value, moe_error *err)
{
    const moe_gguf_kv *kv = moe_gguf_find(gguf, key);
    if (kv == NULL) {
        return MOE_OK;
    }
    double wide;
    if (kv->type == MOE_GGUF_F32 || kv->type == MOE_GGUF_F64) {
        wide = kv->value.f64;
    } else if (is_signed(kv->type)) {
        wide = (double)kv->value.i64;
    } else if (is_unsigned(kv->type)) {
        wide = (double)kv->value.u64;
    } else {
        return fail_type(key, kv, "a number", "float", err);
    }
    if (!isfinite((float)wide)) {
        return moe_fail(err, MOE_ERR_FORMAT, "key '%s' is out of range (%g)", key, wide);
    }
    *value = (float)wide;
    return MOE_OK;
}

int moe_gguf_get_bool(const moe_gguf *gguf, const char *key, bool *value, moe_error *err)
{
    uint32_t number = *value;
    MOE_TRY(moe_gguf_get_u32(gguf, key, &number, err));
    if (number > 1) {
        return moe_fail(err, MOE_ERR_FORMAT, "key '%s' is %" PRIu32 ", neither 0 nor 1", key,
                        number);
    }
    *value = number != 0;
    return MOE_OK;
}

int moe_gguf_get_string(const moe_gguf *gguf, const char *key, moe_string_view *value,
                        moe_error *err)
{
    const moe_gguf_kv *kv = moe_gguf_find(gguf, key);
    if (kv == NULL) {
        return MOE_OK;
    }
    if (kv->type != MOE_GGUF_STRING) {
        return fail_type(key, kv, "a string", "str", err);
    }
    *value = kv->value.string;
    return MOE_OK;
}

/* Where element `index` of an array of numbers is; NULL if kv is no such array, or is too short. */
static const uint8_t *array_element(const moe_gguf_kv *kv, uint64_t index)
{
    size_t size = moe_gguf_scalar_size(kv->element_type);
    if (kv->type != MOE_GGUF_ARRAY || size == 0 || index >= kv->n_elements) {
        return NULL;
    }
    return kv->value.raw + index * size;
}

static uint64_t load_bits(const uint8_t *bytes, size_t size)
{
    uint64_t bits = 0;
    for (size_t i = size; i-- > 0;) {
        bits = bits << 8 | bytes[i];
    }
    return bits;
}

/* Describes one element as a scalar, so that elements and scalars are converted in the same way. */
static int element_as_scalar(const moe_gguf_kv *kv, uint64_t index, moe_gguf_kv *scalar)
{
    if (kv->type != MOE_GGUF_ARRAY) {
        *scalar = *kv;
        return index == 0 ? MOE_OK : MOE_ERR_ARGUMENT;
    }
    const uint8_t *bytes = array_element(kv, index);
    if (bytes == NULL) {
        return moe_gguf_scalar_size(kv->element_type) == 0 ? MOE_ERR_FORMAT : MOE_ERR_ARGUMENT;
    }
    size_t size = moe_gguf_scalar_size(kv->element_type);
    uint64_t bits = load_bits(bytes, size);
    *scalar = (moe_gguf_kv){.type = kv->element_type, .n_elements = 1};
    if (kv->element_type == MOE_GGUF_F32) {
        uint32_t low = (uint32_t)bits;
        float narrow;
        memcpy(&narrow, &low, sizeof narrow);
        scalar->value.f64 = (double)narrow;
    } else if (is_signed(kv->element_type)) {
        unsigned shift = 64 - 8 * (unsigned)size;
        scalar->value.i64 = (int64_t)(bits << shift) >> shift;
    } else {
        memcpy(&scalar->value, &bits, sizeof bits); /* unsigned, bool and f64 */
    }
    return MOE_OK;
}

int moe_gguf_array_i64(const moe_gguf_kv *kv, uint64_t index, int64_t *value)
{
    moe_gguf_kv scalar;
    MOE_TRY(element_as_scalar(kv, index, &scalar));
    if (is_signed(scalar.type)) {
        *value = scalar.value.i64;
        return MOE_OK;
    }
    if (is_unsigned(scalar.type) && scalar.value.u64 <= INT64_MAX) {
        *value = (int64_t)scalar.value.u64;
        return MOE_OK;
    }
    return MOE_ERR_FORMAT;
}

int moe_gguf_array_f32(const moe_gguf_kv *kv, uint64_t index, float *value)
{
    moe_gguf_kv scalar;
    MOE_TRY(element_as_scalar(kv, index, &scalar));
    if (scalar.type == MOE_GGUF_F32 || scalar.type == MOE_GGUF_F64) {
        *value = (float)scalar.value.f64;
    } else if (is_signed(scalar.type)) {
        *value = (float)scalar.value.i64;
    } else if (is_unsigned(scalar.type)) {
        *value = (float)scalar.value.u64;
    } else {
        return MOE_ERR_FORMAT;
    }
    return MOE_OK;
}
