/* SPDX-License-Identifier: MIT */
/* Programs of models: their builder finds mistakes, and devices are asked for what they need.
 * Argument: the folder of oracle models. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/cpu_device.h"
#include "runtime/families/families.h"
#include "runtime/program/op_forms.h"
#include "runtime/program/program_builder.h"

static const char *folder;

typedef struct fixture {
    moe_gguf *gguf;
    moe_model_config config;
    moe_tensor_map map;
    moe_program program;
} fixture;

static void open_model(fixture *f, const char *name)
{
    char path[512];
    moe_error err = {""};
    snprintf(path, sizeof path, "%s/%s/model.gguf", folder, name);
    if (moe_gguf_open(&f->gguf, path, &err) != MOE_OK ||
        moe_model_config_read(&f->config, f->gguf, &err) != MOE_OK ||
        moe_program_build(&f->program, &f->map, &f->config, f->gguf, &err) != MOE_OK) {
        fail_msg("%s: %s", name, err.message);
    }
}

static void close_model(fixture *f)
{
    moe_program_free(&f->program);
    moe_tensor_map_free(&f->map);
    moe_gguf_close(&f->gguf);
}

static void open_cpu(moe_team **team, moe_device **device)
{
    moe_error err;
    assert_int_equal(moe_team_create(team, 1, &err), MOE_OK);
    moe_cpu_device_options options = {.team = *team};
    assert_int_equal(moe_cpu_device_open(device, &options, &err), MOE_OK);
}

/* ---- The builder ---- */

/* A layer behind the model's, as a builder would write it. */
static moe_program_builder builder_of(fixture *f, moe_error *err)
{
    moe_program_builder b = {.program = &f->program,
                             .config = &f->config,
                             .map = &f->map,
                             .layer = 1,
                             .capacity = f->program.n_ops,
                             .err = err};
    b.written[MOE_VALUE_NONE] = b.written[MOE_VALUE_X] = true;
    return b;
}

static void test_reads_what_is_not_written(void **state)
{
    fixture f;
    moe_error err = {""};
    (void)state;
    open_model(&f, "olmoe");
    moe_program_builder b = builder_of(&f, &err);
    moe_build_row_norm(&b, MOE_LAYER_ATTN_NORM, MOE_VALUE_X, MOE_VALUE_NORM);
    assert_int_equal(b.status, MOE_OK);
    moe_build_add(&b, MOE_VALUE_X, MOE_VALUE_BRANCH, MOE_VALUE_X, f.config.n_embd);
    assert_int_equal(b.status, MOE_ERR_INTERNAL);
    assert_non_null(strstr(err.message, "layer 1, operation 'x = x + branch'"));
    assert_non_null(strstr(err.message, "nothing before it has written"));
    close_model(&f);
}

static void test_matrix_of_another_shape(void **state)
{
    fixture f;
    moe_error err = {""};
    (void)state;
    open_model(&f, "olmoe");
    moe_program_builder b = builder_of(&f, &err);
    moe_build_linear(&b, MOE_VALUE_X, f.config.n_embd - 1, MOE_LAYER_ATTN_OUT, f.config.n_embd,
                     MOE_TENSOR_NONE, MOE_VALUE_BRANCH);
    assert_int_equal(b.status, MOE_ERR_INTERNAL);
    assert_non_null(strstr(err.message, "branch = attn_output . x"));
    b = builder_of(&f, &err);
    moe_build_linear(&b, MOE_VALUE_X, f.config.n_embd, MOE_LAYER_SHARED_UP, 1, MOE_TENSOR_NONE,
                     MOE_VALUE_BRANCH);
    assert_int_equal(b.status, MOE_ERR_INTERNAL);
    assert_non_null(strstr(err.message, "is not in the file"));
    close_model(&f);
}

static void test_operand_beyond_its_row(void **state)
{
    fixture f;
    moe_error err = {""};
    (void)state;
    open_model(&f, "olmoe");
    moe_program_builder b = builder_of(&f, &err);
    moe_build_copy(&b, moe_part_of(MOE_VALUE_X, 1, f.config.n_embd),
                   moe_all_of(MOE_VALUE_BRANCH, f.config.n_embd), f.config.n_embd, 1);
    assert_int_equal(b.status, MOE_ERR_INTERNAL);
    assert_non_null(strstr(err.message, "is not in its value's rows"));
    close_model(&f);
}

/* ---- Every family ---- */

static void check_spans(const moe_program *p)
{
    assert_int_equal(p->layers[0].first, p->front.end);
    assert_int_equal(p->back.first, p->layers[p->config->n_layer - 1].end);
    for (uint32_t l = 0; l < p->config->n_layer; l++) {
        const moe_program_layer *layer = &p->layers[l];
        assert_true(layer->first <= layer->mixed && layer->mixed <= layer->rest &&
                    layer->rest <= layer->summed && layer->summed <= layer->end);
        bool routed = moe_layer_has_experts(p->config, l);
        assert_int_equal(routed, layer->summed > layer->rest);
        if (routed) {
            assert_int_equal(p->ops[layer->rest].kind, MOE_OP_ROUTE);
            assert_int_equal(p->ops[layer->rest + 1].kind, MOE_OP_EXPERTS);
        }
        assert_int_equal(routed && l > 0, layer->ahead.end > layer->ahead.first);
        assert_true(l == 0 || layer->first == layer[-1].end);
    }
}

/* The CPU carries out all that any family needs, and every operation has a name that fits. */
static void test_every_family(void **state)
{
    moe_team *team;
    moe_device *cpu;
    DIR *models = opendir(folder);
    const struct dirent *entry;
    uint32_t n = 0;
    (void)state;
    assert_non_null(models);
    open_cpu(&team, &cpu);
    while ((entry = readdir(models)) != NULL) {
        char path[512], text[256];
        moe_error err = {""};
        fixture f;
        snprintf(path, sizeof path, "%s/%s/model.gguf", folder, entry->d_name);
        FILE *file = entry->d_name[0] != '.' ? fopen(path, "rb") : NULL;
        if (file == NULL) {
            continue;
        }
        fclose(file);
        open_model(&f, entry->d_name);
        check_spans(&f.program);
        if (moe_program_check_device(&f.program, cpu, &err) != MOE_OK) {
            fail_msg("%s: %s", entry->d_name, err.message);
        }
        for (uint32_t i = 0; i < f.program.n_ops; i++) {
            moe_program_name_op(&f.program, &f.program.ops[i], text, sizeof text);
            assert_non_null(strchr(text, '='));
        }
        close_model(&f);
        n++;
    }
    closedir(models);
    assert_true(n > 40);
    cpu->ops->close(cpu);
    moe_team_destroy(&team);
}

/* Elements that the norm of the first layer's queries takes together; 0: there is none. */
static uint32_t query_norm_of(const char *model)
{
    fixture f;
    uint32_t n = 0;
    open_model(&f, model);
    const moe_program_layer *layer = &f.program.layers[0];
    for (uint32_t i = layer->first; i < layer->end; i++) {
        const moe_op *op = &f.program.ops[i];
        n = op->kind == MOE_OP_NORM && op->x.value == MOE_VALUE_Q ? op->n : n;
    }
    n = n == f.config.n_head * f.config.head_dim_k ? 2 : n == f.config.head_dim_k ? 1 : n;
    close_model(&f);
    return n;
}

/* By family, or, where the family leaves it open, by the file's tensors: none, heads' own, all. */
static void test_norms_of_queries(void **state)
{
    (void)state;
    assert_int_equal(query_norm_of("mixtral"), 0);
    assert_int_equal(query_norm_of("qwen3moe"), 1);
    assert_int_equal(query_norm_of("olmoe"), 2);
    assert_int_equal(query_norm_of("glm4moe"), 1);
    assert_int_equal(query_norm_of("glm4moe-plain"), 0);
    assert_int_equal(query_norm_of("llama4"), 1);
    assert_int_equal(query_norm_of("llama4-128"), 0); /* Maverick has so many experts */
}

/* How many operations are fused with the first of this kind in the layer; 0: there is none. */
static uint32_t fused_with(const moe_program *p, uint32_t layer, moe_op_kind kind)
{
    uint32_t i = p->layers[layer].first;
    while (i < p->layers[layer].end && p->ops[i].kind != kind) {
        i++;
    }
    return i < p->layers[layer].end ? p->ops[i].n_fused : 0;
}

/* Neighbours that fit one another are one call; else each is alone. */
static void test_fused(void **state)
{
    static const struct {
        const char *model;
        uint32_t from_rope, from_add, from_sum, from_last_sum;
    } cases[] = {
        {"olmoe", 3, 2, 3, 4},        /* norms of all heads together stand alone */
        {"hunyuanmoe", 0, 2, 0, 0},   /* embeddings before norms; a shared expert behind the sum */
        {"deepseek2-v3", 0, 2, 0, 0}, /* parts of heads, and a latent */
        {"gemma4", 3, 0, 0, 0},       /* norms of what is added */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture f;
        open_model(&f, cases[i].model);
        const uint32_t last = f.config.n_layer - 1;
        assert_int_equal(fused_with(&f.program, last, MOE_OP_ROPE), cases[i].from_rope);
        assert_int_equal(fused_with(&f.program, last, MOE_OP_ADD), cases[i].from_add);
        assert_int_equal(fused_with(&f.program, last - 1, MOE_OP_COMBINE), cases[i].from_sum);
        assert_int_equal(fused_with(&f.program, last, MOE_OP_COMBINE), cases[i].from_last_sum);
        close_model(&f);
    }
    fixture f;
    open_model(&f, "qwen3moe");
    const moe_op *norm = &f.program.ops[f.program.layers[0].first + 2];
    assert_true(norm->kind == MOE_OP_NORM && norm->fused == MOE_OP_HEADS && norm->n_fused == 5);
    close_model(&f);
}

/* An operand that does not fit, or an operation that not every pass has, ends the sequence. */
static void test_not_fused(void **state)
{
    fixture f;
    (void)state;
    open_model(&f, "qwen3moe");
    moe_op *norms = &f.program.ops[f.program.layers[0].first + 2];
    const moe_op as_built = norms[0];
    norms[0].u.norm.eps *= 2; /* one kernel has one epsilon */
    norms[0].n_fused = norms[2].n_fused = 0;
    moe_program_fuse(&f.program);
    assert_int_equal(norms[0].n_fused, 0);
    assert_int_equal(norms[2].n_fused, 3);
    norms[0] = as_built;
    norms[4].if_choosing = true;
    norms[0].n_fused = norms[2].n_fused = 0;
    moe_program_fuse(&f.program);
    assert_int_equal(norms[0].n_fused, 0);
    assert_int_equal(norms[2].n_fused, 0);
    close_model(&f);
}

/* ---- Devices ---- */

static void test_device_without_a_form(void **state)
{
    static const struct {
        const char *model;
        moe_form form;
        const char *where; /* NULL: the model does without it */
    } cases[] = {
        {"gemma4", MOE_FORM_ATTEND_WINDOW, "attention with windows (layer 0, 'attended = "},
        {"gemma4", MOE_FORM_SOFT_CAP, "soft caps (outside the layers, 'logits = cap("},
        {"gemma4", MOE_FORM_ATTEND_SINKS, NULL},
        {"olmoe", MOE_FORM_EXPERTS_GELU, NULL},
        {"nemotron_h_moe-latent", MOE_FORM_EXPERTS_ONE_MATRIX, "without a gate's matrix (layer "},
        {"nemotron_h_moe-latent", MOE_FORM_APART, "something else than the layer's norm (layer "},
        {"jamba", MOE_FORM_SELECTIVE_SCAN, "selective scans (layer "},
        {"gpt-oss", MOE_FORM_EXPERTS_BIASES, "experts with biases (layer 0, 'outputs = "},
        {"hy_v4", MOE_FORM_STREAMS, "several residual streams (layer 0, 'read = sum of "},
        {"glm5-next", MOE_FORM_CHOOSE_POOLS, "pools of positions by indexers (layer 2, 'cache = "},
        {"qwen4exp", MOE_FORM_STREAM_GATES, "gates of elements (layer 0, 'norm = mean of "},
        {"qwen4exp", MOE_FORM_NGRAMS, "rows of a table of n-grams (layer 1, 'ngram_rows = "},
        {"qwen4exp", MOE_FORM_CHOOSE_POOLS, "pools of positions by indexers (layer 2, 'cache = "},
        {"deepseek4", MOE_FORM_ATTEND_BESIDE,
         "compressed keys beside a window (layer 1, 'compressed = "},
        {"deepseek4", MOE_FORM_ROPE_BACK, "that is taken back (layer 0, 'attended"},
        {"deepseek4", MOE_FORM_ROUTE_SQRT_SOFTPLUS, "square root of softplus (layer 0, 'chosen, "},
        {"deepseek4", MOE_FORM_ROUTE_GIVEN, "by the token's number (layer 0, 'chosen, "},
        {"kimi-k3", MOE_FORM_STREAM_RECALL,
         "attention to earlier layers' streams (layer 0, 'read = sum of x[:1], by softmax"},
        {"kimi-k3", MOE_FORM_EXPERTS_SITU, "networks with SiTU (layer 0, 'branch = "},
        {"kimi-k3", MOE_FORM_STREAMS, NULL},
        {"hy_v4", MOE_FORM_EXPERTS_SILU_CLAMPED, "SiLU of a clamped gate (layer 1, 'outputs = "},
    };
    moe_team *team;
    moe_device *cpu;
    (void)state;
    open_cpu(&team, &cpu);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture f;
        moe_error err = {""};
        moe_device lacking = *cpu;
        lacking.forms &= ~MOE_FORM_BIT(cases[i].form);
        open_model(&f, cases[i].model);
        int status = moe_program_check_device(&f.program, &lacking, &err);
        assert_int_equal(status, cases[i].where == NULL ? MOE_OK : MOE_ERR_UNSUPPORTED);
        if (cases[i].where != NULL && strstr(err.message, cases[i].where) == NULL) {
            fail_msg("%s: %s", cases[i].model, err.message);
        }
        close_model(&f);
    }
    cpu->ops->close(cpu);
    moe_team_destroy(&team);
}

/* A recording is refused for what it cannot hold: forms that are not in its list, and layers that
 * the host could not take up where an expert is missing. */
static void test_recordable(void **state)
{
    static const struct {
        const char *model;
        uint64_t without;
        bool recordable;
    } cases[] = {
        {"olmoe", 0, true},         {"gpt-oss", MOE_FORM_BIT(MOE_FORM_EXPERTS_BIASES), false},
        {"gpt-oss", 0, true},       {"hy_v4", 0, false}, /* it has several residual streams */
        {"smallthinker", 0, false}, /* its router reads what the layer began with */
        {"arctic", 0, false},       /* its experts do */
        {"cohere2moe", 0, false},   /* its network reads attention's norm */
    };
    moe_team *team;
    moe_device *cpu;
    (void)state;
    open_cpu(&team, &cpu);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture f;
        const moe_recording_ops recording = {.max_rows = 1,
                                             .forms = cpu->forms & ~cases[i].without};
        moe_device device = *cpu;
        open_model(&f, cases[i].model);
        assert_false(moe_program_is_recordable(&f.program, &device));
        device.recording = &recording;
        if (moe_program_is_recordable(&f.program, &device) != cases[i].recordable) {
            fail_msg("case %zu, %s", i, cases[i].model);
        }
        close_model(&f);
    }
    cpu->ops->close(cpu);
    moe_team_destroy(&team);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_what_is_not_written),
        cmocka_unit_test(test_matrix_of_another_shape),
        cmocka_unit_test(test_operand_beyond_its_row),
        cmocka_unit_test(test_every_family),
        cmocka_unit_test(test_norms_of_queries),
        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_not_fused),
        cmocka_unit_test(test_device_without_a_form),
        cmocka_unit_test(test_recordable),
    };
    if (argc != 2) {
        return 2;
    }
    folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
