/* SPDX-License-Identifier: MIT */
/* Speed of the weight products. Every figure is the median of repetitions that are taken in turn
 * over the levels, so that a slow spell of the machine falls on all of them.
 *
 * Up to STREAM_ROWS activation rows (decode, verification) run on weights far larger than the
 * caches, beside a plain streaming read of the same bytes by the same threads; more rows (prompts)
 * run on a matrix of a layer's size. What a level's multiplying instruction makes in a bare loop
 * (matmul_peaks.h) is told beside them. */
#include "matmul_cases.h"
#include "matmul_peaks.h"

#include "cpu/blas_load.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    REPETITIONS = 9,
    N_IN = 2048,
    MAX_BENCH_ROWS = 512,
    MAX_THREADS = 2,
    STREAM_ROWS = 8,
    MAX_KERNELS = MAX_ISA_LEVELS + 1
};
static const size_t stream_bytes = (size_t)192 << 20;
static const size_t layer_bytes = (size_t)2 << 20;

typedef struct bench_data {
    moe_dtype type;
    size_t row_bytes;
    uint8_t *weights; /* stream_bytes */
    uint32_t n_out;   /* rows in it */
    float *x;
    moe_q8_rows x_q8;
    void *scratch;
    float *out;
    void *tile_scratch[MAX_THREADS];
} bench_data;

/* One level of instruction sets, or a library's function. */
typedef struct bench_kernel {
    const char *name;
    moe_matmul_kernels table;
    moe_matmul_fn other; /* not NULL: this one */
    double peak;         /* multiply-adds a nanosecond of a bare loop on one core; 0: not known */
} bench_kernel;

typedef struct bench_job {
    const bench_data *data;
    const bench_kernel *kernel; /* NULL: read the weights */
    void *tile_scratch;
    uint32_t first_out;
    uint32_t n_out;
    uint32_t n_rows;
    uint64_t sum;
} bench_job;

static uint64_t read_stream(const uint8_t *bytes, size_t n)
{
    typedef uint64_t vector __attribute__((vector_size(64), aligned(2)));
    vector sum[4] = {0};
    for (size_t i = 0; i + 256 <= n; i += 256) {
        for (size_t j = 0; j < 4; j++) {
            sum[j] ^= *(const vector *)(bytes + i + 64 * j);
        }
    }
    sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
    return sum[0][0] ^ sum[0][3] ^ sum[0][5] ^ sum[0][7];
}

static moe_blas blas;

/* What the exact F32 kernel gives away against a library that may add in any order. */
static void blas_sgemm(const moe_matmul_args *args)
{
    blas.sgemm(MOE_BLAS_ROW_MAJOR, MOE_BLAS_NO_TRANSPOSE, MOE_BLAS_TRANSPOSE, (int)args->n_rows,
               (int)args->n_out, (int)args->n_in, 1, args->x, (int)args->x_stride, args->weights,
               (int)args->n_in, 0, args->out, (int)args->out_stride);
}

static void *run_job(void *argument)
{
    bench_job *job = argument;
    const bench_data *data = job->data;
    const uint8_t *weights = data->weights + job->first_out * data->row_bytes;
    if (job->kernel == NULL) {
        job->sum = read_stream(weights, job->n_out * data->row_bytes);
        return NULL;
    }
    const moe_matmul_args args = {.type = data->type,
                                  .weights = weights,
                                  .row_bytes = data->row_bytes,
                                  .n_in = N_IN,
                                  .n_out = job->n_out,
                                  .n_rows = job->n_rows,
                                  .x_q8 = &data->x_q8,
                                  .x = data->x,
                                  .x_stride = N_IN,
                                  .out = data->out + job->first_out,
                                  .out_stride = job->n_out};
    if (job->kernel->other != NULL) {
        job->kernel->other(&args);
    } else {
        moe_matmul_run(&job->kernel->table, &args, job->tile_scratch);
    }
    return NULL;
}

/* CPU time of this thread, which others on the machine do not lengthen. */
static uint64_t cpu_time_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Nanoseconds of n_threads sharing n_out weight rows: CPU time of one, elapsed time of several. */
static double time_run(const bench_data *data, const bench_kernel *kernel, uint32_t n_out,
                       uint32_t n_rows, uint32_t n_threads)
{
    bench_job jobs[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    const uint32_t share = n_out / n_threads;
    const uint64_t start = n_threads == 1 ? cpu_time_ns() : moe_now_ns();
    for (uint32_t t = 0; t < n_threads; t++) {
        jobs[t] = (bench_job){data, kernel, data->tile_scratch[t], t * share, share, n_rows, 0};
        if (t > 0 && pthread_create(&threads[t], NULL, run_job, &jobs[t]) != 0) {
            perror("thread");
            exit(1);
        }
    }
    run_job(&jobs[0]);
    for (uint32_t t = 1; t < n_threads; t++) {
        pthread_join(threads[t], NULL);
    }
    return (double)((n_threads == 1 ? cpu_time_ns() : moe_now_ns()) - start);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Medians, for the plain read (index 0) and each kernel after it. */
static void measure(const bench_data *data, const bench_kernel *kernels, size_t n_kernels,
                    uint32_t n_out, uint32_t n_rows, uint32_t n_threads, double *median)
{
    double times[MAX_KERNELS + 1][REPETITIONS];
    for (int i = -1; i < REPETITIONS; i++) { /* the first round warms up */
        for (size_t k = 0; k <= n_kernels; k++) {
            const double ns =
                time_run(data, k == 0 ? NULL : &kernels[k - 1], n_out, n_rows, n_threads);
            times[k][i < 0 ? 0 : i] = ns;
        }
    }
    for (size_t k = 0; k <= n_kernels; k++) {
        qsort(times[k], REPETITIONS, sizeof times[k][0], by_value);
        median[k] = times[k][REPETITIONS / 2];
    }
}

static void report(const bench_data *data, const bench_kernel *kernels, size_t n_kernels,
                   uint32_t n_out, uint32_t n_rows, uint32_t n_threads)
{
    double median[MAX_KERNELS + 1];
    measure(data, kernels, n_kernels, n_out, n_rows, n_threads, median);
    const double bytes = (double)n_out * (double)data->row_bytes;
    const double macs = (double)n_out * N_IN * n_rows;
    printf("%-7s rows %3u threads %u ", moe_dtype_name(data->type), n_rows, n_threads);
    const bool is_stream = n_out == data->n_out;
    if (is_stream) {
        printf(" read %5.1f GB/s ", bytes / median[0]);
    }
    for (size_t k = 1; k <= n_kernels; k++) {
        printf(" | %s %5.1f GB/s %6.1f GMAC/s", kernels[k - 1].name, bytes / median[k],
               macs / median[k]);
        if (is_stream) {
            printf(" (%3.0f%% of read)", 100 * median[0] / median[k]);
        } else if (kernels[k - 1].peak > 0) {
            printf(" (%2.0f%% of %4.0f)", 100 * macs / median[k] / kernels[k - 1].peak,
                   kernels[k - 1].peak);
        }
    }
    printf("\n");
    fflush(stdout);
}

static void bench_type(bench_data *data, moe_dtype type)
{
    static const uint32_t row_counts[] = {1, 2, 4, 8, 16, 32, 64, 128, 512};
    isa_level levels[MAX_ISA_LEVELS];
    bench_kernel kernels[MAX_KERNELS] = {0};
    size_t n_kernels = 0;
    moe_matmul_kernels reference;
    moe_matmul_kernels_init(&reference, 0);
    const size_t n_levels = isa_levels(levels);
    for (size_t l = 1; l < n_levels; l++) {
        bench_kernel *next = &kernels[n_kernels];
        const moe_matmul_kernels *last = n_kernels > 0 ? &kernels[n_kernels - 1].table : &reference;
        moe_matmul_kernels_init(&next->table, levels[l].features);
        next->name = levels[l].name;
        next->peak = moe_dtype_info_of(type)->is_float ? 0 : matmul_peak(&levels[l]);
        n_kernels += next->table.matmul[type] != last->matmul[type] ||
                     (next->table.tile_products != last->tile_products &&
                      next->table.unpack_tiles[type] != NULL);
    }
    if (type == MOE_DTYPE_F32) {
        setenv("OPENBLAS_NUM_THREADS", "1", 1); /* it is asked when it is loaded */
        if (moe_blas_load(&blas, NULL) == MOE_OK) {
            kernels[n_kernels].name = "OpenBLAS";
            kernels[n_kernels++].other = blas_sgemm;
        }
    }
    uint64_t random = 1;
    data->type = type;
    data->row_bytes = moe_dtype_row_bytes(type, N_IN);
    data->n_out = (uint32_t)(stream_bytes / data->row_bytes) / 8 * 8;
    random_rows(type, data->weights, 64, N_IN, &random);
    for (size_t b = 0; type == MOE_DTYPE_MXFP4 && b < 64 * data->row_bytes; b += 17) {
        data->weights[b] = 118; /* tests want subnormal scales, which no model has */
    }
    for (uint32_t o = 64; o < data->n_out; o++) {
        memcpy(data->weights + o * data->row_bytes, data->weights + o % 64 * data->row_bytes,
               data->row_bytes);
    }
    report(data, kernels, n_kernels, data->n_out, 1, MAX_THREADS);
    const uint32_t layer_out = (uint32_t)(layer_bytes / data->row_bytes) / 8 * 8;
    for (size_t i = 0; i < sizeof row_counts / sizeof row_counts[0]; i++) {
        const bool is_stream = row_counts[i] <= STREAM_ROWS;
        report(data, kernels, n_kernels, is_stream ? data->n_out : layer_out, row_counts[i], 1);
    }
}

int matmul_bench(const char *type_name)
{
    bench_data data = {0};
    uint64_t random = 5;
    moe_matmul_kernels kernels;
    moe_matmul_kernels_init(&kernels, 0);
    const size_t n_x = (size_t)MAX_BENCH_ROWS * N_IN;
    const size_t row_bytes_min = moe_dtype_row_bytes(MOE_DTYPE_IQ1_S, N_IN); /* the least */
    const size_t n_out_max = stream_bytes / row_bytes_min * STREAM_ROWS; /* > layer's times 128 */
    data.weights = moe_calloc_aligned(stream_bytes, 1);
    data.x = moe_calloc_aligned(n_x, sizeof *data.x);
    data.out = moe_calloc_aligned(n_out_max, sizeof *data.out);
    if (data.weights == NULL || data.x == NULL || data.out == NULL) {
        fprintf(stderr, "no memory for the benchmark\n");
        return 1;
    }
    for (size_t i = 0; i < n_x; i++) {
        data.x[i] = random_normal(&random);
    }
    for (int t = 0; t < MAX_THREADS; t++) {
        data.tile_scratch[t] = moe_calloc_aligned(MOE_TILE_SCRATCH_BYTES, 1);
    }
    data.x_q8 = q8_rows_new(MAX_BENCH_ROWS, N_IN, &data.scratch);
    kernels.quantize_rows(data.x, N_IN, MAX_BENCH_ROWS, N_IN, &data.x_q8, 0);
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        if (moe_dtype_info_of(type) != NULL &&
            (type_name == NULL || strcmp(type_name, moe_dtype_name(type)) == 0)) {
            bench_type(&data, (moe_dtype)type);
        }
    }
    free(data.weights);
    free(data.x);
    free(data.scratch);
    free(data.out);
    for (int t = 0; t < MAX_THREADS; t++) {
        free(data.tile_scratch[t]);
    }
    return 0;
}
