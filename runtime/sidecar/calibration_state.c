/* SPDX-License-Identifier: MIT */
#include "runtime/sidecar/calibration_state.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cpu/gram.h"
#include <moe/files.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/sidecar/affinity.h"

#define MAGIC   "MOECALP"
#define VERSION 1u

typedef struct array {
    void **memory;
    size_t bytes;
} array;

#define MAX_ARRAYS 10

static uint32_t list_arrays(moe_calibration_state *s, array *arrays)
{
    MOE_ASSERT(s->shape.n_layer > 0 && s->shape.n_expert > 0);
    size_t keys = (size_t)s->shape.n_layer * s->shape.n_expert;
    size_t pairs = keys * s->shape.n_expert;
    size_t bins = (size_t)s->shape.n_layer * MOE_HISTOGRAM_BINS;
    size_t row = s->shape.n_embd * sizeof(float);
    uint32_t n = 0;
    arrays[n++] = (array){(void **)&s->counts, keys * sizeof *s->counts};
    arrays[n++] = (array){(void **)&s->coactivation, pairs * sizeof *s->coactivation};
    arrays[n++] = (array){(void **)&s->coactivation_weighted, pairs * sizeof(double)};
    arrays[n++] = (array){(void **)&s->tae, bins * sizeof *s->tae};
    arrays[n++] = (array){(void **)&s->margin, bins * sizeof *s->margin};
    arrays[n++] = (array){(void **)&s->samples, s->shape.n_layer * s->n_samples * row};
    arrays[n++] = (array){(void **)&s->affinity_output, pairs * sizeof *s->affinity_output};
    arrays[n++] = (array){(void **)&s->affinity_weight, pairs * sizeof *s->affinity_weight};
    arrays[n++] = (array){(void **)&s->checksums, keys * MOE_EXPERT_PARTS * sizeof *s->checksums};
    if (s->with_gram) {
        arrays[n++] = (array){(void **)&s->gram, s->shape.n_layer * s->shape.n_embd * row};
    }
    MOE_ASSERT(n <= MAX_ARRAYS);
    return n;
}

int moe_calibration_state_create(moe_calibration_state **out, const moe_calibration_state *settings,
                                 moe_error *err)
{
    *out = NULL;
    moe_calibration_state *s = moe_calloc(1, sizeof *s);
    if (s == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to calibrate");
    }
    *s = (moe_calibration_state){.shape = settings->shape,
                                 .key = settings->key,
                                 .n_tokens = settings->n_tokens,
                                 .n_samples = settings->n_samples,
                                 .with_gram = settings->with_gram};
    array arrays[MAX_ARRAYS];
    uint32_t n = list_arrays(s, arrays);
    size_t total = 0;
    bool complete = true;
    for (uint32_t i = 0; i < n; i++) {
        *arrays[i].memory = moe_calloc(arrays[i].bytes, 1);
        complete &= *arrays[i].memory != NULL;
        total += arrays[i].bytes;
    }
    if (!complete) {
        moe_calibration_state_free(&s);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to calibrate: %zu MiB are needed",
                        total >> 20);
    }
    *out = s;
    return MOE_OK;
}

void moe_calibration_state_free(moe_calibration_state **state)
{
    moe_calibration_state *s = *state;
    if (s != NULL) {
        array arrays[MAX_ARRAYS];
        uint32_t n = list_arrays(s, arrays);
        for (uint32_t i = 0; i < n; i++) {
            free(*arrays[i].memory);
        }
        free(s);
    }
    *state = NULL;
}

/* ---- The file of unfinished work: a header, arrays, and the XXH3 of both ---- */

typedef struct state_header {
    char magic[8];
    uint64_t version;
    uint64_t key;
    uint64_t n_tokens;
    uint64_t n_done;
    uint32_t n_samples;
    uint32_t with_gram;
    uint32_t n_layers_output;
    uint32_t n_layers_weight;
} state_header;

/* The header has no padding, so that every byte of the file is covered by the checksum. */
_Static_assert(sizeof(state_header) == 56 && offsetof(state_header, key) == 16 &&
                   offsetof(state_header, n_samples) == 40,
               "the header of a calibration that goes on");

static state_header header_of(const moe_calibration_state *s)
{
    return (state_header){.magic = MAGIC,
                          .version = VERSION,
                          .key = s->key,
                          .n_tokens = s->n_tokens,
                          .n_done = s->n_done,
                          .n_samples = s->n_samples,
                          .with_gram = s->with_gram,
                          .n_layers_output = s->n_layers_output,
                          .n_layers_weight = s->n_layers_weight};
}

int moe_calibration_state_save(const moe_calibration_state *state, const char *path, moe_error *err)
{
    moe_calibration_state copy = *state; /* the list needs pointers that it may write to */
    array arrays[MAX_ARRAYS];
    uint32_t n = list_arrays(&copy, arrays);
    state_header header = header_of(state);
    moe_atomic_file *file;
    MOE_TRY(moe_atomic_file_open(&file, path, 0, err));
    uint64_t hash = XXH3_64bits(&header, sizeof header);
    int status = moe_atomic_file_write(file, &header, sizeof header, err);
    for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
        hash = XXH3_64bits_withSeed(*arrays[i].memory, arrays[i].bytes, hash);
        status = moe_atomic_file_write(file, *arrays[i].memory, arrays[i].bytes, err);
    }
    if (status == MOE_OK) {
        status = moe_atomic_file_write(file, &hash, sizeof hash, err);
    }
    if (status != MOE_OK) {
        moe_atomic_file_abandon(&file);
        return status;
    }
    return moe_atomic_file_commit(&file, err);
}

static bool read_state(moe_calibration_state *s, FILE *file)
{
    state_header header;
    state_header wanted = header_of(s);
    array arrays[MAX_ARRAYS];
    uint32_t n = list_arrays(s, arrays);
    if (fread(&header, sizeof header, 1, file) != 1 ||
        memcmp(header.magic, wanted.magic, sizeof header.magic) != 0 ||
        header.version != wanted.version || header.key != wanted.key ||
        header.n_tokens != wanted.n_tokens || header.n_samples != wanted.n_samples ||
        header.with_gram != wanted.with_gram || header.n_done > header.n_tokens ||
        header.n_layers_output > s->shape.n_layer || header.n_layers_weight > s->shape.n_layer) {
        return false;
    }
    uint64_t hash = XXH3_64bits(&header, sizeof header);
    for (uint32_t i = 0; i < n; i++) {
        if (fread(*arrays[i].memory, 1, arrays[i].bytes, file) != arrays[i].bytes) {
            return false;
        }
        hash = XXH3_64bits_withSeed(*arrays[i].memory, arrays[i].bytes, hash);
    }
    uint64_t expected;
    if (fread(&expected, sizeof expected, 1, file) != 1 || hash != expected) {
        return false;
    }
    s->n_done = header.n_done;
    s->n_layers_output = header.n_layers_output;
    s->n_layers_weight = header.n_layers_weight;
    return true;
}

bool moe_calibration_state_resume(moe_calibration_state *state, const char *path)
{
    int status;
    FILE *file = moe_input_stream(path, 0, &status, NULL);
    if (file == NULL) {
        return false;
    }
    bool whole = read_state(state, file);
    (void)fclose(file);
    if (!whole) {
        array arrays[MAX_ARRAYS];
        uint32_t n = list_arrays(state, arrays);
        for (uint32_t i = 0; i < n; i++) {
            memset(*arrays[i].memory, 0, arrays[i].bytes);
        }
    }
    return whole;
}

/* ---- Counting ---- */

/* Sample i is token i * n_tokens / n_samples, rounded down. */
uint32_t moe_calibration_sample_of(const moe_calibration_state *s, uint64_t token)
{
    uint64_t i = (token * s->n_samples + s->n_tokens - 1) / s->n_tokens;
    return i < s->n_samples && i * s->n_tokens / s->n_samples == token ? (uint32_t)i : UINT32_MAX;
}

static uint32_t bin_of(double x)
{
    double bin = floor(x * MOE_HISTOGRAM_BINS);
    return bin < 0.0 ? 0 : bin >= MOE_HISTOGRAM_BINS ? MOE_HISTOGRAM_BINS - 1 : (uint32_t)bin;
}

void moe_calibration_count(moe_calibration_state *s, uint32_t layer, const uint32_t *experts,
                           const float *probs)
{
    uint32_t k = s->shape.n_expert_used;
    uint32_t n = s->shape.n_expert;
    double p[MOE_MAX_EXPERTS_USED];
    double sum = 0.0;
    double entropy = 0.0;
    double best[2] = {0.0, 0.0};
    for (uint32_t i = 0; i < k; i++) {
        sum += (double)probs[experts[i]];
    }
    for (uint32_t i = 0; i < k; i++) {
        p[i] = sum > 0.0 ? (double)probs[experts[i]] / sum : 1.0 / k;
        entropy -= p[i] > 0.0 ? p[i] * log(p[i]) : 0.0;
        if (p[i] > best[0]) {
            best[1] = best[0];
            best[0] = p[i];
        } else if (p[i] > best[1]) {
            best[1] = p[i];
        }
    }
    s->tae[(size_t)layer * MOE_HISTOGRAM_BINS + bin_of(k > 1 ? entropy / log(k) : 0.0)]++;
    s->margin[(size_t)layer * MOE_HISTOGRAM_BINS + bin_of(best[0] - best[1])]++;
    for (uint32_t i = 0; i < k; i++) {
        s->counts[(size_t)layer * n + experts[i]]++;
        for (uint32_t j = 0; j < k; j++) {
            if (experts[i] < experts[j]) {
                size_t pair = ((size_t)layer * n + experts[i]) * n + experts[j];
                s->coactivation[pair] += 1.0;
                s->coactivation_weighted[pair] += p[i] < p[j] ? p[i] : p[j];
            }
        }
    }
}

/* ---- Finishing ---- */

/* Computes percentiles by nearest rank: percentile p is the upper edge of the bin that holds token
 * ceil(p/100 n). */
static void fill_percentiles(const uint32_t *histogram, float *out)
{
    uint64_t n = 0;
    for (uint32_t b = 0; b < MOE_HISTOGRAM_BINS; b++) {
        n += histogram[b];
    }
    uint64_t seen = 0;
    uint32_t bin = 0;
    for (uint32_t p = 1; p <= MOE_PERCENTILES && n > 0; p++) {
        uint64_t rank = (n * p + 99) / 100;
        while (seen + histogram[bin] < rank) {
            seen += histogram[bin++];
        }
        out[p - 1] = (float)(bin + 1) / MOE_HISTOGRAM_BINS;
    }
}

static void mirror(const double *sums, float *out, uint32_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i + 1; j < n; j++) {
            out[i * n + j] = out[j * n + i] = (float)sums[i * n + j];
        }
    }
}

int moe_calibration_state_finish(const moe_calibration_state *s, moe_calibration *c, moe_error *err)
{
    int status = MOE_OK;
    uint32_t n = s->shape.n_expert;
    size_t pairs = (size_t)n * n;
    c->n_tokens = s->n_tokens;
    memcpy(c->counts, s->counts, s->shape.n_layer * n * sizeof *c->counts);
    memcpy(c->checksums, s->checksums,
           (size_t)s->shape.n_layer * n * MOE_EXPERT_PARTS * sizeof *c->checksums);
    memcpy(c->affinity[MOE_AFFINITY_OUTPUT], s->affinity_output,
           s->shape.n_layer * pairs * sizeof(uint16_t));
    memcpy(c->affinity[MOE_AFFINITY_WEIGHT], s->affinity_weight,
           s->shape.n_layer * pairs * sizeof(uint16_t));
    for (size_t l = 0; l < s->shape.n_layer && status == MOE_OK; l++) {
        mirror(s->coactivation + l * pairs, c->coactivation + l * pairs, n);
        mirror(s->coactivation_weighted + l * pairs, c->coactivation_weighted + l * pairs, n);
        fill_percentiles(s->tae + l * MOE_HISTOGRAM_BINS, c->tae + l * MOE_PERCENTILES);
        fill_percentiles(s->margin + l * MOE_HISTOGRAM_BINS, c->margin + l * MOE_PERCENTILES);
        status = moe_affinity_by_coactivation(c->coactivation_weighted + l * pairs, n,
                                              c->affinity[MOE_AFFINITY_COACT] + l * pairs, err);
    }
    if (s->with_gram) {
        size_t n_embd = s->shape.n_embd;
        memcpy(c->gram, s->gram, s->shape.n_layer * n_embd * n_embd * sizeof(float));
        for (size_t l = 0; l < s->shape.n_layer; l++) {
            moe_gram_mirror(c->gram + l * n_embd * n_embd, (uint32_t)n_embd);
        }
    }
    return status;
}
