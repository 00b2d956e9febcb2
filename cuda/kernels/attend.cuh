/* SPDX-License-Identifier: MIT */
/* Shared by the sources of attention: the job, the queries of a block, and where results of parts
 * are stored. A part is a page, or with matrix units a stretch of pages. */
#ifndef MOE_CUDA_ATTEND_CUH
#define MOE_CUDA_ATTEND_CUH

#include "cpu/kernels/vector_ops.h"
#include "cuda/kernels/exp2.cuh"
#include "cuda/kernels/vector_launch.h"
#include "cuda/kernels/vector_math.cuh"

/* The pages of a stretch: the 256 positions from a multiple of 256 on. */
#define MOE_STRETCH_PAGES 4u

typedef struct moe_attend_job {
    moe_kv_layout layout;
    const moe_cuda_kv_row *rows; /* device, [n_rows] */
    const float *q;              /* [n_rows][n_head][k_dim] */
    float *out;                  /* [n_rows][n_head][v_dim] */
    float *part_max;             /* [n_rows][n_head][n_parts] */
    float *part_sum;             /* [n_rows][n_head][n_parts] */
    float *part_out;             /* [n_rows][n_head][n_parts][v_dim] */
    float *state_max;            /* [n_rows][n_head]: the maxima after the earlier waves of parts */
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
    bool split;              /* a block stores the result of one part */
    uint32_t part_pages;     /* pages of a part: 1, or MOE_STRETCH_PAGES with matrix units */
    bool binary;             /* maxima are in units of log 2 (matrix units) */
    uint32_t first_part;     /* if split: the first part of this wave */
    uint32_t n_parts;
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
    if (job.sinks == NULL)
        return -MOE_INFINITY;
    return job.binary ? job.sinks[head] * MOE_LOG2_OF_E : job.sinks[head] + 0.0f;
}

__device__ static inline float moe_attend_sum_before(const moe_attend_job &job)
{
    return job.sinks != NULL ? 1.0f : 0.0f;
}

/* The index of the partial result of a row, a head and a part; `part` counts from the wave's first.
 */
__device__ static inline size_t moe_attend_part(const moe_attend_job &job, uint32_t row,
                                                uint32_t head, uint32_t part)
{
    return ((size_t)row * job.n_head + head) * job.n_parts + part;
}

/* exp(from - to): the factor by which attend_merge rescales a sum from one maximum to another. */
__device__ static inline float moe_fold_factor(float from, float to)
{
    return from == -MOE_INFINITY ? 0.0f : moe_device_exp(from - to);
}

/* The same of maxima in units of log 2. */
__device__ static inline float moe_binary_factor(float from, float to)
{
    return from == -MOE_INFINITY ? 0.0f : moe_device_exp2(from - to);
}

/* The n queries of a block. Query i is head first_head + i % heads of row first_row + i / heads. */
typedef struct query_tile {
    uint32_t first_row;
    uint32_t n_rows;
    uint32_t first_head;
    uint32_t heads;
    uint32_t kv_head;
    uint32_t n;
} query_tile;

__device__ static inline uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* row_tile: which of the tiles of rows; the block's y says which heads. */
__device__ static inline query_tile tile_of_block(const moe_attend_job &job, uint32_t row_tile)
{
    query_tile tile;
    uint32_t tiles = (job.group + job.tile_heads - 1) / job.tile_heads;
    uint32_t first = blockIdx.y % tiles * job.tile_heads;
    tile.kv_head = blockIdx.y / tiles;
    tile.first_head = tile.kv_head * job.group + first;
    tile.heads = smaller(job.group - first, job.tile_heads);
    tile.first_row = row_tile * job.tile_rows;
    tile.n_rows = smaller(job.n_rows - tile.first_row, job.tile_rows);
    tile.n = tile.heads * tile.n_rows;
    return tile;
}

/* Whether a row of the tile sees a position of the part. A recorded launch has blocks for all parts
 * that the step has room for. Most of these blocks end here, before they load queries or reach a
 * barrier. */
__device__ static inline bool sees_part(const moe_attend_job &job, const query_tile &tile,
                                        uint32_t part)
{
    const uint32_t positions = job.part_pages * MOE_KV_PAGE;
    for (uint32_t r = 0; r < tile.n_rows; r++) {
        const uint32_t position = job.rows[tile.first_row + r].position;
        if (part <= position / positions && part >= moe_attend_first(job, position) / positions)
            return true;
    }
    return false;
}

/* Folds the results of one wave of parts. */
void moe_launch_attend_fold(moe_cuda_stream stream, const moe_attend_job *job);

/* Attention by matrix units (attend_matrix.cu). Chooses how many heads and rows a block takes. */
void moe_choose_matrix_tile(const moe_cuda_attention *attention, moe_attend_job *job);
/* Launches n_waved parts of a wave, or all of them one after the other if the job is not split. */
void moe_launch_attend_matrix(moe_cuda_stream stream, const moe_attend_job *job, uint32_t n_waved);

#endif
