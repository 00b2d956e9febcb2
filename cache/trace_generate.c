/* SPDX-License-Identifier: MIT */
/* Generates synthetic traces. Each expert's logit is a sum of Gaussian parts: one that never
 * changes (popularity), one that drifts (the text's subject), one that changes within a few tokens,
 * and noise. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cache/trace_rows.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"

/* ---- Presets ---- */

/* The coefficients come from published fits to traces of these models. The share of noise was
 * chosen here so that consecutive tokens share as many experts as reported (README.md has the
 * resulting figures). */
#define FIT_OLMOE                                                                                  \
    .popular = 0.42, .slow = 0.03, .slow_rho = 0.941, .fast = 0.70, .fast_rho = 0.88, .noise = 0.55
#define FIT_512                                                                                    \
    .popular = 0.31, .slow = 0.59, .slow_rho = 0.997, .fast = 0.81, .fast_rho = 0.67, .noise = 0.5

static const struct {
    const char *name;
    moe_trace_generator generator;
} presets[] = {
    {"olmoe", {.n_layer = 16, .n_expert = 64, .n_expert_used = 8, FIT_OLMOE}},
    {"qwen3",
     {.n_layer = 48,
      .n_expert = 128,
      .n_expert_used = 8,
      .popular = 0.72,
      .slow = 0.69,
      .slow_rho = 0.993,
      .fast = 0.53,
      .fast_rho = 0.58,
      .noise = 0.5}},
    {"512", {.n_layer = 48, .n_expert = 512, .n_expert_used = 10, FIT_512}},
    /* No fits: the geometry of these models, with the coefficients of the nearest one above. */
    {"kimi", {.n_layer = 60, .n_expert = 384, .n_expert_used = 8, FIT_512}},
    {"flame", {.n_layer = 17, .n_expert = 64, .n_expert_used = 6, FIT_OLMOE}},
};

int moe_trace_generator_init_sized(moe_trace_generator *generator, size_t struct_size,
                                   const char *preset, moe_error *err)
{
    if (generator == NULL || preset == NULL) {
        return moe_fail_null(err, "moe_trace_generator_init", "generator or preset");
    }
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        if (strcmp(preset, presets[i].name) == 0) {
            moe_trace_generator own = presets[i].generator;
            own.gate_scale = 2.0;
            own.n_sequences = 1;
            own.n_prompts = 1;
            own.decode_passes = 512;
            generator->struct_size = struct_size;
            return moe_struct_give(&moe_kind_trace_generator, generator, &own, err);
        }
    }
    return moe_fail(err, MOE_ERR_ARGUMENT,
                    "there is no preset '%.100s' of synthetic traces; choose olmoe, qwen3, 512, "
                    "kimi or flame",
                    preset);
}

static int check_generator(const moe_trace_generator *g, moe_error *err)
{
    if (g->n_layer == 0 || g->n_layer > MOE_TRACE_MAX_LAYERS || g->n_expert == 0 ||
        g->n_expert > MOE_TRACE_MAX_EXPERTS || g->n_expert_used == 0 ||
        g->n_expert_used > g->n_expert || (uint64_t)g->n_layer * g->n_expert > MOE_TRACE_MAX_KEYS) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "synthetic trace: %u layers of %u experts, %u used: not possible",
                        g->n_layer, g->n_expert, g->n_expert_used);
    }
    double rows =
        (double)g->n_sequences * g->n_prompts * ((double)g->decode_passes + g->prompt_rows);
    if (rows < 1 || rows * g->n_layer * g->n_expert_used > 1e9) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "synthetic trace: %.3g choices; 1 to 1e9 are possible",
                        rows * g->n_layer * g->n_expert_used);
    }
    if (!(fabs(g->slow_rho) <= 1) || !(fabs(g->fast_rho) <= 1) || !isfinite(g->popular) ||
        !isfinite(g->slow) || !isfinite(g->fast) || !isfinite(g->noise) ||
        !isfinite(g->gate_scale)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "synthetic trace: coefficients must be finite, autoregressions in [-1, 1]");
    }
    return MOE_OK;
}

/* ---- Numbers ---- */

typedef struct generator_state {
    const moe_trace_generator *options;
    moe_trace *trace;
    uint64_t random;
    double spare_normal;
    bool has_spare;
    double *popular; /* [n_layer][n_expert] */
    double *slow;    /* [n_sequences][n_layer][n_expert] */
    double *fast;    /* likewise */
    double *logits;  /* [n_expert] */
    uint16_t *order; /* [n_expert] the largest logits first; only the first n_expert_used are
                      * ordered */
    float *gates;    /* [n_expert_used] */
} generator_state;

/* Uniform in (0, 1], 53 bits, by splitmix64. */
static double uniform(generator_state *state)
{
    uint64_t z = state->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return ((double)(z >> 11) + 1.0) / 9007199254740992.0;
}

/* A normal variate, by the Box-Muller transform. */
static double normal(generator_state *state)
{
    if (state->has_spare) {
        state->has_spare = false;
        return state->spare_normal;
    }
    double radius = sqrt(-2.0 * log(uniform(state)));
    double angle = 6.283185307179586 * uniform(state);
    state->spare_normal = radius * sin(angle);
    state->has_spare = true;
    return radius * cos(angle);
}

static void fill_normal(generator_state *state, double *numbers, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        numbers[i] = normal(state);
    }
}

static void step_autoregression(generator_state *state, double *numbers, size_t n, double rho)
{
    double fresh = sqrt(1.0 - rho * rho);
    for (size_t i = 0; i < n; i++) {
        numbers[i] = rho * numbers[i] + fresh * normal(state);
    }
}

/* ---- Rows ---- */

/* Puts the experts with the n_expert_used largest logits at the front of `order`; ties go to the
 * lower id. */
static void select_experts(generator_state *state)
{
    const moe_trace_generator *o = state->options;
    for (uint32_t e = 0; e < o->n_expert; e++) {
        state->order[e] = (uint16_t)e;
    }
    for (uint32_t i = 0; i < o->n_expert_used; i++) {
        uint32_t best = i;
        for (uint32_t j = i + 1; j < o->n_expert; j++) {
            double difference = state->logits[state->order[j]] - state->logits[state->order[best]];
            if (difference > 0 || (difference == 0 && state->order[j] < state->order[best])) {
                best = j;
            }
        }
        uint16_t chosen = state->order[best];
        state->order[best] = state->order[i];
        state->order[i] = chosen;
    }
}

static int add_layer(generator_state *state, uint32_t sequence, uint32_t layer)
{
    const moe_trace_generator *o = state->options;
    size_t at = (size_t)layer * o->n_expert;
    size_t at_sequence = (size_t)sequence * o->n_layer * o->n_expert + at;
    double total = 0;
    for (uint32_t e = 0; e < o->n_expert; e++) {
        state->logits[e] = o->popular * state->popular[at + e] +
                           o->slow * state->slow[at_sequence + e] +
                           o->fast * state->fast[at_sequence + e] + o->noise * normal(state);
        total += exp(o->gate_scale * state->logits[e]);
    }
    select_experts(state);
    for (uint32_t i = 0; i < o->n_expert_used; i++) {
        double weight = exp(o->gate_scale * state->logits[state->order[i]]);
        state->gates[i] = (float)(weight / total);
    }
    return moe_trace_add_list(state->trace, state->order, state->gates, o->n_expert_used);
}

static int add_row(generator_state *state, bool new_pass, uint64_t token, uint32_t sequence)
{
    const moe_trace_generator *o = state->options;
    size_t n = (size_t)o->n_layer * o->n_expert;
    int status = moe_trace_add_row(state->trace, new_pass, token, sequence);
    for (uint32_t layer = 0; layer < o->n_layer && status == MOE_OK; layer++) {
        status = add_layer(state, sequence, layer);
    }
    step_autoregression(state, state->slow + sequence * n, n, o->slow_rho);
    step_autoregression(state, state->fast + sequence * n, n, o->fast_rho);
    return status;
}

/* Adds the prompts' rows, one prompt after the other. All sequences are then decoded together. */
static int add_prompts(generator_state *state, uint64_t token)
{
    const moe_trace_generator *o = state->options;
    size_t n = (size_t)o->n_layer * o->n_expert;
    int status = MOE_OK;
    for (uint32_t sequence = 0; sequence < o->n_sequences; sequence++) {
        fill_normal(state, state->slow + sequence * n, n);
        for (uint32_t row = 0; o->prompt_rows > 1 && row < o->prompt_rows && status == MOE_OK;
             row++) {
            status = add_row(state, row == 0, token + row, sequence);
        }
    }
    uint32_t n_before = o->prompt_rows > 1 ? o->prompt_rows : 0;
    for (uint32_t pass = 0; pass < o->decode_passes; pass++) {
        for (uint32_t sequence = 0; sequence < o->n_sequences && status == MOE_OK; sequence++) {
            status = add_row(state, sequence == 0, token + n_before + pass, sequence);
        }
    }
    return status;
}

static int generate(generator_state *state)
{
    const moe_trace_generator *o = state->options;
    size_t n = (size_t)o->n_layer * o->n_expert;
    state->trace = moe_trace_new(o->n_layer, o->n_expert, true);
    state->popular = moe_calloc(n, sizeof *state->popular);
    state->slow = moe_calloc(n * o->n_sequences, sizeof *state->slow);
    state->fast = moe_calloc(n * o->n_sequences, sizeof *state->fast);
    state->logits = moe_calloc(o->n_expert, sizeof *state->logits);
    state->order = moe_calloc(o->n_expert, sizeof *state->order);
    state->gates = moe_calloc(o->n_expert_used, sizeof *state->gates);
    if (state->trace == NULL || state->popular == NULL || state->slow == NULL ||
        state->fast == NULL || state->logits == NULL || state->order == NULL ||
        state->gates == NULL) {
        return MOE_ERR_MEMORY;
    }
    fill_normal(state, state->popular, n);
    fill_normal(state, state->fast, n * o->n_sequences);
    uint64_t prompt_tokens = (uint64_t)o->prompt_rows + o->decode_passes;
    for (uint32_t prompt = 0; prompt < o->n_prompts; prompt++) {
        MOE_TRY(add_prompts(state, prompt * prompt_tokens));
    }
    return MOE_OK;
}

int moe_trace_generate(moe_trace **out, const moe_trace_generator *generator, moe_error *err)
{
    if (out == NULL) {
        return moe_fail_null(err, "moe_trace_generate", "out");
    }
    *out = NULL;
    /* The caller's structure may be older and lack members. These keep the values of a generator
     * without a preset. */
    moe_trace_generator own = {
        .gate_scale = 2.0, .n_sequences = 1, .n_prompts = 1, .decode_passes = 512};
    int status = moe_struct_take(&moe_kind_trace_generator, &own, generator, err);
    if (status == MOE_OK) {
        status = check_generator(&own, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    generator_state state = {.options = &own, .random = own.seed};
    status = generate(&state);
    if (status == MOE_OK) {
        status = moe_trace_finish(state.trace, err);
    } else {
        moe_fail(err, status, "out of memory for a synthetic trace");
    }
    if (status == MOE_OK) {
        *out = state.trace;
    } else {
        moe_trace_close(&state.trace);
    }
    free(state.popular);
    free(state.slow);
    free(state.fast);
    free(state.logits);
    free(state.order);
    free(state.gates);
    return status;
}
