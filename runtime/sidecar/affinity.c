/* SPDX-License-Identifier: MIT */
#include "runtime/sidecar/affinity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cpu/gram.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

/* The most bytes of dequantised weights, of all experts together, that are in memory at once. */
#define CHUNK_BYTES (16u << 20)
#define LANES       8u

/* ---- Orders ---- */

typedef struct neighbour {
    double distance;
    uint16_t id;
    bool is_self;
} neighbour;

static int compare_neighbours(const void *a, const void *b)
{
    const neighbour *x = a;
    const neighbour *y = b;
    if (x->is_self != y->is_self) {
        return x->is_self ? -1 : 1;
    }
    if (x->distance != y->distance) {
        return x->distance < y->distance ? -1 : 1;
    }
    return (int)x->id - (int)y->id;
}

int moe_affinity_rank(const double *distances, uint32_t n, uint16_t *order, moe_error *err)
{
    neighbour *row = moe_calloc(n, sizeof *row);
    if (row == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to rank experts");
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            double distance = distances[i < j ? i * n + j : j * n + i];
            row[j] = (neighbour){isnan(distance) ? INFINITY : distance, (uint16_t)j, i == j};
        }
        qsort(row, n, sizeof *row, compare_neighbours);
        for (size_t j = 0; j < n; j++) {
            order[i * n + j] = row[j].id;
        }
    }
    free(row);
    return MOE_OK;
}

int moe_affinity_by_coactivation(const float *coactivation, uint32_t n, uint16_t *order,
                                 moe_error *err)
{
    double *distances = moe_calloc((size_t)n * n, sizeof *distances);
    if (distances == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to rank experts");
    }
    for (size_t i = 0; i < (size_t)n * n; i++) {
        distances[i] = -(double)coactivation[i];
    }
    int status = moe_affinity_rank(distances, n, order, err);
    free(distances);
    return status;
}

/* Sums in several lanes, so that the compiler may use vector instructions without changing the
 * order of additions. */
static double distance_of(const float *a, const float *b, uint32_t n)
{
    float sums[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (uint32_t lane = 0; lane < LANES; lane++) {
            float difference = a[i + lane] - b[i + lane];
            sums[lane] += difference * difference;
        }
    }
    double sum = 0.0;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        sum += (double)sums[lane];
    }
    for (; i < n; i++) {
        double difference = (double)a[i] - (double)b[i];
        sum += difference * difference;
    }
    return sqrt(sum);
}

void moe_affinity_of_outputs(const float *outputs, uint32_t n_expert, uint32_t n_rows,
                             uint32_t n_embd, double *distances)
{
    size_t stride = (size_t)n_rows * n_embd;
    for (size_t i = 0; i < n_expert; i++) {
        for (size_t j = i + 1; j < n_expert; j++) {
            double sum = 0.0;
            for (size_t r = 0; r < n_rows; r++) {
                sum += distance_of(outputs + i * stride + r * n_embd,
                                   outputs + j * stride + r * n_embd, n_embd);
            }
            distances[i * n_expert + j] = sum / n_rows;
        }
    }
}

/* ---- Weights ---- */

/* The state of reading a layer's experts in chunks. A chunk holds some rows of one part (gate, up
 * or down) of all experts. */
typedef struct weight_scan {
    const moe_weight_reader *reader;
    const moe_expert_ref *experts;
    uint32_t n_expert;
    XXH3_state_t **hashes;   /* [n_expert], of the current part */
    moe_model_range *ranges; /* [n_expert], the experts' ranges of the chunk */
    uint8_t *bytes;          /* rows as in the file */
    float *values;           /* [n_expert][elements of a chunk] */
    float *gram;             /* [n_expert][n_expert] of a chunk */
    double *products;        /* [n_expert][n_expert] so far, i <= j */
} weight_scan;

static uint64_t chunk_rows(const weight_scan *scan, const moe_tensor_ref *ref)
{
    uint64_t rows = CHUNK_BYTES / (scan->n_expert * ref->n_in * sizeof(float));
    rows = rows > 0 ? rows : 1;
    return rows < ref->n_out ? rows : ref->n_out;
}

/* Begins a chunk: the rows first .. first + n - 1 of this part, of all experts. */
static int begin_chunk(weight_scan *scan, int part, uint64_t first, uint64_t n, moe_error *err)
{
    for (uint32_t e = 0; e < scan->n_expert; e++) {
        const moe_tensor_ref *ref = &scan->experts[e].parts[part];
        uint64_t row_bytes = moe_dtype_row_bytes(ref->type, ref->n_in);
        scan->ranges[e] =
            (moe_model_range){ref->file_index, ref->offset + first * row_bytes, n * row_bytes};
    }
    return moe_model_reader_begin(scan->reader->files, scan->ranges, scan->n_expert, err);
}

static int read_rows(weight_scan *scan, uint32_t expert, const moe_tensor_ref *ref, uint64_t n,
                     float *values, moe_error *err)
{
    uint64_t row_bytes = moe_dtype_row_bytes(ref->type, ref->n_in);
    MOE_TRY(moe_model_reader_take(scan->reader->files, scan->bytes, n * row_bytes, err));
    XXH3_64bits_update(scan->hashes[expert], scan->bytes, n * row_bytes);
    for (uint64_t r = 0; r < n; r++) {
        scan->reader->kernels.dequantize[ref->type](scan->bytes + r * row_bytes,
                                                    values + r * ref->n_in, (uint32_t)ref->n_in);
    }
    return MOE_OK;
}

static int scan_part(weight_scan *scan, int part, uint64_t *checksums, moe_error *err)
{
    const moe_tensor_ref *shape = &scan->experts[0].parts[part];
    uint64_t step = chunk_rows(scan, shape);
    uint64_t n_rows = shape->size > 0 ? shape->n_out : 0; /* there may be no gate matrix */
    int status = MOE_OK;
    for (uint32_t e = 0; e < scan->n_expert; e++) {
        XXH3_64bits_reset(scan->hashes[e]);
    }
    for (uint64_t first = 0; first < n_rows && status == MOE_OK; first += step) {
        uint64_t n = n_rows - first < step ? n_rows - first : step;
        status = begin_chunk(scan, part, first, n, err);
        for (uint32_t e = 0; e < scan->n_expert && status == MOE_OK; e++) {
            status = read_rows(scan, e, &scan->experts[e].parts[part], n,
                               scan->values + e * n * shape->n_in, err);
        }
        if (status == MOE_OK) {
            moe_gram_of_rows(&scan->reader->blas, scan->values, scan->n_expert,
                             (uint32_t)(n * shape->n_in), scan->gram);
            for (size_t i = 0; i < (size_t)scan->n_expert * scan->n_expert; i++) {
                scan->products[i] += (double)scan->gram[i];
            }
        }
    }
    for (uint32_t e = 0; e < scan->n_expert; e++) {
        checksums[(size_t)e * MOE_EXPERT_PARTS + part] = XXH3_64bits_digest(scan->hashes[e]);
    }
    return status;
}

/* Uses |a - b|^2 = a.a + b.b - 2 a.b to compute distances from inner products, and ranks the
 * experts by them. */
static int rank_products(const weight_scan *scan, uint16_t *order, moe_error *err)
{
    size_t n = scan->n_expert;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i + 1; j < n; j++) {
            scan->products[i * n + j] = scan->products[i * n + i] + scan->products[j * n + j] -
                                        2.0 * scan->products[i * n + j];
        }
    }
    return moe_affinity_rank(scan->products, scan->n_expert, order, err);
}

static int allocate_scan(weight_scan *scan, moe_error *err)
{
    size_t n = scan->n_expert;
    size_t values = 0;
    size_t bytes = 0;
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        const moe_tensor_ref *ref = &scan->experts[0].parts[p];
        size_t rows = chunk_rows(scan, ref);
        size_t row_bytes = moe_dtype_row_bytes(ref->type, ref->n_in);
        values = rows * ref->n_in > values ? rows * ref->n_in : values;
        bytes = rows * row_bytes > bytes ? rows * row_bytes : bytes;
    }
    scan->hashes = moe_calloc(n, sizeof *scan->hashes);
    bool complete = scan->hashes != NULL;
    for (size_t e = 0; e < n && complete; e++) {
        scan->hashes[e] = XXH3_createState();
        complete = scan->hashes[e] != NULL;
    }
    scan->ranges = moe_calloc(n, sizeof *scan->ranges);
    scan->bytes = moe_calloc_aligned(bytes, 1);
    scan->values = moe_calloc_aligned(n * values, sizeof *scan->values);
    scan->gram = moe_calloc(n * n, sizeof *scan->gram);
    scan->products = moe_calloc(n * n, sizeof *scan->products);
    if (!complete || scan->ranges == NULL || scan->bytes == NULL || scan->values == NULL ||
        scan->gram == NULL || scan->products == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to compare the weights of experts");
    }
    return MOE_OK;
}

static void free_scan(weight_scan *scan)
{
    for (uint32_t e = 0; e < scan->n_expert && scan->hashes != NULL; e++) {
        XXH3_freeState(scan->hashes[e]);
    }
    free(scan->hashes);
    free(scan->ranges);
    free(scan->bytes);
    free(scan->values);
    free(scan->gram);
    free(scan->products);
}

int moe_affinity_of_weights(const moe_weight_reader *reader, uint32_t layer, uint16_t *order,
                            uint64_t *checksums, moe_error *err)
{
    weight_scan scan = {.reader = reader,
                        .experts = reader->map->layers[layer].experts,
                        .n_expert = reader->map->n_expert};
    int status = allocate_scan(&scan, err);
    for (int part = 0; part < MOE_EXPERT_PARTS && status == MOE_OK; part++) {
        status = scan_part(&scan, part, checksums, err);
    }
    if (status == MOE_OK) {
        status = rank_products(&scan, order, err);
    }
    free_scan(&scan);
    return status;
}

/* ---- Router ---- */

int moe_affinity_of_router(const moe_weight_reader *reader, uint32_t layer, uint16_t *order,
                           moe_error *err)
{
    const moe_tensor_ref *ref = &reader->map->layers[layer].tensors[MOE_LAYER_ROUTER];
    uint32_t n = reader->map->n_expert;
    uint32_t n_in = (uint32_t)ref->n_in;
    uint64_t row_bytes = moe_dtype_row_bytes(ref->type, n_in);
    uint8_t *bytes = moe_calloc(ref->size, 1);
    float *rows = moe_calloc((size_t)n * n_in, sizeof *rows);
    double *distances = moe_calloc((size_t)n * n, sizeof *distances);
    int status = MOE_OK;
    if (bytes == NULL || rows == NULL || distances == NULL) {
        status = moe_fail(err, MOE_ERR_MEMORY, "no memory to compare the rows of a router");
    }
    if (status == MOE_OK) {
        moe_model_range range = {ref->file_index, ref->offset, ref->size};
        status = moe_model_reader_read(reader->files, &range, bytes, err);
    }
    if (status == MOE_OK) {
        for (size_t e = 0; e < n; e++) {
            reader->kernels.dequantize[ref->type](bytes + e * row_bytes, rows + e * n_in, n_in);
        }
        moe_affinity_of_outputs(rows, n, 1, n_in, distances);
        status = moe_affinity_rank(distances, n, order, err);
    }
    free(bytes);
    free(rows);
    free(distances);
    return status;
}
