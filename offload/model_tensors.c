/* SPDX-License-Identifier: MIT */
#include "offload/model_tensors.h"

#include "runtime/base/error.h"

#define MOST_SHOWN 80 /* bytes of a tensor's name in a message */

bool moe_model_tensor_at(const moe_gguf *gguf, const moe_model_range *range, size_t *index)
{
    for (size_t i = 0; i < moe_gguf_n_tensors(gguf); i++) {
        const moe_gguf_tensor *tensor = moe_gguf_tensor_at(gguf, i);
        if (tensor->file_index == range->file && tensor->offset == range->offset &&
            tensor->size == range->size) {
            *index = i;
            return true;
        }
    }
    return false;
}

static int fail_with_tensor(moe_error *err, int status, const moe_gguf *gguf, size_t index,
                            const char *what)
{
    const moe_gguf_tensor *tensor = moe_gguf_tensor_at(gguf, index);
    size_t shown = tensor->name.size < MOST_SHOWN ? tensor->name.size : MOST_SHOWN;
    return moe_fail(err, status, "%s: the tensor %.*s (%llu bytes at offset %llu) %s",
                    moe_gguf_file_at(gguf, tensor->file_index)->path, (int)shown, tensor->name.data,
                    (unsigned long long)tensor->size, (unsigned long long)tensor->offset, what);
}

int moe_fail_damaged_tensor(moe_error *err, const moe_gguf *gguf, size_t index)
{
    return fail_with_tensor(err, MOE_ERR_IO, gguf, index,
                            "does not match the checksum in its calibration: the file or the disk "
                            "is damaged; download the file again, or calibrate again if it was "
                            "changed on purpose");
}

int moe_fail_infinite_tensor(moe_error *err, const moe_gguf *gguf, size_t index)
{
    return fail_with_tensor(err, MOE_ERR_FORMAT, gguf, index,
                            "holds values that are not finite: the file is damaged, or was "
                            "converted wrongly; download or convert it again");
}
