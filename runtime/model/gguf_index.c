/* SPDX-License-Identifier: MIT */
/* Look-up by name, placement checks and the small helpers of the GGUF reader. */
#include "runtime/model/gguf_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

int moe_gguf_index_init(moe_gguf_index *index, size_t n_entries, const void *seed)
{
    uint64_t n_slots = 8;
    while (n_slots < 2 * (uint64_t)n_entries) {
        n_slots *= 2;
    }
    /* Seeds the hash with an address, so that a hostile file cannot choose names that collide. */
    index->seed = (uint64_t)(uintptr_t)seed;
    index->mask = n_slots - 1;
    index->slots = moe_calloc(n_slots, sizeof *index->slots);
    return index->slots == NULL ? MOE_ERR_MEMORY : MOE_OK;
}

void moe_gguf_index_free(moe_gguf_index *index)
{
    free(index->slots);
    *index = (moe_gguf_index){0};
}

static const moe_string_view *name_at(const void *names, size_t stride, size_t position)
{
    return (const moe_string_view *)((const char *)names + stride * position);
}

/* The slot of an equal name or, if there is none, the free slot for it. The table is never full. */
static uint64_t probe(const moe_gguf_index *index, const void *names, size_t stride,
                      moe_string_view name)
{
    uint64_t slot = XXH3_64bits_withSeed(name.data, name.size, index->seed) & index->mask;
    while (index->slots[slot] != 0) {
        const moe_string_view *other = name_at(names, stride, index->slots[slot] - 1);
        if (other->size == name.size && memcmp(other->data, name.data, name.size) == 0) {
            break;
        }
        slot = (slot + 1) & index->mask;
    }
    return slot;
}

size_t moe_gguf_index_add(moe_gguf_index *index, const void *names, size_t stride, size_t position)
{
    uint64_t slot = probe(index, names, stride, *name_at(names, stride, position));
    if (index->slots[slot] != 0) {
        return index->slots[slot] - 1;
    }
    index->slots[slot] = (uint32_t)position + 1;
    return SIZE_MAX;
}

size_t moe_gguf_index_find(const moe_gguf_index *index, const void *names, size_t stride,
                           moe_string_view name)
{
    if (index->slots == NULL) {
        return SIZE_MAX;
    }
    uint32_t entry = index->slots[probe(index, names, stride, name)];
    return entry == 0 ? SIZE_MAX : entry - 1;
}

const moe_gguf_kv *moe_gguf_header_find(const moe_gguf_header *header, const char *key)
{
    if (header->n_kvs == 0) {
        return NULL;
    }
    moe_string_view name = {key, strlen(key)};
    size_t at =
        moe_gguf_index_find(&header->kv_index, &header->kvs[0].key, sizeof *header->kvs, name);
    return at == SIZE_MAX ? NULL : &header->kvs[at];
}

const char *moe_gguf_show(moe_string_view name, char shown[MOE_GGUF_SHOWN])
{
    size_t size = name.size < MOE_GGUF_SHOWN - 1 ? name.size : MOE_GGUF_SHOWN - 4;
    for (size_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)name.data[i];
        shown[i] = byte >= 0x20 && byte < 0x7f ? (char)byte : '?';
    }
    const char *end = size < name.size ? "..." : "";
    memcpy(shown + size, end, strlen(end) + 1);
    return shown;
}

size_t moe_gguf_scalar_size(uint32_t type)
{
    static const uint8_t sizes[] = {
        [MOE_GGUF_U8] = 1,  [MOE_GGUF_I8] = 1,  [MOE_GGUF_U16] = 2, [MOE_GGUF_I16] = 2,
        [MOE_GGUF_U32] = 4, [MOE_GGUF_I32] = 4, [MOE_GGUF_F32] = 4, [MOE_GGUF_BOOL] = 1,
        [MOE_GGUF_U64] = 8, [MOE_GGUF_I64] = 8, [MOE_GGUF_F64] = 8,
    };
    return type < sizeof sizes ? sizes[type] : 0;
}

const char *moe_gguf_type_name(uint32_t type)
{
    static const char *const names[] = {
        [MOE_GGUF_U8] = "a u8",        [MOE_GGUF_I8] = "an i8",    [MOE_GGUF_U16] = "a u16",
        [MOE_GGUF_I16] = "an i16",     [MOE_GGUF_U32] = "a u32",   [MOE_GGUF_I32] = "an i32",
        [MOE_GGUF_F32] = "an f32",     [MOE_GGUF_BOOL] = "a bool", [MOE_GGUF_STRING] = "a string",
        [MOE_GGUF_ARRAY] = "an array", [MOE_GGUF_U64] = "a u64",   [MOE_GGUF_I64] = "an i64",
        [MOE_GGUF_F64] = "an f64",
    };
    return type < sizeof names / sizeof names[0] ? names[type] : "of an unknown type";
}

/* Where a tensor's bytes are; tensors are sorted by this. */
typedef struct extent {
    uint64_t offset;
    uint64_t end;
    size_t tensor;
} extent;

static int compare_extents(const void *a, const void *b)
{
    const extent *x = a;
    const extent *y = b;
    return x->offset != y->offset ? (x->offset > y->offset) - (x->offset < y->offset)
                                  : (x->end > y->end) - (x->end < y->end);
}

static int check_overlaps(const moe_gguf_header *header, moe_error *err)
{
    extent *extents = moe_calloc(header->n_tensors, sizeof *extents);
    if (extents == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the order of %zu tensors",
                        header->n_tensors);
    }
    for (size_t i = 0; i < header->n_tensors; i++) {
        const moe_gguf_tensor *tensor = &header->tensors[i];
        extents[i] = (extent){tensor->offset, tensor->offset + tensor->size, i};
    }
    qsort(extents, header->n_tensors, sizeof *extents, compare_extents);
    int status = MOE_OK;
    for (size_t i = 1; i < header->n_tensors && status == MOE_OK; i++) {
        if (extents[i - 1].end > extents[i].offset) {
            char first[MOE_GGUF_SHOWN];
            char second[MOE_GGUF_SHOWN];
            status = moe_fail(err, MOE_ERR_FORMAT,
                              "tensors '%s' and '%s' overlap: the first ends at byte %" PRIu64
                              ", the second begins at %" PRIu64,
                              moe_gguf_show(header->tensors[extents[i - 1].tensor].name, first),
                              moe_gguf_show(header->tensors[extents[i].tensor].name, second),
                              extents[i - 1].end, extents[i].offset);
        }
    }
    free(extents);
    return status;
}

int moe_gguf_check_placement(moe_gguf_header *header, uint64_t file_size, moe_error *err)
{
    char shown[MOE_GGUF_SHOWN];
    uint64_t mask = header->alignment - 1;
    header->data_start = (header->size + mask) & ~mask;
    for (size_t i = 0; i < header->n_tensors; i++) {
        moe_gguf_tensor *tensor = &header->tensors[i];
        if ((tensor->offset & mask) != 0) {
            return moe_fail(err, MOE_ERR_FORMAT,
                            "tensor '%s': its offset %" PRIu64 " is not a multiple of the "
                            "alignment, %" PRIu32,
                            moe_gguf_show(tensor->name, shown), tensor->offset, header->alignment);
        }
        uint64_t end;
        if (!moe_add_u64(tensor->offset, header->data_start, &tensor->offset) ||
            !moe_add_u64(tensor->offset, tensor->size, &end) || end > file_size) {
            return moe_fail(err, MOE_ERR_FORMAT,
                            "tensor '%s' (%" PRIu64 " bytes at data offset %" PRIu64
                            ") ends past the file's %" PRIu64
                            " bytes: the file is truncated or damaged; download it again",
                            moe_gguf_show(tensor->name, shown), tensor->size,
                            tensor->offset - header->data_start, file_size);
        }
    }
    return check_overlaps(header, err);
}
