/* SPDX-License-Identifier: MIT */
/* The moe_file functions, which describe a model by its header. A file that the engine cannot run
 * can be opened here, too; the summary says why it does not run. */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/model_file.h>
#include <moe/moe.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"
#include "runtime/engine/engine_state.h"
#include "offload/model_open.h"
#include "runtime/engine/metadata_text.h"
#include "runtime/engine/summary_missing.h"
#include "runtime/families/families.h"
#include "runtime/model/gguf.h"
#include "runtime/model/metadata_keys.h"
#include "runtime/model/model_config.h"
#include "runtime/model/tensor_map.h"
#include "runtime/model/tokenizer.h"
#include "runtime/program/program.h"

struct moe_file {
    /* Set at open, never changed. */
    moe_gguf *gguf;
    char **keys;  /* [n_kvs] terminated */
    char **names; /* [n_tensors] */
    char *architecture;
    moe_file_summary summary;
};

static const char *const kind_names[MOE_KIND_COUNT] = {
    [MOE_KIND_EMBEDDING] = "embedding",
    [MOE_KIND_OUTPUT] = "output",
    [MOE_KIND_NORM] = "norm",
    [MOE_KIND_ATTENTION] = "attention",
    [MOE_KIND_ROUTER] = "router",
    [MOE_KIND_DENSE_FFN] = "dense feed-forward",
    [MOE_KIND_SHARED_EXPERT] = "shared expert",
    [MOE_KIND_EXPERT] = "expert",
    [MOE_KIND_OTHER] = "other",
};

/* Assigns tensors to kinds by patterns for their names without "blk.N."; the first pattern that
 * matches counts. */
static const struct {
    const char *pattern;
    moe_tensor_kind kind;
} kind_rules[] = {
    {"*_norm.*", MOE_KIND_NORM},
    {"token_embd.*", MOE_KIND_EMBEDDING},
    {"output.*", MOE_KIND_OUTPUT},
    {"attn_*", MOE_KIND_ATTENTION},
    {"ffn_*_shexp.*", MOE_KIND_SHARED_EXPERT},
    {"ffn_gate_inp.*", MOE_KIND_ROUTER},
    {"*exp_probs_b*", MOE_KIND_ROUTER},
    {"ffn_*_exps.*", MOE_KIND_EXPERT},
    {"ffn_gate.[0-9]*", MOE_KIND_EXPERT}, /* older files: a tensor for each expert */
    {"ffn_up.[0-9]*", MOE_KIND_EXPERT},
    {"ffn_down.[0-9]*", MOE_KIND_EXPERT},
    {"ffn_gate.*", MOE_KIND_DENSE_FFN},
    {"ffn_up.*", MOE_KIND_DENSE_FFN},
    {"ffn_down.*", MOE_KIND_DENSE_FFN},
};

static moe_tensor_kind kind_of(const char *name)
{
    const char *stem = name;
    if (strncmp(name, "blk.", 4) == 0) {
        const char *dot = strchr(name + 4, '.');
        stem = dot == NULL ? name : dot + 1;
    }
    for (size_t i = 0; i < sizeof kind_rules / sizeof kind_rules[0]; i++) {
        if (fnmatch(kind_rules[i].pattern, stem, 0) == 0) {
            return kind_rules[i].kind;
        }
    }
    return MOE_KIND_OTHER;
}

const char *moe_tensor_kind_name(moe_tensor_kind kind)
{
    return (unsigned)kind < MOE_KIND_COUNT ? kind_names[kind] : kind_names[MOE_KIND_OTHER];
}

static void summarize_experts(moe_file_summary *summary, const moe_model_config *config,
                              const moe_tensor_map *map)
{
    for (uint32_t layer = 0; layer < map->n_layer; layer++) {
        if (!moe_layer_has_experts(config, layer)) {
            continue;
        }
        summary->n_layer_moe++;
        for (uint32_t expert = 0; expert < map->n_expert; expert++) {
            uint64_t bytes = moe_expert_ref_bytes(&map->layers[layer].experts[expert]);
            if (summary->smallest_expert_bytes == 0 || bytes < summary->smallest_expert_bytes) {
                summary->smallest_expert_bytes = bytes;
            }
            if (bytes > summary->largest_expert_bytes) {
                summary->largest_expert_bytes = bytes;
            }
        }
    }
}

/* In an MLA cache each position has one latent row, and the values are a part of the keys. */
static void summarize_kv(moe_file_summary *summary, const moe_model_config *config)
{
    for (uint32_t l = 0; l < config->n_layer; l++) {
        const moe_layer_kind *layer = &config->layers[l];
        summary->kv_bytes_per_token_f16 += 2 * layer->side_dim;
        summary->kv_bytes_per_token_f16 += layer->keeps_tokens ? sizeof(int32_t) : 0;
        if (!moe_mixer_has_heads(layer->mixer)) {
            continue;
        }
        uint64_t v_dim = layer->mixer == MOE_MIXER_ATTENTION ? layer->heads.v_dim : 0;
        uint64_t bytes = 2 * (layer->heads.k_dim + v_dim) * layer->heads.n_kv;
        uint32_t window = layer->window > 0 ? layer->window : layer->chunk;
        summary->kv_bytes_per_token_f16 += bytes;
        summary->kv_windowed_per_token_f16 += window > 0 ? bytes : 0;
        if (layer->rate > 0) { /* compressed keys are kept for all positions */
            bool indexes = layer->indexer == MOE_INDEXER_OWN;
            uint32_t dim = config->head_dim_k + (indexes ? config->index_dim : 0);
            summary->kv_bytes_per_token_f16 += 2 * dim / layer->rate;
        }
        if (window > summary->attention_window) {
            summary->attention_window = window;
        }
    }
}

static void summarize_states(moe_file_summary *summary, const moe_model_config *config)
{
    static const char *const names[MOE_RECURRENCES] = {
        [MOE_RECURRENCE_NONE] = "",
        [MOE_RECURRENCE_DELTA] = "gated delta rule",
        [MOE_RECURRENCE_CONVOLUTION] = "short convolution",
        [MOE_RECURRENCE_SPACE] = "state space (Mamba-2)",
        [MOE_RECURRENCE_CHANNELS] = "delta rule with decays of channels (KDA)",
        [MOE_RECURRENCE_SCAN] = "selective scan (Mamba-1)",
    };
    uint32_t n = moe_count_mixers(config, MOE_MIXER_RECURRENT);
    summary->recurrence = n > 0 ? names[config->recurrence.kind] : "";
    summary->n_layer_recurrent = n;
    const uint64_t tail =
        moe_ngram_tail_floats(&config->ngrams, config->n_streams * config->n_embd);
    summary->state_bytes =
        (n * moe_recurrence_state_floats(&config->recurrence) + tail) * sizeof(float);
}

static void summarize_model(moe_file_summary *summary, const moe_model_config *config,
                            const moe_tensor_map *map)
{
    summary->family = config->family->name;
    summary->n_layer = config->n_layer;
    summary->n_embd = config->n_embd;
    summary->n_vocab = config->n_vocab;
    summary->n_head = config->n_head;
    summary->n_head_kv = config->n_head_kv;
    summary->context_train = config->n_context_train;
    summary->n_expert = config->n_expert;
    summary->n_expert_used = config->n_expert_used;
    summary->n_ff_expert = config->n_ff_expert;
    summary->n_ff_shared = config->n_ff_shared;
    summary->n_parameters = map->n_parameters;
    summary->n_parameters_active = map->n_parameters_active;
    summary->resident_bytes = map->resident_bytes;
    summary->expert_bytes = map->expert_bytes;
    summarize_kv(summary, config);
    summarize_experts(summary, config, map);
    summarize_states(summary, config);
    if (map->ngrams.size > 0) {
        summary->row_table_bytes = map->ngrams.size;
        summary->token_rows = config->ngrams.n_heads;
        summary->row_bytes = moe_dtype_row_bytes(map->ngrams.type, map->ngrams.n_in);
    }
}

/* Checks everything that opening an engine would check without reading weights. *why says why the
 * model cannot run. Fails only if memory is short (MOE_ERR_MEMORY), which says nothing about the
 * file. */
static int check_runnable(moe_file *file, moe_error *why)
{
    moe_file_summary *summary = &file->summary;
    moe_model_config config;
    moe_tensor_map map;
    moe_tokenizer *tokenizer;
    moe_error err = {""};
    int status = moe_model_config_read(&config, file->gguf, &err);
    if (status == MOE_OK) {
        status = moe_tensor_map_build(&map, &config, file->gguf, &err);
        if (status == MOE_OK) {
            status = moe_tokenizer_create(&tokenizer, file->gguf, &err);
            if (status == MOE_OK) {
                summarize_model(summary, &config, &map);
                moe_tokenizer_destroy(&tokenizer);
            }
            moe_tensor_map_free(&map);
        }
    }
    summary->runnable = status == MOE_OK;
    if (!summary->runnable) {
        snprintf(summary->why_not, sizeof summary->why_not, "%s", err.message);
        moe_summarize_missing(summary, file->gguf, file->names, kind_of);
    }
    return status != MOE_ERR_MEMORY ? MOE_OK : moe_fail(why, status, "%s", err.message);
}

static int copy_names(moe_file *file, moe_error *err)
{
    size_t n_kvs = moe_gguf_n_kvs(file->gguf);
    size_t n_tensors = moe_gguf_n_tensors(file->gguf);
    moe_string_view architecture = {"", 0};
    (void)moe_gguf_get_string(file->gguf, "general.architecture", &architecture, NULL);
    file->architecture = moe_metadata_copy_text(architecture);
    file->keys = moe_calloc(n_kvs, sizeof *file->keys);
    file->names = moe_calloc(n_tensors, sizeof *file->names);
    bool complete = file->architecture != NULL && file->keys != NULL && file->names != NULL;
    for (size_t i = 0; complete && i < n_kvs; i++) {
        file->keys[i] = moe_metadata_copy_text(moe_gguf_kv_at(file->gguf, i)->key);
        complete = file->keys[i] != NULL;
    }
    for (size_t i = 0; complete && i < n_tensors; i++) {
        file->names[i] = moe_metadata_copy_text(moe_gguf_tensor_at(file->gguf, i)->name);
        complete = file->names[i] != NULL;
    }
    return complete ? MOE_OK
                    : moe_fail(err, MOE_ERR_MEMORY, "out of memory for the names of %zu tensors",
                               n_tensors);
}

int moe_file_open(moe_file **out, const char *path, moe_error *err)
{
    if (out == NULL || path == NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "moe_file_open: out and path must not be NULL");
    }
    *out = NULL;
    moe_file *file = moe_calloc(1, sizeof *file);
    if (file == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory opening it", path);
    }
    int status = moe_model_open(&file->gguf, path, NULL, err);
    if (status == MOE_OK) {
        status = copy_names(file, err);
    }
    if (status != MOE_OK) {
        moe_file_close(&file);
        return status;
    }
    moe_file_summary *summary = &file->summary;
    summary->gguf_version = moe_gguf_version(file->gguf);
    summary->n_files = (uint32_t)moe_gguf_n_files(file->gguf);
    for (uint32_t i = 0; i < summary->n_files; i++) {
        summary->file_bytes += moe_gguf_file_at(file->gguf, i)->size;
    }
    summary->n_metadata = moe_gguf_n_kvs(file->gguf);
    summary->n_tensors = moe_gguf_n_tensors(file->gguf);
    summary->architecture = file->architecture;
    summary->family = "";
    summary->recurrence = "";
    status = check_runnable(file, err);
    if (status != MOE_OK) {
        moe_file_close(&file);
        return status;
    }
    *out = file;
    return MOE_OK;
}

void moe_file_close(moe_file **file_ptr)
{
    moe_file *file = file_ptr != NULL ? *file_ptr : NULL;
    if (file == NULL) {
        return;
    }
    for (size_t i = 0; file->keys != NULL && i < moe_gguf_n_kvs(file->gguf); i++) {
        free(file->keys[i]);
    }
    for (size_t i = 0; file->names != NULL && i < moe_gguf_n_tensors(file->gguf); i++) {
        free(file->names[i]);
    }
    free(file->keys);
    free(file->names);
    free(file->architecture);
    moe_gguf_close(&file->gguf);
    free(file);
    *file_ptr = NULL;
}

int moe_file_get_summary(const moe_file *file, moe_file_summary *summary)
{
    return file == NULL ? MOE_ERR_ARGUMENT
                        : moe_struct_give(&moe_kind_file_summary, summary, &file->summary, NULL);
}

int moe_file_get_metadata(const moe_file *file, uint64_t index, const char **key, char *type,
                          size_t type_size, char *value, size_t value_size)
{
    if (file == NULL || key == NULL || type == NULL || value == NULL ||
        index >= file->summary.n_metadata) {
        return MOE_ERR_ARGUMENT;
    }
    const moe_gguf_kv *kv = moe_gguf_kv_at(file->gguf, index);
    *key = file->keys[index];
    moe_metadata_type_text(kv, type, type_size);
    moe_metadata_value_text(kv, value, value_size);
    return MOE_OK;
}

int moe_file_get_metadata_use(const moe_file *file, uint64_t index, moe_metadata_use *use,
                              const char **why)
{
    static const moe_metadata_use uses[] = {
        [MOE_KEY_USE_NOT_OURS] = MOE_METADATA_OTHER,
        [MOE_KEY_USE_READ] = MOE_METADATA_READ,
        [MOE_KEY_USE_HARMLESS] = MOE_METADATA_HARMLESS,
        [MOE_KEY_USE_REFUSED] = MOE_METADATA_REFUSED,
        [MOE_KEY_USE_UNKNOWN] = MOE_METADATA_UNKNOWN,
    };
    const char *reason = "";
    if (file == NULL || use == NULL || index >= file->summary.n_metadata) {
        return MOE_ERR_ARGUMENT;
    }
    const moe_family *family = moe_family_find(file->architecture);
    *use = family == NULL ? MOE_METADATA_OTHER
                          : uses[moe_metadata_key_use(family, file->gguf,
                                                      moe_gguf_kv_at(file->gguf, index), &reason)];
    if (why != NULL) {
        *why = reason;
    }
    return MOE_OK;
}

int moe_file_get_tensor(const moe_file *file, uint64_t index, moe_file_tensor *tensor)
{
    if (file == NULL || index >= file->summary.n_tensors) {
        return MOE_ERR_ARGUMENT;
    }
    const moe_gguf_tensor *source = moe_gguf_tensor_at(file->gguf, index);
    moe_file_tensor found = {.name = file->names[index],
                             .type = moe_dtype_name(source->type),
                             .kind = kind_of(file->names[index]),
                             .n_dims = source->n_dims,
                             .n_bytes = source->size,
                             .offset = source->offset,
                             .file_index = source->file_index};
    memcpy(found.dims, source->dims, sizeof found.dims);
    return moe_struct_give(&moe_kind_file_tensor, tensor, &found, NULL);
}

static int print_program(const moe_file *file, uint32_t layer, char **text, moe_error *err)
{
    moe_model_config config;
    moe_tensor_map map;
    moe_program program;
    int status = moe_model_config_read(&config, file->gguf, err);
    if (status == MOE_OK && layer != UINT32_MAX && layer >= config.n_layer) {
        status = moe_fail(err, MOE_ERR_ARGUMENT, "layer %u: the model has layers 0 to %u", layer,
                          config.n_layer - 1);
    }
    if (status == MOE_OK) {
        status = moe_program_build(&program, &map, &config, file->gguf, err);
    }
    if (status == MOE_OK) {
        status = moe_program_print(&program, layer, text, err);
        moe_program_free(&program);
        moe_tensor_map_free(&map);
    }
    return status;
}

int moe_file_get_program(const moe_file *file, uint32_t layer, char **text, moe_error *err)
{
    if (file == NULL || text == NULL) {
        return moe_fail_null(err, "moe_file_get_program", "file or text");
    }
    *text = NULL;
    return file->summary.runnable
               ? print_program(file, layer, text, err)
               : moe_fail(err, MOE_ERR_UNSUPPORTED, "the engine cannot run this file: %s",
                          file->summary.why_not);
}

int moe_file_fingerprint(const moe_file *file, uint64_t *fingerprint, moe_error *err)
{
    if (file == NULL || fingerprint == NULL) {
        return moe_fail_null(err, "moe_file_fingerprint", "file or fingerprint");
    }
    moe_model_reader_options reading = {.gguf = file->gguf};
    return moe_model_fingerprint(&reading, fingerprint, err);
}
