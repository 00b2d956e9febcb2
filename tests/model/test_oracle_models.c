/* SPDX-License-Identifier: MIT */
/* Every oracle model opens, and its parts add up to the file. Argument: the oracle folder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/families/families.h"
#include "runtime/program/program.h"

static const char *oracle_folder;

static void open_one(const char *path)
{
    moe_error err = {""};
    moe_gguf *gguf = NULL;
    moe_model_config config;
    moe_tensor_map map;
    uint64_t file_bytes = 0;
    uint64_t n_elements = 0;
    if (moe_gguf_open(&gguf, path, &err) != MOE_OK ||
        moe_model_config_read(&config, gguf, &err) != MOE_OK ||
        moe_tensor_map_build(&map, &config, gguf, &err) != MOE_OK) {
        fail_msg("%s: %s", path, err.message);
    }
    for (size_t i = 0; i < moe_gguf_n_tensors(gguf); i++) {
        const moe_gguf_tensor *tensor = moe_gguf_tensor_at(gguf, i);
        char name[64] = "";
        unsigned layer = 0;
        memcpy(name, tensor->name.data, tensor->name.size < 63 ? tensor->name.size : 63);
        bool drafts = sscanf(name, "blk.%u.", &layer) == 1 && layer >= config.n_layer;
        const char *kind = strrchr(name, '.');
        if (drafts) {
            continue; /* known, and not run */
        }
        if (strcmp(config.architecture, "gemma4") != 0 && kind != NULL &&
            (strcmp(kind, ".scale") == 0 || strcmp(kind, ".input_scale") == 0)) {
            continue; /* read beside the weights */
        }
        file_bytes += tensor->size;
        n_elements += tensor->dims[0] * tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
    }
    assert_int_equal(map.resident_bytes + map.expert_bytes + map.ngrams.size, file_bytes);
    assert_int_equal(map.n_parameters, n_elements);
    assert_true(map.n_parameters_active < map.n_parameters);
    moe_tensor_map_free(&map);
    moe_gguf_close(&gguf);
}

static void test_every_oracle_opens(void **state)
{
    (void)state;
    DIR *folder = opendir(oracle_folder);
    assert_non_null(folder);
    int n_models = 0;
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s/model.gguf", oracle_folder, entry->d_name);
        if (access(path, R_OK) == 0) {
            open_one(path);
            n_models++;
        }
    }
    closedir(folder);
    assert_true(n_models >= 50);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s ORACLE_FOLDER\n", argv[0]);
        return 2;
    }
    oracle_folder = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_oracle_opens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
