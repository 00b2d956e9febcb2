/* SPDX-License-Identifier: MIT */
/* Reads the headers of an opened model. */
#include <string.h>

#include "runtime/model/gguf_internal.h"

uint32_t moe_gguf_version(const moe_gguf *gguf)
{
    return gguf->parts[0].header.version;
}

size_t moe_gguf_n_files(const moe_gguf *gguf)
{
    return gguf->n_parts;
}

const moe_gguf_file *moe_gguf_file_at(const moe_gguf *gguf, size_t index)
{
    return index < gguf->n_parts ? &gguf->parts[index].file : NULL;
}

size_t moe_gguf_n_kvs(const moe_gguf *gguf)
{
    return gguf->parts[0].header.n_kvs;
}

const moe_gguf_kv *moe_gguf_kv_at(const moe_gguf *gguf, size_t index)
{
    return index < moe_gguf_n_kvs(gguf) ? &gguf->parts[0].header.kvs[index] : NULL;
}

size_t moe_gguf_n_tensors(const moe_gguf *gguf)
{
    return gguf->n_tensors;
}

const moe_gguf_tensor *moe_gguf_tensor_at(const moe_gguf *gguf, size_t index)
{
    return index < gguf->n_tensors ? &gguf->tensors[index] : NULL;
}

const moe_gguf_kv *moe_gguf_find(const moe_gguf *gguf, const char *key)
{
    return moe_gguf_header_find(&gguf->parts[0].header, key);
}

const moe_gguf_tensor *moe_gguf_find_tensor(const moe_gguf *gguf, const char *name)
{
    if (gguf->n_tensors == 0) {
        return NULL;
    }
    moe_string_view view = {name, strlen(name)};
    size_t at = moe_gguf_index_find(&gguf->tensor_index, &gguf->tensors[0].name,
                                    sizeof *gguf->tensors, view);
    return at == SIZE_MAX ? NULL : &gguf->tensors[at];
}
