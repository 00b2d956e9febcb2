/* SPDX-License-Identifier: MIT */
/* Kernels for weight products and what feeds them, as functions that put them on a stream.
 * Arithmetic is that of cpu/kernels/matmul.h and quant_rows.h, to the bit.
 *
 * Every pointer is to device memory unless it says host; descriptors themselves are host memory and
 * are read before the call returns. Calls may be made from any thread; what kernels read must stay
 * until the stream has passed them. A launch that fails shows in cudaGetLastError(). A call for 0
 * rows, outputs or products does nothing. */
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
    uint32_t first_row;        /* of x_q8: what index 0 means, for quantised weights */
    uint32_t n_rows;
} moe_cuda_product;

/* The host writes these structs and the kernels read them: both compilers must use one layout. */
static_assert(sizeof(moe_cuda_product) == 56 && offsetof(moe_cuda_product, out) == 16 &&
                  offsetof(moe_cuda_product, out_index) == 40 &&
                  offsetof(moe_cuda_product, n_rows) == 52,
              "lists of products");

/* From this many activation rows on, the matrix units compute products with quantised weights:
 * product.cuh multiplies fewer rows in one pass. */
#define MOE_CUDA_MATRIX_ROWS 9u
#define MOE_CUDA_NEVER       UINT32_MAX

/* A further linear map of the rows that the first map multiplies, of the same type and length of
 * rows. */
#define MOE_CUDA_MORE_MAPS 3u
typedef struct moe_cuda_more_map {
    const void *weights;
    float *out; /* [n_rows][n_out] */
    const float *bias;
    uint32_t n_out;
} moe_cuda_more_map;

/* Products of one type and shape, as one launch for each class of row counts (1, 2, 4, more; for
 * the matrix units by tiles of 16 rows, of 32, of 64). */
typedef struct moe_cuda_products {
    moe_dtype type;
    uint32_t n_in;
    uint32_t n_out;
    size_t row_bytes;
    moe_q8_rows x_q8; /* arrays in device memory; for quantised weights */
    size_t x_stride;  /* in floats, as the others */
    size_t out_stride;
    uint32_t n_products; /* at most 65535 */
    /* [n_products] in device memory, and the same list on the host. If only the device has it: no
     * product has more rows than `first`, and those with more than one row are of its class. If
     * both are NULL: product p is `first` with weights, x, out and first_row p steps further. */
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
    /* Thresholds in rows: from which number on a product goes to the matrix units; from which on it
     * has tiles of 64 rows; from which on the rows left over, 1 .. 64, get such a tile, too; and up
     * to which they get tiles of 16 instead of 32. 0: the best value; others are for tests and
     * measurements. The bits are the same. */
    uint32_t matrix_from;
    uint32_t wide_from;
    uint32_t wide_rest;
    uint32_t narrow_upto;
    uint32_t n_multiprocessors; /* of the GPU, for what is best; 0: 132. Bits are the same */
} moe_cuda_products;

/* What moe_cuda_matmul() launches for a job; for tests. */
typedef struct moe_cuda_product_plan {
    moe_cuda_products job;  /* with what the caller left open */
    uint32_t warps_a_block; /* 0: each has one warp, of two weight rows of floats */
} moe_cuda_product_plan;

moe_cuda_product_plan moe_cuda_plan_products(const moe_cuda_products *products);

void moe_cuda_matmul(moe_cuda_stream stream, const moe_cuda_products *products);

/* Writes rows first_row .. of `out`, padding too. Row r is read at x + r / n_inner * outer_stride +
 * r % n_inner * x_stride, in floats; if n_inner is 0, at x + r * x_stride. */
typedef struct moe_cuda_quantize {
    const float *x;
    const float *up; /* not NULL: what the activation makes of x and up is quantised; up lies like
                      * x */
    moe_activation activation; /* with up */
    const float *scales;       /* with up: [n_rows] factors of x and up, or NULL */
    size_t x_stride;
    size_t outer_stride;
    uint32_t n_inner;
    uint32_t n_rows;
    uint32_t first_row;
    moe_q8_rows out;
} moe_cuda_quantize;

void moe_cuda_quantize_rows(moe_cuda_stream stream, const moe_cuda_quantize *quantize);

/* out[r] = scale * (table row tokens[r]), tokens in device memory or NULL: 0, 1, .. As
 * moe_device_ops.embed. */
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

/* moe_device_ops.experts. Works may differ in type, not in shape or form. */
typedef struct moe_cuda_experts {
    const moe_expert_work *works; /* host; their index lists are in device memory */
    uint32_t n_works;
    const float *x; /* [..][n_in] */
    uint32_t n_in;
    moe_q8_rows x_q8;             /* rows of x; read if a gate or an up is quantised */
    moe_cuda_product *host_list;  /* host, [3 * n_works]: moe_cuda_experts_list() fills it */
    const moe_cuda_product *list; /* its copy in device memory, when _experts_run() is passed */
    float *gate;                  /* [rows of all works][n_ff], scratch */
    float *up;                    /* likewise */
    void *h_q8_memory;            /* moe_q8_rows_bytes(rows of all works, n_ff), scratch */
    const float *x_scales;        /* [rows of all works] or NULL: x_scales of the works */
    float *out;
    size_t out_stride;
    uint32_t n_multiprocessors;
} moe_cuda_experts;

void moe_cuda_experts_list(const moe_cuda_experts *experts);
void moe_cuda_experts_run(moe_cuda_stream stream, const moe_cuda_experts *experts);

/* moe_cuda_route() of one row, before the list of the experts that it chooses. */
typedef struct moe_cuda_chosen_router {
    const moe_router_gate *gate; /* host */
    const float *logits;
    const float *bias; /* or NULL */
    uint32_t *experts;
    float *weights;
    float *probs; /* or NULL */
} moe_cuda_chosen_router;

/* Computes the chosen experts of a few rows. The host does not know them: a table gives the address
 * of each. A rank without an expert (MOE_CUDA_EXPERT_NONE) leaves its row of `out` as it is. */
#define MOE_CUDA_CHOSEN_ROWS 8u
typedef struct moe_cuda_chosen_experts {
    const moe_cuda_chosen_router *router; /* host; only with one row. NULL: `chosen` is there */
    const uint32_t *chosen;               /* [n_rows][n_used]; the router's `experts` */
    const float *weights;                 /* [n_rows][n_used] of the chosen */
    float *ordered; /* out: likewise, in each row by ascending number of the expert, as in `out` */
    const moe_expert_address *addresses; /* [n_expert] */
    const bool *resident;                /* [n_expert] for n_missing; NULL: all of the chosen */
    uint32_t n_expert;
    uint32_t n_used;
    uint32_t n_rows;           /* up to MOE_CUDA_CHOSEN_ROWS */
    moe_weight gate, up, down; /* of all; data of no meaning */
    /* Biases: [n_expert][n_out of the matrix] for each matrix, bias_stride[..] floats from expert
     * to expert; or NULL. */
    const float *biases[3];
    size_t bias_stride[3];
    moe_activation activation;
    const float *x;           /* [n_rows][n_in] */
    moe_q8_rows x_q8;         /* of x; read if a gate or an up is quantised */
    moe_cuda_product *list;   /* [3 * n_rows * n_used], scratch */
    uint32_t *index;          /* [2 * n_rows * n_used], scratch */
    float *gate_out;          /* [n_rows * n_used][n_ff], scratch */
    float *up_out;            /* likewise */
    void *h_q8_memory;        /* moe_q8_rows_bytes(n_rows * n_used, n_ff), scratch */
    float *out;               /* [n_rows * n_used][down.n_out] */
    uint32_t *n_missing;      /* out: how many picks are not resident; or NULL */
    moe_resident_stop stop;   /* stopped may be NULL */
    moe_resident_keep keep;   /* spares may be NULL; else the table is `addresses` */
    moe_cuda_fetches fetches; /* scratch of keeping */
    uint32_t n_multiprocessors;
} moe_cuda_chosen_experts;

/* Only the first step of the next function: routes, fills `list`, n_missing and the flag that stops
 * the pass, and lists the experts that moe_cuda_fetch_experts() then fetches. */
void moe_cuda_list_chosen(moe_cuda_stream stream, const moe_cuda_chosen_experts *experts);
void moe_cuda_chosen_experts_run(moe_cuda_stream stream, const moe_cuda_chosen_experts *experts);

#ifdef __cplusplus
}
#endif

#endif
