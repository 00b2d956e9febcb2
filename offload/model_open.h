/* SPDX-License-Identifier: MIT */
/* Opens a model's files, and gives up if their disk hangs. */
#ifndef MOE_OFFLOAD_MODEL_OPEN_H
#define MOE_OFFLOAD_MODEL_OPEN_H

#include "offload/model_reader.h"

/* Like moe_gguf_open(), but a model reader reads the headers. So the call fails when no byte
 * arrives for reading->io_timeout_ns, and ends with MOE_ERR_CANCELLED when reading->is_cancelled()
 * returns true. Other options of `reading` are not used: headers always come through the page
 * cache. reading NULL: 30 s, and no cancelling. */
int moe_model_open(moe_gguf **out, const char *path, const moe_model_reader_options *reading,
                   moe_error *err);

#endif
