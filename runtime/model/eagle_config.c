/* SPDX-License-Identifier: MIT */
#include "runtime/model/eagle_config.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "runtime/base/dtype.h"
#include "runtime/base/error.h"
#include "runtime/model/config_reader.h"

#define TYPE_I64 27u /* GGUF's number for this tensor type */

static const moe_family eagle_family = {.architecture = MOE_EAGLE_ARCHITECTURE, .name = "EAGLE-3"};

bool moe_gguf_is_eagle(const moe_gguf *gguf)
{
    moe_string_view name = {0};
    static const char expected[] = MOE_EAGLE_ARCHITECTURE;
    return moe_gguf_get_string(gguf, "general.architecture", &name, NULL) == MOE_OK &&
           name.data != NULL && name.size == sizeof expected - 1 &&
           memcmp(name.data, expected, name.size) == 0;
}

static uint32_t dimension(moe_config_reader *r, const char *suffix, uint32_t absent)
{
    uint32_t value =
        absent != 0 ? moe_config_u32(r, suffix, absent) : moe_config_need_u32(r, suffix);
    if (r->status == MOE_OK && (value == 0 || value > MOE_CONFIG_MAX_DIMENSION)) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' is %" PRIu32 ", not a dimension",
                             r->key, value);
    }
    return r->status == MOE_OK ? value : 1;
}

static void read_heads(moe_config_reader *r, moe_model_config *c)
{
    c->n_head = dimension(r, "attention.head_count", 0);
    c->n_head_kv = dimension(r, "attention.head_count_kv", c->n_head);
    uint32_t share = c->n_embd / c->n_head > 0 ? c->n_embd / c->n_head : 1;
    c->head_dim_k = dimension(r, "attention.key_length", share);
    c->head_dim_v = dimension(r, "attention.value_length", c->head_dim_k);
    c->n_rot = dimension(r, "rope.dimension_count", c->head_dim_k);
    bool fits = c->n_head <= MOE_CONFIG_MAX_HEADS && c->n_head % c->n_head_kv == 0 &&
                c->head_dim_v == c->head_dim_k && c->n_rot % 2 == 0 && c->n_rot <= c->head_dim_k;
    if (r->status == MOE_OK && !fits) {
        r->status =
            moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                     "an EAGLE-3 head of %" PRIu32 " heads of queries and %" PRIu32
                     " of keys, %" PRIu32 " and %" PRIu32 " long, %" PRIu32
                     " of it turned (keys 'eagle3.attention.*', 'eagle3.rope.*') is not run",
                     c->n_head, c->n_head_kv, c->head_dim_k, c->head_dim_v, c->n_rot);
    }
    c->attention_scale = 1.0f / sqrtf((float)c->head_dim_k);
}

static void read_rope(moe_config_reader *r, moe_model_config *c)
{
    moe_string_view scaling = {0};
    c->rope = MOE_ROPE_INTERLEAVED;
    c->n_rope_factors = c->n_rot / 2;
    c->rope_freq_base = moe_config_f32(r, "rope.freq_base", 10000.0f);
    c->rope_factor = 1.0f;
    c->yarn_magnitude = 1.0f;
    if (moe_config_has(r, "rope.scaling.type")) {
        r->status = moe_gguf_get_string(r->gguf, r->key, &scaling, r->err);
        if (r->status == MOE_OK && !(scaling.size == 4 && memcmp(scaling.data, "none", 4) == 0)) {
            r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                                 "key '%s': an EAGLE-3 head with scaled positions is not run, "
                                 "except by the factors of 'rope_freqs.weight'",
                                 r->key);
        }
    }
    if (r->status == MOE_OK && !(c->rope_freq_base > 0.0f && isfinite(c->rope_freq_base))) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT, "key 'eagle3.rope.freq_base' is %g",
                             (double)c->rope_freq_base);
    }
}

static void read_layer(moe_config_reader *r, moe_model_config *c)
{
    *c = (moe_model_config){.architecture = MOE_EAGLE_ARCHITECTURE, .family = &eagle_family};
    c->n_layer = dimension(r, "block_count", 0);
    if (r->status == MOE_OK && c->n_layer != 1) {
        r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                             "an EAGLE-3 head of %" PRIu32 " layers ('%s') is not run: only heads "
                             "of one are",
                             c->n_layer, r->key);
    }
    c->n_embd = dimension(r, "embedding_length", 0);
    c->n_ff_dense = dimension(r, "feed_forward_length", 0);
    read_heads(r, c);
    read_rope(r, c);
    c->norm = MOE_NORM_RMS;
    c->norm_eps = moe_config_f32(r, "attention.layer_norm_rms_epsilon", 1e-5f);
    c->embedding_scale = c->residual_scale = c->logit_scale = 1.0f;
    c->attention_out_scale = c->gate_scale = 1.0f;
    c->n_expert = c->n_expert_used = 1; /* sizes tables only: the layer is dense */
    c->n_expert_in = c->n_embd;
    c->n_group = 1;
    c->layers[0] =
        (moe_layer_kind){.mixer = MOE_MIXER_ATTENTION,
                         .feed_forward = MOE_FEED_FORWARD_DENSE,
                         .heads = {c->n_head, c->n_head_kv, c->head_dim_k, c->head_dim_v}};
}

static void read_targets(moe_config_reader *r, moe_eagle_config *eagle)
{
    const moe_gguf_kv *kv = moe_config_find(r, "target_layers");
    if (r->status != MOE_OK) {
        return;
    }
    if (kv == NULL || kv->type != MOE_GGUF_ARRAY || kv->n_elements != MOE_EAGLE_TAPS) {
        r->status =
            moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' must be an array of three layers, and it %s",
                     r->key, kv == NULL ? "is missing" : "is not");
        return;
    }
    for (uint32_t i = 0; i < MOE_EAGLE_TAPS && r->status == MOE_OK; i++) {
        int64_t layer = -1;
        r->status = moe_gguf_array_i64(kv, i, &layer);
        if (r->status != MOE_OK || layer < 0 || layer > UINT32_MAX) {
            r->status =
                moe_fail(r->err, MOE_ERR_FORMAT,
                         "key '%s': element %" PRIu32 " is not the number of a layer", r->key, i);
        }
        eagle->target_layers[i] = (uint32_t)layer;
    }
}

/* Checks that the head was made for a model like trunk. */
static int check_trunk(const moe_eagle_config *eagle, const moe_model_config *trunk,
                       const char *path, moe_error *err)
{
    if (trunk->n_streams > 1) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: EAGLE-3 heads read one residual stream, and the model has %" PRIu32
                        "; draft in another way",
                        path, trunk->n_streams);
    }
    if (eagle->n_embd_target != trunk->n_embd) {
        return moe_fail(err, MOE_ERR_MISMATCH,
                        "%s: it drafts for models of width %" PRIu32
                        " (key 'eagle3.target_hidden_size'), and the model's is %" PRIu32,
                        path, eagle->n_embd_target, trunk->n_embd);
    }
    for (uint32_t i = 0; i < MOE_EAGLE_TAPS; i++) {
        if (eagle->target_layers[i] > trunk->n_layer) {
            return moe_fail(err, MOE_ERR_MISMATCH,
                            "%s: it reads layer %" PRIu32 " (key 'eagle3.target_layers'), and the "
                            "model has %" PRIu32 " layers",
                            path, eagle->target_layers[i], trunk->n_layer);
        }
    }
    if (eagle->n_vocab_target != trunk->n_vocab) {
        return moe_fail(err, MOE_ERR_MISMATCH,
                        "%s: it drafts for models of %" PRIu32
                        " tokens (key 'eagle3.vocab_size', or its embedding), and the model has "
                        "%" PRIu32,
                        path, eagle->n_vocab_target, trunk->n_vocab);
    }
    return MOE_OK;
}

/* Finds the tensor that maps the head's tokens to the model's: its size and its place. */
static int find_tokens(moe_eagle_config *eagle, const moe_gguf *gguf, moe_error *err)
{
    const moe_gguf_tensor *t = moe_gguf_find_tensor(gguf, MOE_EAGLE_TOKENS);
    eagle->config.n_vocab = eagle->n_vocab_target;
    eagle->has_tokens = t != NULL;
    if (t == NULL) {
        return MOE_OK;
    }
    uint64_t n = t->dims[0];
    if (t->type != TYPE_I64 || t->dims[1] != 1 || t->dims[2] != 1 || t->dims[3] != 1 || n == 0 ||
        n > eagle->n_vocab_target) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "tensor '" MOE_EAGLE_TOKENS "' has %" PRIu64 " elements of type %s; it "
                        "must be a list of at most %" PRIu32 " of type I64",
                        n, moe_dtype_name(t->type), eagle->n_vocab_target);
    }
    const moe_gguf_file *file = moe_gguf_file_at(gguf, t->file_index);
    if (file == NULL || t->offset > file->size || n * sizeof(int64_t) > file->size - t->offset) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "tensor '" MOE_EAGLE_TOKENS "' lies beyond the end of its file");
    }
    eagle->config.n_vocab = (uint32_t)n;
    eagle->tokens_file = t->file_index;
    eagle->tokens_offset = t->offset;
    return MOE_OK;
}

int moe_eagle_config_read(moe_eagle_config *eagle, const moe_model_config *trunk,
                          const moe_gguf *gguf, const char *path, moe_error *err)
{
    *eagle = (moe_eagle_config){0};
    moe_config_reader r = {.gguf = gguf, .family = &eagle_family, .err = err};
    read_layer(&r, &eagle->config);
    read_targets(&r, eagle);
    eagle->n_embd_target = dimension(&r, "target_hidden_size", 0);
    const moe_gguf_tensor *embedding = moe_gguf_find_tensor(gguf, "token_embd.weight");
    const moe_gguf_kv *tokens = moe_gguf_find(gguf, "tokenizer.ggml.tokens");
    bool listed = tokens != NULL && tokens->type == MOE_GGUF_ARRAY;
    uint64_t n_vocab = embedding != NULL ? embedding->dims[1]
                       : listed          ? tokens->n_elements
                                         : moe_config_u32(&r, "vocab_size", trunk->n_vocab);
    eagle->n_vocab_target = n_vocab <= MOE_CONFIG_MAX_DIMENSION ? (uint32_t)n_vocab : 0;
    eagle->norm_before_residual = moe_config_bool(&r, "norm_before_residual", false);
    eagle->norm_before_fc = moe_config_bool(&r, "norm_before_fc", false);
    int status = r.status;
    status = status == MOE_OK ? check_trunk(eagle, trunk, path, err) : status;
    status = status == MOE_OK ? find_tokens(eagle, gguf, err) : status;
    eagle->needs_embedding = eagle->config.n_embd != trunk->n_embd;
    eagle->needs_output = eagle->needs_embedding || eagle->has_tokens;
    return status;
}
