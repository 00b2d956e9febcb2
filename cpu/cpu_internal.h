/* SPDX-License-Identifier: MIT */
/* Shared by the files of the CPU device; no other file includes it. */
#ifndef MOE_CPU_INTERNAL_H
#define MOE_CPU_INTERNAL_H

#include "cpu/blas_load.h"
#include "cpu/cpu_device.h"
#include "cpu/kernels/matmul.h"
#include "cpu/kernels/vector_ops.h"

/* The most queries (rows times heads) that attend to a page together. */
#define MOE_CPU_ATTENTION_TILE 64u
/* How many parts of MOE_CPU_ATTENTION_TILE queries each worker adds to a round of shared pages
 * (cpu_attention.c). */
#define MOE_CPU_ATTENTION_PAGES 8u

typedef struct moe_cpu_device {
    moe_device base;
    /* Set at open, never changed. */
    moe_team *team;
    moe_blas blas; /* loaded only if OpenBLAS multiplies float weights in prefill */
    moe_matmul_kernels matmul;
    moe_vector_kernels vector;
    /* Set by reserve. */
    uint8_t *scratch;
    uint8_t *x_q8_memory;        /* quantised input rows */
    uint8_t *h_q8_memory;        /* quantised inner rows of a feed-forward network */
    float *ff_gate, *ff_up;      /* [rows][n_ff] */
    float *attention_state;      /* per worker: a tile's outputs of a page, and its queries */
    size_t attention_state_size; /* floats per worker */
    float *attention_parts;      /* the pages' parts during a round (cpu_attention.c) */
    size_t attention_parts_size; /* floats for all workers together; 0: there is one thread */
    uint8_t *tile_scratch;       /* MOE_TILE_SCRATCH_BYTES per worker; NULL: no matrix unit */
} moe_cpu_device;

static inline moe_cpu_device *moe_cpu_device_of(moe_device *device)
{
    return (moe_cpu_device *)device;
}

/* Runs body over [0, n) in ranges of at most grain, on the team when there is more than one. */
typedef void (*moe_cpu_range_fn)(void *context, uint32_t begin, uint32_t end);
void moe_cpu_for(moe_cpu_device *cpu, uint32_t n, uint32_t grain, moe_cpu_range_fn body,
                 void *context);

/* Quantises rows x[0..n_rows) into memory and binds them to rows. */
void moe_cpu_quantize(moe_cpu_device *cpu, const float *x, size_t x_stride, uint32_t n_rows,
                      uint32_t n_in, void *memory, moe_q8_rows *rows);

/* A view of the rows from `first` on. For float weights there are no quantised rows, and the view
 * has none. */
static inline moe_q8_rows moe_cpu_rows_from(const moe_q8_rows *rows, uint32_t first)
{
    size_t n = (size_t)first * rows->n_in_padded;
    moe_q8_rows view = *rows;
    if (view.q == NULL) {
        return view;
    }
    view.q += n;
    view.d += n / 32;
    view.sum16 += n / 16;
    view.sum32 += n / 32;
    view.dsum16 += n / 16;
    view.dsum32 += n / 32;
    return view;
}

/* One weight times rows. The caller sets n_rows, x, x_stride, x_index, out, out_stride and
 * out_index in args; the other fields are filled in from weight. */
typedef struct moe_cpu_product {
    moe_weight weight;
    moe_q8_rows x_q8; /* for quantised weights */
    moe_matmul_args args;
    const float *bias; /* added to every row, or NULL */
} moe_cpu_product;

void moe_cpu_run_products(moe_cpu_device *cpu, const moe_cpu_product *products,
                          uint32_t n_products);

/* Floats of attention_parts that each worker adds if there are several workers. */
size_t moe_cpu_attention_parts(uint32_t n_queries, uint32_t v_dim);

/* Operations, by file. */
int moe_cpu_linear(moe_device *device, const float *x, uint32_t n_rows, uint32_t n_in,
                   const moe_linear *linears, uint32_t n_linears, moe_error *err);
int moe_cpu_head_linear(moe_device *device, const moe_head_linear *linear, uint32_t n_rows,
                        moe_error *err);
int moe_cpu_experts(moe_device *device, const float *x, uint32_t n_x_rows, uint32_t n_in,
                    const moe_expert_work *works, uint32_t n_works, float *out, size_t out_stride,
                    moe_error *err);
int moe_cpu_combine(moe_device *device, const moe_combine *combine, uint32_t n_rows,
                    moe_error *err);
int moe_cpu_kv_store(moe_device *device, const moe_kv_layout *layout, const moe_kv_row *rows,
                     uint32_t n_rows, const float *k, size_t k_stride, const float *v,
                     size_t v_stride, moe_error *err);
int moe_cpu_kv_move(moe_device *device, const moe_kv_move *move, moe_error *err);
int moe_cpu_attention(moe_device *device, const moe_attention *attention, uint32_t n_rows,
                      moe_error *err);
int moe_cpu_embed(moe_device *device, const moe_weight *table, const int32_t *tokens,
                  uint32_t n_rows, float scale, float *out, moe_error *err);
int moe_cpu_gather(moe_device *device, const float *x, uint32_t n, const uint32_t *rows,
                   uint32_t n_rows, float *out, moe_error *err);
int moe_cpu_scatter(moe_device *device, const float *x, uint32_t n, const uint32_t *rows,
                    uint32_t n_rows, float *out, moe_error *err);
int moe_cpu_copy_rows(moe_device *device, const float *src, size_t src_stride, float *dst,
                      size_t dst_stride, uint32_t n, size_t n_rows, moe_error *err);
int moe_cpu_rms_norm(moe_device *device, const float *x, const float *weight, float *y,
                     uint32_t n_rows, uint32_t n, size_t x_stride, float eps, moe_error *err);
int moe_cpu_clamp(moe_device *device, float limit, float *x, size_t n, moe_error *err);
int moe_cpu_scale(moe_device *device, float factor, float *x, size_t n, moe_error *err);
int moe_cpu_add(moe_device *device, const float *a, const float *b, float *y, size_t n,
                moe_error *err);
int moe_cpu_rope(moe_device *device, const moe_rope *rope, uint32_t n_rows, moe_error *err);
int moe_cpu_route(moe_device *device, const moe_route *routes, uint32_t n_routes, uint32_t n_rows,
                  moe_error *err);
int moe_cpu_sigmoid_scale(moe_device *device, const float *gate, float *x, uint32_t n_rows,
                          uint32_t n, moe_error *err);
int moe_cpu_gate(moe_device *device, const moe_gating *gating, size_t n_rows, moe_error *err);
int moe_cpu_layer_norm(moe_device *device, const float *x, const float *weight, const float *bias,
                       float *y, uint32_t n_rows, uint32_t n, size_t x_stride, float eps,
                       moe_error *err);
int moe_cpu_soft_cap(moe_device *device, float cap, float *x, size_t n, moe_error *err);
int moe_cpu_channel_rule(moe_device *device, const moe_channel_rule *rule, moe_error *err);
int moe_cpu_state_space(moe_device *device, const moe_state_space *space, moe_error *err);
int moe_cpu_selective_scan(moe_device *device, const moe_selective_scan *scan, moe_error *err);
int moe_cpu_short_conv(moe_device *device, const moe_short_conv *conv, moe_error *err);
int moe_cpu_delta_rule(moe_device *device, const moe_delta_rule *rule, moe_error *err);
int moe_cpu_stream_match(moe_device *device, const moe_stream_match *match, uint32_t n_rows,
                         moe_error *err);
int moe_cpu_pool_keys(moe_device *device, const moe_key_pool *pool, uint32_t n_rows,
                      moe_error *err);
int moe_cpu_score_keys(moe_device *device, const moe_key_scores *scores, uint32_t n_rows,
                       moe_error *err);
int moe_cpu_stream_read(moe_device *device, const moe_stream_read *read, uint32_t n_rows,
                        moe_error *err);
int moe_cpu_stream_write(moe_device *device, const moe_stream_write *write, uint32_t n_rows,
                         moe_error *err);
int moe_cpu_greatest(moe_device *device, const float *x, uint32_t n_rows, uint32_t n,
                     moe_greatest *out, moe_error *err);

#endif
