/* SPDX-License-Identifier: MIT */
/* Turns descriptors into launches: products of one type, linear maps, experts.
 *
 * Experts are three steps over all works: gate and up products (the descriptors of all gates, then
 * of all ups), then the activation with quantisation, then down products. Inner rows (rows of n_ff)
 * are numbered through all works. Neighbouring descriptors of the same type share launches. So if a
 * layer's experts have one type, each step takes one launch for each class of row counts. */
#include "cuda/kernels/matrix_product.cuh"
#include "cuda/kernels/weight_point_slices.cuh"

#define MAX_PRODUCTS 65535u /* the limit of a grid's third dimension */
#define WIDE_ROWS    33u
#define THIN_BYTES   (23u << 10)
#define NARROW_ROWS  16u
/* Assumed if the caller does not give the GPU's number of multiprocessors. */
#define USUAL_MULTIPROCESSORS 132u

enum { TILE16_CLASS = 4, TILE32_CLASS, TILE64_CLASS, N_CLASSES };

static bool is_float(moe_dtype type)
{
    return type == MOE_DTYPE_F32 || type == MOE_DTYPE_F16 || type == MOE_DTYPE_BF16;
}

static void raise(uint32_t *max, uint32_t n)
{
    *max = n > *max ? n : *max;
}

/* Raises each class's maximum number of rows to what a product of n_rows gives to the class. */
static void count_rows(const moe_cuda_products &job, uint32_t n_rows, uint32_t *max_rows)
{
    if (n_rows >= job.matrix_from) {
        uint32_t wide = wide_rows_of(job, n_rows), rest = n_rows > wide ? n_rows - wide : 0;
        raise(&max_rows[TILE64_CLASS], wide);
        raise(&max_rows[rest <= job.narrow_upto ? TILE16_CLASS : TILE32_CLASS], rest);
        return;
    }
    uint32_t rows = tile_rows_of(n_rows);
    raise(&max_rows[rows == 8 ? 3 : rows / 2], n_rows);
}

static uint32_t rows_of(const moe_cuda_products &job, uint32_t p)
{
    return job.host_list != NULL ? job.host_list[p].n_rows : job.first.n_rows;
}

/* Types with a scale for each 16 elements: matrix_product.cuh then has tiles of 32 weight rows. */
static bool has_runs_of_16(moe_dtype type)
{
    return type == MOE_DTYPE_Q2_K || type == MOE_DTYPE_Q3_K || type == MOE_DTYPE_Q6_K ||
           type == MOE_DTYPE_IQ2_XS || type == MOE_DTYPE_IQ2_S || type == MOE_DTYPE_IQ1_M ||
           type == MOE_DTYPE_NVFP4;
}

template <int... TYPES> static bool reads_words(moe_dtype type)
{
    return ((type == TYPES && weight_slice<TYPES>::aligned) || ...);
}

/* Whether matrix_product.cuh can compute the job. It reads blocks of whole words as words, so such
 * blocks must be aligned. It counts activations with 32 bits. */
static bool suits_matrix_units(const moe_cuda_products &job)
{
    if (is_float(job.type) || (job.list != NULL && job.host_list == NULL) ||
        (uint64_t)job.x_q8.n_rows * job.x_q8.n_in_padded + MOE_GROUP > UINT32_MAX)
        return false;
    if (!reads_words<MOE_DTYPE_Q4_0, MOE_DTYPE_Q4_1, MOE_DTYPE_Q5_0, MOE_DTYPE_Q5_1, MOE_DTYPE_Q8_0,
                     MOE_DTYPE_Q2_K, MOE_DTYPE_Q3_K, MOE_DTYPE_Q4_K, MOE_DTYPE_Q5_K, MOE_DTYPE_Q6_K,
                     MOE_DTYPE_IQ4_NL, MOE_DTYPE_IQ4_XS, MOE_DTYPE_MXFP4, MOE_DTYPE_IQ2_XXS,
                     MOE_DTYPE_IQ2_XS, MOE_DTYPE_IQ2_S, MOE_DTYPE_IQ3_XXS, MOE_DTYPE_IQ3_S,
                     MOE_DTYPE_IQ1_S, MOE_DTYPE_IQ1_M, MOE_DTYPE_TQ1_0, MOE_DTYPE_TQ2_0,
                     MOE_DTYPE_NVFP4>(job.type))
        return true;
    uintptr_t addresses = job.row_bytes | (uintptr_t)job.first.weights | job.weights_step;
    for (uint32_t p = 0; job.host_list != NULL && p < job.n_products; p++)
        addresses |= (uintptr_t)job.host_list[p].weights;
    return addresses % 4 == 0;
}

/* From which numbers on there is enough work for a GPU's multiprocessors. */
typedef struct thresholds {
    uint64_t thin;        /* with fewer warps, a warp takes fewer weight rows, for more warps */
    uint64_t warps;       /* with fewer warps, blocks of four warps leave multiprocessors idle */
    uint64_t blocks;      /* with fewer blocks, so many multiprocessors are idle that twice as many
                           * blocks with half the rows finish earlier */
    uint64_t many_blocks; /* from this many blocks on, left-over rows are better in smaller tiles */
} thresholds;

static thresholds thresholds_of(const moe_cuda_products &job)
{
    uint64_t n = job.n_multiprocessors > 0 ? job.n_multiprocessors : USUAL_MULTIPROCESSORS;
    return {n, 8 * n, n / 2, 4 * n};
}

/* Whether moe_product_thin can compute the job: one product, or maps of one input. The weights must
 * be aligned floats, and two of their rows must fit shared memory. */
static bool can_be_thin(const moe_cuda_products &job)
{
    uintptr_t addresses = job.row_bytes | (uintptr_t)job.first.weights;
    for (uint32_t m = 0; m < job.n_more; m++)
        addresses |= (uintptr_t)job.more[m].weights;
    return is_float(job.type) && job.list == NULL && job.n_products == 1 && addresses % 16 == 0 &&
           job.row_bytes <= THIN_BYTES;
}

/* Sets the thresholds that the caller left at 0. */
static void choose_classes(moe_cuda_products *job, const thresholds &enough)
{
    if (!suits_matrix_units(*job))
        job->matrix_from = MOE_CUDA_NEVER;
    else if (job->matrix_from == 0)
        job->matrix_from = MOE_CUDA_MATRIX_ROWS;
    uint32_t outs = has_runs_of_16(job->type) ? 32 : 64;
    uint64_t wide = 0, medium = 0; /* numbers of tiles of 64 rows and of 32 rows */
    for (uint32_t p = 0; p < job->n_products; p++) {
        uint32_t n = rows_of(*job, p);
        wide += n >= WIDE_ROWS ? (n + 63) / 64 : 0;
        medium += n >= job->matrix_from ? (n + 31) / 32 : 0;
    }
    wide *= (job->n_out + outs - 1) / outs;
    medium *= (job->n_out + outs - 1) / outs;
    if (job->wide_from == 0)
        job->wide_from = wide >= enough.blocks ? WIDE_ROWS : MOE_CUDA_NEVER;
    if (job->wide_rest == 0)
        job->wide_rest = wide >= enough.many_blocks ? WIDE_ROWS : 1;
    if (job->narrow_upto == 0)
        job->narrow_upto = medium >= enough.blocks ? NARROW_ROWS : MOE_CUDA_NEVER;
}

moe_cuda_product_plan moe_cuda_plan_products(const moe_cuda_products *products)
{
    moe_cuda_product_plan plan = {*products, 1};
    thresholds enough = thresholds_of(plan.job);
    choose_classes(&plan.job, enough);
    uint64_t warps =
        (uint64_t)(plan.job.n_out + ROWS_A_WARP - 1) / ROWS_A_WARP * plan.job.n_products;
    for (uint32_t m = 0; m < plan.job.n_more; m++)
        warps += (plan.job.more[m].n_out + ROWS_A_WARP - 1) / ROWS_A_WARP;
    plan.warps_a_block = warps >= enough.warps                          ? MAX_WARPS
                         : warps < enough.thin && can_be_thin(plan.job) ? 0
                                                                        : 1;
    return plan;
}

void moe_cuda_matmul(moe_cuda_stream stream, const moe_cuda_products *products)
{
    uint32_t max_rows[N_CLASSES] = {};
    if (products->n_out == 0)
        return;
    const moe_cuda_product_plan plan = moe_cuda_plan_products(products);
    const moe_cuda_products &job = plan.job;
    const uint32_t warps_a_block = plan.warps_a_block;
    for (uint32_t p = 0; p < job.n_products; p++)
        count_rows(job, rows_of(job, p), max_rows);
    if (job.list != NULL && job.host_list == NULL)
        raise(&max_rows[0], 1);
    if (!moe_cuda_product_floats(stream, job, warps_a_block, max_rows) &&
        !moe_cuda_product_blocks32(stream, job, warps_a_block, max_rows) &&
        !moe_cuda_product_blocks256(stream, job, warps_a_block, max_rows) &&
        !moe_cuda_product_points(stream, job, warps_a_block, max_rows))
        moe_cuda_product_ternary(stream, job, warps_a_block, max_rows);
    if (!moe_cuda_matrix_blocks32(stream, job, max_rows + TILE16_CLASS) &&
        !moe_cuda_matrix_blocks256(stream, job, max_rows + TILE16_CLASS) &&
        !moe_cuda_matrix_points(stream, job, max_rows + TILE16_CLASS))
        moe_cuda_matrix_ternary(stream, job, max_rows + TILE16_CLASS);
}

static moe_cuda_products products_of(const moe_weight *weight, uint32_t n_multiprocessors)
{
    moe_cuda_products products = {};
    products.n_multiprocessors = n_multiprocessors;
    products.type = weight->type;
    products.n_in = weight->n_in;
    products.n_out = weight->n_out;
    products.row_bytes = weight->row_bytes;
    products.first.weights = weight->data;
    return products;
}

static bool share_launch(const moe_linear *a, const moe_linear *b)
{
    return a->weight.type == b->weight.type && a->weight.row_bytes == b->weight.row_bytes &&
           a->weight.n_in == b->weight.n_in && a->weight.n_out > 0 && b->weight.n_out > 0;
}

void moe_cuda_linears(moe_cuda_stream stream, uint32_t n_multiprocessors, const moe_linear *linears,
                      uint32_t n_linears, const float *x, const moe_q8_rows *x_q8, uint32_t n_rows)
{
    uint32_t done = 0;
    for (uint32_t i = 0; i < n_linears; i++) {
        const moe_linear *linear = &linears[i];
        if ((done >> i & 1) != 0)
            continue;
        moe_cuda_products products = products_of(&linear->weight, n_multiprocessors);
        if (!is_float(products.type))
            products.x_q8 = *x_q8;
        products.x_stride = linear->weight.n_in;
        products.out_stride = linear->weight.n_out;
        products.n_products = 1;
        products.first.x = x;
        products.first.out = linear->out;
        products.first.bias = linear->bias;
        products.first.n_rows = n_rows;
        for (uint32_t j = i + 1; j < n_linears && n_rows < MOE_CUDA_MATRIX_ROWS; j++) {
            const moe_linear *other = &linears[j];
            if ((done >> j & 1) != 0 || products.n_more == MOE_CUDA_MORE_MAPS ||
                !share_launch(linear, other))
                continue;
            products.more[products.n_more++] = {other->weight.data, other->out, other->bias,
                                                other->weight.n_out};
            done |= 1u << j;
        }
        moe_cuda_matmul(stream, &products);
    }
}

void moe_cuda_head_linear(moe_cuda_stream stream, uint32_t n_multiprocessors,
                          const moe_head_linear *linear, uint32_t n_rows, void *q8_memory)
{
    if (linear->n_head == 0)
        return;
    moe_cuda_products products = products_of(&linear->weight, n_multiprocessors);
    products.n_out /= linear->n_head;
    if (!is_float(products.type)) {
        moe_q8_rows_bind(&products.x_q8, q8_memory, n_rows * linear->n_head, products.n_in);
        moe_cuda_quantize quantize = {};
        quantize.x = linear->x;
        quantize.x_stride = linear->x_row_stride;
        quantize.outer_stride = linear->x_head_stride;
        quantize.n_inner = n_rows;
        quantize.n_rows = n_rows * linear->n_head;
        quantize.out = products.x_q8;
        moe_cuda_quantize_rows(stream, &quantize);
    }
    products.x_stride = linear->x_row_stride;
    products.out_stride = linear->out_row_stride;
    products.n_products = linear->n_head;
    products.weights_step = products.n_out * products.row_bytes;
    products.x_step = linear->x_head_stride;
    products.out_step = linear->out_head_stride;
    products.row_step = n_rows;
    products.first.x = linear->x;
    products.first.out = linear->out;
    products.first.n_rows = n_rows;
    moe_cuda_matmul(stream, &products);
}

void moe_cuda_experts_list(const moe_cuda_experts *experts)
{
    uint32_t first = 0;
    for (uint32_t w = 0; w < experts->n_works; w++) {
        const moe_expert_work *work = &experts->works[w];
        size_t inner = (size_t)first * work->gate.n_out;
        moe_cuda_product gate = {};
        gate.weights = work->gate.data;
        gate.x = experts->x;
        gate.out = experts->gate + inner;
        gate.x_index = work->x_index;
        gate.n_rows = work->n_rows;
        gate.bias = work->gate_bias;
        moe_cuda_product up = gate;
        up.weights = work->up.data;
        up.bias = work->up_bias;
        up.out = experts->up + inner;
        moe_cuda_product down = {};
        down.weights = work->down.data;
        down.x = experts->gate + inner;
        down.out = experts->out;
        down.out_index = work->out_index;
        down.first_row = first;
        down.n_rows = work->n_rows;
        down.bias = work->down_bias;
        experts->host_list[w] = gate;
        experts->host_list[experts->n_works + w] = up;
        experts->host_list[2 * experts->n_works + w] = down;
        first += work->n_rows;
    }
}

/* Matrix number i: first all gates, then all ups, then all downs. */
static const moe_weight *weight_of(const moe_cuda_experts *experts, uint32_t i)
{
    const moe_expert_work *work = &experts->works[i % experts->n_works];
    uint32_t step = i / experts->n_works;
    return step == 0 ? &work->gate : step == 1 ? &work->up : &work->down;
}

/* Launches descriptors begin .. end; neighbours of the same type share launches. */
static void run_list(moe_cuda_stream stream, const moe_cuda_experts *experts,
                     const moe_q8_rows *x_q8, size_t x_stride, size_t out_stride, uint32_t begin,
                     uint32_t end)
{
    while (begin < end) {
        const moe_weight *weight = weight_of(experts, begin);
        uint32_t n = 1;
        while (begin + n < end && n < MAX_PRODUCTS &&
               weight_of(experts, begin + n)->type == weight->type &&
               weight_of(experts, begin + n)->row_bytes == weight->row_bytes)
            n++;
        moe_cuda_products products = products_of(weight, experts->n_multiprocessors);
        products.x_q8 = *x_q8;
        products.x_stride = x_stride;
        products.out_stride = out_stride;
        products.n_products = n;
        products.list = experts->list + begin;
        products.host_list = experts->host_list + begin;
        moe_cuda_matmul(stream, &products);
        begin += n;
    }
}

/* Computes the activation: if a down matrix has floats, as floats over the gate's output; if a down
 * matrix is quantised, as quantised rows. */
static void activate(moe_cuda_stream stream, const moe_cuda_experts *experts, uint32_t n_inner,
                     uint32_t n_ff, const moe_q8_rows *h_q8)
{
    bool floats = false, quantised = false;
    for (uint32_t w = 0; w < experts->n_works; w++) {
        bool down = is_float(experts->works[w].down.type);
        floats |= down;
        quantised |= !down;
    }
    if (quantised) {
        moe_cuda_quantize quantize = {};
        quantize.x = experts->gate;
        quantize.up = experts->up;
        quantize.activation = experts->works[0].activation;
        quantize.scales = experts->x_scales;
        quantize.x_stride = n_ff;
        quantize.n_rows = n_inner;
        quantize.out = *h_q8;
        moe_cuda_quantize_rows(stream, &quantize);
    }
    if (floats)
        moe_cuda_activate(stream, &experts->works[0].activation, experts->x_scales, experts->gate,
                          experts->up, experts->gate, n_inner, n_ff);
}

void moe_cuda_experts_run(moe_cuda_stream stream, const moe_cuda_experts *experts)
{
    if (experts->n_works == 0)
        return;
    uint32_t n_ff = experts->works[0].gate.n_out;
    uint32_t n_inner = 0;
    for (uint32_t w = 0; w < experts->n_works; w++)
        n_inner += experts->works[w].n_rows;
    uint32_t n = experts->n_works;
    run_list(stream, experts, &experts->x_q8, experts->n_in, n_ff, 0, 2 * n);
    moe_q8_rows h_q8 = {};
    if (n_ff % MOE_Q8_BLOCK == 0)
        moe_q8_rows_bind(&h_q8, experts->h_q8_memory, n_inner, n_ff);
    activate(stream, experts, n_inner, n_ff, &h_q8);
    run_list(stream, experts, &h_q8, n_ff, experts->out_stride, 2 * n, 3 * n);
}

/* ---- Experts that the device has chosen ---- */

/* Runs n products from number `first` of the list on. */
static void run_chosen(moe_cuda_stream stream, const moe_cuda_chosen_experts *experts,
                       uint32_t first, uint32_t n, const moe_weight *weight,
                       const moe_q8_rows *x_q8)
{
    moe_cuda_products products = products_of(weight, experts->n_multiprocessors);
    products.x_q8 = *x_q8;
    products.x_stride = weight->n_in;
    products.out_stride = weight->n_out;
    products.n_products = n;
    products.list = experts->list + first;
    products.first.n_rows = experts->n_rows;
    moe_cuda_matmul(stream, &products);
}

void moe_cuda_chosen_experts_run(moe_cuda_stream stream, const moe_cuda_chosen_experts *experts)
{
    uint32_t n = experts->n_rows * experts->n_used;
    uint32_t n_ff = experts->gate.n_out;
    moe_cuda_list_chosen(stream, experts);
    if (experts->keep.spares != NULL)
        moe_cuda_fetch_experts(stream, &experts->fetches, n, experts->keep.bytes,
                               experts->n_multiprocessors);
    if (experts->gate.type == experts->up.type) {
        run_chosen(stream, experts, 0, 2 * n, &experts->gate, &experts->x_q8);
    } else {
        run_chosen(stream, experts, 0, n, &experts->gate, &experts->x_q8);
        run_chosen(stream, experts, n, n, &experts->up, &experts->x_q8);
    }
    moe_q8_rows h_q8 = {};
    if (is_float(experts->down.type)) {
        moe_cuda_activate(stream, &experts->activation, NULL, experts->gate_out, experts->up_out,
                          experts->gate_out, n, n_ff);
    } else {
        moe_q8_rows_bind(&h_q8, experts->h_q8_memory, n, n_ff);
        moe_cuda_quantize quantize = {};
        quantize.x = experts->gate_out;
        quantize.up = experts->up_out;
        quantize.activation = experts->activation;
        quantize.x_stride = n_ff;
        quantize.n_rows = n;
        quantize.out = h_q8;
        moe_cuda_quantize_rows(stream, &quantize);
    }
    run_chosen(stream, experts, 2 * n, n, &experts->down, &h_q8);
}
