/* SPDX-License-Identifier: MIT */
#include "runtime/families/families.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/families/families_missing.h"
#include "runtime/model/gguf_internal.h"

#define ADDRESS_OF(name) &moe_family_##name,

static const moe_family *const families[] = {MOE_FAMILIES(ADDRESS_OF)};

#define N_FAMILIES (sizeof families / sizeof families[0])

size_t moe_family_count(void)
{
    return N_FAMILIES;
}

const moe_family *moe_family_at(size_t index)
{
    return index < N_FAMILIES ? families[index] : NULL;
}

const moe_family *moe_family_find(const char *architecture)
{
    for (size_t i = 0; i < N_FAMILIES; i++) {
        if (strcmp(families[i]->architecture, architecture) == 0) {
            return families[i];
        }
    }
    return NULL;
}

/* Names as many families as a message has room for. */
static int fail_unknown(moe_string_view architecture, moe_error *err)
{
    char known[MOE_ERROR_MESSAGE_SIZE - MOE_GGUF_SHOWN - 96] = "";
    char shown[MOE_GGUF_SHOWN];
    size_t n = 0;
    for (size_t used = 0; n < moe_family_count(); n++, used = strlen(known)) {
        const char *name = moe_family_at(n)->architecture;
        if (used + strlen(name) + 2 >= sizeof known) {
            break;
        }
        snprintf(known + used, sizeof known - used, "%s%s", n == 0 ? "" : ", ", name);
    }
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "architecture '%s' is not supported; supported are %s and %zu more",
                    moe_gguf_show(architecture, shown), known, moe_family_count() - n);
}

static bool is_of_type(const moe_gguf *gguf, const char *type)
{
    moe_string_view of = {0};
    return moe_gguf_get_string(gguf, "general.type", &of, NULL) == MOE_OK && of.data != NULL &&
           of.size == strlen(type) && memcmp(of.data, type, of.size) == 0;
}

/* Whether the tensors are those of a dense model. */
static bool is_dense(const moe_gguf *gguf)
{
    static const char experts[] = "_exps";
    for (size_t i = 0; i < moe_gguf_n_tensors(gguf); i++) {
        const moe_string_view name = moe_gguf_tensor_at(gguf, i)->name;
        if (memmem(name.data, name.size, experts, sizeof experts - 1) != NULL) {
            return false;
        }
    }
    return moe_gguf_find_tensor(gguf, "blk.0.ffn_down.weight") != NULL;
}

/* Recognises files that are no model of their own, or no model of the kind that this engine runs,
 * and says what they are. MOE_OK: the file may be a model with experts. */
static int check_kind(const moe_gguf *gguf, const char *architecture, moe_error *err)
{
    if (strcmp(architecture, "clip") == 0 || is_of_type(gguf, "mmproj")) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "this is a projector of images (mmproj), not a model: open the model's own "
                        "file; only text is read");
    }
    if (is_of_type(gguf, "adapter")) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "this is an adapter (LoRA), not a model: merge it into its model's file");
    }
    if (strcmp(architecture, "imatrix") == 0 || is_of_type(gguf, "imatrix")) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "this is an importance matrix, for quantising a model, not a model");
    }
    if (moe_family_find(architecture) == NULL && moe_missing_family_find(architecture) == NULL &&
        is_dense(gguf)) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "this '%s' model has no experts, it is dense: only mixture-of-experts "
                        "models are supported; llama.cpp runs this one",
                        architecture);
    }
    return MOE_OK;
}

static int find_family(const moe_gguf *gguf, const moe_family **family, moe_error *err)
{
    char architecture[sizeof((moe_model_config *)NULL)->architecture];
    moe_string_view name = {0};
    MOE_TRY(moe_gguf_get_string(gguf, "general.architecture", &name, err));
    if (name.data == NULL) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "key 'general.architecture' is missing: this is not a model");
    }
    if (name.size >= sizeof architecture) {
        return fail_unknown(name, err);
    }
    memcpy(architecture, name.data, name.size);
    architecture[name.size] = '\0';
    if (strlen(architecture) != name.size) {
        return fail_unknown(name, err);
    }
    MOE_TRY(check_kind(gguf, architecture, err));
    *family = moe_family_find(architecture);
    const moe_missing_family *missing = moe_missing_family_find(architecture);
    if (*family == NULL && missing != NULL) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "architecture '%s' (key 'general.architecture'), %s, is not supported: it "
                        "needs %s",
                        missing->architecture, missing->name, missing->missing);
    }
    if (*family == NULL) {
        return fail_unknown(name, err);
    }
    return MOE_OK;
}

int moe_model_config_read(moe_model_config *config, const moe_gguf *gguf, moe_error *err)
{
    const moe_family *family = NULL;
    MOE_TRY(find_family(gguf, &family, err));
    return moe_model_config_read_as(config, family, gguf, err);
}
