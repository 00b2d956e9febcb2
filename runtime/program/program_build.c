/* SPDX-License-Identifier: MIT */
/* Builds a program: the front, the layers, the back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/model/family.h"
#include "runtime/program/program_builder.h"

/* ---- Layers ---- */

/* When a layer begins, x has been written; in a drafting layer, also what its front has joined. */
static void begin_layer(moe_program_builder *b, uint32_t layer)
{
    bool written[MOE_VALUES] = {[MOE_VALUE_NONE] = true, [MOE_VALUE_X] = true};
    for (int v = MOE_VALUE_HIDDEN; v <= MOE_VALUE_JOINED; v++) {
        written[v] = b->written[v];
    }
    memcpy(b->written, written, sizeof written);
    b->layer = layer;
}

/* In a layer without routed experts nothing follows `rest`. */
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
    const moe_family *family = b->config->family;
    for (uint32_t l = 0; l < b->config->n_layer && b->status == MOE_OK; l++) {
        begin_layer(b, l);
        program->layers[l].first = program->n_ops;
        family->layer(b);
        end_layer(b);
    }
    b->layer = b->config->n_layer;
}

/* Built behind all else, so that front, layers and back follow one another. */
static void build_routers_ahead(moe_program_builder *b)
{
    const moe_family *family = b->config->family;
    for (uint32_t l = 1; l < b->config->n_layer && b->status == MOE_OK; l++) {
        moe_program_layer *layer = &b->program->layers[l];
        begin_layer(b, l);
        layer->ahead.first = b->program->n_ops;
        if (moe_layer_has_experts(b->config, l) && family->ahead != NULL) {
            family->ahead(b);
        } else if (moe_layer_has_experts(b->config, l)) {
            moe_write_ahead(b, MOE_LAYER_FFN_NORM);
        }
        layer->ahead.end = b->program->n_ops;
    }
}

/* ---- Before and behind the layers ---- */

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

/* The mean of the streams, in READ, for the rows whose logits are wanted. */
static void build_streams_mean(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    const size_t n_all = (size_t)c->n_streams * c->n_embd;
    for (uint32_t i = 0; i < c->n_streams; i++) {
        moe_build_copy(b, moe_part_of(MOE_VALUE_WANTED_STREAMS, (size_t)i * c->n_embd, n_all),
                       moe_all_of(i == 0 ? MOE_VALUE_READ : MOE_VALUE_BRANCH, c->n_embd), c->n_embd,
                       1);
        if (i > 0) {
            moe_build_add(b, MOE_VALUE_READ, MOE_VALUE_BRANCH, MOE_VALUE_READ, c->n_embd);
        }
    }
    moe_build_scale(b, MOE_VALUE_READ, c->n_embd, 1.0f / (float)c->n_streams);
}

static void build_back(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    moe_op_output head = moe_build_output(MOE_TENSOR_OUTPUT, 0, c->n_vocab, MOE_VALUE_LOGITS);
    head.bias = c->norm == MOE_NORM_MEAN ? MOE_TENSOR_OUTPUT_BIAS : MOE_TENSOR_NONE;
    b->program->back.first = b->program->n_ops;
    b->written[MOE_VALUE_X] = true;
    const uint32_t n = c->n_streams > 1 ? c->n_streams * c->n_embd : c->n_embd;
    moe_value wanted = c->n_streams > 1 ? MOE_VALUE_WANTED_STREAMS : MOE_VALUE_WANTED;
    moe_build(b, (moe_op){.kind = MOE_OP_SELECT,
                          .n = n,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_X, n),
                          .y = moe_all_of(wanted, n)});
    if (c->n_streams > 1 && c->family->streams_mean) {
        build_streams_mean(b);
        wanted = MOE_VALUE_READ;
    } else {
        wanted = moe_build_read(b, wanted, MOE_TENSOR_STREAMS, MOE_VALUE_STREAM_MIX,
                                c->stream_rank > 0 ? MOE_VALUE_SELECTED : MOE_VALUE_READ);
    }
    if (c->stream_rank == 0) {
        moe_build_row_norm(b, MOE_TENSOR_OUTPUT_NORM, wanted, MOE_VALUE_SELECTED);
    }
    moe_build_linears(b, MOE_VALUE_SELECTED, c->n_embd, &head, 1);
    moe_build_scale(b, MOE_VALUE_LOGITS, c->n_vocab, c->logit_scale);
    moe_build_cap(b, MOE_VALUE_LOGITS, c->n_vocab, c->logit_cap);
    b->program->back.end = b->program->n_ops;
    b->program->n_floats[MOE_VALUE_GREATEST] = sizeof(moe_greatest) / sizeof(float);
}

/* The token's embedding; with several streams, each begins as this embedding. */
static void build_front(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    const bool several = c->n_streams > 1;
    embed(b, several ? MOE_VALUE_READ : MOE_VALUE_X);
    for (uint32_t i = 0; several && i < c->n_streams; i++) {
        moe_build_copy(
            b, moe_all_of(MOE_VALUE_READ, c->n_embd),
            moe_part_of(MOE_VALUE_X, (size_t)i * c->n_embd, (size_t)c->n_streams * c->n_embd),
            c->n_embd, 1);
    }
}

/* Norms the hidden state. Streams have a norm each, all with the same weights; where elements have
 * gates, one norm for all. */
static void norm_hidden(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    const uint32_t each = c->n_streams > 1 && c->stream_rank == 0 ? c->n_streams : 1;
    const uint32_t n = c->stream_rank > 0 ? c->n_streams * c->n_embd : c->n_embd;
    moe_build(b, (moe_op){.kind = MOE_OP_NORM,
                          .n = n,
                          .each = each,
                          .tensor = MOE_TENSOR_DRAFT + MOE_DRAFT_HIDDEN_NORM,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_HIDDEN, n),
                          .y = moe_all_of(MOE_VALUE_HIDDEN_NORM, n),
                          .u.norm.eps = c->norm_eps});
}

/* Joins a token's embedding and a hidden state: both are normed, then put side by side. Of several
 * streams each is joined, one after the other; `at` is where the stream begins. */
static void join_stream(moe_program_builder *b, size_t at)
{
    const uint32_t n = b->config->n_embd;
    const uint32_t n_streams = b->config->n_streams > 1 ? b->config->n_streams : 1;
    moe_build_copy(b, moe_part_of(MOE_VALUE_HIDDEN_NORM, at, (size_t)n_streams * n),
                   moe_part_of(MOE_VALUE_JOINED, n, 2 * (size_t)n), n, 1);
}

static void join(moe_program_builder *b)
{
    uint32_t n = b->config->n_embd;
    b->borrows = true;
    b->written[MOE_VALUE_HIDDEN] = true;
    embed(b, MOE_VALUE_EMBEDDED);
    moe_build_norm(b, MOE_TENSOR_DRAFT + MOE_DRAFT_TOKEN_NORM, moe_all_of(MOE_VALUE_EMBEDDED, n), n,
                   1);
    norm_hidden(b);
    moe_build_copy(b, moe_all_of(MOE_VALUE_EMBEDDED, n),
                   moe_all_of(MOE_VALUE_JOINED, 2 * (size_t)n), n, 1);
    join_stream(b, 0);
}

/* What a drafting layer begins with, of one stream or of several. */
static void build_draft_front(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    const uint32_t n = c->n_embd;
    const size_t n_all = (size_t)c->n_streams * n;
    join(b);
    if (c->n_streams <= 1) {
        moe_build_linear(b, MOE_VALUE_JOINED, 2 * n, MOE_TENSOR_DRAFT + MOE_DRAFT_JOIN, n,
                         MOE_TENSOR_NONE, MOE_VALUE_X);
        return;
    }
    for (size_t at = 0; at < n_all; at += n) {
        if (at > 0) {
            join_stream(b, at);
        }
        moe_build_linear(b, MOE_VALUE_JOINED, 2 * n, MOE_TENSOR_DRAFT + MOE_DRAFT_JOIN, n,
                         MOE_TENSOR_NONE, MOE_VALUE_READ);
        moe_build_copy(b, moe_all_of(MOE_VALUE_READ, n), moe_part_of(MOE_VALUE_X, at, n_all), n, 1);
    }
}

/* ---- Programs ---- */

/* The program being made, and the files that it is made from. */
typedef struct making {
    moe_program_builder b;
    moe_tensor_claims claims;
    moe_global_tensor globals[MOE_GLOBAL_TENSORS];
} making;

static void name_global(making *m, int tensor, const char *name, bool optional)
{
    m->globals[tensor - MOE_TENSOR_TOKEN_EMBEDDING] = (moe_global_tensor){name, optional};
}

static int begin(making *m, moe_program *program, moe_tensor_map *map,
                 const moe_model_config *config, const moe_gguf *gguf, moe_error *err)
{
    *program = (moe_program){.config = config};
    *m = (making){.b = {.program = program,
                        .config = config,
                        .map = map,
                        .claims = &m->claims,
                        .globals = m->globals,
                        .n_embeddings = config->n_vocab,
                        .layer = config->n_layer,
                        .err = err}};
    m->b.written[MOE_VALUE_NONE] = true;
    m->b.status = moe_claims_begin(&m->claims, map, config, gguf, err);
    program->layers = moe_calloc(config->n_layer, sizeof *program->layers);
    if (m->b.status == MOE_OK && program->layers == NULL) {
        m->b.status = moe_fail(err, MOE_ERR_MEMORY, "out of memory for a program of %u layers",
                               config->n_layer);
    }
    return m->b.status;
}

static int end(making *m)
{
    if (m->b.status == MOE_OK) {
        build_back(&m->b);
        build_routers_ahead(&m->b);
        moe_program_fuse(m->b.program);
    }
    int status = moe_claims_end(&m->claims, m->b.status);
    if (status != MOE_OK) {
        moe_program_free(m->b.program);
    }
    return status;
}

/* Claims the factors of rotary frequencies, which no operation names. */
static void claim_rope_factors(making *m)
{
    const moe_tensor_shape shape = {m->b.config->n_rope_factors, 1, MOE_TENSOR_VECTOR};
    moe_tensor_map *map = m->b.map;
    const struct {
        const char *name;
        moe_tensor_ref *ref;
    } rows[] = {
        {"rope_freqs.weight", &map->rope_freqs},
        {"rope_factors_short.weight", &map->rope_freqs},
        {"rope_factors_long.weight", &map->rope_freqs_long},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && m->b.status == MOE_OK; i++) {
        bool needed = i == 1 && map->rope_freqs.size == 0 &&
                      moe_gguf_find_tensor(m->claims.gguf, rows[2].name) != NULL;
        if (rows[i].ref->size == 0) {
            m->b.status = moe_claim_tensor(&m->claims, rows[i].name, shape, !needed, rows[i].ref);
        }
    }
}

int moe_program_build(moe_program *program, moe_tensor_map *map, const moe_model_config *config,
                      const moe_gguf *gguf, moe_error *err)
{
    const char *named = config->family->output_norm;
    const char *output_norm = named != NULL ? named : "output_norm.weight";
    making m;
    if (begin(&m, program, map, config, gguf, err) == MOE_OK) {
        name_global(&m, MOE_TENSOR_TOKEN_EMBEDDING, "token_embd.weight", false);
        name_global(&m, MOE_TENSOR_OUTPUT_NORM, output_norm, false);
        name_global(&m, MOE_TENSOR_OUTPUT_NORM_BIAS, "output_norm.bias", true);
        name_global(&m, MOE_TENSOR_OUTPUT, "output.weight", false);
        name_global(&m, MOE_TENSOR_OUTPUT_BIAS, "output.bias", true);
        name_global(&m, MOE_TENSOR_STREAMS + MOE_STREAMS_HEAD, "output_hc_fn.weight", false);
        name_global(&m, MOE_TENSOR_STREAMS + MOE_STREAMS_HEAD_BASE, "output_hc_base.weight", false);
        name_global(&m, MOE_TENSOR_STREAMS + MOE_STREAMS_HEAD_SCALE, "output_hc_scale.weight",
                    false);
        name_global(&m, MOE_TENSOR_STREAMS + MOE_STREAMS_HEAD_NORM, "output_hc_norm.weight", false);
        name_global(&m, MOE_TENSOR_STREAMS + MOE_STREAMS_HEAD_DOWN, "output_hc_down.weight", false);
        name_global(&m, MOE_TENSOR_STREAMS + MOE_STREAMS_HEAD_UP, "output_hc_up.weight", false);
        name_global(&m, MOE_TENSOR_STREAMS + MOE_STREAMS_HEAD_RECALL, "output_res_score.weight",
                    false);
        build_front(&m.b);
        map->output = config->tied_output ? map->token_embedding : map->output;
        program->front.end = program->n_ops;
        claim_rope_factors(&m);
        build_layers(&m.b);
    }
    return end(&m);
}

int moe_tensor_map_build(moe_tensor_map *map, const moe_model_config *config, const moe_gguf *gguf,
                         moe_error *err)
{
    moe_program program;
    MOE_TRY(moe_program_build(&program, map, config, gguf, err));
    moe_program_free(&program);
    return MOE_OK;
}

int moe_program_build_draft(moe_program *program, moe_tensor_map *map, moe_model_config *config,
                            const moe_gguf *gguf, moe_error *err)
{
    static const struct {
        int tensor;
        const char *name;
        bool optional;
    } globals[] = {
        {MOE_TENSOR_DRAFT + MOE_DRAFT_JOIN, "eh_proj", false},
        {MOE_TENSOR_DRAFT + MOE_DRAFT_TOKEN_NORM, "enorm", false},
        {MOE_TENSOR_DRAFT + MOE_DRAFT_HIDDEN_NORM, "hnorm", false},
        {MOE_TENSOR_OUTPUT_NORM, "shared_head_norm", true},
        {MOE_TENSOR_TOKEN_EMBEDDING, "embed_tokens", true},
        {MOE_TENSOR_OUTPUT, "shared_head_head", true},
        {MOE_TENSOR_STREAMS + MOE_STREAMS_HEAD, "hc_head_fn", true},
        {MOE_TENSOR_STREAMS + MOE_STREAMS_HEAD_BASE, "hc_head_base", true},
        {MOE_TENSOR_STREAMS + MOE_STREAMS_HEAD_SCALE, "hc_head_scale", true},
        {MOE_TENSOR_STREAMS + MOE_STREAMS_HEAD_NORM, "hc_head_norm", true},
        {MOE_TENSOR_STREAMS + MOE_STREAMS_HEAD_DOWN, "hc_head_down", true},
        {MOE_TENSOR_STREAMS + MOE_STREAMS_HEAD_UP, "hc_head_up", true},
    };
    enum { N_GLOBALS = sizeof globals / sizeof globals[0] };
    char names[N_GLOBALS][64];
    making m;
    const uint32_t index = config->n_layer;
    int status = moe_model_config_draft(config, gguf, err);
    if (status != MOE_OK) {
        *map = (moe_tensor_map){0};
        return status;
    }
    if (begin(&m, program, map, config, gguf, err) == MOE_OK) {
        m.claims.first_layer = index;
        for (int i = 0; i < N_GLOBALS; i++) {
            snprintf(names[i], sizeof names[i], "blk.%u.nextn.%s.weight", index, globals[i].name);
            name_global(&m, globals[i].tensor, names[i], globals[i].optional);
        }
        build_draft_front(&m.b);
        program->front.end = program->n_ops;
        build_layers(&m.b);
    }
    return end(&m);
}

/* An EAGLE-3 layer reads both joined vectors, and adds to the hidden state. */
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
                     b->config->n_embd, MOE_TENSOR_NONE, MOE_VALUE_HIDDEN);
}

int moe_program_build_eagle(moe_program *program, moe_tensor_map *map,
                            const moe_eagle_config *eagle, const moe_gguf *gguf, moe_error *err)
{
    making m;
    if (begin(&m, program, map, &eagle->config, gguf, err) == MOE_OK) {
        const int draft = MOE_TENSOR_DRAFT;
        name_global(&m, draft + MOE_DRAFT_JOIN, "fc.weight", false);
        name_global(&m, draft + MOE_DRAFT_FEATURES_NORM, "enc.output_norm.weight", false);
        name_global(&m, draft + MOE_DRAFT_TOKEN_NORM, "blk.0.attn_norm.weight", false);
        name_global(&m, draft + MOE_DRAFT_HIDDEN_NORM, "blk.0.attn_norm_2.weight", false);
        name_global(&m, MOE_TENSOR_OUTPUT_NORM, "output_norm.weight", false);
        name_global(&m, MOE_TENSOR_OUTPUT, "output.weight", !eagle->needs_output);
        name_global(&m, MOE_TENSOR_TOKEN_EMBEDDING, "token_embd.weight", !eagle->needs_embedding);
        m.b.n_embeddings = eagle->n_vocab_target;
        /* Found by moe_eagle_config.tokens_offset. */
        moe_claims_ignore(&m.claims, MOE_EAGLE_TOKENS);
        m.b.status =
            moe_claim_tensor(&m.claims, "rope_freqs.weight",
                             (moe_tensor_shape){eagle->config.n_rope_factors, 1, MOE_TENSOR_VECTOR},
                             true, &map->rope_freqs);
        join(&m.b);
        program->front.end = program->n_ops;
        build_eagle_layer(&m.b, eagle);
        program->features.first = program->n_ops;
        build_features(&m.b, eagle);
        program->features.end = program->n_ops;
    }
    return end(&m);
}

void moe_program_free(moe_program *program)
{
    free(program->ops);
    free(program->layers);
    *program = (moe_program){0};
}
