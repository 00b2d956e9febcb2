/* SPDX-License-Identifier: MIT */
#include "offload/tensor_scales.h"

#include <math.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

static int read_range(moe_model_reader *reader, const moe_scale_range *range, float *scales,
                      moe_error *err)
{
    const moe_model_range bytes = {
        .file = range->file_index, .offset = range->offset, .size = range->n * sizeof *scales};
    MOE_TRY(moe_model_reader_read(reader, &bytes, scales, err));
    for (uint32_t i = 0; i < range->n; i++) {
        if (!isfinite(scales[i]) || scales[i] == 0.0f) {
            return moe_fail(err, MOE_ERR_FORMAT,
                            "tensor '%.*s': scale %u is %g, not a finite number other than 0: "
                            "the file is damaged, get it again",
                            (int)range->name_size, range->name, i, (double)scales[i]);
        }
    }
    return MOE_OK;
}

int moe_tensor_scales_read(moe_tensor_map *map, const moe_model_reader_options *options,
                           moe_error *err)
{
    if (map->n_scales == 0) {
        return MOE_OK;
    }
    map->scales = moe_calloc(map->n_scales, sizeof *map->scales);
    if (map->scales == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for %u scales", map->n_scales);
    }
    moe_model_reader *reader;
    int status = moe_model_reader_open(&reader, options, err);
    for (uint32_t i = 0; i < map->n_scale_ranges && status == MOE_OK; i++) {
        const moe_scale_range *range = &map->scale_ranges[i];
        status = read_range(reader, range, map->scales + range->first, err);
    }
    moe_model_reader_close(&reader);
    return status;
}
