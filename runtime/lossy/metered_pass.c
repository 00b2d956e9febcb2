/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/lossy/lossy.h"
#include "runtime/pass/runner.h"

#define MOST_COMPARED 64u /* rows of a pass that are compared; later ones are not */

static int reserve_kept(moe_lossy *l, size_t n_floats, moe_error *err)
{
    if (n_floats <= l->kept_capacity) {
        return MOE_OK;
    }
    float *bigger = moe_realloc_array(l->kept, n_floats, sizeof *bigger);
    if (bigger == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for comparing with the exact pass");
    }
    l->kept = bigger;
    l->kept_capacity = n_floats;
    return MOE_OK;
}

typedef struct comparison {
    const moe_pass *pass;
    moe_lossy *lossy;
    uint32_t n_vocab;
    uint32_t n_kept; /* first rows of the lossy pass whose logits are kept */
    uint32_t n_seen; /* rows of the exact pass seen so far */
} comparison;

static bool keep_lossy(uint32_t row, const float *hidden, const float *logits, void *user)
{
    comparison *c = user;
    if (c->n_kept < MOST_COMPARED) {
        memcpy(c->lossy->kept + (size_t)c->n_kept++ * c->n_vocab, logits,
               c->n_vocab * sizeof *logits);
    }
    return c->pass->on_logits(row, hidden, logits, c->pass->user);
}

static bool compare_exact(uint32_t row, const float *hidden, const float *logits, void *user)
{
    comparison *c = user;
    (void)row;
    (void)hidden;
    const float *lossy = c->lossy->kept + (size_t)c->n_seen++ * c->n_vocab;
    moe_quality_meter_add(&c->lossy->meter, logits, lossy, c->n_vocab);
    return c->n_seen < c->n_kept;
}

/* Places the exact pass's keys and values beside the lossy ones, as another branch of the tree:
 * each of its n rows is stored n places further on, and so are its ancestors in the pass. */
static void place_beside(const moe_pass *pass, moe_kv_row *rows, uint32_t *paths)
{
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        const moe_kv_row *from = &pass->kv_rows[r];
        uint32_t depth = pass->depths[r];
        uint32_t base = from->position - depth;
        uint32_t n = 0; /* rows of this timeline */
        for (uint32_t k = 0; k < pass->n_rows; k++) {
            n += pass->kv_rows[k].pages == from->pages;
        }
        for (uint32_t d = 0; d <= depth; d++) {
            paths[d] = moe_kv_row_stored(from, base + d) + n;
        }
        rows[r] = (moe_kv_row){.pages = from->pages,
                               .position = from->position,
                               .stored = from->stored + n,
                               .path = paths,
                               .path_first = base};
        paths += depth + 1;
    }
}

static int run_exact_beside(moe_runner *runner, const moe_pass *pass, comparison *c, moe_error *err)
{
    size_t n_path = 0;
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        n_path += pass->depths[r] + 1;
    }
    moe_kv_row *rows = moe_calloc(pass->n_rows, sizeof *rows);
    uint32_t *paths = moe_calloc(n_path, sizeof *paths);
    moe_state_run *runs = moe_calloc(pass->n_state_runs + 1, sizeof *runs);
    int status = MOE_ERR_MEMORY;
    if (rows != NULL && paths != NULL && runs != NULL) {
        for (uint32_t i = 0; i < pass->n_state_runs; i++) {
            runs[i] = pass->state_runs[i];
            runs[i].to = NULL; /* the timeline continues from the lossy pass */
            runs[i].log = NULL;
        }
        place_beside(pass, rows, paths);
        moe_pass exact = *pass;
        exact.kind = MOE_PASS_EXACT;
        exact.kv_rows = rows;
        exact.state_runs = runs;
        exact.on_logits = compare_exact;
        exact.user = c;
        status = moe_pass_run(runner, &exact, err);
    } else {
        moe_fail(err, status, "no memory for comparing with the exact pass");
    }
    free(rows);
    free(paths);
    free(runs);
    return status;
}

int moe_lossy_run(moe_lossy *l, const moe_pass *pass, bool must_compare, moe_error *err)
{
    moe_runner *runner = l->parts.runner;
    if (!moe_quality_meter_next(&l->meter) && !must_compare) {
        return moe_pass_run(runner, pass, err);
    }
    uint32_t n_compared = pass->n_logit_rows < MOST_COMPARED ? pass->n_logit_rows : MOST_COMPARED;
    comparison c = {.pass = pass, .lossy = l, .n_vocab = runner->config->n_vocab};
    int status = reserve_kept(l, (size_t)n_compared * c.n_vocab, err);
    moe_pass lossy = *pass;
    lossy.on_logits = keep_lossy;
    lossy.user = &c;
    if (status == MOE_OK) {
        status = moe_pass_run(runner, &lossy, err);
    }
    return status != MOE_OK || c.n_kept == 0 ? status : run_exact_beside(runner, pass, &c, err);
}
