/* SPDX-License-Identifier: MIT */
/* The device contract: what the engine asks of whatever holds the weights and does the arithmetic.
 *
 * Pointers marked "device" are addresses in the device's memory, and only the device may follow
 * them; on the CPU they are ordinary memory. Operations run in the order of the calls; a device may
 * queue them, and must be done with them when sync() or download() returns. What an operation reads
 * of the host's memory (arguments, lists of rows, their paths) is read before the call returns. A
 * failure is returned by the call or by a later one, and leaves the device usable for closing only.
 *
 * A device whose memory is not the host's has a link (moe_device.link): a queue of copies from host
 * to device that runs beside the arithmetic, and is what experts travel by. The CPU has none.
 * It may also offer to record operations (moe_device.recording).
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

typedef struct moe_device moe_device;

/* A matrix in the device's memory: n_out rows of n_in elements in the file's block layout. */
typedef struct moe_weight {
    moe_dtype type;
    const void *data; /* device */
    uint32_t n_in;
    uint32_t n_out;
    size_t row_bytes;
} moe_weight;

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
 * [head][position] rows of keys from k_offset, of values from v_offset. */
typedef struct moe_kv_layout {
    int type; /* moe_kv_type */
    uint32_t n_head_kv;
    uint32_t k_dim;
    uint32_t v_dim;
    size_t k_row_bytes;
    size_t v_row_bytes;
    size_t k_offset;
    size_t v_offset; /* with MLA the same as k_offset: a value is the head of its key */
    bool v_in_k;     /* nothing to store for values */
} moe_kv_layout;

/* A row's place in the cache, and what it sees: the logical positions 0..position of its timeline,
 * itself among them. Page p holds the stored positions [p * MOE_KV_PAGE, (p + 1) * MOE_KV_PAGE).
 *
 * A row of a timeline is stored where it stands. A node of a tree of tokens is not: siblings have
 * one logical position and need a place each, so node i of a tree whose root is at `base` is stored
 * at base + i, while it stands at base + its depth. Its path says where its ancestors are:
 *
 *     logical   0 .. path_first - 1   path_first .. position
 *     stored    0 .. path_first - 1   path[0]    .. path[position - path_first], which is `stored`
 *
 * The logical position decides the rotary embedding and the order of the sums (attention's blocks
 * are MOE_KV_PAGE logical positions, wherever they are stored), so a node's bits are those of a
 * timeline that holds just its ancestors. No two rows of a pass are stored in one place. */
typedef struct moe_kv_row {
    void *const *pages; /* host array of device pages */
    uint32_t position;  /* logical */
    uint32_t stored;    /* where kv_store() puts its key and value */
    /* Host, [position - path_first + 1], any stored positions of the pages, each once. NULL: the
     * row sees positions 0..position where they are, and stored == position. */
    const uint32_t *path;
    uint32_t path_first; /* 0..position; without a path of no meaning */
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

/* Some stored positions of one page table taken to others, for keys and values of every layer: the
 * accepted nodes of a tree to the places of a timeline. As if done one after the other, i
 * ascending: to[i] may be from[j] of a j < i, and never is of a j > i. What lies at a position of
 * `from` that is none of `to` stays. */
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
    float *out; /* device, [n_rows][n_head][v_dim] */
} moe_attention;

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
    uint32_t n_group;
    uint32_t n_group_used;
    int group_score; /* moe_group_score_kind */
    /* There when the call returns. */
    uint32_t *experts; /* host, out: [n_rows][n_used], best first */
    float *weights;    /* host, out: [n_rows][n_used] */
    float *probs;      /* host, out: [n_rows][n_expert] probabilities over all experts, or NULL */
} moe_route;

/* One expert and the rows that chose it: down . (silu(gate . x) * (up . x)). */
typedef struct moe_expert_work {
    moe_weight gate, up, down;
    const uint32_t *x_index;   /* host, [n_rows]: rows of x; NULL: 0, 1, .. */
    const uint32_t *out_index; /* host, [n_rows]: rows of out; NULL: 0, 1, .. */
    uint32_t n_rows;
} moe_expert_work;

/* y[row] = sum over rank of weights[row][rank] * outs[row * n_ranks + rank], accumulated from +0 in
 * rank order by fmaf. A rank whose weight is 0 (of either sign) is passed over: its row of outs is
 * not read and may hold anything, so an expert that was dropped needs no output. */
typedef struct moe_combine {
    const float *outs;    /* device, [n_rows * n_ranks][n] */
    const float *weights; /* host, [n_rows][n_ranks] */
    uint32_t n_ranks;
    uint32_t n;
    float *y; /* device, [n_rows][n] */
} moe_combine;

/* The greatest of a row of numbers, and what softmax gives it. NaNs are passed over by the index; a
 * share is NaN where a number is, or where the greatest is infinite. */
typedef struct moe_greatest {
    uint32_t index; /* the lowest of equals; 0 where none is above -infinity */
    float share;    /* 1 / exp_sum(row, row[index]) of cpu/kernels/vector_ops.h */
} moe_greatest;

/* So many rows of so many elements at once. */
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

/* What a step's operations are given by the host. */
typedef struct moe_step_inputs {
    const int32_t *tokens;  /* host, [n_rows]: of embed() */
    const moe_kv_row *rows; /* host, [n_rows]: of kv_store(), attention() */
    const float *cos, *sin; /* host, [n_rows][n_rot / 2]: of rope() */
    uint32_t n_rows;
    uint32_t n_rot;
} moe_step_inputs;

typedef struct moe_device_ops {
    void (*close)(moe_device *device);
    /* Scratch for passes of at most these sizes; called once, before any arithmetic. */
    int (*reserve)(moe_device *device, const moe_device_limits *limits, moe_error *err);
    /* What reserve() would take. */
    uint64_t (*scratch_need)(const moe_device *device, const moe_device_limits *limits);

    int (*alloc)(moe_device *device, size_t bytes, void **memory, moe_error *err); /* 64-aligned */
    void (*free)(moe_device *device, void *memory, size_t bytes);
    /* The pages of a part of what alloc() gave go back to the system, and what was in them is lost;
     * page-aligned. False: this memory is given back as a whole, by free(). */
    bool (*give_up)(moe_device *device, void *memory, size_t bytes);
    /* That part will be used again. */
    void (*take_back)(moe_device *device, void *memory, size_t bytes);
    int (*upload)(moe_device *device, void *dst, const void *src, size_t bytes, moe_error *err);
    /* Shortest to memory of the link's host_alloc(). */
    int (*download)(moe_device *device, void *dst, const void *src, size_t bytes, moe_error *err);
    /* As download(), but dst, of the link's host_alloc(), is written by the time that the next
     * sync(), download() or route() returns. */
    int (*download_later)(moe_device *device, void *dst, const void *src, size_t bytes,
                          moe_error *err);
    int (*copy)(moe_device *device, void *dst, const void *src, size_t bytes, moe_error *err);
    /* n_rows runs of n floats, a stride (in floats) apart on either side. */
    int (*copy_rows)(moe_device *device, const float *src, size_t src_stride, float *dst,
                     size_t dst_stride, uint32_t n, size_t n_rows, moe_error *err);
    int (*sync)(moe_device *device, moe_error *err);
    /* Host arrays that operations from here on are given again and again: those that are the
     * inputs' own, by their addresses, may be read now and not again. They must not change until
     * the next call, which ends the step; NULL begins none. */
    int (*begin_step)(moe_device *device, const moe_step_inputs *inputs, moe_error *err);

    int (*embed)(moe_device *device, const moe_weight *table, const int32_t *tokens,
                 uint32_t n_rows, float scale, float *out, moe_error *err);
    int (*gather)(moe_device *device, const float *x, uint32_t n, const uint32_t *rows,
                  uint32_t n_rows, float *out, moe_error *err);
    /* Row i of x, in host memory, becomes row rows[i] of out; rows: host. */
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
    /* What a row sees of its own pass has been stored by a kv_store() before. */
    int (*attention)(moe_device *device, const moe_attention *attention, uint32_t n_rows,
                     moe_error *err);
    /* Up to MOE_MAX_ROUTES, which are answered together. */
    int (*route)(moe_device *device, const moe_route *routes, uint32_t n_routes, uint32_t n_rows,
                 moe_error *err);
    /* x: [n_x_rows][n_in]; writes the rows of out that the works name. */
    int (*experts)(moe_device *device, const float *x, uint32_t n_x_rows, uint32_t n_in,
                   const moe_expert_work *works, uint32_t n_works, float *out, size_t out_stride,
                   moe_error *err);
    int (*combine)(moe_device *device, const moe_combine *combine, uint32_t n_rows, moe_error *err);
    /* x[row] *= sigmoid(gate[row]); the shared expert's gate. */
    int (*sigmoid_scale)(moe_device *device, const float *gate, float *x, uint32_t n_rows,
                         uint32_t n, moe_error *err);
    /* out: device, [n_rows]; x: [n_rows][n], n > 0. */
    int (*greatest)(moe_device *device, const float *x, uint32_t n_rows, uint32_t n,
                    moe_greatest *out, moe_error *err);
} moe_device_ops;

/* ---- What a device carries out alone (optional) ---- */

/* What stands in for a pick of the router that is not resident, by the rules of
 * runtime/draft/draft_route.h. */
typedef enum moe_resident_fill {
    MOE_RESIDENT_FILL_AFFINITY,
    MOE_RESIDENT_FILL_ROUTER,
    MOE_RESIDENT_FILL_NONE
} moe_resident_fill;

/* Where the parts of an expert are: gate, up, down. Of one that is not resident of no meaning. */
typedef struct moe_expert_address {
    const void *parts[3]; /* device */
} moe_expert_address;

/* Lossy: what stands in for a missing pick before anything else does, by the rules of
 * runtime/lossy/buddy.h, without novelty and the random baseline. */
typedef struct moe_resident_buddies {
    const uint32_t *count;   /* device, [n_expert] */
    const uint16_t *buddies; /* device, [n_expert][max] */
    uint32_t max;
    uint32_t max_replaced, search;
    float tae_threshold, margin_threshold, tae_temperature, residency_threshold;
    bool own_weight, drop_unserved;
} moe_resident_buddies;

/* One row's routed experts in one layer, chosen among those that are resident: router, stand-ins,
 * experts and their sum. All pointers but `route`'s own fields are device
 * memory. What the table names must not be written to before the next sync() or download(). */
typedef struct moe_resident_experts {
    moe_route route;  /* its experts, weights and probs are not looked at */
    bool renormalise; /* the mixing rule of the edited row; its scale is the route's */
    const moe_resident_buddies *buddies; /* host; or NULL */
    moe_resident_fill fill;
    const uint16_t *affinity;            /* [n_expert][n_expert], nearest first; or NULL */
    const bool *resident;                /* [n_expert] */
    const moe_expert_address *addresses; /* [n_expert] */
    moe_weight gate, up, down;           /* type and shape of all; data is not looked at */
    const float *x;                      /* [gate.n_in] */
    uint32_t *picks;                     /* out: [n_used] what the router chose, best first */
    float *weights;      /* out: [n_used] the router's, where `fill` put nothing in; or NULL */
    float *probs;        /* out: [n_expert] the router's; or NULL */
    uint32_t *chosen;    /* out: [n_used] what serves the ranks; or NULL */
    uint32_t *n_missing; /* out: how many of the picks are not resident, nor have buddies that stand
                            in for them or leave to be dropped; or NULL */
    float *outs;         /* scratch: [n_used][down.n_out] */
    float *y;            /* out: [down.n_out] */
} moe_resident_experts;

/* Operations recorded once, to be played in other steps with other inputs. Recordings are numbered
 * by their user, for each number of rows by itself. They are of steps of up to max_rows rows, all
 * of one page table and without paths, and of operations that give the host nothing back; host
 * arrays that are not the step's inputs have to be the same each time. */
typedef struct moe_recording_ops {
    uint32_t max_rows;
    int (*resident_experts)(moe_device *device, const moe_resident_experts *experts,
                            moe_error *err);
    /* *played false: nothing has been recorded under this number, or not for rows so far along. */
    int (*play)(moe_device *device, uint32_t number, bool *played, moe_error *err);
    /* The operations from here to record_end() are recorded in place of what was. Within a step.
     * MOE_ERR_UNSUPPORTED, from here or from record_end(): it cannot be done, nothing is recorded,
     * and the device remains usable. */
    int (*record)(moe_device *device, uint32_t number, moe_error *err);
    /* status: what became of the operations. MOE_OK: the recording is played for the first time.
     * Else it is dropped, and status is returned. */
    int (*record_end)(moe_device *device, int status, moe_error *err);
} moe_recording_ops;

/* One piece of a copy. */
typedef struct moe_copy_range {
    void *dst;       /* device */
    const void *src; /* host, of host_alloc(): unchanged until the copy is done */
    size_t bytes;
} moe_copy_range;

#define MOE_MAX_COPIES      16u /* begun and not done */
#define MOE_MAX_COPY_RANGES 4u
#define MOE_COPY_UNDER_WAY  1

/* Called on any thread after copies have ended: it may only wake others. */
typedef void (*moe_copy_notify_fn)(void *user);

/* Copies end in the order in which they were begun, so a ticket is a number that the queue has
 * passed or not. One thread begins copies; the others may be called from any. */
typedef struct moe_link_ops {
    /* Host memory that the link reads at full speed (page-locked where that exists). */
    int (*host_alloc)(moe_device *device, size_t bytes, void **memory, moe_error *err);
    void (*host_free)(moe_device *device, void *memory, size_t bytes);
    /* As give_up() and take_back() of the device, for memory of host_alloc(). Page-locked memory is
     * given back as a whole. */
    bool (*host_give_up)(moe_device *device, void *memory, size_t bytes);
    void (*host_take_back)(moe_device *device, void *memory, size_t bytes);
    /* The ranges travel as one transfer. At most MOE_MAX_COPIES may be under way. */
    int (*copy_begin)(moe_device *device, const moe_copy_range *ranges, uint32_t n_ranges,
                      uint64_t *ticket, moe_error *err);
    /* MOE_COPY_UNDER_WAY, MOE_OK, or why it failed. */
    int (*copy_state)(moe_device *device, uint64_t ticket);
    /* Returns when the copy is done: MOE_OK, or why it failed. */
    int (*copy_wait)(moe_device *device, uint64_t ticket, moe_error *err);
    /* Whom to tell from here on; fn NULL: nobody. Once it returns, the one before is not called. */
    void (*copy_notify)(moe_device *device, moe_copy_notify_fn fn, void *user);
} moe_link_ops;

/* The first member of every device. */
struct moe_device {
    const moe_device_ops *ops;
    const char *name; /* "cpu" */
    /* NULL: the device's memory is the host's, and the fields below are 0. */
    const moe_link_ops *link;
    const moe_recording_ops *recording; /* NULL: not offered */
    uint64_t memory_bytes;              /* of the device, for everything on it */
    uint64_t link_bytes_per_s;          /* nominal: a first guess until copies have been measured */
    uint64_t link_latency_ns;
    bool queues;    /* operations are queued, and asking for results costs a round trip */
    bool simulated; /* times are a model's, and whatever is printed of them must say so */
};

#endif
