/* SPDX-License-Identifier: MIT */
#include "tests/fuzz/fuzz_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/families/families.h"
#include "runtime/program/program.h"

void fuzz_expect(int promise)
{
    if (!promise) {
        abort();
    }
}

const char *fuzz_file_write(fuzz_file *file, const void *data, size_t size)
{
    if (file->fd == 0) {
        file->fd = memfd_create("fuzz", MFD_CLOEXEC);
        fuzz_expect(file->fd > 0);
        snprintf(file->path, sizeof file->path, "/proc/self/fd/%d", file->fd);
    }
    fuzz_expect(ftruncate(file->fd, 0) == 0);
    fuzz_expect(pwrite(file->fd, data, size, 0) == (ssize_t)size);
    return file->path;
}

static void check_refs(const moe_gguf *gguf, const moe_tensor_ref *refs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (refs[i].size == 0) {
            continue;
        }
        fuzz_expect(refs[i].file_index < moe_gguf_n_files(gguf));
        uint64_t file_size = moe_gguf_file_at(gguf, refs[i].file_index)->size;
        fuzz_expect(moe_dtype_info_of(refs[i].type) != NULL);
        fuzz_expect(refs[i].offset <= file_size && refs[i].size <= file_size - refs[i].offset);
        fuzz_expect(refs[i].size ==
                    refs[i].n_out * moe_dtype_row_bytes(refs[i].type, refs[i].n_in));
    }
}

static void check_map(const moe_gguf *gguf, const moe_tensor_map *map)
{
    check_refs(gguf, &map->token_embedding, 1);
    check_refs(gguf, &map->output, 1);
    for (uint32_t l = 0; l < map->n_layer; l++) {
        const moe_layer_map *layer = &map->layers[l];
        check_refs(gguf, layer->tensors, MOE_LAYER_TENSOR_COUNT);
        for (uint32_t e = 0; layer->experts != NULL && e < map->n_expert; e++) {
            fuzz_expect(moe_expert_ref_bytes(&layer->experts[e]) > 0);
            check_refs(gguf, layer->experts[e].parts, MOE_EXPERT_PARTS);
        }
    }
}

static void check_config(const moe_model_config *config)
{
    fuzz_expect(config->n_head_kv > 0 && config->n_head % config->n_head_kv == 0);
    fuzz_expect(config->n_rot % 2 == 0 && config->n_rot <= config->head_dim_k);
    fuzz_expect(config->n_expert_used <= config->n_expert &&
                config->n_expert % config->n_group == 0);
    fuzz_expect(config->n_dense_lead < config->n_layer);
    float *frequencies = malloc(config->n_rot / 2 * sizeof *frequencies);
    if (frequencies != NULL) {
        moe_rope_frequencies(config, NULL, frequencies);
        for (uint32_t i = 0; i < config->n_rot / 2; i++) {
            fuzz_expect(frequencies[i] >= 0 && frequencies[i] <= 1);
        }
    }
    free(frequencies);
}

static void read_everything(const moe_gguf *gguf)
{
    for (size_t i = 0; i < moe_gguf_n_kvs(gguf); i++) {
        const moe_gguf_kv *kv = moe_gguf_kv_at(gguf, i);
        int64_t integer;
        float number;
        uint64_t last = kv->n_elements == 0 ? 0 : kv->n_elements - 1;
        (void)moe_gguf_array_i64(kv, last, &integer);
        (void)moe_gguf_array_f32(kv, last, &number);
    }
    for (size_t i = 0; i < moe_gguf_n_tensors(gguf); i++) {
        char name[256];
        const moe_gguf_tensor *tensor = moe_gguf_tensor_at(gguf, i);
        fuzz_expect(tensor->file_index < moe_gguf_n_files(gguf));
        memcpy(name, tensor->name.data, tensor->name.size);
        name[tensor->name.size] = '\0';
        fuzz_expect(strlen(name) != tensor->name.size ||
                    moe_gguf_find_tensor(gguf, name) == tensor);
    }
}

void fuzz_check_model(const moe_gguf *gguf)
{
    moe_model_config config;
    moe_tensor_map map = {0};
    moe_error err = {""};
    read_everything(gguf);
    int status = moe_model_config_read(&config, gguf, &err);
    if (status == MOE_OK) {
        check_config(&config);
        status = moe_tensor_map_build(&map, &config, gguf, &err);
    }
    if (status == MOE_OK) {
        check_map(gguf, &map);
    }
    fuzz_expect(status == MOE_OK || err.message[0] != '\0');
    moe_tensor_map_free(&map);
}
