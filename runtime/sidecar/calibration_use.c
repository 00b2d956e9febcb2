/* SPDX-License-Identifier: MIT */
/* Functions that use a calibration: compute the hotness of experts, check that needed tables are
 * there, and add counts from conversations. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/sidecar/calibration.h"

int moe_calibration_fail_missing(const char *what, const moe_engine_options *o, moe_error *err)
{
    const char *why = o->calibration != NULL && strcmp(o->calibration, "none") == 0
                          ? " (options.calibration is none)"
                      : o->n_metadata_overrides > 0
                          ? " (options.metadata_overrides make it another one)"
                          : "";
    return moe_fail(err, MOE_ERR_ARGUMENT,
                    "%s needs a calibration, and there is none for this model%s; make one: "
                    "moe-offload calibrate -m %s -f TEXT",
                    what, why, o->model_path);
}

int moe_calibration_need_tables(const moe_calibration *calibration, const char *model_path,
                                const char *what, moe_error *err)
{
    return moe_calibration_has_tables(calibration)
               ? MOE_OK
               : moe_fail(err, MOE_ERR_ARGUMENT,
                          "%s needs more than the hotness that conversations have left in the "
                          "sidecar; calibrate: moe-offload calibrate -m %s -f TEXT",
                          what, model_path);
}

void moe_calibration_learn(moe_calibration *c, const uint64_t *counts, uint64_t n_tokens)
{
    for (size_t i = 0; i < (size_t)c->shape.n_layer * c->shape.n_expert; i++) {
        c->counts[i] += counts[i];
    }
    c->n_tokens += n_tokens;
    c->n_learned += n_tokens;
}

int moe_calibration_learn_drafts(moe_calibration *c, const moe_draft_habits *drafts, moe_error *err)
{
    if (c->drafts == NULL) {
        c->drafts = moe_calloc(1, sizeof *c->drafts);
    }
    if (c->drafts == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for what drafts have shown");
    }
    *c->drafts = *drafts;
    return MOE_OK;
}

char *moe_calibration_default_path(const char *model_path)
{
    static const char extension[] = ".gguf", suffix[] = ".moe-cal.gguf";
    size_t size = strlen(model_path);
    size_t tail = sizeof extension - 1;
    size_t stem =
        size > tail && strcmp(model_path + size - tail, extension) == 0 ? size - tail : size;
    char *path = moe_calloc(stem + sizeof suffix, 1);
    if (path != NULL) {
        memcpy(path, model_path, stem);
        memcpy(path + stem, suffix, sizeof suffix);
    }
    return path;
}

float *moe_calibration_hotness(const moe_calibration *c)
{
    uint32_t n = c->shape.n_expert;
    float *hotness = moe_calloc((size_t)c->shape.n_layer * n, sizeof *hotness);
    for (uint32_t l = 0; l < c->shape.n_layer && hotness != NULL; l++) {
        double sum = 0.0;
        for (uint32_t e = 0; e < n; e++) {
            sum += (double)c->counts[(size_t)l * n + e];
        }
        for (uint32_t e = 0; e < n && sum > 0.0; e++) {
            size_t key = (size_t)l * n + e;
            hotness[key] = (float)((double)c->counts[key] / sum);
        }
    }
    return hotness;
}

void moe_calibration_hottest(const moe_calibration *c, uint32_t layer, uint32_t *experts)
{
    const uint64_t *counts = c->counts + (size_t)layer * c->shape.n_expert;
    for (uint32_t e = 0; e < c->shape.n_expert; e++) {
        uint32_t at = e;
        for (; at > 0 && counts[experts[at - 1]] < counts[e]; at--) {
            experts[at] = experts[at - 1];
        }
        experts[at] = e;
    }
}

int moe_calibration_hottest_of_layers(const moe_calibration *calibration, const moe_model_config *c,
                                      uint32_t n_kept, uint32_t **keys, uint32_t *n, moe_error *err)
{
    n_kept = n_kept < c->n_expert ? n_kept : c->n_expert;
    uint32_t *order = moe_calloc(c->n_expert, sizeof *order);
    *keys = moe_calloc((size_t)c->n_layer * n_kept, sizeof **keys);
    *n = 0;
    if (order == NULL || *keys == NULL) {
        free(order);
        free(*keys);
        *keys = NULL;
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the list of hottest experts");
    }
    for (uint32_t l = 0; l < c->n_layer; l++) {
        if (moe_layer_has_experts(c, l)) {
            moe_calibration_hottest(calibration, l, order);
            for (uint32_t i = 0; i < n_kept; i++) {
                (*keys)[(*n)++] = l * c->n_expert + order[i];
            }
        }
    }
    free(order);
    return MOE_OK;
}
