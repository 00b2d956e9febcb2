/* SPDX-License-Identifier: MIT */
#include "offload/model_open.h"
#include "runtime/base/error.h"

/* A thread reads into memory of its own. If the thread hangs, it is left behind with that memory,
 * and the memory of the header can still be freed. */
static int read_header(const moe_gguf_file *file, uint64_t offset, void *dst, size_t size,
                       void *user, moe_error *err)
{
    const moe_model_reader_options *reading = user;
    /* The source's name is for messages; moe_gguf_open_by() puts the file's name before it. */
    moe_byte_source *header;
    if (file->source->fd >= 0) {
        MOE_TRY(moe_file_source_of(&header, "the header", file->source->fd, err));
    } else {
        header = moe_byte_source_hold(file->source);
    }
    moe_model_reader_options options = {.files = &header,
                                        .n_files = 1,
                                        .buffered = true,
                                        .io_timeout_ns = reading->io_timeout_ns,
                                        .is_cancelled = reading->is_cancelled,
                                        .cancel_user = reading->cancel_user};
    moe_model_range range = {0, offset, size};
    moe_model_reader *reader;
    int status = moe_model_reader_open(&reader, &options, err);
    if (status == MOE_OK) {
        status = moe_model_reader_read(reader, &range, dst, err);
        moe_model_reader_close(&reader);
    }
    moe_byte_source_let_go(&header);
    return status;
}

int moe_model_open(moe_gguf **out, const char *path, const moe_model_reader_options *reading,
                   moe_error *err)
{
    moe_model_reader_options options = {0};
    if (reading != NULL) {
        options = *reading;
    }
    const moe_gguf_reading headers = {read_header, &options};
    return moe_gguf_open_by(out, path, &headers, err);
}
