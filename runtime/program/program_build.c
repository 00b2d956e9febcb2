/* SPDX-License-Identifier: MIT */
/* What a program consists of: the front, the layers, the back. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/program/program_builder.h"

/* ---- Layers ---- */

/* A layer finds the stream, and, in a drafting layer, what its front has joined. */
static void begin_layer(moe_program_builder *b, uint32_t layer)
{
    bool written[MOE_VALUES] = {[MOE_VALUE_NONE] = true, [MOE_VALUE_X] = true};
    for (int v = MOE_VALUE_HIDDEN; v <= MOE_VALUE_JOINED; v++) {
        written[v] = b->written[v];
    }
    memcpy(b->written, written, sizeof written);
    b->layer = layer;
}

/* Without routed experts there is no rest. */
static void end_layer(moe_program_builder *b)
{
    moe_program_layer *layer = &b->program->layers[b->layer];
    layer->end = b->program->n_ops;
    if (!moe_layer_has_experts(b->config, b->layer)) {
        layer->rest = layer->summed = layer->end;
    }
}

static void build_layers(moe_program_builder *b)
{
    moe_program *program = b->program;
    const moe_written_family *family = moe_written_family_find(b->config->architecture);
    for (uint32_t l = 0; l < b->config->n_layer && b->status == MOE_OK; l++) {
        begin_layer(b, l);
        program->layers[l].first = program->n_ops;
        family->layer(b);
        end_layer(b);
    }
    for (uint32_t l = 1; l < b->config->n_layer && b->status == MOE_OK; l++) {
        moe_program_layer *layer = &program->layers[l];
        begin_layer(b, l);
        layer->ahead.first = program->n_ops;
        if (moe_layer_has_experts(b->config, l)) {
            family->ahead(b);
        }
        layer->ahead.end = program->n_ops;
    }
    b->layer = b->config->n_layer;
}

/* ---- Before and behind them ---- */

static void embed(moe_program_builder *b, moe_value to)
{
    const moe_model_config *c = b->config;
    moe_build(b, (moe_op){.kind = MOE_OP_EMBED,
                          .n = c->n_embd,
                          .tensor = MOE_TENSOR_TOKEN_EMBEDDING,
                          .bias = MOE_TENSOR_NONE,
                          .y = moe_all_of(to, c->n_embd),
                          .factor = c->embedding_scale});
}

static void build_back(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    moe_op_output head = moe_build_rows_output(MOE_TENSOR_OUTPUT, 0, c->n_vocab, MOE_VALUE_LOGITS);
    head.bias = MOE_TENSOR_OUTPUT_BIAS;
    b->program->back.first = b->program->n_ops;
    b->written[MOE_VALUE_X] = true;
    moe_build(b, (moe_op){.kind = MOE_OP_SELECT,
                          .n = c->n_embd,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_X, c->n_embd),
                          .y = moe_all_of(MOE_VALUE_WANTED, c->n_embd)});
    moe_build_row_norm(b, MOE_TENSOR_OUTPUT_NORM, MOE_VALUE_WANTED, MOE_VALUE_SELECTED);
    moe_build_linears(b, MOE_VALUE_SELECTED, c->n_embd, &head, 1);
    moe_build_scale(b, MOE_VALUE_LOGITS, c->n_vocab, c->logit_scale);
    moe_build_cap(b, MOE_VALUE_LOGITS, c->n_vocab, c->logit_cap);
    b->program->back.end = b->program->n_ops;
    b->program->n_floats[MOE_VALUE_GREATEST] = sizeof(moe_greatest) / sizeof(float);
}

/* From a token and a hidden state to joined: both normed, one behind the other. */
static void join(moe_program_builder *b)
{
    uint32_t n = b->config->n_embd;
    b->borrows = true;
    b->written[MOE_VALUE_HIDDEN] = true;
    embed(b, MOE_VALUE_EMBEDDED);
    moe_build_norm(b, MOE_TENSOR_DRAFT + MOE_DRAFT_TOKEN_NORM, moe_all_of(MOE_VALUE_EMBEDDED, n), n,
                   1);
    moe_build(b, (moe_op){.kind = MOE_OP_NORM,
                          .n = n,
                          .tensor = MOE_TENSOR_DRAFT + MOE_DRAFT_HIDDEN_NORM,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_HIDDEN, n),
                          .y = moe_all_of(MOE_VALUE_HIDDEN_NORM, n),
                          .u.norm.eps = b->config->norm_eps});
    moe_build_copy(b, moe_all_of(MOE_VALUE_EMBEDDED, n),
                   moe_all_of(MOE_VALUE_JOINED, 2 * (size_t)n), n, 1);
    moe_build_copy(b, moe_all_of(MOE_VALUE_HIDDEN_NORM, n),
                   moe_part_of(MOE_VALUE_JOINED, n, 2 * (size_t)n), n, 1);
}

/* ---- Programs ---- */

static int begin(moe_program_builder *b, moe_program *program, const moe_model_config *config,
                 const moe_tensor_map *map, moe_error *err)
{
    *program = (moe_program){.config = config};
    *b = (moe_program_builder){
        .program = program, .config = config, .map = map, .layer = config->n_layer, .err = err};
    b->written[MOE_VALUE_NONE] = true;
    program->layers = moe_calloc(config->n_layer, sizeof *program->layers);
    if (program->layers == NULL) {
        b->status =
            moe_fail(err, MOE_ERR_MEMORY, "no memory for a program of %u layers", config->n_layer);
    }
    return b->status;
}

static int end(moe_program_builder *b)
{
    if (b->status == MOE_OK) {
        build_back(b);
    }
    if (b->status != MOE_OK) {
        moe_program_free(b->program);
    }
    return b->status;
}

int moe_program_build(moe_program *program, const moe_model_config *config,
                      const moe_tensor_map *map, moe_error *err)
{
    moe_program_builder b;
    if (begin(&b, program, config, map, err) == MOE_OK) {
        embed(&b, MOE_VALUE_X);
        program->front.end = program->n_ops;
        build_layers(&b);
    }
    return end(&b);
}

int moe_program_build_draft(moe_program *program, const moe_model_config *config,
                            const moe_tensor_map *map, moe_error *err)
{
    moe_program_builder b;
    if (begin(&b, program, config, map, err) == MOE_OK) {
        join(&b);
        moe_build_linear(&b, MOE_VALUE_JOINED, 2 * config->n_embd,
                         MOE_TENSOR_DRAFT + MOE_DRAFT_JOIN, MOE_TENSOR_NONE, MOE_VALUE_X);
        program->front.end = program->n_ops;
        build_layers(&b);
    }
    return end(&b);
}

/* The layer reads both of what was joined, and goes on from the hidden state. */
static void build_eagle_layer(moe_program_builder *b, const moe_eagle_config *eagle)
{
    moe_program_layer *layer = &b->program->layers[0];
    begin_layer(b, 0);
    layer->first = b->program->n_ops;
    moe_build_attention(b, &(moe_attention_form){.from = MOE_VALUE_JOINED});
    moe_build_add(b, eagle->norm_before_residual ? MOE_VALUE_HIDDEN_NORM : MOE_VALUE_HIDDEN,
                  MOE_VALUE_BRANCH, MOE_VALUE_X, b->config->n_embd);
    moe_build_mixed(b);
    moe_write_network(b, &(moe_layer_form){0});
    end_layer(b);
    b->layer = b->config->n_layer;
}

static void build_features(moe_program_builder *b, const moe_eagle_config *eagle)
{
    const uint32_t n = eagle->n_embd_target, n_features = MOE_EAGLE_TAPS * n;
    for (uint32_t i = 0; i < MOE_EAGLE_TAPS; i++) {
        moe_value tapped = (moe_value)(MOE_VALUE_TAPPED_A + i);
        b->written[tapped] = true;
        moe_build_copy(b, moe_all_of(tapped, n),
                       moe_part_of(MOE_VALUE_FEATURES, (size_t)i * n, n_features), n, 1);
    }
    if (eagle->norm_before_fc) {
        moe_build_norm(b, MOE_TENSOR_DRAFT + MOE_DRAFT_FEATURES_NORM,
                       moe_all_of(MOE_VALUE_FEATURES, n_features), n_features, 1);
    }
    moe_build_linear(b, MOE_VALUE_FEATURES, n_features, MOE_TENSOR_DRAFT + MOE_DRAFT_JOIN,
                     MOE_TENSOR_NONE, MOE_VALUE_HIDDEN);
}

int moe_program_build_eagle(moe_program *program, const moe_eagle_config *eagle,
                            const moe_tensor_map *map, moe_error *err)
{
    moe_program_builder b;
    if (begin(&b, program, &eagle->config, map, err) == MOE_OK) {
        join(&b);
        program->front.end = program->n_ops;
        build_eagle_layer(&b, eagle);
        program->features.first = program->n_ops;
        build_features(&b, eagle);
        program->features.end = program->n_ops;
    }
    return end(&b);
}

void moe_program_free(moe_program *program)
{
    free(program->ops);
    free(program->layers);
    *program = (moe_program){0};
}
