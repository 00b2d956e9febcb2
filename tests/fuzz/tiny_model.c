/* SPDX-License-Identifier: MIT */
#include "tests/fuzz/tiny_model.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz_support.h"

gb_model fuzz_tiny_model(const char *architecture)
{
    gb_model model = gb_model_preset(architecture);
    int mla = model.kv_rank > 0;
    model.n_embd = 4;
    model.n_vocab = 5;
    model.n_head = 2;
    model.n_head_kv = 1;
    model.head_dim = mla ? 4 : 2;
    model.n_rot = mla ? 2 : 0;
    model.kv_rank = mla ? 2 : 0;
    model.v_dim = mla ? 2 : 0;
    model.n_expert = 4;
    model.n_ff_expert = 2;
    model.n_ff = model.n_dense_lead > 0 ? 3 : 2;
    model.n_layer = model.n_dense_lead + 1;
    return model;
}

moe_engine *fuzz_tiny_engine(void)
{
    static fuzz_file file;
    gb_model model = fuzz_tiny_model("olmoe");
    gguf_builder *b = gb_model_build(&model);
    moe_engine_options options;
    moe_engine *engine = NULL;
    moe_error err = {""};
    size_t size;
    const uint8_t *bytes = gb_finish(b, &size);
    moe_engine_options_init(&options);
    options.model_path = fuzz_file_write(&file, bytes, size);
    gb_free(b);
    options.n_threads = 1;
    options.context = 128;
    options.prefill_chunk = 8;
    if (moe_engine_open(&engine, &options, &err) != MOE_OK) {
        fprintf(stderr, "the small model does not open: %s\n", err.message);
        abort();
    }
    return engine;
}
