/* SPDX-License-Identifier: MIT */
/* The device contract: what the engine requires of the device that holds the weights and does the
 * arithmetic.
 *
 * Pointers marked "device" are addresses in the device's memory, which only the device may
 * dereference; on the CPU they are ordinary memory. Operations run in the order of the calls. A
 * device may queue them, and must have finished them when sync() or download() returns. An
 * operation reads host memory (arguments, lists of rows, their paths) before the call returns. A
 * failure is returned by its call or by a later one; afterwards the device can only be closed.
 *
 * A device with its own memory has a link (moe_device.link): a queue of copies from host to device
 * that runs in parallel with the arithmetic and carries experts. The CPU has none. A device may
 * also offer to record operations (moe_device.recording).
 *
 * Arithmetic is that of cpu/kernels/matmul.h and cpu/kernels/vector_ops.h, which every device
 * follows to the bit for expert arithmetic. Rows never influence each other. */
#ifndef MOE_DEVICE_DEVICE_H
#define MOE_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>

#include "runtime/base/dtype.h"
#include "runtime/device/delta_ops.h"

typedef struct moe_device moe_device;
typedef struct moe_cards moe_cards; /* cards.h */

/* A matrix in the device's memory: n_out rows of n_in elements in the file's block layout. */
typedef struct moe_weight {
    moe_dtype type;
    const void *data; /* device */
    uint32_t n_in;
    uint32_t n_out;
    size_t row_bytes;
    float scale; /* multiplies its products, before a bias is added; 0: nothing does */
} moe_weight;

/* Its rows first .. first + n - 1. */
static inline moe_weight moe_weight_rows(const moe_weight *weight, uint32_t first, uint32_t n)
{
    moe_weight part = *weight;
    part.data = (const unsigned char *)weight->data + first * weight->row_bytes;
    part.n_out = n;
    return part;
}

/* out[row][o] = weight row o . x row (+ bias[o]). */
typedef struct moe_linear {
    moe_weight weight;
    const float *bias; /* device, [n_out] or NULL */
    float *out;        /* device, [n_rows][n_out] */
} moe_linear;

/* Per head h: out[row][h][o] = weight row (h * n_out_per_head + o) . x[row][h]. */
typedef struct moe_head_linear {
    moe_weight weight; /* n_out = n_head * n_out_per_head */
    uint32_t n_head;
    const float *x; /* device, head h of row r at x + r * x_row_stride + h * x_head_stride */
    size_t x_row_stride;
    size_t x_head_stride;
    float *out; /* device, likewise */
    size_t out_row_stride;
    size_t out_head_stride;
} moe_head_linear;

typedef struct moe_rope {
    float *x; /* device, in place: head h of row r at x + r*row_stride + h*head_stride */
    size_t row_stride;
    size_t head_stride;
    uint32_t n_head;
    uint32_t n_rot;
    bool interleaved; /* pairs (2i, 2i+1), else (i, i + n_rot/2) */
    const float *cos; /* host, [n_rows][n_rot / 2] */
    const float *sin;
} moe_rope;

/* How one layer's keys and values lie in a page of the KV cache, which holds MOE_KV_PAGE positions:
 * [head][position] rows of keys from k_offset, of values from v_offset.
 *
 * Layers that see the same span of positions form a group, which has pages of its own. A table of
 * pages has an entry for each group, page by page: entry p * (n_other_groups + 1) + group holds the
 * stored positions [p * MOE_KV_PAGE, (p + 1) * MOE_KV_PAGE) of the group's layers. */
typedef struct moe_kv_layout {
    int type;                /* moe_kv_type */
    uint32_t group;          /* the layer's */
    uint32_t n_other_groups; /* 0 unless the device has MOE_DEVICE_KV_GROUPS */
    uint32_t n_head_kv;
    uint32_t k_dim;
    uint32_t v_dim;
    size_t k_row_bytes;
    size_t v_row_bytes;
    size_t k_offset;
    size_t v_offset; /* with MLA equal to k_offset: a value is the first part of its key */
    bool v_in_k;     /* nothing to store for values */
} moe_kv_layout;

/* The entry of a table of pages for page `page` of the positions. */
static inline size_t moe_kv_entry(const moe_kv_layout *layout, uint32_t page)
{
    return (size_t)page * (layout->n_other_groups + 1) + layout->group;
}

/* A row's place in the cache, and what it sees: the logical positions 0..position of its timeline,
 * including itself. The pages are those of moe_kv_layout.
 *
 * A row of a plain timeline is stored at its logical position. A node of a token tree is not:
 * siblings have the same logical position but need a place each. Node i of a tree whose root is at
 * `base` is therefore stored at base + i, while its logical position is base + its depth. Its path
 * says where its ancestors are:
 *
 *    logical   0 .. path_first - 1   path_first .. position
 *    stored    0 .. path_first - 1   path[0]    .. path[position - path_first], which is `stored`
 *
 * The logical position decides the rotary embedding and the order of the sums (attention's blocks
 * are MOE_KV_PAGE logical positions, wherever they are stored), so a node's bits are those of a
 * timeline that holds only its ancestors. No two rows of a pass are stored in one place. */
typedef struct moe_kv_row {
    void *const *pages; /* host array of device pages */
    uint32_t position;  /* logical */
    uint32_t stored;    /* where kv_store() puts its key and value */
    /* Host, [position - path_first + 1], any stored positions of the pages, each once. NULL: the
     * row sees positions 0..position at their own places, and stored == position. */
    const uint32_t *path;
    uint32_t path_first; /* 0..position; not used without a path */
} moe_kv_row;

/* A row of a plain timeline. */
static inline moe_kv_row moe_kv_row_at(void *const *pages, uint32_t position)
{
    return (moe_kv_row){.pages = pages, .position = position, .stored = position};
}

/* Where a logical position that the row sees is stored. */
static inline uint32_t moe_kv_row_stored(const moe_kv_row *row, uint32_t position)
{
    return row->path == NULL || position < row->path_first ? position
                                                           : row->path[position - row->path_first];
}

/* Moves stored positions of one page table, for keys and values of every layer: the accepted nodes
 * of a tree to their places in the timeline. The result is that of moving one after the other, i
 * ascending: to[i] may be from[j] of a j < i, and never is of a j > i. A position of `from` that is
 * not in `to` keeps its content. */
typedef struct moe_kv_move {
    const moe_kv_layout *layouts; /* [n_layouts]: one for each layer in the pages */
    uint32_t n_layouts;
    void *const *pages;   /* host array of device pages; those of `to` are writable */
    const uint32_t *from; /* host, [n], strictly ascending */
    const uint32_t *to;   /* host, [n], strictly ascending; to[i] <= from[i] */
    uint32_t n;
} moe_kv_move;

typedef struct moe_attention {
    moe_kv_layout layout;
    const moe_kv_row *rows; /* host, [n_rows] */
    const float *q;         /* device, [n_rows][n_head][k_dim] */
    uint32_t n_head;
    float scale;
    float cap; /* 0: none; else scores are capped softly: cap * tanh(score / cap) */
    /* Of the positions 0..position a row sees the last `window`, including itself; 0: all. Of those
     * it sees the ones of its own chunk, where chunk c is [c * chunk, (c + 1) * chunk); 0: there
     * are no chunks. Positions that no row sees are not read, and their page may be missing. */
    uint32_t window;
    uint32_t chunk;
    /* Device, [n_head] or NULL: each head's softmax has one more score, without a value. The
     * running state of attend_merge() begins with it: (max, sum, out) is (sink, 1, 0). */
    const float *sinks;
    /* Host, [n_rows] or NULL: row r's scale is scale * row_scales[r]. */
    const float *row_scales;
    /* With MOE_DEVICE_CHOICE, what choose() has chosen: device, [n_rows][n_chosen], or NULL. A row
     * that sees more positions attends to these, as to a path of path_first 0. Without windows and
     * chunks. */
    const uint32_t *chosen;
    uint32_t n_chosen;
    float *out; /* device, [n_rows][n_head][v_dim] */
} moe_attention;

/* The positions that an indexer chooses for each row that sees more than n_chosen: those with the
 * highest scores, of equal ones the lowest positions. The score of a position is fmaf(weight, p > 0
 * ? p : 0, score) from +0 over the heads, p being the product of linear() of the head's query and
 * the position's index key, which is stored behind its key. */
#define MOE_CHOICE_MAX_DIM 256u
typedef struct moe_position_choice {
    moe_kv_layout layout;
    size_t key_offset;      /* bytes from a position's key to its index key */
    const moe_kv_row *rows; /* host, [n_rows] */
    const float *queries;   /* device, [n_rows][n_head][dim] */
    const float *weights;   /* device, [n_rows][n_head] */
    uint32_t n_head, dim;
    uint32_t n_chosen;
    float *scores;    /* device, scratch: [n_scores] */
    size_t n_scores;  /* at least as many as any row sees positions; more take more rows at once */
    uint32_t *chosen; /* device, out: [n_rows][n_chosen] where they are stored, ascending by logical
                       * position; nothing is written for rows that see no more */
} moe_position_choice;

/* The first position that a row sees. The sums over its page begin with it. */
static inline uint32_t moe_attention_first(const moe_attention *a, uint32_t position)
{
    uint32_t n = position + 1;
    uint32_t first = a->window > 0 && a->window < n ? n - a->window : 0;
    uint32_t begin = a->chunk > 0 ? position / a->chunk * a->chunk : 0;
    return first > begin ? first : begin;
}

#define MOE_MAX_ROUTES 2u

/* How a router's logits become experts and weights (see cpu/kernels/router_select.h). */
typedef struct moe_route {
    const float *logits; /* device, [n_rows][n_expert] */
    uint32_t n_expert;
    uint32_t n_used;
    int gate; /* moe_gate_kind */
    bool renormalise;
    float scale;
    const float *selection_bias; /* device, [n_expert] or NULL */
    const float *expert_scales;  /* device, [n_expert] or NULL: factors of the weights */
    uint32_t n_group;
    uint32_t n_group_used;
    int group_score; /* moe_group_score_kind */
    /* Valid when the call returns. */
    uint32_t *experts; /* host, out: [n_rows][n_used], best first */
    float *weights;    /* host, out: [n_rows][n_used] */
    float *probs;      /* host, out: [n_rows][n_expert] probabilities over all experts, or NULL */
} moe_route;

typedef enum moe_activation_kind {
    MOE_ACTIVATION_SILU, /* silu(gate) * up */
    /* Of cpu/kernels/vector_ops.h: */
    MOE_ACTIVATION_SWIGLU_CLAMPED,
    MOE_ACTIVATION_SILU_LIMITED, /* silu(gate) and up have limits */
    MOE_ACTIVATION_SILU_CLAMPED, /* gate and up have limits */
    MOE_ACTIVATION_GELU,
    MOE_ACTIVATION_RELU
} moe_activation_kind;

typedef struct moe_activation {
    moe_activation_kind kind;
    float alpha; /* of SWIGLU_CLAMPED */
    float limit; /* of SWIGLU_CLAMPED, SILU_LIMITED and SILU_CLAMPED */
} moe_activation;

/* One expert and the rows that chose it: down . activation(gate . x, up . x), a bias added to each
 * product. All works of a call have the same activation, and the same biases are NULL. */
typedef struct moe_expert_work {
    moe_weight gate, up, down;
    const float *gate_bias, *up_bias, *down_bias; /* device, [n_out] each; or NULL */
    moe_activation activation;
    /* Host, [n_rows] or NULL: factors of the products gate . x and up . x of each row. Not together
     * with biases. */
    const float *x_scales;
    const uint32_t *x_index;   /* host, [n_rows]: rows of x; NULL: 0, 1, .. */
    const uint32_t *out_index; /* host, [n_rows]: rows of out; NULL: 0, 1, .. */
    uint32_t n_rows;
} moe_expert_work;

/* y[row] = sum over rank of weights[row][rank] * outs[row * n_ranks + rank], accumulated from +0 in
 * rank order by fmaf. A rank of weight 0 (of either sign) is skipped: its row of outs is not read
 * and may hold anything, so a dropped expert needs no output. */
typedef struct moe_combine {
    const float *outs;    /* device, [n_rows * n_ranks][n] */
    const float *weights; /* host, [n_rows][n_ranks] */
    uint32_t n_ranks;
    uint32_t n;
    float *y;               /* device, [n_rows][n] */
    bool weights_on_device; /* `weights` is device memory */
} moe_combine;

/* combine(), add() and rms_norm() in one call, with the bits of the three:
 * sum = a + b; y = norm(sum) * weight. */
typedef struct moe_add_norm {
    const moe_combine *combine; /* gives b; NULL: b is there */
    const float *a, *b;         /* device, [n_rows][n] */
    float *sum;                 /* device; may be a or b */
    const float *weight;        /* device, [n] */
    float *y;                   /* device, [n_rows][n]; none of the others */
    uint32_t n;
    float eps;
} moe_add_norm;

/* The heads of queries and keys between their products and attention, in place and with the bits of
 * rms_norm() of either, rope() of either, and kv_store() of the keys and values. Heads are as wide
 * as the layout's keys, and lie side by side. */
typedef struct moe_heads_store {
    const float *norms[2]; /* device, [k_dim]: weights of norms of q and k; both NULL: none */
    float eps;
    moe_rope q, k; /* of the same angles */
    moe_kv_layout layout;
    const moe_kv_row *rows; /* host, [n_rows] */
    const float *v;         /* device, none of q's or k's */
    size_t v_stride;
} moe_heads_store;

typedef enum moe_gating_kind {
    MOE_GATING_SIGMOID, /* 1 / (1 + exp(-g)) */
    MOE_GATING_SILU,    /* g / (1 + exp(-g)) */
    MOE_GATING_PLAIN,   /* g */
    MOE_GATING_SOFTPLUS /* log(1 + exp(g)) */
} moe_gating_kind;

/* x[row][i] *= f(gate[row][i]); SIGMOID and SILU by sigmoid_mul and silu_mul of
 * cpu/kernels/vector_ops.h, SOFTPLUS by moe_softplus of cpu/kernels/delta_rule.h. */
typedef struct moe_gating {
    moe_gating_kind kind;
    bool one;          /* SOFTPLUS: a row has one gate, gate[row][0] */
    const float *gate; /* device, [n_rows] rows of n, gate_stride floats apart */
    size_t gate_stride;
    float *x; /* device, likewise */
    size_t x_stride;
    uint32_t n;
} moe_gating;

/* Of several residual streams of a row their weighted sum. Products become weights where they
 * stand, each by t = fmaf(product, scale, base):
 *
 *    [n_streams]  of the sum: s + eps for s = 1 / (1 + exp(-t)), by sigmoid() of
 *                 cpu/kernels/vector_ops.h; y = fmaf(weight, x, y) from +0, streams ascending
 *    [n_streams]  of stream_write(): fmaf(magnitude, s, write_eps)
 *    [from][to]   of mixing: each row's softmax (from +0, columns ascending, less its greatest) +
 *                 eps; then columns divided by their sum (from +0, rows ascending) + eps, and
 *                 mixings - 1 times rows likewise and columns */
typedef struct moe_stream_read {
    const float *x; /* device, [n_rows][n_streams][n] */
    uint32_t n_streams, n;
    float *weights;     /* device, [n_rows][n_weights], in: products */
    uint32_t n_weights; /* one, two or all three of the above */
    const float *base;  /* device, [n_weights] */
    const float *scale; /* device, one for each of the above */
    float eps, magnitude, write_eps;
    uint32_t mixings; /* 0: there is no mixing */
    float *y;         /* device, [n_rows][n] */
} moe_stream_read;

/* x[stream] = fmaf(weight of the stream, branch, x[stream]); if it mixes, x[stream] on the right is
 * the sum of fmaf(weight [from][stream], x[from], sum), from +0, ascending. */
typedef struct moe_stream_write {
    float *x; /* device, [n_rows][n_streams][n] */
    uint32_t n_streams, n;
    const float *branch;  /* device, [n_rows][n] */
    const float *weights; /* device, [n_rows], weights_stride floats apart: [n_streams], and behind
                           * these of mixing */
    size_t weights_stride;
    bool mixes;
} moe_stream_write;

/* The greatest of a row of numbers, and its softmax. The index ignores NaNs. The share is NaN if
 * any number is NaN, or if the greatest is infinite. */
typedef struct moe_greatest {
    uint32_t index; /* the lowest of equals; 0 where none is above -infinity */
    float share;    /* 1 / exp_sum(row, row[index]) of cpu/kernels/vector_ops.h */
} moe_greatest;

/* This many rows of this many elements at once. */
typedef struct moe_rows_limit {
    uint32_t n_rows;
    uint32_t n;
} moe_rows_limit;

#define MOE_MAX_FF_LIMITS 3 /* routed experts, shared expert, dense layers */

typedef struct moe_device_limits {
    moe_rows_limit linear;      /* input of linear() and experts(): rows of a pass, longest row */
    moe_rows_limit head_linear; /* input of head_linear(): rows times heads */
    moe_rows_limit ff[MOE_MAX_FF_LIMITS]; /* inner rows of feed-forward networks; unused ones 0 */
    uint32_t max_v_dim;                   /* of an attention head in the cache */
    uint32_t max_head_group;              /* query heads that share a KV head */
} moe_device_limits;

/* The host's inputs for a step's operations. */
typedef struct moe_step_inputs {
    const int32_t *tokens;  /* host, [n_rows]: of embed() */
    const moe_kv_row *rows; /* host, [n_rows]: of kv_store(), attention() */
    const float *cos, *sin; /* host, [n_rows][n_rot / 2]: of rope() */
    uint32_t n_rows;
    uint32_t n_rot;
    uint32_t n_other_groups; /* of the rows' tables of pages: that of every layer's layout */
} moe_step_inputs;

/* The forms that operations have. A device lists those that it carries out (moe_device.forms) and
 * those that it can also record (moe_recording_ops.forms). A model is refused when it is opened if
 * its program needs a form that the device does not list. */
typedef enum moe_form {
    MOE_FORM_EMBED,
    MOE_FORM_GATHER,
    MOE_FORM_RMS_NORM,
    MOE_FORM_MEAN_NORM, /* layer_norm() */
    MOE_FORM_LINEAR,
    MOE_FORM_HEAD_LINEAR,
    MOE_FORM_ROPE,
    MOE_FORM_WINDOW_ROPE, /* by angles that are not the step's */
    MOE_FORM_CLAMP,
    MOE_FORM_SCALE,
    MOE_FORM_SOFT_CAP,
    MOE_FORM_ADD,
    MOE_FORM_COPY,
    MOE_FORM_STREAMS,       /* stream_read() and stream_write() */
    MOE_FORM_GATE,          /* gate() by sigmoid or SiLU */
    MOE_FORM_GATE_PLAIN,    /* gate() with MOE_GATING_PLAIN */
    MOE_FORM_GATE_SOFTPLUS, /* gate() with MOE_GATING_SOFTPLUS */
    MOE_FORM_GATE_ROW,      /* sigmoid_scale() */
    MOE_FORM_KV_STORE,
    MOE_FORM_CHOOSE, /* of positions: choose(), or by the host if it reads the device's memory */
    MOE_FORM_CHOOSE_POOLS, /* ... of pools of them, by the host */
    MOE_FORM_ATTEND,
    MOE_FORM_ATTEND_CAPPED,
    MOE_FORM_ATTEND_WINDOW,
    MOE_FORM_ATTEND_CHUNK,
    MOE_FORM_ATTEND_SINKS,
    MOE_FORM_ATTEND_SCALED, /* by row_scales */
    MOE_FORM_SHORT_CONV,    /* the operations of delta_ops.h */
    MOE_FORM_DELTA_RULE,
    MOE_FORM_STATE_SPACE,
    MOE_FORM_CHANNEL_RULE,
    MOE_FORM_SELECTIVE_SCAN,
    MOE_FORM_ROUTE,
    MOE_FORM_ROUTE_SPARSE_MIXER,
    MOE_FORM_ROUTE_SCALES, /* expert_scales of moe_route */
    MOE_FORM_EXPERTS,      /* with SiLU */
    MOE_FORM_EXPERTS_CLAMPED,
    MOE_FORM_EXPERTS_LIMITED,
    MOE_FORM_EXPERTS_SILU_CLAMPED,
    MOE_FORM_EXPERTS_GELU,
    MOE_FORM_EXPERTS_RELU,
    MOE_FORM_EXPERTS_ONE_MATRIX, /* without a gate's */
    MOE_FORM_EXPERTS_BIASES,
    MOE_FORM_EXPERTS_X_SCALES,
    MOE_FORM_COMBINE,
    MOE_FORM_APART, /* what experts read is not the layer's norm as it then is */
    /* Several operations in one call. No model needs them: without, each is a call. */
    MOE_FORM_ADD_NORM,
    MOE_FORM_HEADS,
    MOE_FORMS
} moe_form;

#define MOE_FORM_BIT(form) (UINT64_C(1) << (form))

/* For messages: what the form is. */
const char *moe_form_name(moe_form form);

/* Properties of a device that no operation shows. */
typedef enum moe_device_feature {
    /* The host may read the device's memory where it lies. */
    MOE_DEVICE_READABLE = 1 << 0,
    /* Keys and values as Q4_0 and F8. */
    MOE_DEVICE_SMALL_KV = 1 << 1,
    /* Weights of types with moe_dtype_info.cpu_only. */
    MOE_DEVICE_EVERY_TYPE = 1 << 2,
    /* moe_weight.scale */
    MOE_DEVICE_SCALED_WEIGHTS = 1 << 3,
    /* moe_kv_layout.n_other_groups. Without it all layers share one group, whose pages stay. */
    MOE_DEVICE_KV_GROUPS = 1 << 4,
    /* choose(), which is NULL without it: the host chooses then, which takes MOE_DEVICE_READABLE.
     */
    MOE_DEVICE_CHOICE = 1 << 5
} moe_device_feature;

typedef struct moe_device_ops {
    void (*close)(moe_device *device);
    /* Allocates scratch for passes of at most these sizes; called once, before any arithmetic. */
    int (*reserve)(moe_device *device, const moe_device_limits *limits, moe_error *err);
    /* Bytes that reserve() would take. */
    uint64_t (*scratch_need)(const moe_device *device, const moe_device_limits *limits);

    int (*alloc)(moe_device *device, size_t bytes, void **memory, moe_error *err); /* 64-aligned */
    void (*free)(moe_device *device, void *memory, size_t bytes);
    /* Returns the pages of a part of alloc()'s memory to the system; their content is lost.
     * Page-aligned. False: this memory can only be freed whole, by free(). */
    bool (*give_up)(moe_device *device, void *memory, size_t bytes);
    /* Says that the part will be used again. */
    void (*take_back)(moe_device *device, void *memory, size_t bytes);
    int (*upload)(moe_device *device, void *dst, const void *src, size_t bytes, moe_error *err);
    /* Fastest into memory of the link's host_alloc(). */
    int (*download)(moe_device *device, void *dst, const void *src, size_t bytes, moe_error *err);
    /* Like download(), but dst, in memory of the link's host_alloc(), is only valid once the next
     * sync(), download() or route() returns. */
    int (*download_later)(moe_device *device, void *dst, const void *src, size_t bytes,
                          moe_error *err);
    int (*copy)(moe_device *device, void *dst, const void *src, size_t bytes, moe_error *err);
    /* Copies n_rows runs of n floats, with a stride (in floats) on either side. */
    int (*copy_rows)(moe_device *device, const float *src, size_t src_stride, float *dst,
                     size_t dst_stride, uint32_t n, size_t n_rows, moe_error *err);
    int (*sync)(moe_device *device, moe_error *err);
    /* Announces host arrays that operations will use repeatedly. An operation that gets one of
     * these arrays, recognised by its address, need not read it again. They must not change until
     * the next call, which ends the step; NULL begins none. */
    int (*begin_step)(moe_device *device, const moe_step_inputs *inputs, moe_error *err);

    int (*embed)(moe_device *device, const moe_weight *table, const int32_t *tokens,
                 uint32_t n_rows, float scale, float *out, moe_error *err);
    int (*gather)(moe_device *device, const float *x, uint32_t n, const uint32_t *rows,
                  uint32_t n_rows, float *out, moe_error *err);
    /* Copies row i of x, in host memory, to row rows[i] of out; rows: host. */
    int (*scatter)(moe_device *device, const float *x, uint32_t n, const uint32_t *rows,
                   uint32_t n_rows, float *out, moe_error *err);
    int (*rms_norm)(moe_device *device, const float *x, const float *weight, float *y,
                    uint32_t n_rows, uint32_t n, size_t x_stride, float eps, moe_error *err);
    int (*linear)(moe_device *device, const float *x, uint32_t n_rows, uint32_t n_in,
                  const moe_linear *linears, uint32_t n_linears, moe_error *err);
    int (*head_linear)(moe_device *device, const moe_head_linear *linear, uint32_t n_rows,
                       moe_error *err);
    int (*clamp)(moe_device *device, float limit, float *x, size_t n, moe_error *err);
    int (*scale)(moe_device *device, float factor, float *x, size_t n, moe_error *err);
    int (*add)(moe_device *device, const float *a, const float *b, float *y, size_t n,
               moe_error *err);
    int (*rope)(moe_device *device, const moe_rope *rope, uint32_t n_rows, moe_error *err);
    /* k: [n_rows][k_stride], heads contiguous; v likewise, unless layout->v_in_k. Row r goes to
     * rows[r].stored. */
    int (*kv_store)(moe_device *device, const moe_kv_layout *layout, const moe_kv_row *rows,
                    uint32_t n_rows, const float *k, size_t k_stride, const float *v,
                    size_t v_stride, moe_error *err);
    int (*kv_move)(moe_device *device, const moe_kv_move *move, moe_error *err);
    /* A kv_store() must already have stored what a row sees of its own pass. */
    int (*attention)(moe_device *device, const moe_attention *attention, uint32_t n_rows,
                     moe_error *err);
    int (*choose)(moe_device *device, const moe_position_choice *choice, uint32_t n_rows,
                  moe_error *err);
    /* Answers up to MOE_MAX_ROUTES routes together. */
    int (*route)(moe_device *device, const moe_route *routes, uint32_t n_routes, uint32_t n_rows,
                 moe_error *err);
    /* x: [n_x_rows][n_in]; writes the rows of out that the works name. */
    int (*experts)(moe_device *device, const float *x, uint32_t n_x_rows, uint32_t n_in,
                   const moe_expert_work *works, uint32_t n_works, float *out, size_t out_stride,
                   moe_error *err);
    int (*combine)(moe_device *device, const moe_combine *combine, uint32_t n_rows, moe_error *err);
    /* x[row] *= sigmoid(gate[row]), for the shared expert's gate. */
    int (*sigmoid_scale)(moe_device *device, const float *gate, float *x, uint32_t n_rows,
                         uint32_t n, moe_error *err);
    int (*gate)(moe_device *device, const moe_gating *gating, size_t n_rows, moe_error *err);
    /* As rms_norm(), by layer_norm of cpu/kernels/vector_ops.h; bias: device, [n] or NULL. */
    int (*layer_norm)(moe_device *device, const float *x, const float *weight, const float *bias,
                      float *y, uint32_t n_rows, uint32_t n, size_t x_stride, float eps,
                      moe_error *err);
    /* x = cap * tanh(x / cap) */
    int (*soft_cap)(moe_device *device, float cap, float *x, size_t n, moe_error *err);
    int (*delta_rule)(moe_device *device, const moe_delta_rule *rule, moe_error *err);
    int (*short_conv)(moe_device *device, const moe_short_conv *conv, moe_error *err);
    int (*state_space)(moe_device *device, const moe_state_space *space, moe_error *err);
    int (*channel_rule)(moe_device *device, const moe_channel_rule *rule, moe_error *err);
    int (*selective_scan)(moe_device *device, const moe_selective_scan *scan, moe_error *err);
    /* With MOE_FORM_ADD_NORM. */
    int (*add_norm)(moe_device *device, const moe_add_norm *norm, uint32_t n_rows, moe_error *err);
    /* With MOE_FORM_HEADS. */
    int (*heads_store)(moe_device *device, const moe_heads_store *heads, uint32_t n_rows,
                       moe_error *err);
    /* out: device, [n_rows]; x: [n_rows][n], n > 0. */
    int (*greatest)(moe_device *device, const float *x, uint32_t n_rows, uint32_t n,
                    moe_greatest *out, moe_error *err);
    /* With MOE_FORM_STREAMS. */
    int (*stream_read)(moe_device *device, const moe_stream_read *read, uint32_t n_rows,
                       moe_error *err);
    int (*stream_write)(moe_device *device, const moe_stream_write *write, uint32_t n_rows,
                        moe_error *err);
} moe_device_ops;

/* ---- Layers that a device carries out without the host (optional) ---- */

/* What replaces a pick of the router that is not resident, by the rules of
 * runtime/draft/draft_route.h. */
typedef enum moe_resident_fill {
    MOE_RESIDENT_FILL_AFFINITY,
    MOE_RESIDENT_FILL_ROUTER,
    MOE_RESIDENT_FILL_NONE
} moe_resident_fill;

/* Of an address: the host's memory, and a move to the device has begun: it is not kept. */
#define MOE_OVER_LINK_COMING 2u

/* Where an expert's parts are: gate, up, down. Undefined if it is not resident. */
typedef struct moe_expert_address {
    const void *parts[3];
    uint64_t over_link; /* 0: device memory; 1: the host's; MOE_OVER_LINK_COMING */
} moe_expert_address;

/* A slot that a pass may overwrite with an expert that it would read over the link. */
typedef struct moe_expert_spare {
    moe_expert_address slot;   /* where the parts go */
    moe_expert_address home;   /* in host memory, the expert that the slot has */
    moe_expert_address *entry; /* where the table says that this one is; NULL: the slot is empty */
    uint64_t used;             /* in and out: 1: the pass has used it, or put another expert there,
                                * so the slot stays as it is */
} moe_expert_spare;

/* Spares that some layers share, in the order in which they are to be taken. */
typedef struct moe_spare_range {
    uint32_t first, end; /* their numbers */
    /* Those before it may be taken from layers that are still to come, after the others. */
    uint32_t early_end;
} moe_spare_range;

#define MOE_SPARE_UNTAKEN UINT32_MAX
#define MOE_MAX_SPARES    256u

/* How a layer keeps what it reads over the link: an expert goes to the next spare slot, once, and
 * is read from there. The table then says so of it and of the expert that was there. A spare can
 * be had that is empty, or whose expert is of this layer or of one that the pass has been through,
 * and has not been used; layers' tables lie in their order. While there is no spare, experts are
 * read where they are. All pointers are device memory. */
typedef struct moe_resident_keep {
    moe_expert_spare *spares;     /* of all layers; NULL: nothing is kept */
    const moe_spare_range *range; /* the layer's */
    uint32_t *taken; /* in and out: of each spare: first_key + the expert that is there now, or
                      * MOE_SPARE_UNTAKEN */
    moe_expert_address *table; /* the layer's addresses */
    uint32_t first_key;
    size_t bytes[3]; /* of the parts; 0: lies where another one does */
} moe_resident_keep;

/* Lossy: buddies replace a missing pick before anything else does, by the rules of
 * runtime/lossy/buddy.h, without novelty and the random baseline. */
typedef struct moe_resident_buddies {
    const uint32_t *count;   /* device, [n_expert] */
    const uint16_t *buddies; /* device, [n_expert][max] */
    uint32_t max;
    uint32_t max_replaced, search;
    float tae_threshold, margin_threshold, tae_temperature, residency_threshold;
    bool own_weight, drop_unserved;
} moe_resident_buddies;

/* How a pass stops at its first layer with a pick that is not resident, so that the host can go on
 * from there: that layer and those behind it compute no experts (outs is of no meaning), and it
 * copies what it has begun with. All pointers are device memory. */
typedef struct moe_resident_stop {
    uint32_t *stopped; /* in and out: 1 when an earlier layer has stopped; NULL: nothing stops */
    bool begins;       /* the pass's first such layer: *stopped is out alone */
    const float *inputs[2]; /* [n] each, of all rows */
    float *kept[2];         /* likewise: their copies */
    uint32_t n;
} moe_resident_stop;

/* The routed experts of a few rows in one layer, chosen among the resident ones: router, stand-ins
 * and experts. Several rows only where a missing expert stops the pass. All pointers
 * except `route`'s own fields are device memory. Nothing may write to the experts in the table
 * before the next sync() or download(). */
typedef struct moe_resident_experts {
    uint32_t n_rows;  /* up to max_rows of the recording */
    moe_route route;  /* its experts, weights and probs are not used */
    bool renormalise; /* the mixing rule of the edited rows; its scale is the route's */
    const moe_resident_buddies *buddies; /* host; or NULL */
    moe_resident_fill fill;
    const uint16_t *affinity; /* [n_expert][n_expert], nearest first; or NULL */
    const bool *resident;     /* [n_expert] */
    const moe_expert_address
        *addresses;            /* [n_expert]; the link's reads_host() is true of host memory */
    moe_weight gate, up, down; /* type and shape of all experts; data is not used */
    /* Of gate, up, down: an expert's bias is bias_bytes[p] further than the last one's; or NULL. */
    const float *biases[3];
    size_t bias_bytes[3];
    moe_activation activation;
    const float *x;      /* [n_rows][gate.n_in] */
    uint32_t *picks;     /* out: [n_rows][n_used] what the router chose, best first */
    float *weights;      /* out: [n_rows][n_used] the router's, unless `fill` put an expert in; or
                          * NULL */
    float *probs;        /* out: [n_rows][n_expert] the router's; or NULL */
    uint32_t *chosen;    /* out: [n_rows][n_used] the experts that serve the ranks; or NULL */
    uint32_t *n_missing; /* out: how many picks of all rows are not resident, and have neither
                          * buddies that replace them nor permission to be dropped; or NULL */
    float *outs;         /* out: [n_rows * n_used][down.n_out] */
    /* Host, out: where the weights of outs are, [n_rows][n_used], until the next call. */
    const float **mixed;
    moe_resident_stop stop;
    moe_resident_keep keep; /* only where a missing expert stops the pass */
} moe_resident_experts;

/* Operations recorded once and replayed in later steps with other inputs. The user numbers
 * recordings, separately for each number of rows and each shape: rows of one timeline, of one page
 * table with paths, of several page tables. A recording is of a step of up to max_rows rows, and
 * its operations return nothing to the host. Host arrays other than the step's inputs must be the
 * same each time. */
typedef struct moe_recording_ops {
    uint32_t max_rows;
    uint64_t forms; /* of operations that can be recorded; those of routed experts stand for
                     * resident_experts() */
    /* Whether operations of the step that has been begun can be recorded. */
    bool (*takes_step)(const moe_device *device);
    int (*resident_experts)(moe_device *device, const moe_resident_experts *experts,
                            moe_error *err);
    /* *played is false when nothing has been recorded under this number, or not for positions this
     * far along. */
    int (*play)(moe_device *device, uint32_t number, bool *played, moe_error *err);
    /* Records the operations from here to record_end() in place of an earlier recording. Within a
     * step. MOE_ERR_UNSUPPORTED, from here or from record_end(): recording is impossible, nothing
     * is recorded, and the device remains usable. */
    int (*record)(moe_device *device, uint32_t number, moe_error *err);
    /* status: the result of the operations. With MOE_OK the recording is played for the first time.
     * Otherwise it is dropped, and status is returned. */
    int (*record_end)(moe_device *device, int status, moe_error *err);
} moe_recording_ops;

/* One piece of a copy. One side is device memory, the other host memory of host_alloc(). */
typedef struct moe_copy_range {
    void *dst;
    const void *src; /* unchanged until the copy is done */
    size_t bytes;
} moe_copy_range;

#define MOE_MAX_COPIES      16u /* copies of one direction begun and not done */
#define MOE_MAX_COPY_RANGES 4u
#define MOE_COPY_UNDER_WAY  1

/* Called on any thread after copies of either direction have ended. It may only wake other threads.
 */
typedef void (*moe_copy_notify_fn)(void *user);

/* Two queues, one for each direction; they run beside each other. The copies of a queue end in the
 * order in which they were begun, so the queue has either passed a ticket or not. One thread begins
 * copies; the other functions may be called from any. */
typedef struct moe_link_ops {
    /* Host memory that the link reads at full speed (page-locked where that exists). */
    int (*host_alloc)(moe_device *device, size_t bytes, void **memory, moe_error *err);
    void (*host_free)(moe_device *device, void *memory, size_t bytes);
    /* Like give_up() and take_back() of the device, for memory of host_alloc(). Page-locked memory
     * can only be freed whole. */
    bool (*host_give_up)(moe_device *device, void *memory, size_t bytes);
    void (*host_take_back)(moe_device *device, void *memory, size_t bytes);
    /* Copies the ranges to the device as one transfer. At most MOE_MAX_COPIES may be under way. */
    int (*copy_begin)(moe_device *device, const moe_copy_range *ranges, uint32_t n_ranges,
                      uint64_t *ticket, moe_error *err);
    /* MOE_COPY_UNDER_WAY, MOE_OK, or why it failed. */
    int (*copy_state)(moe_device *device, uint64_t ticket);
    /* Returns when the copy is done: MOE_OK, or why it failed. */
    int (*copy_wait)(moe_device *device, uint64_t ticket, moe_error *err);
    /* The same two for copies from the device to the host, with tickets of their own. They wait for
     * no operation and no copy of the other direction. MOE_ERR_UNSUPPORTED: the host memory is not
     * page-locked, so the copy would not run beside other work; nothing has begun. */
    int (*save_begin)(moe_device *device, const moe_copy_range *ranges, uint32_t n_ranges,
                      uint64_t *ticket, moe_error *err);
    int (*save_state)(moe_device *device, uint64_t ticket);
    /* Whether operations of the device can read these bytes of host_alloc() in place, over the
     * link, at this address. May take as long as page-locking them. From any thread. */
    bool (*reads_host)(moe_device *device, const void *memory, size_t bytes);
    /* Copies from and to the host memory of another device of this kind too, which must outlive
     * this one. Called once, before any copy. NULL: the device cannot be joined (cards.h). */
    void (*host_share)(moe_device *device, moe_device *owner);
    /* Sets the function to notify; fn NULL: none. Once this returns, the earlier one is not called
     * any more. */
    void (*copy_notify)(moe_device *device, moe_copy_notify_fn fn, void *user);
} moe_link_ops;

/* Work that is timed. */
typedef struct moe_timed_work {
    uint32_t n_experts;
    uint32_t n_rows; /* of all of them */
} moe_timed_work;

/* The device's own clock, for one that queues its operations: how long they took to queue says
 * nothing. Called from the thread of the operations; never fails, at worst there is no time. */
typedef struct moe_device_clock {
    /* Times the operations from here to end(). Does without if too many times have not been taken,
     * or while the device records. */
    void (*begin)(moe_device *device);
    void (*end)(moe_device *device, const moe_timed_work *work);
    /* The oldest work that is done and has not been taken, and its time; false if there is none. */
    bool (*take)(moe_device *device, moe_timed_work *work, uint64_t *ns);
} moe_device_clock;

/* The first member of every device. */
struct moe_device {
    const moe_device_ops *ops;
    const char *name; /* "cpu" */
    /* NULL: the device's memory is the host's, and the fields below are 0. */
    const moe_link_ops *link;
    const moe_recording_ops *recording; /* NULL: not offered */
    const moe_device_clock *clock;      /* NULL: operations are done when their calls return */
    unsigned features;                  /* moe_device_feature */
    uint64_t forms;                     /* of operations: MOE_FORM_BIT() of moe_form */
    uint64_t memory_bytes;              /* of the device, for all its contents */
    uint64_t link_bytes_per_s;          /* nominal: a first estimate until copies have been measured
                                         */
    uint64_t link_latency_ns;
    bool queues;      /* operations are queued, and getting results costs a round trip */
    moe_cards *cards; /* further cards that hold experts (cards.h); NULL: none */
    bool simulated;   /* times come from a model, and whatever prints them must say so */
};

#endif
