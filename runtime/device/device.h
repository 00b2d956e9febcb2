/* SPDX-License-Identifier: MIT */
/* The device contract: what the engine requires of the device that holds the weights and does the
 * arithmetic. The arguments of its operations are in row_ops.h, attention_ops.h, delta_ops.h and
 * resident_ops.h.
 *
 * Pointers marked "device" are addresses in the device's memory, which only the device may
 * dereference; on the CPU they are ordinary memory. Operations run in the order of the calls. A
 * device may queue them, and must have finished them when sync() or download() returns. An
 * operation reads host memory (arguments, lists of rows, their paths) before the call returns. A
 * failure is returned by its call or by a later one; afterwards the device can only be closed.
 *
 * A device with its own memory has a link (moe_device.link): a queue of copies from host to device
 * that carries experts, and runs in parallel with the arithmetic. The CPU has no link. A device may
 * also offer to record operations (moe_device.recording).
 *
 * The arithmetic is specified in cpu/kernels/matmul.h and cpu/kernels/vector_ops.h. Every device
 * follows it to the bit, except for the attention of layers for which own_attention() is true.
 * Rows never influence each other. */
#ifndef MOE_DEVICE_DEVICE_H
#define MOE_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>

#include "runtime/device/attention_ops.h"
#include "runtime/device/delta_ops.h"
#include "runtime/device/resident_ops.h"
#include "runtime/device/row_ops.h"

typedef struct moe_device moe_device;
typedef struct moe_cards moe_cards; /* cards.h */

/* A number of rows, and the elements of each. */
typedef struct moe_rows_limit {
    uint32_t n_rows;
    uint32_t n;
} moe_rows_limit;

#define MOE_MAX_FF_LIMITS 3 /* routed experts, shared expert, dense layers */

typedef struct moe_device_limits {
    /* Input of linear() and experts(): rows of a pass, and the longest row. */
    moe_rows_limit linear;
    moe_rows_limit head_linear; /* input of head_linear(): rows times heads, and the longest row */
    moe_rows_limit ff[MOE_MAX_FF_LIMITS]; /* inner rows of feed-forward networks; unused ones 0 */
    uint32_t max_v_dim;                   /* of an attention head in the cache */
    uint32_t max_head_group;              /* query heads that share a KV head */
} moe_device_limits;

/* The inputs that the host gives to the operations of a step. */
typedef struct moe_step_inputs {
    const int32_t *tokens;  /* host, [n_rows]: for embed() */
    const moe_kv_row *rows; /* host, [n_rows]: for kv_store() and attention() */
    const float *cos, *sin; /* host, [n_rows][n_rot / 2]: for rope() */
    uint32_t n_rows;
    uint32_t n_rot;
    /* Of the rows' page tables: the same number as in every layer's layout. */
    uint32_t n_other_groups;
} moe_step_inputs;

/* The forms that operations have. A device lists the forms that it carries out (moe_device.forms)
 * and those that it can also record (moe_recording_ops.forms). Opening a model fails if its program
 * needs a form that the device does not list. */
typedef enum moe_form {
    MOE_FORM_EMBED,
    MOE_FORM_GATHER,
    MOE_FORM_RMS_NORM,
    MOE_FORM_MEAN_NORM, /* layer_norm() */
    MOE_FORM_LINEAR,
    MOE_FORM_HEAD_LINEAR,
    MOE_FORM_ROPE,
    MOE_FORM_ROPE_BACK,   /* by angles whose sines are negated */
    MOE_FORM_WINDOW_ROPE, /* by other angles than the step's */
    MOE_FORM_CLAMP,
    MOE_FORM_SCALE,
    MOE_FORM_SOFT_CAP,
    MOE_FORM_ADD,
    MOE_FORM_COPY,
    MOE_FORM_STREAMS,       /* stream_read() and stream_write() */
    MOE_FORM_STREAM_GATES,  /* the same with gates for elements */
    MOE_FORM_STREAM_RECALL, /* the same by attention to the streams */
    MOE_FORM_NGRAMS,        /* stream_match(), and rows of a table, which the host brings in */
    MOE_FORM_GATE,          /* gate() by sigmoid or SiLU */
    MOE_FORM_GATE_PLAIN,    /* gate() with MOE_GATING_PLAIN */
    MOE_FORM_GATE_SOFTPLUS, /* gate() with MOE_GATING_SOFTPLUS */
    MOE_FORM_GATE_ROW,      /* sigmoid_scale() */
    MOE_FORM_KV_STORE,
    /* Of positions: by choose(), or by the host if it can read the device's memory. */
    MOE_FORM_CHOOSE,
    MOE_FORM_CHOOSE_POOLS, /* of pools of positions, likewise; and pool_keys() */
    MOE_FORM_ATTEND,
    MOE_FORM_ATTEND_CAPPED,
    MOE_FORM_ATTEND_WINDOW,
    MOE_FORM_ATTEND_CHUNK,
    MOE_FORM_ATTEND_SINKS,
    MOE_FORM_ATTEND_SCALED, /* with row_scales */
    MOE_FORM_ATTEND_BESIDE, /* also to rows of a second layout, which the host stores */
    MOE_FORM_SHORT_CONV,    /* the operations of delta_ops.h */
    MOE_FORM_DELTA_RULE,
    MOE_FORM_STATE_SPACE,
    MOE_FORM_CHANNEL_RULE,
    MOE_FORM_SELECTIVE_SCAN,
    MOE_FORM_ROUTE,
    MOE_FORM_ROUTE_SPARSE_MIXER,
    MOE_FORM_ROUTE_SQRT_SOFTPLUS,
    MOE_FORM_ROUTE_GIVEN,  /* to experts that the caller gives */
    MOE_FORM_ROUTE_SCALES, /* expert_scales of moe_route */
    MOE_FORM_EXPERTS,      /* with SiLU */
    MOE_FORM_EXPERTS_CLAMPED,
    MOE_FORM_EXPERTS_LIMITED,
    MOE_FORM_EXPERTS_SILU_CLAMPED,
    MOE_FORM_EXPERTS_GELU,
    MOE_FORM_EXPERTS_RELU,
    MOE_FORM_EXPERTS_SITU,
    MOE_FORM_EXPERTS_ONE_MATRIX, /* without a gate matrix */
    MOE_FORM_EXPERTS_BIASES,
    MOE_FORM_EXPERTS_X_SCALES,
    MOE_FORM_COMBINE,
    MOE_FORM_APART, /* experts read something else than the layer's norm as it is at that time */
    /* Several operations in one call. No model needs these forms: without them, each operation is a
     * call. */
    MOE_FORM_ADD_NORM,
    MOE_FORM_HEADS,
    MOE_FORMS
} moe_form;

#define MOE_FORM_BIT(form) (UINT64_C(1) << (form))

/* What the form is, in words, for messages. */
const char *moe_form_name(moe_form form);

/* Properties of a device that its operations do not show. */
typedef enum moe_device_feature {
    /* The host may read the device's memory directly. */
    MOE_DEVICE_READABLE = 1 << 0,
    /* The KV cache may be Q4_0 or F8. */
    MOE_DEVICE_SMALL_KV = 1 << 1,
    /* Weights may have types with moe_dtype_info.cpu_only. */
    MOE_DEVICE_EVERY_TYPE = 1 << 2,
    /* Weights may have a moe_weight.scale. */
    MOE_DEVICE_SCALED_WEIGHTS = 1 << 3,
    /* Layouts may have moe_kv_layout.n_other_groups. Without this all layers share one group, whose
     * pages are never freed behind a window. */
    MOE_DEVICE_KV_GROUPS = 1 << 4,
    /* The device has choose(), which is NULL otherwise: then the host chooses, which needs
     * MOE_DEVICE_READABLE. */
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
    /* Returns the pages of a part of alloc()'s memory to the system; their content is lost. The
     * part is page-aligned. False: this memory can only be freed whole, by free(). */
    bool (*give_up)(moe_device *device, void *memory, size_t bytes);
    /* Says that such a part will be used again. */
    void (*take_back)(moe_device *device, void *memory, size_t bytes);
    int (*upload)(moe_device *device, void *dst, const void *src, size_t bytes, moe_error *err);
    /* Fastest if dst is memory of the link's host_alloc(). */
    int (*download)(moe_device *device, void *dst, const void *src, size_t bytes, moe_error *err);
    /* Like download(), but dst is valid only once the next sync(), download() or route() returns.
     * dst: memory of the link's host_alloc(). */
    int (*download_later)(moe_device *device, void *dst, const void *src, size_t bytes,
                          moe_error *err);
    int (*copy)(moe_device *device, void *dst, const void *src, size_t bytes, moe_error *err);
    /* Copies n_rows runs of n floats, with a stride (in floats) on either side. */
    int (*copy_rows)(moe_device *device, const float *src, size_t src_stride, float *dst,
                     size_t dst_stride, uint32_t n, size_t n_rows, moe_error *err);
    int (*sync)(moe_device *device, moe_error *err);
    /* Announces host arrays that operations will use repeatedly. An operation recognises such an
     * array by its address, and need not read it again. The arrays must not change until the next
     * call of begin_step(), which ends the step; inputs NULL: begins no new one. */
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
    /* What a row sees of its own pass must have been stored by kv_store() before. */
    int (*attention)(moe_device *device, const moe_attention *attention, uint32_t n_rows,
                     moe_error *err);
    /* Whether attention() has an arithmetic of the device's own for layers with this layout and
     * soft cap (0: none). Its results are near those of vector_ops.h. A row's result still depends
     * on that row and its layer alone, whatever the call. NULL: never. */
    bool (*own_attention)(const moe_device *device, const moe_kv_layout *layout, float cap);
    int (*choose)(moe_device *device, const moe_position_choice *choice, uint32_t n_rows,
                  moe_error *err);
    /* With MOE_FORM_CHOOSE_POOLS. */
    int (*pool_keys)(moe_device *device, const moe_key_pool *pool, uint32_t n_rows, moe_error *err);
    /* With MOE_DEVICE_READABLE, where all of it is in host memory; NULL elsewhere. */
    int (*score_keys)(moe_device *device, const moe_key_scores *scores, uint32_t n_rows,
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
    /* Like rms_norm(), but by layer_norm of cpu/kernels/vector_ops.h; bias: device, [n] or NULL. */
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
    /* With MOE_FORM_NGRAMS. */
    int (*stream_match)(moe_device *device, const moe_stream_match *match, uint32_t n_rows,
                        moe_error *err);
} moe_device_ops;

/* One piece of a copy. One side is device memory, the other host memory of host_alloc(). */
typedef struct moe_copy_range {
    void *dst;
    const void *src; /* unchanged until the copy is done */
    size_t bytes;
} moe_copy_range;

#define MOE_MAX_COPIES      16u /* copies of one direction that have begun and not ended */
#define MOE_MAX_COPY_RANGES 4u
#define MOE_COPY_UNDER_WAY  1

/* Called on any thread after copies of either direction have ended. It must do no more than wake
 * other threads. */
typedef void (*moe_copy_notify_fn)(void *user);

/* Two queues, one for each direction, which run beside each other. The copies of a queue end in the
 * order in which they began. So a ticket's copy is done as soon as a later one's is. One thread
 * begins copies; any thread may call the other functions. */
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
    /* Returns MOE_COPY_UNDER_WAY, MOE_OK, or why the copy failed. */
    int (*copy_state)(moe_device *device, uint64_t ticket);
    /* Returns when the copy is done: MOE_OK, or why it failed. */
    int (*copy_wait)(moe_device *device, uint64_t ticket, moe_error *err);
    /* The same for copies from the device to the host, with tickets of their own. They wait for no
     * operation, and for no copy of the other direction. MOE_ERR_UNSUPPORTED: the host memory is
     * not page-locked, so the copy would not run beside other work; nothing has begun. */
    int (*save_begin)(moe_device *device, const moe_copy_range *ranges, uint32_t n_ranges,
                      uint64_t *ticket, moe_error *err);
    int (*save_state)(moe_device *device, uint64_t ticket);
    /* Whether operations of the device can read these bytes of host_alloc() in place, over the
     * link, at this address. May take as long as page-locking them. Any thread may call it. */
    bool (*reads_host)(moe_device *device, const void *memory, size_t bytes);
    /* Allows copies from and to the host memory of another device of this kind, `owner`, which must
     * outlive this one. Called once, before any copy. NULL: the device cannot be joined with others
     * (cards.h). */
    void (*host_share)(moe_device *device, moe_device *owner);
    /* Sets the function to notify; fn NULL: none. Once this returns, the previous function is not
     * called any more. */
    void (*copy_notify)(moe_device *device, moe_copy_notify_fn fn, void *user);
} moe_link_ops;

/* A piece of work whose time is taken. */
typedef struct moe_timed_work {
    uint32_t n_experts;
    uint32_t n_rows; /* rows of all experts together */
} moe_timed_work;

/* The clock of a device that queues its operations, where the time of a call says nothing. Called
 * from the thread of the operations. It never fails; at worst it has no time to tell. */
typedef struct moe_device_clock {
    /* Times the operations from here to end(). Does not time them if too many times are waiting to
     * be taken, or while the device records. */
    void (*begin)(moe_device *device);
    void (*end)(moe_device *device, const moe_timed_work *work);
    /* Takes the oldest finished work and its time; false if there is none. */
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
    uint64_t forms;                     /* MOE_FORM_BIT() of each form that it carries out */
    uint64_t memory_bytes;              /* of the device, for everything that it holds */
    /* Nominal: the first estimate, until copies have been measured. */
    uint64_t link_bytes_per_s;
    uint64_t link_latency_ns;
    bool queues;      /* operations are queued; fetching a result costs a round trip */
    moe_cards *cards; /* further cards that hold experts (cards.h); NULL: none */
    bool simulated;   /* times come from a model, and whatever prints them must say so */
};

#endif
