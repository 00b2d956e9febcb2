/* SPDX-License-Identifier: MIT */
/* Functions that put kernels on a stream: weight products, and the kernels that prepare their
 * inputs. Results have the bits of cpu/kernels/matmul.h and quant_rows.h.
 *
 * Every pointer is to device memory unless it says host; descriptors themselves are host memory and
 * are read before the call returns. Calls may be made from any thread; the memory that kernels read
 * must stay unchanged until the stream has passed them. A launch that fails shows in
 * cudaGetLastError(). A call for 0 rows, outputs or products does nothing. */
#ifndef MOE_CUDA_PRODUCT_LAUNCH_H
#define MOE_CUDA_PRODUCT_LAUNCH_H

#include "cpu/kernels/quant_rows.h"
#include "cuda/kernels/transfer_launch.h"
#include "cuda/kernels/vector_launch.h"
#include "runtime/base/dtype.h"
#include "runtime/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One matrix and the rows that it is multiplied with. */
typedef struct moe_cuda_product {
    const void *weights; /* n_out rows; no alignment beyond that of moe_matmul_args */
    const float *x;      /* for float weights */
    float *out;
    const float *bias;         /* [n_out], added to the finished sum; or NULL */
    const uint32_t *x_index;   /* [n_rows] or NULL: 0, 1, .. */
    const uint32_t *out_index; /* [n_rows] or NULL: 0, 1, .. */
    uint32_t first_row;        /* the row of x_q8 that index 0 means, for quantised weights */
    uint32_t n_rows;
} moe_cuda_product;

/* The host writes these structs and the kernels read them: both compilers must use one layout. */
static_assert(sizeof(moe_cuda_product) == 56 && offsetof(moe_cuda_product, out) == 16 &&
                  offsetof(moe_cuda_product, out_index) == 40 &&
                  offsetof(moe_cuda_product, n_rows) == 52,
              "lists of products");

/* From this many activation rows on, the matrix units compute products with quantised weights.
 * product.cuh multiplies fewer rows, in one pass over the weights. */
#define MOE_CUDA_MATRIX_ROWS 9u
#define MOE_CUDA_NEVER       UINT32_MAX

/* A further linear map in a launch: of the same activation rows as the first map, and with weight
 * rows of the same type and length. */
#define MOE_CUDA_MORE_MAPS 3u
typedef struct moe_cuda_more_map {
    const void *weights;
    float *out; /* [n_rows][n_out] */
    const float *bias;
    uint32_t n_out;
} moe_cuda_more_map;

/* Products of one type and shape. Each class of row counts is one launch: 1, 2, up to 4, or more
 * rows; on the matrix units, tiles of 16, 32 or 64 rows. */
typedef struct moe_cuda_products {
    moe_dtype type;
    uint32_t n_in;
    uint32_t n_out;
    size_t row_bytes;
    moe_q8_rows x_q8; /* arrays in device memory; for quantised weights */
    size_t x_stride;  /* in floats, as all strides here */
    size_t out_stride;
    uint32_t n_products; /* at most 65535 */
    /* [n_products] in device memory, and the same list on the host. If host_list is NULL, only the
     * device knows the list: no product may have more rows than `first`, and each product of more
     * than one row is in the class of `first`. If both are NULL: product p is `first` with weights,
     * x, out and first_row p steps further. */
    const moe_cuda_product *list;
    const moe_cuda_product *host_list;
    moe_cuda_product first;
    size_t weights_step; /* bytes */
    size_t x_step;       /* floats */
    size_t out_step;     /* floats */
    uint32_t row_step;
    /* For a single product without a list and with too few rows for the matrix units: further maps
     * in its launch. */
    uint32_t n_more;
    moe_cuda_more_map more[MOE_CUDA_MORE_MAPS];
    /* Thresholds in rows. 0: the best value; other values are for tests and measurements. They do
     * not change the bits.
     *  - matrix_from: products of this many rows and more go to the matrix units.
     *  - wide_from: products of this many rows and more have tiles of 64 rows.
     *  - wide_rest: if 64-row tiles leave this many rows (1 .. 64) or more, these get one more.
     *  - narrow_upto: up to this many left rows get a tile of 16 instead of 32. */
    uint32_t matrix_from;
    uint32_t wide_from;
    uint32_t wide_rest;
    uint32_t narrow_upto;
    uint32_t n_multiprocessors; /* of the GPU, for the best thresholds; 0: 132 */
} moe_cuda_products;

/* What moe_cuda_matmul() launches for a job; for tests. */
typedef struct moe_cuda_product_plan {
    moe_cuda_products job;  /* with the thresholds that the caller left at 0 */
    uint32_t warps_a_block; /* 0: a block is one warp, and has two weight rows of floats */
} moe_cuda_product_plan;

moe_cuda_product_plan moe_cuda_plan_products(const moe_cuda_products *products);

void moe_cuda_matmul(moe_cuda_stream stream, const moe_cuda_products *products);

/* Writes rows first_row .. of `out`, padding too. Row r is read at x + r / n_inner * outer_stride +
 * r % n_inner * x_stride, in floats; if n_inner is 0, at x + r * x_stride. */
typedef struct moe_cuda_quantize {
    const float *x;
    const float *up; /* NULL: x itself is quantised; else activation(x, up). up lies like x */
    moe_activation activation; /* only if up is given */
    const float *scales;       /* only if up is given: [n_rows] factors of x and up, or NULL */
    size_t x_stride;
    size_t outer_stride;
    uint32_t n_inner;
    uint32_t n_rows;
    uint32_t first_row;
    moe_q8_rows out;
} moe_cuda_quantize;

void moe_cuda_quantize_rows(moe_cuda_stream stream, const moe_cuda_quantize *quantize);

/* moe_device_ops.embed: out[r] = scale * (row tokens[r] of the table). tokens: device memory, or
 * NULL: 0, 1, .. */
void moe_cuda_embed(moe_cuda_stream stream, const moe_weight *table, const int32_t *tokens,
                    uint32_t n_rows, float scale, float *out);

/* moe_device_ops.linear for up to 32 maps of the same rows. If the rows are too few for the matrix
 * units, up to four maps of one type share a launch. x_q8: the quantised rows, for quantised
 * weights. Here and below n_multiprocessors is that of moe_cuda_products. */
void moe_cuda_linears(moe_cuda_stream stream, uint32_t n_multiprocessors, const moe_linear *linears,
                      uint32_t n_linears, const float *x, const moe_q8_rows *x_q8, uint32_t n_rows);

/* moe_device_ops.head_linear. q8_memory: moe_q8_rows_bytes(n_rows * n_head, n_in), for quantised
 * weights. */
void moe_cuda_head_linear(moe_cuda_stream stream, uint32_t n_multiprocessors,
                          const moe_head_linear *linear, uint32_t n_rows, void *q8_memory);

/* moe_device_ops.experts. Works may differ in their weights' types, but not in shape or form. */
typedef struct moe_cuda_experts {
    const moe_expert_work *works; /* host; their index lists are in device memory */
    uint32_t n_works;
    const float *x; /* [..][n_in] */
    uint32_t n_in;
    moe_q8_rows x_q8;             /* rows of x; read if a gate or an up is quantised */
    moe_cuda_product *host_list;  /* host, [3 * n_works]: moe_cuda_experts_list() fills it */
    const moe_cuda_product *list; /* device: its copy, which moe_cuda_experts_run() needs */
    float *gate;                  /* [rows of all works][n_ff], scratch */
    float *up;                    /* [rows of all works][n_ff], scratch */
    void *h_q8_memory;            /* moe_q8_rows_bytes(rows of all works, n_ff), scratch */
    const float *x_scales;        /* [rows of all works] or NULL: x_scales of the works */
    float *out;
    size_t out_stride;
    uint32_t n_multiprocessors;
} moe_cuda_experts;

void moe_cuda_experts_list(const moe_cuda_experts *experts);
void moe_cuda_experts_run(moe_cuda_stream stream, const moe_cuda_experts *experts);

/* The arguments of moe_cuda_route() for one row, which is routed before its experts are listed. */
typedef struct moe_cuda_chosen_router {
    const moe_router_gate *gate; /* host */
    const float *logits;
    const float *bias; /* or NULL */
    uint32_t *experts;
    float *weights;
    float *probs; /* or NULL */
} moe_cuda_chosen_router;

/* Computes the chosen experts of a few rows. The host does not know which experts were chosen: a
 * table in device memory gives the address of each expert. A rank without an expert
 * (MOE_CUDA_EXPERT_NONE) leaves its row of `out` as it is. */
#define MOE_CUDA_CHOSEN_ROWS 8u
typedef struct moe_cuda_chosen_experts {
    const moe_cuda_chosen_router *router; /* host; only with one row. NULL: `chosen` is filled in */
    const uint32_t *chosen;               /* [n_rows][n_used]; the router's `experts` */
    const float *weights;                 /* [n_rows][n_used] of the chosen experts */
    float *ordered; /* out: the weights in the order of `out`, ascending by expert in each row */
    const moe_expert_address *addresses; /* [n_expert] */
    const bool *resident; /* [n_expert], for n_missing; NULL: all chosen experts are resident */
    uint32_t n_expert;
    uint32_t n_used;
    uint32_t n_rows;           /* up to MOE_CUDA_CHOSEN_ROWS */
    moe_weight gate, up, down; /* type and shape of all experts' matrices; data is not used */
    /* For each matrix NULL, or [n_expert][n_out of the matrix] with bias_stride[..] floats from
     * expert to expert. */
    const float *biases[3];
    size_t bias_stride[3];
    moe_activation activation;
    const float *x;           /* [n_rows][n_in] */
    moe_q8_rows x_q8;         /* of x; read if a gate or an up is quantised */
    moe_cuda_product *list;   /* [3 * n_rows * n_used], scratch */
    uint32_t *index;          /* [2 * n_rows * n_used], scratch */
    float *gate_out;          /* [n_rows * n_used][n_ff], scratch */
    float *up_out;            /* [n_rows * n_used][n_ff], scratch */
    void *h_q8_memory;        /* moe_q8_rows_bytes(n_rows * n_used, n_ff), scratch */
    float *out;               /* [n_rows * n_used][down.n_out] */
    uint32_t *n_missing;      /* out: how many picks are not resident; or NULL */
    moe_resident_stop stop;   /* stopped may be NULL */
    moe_resident_keep keep;   /* spares may be NULL; if not, keep.table is `addresses` */
    moe_cuda_fetches fetches; /* scratch for `keep` */
    uint32_t n_multiprocessors;
} moe_cuda_chosen_experts;

/* The first step of moe_cuda_chosen_experts_run() alone: routes, fills `list`, n_missing and the
 * flag that stops the pass, and lists the experts that moe_cuda_fetch_experts() then fetches. */
void moe_cuda_list_chosen(moe_cuda_stream stream, const moe_cuda_chosen_experts *experts);
void moe_cuda_chosen_experts_run(moe_cuda_stream stream, const moe_cuda_chosen_experts *experts);

#ifdef __cplusplus
}
#endif

#endif
