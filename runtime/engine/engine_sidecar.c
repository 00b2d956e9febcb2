/* SPDX-License-Identifier: MIT */
/* How an engine uses its model's sidecar: reads it when the engine opens, fills expert slots by
 * it ahead of demand, and lets calibration and learning write it. The work itself is done in
 * runtime/sidecar. */
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/engine/option_set.h"
#include "runtime/sidecar/calibration_run.h"
#include "runtime/sidecar/warm_start.h"

static moe_sidecar_model model_of(moe_engine *engine)
{
    return (moe_sidecar_model){.gguf = engine->gguf,
                               .map = &engine->map,
                               .config = &engine->config,
                               .identity = &engine->identity,
                               .reading = &engine->reading,
                               .book = engine->book.parts != NULL ? &engine->book : NULL};
}

int moe_engine_open_sidecar(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    moe_sidecar_model model = model_of(engine);
    int status =
        moe_sidecar_open(&engine->sidecar, &model, o->calibration, engine->log, engine->user, err);
    if (status == MOE_OK && engine->sidecar.calibration == NULL &&
        o->lab->offload == MOE_OFFLOAD_CACHING) {
        return moe_calibration_fail_missing("options.lab.offload caching", o, err);
    }
    const moe_error why = *err;
    return status != MOE_ERR_MISMATCH || o->n_metadata_overrides == 0
               ? status
               : moe_fail(err, status,
                          "%.400s; options.metadata_overrides make it another model than that of "
                          "options.calibration",
                          why.message);
}

int moe_engine_open_book(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    const moe_checksum_book_options options = {.map = &engine->map,
                                               .calibration = engine->sidecar.calibration,
                                               .reading = &engine->reading,
                                               .named = o->checksums,
                                               .log = engine->log,
                                               .user = engine->user};
    return moe_checksum_book_open(&engine->book, &options, err);
}

int moe_engine_make_checksums(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    /* Reading all experts makes their checksums, too. */
    bool wanted = o->idle_checksums == MOE_SWITCH_ON ||
                  (o->idle_checksums == MOE_SWITCH_AUTO && engine->book.path != NULL &&
                   !engine->reads_all && o->read_file == NULL);
    return wanted ? moe_idle_checksums_start(&engine->idle_checksums, &engine->book,
                                             &engine->reading, err)
                  : MOE_OK;
}

/* ---- Warm start ---- */

int moe_engine_open_warm_start(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    bool keeps = engine->offload == MOE_OFFLOAD_AUTO;
    if (o->warm_start == MOE_SWITCH_ON && !keeps) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "offload mode %s keeps no expert that is not in use, so a warm start "
                        "cannot act",
                        moe_offload_name(o->lab->offload));
    }
    if (o->warm_start == MOE_SWITCH_ON && engine->sidecar.hotness == NULL) {
        return moe_calibration_fail_missing("options.warm_start", o, err);
    }
    /* With costs in bytes, and with replayed routing, runs must repeat exactly. Background reads
     * would end at other times in each run. */
    bool repeats = moe_speculation_by_bytes(o) || o->lab->route_trace != NULL;
    engine->warms = o->warm_start == MOE_SWITCH_ON || (o->warm_start == MOE_SWITCH_AUTO && keeps &&
                                                       engine->sidecar.hotness != NULL && !repeats);
    return MOE_OK;
}

/* All experts are read in the background only if prefetch is not off. Otherwise only the experts
 * that the sidecar lists as hot are read before they are needed. */
void moe_engine_choose_reads(moe_engine *engine, const moe_engine_options *o)
{
    bool repeats = moe_speculation_by_bytes(o) || o->lab->route_trace != NULL;
    engine->reads_all = engine->offload == MOE_OFFLOAD_AUTO && engine->device->link == NULL &&
                        o->warm_start != MOE_SWITCH_OFF && o->prefetch != MOE_SWITCH_OFF &&
                        !repeats && engine->plan.expert_slots >= engine->plan.experts;
}

void moe_engine_warm(moe_engine *engine)
{
    if (engine != NULL && (engine->warms || engine->reads_all)) {
        moe_warm_start(&engine->runner, engine->reads_all ? NULL : engine->sidecar.hotness);
    }
}

/* Loads all experts for a device that replays whole tokens (recorded_pass.h), because it does so
 * only while no expert is missing. */
int moe_engine_fill(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    bool all_fit = engine->plan.expert_slots >= engine->plan.experts;
    if (!all_fit || engine->device->recording == NULL || engine->offload != MOE_OFFLOAD_AUTO ||
        o->warm_start == MOE_SWITCH_OFF) {
        return MOE_OK;
    }
    return moe_warm_start_all(&engine->runner, engine->sidecar.hotness, o->progress, o->user, err);
}

/* ---- Calibration ---- */

void moe_calibrate_options_init_sized(moe_calibrate_options *options, size_t struct_size)
{
    const moe_calibrate_options defaults = {.struct_size = sizeof defaults};
    moe_struct_init(&moe_kind_calibrate_options, options, struct_size, &defaults);
}

static int run_window(moe_engine *engine, const int32_t *tokens, uint32_t n, moe_error *err)
{
    moe_session_options options;
    moe_session_options_init(&options);
    options.evaluate_only = true;
    moe_session *session = NULL;
    int status = moe_session_create(&session, engine, &options, err);
    if (status == MOE_OK) {
        status = moe_session_feed(session, tokens, n, err);
    }
    while (status == MOE_OK && moe_session_n_pending(session) > 0) {
        status = moe_step(engine, &session, 1, err);
    }
    moe_session_close(&session);
    return status;
}

static int run_text(moe_engine *engine, moe_calibration_run *run, moe_error *err)
{
    int status = MOE_OK;
    uint32_t n = 1;
    engine->cancel = moe_calibration_run_cancel(run);
    while (status == MOE_OK && n > 0) {
        const int32_t *tokens = moe_calibration_run_next_window(run, &n);
        status = n > 0 ? run_window(engine, tokens, n, err) : MOE_OK;
        if (status == MOE_OK && n > 0) {
            status = moe_calibration_run_counted(run, n, err);
        }
    }
    engine->cancel = (moe_wait_cancel){NULL, NULL};
    return status;
}

int moe_calibrate(moe_engine *engine, const moe_calibrate_options *options, moe_error *err)
{
    if (engine == NULL) {
        return moe_fail_null(err, "moe_calibrate", "engine");
    }
    moe_calibrate_options o = {0};
    int status = moe_engine_need_model(engine, "a calibration", err);
    if (status == MOE_OK) {
        status = moe_struct_take(&moe_kind_calibrate_options, &o, options, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    moe_calibration_run *run;
    moe_calibration_parts parts = {.model = model_of(engine),
                                   .team = engine->team,
                                   .runner = &engine->runner,
                                   .context = engine->context,
                                   .prefill_chunk = engine->prefill_chunk};
    status = moe_calibration_run_open(&run, &parts, &o, err);
    if (status == MOE_OK) {
        status = run_text(engine, run, err);
    }
    if (status == MOE_OK) {
        status = moe_calibration_run_finish(run, err);
    }
    return moe_calibration_run_close(&run, status, err);
}

/* ---- Learning ---- */

int moe_learn_begin(moe_engine *engine, moe_error *err)
{
    if (engine == NULL) {
        return moe_fail_null(err, "moe_learn_begin", "engine");
    }
    MOE_TRY(moe_engine_need_model(engine, "learning", err));
    if (engine->learning != NULL) {
        moe_learning_start_over(engine->learning);
        return MOE_OK;
    }
    return moe_learning_open(&engine->learning, &engine->runner, err);
}

int moe_learn_save(moe_engine *engine, const char *path, uint64_t *n_tokens, moe_error *err)
{
    if (engine == NULL) {
        return moe_fail_null(err, "moe_learn_save", "engine");
    }
    uint64_t ignored = 0;
    n_tokens = n_tokens != NULL ? n_tokens : &ignored;
    *n_tokens = 0;
    moe_sidecar_model model = model_of(engine);
    moe_draft_habits drafts;
    bool drafted = moe_speculation_get_habits(engine->speculation, &drafts);
    return moe_learning_save(engine->learning, &model, drafted ? &drafts : NULL,
                             path != NULL ? path : engine->sidecar.path, n_tokens, err);
}
