/* SPDX-License-Identifier: MIT */
/* Functions that put kernels on a stream, for all operations of a pass except weight products.
 * Results have the bits of cpu/kernels/vector_ops.h and router_select.h.
 *
 * Every pointer is to device memory unless it says host. Calls return at once and may be made from
 * any thread; the memory that kernels read must stay unchanged until the stream has passed them. A
 * launch that fails shows in cudaGetLastError(). A call for 0 rows or elements does nothing. */
#ifndef MOE_CUDA_VECTOR_LAUNCH_H
#define MOE_CUDA_VECTOR_LAUNCH_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cpu/kernels/quant_rows.h"
#include "cpu/kernels/router_select.h"
#include "runtime/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *moe_cuda_stream; /* a cudaStream_t */

/* y = norm(x) * weight. x, y: [n_rows] rows of n, x_stride floats apart; y may be x. */
void moe_cuda_rms_norm(moe_cuda_stream stream, const float *x, const float *weight, float *y,
                       uint32_t n_rows, uint32_t n, size_t x_stride, float eps);

/* As moe_device_ops.rope, but the tables are in device memory. */
void moe_cuda_rope(moe_cuda_stream stream, const moe_rope *rope, uint32_t n_rows);

void moe_cuda_clamp(moe_cuda_stream stream, float limit, float *x, size_t n);
void moe_cuda_scale(moe_cuda_stream stream, float factor, float *x, size_t n);
/* y may be a or b. */
void moe_cuda_add(moe_cuda_stream stream, const float *a, const float *b, float *y, size_t n);
/* y = activation(scales[row] * g, scales[row] * u), rows of n. scales: [n_rows] or NULL; y may be g
 * or u. */
void moe_cuda_activate(moe_cuda_stream stream, const moe_activation *activation,
                       const float *scales, const float *g, const float *u, float *y,
                       uint32_t n_rows, uint32_t n);
/* y = norm(x) * weight + bias, by layer_norm of vector_ops.h. bias may be NULL. The arrays lie as
 * for moe_cuda_rms_norm(). */
void moe_cuda_layer_norm(moe_cuda_stream stream, const float *x, const float *weight,
                         const float *bias, float *y, uint32_t n_rows, uint32_t n, size_t x_stride,
                         float eps);
/* x = cap * tanh(x / cap) */
void moe_cuda_soft_cap(moe_cuda_stream stream, float cap, float *x, size_t n);
/* x[row][i] *= f(gate[row][i]): moe_device_ops.gate. */
void moe_cuda_gate(moe_cuda_stream stream, const moe_gating *gating, size_t n_rows);
/* x[row] *= sigmoid(gate[row]). x: [n_rows][n], gate: [n_rows]. */
void moe_cuda_sigmoid_scale(moe_cuda_stream stream, const float *gate, float *x, uint32_t n_rows,
                            uint32_t n);
/* out[r] = x[rows[r]]. x, out: rows of n. */
void moe_cuda_gather(moe_cuda_stream stream, const float *x, uint32_t n, const uint32_t *rows,
                     uint32_t n_rows, float *out);
/* Row i of x becomes row rows[i] of out. */
void moe_cuda_scatter(moe_cuda_stream stream, const float *x, uint32_t n, const uint32_t *rows,
                      uint32_t n_rows, float *out);
/* Copies n_rows runs of n floats; source and target have a stride each, in floats. */
void moe_cuda_copy_rows(moe_cuda_stream stream, const float *src, size_t src_stride, float *dst,
                        size_t dst_stride, uint32_t n, size_t n_rows);
/* As moe_device_ops.combine, but the weights are in device memory. */
void moe_cuda_combine(moe_cuda_stream stream, const moe_combine *combine, uint32_t n_rows);

/* As moe_device_ops.stream_read, stream_write and stream_match. */
void moe_cuda_stream_read(moe_cuda_stream stream, const moe_stream_read *read, uint32_t n_rows);
void moe_cuda_stream_write(moe_cuda_stream stream, const moe_stream_write *write, uint32_t n_rows);
void moe_cuda_stream_match(moe_cuda_stream stream, const moe_stream_match *match, uint32_t n_rows);

/* In place, x: [n_rows][n]. */
void moe_cuda_softmax(moe_cuda_stream stream, float *x, uint32_t n_rows, uint32_t n);
/* As moe_device_ops.greatest. */
void moe_cuda_greatest(moe_cuda_stream stream, const float *x, uint32_t n_rows, uint32_t n,
                       moe_greatest *out);

/* moe_router_select of n_rows rows. logits, probs: [n_rows][n_expert]; experts, weights:
 * [n_rows][n_expert_used]; bias and probs may be NULL. gate: host. given: NULL, or the experts,
 * like `experts`, which are then not chosen. */
void moe_cuda_route(moe_cuda_stream stream, const moe_router_gate *gate, const float *logits,
                    const float *bias, const uint32_t *given, uint32_t n_rows, uint32_t *experts,
                    float *weights, float *probs);

/* moe_kv_row in device memory; its lists are in device memory, too. */
typedef struct moe_cuda_kv_row {
    void *const *pages;
    const uint32_t *path; /* or NULL */
    uint32_t path_first;
    uint32_t position;
    uint32_t stored;
} moe_cuda_kv_row;

/* As moe_device_ops.kv_store. layout: host. */
void moe_cuda_kv_store(moe_cuda_stream stream, const moe_kv_layout *layout,
                       const moe_cuda_kv_row *rows, uint32_t n_rows, const float *k,
                       size_t k_stride, const float *v, size_t v_stride);

/* As moe_device_ops.kv_move, all lists of `move` in device memory. max_head_kv: the greatest
 * n_head_kv of the layouts. */
void moe_cuda_kv_move(moe_cuda_stream stream, const moe_kv_move *move, uint32_t max_head_kv);

typedef struct moe_cuda_attention {
    moe_kv_layout layout;
    const moe_cuda_kv_row *rows; /* [n_rows] */
    uint32_t n_rows;
    uint32_t n_visible; /* the greatest of the rows' positions + 1, or more: a recorded launch only
                         * has an upper bound */
    uint32_t
        first_visible; /* the least position that a row sees, or less; 0 in a recorded launch */
    /* Most neighbouring rows have the same page table, as in prompts and trees. Pages are then read
     * once for several rows. A hint: any value gives the same bits. */
    bool shared_pages;
    const float *q; /* [n_rows][n_head][k_dim] */
    uint32_t n_head;
    float scale;
    /* As in moe_attention, but row_scales is in device memory. */
    float cap;
    uint32_t window, chunk;
    const float *sinks;
    const float *row_scales;
    /* Use the matrix units where there is a kernel for the layer. The results then have their own
     * bits (attend_matrix.cu), which depend on nothing but the row and the layer. */
    bool by_matrix;
    float *out; /* [n_rows][n_head][v_dim] */
    /* moe_cuda_attention_workspace() bytes for the results of pages that are computed side by side.
     * NULL: pages are never computed side by side. */
    void *workspace;
    uint32_t n_multiprocessors;
    moe_q8_rows out_q8; /* of out, or empty; v_dim is a multiple of MOE_Q8_BLOCK */
} moe_cuda_attention;

/* Whether there is a kernel for layers with this layout and cap that uses the matrix units. */
bool moe_cuda_attends_by_matrix(const moe_kv_layout *layout, float cap);
/* Bytes that suffice for any number and length of rows on a device with n_multiprocessors. */
size_t moe_cuda_attention_workspace(uint32_t n_multiprocessors, uint32_t v_dim);
/* Returns whether out_q8 has been filled. The kernel that merges the parts of pages fills it; short
 * contexts and many rows do not need that kernel. */
bool moe_cuda_attend(moe_cuda_stream stream, const moe_cuda_attention *attention);

/* As moe_device_ops.choose. choice: host; rows: device; n_positions: the most that a row sees, at
 * most choice->n_scores. */
void moe_cuda_choose(moe_cuda_stream stream, const moe_position_choice *choice,
                     const moe_cuda_kv_row *rows, uint32_t n_rows, uint32_t n_positions);

/* As moe_device_ops.pool_keys. pool: host; rows and the tables of angles: device. */
void moe_cuda_pool_keys(moe_cuda_stream stream, const moe_key_pool *pool,
                        const moe_cuda_kv_row *rows, uint32_t n_rows);

/* As moe_device_ops.delta_rule, with the list of sequences in device memory. n_tokens: of all
 * sequences together; a sequence without tokens keeps no tail. */
void moe_cuda_delta_rule(moe_cuda_stream stream, const moe_delta_rule *rule, uint32_t n_tokens);
/* As moe_device_ops.short_conv, state_space, channel_rule and selective_scan, with the list of
 * sequences in device memory. */
void moe_cuda_short_conv(moe_cuda_stream stream, const moe_short_conv *conv, uint32_t n_tokens);
void moe_cuda_state_space(moe_cuda_stream stream, const moe_state_space *space, uint32_t n_tokens);
void moe_cuda_channel_rule(moe_cuda_stream stream, const moe_channel_rule *rule, uint32_t n_tokens);
void moe_cuda_selective_scan(moe_cuda_stream stream, const moe_selective_scan *scan);

/* moe_route_edit of runtime/pass/route_edit.h in device memory. */
typedef struct moe_cuda_route_edit {
    uint32_t n_rows;
    uint32_t n_expert;      /* up to MOE_ROUTER_MAX_EXPERTS */
    uint32_t n_used;        /* up to MOE_ROUTER_MAX_USED */
    const uint32_t *chosen; /* [n_rows][n_used] before; may be `experts` */
    uint32_t *experts;      /* [n_rows][n_used] after */
    float *weights;         /* in and out: [n_rows][n_used] */
    const float *probs;
    const bool *resident; /* [n_expert] */
    bool renormalise;
    float scale;
    const float *bias; /* [n_expert] or NULL */
} moe_cuda_route_edit;

#define MOE_CUDA_EXPERT_NONE UINT32_MAX

typedef struct moe_cuda_draft_routing {
    moe_resident_fill fill;
    const uint16_t *lists; /* [n_expert][n_expert] of this layer; NULL: MOE_RESIDENT_FILL_ROUTER */
    uint32_t *n_missing;   /* out: [n_rows] how many of the row's picks are not resident; or NULL */
} moe_cuda_draft_routing;

/* Puts resident experts in place of picks that are not resident (moe_resident_fill). */
void moe_cuda_draft_route(moe_cuda_stream stream, const moe_cuda_route_edit *edit,
                          const moe_cuda_draft_routing *routing);

/* Counts to which each call adds; the caller zeroes them. Only the kernels use leave_alone. */
typedef struct moe_cuda_substitution_counts {
    uint32_t n_requested;
    uint32_t n_missing;
    uint32_t n_replaced;
    uint32_t n_dropped;
    uint32_t n_gated; /* rows of which the router was sure */
    uint32_t n_bypassed;
    uint32_t n_unserved;
    uint32_t leave_alone;
} moe_cuda_substitution_counts;

/* Lossy: moe_substitution. Entropies are doubles from the device's log and pow: if an entropy
 * differs from the threshold only in its last bits, host and device may decide differently. */
void moe_cuda_substitute(moe_cuda_stream stream, const moe_cuda_route_edit *edit,
                         const moe_substitution *rules, moe_cuda_substitution_counts *counts);

/* The host writes these structs and the kernels read them: both compilers must use one layout. */
static_assert(sizeof(moe_cuda_kv_row) == 32 && offsetof(moe_cuda_kv_row, path) == 8 &&
                  offsetof(moe_cuda_kv_row, path_first) == 16 &&
                  offsetof(moe_cuda_kv_row, stored) == 24,
              "rows of attention");
static_assert(sizeof(moe_kv_layout) == 64 && offsetof(moe_kv_layout, k_row_bytes) == 24 &&
                  offsetof(moe_kv_layout, v_in_k) == 56,
              "layouts of kv_move()");
static_assert(sizeof(moe_delta_sequence) == 64 && offsetof(moe_delta_sequence, n_tokens) == 32 &&
                  offsetof(moe_delta_sequence, from) == 40,
              "sequences of recurrent layers");
static_assert(sizeof(moe_expert_address) == 32 && offsetof(moe_expert_address, over_link) == 24 &&
                  sizeof(moe_expert_spare) == 80 && offsetof(moe_expert_spare, entry) == 64 &&
                  sizeof(moe_spare_range) == 12,
              "the table of a recorded pass");
static_assert(sizeof(moe_greatest) == 8 && offsetof(moe_greatest, share) == 4,
              "downloaded as they are");
static_assert(sizeof(moe_cuda_substitution_counts) == 32, "counters of the kernels");

#ifdef __cplusplus
}
#endif

#endif
