/* SPDX-License-Identifier: MIT */
#include "tests/model/gguf_cases.h"

#include <string.h>

#include "runtime/base/dtype.h"

#define HUGE_COUNT (UINT64_MAX - 1)

gguf_builder *gguf_case_base(void)
{
    gguf_builder *b = gb_new();
    gb_string(b, "general.architecture", "olmoe");
    gb_tensor(b, "first", MOE_DTYPE_F32, 1, 64);
    gb_tensor(b, "second", MOE_DTYPE_F32, 1, 32);
    return b;
}

const uint8_t *gguf_case_make(const gguf_case *c, gguf_builder *b, size_t *size)
{
    if (c->spoil != NULL) {
        c->spoil(b);
    }
    const uint8_t *bytes = gb_finish(b, size);
    if (c->cut > 0) {
        *size = (size_t)c->cut;
    } else {
        *size -= (size_t)-c->cut;
    }
    return bytes;
}

/* A value given as little-endian words of 8 bytes, of which value_size bytes are written. */
static void kv_words(gguf_builder *b, const char *key, uint32_t type, const uint64_t *words,
                     size_t value_size)
{
    gb_raw_kv(b, key, strlen(key), type, words, value_size);
}

/* An array whose count is made up and whose elements are n_bytes zeros. */
static void kv_array(gguf_builder *b, uint32_t element_type, uint64_t count, size_t n_bytes)
{
    uint8_t value[12 + 256] = {0};
    memcpy(value, &element_type, 4);
    memcpy(value + 4, &count, 8);
    gb_raw_kv(b, "made.up", 7, MOE_GGUF_ARRAY, value, 12 + n_bytes);
}

static void tensor(gguf_builder *b, uint32_t type, uint64_t dim0, uint64_t dim1, uint64_t offset)
{
    gb_raw_tensor(b, &(gb_entry){"made.up", 2, {dim0, dim1}, type, offset});
}

static void magic_wrong(gguf_builder *b)
{
    gb_set_magic(b, "ggjt");
}

static void magic_lfs(gguf_builder *b)
{
    gb_set_magic(b, "vers");
}

static void magic_swapped(gguf_builder *b)
{
    gb_set_magic(b, "FUGG");
}

static void version_swapped(gguf_builder *b)
{
    gb_set_version(b, 3u << 24);
}

static void version_0(gguf_builder *b)
{
    gb_set_version(b, 0);
}

static void version_1(gguf_builder *b)
{
    gb_set_version(b, 1);
}

static void version_4(gguf_builder *b)
{
    gb_set_version(b, 4);
}

static void n_kvs_huge(gguf_builder *b)
{
    gb_set_n_kvs(b, HUGE_COUNT);
}

static void n_kvs_product_wraps(gguf_builder *b)
{
    gb_set_n_kvs(b, UINT64_MAX / 48 + 2);
}

static void n_tensors_huge(gguf_builder *b)
{
    gb_set_n_tensors(b, HUGE_COUNT);
}

static void n_tensors_one_more(gguf_builder *b)
{
    gb_set_n_tensors(b, 3);
}

static void n_kvs_above_what_is_there(gguf_builder *b)
{
    gb_set_n_kvs(b, 20); /* the tensors' entries are then read as keys */
}

static void no_tensors(gguf_builder *b)
{
    gb_set_n_tensors(b, 0); /* else a cut file is refused for having no room for them */
}

static void key_empty(gguf_builder *b)
{
    gb_u32(b, "", 1);
}

static void key_too_long(gguf_builder *b)
{
    static const char zeros[65536];
    gb_raw_kv(b, zeros, sizeof zeros, MOE_GGUF_U8, "\1", 1);
}

static void key_duplicate(gguf_builder *b)
{
    gb_string(b, "general.architecture", "llama");
}

static void key_duplicate_of_many(gguf_builder *b)
{
    char key[8] = "key.aa";
    for (int i = 0; i < 600; i++) {
        key[4] = (char)('a' + i / 26);
        key[5] = (char)('a' + i % 26);
        gb_u32(b, key, 0);
    }
    gb_u32(b, "key.ka", 0);
}

static void type_13(gguf_builder *b)
{
    kv_words(b, "made.up", 13, (uint64_t[]){0}, 8);
}

static void type_max(gguf_builder *b)
{
    kv_words(b, "made.up", UINT32_MAX, (uint64_t[]){0}, 8);
}

static void bool_2(gguf_builder *b)
{
    gb_bool(b, "made.up", 2);
}

static void string_past_end(gguf_builder *b)
{
    kv_words(b, "made.up", MOE_GGUF_STRING, (uint64_t[]){100000}, 8);
}

static void string_huge(gguf_builder *b)
{
    kv_words(b, "made.up", MOE_GGUF_STRING, (uint64_t[]){UINT64_MAX}, 8);
}

static void key_huge(gguf_builder *b)
{
    /* A value whose end is read as the length of the next key. */
    kv_words(b, "made.up", MOE_GGUF_U8, (uint64_t[]){0xffffffffffffff00u, 0x7f}, 9);
    gb_set_n_kvs(b, 3);
}

static void array_type_99(gguf_builder *b)
{
    kv_array(b, 99, 1, 8);
}

static void array_nested(gguf_builder *b)
{
    kv_array(b, MOE_GGUF_ARRAY, 1, 12);
}

static void array_product_wraps(gguf_builder *b)
{
    kv_array(b, MOE_GGUF_U64, (UINT64_MAX >> 3) + 2, 16);
}

static void array_past_end(gguf_builder *b)
{
    kv_array(b, MOE_GGUF_F32, 4000, 16);
}

static void array_of_strings_huge(gguf_builder *b)
{
    kv_array(b, MOE_GGUF_STRING, UINT64_MAX >> 3, 16);
}

static void array_of_strings_past_end(gguf_builder *b)
{
    kv_array(b, MOE_GGUF_STRING, 4000, 16);
}

static void array_string_past_end(gguf_builder *b)
{
    uint64_t words[] = {(uint64_t)MOE_GGUF_STRING | (uint64_t)1 << 32, UINT64_MAX << 32,
                        UINT64_MAX};
    kv_words(b, "made.up", MOE_GGUF_ARRAY, words, 20);
}

static void alignment_0(gguf_builder *b)
{
    gb_u32(b, "general.alignment", 0);
}

static void alignment_odd(gguf_builder *b)
{
    gb_u32(b, "general.alignment", 33);
}

static void alignment_48(gguf_builder *b)
{
    gb_u32(b, "general.alignment", 48);
}

static void alignment_huge(gguf_builder *b)
{
    gb_u64(b, "general.alignment", (uint64_t)1 << 63);
}

static void alignment_negative(gguf_builder *b)
{
    gb_i32(b, "general.alignment", -32);
}

static void alignment_text(gguf_builder *b)
{
    gb_string(b, "general.alignment", "32");
}

static void alignment_float(gguf_builder *b)
{
    gb_f32(b, "general.alignment", 32);
}

static void tensor_duplicate(gguf_builder *b)
{
    gb_tensor(b, "first", MOE_DTYPE_F32, 1, 32);
}

static void tensor_unnamed(gguf_builder *b)
{
    gb_tensor(b, "", MOE_DTYPE_F32, 1, 32);
}

static void tensor_name_long(gguf_builder *b)
{
    char name[257];
    memset(name, 'x', 256);
    name[256] = '\0';
    gb_tensor(b, name, MOE_DTYPE_F32, 1, 32);
}

static void tensor_unprintable(gguf_builder *b)
{
    gb_raw_tensor(b, &(gb_entry){"a\x1b[2J\n", 1, {0}, MOE_DTYPE_F32, 384});
}

static void dims_none(gguf_builder *b)
{
    gb_raw_tensor(b, &(gb_entry){"made.up", 0, {0}, MOE_DTYPE_F32, 384});
}

static void dims_5(gguf_builder *b)
{
    gb_raw_tensor(b, &(gb_entry){"made.up", 5, {1, 1, 1, 1, 1}, MOE_DTYPE_F32, 384});
}

static void dims_huge_count(gguf_builder *b)
{
    gb_raw_tensor(b, &(gb_entry){"made.up", UINT32_MAX, {1, 1, 1, 1, 1}, MOE_DTYPE_F32, 384});
}

static void dim_0(gguf_builder *b)
{
    tensor(b, MOE_DTYPE_F32, 32, 0, 384);
}

static void dim_negative(gguf_builder *b)
{
    tensor(b, MOE_DTYPE_F32, UINT64_MAX, 1, 384);
}

static void dims_product_wraps(gguf_builder *b)
{
    tensor(b, MOE_DTYPE_F32, (uint64_t)1 << 32, (uint64_t)1 << 32, 384);
}

static void dims_product_wraps_to_fit(gguf_builder *b)
{
    tensor(b, MOE_DTYPE_F32, ((uint64_t)1 << 62) + 1, 4, 384); /* modulo 2^64: 4 */
}

static void bytes_wrap(gguf_builder *b)
{
    tensor(b, MOE_DTYPE_F32, (uint64_t)1 << 62, 1, 0);
}

static void bytes_past_end(gguf_builder *b)
{
    tensor(b, MOE_DTYPE_F32, (uint64_t)1 << 40, 1, 0);
}

static void row_not_whole_blocks(gguf_builder *b)
{
    tensor(b, MOE_DTYPE_Q4_K, 128, 2, 384);
}

static void offset_odd(gguf_builder *b)
{
    tensor(b, MOE_DTYPE_F32, 8, 1, 385);
}

static void offset_off_alignment(gguf_builder *b)
{
    tensor(b, MOE_DTYPE_F32, 8, 1, 16);
}

static void offset_past_end(gguf_builder *b)
{
    tensor(b, MOE_DTYPE_F32, 8, 1, 1 << 20);
}

static void offset_wraps(gguf_builder *b)
{
    tensor(b, MOE_DTYPE_F32, 8, 1, UINT64_MAX - 31);
}

static void offset_past_end_of_unknown_type(gguf_builder *b)
{
    tensor(b, 999, 8, 1, 1 << 20);
}

static void overlap_same(gguf_builder *b)
{
    tensor(b, MOE_DTYPE_F32, 64, 1, 0);
}

static void overlap_inner(gguf_builder *b)
{
    tensor(b, MOE_DTYPE_F32, 8, 1, 32);
}

static void overlap_tail(gguf_builder *b)
{
    tensor(b, MOE_DTYPE_F32, 16, 1, 224);
}

#define FORMAT      MOE_ERR_FORMAT
#define UNSUPPORTED MOE_ERR_UNSUPPORTED
const gguf_case gguf_cases[] = {
    {"one byte", NULL, FORMAT, "magic number at offset 0", 1},
    {"magic cut", NULL, FORMAT, "magic number at offset 0", 3},
    {"magic of another format", magic_wrong, FORMAT, "begins with bytes 67 67 6a 74", 0},
    {"Git LFS pointer", magic_lfs, FORMAT, "git lfs pull", 0},
    {"magic swapped", magic_swapped, UNSUPPORTED, "big-endian", 0},
    {"version swapped", version_swapped, UNSUPPORTED, "big-endian", 0},
    {"version 0", version_0, UNSUPPORTED, "GGUF version 0", 0},
    {"version 1", version_1, UNSUPPORTED, "convert the model again", 0},
    {"version 4", version_4, UNSUPPORTED, "GGUF version 4", 0},
    {"version cut", NULL, FORMAT, "the GGUF version at offset 4", 6},
    {"n_tensors cut", NULL, FORMAT, "number of tensors at offset 8", 15},
    {"n_kvs cut", NULL, FORMAT, "number of metadata keys at offset 16", 20},
    {"n_kvs huge", n_kvs_huge, FORMAT, "the number of metadata keys, 1844674", 0},
    {"n_kvs times entry wraps", n_kvs_product_wraps, FORMAT, "the number of metadata keys", 0},
    {"n_kvs above what is there", n_kvs_above_what_is_there, FORMAT, "offset", 0},
    {"n_tensors huge", n_tensors_huge, FORMAT, "the number of tensors, 1844674", 0},
    {"n_tensors one more", n_tensors_one_more, FORMAT, "name of tensor 2 at offset", 0},
    {"key length cut", NULL, FORMAT, "than the file's 28 bytes can hold", 28},
    {"key cut", no_tensors, FORMAT, "a metadata key at offset 32 needs 20 bytes", 40},
    {"key empty", key_empty, FORMAT, "metadata key 1 at offset", 0},
    {"key too long", key_too_long, FORMAT, "has 65536 bytes", 0},
    {"key huge", key_huge, FORMAT, "needs 9223372036854775807 bytes", 0},
    {"key twice", key_duplicate, FORMAT, "'general.architecture' stands in the metadata twice", 0},
    {"key twice among many", key_duplicate_of_many, FORMAT, "'key.ka'", 0},
    {"value type cut", no_tensors, FORMAT, "the value of key general.architecture", 54},
    {"value cut", no_tensors, FORMAT, "the value of key general.architecture", 66},
    {"value type 13", type_13, FORMAT, "'made.up': value type 13", 0},
    {"value type 2^32-1", type_max, FORMAT, "value type 4294967295", 0},
    {"bool 2", bool_2, FORMAT, "neither 0 nor 1", 0},
    {"string past the end", string_past_end, FORMAT, "needs 100000 bytes", 0},
    {"string huge", string_huge, FORMAT, "needs 18446744073709551615 bytes", 0},
    {"array of type 99", array_type_99, FORMAT, "array element type 99", 0},
    {"array of arrays", array_nested, UNSUPPORTED, "array of arrays", 0},
    {"array bytes wrap", array_product_wraps, FORMAT, "made.up", 0},
    {"array past the end", array_past_end, FORMAT, "needs 16000 bytes", 0},
    {"array of strings huge", array_of_strings_huge, FORMAT, "made.up", 0},
    {"array of strings past the end", array_of_strings_past_end, FORMAT, "needs 32000 bytes", 0},
    {"string of an array past the end", array_string_past_end, FORMAT, "made.up", 0},
    {"alignment 0", alignment_0, FORMAT, "'general.alignment' is 0", 0},
    {"alignment odd", alignment_odd, FORMAT, "'general.alignment' is 33", 0},
    {"alignment not a power of two", alignment_48, FORMAT, "'general.alignment' is 48", 0},
    {"alignment huge", alignment_huge, FORMAT, "9223372036854775808, not a power", 0},
    {"alignment negative", alignment_negative, FORMAT, "'general.alignment' is", 0},
    {"alignment text", alignment_text, FORMAT, "a string, not an integer", 0},
    {"alignment float", alignment_float, FORMAT, "an f32, not an integer", 0},
    {"tensor entry cut", NULL, FORMAT, "a tensor's entry at offset", 100},
    {"tensor twice", tensor_duplicate, FORMAT, "tensor 'first' is listed twice", 0},
    {"tensor unnamed", tensor_unnamed, FORMAT, "name of tensor 2", 0},
    {"tensor name too long", tensor_name_long, FORMAT, "has 256 bytes", 0},
    {"tensor name unprintable", tensor_unprintable, FORMAT, "'a?[2J?'", 0},
    {"no dimensions", dims_none, FORMAT, "number of dimensions is not 1 to 4", 0},
    {"five dimensions", dims_5, FORMAT, "number of dimensions is not 1 to 4", 0},
    {"2^32-1 dimensions", dims_huge_count, FORMAT, "number of dimensions is not 1 to 4", 0},
    {"dimension 0", dim_0, FORMAT, "'made.up': a dimension is 0", 0},
    {"dimension negative", dim_negative, FORMAT, "product of its dimensions overflows", 0},
    {"dimensions' product wraps to 0", dims_product_wraps, FORMAT, "dimensions overflows", 0},
    {"dimensions' product wraps to 4", dims_product_wraps_to_fit, FORMAT, "overflows", 0},
    {"bytes wrap", bytes_wrap, FORMAT, "size in bytes overflows", 0},
    {"bytes past the end", bytes_past_end, FORMAT, "download it again", 0},
    {"row of half a block", row_not_whole_blocks, FORMAT, "multiple of its type's block", 0},
    {"offset odd", offset_odd, FORMAT, "offset 385 is not a multiple", 0},
    {"offset off the alignment", offset_off_alignment, FORMAT, "offset 16 is not", 0},
    {"offset past the end", offset_past_end, FORMAT, "ends past the file's", 0},
    {"offset wraps", offset_wraps, FORMAT, "ends past the file's", 0},
    {"offset of unknown type", offset_past_end_of_unknown_type, FORMAT, "ends past", 0},
    {"overlap, same place", overlap_same, FORMAT, "overlap", 0},
    {"overlap, inside", overlap_inner, FORMAT, "'first' and 'made.up' overlap", 0},
    {"overlap, tail", overlap_tail, FORMAT, "'first' and 'made.up' overlap", 0},
    {"data cut", NULL, FORMAT, "tensor 'second' (128 bytes at data offset 256)", -1},
};
const size_t n_gguf_cases = sizeof gguf_cases / sizeof gguf_cases[0];
