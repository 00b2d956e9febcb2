/* SPDX-License-Identifier: MIT */
/* Many products at once. The weight rows of all products form one queue, in units of UNIT_ROWS.
 * Workers take runs of units from its front: long runs first, because memory reads long streams
 * faster, and shorter runs towards the end, so that all workers finish together. A run that spans
 * products is cut at their borders. One worker computes each output whole, so the result does not
 * depend on which worker took which run. */
#include "cpu/cpu_internal.h"

#define UNIT_ROWS 32u
/* A worker's run is its fair share of the remaining units, divided by this. */
#define SHARE_DIVISOR 2u
/* But a run has at least this many bytes, because every run restarts the hardware's prefetchers. */
#define MIN_RUN_BYTES (128u << 10)
/* The caller alone computes calls with fewer multiply-adds: waking the team costs more. */
#define ALONE_MACS (1u << 15)
/* From this many rows on, OpenBLAS pays for float weights. */
#define BLAS_MIN_ROWS 16u

typedef struct products_job {
    moe_cpu_device *cpu;
    const moe_cpu_product *products;
    uint32_t n_products;
    uint32_t n_units;
    uint32_t min_units;
    _Alignas(64) _Atomic uint32_t next_unit;
} products_job;

static uint32_t units_of(const moe_weight *weight)
{
    return (weight->n_out + UNIT_ROWS - 1) / UNIT_ROWS;
}

static bool blas_matmul(const moe_cpu_device *cpu, const moe_matmul_args *args)
{
    if (cpu->blas.sgemm == NULL || args->type != MOE_DTYPE_F32 || args->n_rows < BLAS_MIN_ROWS ||
        args->x_index != NULL || args->out_index != NULL) {
        return false;
    }
    cpu->blas.sgemm(MOE_BLAS_ROW_MAJOR, MOE_BLAS_NO_TRANSPOSE, MOE_BLAS_TRANSPOSE,
                    (int)args->n_rows, (int)args->n_out, (int)args->n_in, 1.0f, args->x,
                    (int)args->x_stride, args->weights, (int)args->n_in, 0.0f, args->out,
                    (int)args->out_stride);
    return true;
}

static void multiply(const moe_cpu_device *cpu, uint32_t worker, const moe_matmul_args *args)
{
    if (!blas_matmul(cpu, args)) {
        uint8_t *scratch = cpu->tile_scratch;
        moe_matmul_run(&cpu->matmul, args,
                       scratch != NULL ? scratch + worker * MOE_TILE_SCRATCH_BYTES : NULL);
    }
}

/* Runs units [begin, end) of one product. */
static void run_product(const products_job *job, const moe_cpu_product *product, uint32_t worker,
                        uint32_t begin, uint32_t end)
{
    const moe_weight *weight = &product->weight;
    uint32_t first = begin * UNIT_ROWS;
    uint32_t last = end * UNIT_ROWS < weight->n_out ? end * UNIT_ROWS : weight->n_out;
    moe_matmul_args args = product->args;
    args.type = weight->type;
    args.weights = (const uint8_t *)weight->data + (size_t)first * weight->row_bytes;
    args.row_bytes = weight->row_bytes;
    args.n_in = weight->n_in;
    args.n_out = last - first;
    args.x_q8 = &product->x_q8;
    args.out += first;
    multiply(job->cpu, worker, &args);
    const bool finish = weight->scale != 0.0f || product->bias != NULL;
    for (uint32_t r = 0; finish && r < args.n_rows; r++) {
        uint32_t row = args.out_index != NULL ? args.out_index[r] : r;
        float *out = args.out + (size_t)row * args.out_stride;
        if (weight->scale != 0.0f) {
            job->cpu->vector.scale(weight->scale, out, args.n_out);
        }
        if (product->bias != NULL) {
            job->cpu->vector.add(out, product->bias + first, out, args.n_out);
        }
    }
}

static void run_units(const products_job *job, uint32_t worker, uint32_t begin, uint32_t end)
{
    for (uint32_t p = 0; p < job->n_products && begin < end; p++) {
        uint32_t n = units_of(&job->products[p].weight);
        if (begin < n) {
            run_product(job, &job->products[p], worker, begin, end < n ? end : n);
            begin = n;
        }
        begin -= n;
        end = end > n ? end - n : 0;
    }
}

static uint32_t take_units(products_job *job, uint32_t n_workers, uint32_t *begin)
{
    *begin = atomic_load_explicit(&job->next_unit, memory_order_relaxed);
    uint32_t n;
    do {
        uint32_t left = job->n_units - *begin;
        n = left / (n_workers * SHARE_DIVISOR);
        n = n > job->min_units ? n : job->min_units;
        n = n < left ? n : left;
    } while (n > 0 &&
             !atomic_compare_exchange_weak_explicit(&job->next_unit, begin, *begin + n,
                                                    memory_order_relaxed, memory_order_relaxed));
    return n;
}

static void products_worker(void *arg, uint32_t worker, uint32_t n_workers)
{
    products_job *job = arg;
    uint32_t begin;
    for (uint32_t n; (n = take_units(job, n_workers, &begin)) > 0;) {
        run_units(job, worker, begin, begin + n);
    }
}

void moe_cpu_run_products(moe_cpu_device *cpu, const moe_cpu_product *products, uint32_t n_products)
{
    products_job job = {.cpu = cpu, .products = products, .n_products = n_products};
    uint64_t macs = 0;
    size_t unit_bytes = 1;
    for (uint32_t p = 0; p < n_products; p++) {
        const moe_weight *weight = &products[p].weight;
        job.n_units += units_of(weight);
        macs += (uint64_t)weight->n_out * weight->n_in * products[p].args.n_rows;
        size_t bytes = UNIT_ROWS * weight->row_bytes;
        unit_bytes = bytes > unit_bytes ? bytes : unit_bytes;
    }
    job.min_units = (uint32_t)((MIN_RUN_BYTES + unit_bytes - 1) / unit_bytes);
    if (macs < ALONE_MACS) {
        products_worker(&job, 0, 1);
    } else {
        moe_team_run(cpu->team, products_worker, &job);
    }
}
