/* SPDX-License-Identifier: MIT */
/* Shared by the two halves of attention: the job, and where the results of pages (parts) are
 * stored. */
#ifndef MOE_CUDA_ATTEND_CUH
#define MOE_CUDA_ATTEND_CUH

#include "cpu/kernels/vector_ops.h"
#include "cuda/kernels/vector_launch.h"
#include "cuda/kernels/vector_math.cuh"

typedef struct moe_attend_job {
    moe_kv_layout layout;
    const moe_cuda_kv_row *rows; /* device, [n_rows] */
    const float *q;              /* [n_rows][n_head][k_dim] */
    float *out;                  /* [n_rows][n_head][v_dim] */
    float *part_max;             /* [n_rows][n_head][n_pages] */
    float *part_sum;             /* [n_rows][n_head][n_pages] */
    float *part_out;             /* [n_rows][n_head][n_pages][v_dim] */
    float *state_max;            /* [n_rows][n_head]: the maxima after the earlier waves of pages */
    float *state_sum;
    uint32_t n_rows;
    uint32_t n_head;
    float scale;
    float cap;       /* 0: none */
    uint32_t window; /* 0: none; window and chunk as in moe_attention */
    uint32_t chunk;
    const float *sinks;      /* [n_head] or NULL */
    const float *row_scales; /* [n_rows] or NULL: factors of scale */
    uint32_t group;          /* query heads that share a KV head */
    uint32_t tile_heads;     /* query heads that a block takes */
    uint32_t tile_rows;      /* rows that a block takes */
    uint32_t q_stride;       /* floats from query to query in shared memory */
    uint32_t v_bytes;        /* bytes of a position's values */
    bool wide;               /* one load may read four elements of a key or value */
    bool split;              /* a block takes one page and stores its part */
    uint32_t first_page;     /* if split: the first page of this wave */
    uint32_t n_pages;
    moe_q8_rows out_q8; /* as in moe_cuda_attention */
} moe_attend_job;

/* The first position that a row sees: moe_attention_first() of device.h. */
__device__ static inline uint32_t moe_attend_first(const moe_attend_job &job, uint32_t position)
{
    uint32_t n = position + 1;
    uint32_t first = job.window > 0 && job.window < n ? n - job.window : 0;
    uint32_t begin = job.chunk > 0 ? position / job.chunk * job.chunk : 0;
    return first > begin ? first : begin;
}

/* The running state before any page: empty, or the head's sink. */
__device__ static inline float moe_attend_max_before(const moe_attend_job &job, uint32_t head)
{
    return job.sinks != NULL ? job.sinks[head] + 0.0f : -MOE_INFINITY;
}

__device__ static inline float moe_attend_sum_before(const moe_attend_job &job)
{
    return job.sinks != NULL ? 1.0f : 0.0f;
}

/* The index of the partial result of a row, a head and a page; `page` counts from the wave's first.
 */
__device__ static inline size_t moe_attend_part(const moe_attend_job &job, uint32_t row,
                                                uint32_t head, uint32_t page)
{
    return ((size_t)row * job.n_head + head) * job.n_pages + page;
}

/* exp(from - to): the factor by which attend_merge rescales a sum from one maximum to another. */
__device__ static inline float moe_fold_factor(float from, float to)
{
    return from == -MOE_INFINITY ? 0.0f : moe_device_exp(from - to);
}

/* Folds the parts of one wave of pages. */
void moe_launch_attend_fold(moe_cuda_stream stream, const moe_attend_job *job);

#endif
