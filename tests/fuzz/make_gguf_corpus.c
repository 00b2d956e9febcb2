/* SPDX-License-Identifier: MIT */
/* Writes the seeds of fuzz_gguf: every family and layout, as small as it is valid, and files that
 * are all metadata. Argument: the folder. */
#include <stdio.h>
#include <string.h>

#include "runtime/base/dtype.h"
#include "tests/fuzz/tiny_model.h"

static int write_seed(const char *folder, const char *name, gguf_builder *b)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.gguf", folder, name);
    int status = gb_write(b, path);
    if (status != 0) {
        perror(path);
    }
    gb_free(b);
    return status;
}

/* qwen2moe's shared expert has the builder's width of 32 a unit. */
static int write_families(const char *folder)
{
    static const char *const names[] = {"llama", "olmoe", "qwen3moe", "deepseek", "deepseek2"};
    int status = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        gb_model model = fuzz_tiny_model(names[i]);
        status |= write_seed(folder, names[i], gb_model_build(&model));
    }
    gb_model model = gb_model_preset("qwen2moe");
    model.n_layer = 1;
    model.n_embd = 4;
    model.n_vocab = 5;
    model.head_dim = 2;
    model.n_expert = 2;
    return status | write_seed(folder, "qwen2moe", gb_model_build(&model));
}

static int write_layouts(const char *folder)
{
    gb_model model = fuzz_tiny_model("llama");
    model.single_experts = 1;
    int status = write_seed(folder, "llama-single-experts", gb_model_build(&model));
    model = fuzz_tiny_model("qwen3moe");
    model.fused_experts = 1;
    model.tied = 1;
    status |= write_seed(folder, "qwen3moe-fused-tied", gb_model_build(&model));
    model = fuzz_tiny_model("deepseek2");
    model.joined_kv = 1;
    model.q_rank = 3;
    status |= write_seed(folder, "deepseek2-joined", gb_model_build(&model));
    model = fuzz_tiny_model("deepseek2");
    model.selection_bias = 1;
    model.n_group = 2;
    model.n_group_used = 1;
    gguf_builder *b = gb_model_build(&model);
    gb_string(b, "deepseek2.rope.scaling.type", "yarn");
    gb_f32(b, "deepseek2.rope.scaling.factor", 40);
    gb_f32(b, "deepseek2.rope.scaling.yarn_log_multiplier", 0.1f);
    status |= write_seed(folder, "deepseek2-sigmoid-yarn", b);
    model = fuzz_tiny_model("olmoe");
    model.n_embd = 32;
    model.head_dim = 16;
    model.n_ff = 32;
    model.n_ff_expert = 32;
    model.n_expert = 2;
    model.matrix_type = MOE_DTYPE_Q8_0;
    model.expert_type = MOE_DTYPE_Q4_0;
    return status | write_seed(folder, "olmoe-quantised", gb_model_build(&model));
}

static int write_metadata(const char *folder)
{
    gguf_builder *b = gb_new();
    gb_set_version(b, 2);
    gb_u32(b, "general.alignment", 8);
    gb_set_alignment(b, 8);
    gb_u8(b, "k.u8", 1);
    gb_i32(b, "k.i32", -1);
    gb_u64(b, "k.u64", 1);
    gb_f32(b, "k.f32", 1);
    gb_f64(b, "k.f64", 1);
    gb_bool(b, "k.bool", 1);
    gb_string(b, "k.string", "text");
    gb_array_i32(b, "a.i32", (int32_t[]){4, 4}, 2);
    gb_array_f32(b, "a.f32", (float[]){1, 2}, 2);
    gb_array_tokens(b, "a.strings", 5);
    gb_tensor(b, "t", MOE_DTYPE_F32, 4, 1, 2, 1, 2);
    gb_tensor(b, "u", MOE_DTYPE_Q4_K, 1, 256);
    int status = write_seed(folder, "values", b);
    return status | write_seed(folder, "nothing", gb_new());
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    return (write_families(argv[1]) | write_layouts(argv[1]) | write_metadata(argv[1])) != 0;
}
