/* SPDX-License-Identifier: MIT */
/* Attention over the pages of the KV cache by the matrix units, in halves with sums in floats.
 *
 * Results have bits of their own, near those of attend_rows.cu. They depend on the row and the
 * layer alone: not on rows beside it, the length of a prompt's pieces, or the grid. The order:
 *
 *  - A query is divided by the power of two of its greatest element and rounded to halves. A score
 *    is its product with a key, summed 16 elements after 16; the power of two, the scale and
 * log2(e) are one factor of it. So weights are powers of two.
 *  - A stretch (256 logical positions from a multiple of 256 on) begins with nothing and takes its
 *    four pages in ascending order: the running maximum, then earlier sums times a power of two,
 *    then the page's weights, in halves, times its values, 16 positions after 16. The sum of
 *    weights is one more column of values, all of them 1. A position that the row does not see has
 *    a weight of 0.
 *  - The results of stretches are folded in ascending order (attend_fold.cu).
 *
 *       a block's warps          a page
 *       16 queries | w0 w1 ..    keys -> scores -> maximum -> weights -> values
 *       16 queries | w8 ..       each warp: its positions      each warp: its columns
 *
 * With many queries each warp has 16 of them, and all positions and columns. Its weights never
 * leave its registers: tiles of scores are the fragments of weights (half_units.cuh). With few
 * queries four warps share the positions and the columns, and pass the weights through shared
 * memory. While a block computes scores, the page's values are on their way; while it weighs
 * values, the next page's keys are. */
#include "cuda/kernels/attend_matrix.cuh"

/* Up to this many queries share a page's keys: four warps for each 16 of them. */
#define FEW_QUERIES 64u
#define ONES        0x3c003c00u /* two halves */

/* What a thread knows of its two queries, lane / 4 and 8 more in the warp's 16. */
template <int K_STEPS> struct attend_queries {
    uint32_t q[K_STEPS][4]; /* fragments */
    float factor[2];        /* of scores, in units of log 2 */
};

/* The results of a stretch so far, and of the stretches before it if the block folds them. */
template <int TILES> struct attend_sums {
    float max[2];
    float values[TILES][4];
    float sum[4]; /* the column of ones */
    float earlier_max[2];
    float earlier_sum[2];
};

/* The power of two by which a query is divided, 1 for zeros: bits of its greatest element. */
__device__ static inline float query_unit(float greatest)
{
    const uint32_t exponent = moe_device_bits_of(greatest) & 0x7f800000u;
    return exponent == 0 ? 1.0f : moe_device_float_of(smaller(exponent, 253u << 23));
}

/* places: all of the tile's, or NULL. */
template <int K_STEPS>
__device__ static inline void load_queries(const moe_attend_job &job, const query_tile &tile,
                                           uint32_t first_query, attend_queries<K_STEPS> *out,
                                           query_place *places)
{
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t query = first_query + threadIdx.x % MOE_WARP / 4 + 8 * h;
        const bool valid = query < tile.n;
        const uint32_t row = valid ? query / tile.heads : 0;
        const size_t head =
            (size_t)(tile.first_row + row) * job.n_head + tile.first_head + query % tile.heads;
        const float *q = job.q + (valid ? head : 0) * (16 * K_STEPS) + 2 * t;
        float greatest = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < 2 * K_STEPS; i++) {
            const moe_float2 two = *(const moe_float2 *)(q + 8 * i);
            greatest = fmaxf(greatest, fmaxf(fabsf(two.v[0]), fabsf(two.v[1])));
        }
        greatest = fmaxf(greatest, __shfl_xor_sync(MOE_ALL_WARP, greatest, 1));
        greatest = fmaxf(greatest, __shfl_xor_sync(MOE_ALL_WARP, greatest, 2));
        const float unit = query_unit(greatest);
        const float inverse = valid ? 1.0f / unit : 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < 2 * K_STEPS; i++) {
            const moe_float2 two = *(const moe_float2 *)(q + 8 * i);
            out->q[i / 2][i % 2 * 2 + h] = moe_pack_halves(two.v[0] * inverse, two.v[1] * inverse);
        }
        const moe_cuda_kv_row &place = job.rows[tile.first_row + row];
        const float scale =
            job.row_scales != NULL ? job.scale * job.row_scales[tile.first_row + row] : job.scale;
        out->factor[h] = scale * MOE_LOG2_OF_E * unit;
        const uint32_t first = moe_attend_first(job, place.position);
        if (places != NULL && t == 0)
            places[query] = {row, first, valid ? place.position + 1 - first : 0, 0};
    }
}

/* The first step: scores of the warp's 16 queries and its positions. */
template <typename SHAPE, int K_STEPS>
__device__ static inline void score_page(const attend_queries<K_STEPS> &queries,
                                         const uint8_t *keys, uint32_t first_tile,
                                         float scores[SHAPE::score_tiles][4])
{
    const uint32_t lane = threadIdx.x % MOE_WARP;
    const uint8_t *row =
        keys + (8 * first_tile + lane / 16 * 8 + lane % 8) * SHAPE::k_pitch + lane / 8 % 2 * PIECE;
#pragma unroll
    for (uint32_t n = 0; n < SHAPE::score_tiles; n++)
        scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.0f;
#pragma unroll
    for (uint32_t s = 0; s < K_STEPS; s++) {
#pragma unroll
        for (uint32_t n = 0; n < SHAPE::score_tiles; n += 2) {
            uint32_t b[4];
            MOE_LOAD_MATRICES(b, row + 8 * n * SHAPE::k_pitch + 2 * s * PIECE);
            MOE_MULTIPLY_HALVES(scores[n], queries.q[s], b[0], b[1]);
            MOE_MULTIPLY_HALVES(scores[n + 1], queries.q[s], b[2], b[3]);
        }
    }
}

/* Scores of positions that a query does not see become -infinity. */
template <typename SHAPE>
__device__ static inline void hide_scores(const query_place *places, const attend_step &step,
                                          uint32_t first_tile, float scores[SHAPE::score_tiles][4])
{
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const query_place place = places[threadIdx.x % MOE_WARP / 4 + 8 * h];
        const uint32_t position =
            step.page * MOE_KV_PAGE + 8 * first_tile + threadIdx.x % 4 * 2 - place.first;
        const uint32_t length = place.row - step.row < step.n_rows ? place.length : 0;
#pragma unroll
        for (uint32_t n = 0; n < SHAPE::score_tiles; n++)
#pragma unroll
            for (uint32_t e = 0; e < 2; e++)
                if (position + 8 * n + e >= length)
                    scores[n][2 * h + e] = -MOE_INFINITY;
    }
}

/* The greatest score of each of the two queries, among all of the page's positions. */
template <typename SHAPE>
__device__ static inline void greatest_scores(const float scores[SHAPE::score_tiles][4],
                                              uint32_t warp_row, uint32_t warp_column,
                                              float *maxima, float top[2])
{
    const uint32_t column_warps = MOE_KV_PAGE / 8 / SHAPE::score_tiles;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        top[h] = -MOE_INFINITY;
#pragma unroll
        for (uint32_t n = 0; n < SHAPE::score_tiles; n++)
            top[h] = fmaxf(top[h], fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
        top[h] = fmaxf(top[h], __shfl_xor_sync(MOE_ALL_WARP, top[h], 1));
        top[h] = fmaxf(top[h], __shfl_xor_sync(MOE_ALL_WARP, top[h], 2));
        if (SHAPE::shares && threadIdx.x % 4 == 0)
            maxima[(16 * warp_row + threadIdx.x % MOE_WARP / 4 + 8 * h) * column_warps +
                   warp_column] = top[h];
    }
    if (!SHAPE::shares)
        return;
    __syncthreads();
#pragma unroll
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t w = 0; w < column_warps; w++)
            top[h] = fmaxf(
                top[h],
                maxima[(16 * warp_row + threadIdx.x % MOE_WARP / 4 + 8 * h) * column_warps + w]);
}

/* The second step: turns scores into weights, as halves, and rescales what earlier pages gave. */
template <typename SHAPE, int TILES>
__device__ static inline void
weigh_page(const float top[2], const float factor[2], const float scores[SHAPE::score_tiles][4],
           uint32_t weights[SHAPE::score_tiles][2], attend_sums<TILES> *sums)
{
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const float max = fmaxf(sums->max[h], top[h] * factor[h]);
        const float base = max == -MOE_INFINITY ? 0.0f : max; /* it has seen nothing yet */
        const float keep = moe_device_exp2(sums->max[h] - base);
        sums->max[h] = max;
#pragma unroll
        for (uint32_t n = 0; n < SHAPE::score_tiles; n++)
            weights[n][h] =
                moe_pack_halves(moe_device_exp2(fmaf(scores[n][2 * h], factor[h], -base)),
                                moe_device_exp2(fmaf(scores[n][2 * h + 1], factor[h], -base)));
            /* Adding 0 keeps a product that vanishes from being -0. */
#pragma unroll
        for (uint32_t e = 0; e < 2; e++) {
            sums->sum[2 * h + e] = fmaf(sums->sum[2 * h + e], keep, 0.0f);
#pragma unroll
            for (uint32_t j = 0; j < TILES; j++)
                sums->values[j][2 * h + e] = fmaf(sums->values[j][2 * h + e], keep, 0.0f);
        }
    }
}

/* Makes the weights of all 64 positions the fragments of the third step. */
template <typename SHAPE>
__device__ static inline void gather_weights(const uint32_t own[SHAPE::score_tiles][2],
                                             uint32_t warp_row, uint32_t first_tile,
                                             uint8_t *shared, uint32_t weights[4][4])
{
    const uint32_t lane = threadIdx.x % MOE_WARP;
    if (!SHAPE::shares) {
#pragma unroll
        for (uint32_t i = 0; i < 16; i++)
            weights[i / 4][i % 4] = own[(i / 4 * 2 + i % 4 / 2) % SHAPE::score_tiles][i % 2];
        return;
    }
    shared += 16 * warp_row * SHAPE::w_pitch;
#pragma unroll
    for (uint32_t i = 0; i < 2 * SHAPE::score_tiles; i++)
        *(uint32_t *)(shared + (lane / 4 + i % 2 * 8) * SHAPE::w_pitch +
                      (first_tile + i / 2) * PIECE + lane % 4 * 4) = own[i / 2][i % 2];
    __syncthreads();
    const uint8_t *row = shared + lane % 16 * SHAPE::w_pitch + lane / 16 * PIECE;
#pragma unroll
    for (uint32_t s = 0; s < 4; s++)
        MOE_LOAD_MATRICES(weights[s], row + 2 * s * PIECE);
}

/* The third step: adds the weighted values in the warp's columns. */
template <typename SHAPE, int TILES>
__device__ static inline void add_values(const uint32_t weights[4][4], const uint8_t *values,
                                         uint32_t first_tile, attend_sums<TILES> *sums)
{
    const uint8_t *row = values + threadIdx.x % MOE_WARP * SHAPE::v_pitch + first_tile * PIECE;
#pragma unroll
    for (uint32_t s = 0; s < 4; s++)
        MOE_MULTIPLY_HALVES(sums->sum, weights[s], ONES, ONES);
#pragma unroll
    for (uint32_t s = 0; s < 4; s += 2) {
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++) {
            uint32_t b[4];
            MOE_LOAD_COLUMNS(b, row + 16 * s * SHAPE::v_pitch + j * PIECE);
            MOE_MULTIPLY_HALVES(sums->values[j], weights[s], b[0], b[1]);
            MOE_MULTIPLY_HALVES(sums->values[j], weights[s + 1], b[2], b[3]);
        }
    }
}

template <int TILES> __device__ static inline void begin_stretch(attend_sums<TILES> *sums)
{
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        sums->max[i / 2] = -MOE_INFINITY;
        sums->sum[i] = 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++)
            sums->values[j][i] = 0.0f;
    }
}

template <int TILES>
__device__ static inline void begin_sums(const moe_attend_job &job, const query_tile &tile,
                                         uint32_t first_query, attend_sums<TILES> *sums)
{
    begin_stretch(sums);
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t query = first_query + threadIdx.x % MOE_WARP / 4 + 8 * h;
        sums->earlier_max[h] = moe_attend_max_before(job, tile.first_head + query % tile.heads);
        sums->earlier_sum[h] = moe_attend_sum_before(job);
    }
}

/* Stores a stretch's results as a part, or folds them into the output. */
template <int TILES>
__device__ static inline void
end_stretch(const moe_attend_job &job, const query_tile &tile, const query_place *places,
            uint32_t first_query, uint32_t stretch, uint32_t first_column, attend_sums<TILES> *sums)
{
    const uint32_t positions = MOE_STRETCH_PAGES * MOE_KV_PAGE;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t query = first_query + threadIdx.x % MOE_WARP / 4 + 8 * h;
        const query_place place = places[query];
        const uint32_t end = place.first + place.length;
        if (place.length == 0 || end <= stretch * positions || place.first / positions > stretch)
            continue;
        const uint32_t row = tile.first_row + place.row;
        const uint32_t head = tile.first_head + query % tile.heads;
        const uint32_t column = first_column + threadIdx.x % 4 * 2;
        const float sum = sums->sum[2 * h];
        if (job.split) {
            const size_t part = moe_attend_part(job, row, head, stretch - job.first_part);
            if (column == 0) {
                job.part_max[part] = sums->max[h];
                job.part_sum[part] = sum;
            }
#pragma unroll
            for (uint32_t j = 0; j < TILES; j++)
                *(moe_float2 *)(job.part_out + part * job.layout.v_dim + column +
                                8 * j) = {sums->values[j][2 * h], sums->values[j][2 * h + 1]};
            continue;
        }
        float *out = job.out + ((size_t)row * job.n_head + head) * job.layout.v_dim + column;
        const float max = moe_greater(sums->max[h], sums->earlier_max[h]);
        const float keep = moe_binary_factor(sums->earlier_max[h], max);
        const float take = moe_binary_factor(sums->max[h], max);
        const bool begins = place.first / positions == stretch;
        const bool ends = end <= (stretch + 1) * positions;
        sums->earlier_max[h] = max;
        sums->earlier_sum[h] = fmaf(sums->earlier_sum[h], keep, sum * take);
        const float scale = ends ? 1.0f / sums->earlier_sum[h] : 1.0f;
        moe_float2 earlier[TILES] = {};
        if (!begins) {
#pragma unroll
            for (uint32_t j = 0; j < TILES; j++)
                earlier[j] = *(const moe_float2 *)(out + 8 * j);
        }
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++) {
#pragma unroll
            for (uint32_t e = 0; e < 2; e++)
                earlier[j].v[e] =
                    scale * fmaf(earlier[j].v[e], keep, sums->values[j][2 * h + e] * take);
            *(moe_float2 *)(out + 8 * j) = earlier[j];
        }
    }
}

template <int K_STEPS, int V_TILES, int QUERY_WARPS, int COLUMN_WARPS>
__global__ __launch_bounds__(MOE_WARP *QUERY_WARPS *COLUMN_WARPS,
                             1) void moe_attend_matrix(moe_attend_job job)
{
    typedef attend_shape<K_STEPS, V_TILES, QUERY_WARPS, COLUMN_WARPS> shape;
    constexpr uint32_t tiles = shape::value_tiles;
    MOE_DYNAMIC_SHARED(moe_float4, attend_pages);
    uint8_t *keys = (uint8_t *)attend_pages, *values = keys + shape::values;
    const uint32_t warp = threadIdx.x / MOE_WARP;
    const uint32_t warp_row = warp / COLUMN_WARPS, warp_column = warp % COLUMN_WARPS;
    /* The last rows of a prompt see the most positions: they go first. */
    const query_tile tile = tile_of_block(job, gridDim.x - 1 - blockIdx.x);
    MOE_BEGIN_EARLY();
    MOE_WAIT_FOR_STREAM();
    if (job.split && !sees_part(job, tile, job.first_part + blockIdx.z))
        return;
    const attend_span &span = share_span(job, tile, keys + shape::places);
    query_place *places = (query_place *)(&span + 1);
    attend_step step;
    uint32_t end_page;
    if (!first_step(job, tile, span, &step, &end_page))
        return;
    const moe_kv_layout &layout = job.layout;
    copy_page<shape::k_dim, shape::k_pitch, shape::threads>(job, tile, span, step, layout.k_offset,
                                                            layout.k_row_bytes, keys);
    __pipeline_commit();
    attend_queries<K_STEPS> queries;
    load_queries<K_STEPS>(job, tile, 16 * warp_row, &queries, warp_column == 0 ? places : NULL);
    attend_sums<tiles> sums;
    begin_sums(job, tile, 16 * warp_row, &sums);
    for (bool more = true; more;) {
        __pipeline_wait_prior(0);
        __syncthreads(); /* the keys have arrived, and no thread still reads the last values */
        copy_page<shape::v_dim, shape::v_pitch, shape::threads>(
            job, tile, span, step, layout.v_offset, layout.v_row_bytes, values);
        __pipeline_commit();
        float scores[shape::score_tiles][4];
        score_page<shape, K_STEPS>(queries, keys, warp_column * shape::score_tiles, scores);
        const attend_step now = step;
        more = next_step(job, tile, span, end_page, &step);
        __pipeline_wait_prior(0);
        __syncthreads(); /* the values have arrived, and no thread still reads the keys */
        if (more)
            copy_page<shape::k_dim, shape::k_pitch, shape::threads>(
                job, tile, span, step, layout.k_offset, layout.k_row_bytes, keys);
        __pipeline_commit();
        if (now.n_rows != tile.n_rows || now.page * MOE_KV_PAGE < span.last_first ||
            (now.page + 1) * MOE_KV_PAGE > span.least_end)
            hide_scores<shape>(places + 16 * warp_row, now, warp_column * shape::score_tiles,
                               scores);
        float top[2];
        greatest_scores<shape>(scores, warp_row, warp_column, (float *)(keys + shape::maxima), top);
        uint32_t own[shape::score_tiles][2], weights[4][4];
        weigh_page<shape, tiles>(top, queries.factor, scores, own, &sums);
        gather_weights<shape>(own, warp_row, warp_column * shape::score_tiles,
                              keys + shape::weights, weights);
        add_values<shape, tiles>(weights, values, warp_column * tiles, &sums);
        if (more && step.page / MOE_STRETCH_PAGES == now.page / MOE_STRETCH_PAGES)
            continue;
        end_stretch<tiles>(job, tile, places, 16 * warp_row, now.page / MOE_STRETCH_PAGES,
                           warp_column * tiles * 8, &sums);
        begin_stretch(&sums);
    }
}

template <int K_STEPS, int V_TILES, int QUERY_WARPS, int COLUMN_WARPS>
static void launch_tile(moe_cuda_stream stream, const moe_attend_job &job, uint32_t n_waved)
{
    typedef attend_shape<K_STEPS, V_TILES, QUERY_WARPS, COLUMN_WARPS> shape;
    uint32_t tiles = (job.group + job.tile_heads - 1) / job.tile_heads;
    dim3 grid((job.n_rows + job.tile_rows - 1) / job.tile_rows, job.layout.n_head_kv * tiles,
              n_waved);
    MOE_LAUNCH_EARLY((moe_attend_matrix<K_STEPS, V_TILES, QUERY_WARPS, COLUMN_WARPS>), grid,
                     shape::threads, shape::bytes, stream, job);
}

template <int K_STEPS, int V_TILES>
static void launch_sizes(moe_cuda_stream stream, const moe_attend_job &job, uint32_t n_waved)
{
    if (job.tile_heads * job.tile_rows <= 16)
        launch_tile<K_STEPS, V_TILES, 1, 4>(stream, job, n_waved);
    else
        launch_tile<K_STEPS, V_TILES, 8, 1>(stream, job, n_waved);
}

bool moe_cuda_attends_by_matrix(const moe_kv_layout *l, float cap)
{
    const bool sizes = l->k_dim == l->v_dim && (l->k_dim == 64 || l->k_dim == 128) && !l->v_in_k;
    return sizes && l->type == MOE_KV_F16 && cap == 0.0f &&
           (l->k_row_bytes | l->v_row_bytes | l->k_offset | l->v_offset) % PIECE == 0;
}

void moe_choose_matrix_tile(const moe_cuda_attention *attention, moe_attend_job *job)
{
    const uint32_t rows = attention->shared_pages ? attention->n_rows : 1;
    const uint32_t limit = (size_t)job->group * rows <= FEW_QUERIES ? 16 : 128;
    const uint32_t tiles = (job->group + limit - 1) / limit;
    job->tile_heads = (job->group + tiles - 1) / tiles;
    job->tile_rows = limit / job->tile_heads < rows ? limit / job->tile_heads : rows;
}

void moe_launch_attend_matrix(moe_cuda_stream stream, const moe_attend_job *job, uint32_t n_waved)
{
    if (job->layout.k_dim == 64)
        launch_sizes<4, 8>(stream, *job, n_waved);
    else
        launch_sizes<8, 16>(stream, *job, n_waved);
}
