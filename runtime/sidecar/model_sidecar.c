/* SPDX-License-Identifier: MIT */
#include "runtime/sidecar/model_sidecar.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/model_tensors.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/sidecar/model_parts.h"

moe_calibration_shape moe_sidecar_shape(const moe_sidecar_model *model)
{
    const moe_model_config *c = model->config;
    return (moe_calibration_shape){.fingerprint = model->identity->fingerprint,
                                   .n_layer = c->n_layer,
                                   .n_expert = c->n_expert,
                                   .n_expert_used = c->n_expert_used,
                                   .n_embd = c->n_embd};
}

/* Called when the sidecar is not the model's: returns an error that names a damaged tensor if only
 * some of the model's bytes have changed since, or MOE_OK if it is another model. */
static int check_damage(const moe_sidecar_model *model, const char *path, moe_error *err)
{
    moe_calibration_shape shape = moe_sidecar_shape(model);
    moe_calibration *c = NULL;
    size_t tensor;
    shape.fingerprint = 0;
    int status = MOE_OK;
    if (moe_calibration_load(&c, path, &shape, false, model->reading, NULL) == MOE_OK &&
        moe_calibration_tells_damage(c, model->identity, &tensor)) {
        status = moe_fail_damaged_tensor(err, model->gguf, tensor);
    }
    moe_calibration_free(&c);
    return status;
}

/* Loads the sidecar. On MOE_ERR_MISMATCH checks whether the model is damaged. */
static int load(moe_sidecar *sidecar, const moe_sidecar_model *model, const char *path,
                bool *is_damaged, moe_error *err)
{
    moe_calibration_shape shape = moe_sidecar_shape(model);
    int status =
        moe_calibration_load(&sidecar->calibration, path, &shape, false, model->reading, err);
    int damage = status == MOE_ERR_MISMATCH ? check_damage(model, path, err) : MOE_OK;
    *is_damaged = damage != MOE_OK;
    return *is_damaged ? damage : status;
}

/* Loads the sidecar beside the model. The user has not named it, so if it is stale or damaged, it
 * is ignored and the log says so. */
static int load_default(moe_sidecar *sidecar, const moe_sidecar_model *model, moe_log_fn log,
                        void *user, moe_error *err)
{
    moe_error why_not;
    bool is_damaged = false;
    int status = access(sidecar->path, F_OK) == 0
                     ? load(sidecar, model, sidecar->path, &is_damaged, &why_not)
                     : MOE_OK;
    if (is_damaged || status == MOE_ERR_CANCELLED) {
        return moe_fail(err, status, "%s", why_not.message);
    }
    if (status != MOE_OK && log != NULL) {
        log(why_not.message, user);
    }
    return MOE_OK;
}

int moe_sidecar_open(moe_sidecar *sidecar, const moe_sidecar_model *model, const char *named,
                     moe_log_fn log, void *user, moe_error *err)
{
    bool is_damaged;
    bool none = named != NULL && strcmp(named, "none") == 0;
    *sidecar = (moe_sidecar){
        .path = named != NULL && !none
                    ? moe_strdup(named)
                    : moe_calibration_default_path(moe_gguf_file_at(model->gguf, 0)->path)};
    if (sidecar->path == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the calibration's path");
    }
    if (named == NULL) {
        MOE_TRY(load_default(sidecar, model, log, user, err));
    } else if (!none) {
        MOE_TRY(load(sidecar, model, named, &is_damaged, err));
    }
    if (sidecar->calibration != NULL) {
        sidecar->hotness = moe_calibration_hotness(sidecar->calibration);
        if (sidecar->hotness == NULL) {
            return moe_fail(err, MOE_ERR_MEMORY, "no memory for the experts' hotness");
        }
    }
    return MOE_OK;
}

void moe_sidecar_close(moe_sidecar *sidecar)
{
    moe_calibration_free(&sidecar->calibration);
    free(sidecar->hotness);
    free(sidecar->path);
    *sidecar = (moe_sidecar){0};
}
