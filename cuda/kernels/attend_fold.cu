/* SPDX-License-Identifier: MIT */
/* Folds the results of parts (pages of attend_rows.cu, stretches of attend_matrix.cu) into the
 * running state of a row and head, as attend_merge of vector_ops.h: in ascending order, from the
 * first part that the row sees. At the end divides by the sum. May quantise the result, too.
 *
 * The order of the sums is fixed, but the factors of a fold depend only on maxima, and a running
 * maximum is exact in any order. So a block scans the maxima of 256 parts at once, which gives
 * their factors. Then one thread for each column goes through the parts in order, with just one
 * product and one fmaf for each part. */
#include "cuda/kernels/attend.cuh"
#include "cuda/kernels/quantize_block.cuh"

#define THREADS 256u

typedef struct fold_shared {
    float max[2][THREADS]; /* maxima up to each part; the two arrays take turns in the scan */
    float keep[THREADS];
    float take[THREADS];
    float sum[THREADS];
} fold_shared;

/* Computes inclusive running maxima that start at `before`; returns which of the two arrays of
 * shared->max holds them. */
__device__ static inline uint32_t scan_maxima(fold_shared *shared, float own, float before)
{
    uint32_t i = threadIdx.x;
    uint32_t turn = 0;
    shared->max[0][i] = moe_greater(own, before);
    __syncthreads();
    for (uint32_t distance = 1; distance < THREADS; distance *= 2) {
        float max = shared->max[turn][i];
        if (i >= distance)
            max = moe_greater(shared->max[turn][i - distance], max);
        turn ^= 1;
        shared->max[turn][i] = max;
        __syncthreads();
    }
    return turn;
}

/* By which a sum is rescaled from one maximum to another, in the units of the maxima. */
__device__ static inline float factor_of(const moe_attend_job &job, float from, float to)
{
    return job.binary ? moe_binary_factor(from, to) : moe_fold_factor(from, to);
}

/* Loads factors and sums of up to THREADS parts from part `first` on, and returns the running
 * maximum after them. */
__device__ static inline float load_parts(const moe_attend_job &job, size_t first, uint32_t count,
                                          float before, fold_shared *shared)
{
    uint32_t i = threadIdx.x;
    float own = i < count ? job.part_max[first + i] : -MOE_INFINITY;
    uint32_t turn = scan_maxima(shared, own, before);
    float from = i == 0 ? before : shared->max[turn][i - 1];
    float to = shared->max[turn][i];
    shared->keep[i] = factor_of(job, from, to);
    shared->take[i] = factor_of(job, own, to);
    shared->sum[i] = i < count ? job.part_sum[first + i] : 0.0f;
    float after = shared->max[turn][count - 1];
    __syncthreads();
    return after;
}

/* Stores a finished column. If rows are quantised, a head is a whole number of blocks of 32. */
__device__ static inline void put_result(const moe_attend_job &job, uint32_t column, float value)
{
    const uint32_t head = blockIdx.x % job.n_head;
    job.out[(size_t)blockIdx.x * job.layout.v_dim + column] = value;
    if (job.out_q8.q != NULL)
        moe_device_quantize(job.out_q8, blockIdx.x / job.n_head, head * job.layout.v_dim + column,
                            value);
}

/* One row and head for each block. */
__global__ __launch_bounds__(THREADS) void moe_attend_fold(moe_attend_job job)
{
    __shared__ fold_shared shared;
    uint32_t row = blockIdx.x / job.n_head;
    MOE_BEGIN_EARLY();
    MOE_WAIT_FOR_STREAM();
    const uint32_t part_positions = job.part_pages * MOE_KV_PAGE;
    uint32_t n_parts = job.rows[row].position / part_positions + 1;
    uint32_t row_first = moe_attend_first(job, job.rows[row].position) / part_positions;
    uint32_t begin = row_first > job.first_part ? row_first : job.first_part;
    if (n_parts <= begin || begin >= job.first_part + job.n_parts)
        return;
    bool first_wave = begin == row_first;
    bool last_wave = n_parts - job.first_part <= job.n_parts;
    uint32_t count = (last_wave ? n_parts : job.first_part + job.n_parts) - begin;
    uint32_t v_dim = job.layout.v_dim;
    size_t part = (size_t)blockIdx.x * job.n_parts + (begin - job.first_part);
    float max_before = moe_attend_max_before(job, blockIdx.x % job.n_head);
    float *out = job.out + (size_t)blockIdx.x * v_dim;
    float max = -MOE_INFINITY;
    float sum = 0.0f;
    for (uint32_t column0 = 0; column0 < v_dim; column0 += THREADS) {
        uint32_t column = column0 + threadIdx.x;
        bool valid = column < v_dim;
        float value = valid && !first_wave ? out[column] : 0.0f;
        max = first_wave ? max_before : job.state_max[blockIdx.x];
        sum = first_wave ? moe_attend_sum_before(job) : job.state_sum[blockIdx.x];
        for (uint32_t first = 0; first < count; first += THREADS) {
            uint32_t parts = count - first < THREADS ? count - first : THREADS;
            const float *values = job.part_out + (part + first) * v_dim + (valid ? column : 0);
            max = load_parts(job, part + first, parts, max, &shared);
#pragma unroll 8
            for (uint32_t p = 0; p < parts; p++) {
                value = fmaf(value, shared.keep[p], values[(size_t)p * v_dim] * shared.take[p]);
                sum = fmaf(sum, shared.keep[p], shared.sum[p] * shared.take[p]);
            }
            __syncthreads();
        }
        if (valid && last_wave)
            put_result(job, column, 1.0f / sum * value);
        else if (valid)
            out[column] = value;
    }
    const uint32_t padding = job.n_head * v_dim + threadIdx.x;
    if (last_wave && job.out_q8.q != NULL && blockIdx.x % job.n_head == job.n_head - 1 &&
        padding < job.out_q8.n_in_padded)
        moe_device_quantize(job.out_q8, row, padding, 0.0f);
    __syncthreads();
    if (threadIdx.x == 0) {
        job.state_max[blockIdx.x] = max;
        job.state_sum[blockIdx.x] = sum;
    }
}

void moe_launch_attend_fold(moe_cuda_stream stream, const moe_attend_job *job)
{
    MOE_LAUNCH_EARLY(moe_attend_fold, job->n_rows * job->n_head, THREADS, 0, stream, *job);
}
