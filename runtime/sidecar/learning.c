/* SPDX-License-Identifier: MIT */
/* Counts the experts that tokens were routed to. An observer of routing counts each pass
 * separately, and adds its counts to the total only if the pass succeeds. */
#include "runtime/sidecar/learning.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/pass/route_observer.h"
#include "runtime/pass/runner.h"

struct moe_learning {
    moe_runner *runner;
    moe_route_observer observer;
    size_t n_keys;
    uint64_t *counts;      /* [n_layer * n_expert] of succeeded passes */
    uint64_t *pass_counts; /* likewise, of the current pass */
    uint64_t n_tokens;     /* tokens in counts */
    uint32_t n_rows;       /* of the current pass */
    uint32_t last_layer;   /* the last layer seen in it */
};

static void forget_pass(moe_learning *l)
{
    memset(l->pass_counts, 0, l->n_keys * sizeof *l->pass_counts);
    l->n_rows = 0;
    l->last_layer = 0;
}

static int on_route(void *context, const moe_route_event *event, moe_error *err)
{
    moe_learning *l = context;
    (void)err;
    if (event->layer <= l->last_layer) {
        forget_pass(l); /* a new pass begins: drops the counts of an earlier one that failed */
    }
    l->last_layer = event->layer;
    l->n_rows = event->n_rows;
    uint64_t *counts = l->pass_counts + (size_t)event->layer * event->n_expert;
    for (size_t i = 0; i < (size_t)event->n_rows * event->n_used; i++) {
        if (event->experts[i] < event->n_expert) { /* lossy modes drop some */
            counts[event->experts[i]]++;
        }
    }
    return MOE_OK;
}

static int on_pass_end(void *context, uint64_t pass, moe_error *err)
{
    moe_learning *l = context;
    (void)pass;
    (void)err;
    for (size_t i = 0; i < l->n_keys; i++) {
        l->counts[i] += l->pass_counts[i];
    }
    l->n_tokens += l->n_rows;
    forget_pass(l);
    return MOE_OK;
}

void moe_learning_start_over(moe_learning *l)
{
    memset(l->counts, 0, l->n_keys * sizeof *l->counts);
    l->n_tokens = 0;
    forget_pass(l);
}

int moe_learning_open(moe_learning **out, moe_runner *runner, moe_error *err)
{
    moe_learning *l = moe_calloc(1, sizeof *l);
    *out = NULL;
    if (l != NULL) {
        l->runner = runner;
        l->n_keys = (size_t)runner->config->n_layer * runner->config->n_expert;
        l->counts = moe_calloc(l->n_keys, sizeof *l->counts);
        l->pass_counts = moe_calloc(l->n_keys, sizeof *l->pass_counts);
    }
    if (l == NULL || l->counts == NULL || l->pass_counts == NULL) {
        moe_learning_free(&l);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to count the experts' use");
    }
    l->observer =
        (moe_route_observer){.on_route = on_route, .on_pass_end = on_pass_end, .context = l};
    int status = moe_runner_attach_observer(runner, &l->observer, err);
    if (status != MOE_OK) {
        moe_learning_free(&l);
        return status;
    }
    *out = l;
    return MOE_OK;
}

void moe_learning_free(moe_learning **learning)
{
    moe_learning *l = *learning;
    if (l != NULL) {
        moe_runner_detach_observer(l->runner, &l->observer);
        free(l->counts);
        free(l->pass_counts);
        free(l);
    }
    *learning = NULL;
}

/* Loads the existing sidecar completely, with its Gram matrices, because it will be written
 * again. */
static int load_sidecar(const moe_sidecar_model *model, const char *path, moe_calibration **out,
                        moe_error *err)
{
    moe_calibration_shape shape = moe_sidecar_shape(model);
    return access(path, F_OK) == 0
               ? moe_calibration_load(out, path, &shape, true, model->reading, err)
               : moe_calibration_create(out, &shape, "", MOE_CALIBRATION_HOTNESS, err);
}

int moe_learning_save(moe_learning *l, const moe_sidecar_model *model,
                      const moe_draft_habits *drafts, const char *path, uint64_t *n_tokens,
                      moe_error *err)
{
    if (l == NULL || l->n_tokens == 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "nothing has been evaluated that could be learnt from");
    }
    moe_calibration *sidecar = NULL;
    int status = load_sidecar(model, path, &sidecar, err);
    if (status == MOE_OK) {
        moe_calibration_learn(sidecar, l->counts, l->n_tokens);
        status = drafts != NULL ? moe_calibration_learn_drafts(sidecar, drafts, err) : MOE_OK;
    }
    status = status == MOE_OK ? moe_calibration_save(sidecar, path, err) : status;
    moe_calibration_free(&sidecar);
    if (status == MOE_OK) {
        *n_tokens = l->n_tokens;
        moe_learning_start_over(l);
    }
    return status;
}
