/* SPDX-License-Identifier: MIT */
/* Loads a model's sidecar into the engine. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine_state.h"
#include "runtime/engine/model_parts.h"
#include "offload/model_tensors.h"

moe_calibration_shape moe_engine_calibration_shape(const moe_engine *engine)
{
    const moe_model_config *c = &engine->config;
    return (moe_calibration_shape){.fingerprint = engine->fingerprint,
                                   .n_layer = c->n_layer,
                                   .n_expert = c->n_expert,
                                   .n_expert_used = c->n_expert_used,
                                   .n_embd = c->n_embd};
}

/* Called when the calibration does not fit: has the model been damaged since, or is it another one?
 * MOE_OK: another one. */
static int tell_damage(const moe_engine *engine, const char *path, moe_error *err)
{
    moe_calibration_shape shape = moe_engine_calibration_shape(engine);
    moe_calibration *c = NULL;
    size_t tensor;
    shape.fingerprint = 0;
    int status = MOE_OK;
    if (moe_calibration_load(&c, path, &shape, false, &engine->reading, NULL) == MOE_OK &&
        moe_calibration_tells_damage(c, &engine->identity, &tensor)) {
        status = moe_fail_damaged_tensor(err, engine->gguf, tensor);
    }
    moe_calibration_free(&c);
    return status;
}

/* MOE_ERR_MISMATCH may mean a damaged model. */
static int load_sidecar(moe_engine *engine, const char *path, bool *is_damaged, moe_error *err)
{
    moe_calibration_shape shape = moe_engine_calibration_shape(engine);
    int status =
        moe_calibration_load(&engine->calibration, path, &shape, false, &engine->reading, err);
    int damage = status == MOE_ERR_MISMATCH ? tell_damage(engine, path, err) : MOE_OK;
    *is_damaged = damage != MOE_OK;
    return *is_damaged ? damage : status;
}

/* A sidecar that the options do not name may be stale or damaged: it is then ignored, and the log
 * says so. */
static int load_default(moe_engine *engine, moe_error *err)
{
    const char *path = engine->sidecar_path;
    moe_error why_not;
    bool is_damaged = false;
    int status =
        access(path, F_OK) == 0 ? load_sidecar(engine, path, &is_damaged, &why_not) : MOE_OK;
    if (is_damaged || status == MOE_ERR_CANCELLED) {
        return moe_fail(err, status, "%s", why_not.message);
    }
    if (status != MOE_OK && engine->log != NULL) {
        engine->log(why_not.message, engine->user);
    }
    return MOE_OK;
}

int moe_engine_open_calibration(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    bool is_damaged;
    bool named = o->calibration != NULL && strcmp(o->calibration, "none") != 0;
    int status = MOE_OK;
    engine->sidecar_path =
        named ? moe_strdup(o->calibration)
              : moe_calibration_default_path(moe_gguf_file_at(engine->gguf, 0)->path);
    if (engine->sidecar_path == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the calibration's path");
    }
    if (o->calibration == NULL) {
        status = load_default(engine, err);
    } else if (named) {
        status = load_sidecar(engine, o->calibration, &is_damaged, err);
    }
    if (status == MOE_OK && engine->calibration == NULL && o->lab->offload == MOE_OFFLOAD_CACHING) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "offload mode caching keeps the experts that a calibration found hottest, "
                        "and there is none for this model; make one: moe-offload calibrate -m %s "
                        "-f TEXT",
                        o->model_path);
    }
    if (status == MOE_OK && engine->calibration != NULL) {
        engine->hotness = moe_calibration_hotness(engine->calibration);
        if (engine->hotness == NULL) {
            return moe_fail(err, MOE_ERR_MEMORY, "no memory for the experts' hotness");
        }
    }
    return status;
}
