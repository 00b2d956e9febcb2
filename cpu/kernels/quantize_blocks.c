/* SPDX-License-Identifier: MIT */
#include "cpu/kernels/quantize_blocks.h"

#include <math.h>
#include <string.h>

#include "cpu/kernels/block_formats.h"
#include "cpu/kernels/kv_half.h"
#include "runtime/base/moe_assert.h"

#define RUN    16u /* elements that share a scale in Q2_K and Q3_K */
#define N_RUNS (MOE_GROUP / RUN)
#define ROUNDS 3 /* each chooses scales and codes, then solves for the block's scales again */

static void quantize_q4_0(const float *x, const float *importance, uint8_t *out)
{
    (void)importance;
    moe_block_q4_0 block = {0};
    float extreme = x[0];
    for (uint32_t i = 1; i < 32; i++) {
        extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
    }
    const float d = extreme / -8.0f;
    const float id = d != 0.0f ? 1.0f / d : 0.0f;
    block.d = moe_float_to_half(d);
    for (uint32_t i = 0; i < 32; i++) {
        const double code = floor((double)x[i] * (double)id + 8.5);
        const uint8_t nibble = (uint8_t)(code > 15.0 ? 15.0 : code > 0.0 ? code : 0.0);
        block.qs[i % 16] = (uint8_t)(block.qs[i % 16] | nibble << i / 16 * 4);
    }
    memcpy(out, &block, sizeof block);
}

/* ---- What Q2_K and Q3_K have in common ---- */

/* The numbers from which a block's values are computed: value = d * scale * code - dmin * min. */
typedef struct group_codes {
    float d, dmin; /* rounded to halves, as they are stored */
    int scale[N_RUNS], min[N_RUNS];
    int code[MOE_GROUP];
} group_codes;

/* The ranges of a format's integers. */
typedef struct code_ranges {
    int least_code, most_code;
    int least_scale, most_scale;
    int most_min; /* 0: there are no minima */
} code_ranges;

static inline int clamp_round(float x, int least, int most)
{
    const float rounded = rintf(x); /* NaN, from an infinite scale, becomes the least */
    return rounded > (float)least ? rounded < (float)most ? (int)rounded : most : least;
}

static inline float inverse(float x)
{
    return x != 0.0f ? 1.0f / x : 0.0f;
}

static inline float as_half(float x)
{
    return moe_half_to_float(moe_float_to_half(x));
}

/* Chooses the codes of a run for this step and offset, and returns the error. */
static float choose_codes(const code_ranges *r, const float *x, const float *w, float step,
                          float offset, int *code)
{
    const float inv = inverse(step);
    float error = 0.0f;
    for (uint32_t i = 0; i < RUN; i++) {
        code[i] = clamp_round((x[i] - offset) * inv, r->least_code, r->most_code);
        const float miss = x[i] - (step * (float)code[i] + offset);
        error += w[i] * miss * miss;
    }
    return error;
}

/* Finds the step and offset that fit these codes best. The offset is at most 0; without minima it
 * is 0. */
static void solve_run(const code_ranges *r, const float *x, const float *w, const int *code,
                      float *step, float *offset)
{
    double sw = 0, sc = 0, scc = 0, sx = 0, sxc = 0;
    for (uint32_t i = 0; i < RUN; i++) {
        const double c = code[i];
        sw += w[i];
        sc += w[i] * c;
        scc += w[i] * c * c;
        sx += (double)w[i] * x[i];
        sxc += (double)w[i] * x[i] * c;
    }
    const double det = sw * scc - sc * sc;
    double b = 0.0;
    double a = scc > 0.0 ? sxc / scc : 0.0;
    if (r->most_min > 0 && det > 0.0) {
        b = (sx * scc - sxc * sc) / det;
        if (b < 0.0) {
            a = (sxc * sw - sx * sc) / det;
        } else {
            b = 0.0;
        }
    }
    *step = (float)a;
    *offset = (float)b;
}

/* Keeps step and offset if they are better than the best so far. Then does the same with the step
 * and offset that best fit the codes which the first pair gave. */
static void try_run(const code_ranges *r, const float *x, const float *w, float step, float offset,
                    float *best_error, float *best)
{
    int code[RUN];
    for (int k = 0; k < 2; k++) {
        const float error = choose_codes(r, x, w, step, offset, code);
        if (error < *best_error) {
            *best_error = error;
            best[0] = step;
            best[1] = offset;
        }
        solve_run(r, x, w, code, &step, &offset);
    }
}

/* Finds the step best[0] and the offset best[1] of a run, as if the block could store any: value =
 * best[0] * code + best[1]. Tries ranges from 0.7 to 1.15 of the run's range, because clipping the
 * extreme makes the steps finer. */
static void fit_run(const code_ranges *r, const float *x, const float *w, float *best)
{
    float least = 0.0f, most = 0.0f;
    for (uint32_t i = 0; i < RUN; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    float best_error = INFINITY;
    best[0] = best[1] = 0.0f;
    for (int k = 0; k < 10; k++) {
        const float part = 0.7f + 0.05f * (float)k;
        if (r->most_min > 0) {
            const float step = part * (most - least) / (float)r->most_code;
            try_run(r, x, w, step, least * part, &best_error, best);
        } else {
            const float extreme = most > -least ? most : least;
            try_run(r, x, w, part * extreme / (float)r->least_code, 0.0f, &best_error, best);
            try_run(r, x, w, -part * extreme / (float)r->least_code, 0.0f, &best_error, best);
        }
    }
}

/* Chooses a run's scale and minimum near the wanted ones, and the codes, so that the stored numbers
 * have the least error. */
static void choose_run(const code_ranges *r, const float *x, const float *w, const float *wanted,
                       group_codes *g, uint32_t run)
{
    const int scale = clamp_round(wanted[0] * inverse(g->d), r->least_scale, r->most_scale);
    const int min = clamp_round(-wanted[1] * inverse(g->dmin), 0, r->most_min);
    float best_error = INFINITY;
    for (int s = scale - 1; s <= scale + 1; s++) {
        for (int m = min - 1; m <= min + 1; m++) {
            int code[RUN];
            if (s < r->least_scale || s > r->most_scale || m < 0 || m > r->most_min) {
                continue;
            }
            const float error = choose_codes(r, x, w, g->d * (float)s, -(g->dmin * (float)m), code);
            if (error < best_error) {
                best_error = error;
                g->scale[run] = s;
                g->min[run] = m;
                memcpy(g->code + run * RUN, code, sizeof code);
            }
        }
    }
}

static double group_error(const group_codes *g, const float *x, const float *w)
{
    double error = 0.0;
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        const float value =
            g->d * (float)g->scale[i / RUN] * (float)g->code[i] - g->dmin * (float)g->min[i / RUN];
        error += (double)w[i] * (x[i] - value) * (x[i] - value);
    }
    return error;
}

/* Finds the block's two scales that fit its integers best, rounded to halves. */
static void solve_group(const group_codes *g, const float *x, const float *w, float *d, float *dmin)
{
    double aa = 0, am = 0, mm = 0, xa = 0, xm = 0;
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        const double a = (double)g->scale[i / RUN] * g->code[i];
        const double m = -(double)g->min[i / RUN];
        aa += w[i] * a * a;
        am += w[i] * a * m;
        mm += w[i] * m * m;
        xa += (double)w[i] * x[i] * a;
        xm += (double)w[i] * x[i] * m;
    }
    const double det = aa * mm - am * am;
    *d = g->d;
    *dmin = g->dmin;
    if (det > 1e-9 * aa * mm) {
        *d = as_half((float)((xa * mm - xm * am) / det));
        *dmin = as_half((float)((xm * aa - xa * am) / det));
    } else if (aa > 0.0) {
        *d = as_half((float)((xa + g->dmin * -am) / aa));
    }
}

static void fit_group(const code_ranges *r, const float *x, const float *w, group_codes *g)
{
    float wanted[N_RUNS][2];
    float extreme = 0.0f, most_offset = 0.0f;
    for (uint32_t j = 0; j < N_RUNS; j++) {
        fit_run(r, x + j * RUN, w + j * RUN, wanted[j]);
        extreme = fabsf(wanted[j][0]) > fabsf(extreme) ? wanted[j][0] : extreme;
        most_offset = -wanted[j][1] > most_offset ? -wanted[j][1] : most_offset;
    }
    /* The extreme scale gets the integer of the greatest magnitude. */
    const int top = -r->least_scale > r->most_scale ? r->least_scale : r->most_scale;
    group_codes next = {.d = as_half(extreme / (float)top),
                        .dmin = r->most_min > 0 ? as_half(most_offset / (float)r->most_min) : 0};
    double best = INFINITY;
    *g = next;
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t j = 0; j < N_RUNS; j++) {
            choose_run(r, x + j * RUN, w + j * RUN, wanted[j], &next, j);
        }
        const double error = group_error(&next, x, w);
        if (error < best || round == 0) {
            best = error;
            *g = next;
        }
        solve_group(&next, x, w, &next.d, &next.dmin);
    }
}

/* Element i's two bits in 64 bytes: moe_block_q2_k.qs. */
static void set_bit_pair(uint8_t *qs, uint32_t i, int code)
{
    uint8_t *byte = &qs[i / 128 * 32 + i % 32];
    *byte = (uint8_t)(*byte | code << i % 128 / 32 * 2);
}

static void quantize_q2_k(const float *x, const float *importance, uint8_t *out)
{
    static const code_ranges ranges = {0, 3, 0, 15, 15};
    group_codes g;
    moe_block_q2_k block = {0};
    fit_group(&ranges, x, importance, &g);
    block.d = moe_float_to_half(g.d);
    block.dmin = moe_float_to_half(g.dmin);
    for (uint32_t j = 0; j < N_RUNS; j++) {
        block.scales[j] = (uint8_t)(g.scale[j] | g.min[j] << 4);
    }
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        set_bit_pair(block.qs, i, g.code[i]);
    }
    memcpy(out, &block, sizeof block);
}

static void quantize_q3_k(const float *x, const float *importance, uint8_t *out)
{
    static const code_ranges ranges = {-4, 3, -32, 31, 0};
    group_codes g;
    moe_block_q3_k block = {0};
    fit_group(&ranges, x, importance, &g);
    block.d = moe_float_to_half(g.d);
    for (uint32_t j = 0; j < N_RUNS; j++) {
        const int bits = g.scale[j] + 32;
        block.scales[j % 8] = (uint8_t)(block.scales[j % 8] | (bits & 15) << j / 8 * 4);
        block.scales[8 + j % 4] = (uint8_t)(block.scales[8 + j % 4] | (bits >> 4) << j / 4 * 2);
    }
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        const int bits = g.code[i] + 4;
        set_bit_pair(block.qs, i, bits & 3);
        block.hmask[i % 32] = (uint8_t)(block.hmask[i % 32] | bits >> 2 << i / 32);
    }
    memcpy(out, &block, sizeof block);
}

typedef void (*quantize_fn)(const float *x, const float *importance, uint8_t *out);

static quantize_fn function_of(moe_dtype type)
{
    return type == MOE_DTYPE_Q4_0   ? quantize_q4_0
           : type == MOE_DTYPE_Q2_K ? quantize_q2_k
           : type == MOE_DTYPE_Q3_K ? quantize_q3_k
                                    : NULL;
}

bool moe_can_quantize(moe_dtype type)
{
    return function_of(type) != NULL;
}

void moe_quantize_row(moe_dtype type, const float *x, const float *importance, uint32_t n,
                      void *out)
{
    const quantize_fn quantize = function_of(type);
    const moe_dtype_info *info = moe_dtype_info_of(type);
    float equal[MOE_GROUP];
    MOE_ASSERT(quantize != NULL && n % info->block_elems == 0);
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        equal[i] = 1.0f;
    }
    for (uint32_t k = 0; k < n; k += info->block_elems) {
        quantize(x + k, importance != NULL ? importance + k : equal,
                 (uint8_t *)out + moe_dtype_row_bytes(type, k));
    }
}
