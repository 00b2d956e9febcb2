/* SPDX-License-Identifier: MIT */
/* Shared by the files of the CUDA device; no other file includes it.
 *
 * Arithmetic is queued on one stream; the link has one stream for each direction. An operation's
 * host arrays go through a ring of page-locked memory (cuda_staging.c) and are read before the call
 * returns. Operations that return results to the host wait for the stream. */
#ifndef MOE_CUDA_INTERNAL_H
#define MOE_CUDA_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include <cuda_runtime_api.h>

#include "cuda/cuda_module.h"
#include "cuda/kernels/product_launch.h"
#include "cuda/kernels/transfer_launch.h"
#include "cuda/kernels/vector_launch.h"
#include "runtime/device/device.h"

typedef struct moe_cuda_blas moe_cuda_blas; /* cuda_blas.h */

#define MOE_CUDA_STAGES  4u  /* parts of the ring */
#define MOE_CUDA_TIMINGS 16u /* pieces of work that are timed at once */
#define MOE_CUDA_USES    16u /* calls of experts() that copies may have to wait for */

/* Host arrays on their way to the device. */
typedef struct moe_cuda_ring {
    uint8_t *host;   /* page-locked, MOE_CUDA_STAGES * part_bytes */
    uint8_t *device; /* the same size */
    size_t part_bytes;
    size_t used; /* bytes used of the current part */
    uint32_t part;
    bool left[MOE_CUDA_STAGES];          /* whether a part's event has been recorded */
    cudaEvent_t passed[MOE_CUDA_STAGES]; /* done once the stream has passed a part's last use */
} moe_cuda_ring;

/* Host and device memory of one size, for results. */
typedef struct moe_cuda_results {
    uint8_t *host; /* page-locked */
    uint8_t *device;
    size_t bytes;
} moe_cuda_results;

typedef struct moe_cuda_span {
    uintptr_t begin, end;
} moe_cuda_span;

/* One call of experts(): the memory that its kernels read, and when they are done. */
typedef struct moe_cuda_use {
    cudaEvent_t done;
    moe_cuda_span *spans;
    uint32_t n_spans;
    uint32_t max_spans;
} moe_cuda_use;

/* One piece of timed work (cuda_clock.c). */
typedef struct moe_cuda_timing {
    cudaEvent_t begin, end; /* NULL: not made yet */
    moe_timed_work work;
} moe_cuda_timing;

/* Host and device memory of one size, for a step's inputs. */
typedef struct moe_cuda_block {
    uint8_t *host; /* page-locked */
    uint8_t *device;
    size_t bytes;
    cudaEvent_t sent; /* done once the stream has passed the last copy of the inputs */
    bool is_sent;
} moe_cuda_block;

/* Which positions the rows of a step see. Each shape has its own recordings. */
typedef enum moe_cuda_step_shape {
    MOE_CUDA_STEP_TIMELINE, /* one timeline, without paths */
    MOE_CUDA_STEP_TREE,     /* one page table, and paths */
    MOE_CUDA_STEP_MANY,     /* several page tables */
    MOE_CUDA_STEP_SHAPES
} moe_cuda_step_shape;

/* Room for an operation's host arrays: filled in place, then sent as one copy. */
typedef struct moe_cuda_parcel {
    uint8_t *host;
    uint8_t *device;
    size_t bytes;
    size_t used;
} moe_cuda_parcel;

/* The fixed places of inputs for steps of one shape and number of rows (cuda_step.c). Operations of
 * such steps are recorded as graphs (cuda_recording.c). */
typedef struct moe_cuda_steady {
    moe_cuda_block block; /* empty: there are no recordings of such steps */
    uint32_t max_pages;   /* the most KV pages that a row can attend to in one group of layers */
    uint32_t n_groups;    /* groups of layers; each has its own part of a page table */
    size_t pages_at;
    size_t recordings_at, recordings_used; /* arrays that belong to recordings */
    moe_cuda_parcel scratch;               /* one such array: all recordings use it in turn */
    cudaGraphExec_t *execs;                /* [n_execs] by number; NULL: not recorded */
    uint32_t n_execs;
} moe_cuda_steady;

#define MOE_CUDA_STEADY_ROWS 8u

/* The current step. */
typedef struct moe_cuda_step {
    const moe_step_inputs *inputs; /* NULL: none */
    moe_cuda_steady *at;           /* the block that holds its inputs; NULL: the other block */
    moe_cuda_steady steady[MOE_CUDA_STEP_SHAPES][MOE_CUDA_STEADY_ROWS]; /* of 1, 2, .. rows */
    moe_cuda_block other;
    /* Where the inputs are on the device. */
    const int32_t *tokens;
    const float *cos, *sin;
    const moe_cuda_kv_row *rows;
    uint32_t n_runs; /* runs of rows that share a page table */
} moe_cuda_step;

/* The recording of the current step that is under way. */
typedef struct moe_cuda_recording {
    bool under_way;
    uint32_t number;
    size_t begin;            /* where its arrays begin in the steady block */
    moe_cuda_parcel scratch; /* the steady block's scratch before this recording */
} moe_cuda_recording;

/* The thread that page-locks host memory before it is needed (cuda_pinning.c). */
typedef struct moe_cuda_pinning {
    pthread_cond_t changed;     /* blocks, n_waiting or stop */
    _Atomic uint32_t n_waiting; /* for the pin lock; they go before the thread's next piece */
    /* Under the pin lock. */
    pthread_t thread;
    bool has_thread;
    bool stop;
} moe_cuda_pinning;

/* The state of a piece of a host block. A caller that needs the piece page-locked calls
 * moe_cuda_pin() first. */
typedef enum moe_cuda_pin_state {
    MOE_CUDA_UNTOUCHED, /* its turn has not come, and nobody has asked */
    MOE_CUDA_PINNED,
    MOE_CUDA_REFUSED /* the driver refused; copies go through the ring for unpinned memory */
} moe_cuda_pin_state;

/* Memory of host_alloc(), in pieces of cuda->pin_bytes (the last may be shorter). */
typedef struct moe_cuda_host_block {
    struct moe_cuda_host_block *next;
    uint8_t *memory;
    size_t bytes;
    bool of_cuda; /* from cudaHostAlloc(): page-locked, as a whole */
    size_t n_pieces;
    size_t n_ahead; /* no piece before this one is untouched; used by the thread that locks ahead */
    _Atomic uint8_t pieces[]; /* [n_pieces] moe_cuda_pin_state */
} moe_cuda_host_block;

/* Page-locked memory for copies whose source could not be page-locked. */
#define MOE_CUDA_UNPINNED_PARTS 2u
typedef struct moe_cuda_unpinned {
    uint8_t *parts[MOE_CUDA_UNPINNED_PARTS];
    cudaEvent_t passed[MOE_CUDA_UNPINNED_PARTS]; /* done once the part's copies have ended */
    uint32_t next;
} moe_cuda_unpinned;

/* One direction of the link: its stream, and the thread that waits for its copies. */
typedef struct moe_cuda_queue {
    struct moe_cuda_device *cuda;
    cudaStream_t stream;
    bool has_thread;
    pthread_t thread;
    cudaEvent_t ended[MOE_MAX_COPIES]; /* ticket t at t % MOE_MAX_COPIES */
    /* Under the device's lock. */
    pthread_cond_t begun;
    uint64_t n_begun;        /* copies */
    uint64_t first_failed;   /* ticket; UINT64_MAX: none */
    _Atomic uint64_t n_done; /* copies with lower tickets are done */
} moe_cuda_queue;

/* The rows of floats whose quantised form is in x_q8_memory. Cleared as soon as an operation may
 * have changed the floats or x_q8_memory. */
typedef struct moe_cuda_quantized {
    const float *x; /* NULL: none */
    uint32_t n_rows;
    uint32_t n_in;
} moe_cuda_quantized;

typedef struct moe_cuda_device {
    moe_device base;
    /* Set at open, never changed. */
    int index;
    int numa_node; /* -1: not known */
    uint32_t n_multiprocessors;
    size_t pin_bytes;      /* the most that is page-locked at once */
    bool maps_host;        /* kernels have page-locked memory at the host's addresses */
    bool matrix_attention; /* matrix units compute attention where there is a kernel for it */
    char name[192];
    cudaStream_t stream;               /* arithmetic */
    moe_cuda_queue to_device, to_host; /* the link */
    moe_cuda_blas *blas;               /* NULL: products are exact */

    /* Used only by the thread that calls operations. */
    moe_cuda_ring ring;
    moe_cuda_results results;
    moe_expert_work *works;
    uint32_t max_works;
    moe_cuda_step step;
    moe_cuda_recording recording;
    moe_cuda_quantized quantized;

    /* Set by reserve(). */
    uint8_t *scratch;
    void *x_q8_memory;
    size_t x_q8_bytes;
    void *h_q8_memory;
    float *ff_gate, *ff_up;
    void *attention_workspace; /* for values of at most workspace_v_dim elements */
    uint32_t workspace_v_dim;

    moe_cuda_timing timings[MOE_CUDA_TIMINGS]; /* work w at w % MOE_CUDA_TIMINGS */
    uint64_t n_timed, n_times_taken;
    bool is_timing;

    /* Held while a piece is page-locked; the lock may be taken under it. */
    pthread_mutex_t pin_lock;
    moe_cuda_pinning pinning;
    pthread_mutex_t memory_lock;
    struct moe_cuda_chunk *chunks; /* under memory_lock; cuda_memory.c */

    /* Under the lock. */
    pthread_mutex_t lock;
    bool failed;       /* for good: only closing is allowed */
    moe_error failure; /* why */
    moe_cuda_host_block *host_blocks;
    struct moe_cuda_device *host_owner; /* of shared host memory, set once; NULL: this device */
    moe_cuda_unpinned unpinned;         /* used by copy_begin() alone */
    moe_cuda_use uses[MOE_CUDA_USES];   /* call u at u % MOE_CUDA_USES */
    uint64_t n_uses;                    /* calls of experts() so far */
    uint64_t n_uses_done;               /* calls that the stream has certainly passed */
    bool stop;
    pthread_cond_t done;

    /* Held during a notification, so that copy_notify() waits for it to end. */
    pthread_mutex_t notify_lock;
    moe_copy_notify_fn notify;
    void *notify_user;
} moe_cuda_device;

static inline moe_cuda_device *moe_cuda_device_of(moe_device *device)
{
    return (moe_cuda_device *)device;
}

/* ---- cuda_status.c ---- */

/* Translates CUDA's code into the library's status, with a message that names the call, its purpose
 * and a remedy. Clears the thread's last error. */
int moe_cuda_translate(cudaError_t code, const char *call, const char *what, moe_error *err);
/* Like moe_cuda_translate(), and marks the device as failed for good. */
int moe_cuda_give_up(moe_cuda_device *cuda, cudaError_t code, const char *call, const char *what,
                     moe_error *err);
/* Makes the device current on this thread; refuses if the device has failed. Operations that leave
 * the quantised rows alone begin with this call, all others with moe_cuda_begin(). */
int moe_cuda_enter(moe_cuda_device *cuda, moe_error *err);
/* Returns MOE_OK, or the error after moe_cuda_give_up(). */
int moe_cuda_check(moe_cuda_device *cuda, cudaError_t code, const char *call, const char *what,
                   moe_error *err);
/* Whether the code means that recording failed or memory is short, and not that the device failed.
 */
bool moe_cuda_refuses_recording(cudaError_t code);
/* Like moe_cuda_check(), for kernels that were just launched; MOE_ERR_UNSUPPORTED if they cannot be
 * recorded. */
int moe_cuda_launched(moe_cuda_device *cuda, const char *what, moe_error *err);
/* Waits for the stream of arithmetic. */
int moe_cuda_wait(moe_cuda_device *cuda, const char *what, moe_error *err);

/* ---- cuda_clock.c ---- */

extern const moe_device_clock moe_cuda_clock;
void moe_cuda_clock_close(moe_cuda_device *cuda);

/* ---- cuda_rows.c ---- */

/* Calls moe_cuda_enter() and moe_cuda_forget_rows(), for operations that may write anything on the
 * device or play a recording. Operations that leave activations and x_q8_memory alone, or report
 * their writes with moe_cuda_wrote(), call only moe_cuda_enter(). */
int moe_cuda_begin(moe_cuda_device *cuda, moe_error *err);
/* Whether x_q8_memory has room for n_rows rows of n elements. */
bool moe_cuda_has_room_for(const moe_cuda_device *cuda, uint32_t n_rows, uint32_t n);
/* Notes that x_q8_memory now holds the quantised rows of x. */
void moe_cuda_note_rows(moe_cuda_device *cuda, const float *x, uint32_t n_rows, uint32_t n_in);
/* Notes that the rows of x_q8_memory are no longer known. */
void moe_cuda_forget_rows(moe_cuda_device *cuda);
/* Notes that n floats from x on were written: if x_q8_memory holds rows made of them, those rows
 * are no longer known. */
void moe_cuda_wrote(moe_cuda_device *cuda, const float *x, size_t n);
/* Quantises rows of x into x_q8_memory, unless they are there already. */
void moe_cuda_quantize_x(moe_cuda_device *cuda, const float *x, uint32_t n_rows, uint32_t n_in,
                         moe_q8_rows *rows);

/* ---- cuda_norms.c ---- */

int moe_cuda_op_rms_norm(moe_device *device, const float *x, const float *weight, float *y,
                         uint32_t n_rows, uint32_t n, size_t x_stride, float eps, moe_error *err);
int moe_cuda_op_add_norm(moe_device *device, const moe_add_norm *norm, uint32_t n_rows,
                         moe_error *err);

/* ---- cuda_staging.c ---- */

/* Bytes that n elements take in a parcel. */
static inline size_t moe_cuda_parcel_room(size_t n, size_t element_bytes)
{
    return (n * element_bytes + 63) / 64 * 64;
}

/* Allocates page-locked host memory and as much device memory. A failure frees both and does not
 * mark the device as failed. */
int moe_cuda_both_alloc(uint8_t **host, uint8_t **device, size_t bytes, const char *what,
                        moe_error *err);
void moe_cuda_both_free(uint8_t **host, uint8_t **device);
/* Creates an event without timing. A failure does not mark the device as failed. */
int moe_cuda_event_create(cudaEvent_t *event, const char *what, moe_error *err);
int moe_cuda_staging_open(moe_cuda_device *cuda, moe_error *err);
/* Queues a copy between page-locked host memory and device memory, on the stream of arithmetic. A
 * kernel makes small copies, so they do not wait behind experts on the link. what: the copy's
 * purpose. */
int moe_cuda_transfer_queue(moe_cuda_device *cuda, void *dst, const void *src, size_t bytes,
                            enum cudaMemcpyKind kind, const char *what, moe_error *err);
void moe_cuda_staging_close(moe_cuda_device *cuda);
/* bytes: the sum of moe_cuda_parcel_room() over all arrays that will be put into the parcel. Only
 * one parcel is filled at a time. */
int moe_cuda_parcel_begin(moe_cuda_device *cuda, size_t bytes, moe_cuda_parcel *parcel,
                          moe_error *err);
/* Memory that an operation uses while it runs; the next operation gets the same memory. It is never
 * sent. Within a recording it lies in the step's steady block. */
int moe_cuda_scratch_begin(moe_cuda_device *cuda, size_t bytes, moe_cuda_parcel *parcel,
                           moe_error *err);
/* Copies an array into the parcel, or leaves room for one (src NULL) at *host; returns its future
 * place on the device. */
void *moe_cuda_parcel_put(moe_cuda_parcel *parcel, const void *src, size_t n, size_t element_bytes,
                          void **host);
int moe_cuda_parcel_send(moe_cuda_device *cuda, const moe_cuda_parcel *parcel, moe_error *err);
/* Puts and sends a single array. */
int moe_cuda_stage(moe_cuda_device *cuda, const void *src, size_t bytes, void **device,
                   moe_error *err);
/* Makes results.host and results.device at least `bytes` large; their contents are lost. */
int moe_cuda_results_need(moe_cuda_device *cuda, size_t bytes, moe_error *err);

int moe_cuda_upload(moe_device *device, void *dst, const void *src, size_t bytes, moe_error *err);
int moe_cuda_download(moe_device *device, void *dst, const void *src, size_t bytes, moe_error *err);
int moe_cuda_download_later(moe_device *device, void *dst, const void *src, size_t bytes,
                            moe_error *err);

/* ---- cuda_step.c ---- */

int moe_cuda_op_begin_step(moe_device *device, const moe_step_inputs *inputs, moe_error *err);
int moe_cuda_step_open(moe_cuda_device *cuda, moe_error *err);
void moe_cuda_step_close(moe_cuda_device *cuda);

/* ---- cuda_recording.c ---- */

void moe_cuda_recording_close(moe_cuda_steady *steady);
/* Drops all recordings of the block. */
int moe_cuda_recording_drop(moe_cuda_device *cuda, moe_cuda_steady *steady, moe_error *err);
extern const moe_recording_ops moe_cuda_recording_ops;

/* ---- cuda_memory.c ---- */

int moe_cuda_op_alloc(moe_device *device, size_t bytes, void **memory, moe_error *err);
void moe_cuda_op_free(moe_device *device, void *memory, size_t bytes);
/* Frees memory that the device's users have not freed. */
void moe_cuda_memory_close(moe_cuda_device *cuda);

/* ---- cuda_host_memory.c ---- */

/* Chooses pin_bytes by the device's memory, and makes the ring for unpinned memory. */
int moe_cuda_host_memory_open(moe_cuda_device *cuda, uint64_t device_bytes, moe_error *err);
void moe_cuda_host_memory_close(moe_cuda_device *cuda);
int moe_cuda_host_alloc(moe_device *device, size_t bytes, void **memory, moe_error *err);
void moe_cuda_host_free(moe_device *device, void *memory, size_t bytes);
void moe_cuda_host_share(moe_device *device, moe_device *owner);
/* Page-locks these bytes, piece by piece, if they lie in memory of host_alloc() and are not locked
 * yet. Returns whether all of them are locked now. */
bool moe_cuda_pin(moe_cuda_device *cuda, const void *memory, size_t bytes);
/* Whether a transfer may go straight to or from these bytes: true if they lie in one piece that is
 * page-locked. Locks the piece first if necessary. */
bool moe_cuda_has_host_memory(moe_cuda_device *cuda, const void *memory, size_t bytes);
/* give_up() for device memory and for page-locked memory. Always returns false: CUDA frees such
 * memory only as a whole. */
bool moe_cuda_give_up_part(moe_device *device, void *memory, size_t bytes);
void moe_cuda_take_back_part(moe_device *device, void *memory, size_t bytes);
/* Queues the copy of a range on the link's stream, after moe_cuda_pin(). Under the lock. */
cudaError_t moe_cuda_send_range(moe_cuda_device *cuda, const moe_copy_range *range);
/* Queues the copy of a range to the host on the link's stream, after moe_cuda_pin() has returned
 * true for it. Under the lock. */
cudaError_t moe_cuda_receive_range(moe_cuda_device *cuda, const moe_copy_range *range);

/* ---- cuda_pinning.c ---- */

/* The pin lock. No block of host memory is freed, and no piece is locked, by others meanwhile. */
void moe_cuda_pin_lock(moe_cuda_device *cuda);
void moe_cuda_pin_unlock(moe_cuda_device *cuda);
/* Locks the piece, unless another thread has just locked it. The mover's thread calls it before it
 * copies from a piece, and the owner's thread, if kernels read the piece in place. */
void moe_cuda_pin_piece(moe_cuda_device *cuda, moe_cuda_host_block *block, size_t piece);
/* Lets a thread lock the pieces of all blocks, one after the other. */
void moe_cuda_pin_ahead(moe_cuda_device *cuda);
/* Ends that thread. */
void moe_cuda_pinning_close(moe_cuda_device *cuda);

/* ---- cuda_link.c ---- */

int moe_cuda_link_open(moe_cuda_device *cuda, moe_error *err);
/* Ends the thread after waiting for copies under way. */
void moe_cuda_link_close(moe_cuda_device *cuda);
/* Notes that experts() has been queued: later copies into memory that it reads wait for it. */
int moe_cuda_note_use(moe_cuda_device *cuda, const moe_expert_work *works, uint32_t n_works,
                      moe_error *err);
extern const moe_link_ops moe_cuda_link_ops;

/* ---- cuda_query.c ---- */

uint32_t moe_cuda_driver_version(void);
int moe_cuda_list(moe_cuda_device_list *out, moe_error *err);

/* ---- cuda_open.c ---- */

int moe_cuda_device_open(moe_device **out, const moe_cuda_device_options *options, moe_error *err);

/* ---- Operations, by file ---- */

/* cuda_products.c */
bool moe_cuda_is_quantized(const moe_weight *weight);
int moe_cuda_op_embed(moe_device *device, const moe_weight *table, const int32_t *tokens,
                      uint32_t n_rows, float scale, float *out, moe_error *err);
int moe_cuda_op_linear(moe_device *device, const float *x, uint32_t n_rows, uint32_t n_in,
                       const moe_linear *linears, uint32_t n_linears, moe_error *err);
int moe_cuda_op_head_linear(moe_device *device, const moe_head_linear *linear, uint32_t n_rows,
                            moe_error *err);
int moe_cuda_op_experts(moe_device *device, const float *x, uint32_t n_x_rows, uint32_t n_in,
                        const moe_expert_work *works, uint32_t n_works, float *out,
                        size_t out_stride, moe_error *err);

/* cuda_delta.c */
int moe_cuda_op_delta_rule(moe_device *device, const moe_delta_rule *rule, moe_error *err);
int moe_cuda_op_short_conv(moe_device *device, const moe_short_conv *conv, moe_error *err);
int moe_cuda_op_state_space(moe_device *device, const moe_state_space *space, moe_error *err);
int moe_cuda_op_channel_rule(moe_device *device, const moe_channel_rule *rule, moe_error *err);
int moe_cuda_op_selective_scan(moe_device *device, const moe_selective_scan *scan, moe_error *err);

/* cuda_resident.c */
int moe_cuda_op_resident_experts(moe_device *device, const moe_resident_experts *job,
                                 moe_error *err);

/* cuda_cache.c */
/* moe_cuda_put_rows() puts rows, their page tables for n_groups groups of layers, and their paths
 * into a parcel with room for moe_cuda_rows_room() bytes. It returns the future place of the rows
 * on the device. *n_runs: the number of page tables. */
size_t moe_cuda_rows_room(const moe_kv_row *rows, uint32_t n_rows, uint32_t n_groups);
/* How many pages of a group a row may read. */
uint32_t moe_cuda_pages_of(const moe_kv_row *row);
const moe_cuda_kv_row *moe_cuda_put_rows(moe_cuda_parcel *parcel, const moe_kv_row *rows,
                                         uint32_t n_rows, uint32_t n_groups, uint32_t *n_runs);
int moe_cuda_op_kv_store(moe_device *device, const moe_kv_layout *layout, const moe_kv_row *rows,
                         uint32_t n_rows, const float *k, size_t k_stride, const float *v,
                         size_t v_stride, moe_error *err);
int moe_cuda_op_heads_store(moe_device *device, const moe_heads_store *heads, uint32_t n_rows,
                            moe_error *err);
int moe_cuda_op_kv_move(moe_device *device, const moe_kv_move *move, moe_error *err);
bool moe_cuda_op_own_attention(const moe_device *device, const moe_kv_layout *layout, float cap);
int moe_cuda_op_attention(moe_device *device, const moe_attention *attention, uint32_t n_rows,
                          moe_error *err);
int moe_cuda_op_pool_keys(moe_device *device, const moe_key_pool *pool, uint32_t n_rows,
                          moe_error *err);
int moe_cuda_op_choose(moe_device *device, const moe_position_choice *choice, uint32_t n_rows,
                       moe_error *err);

/* cuda_vectors.c */
moe_router_gate moe_cuda_gate_of(const moe_route *route);
int moe_cuda_op_gather(moe_device *device, const float *x, uint32_t n, const uint32_t *rows,
                       uint32_t n_rows, float *out, moe_error *err);
int moe_cuda_op_scatter(moe_device *device, const float *x, uint32_t n, const uint32_t *rows,
                        uint32_t n_rows, float *out, moe_error *err);
int moe_cuda_op_copy_rows(moe_device *device, const float *src, size_t src_stride, float *dst,
                          size_t dst_stride, uint32_t n, size_t n_rows, moe_error *err);
int moe_cuda_op_layer_norm(moe_device *device, const float *x, const float *weight,
                           const float *bias, float *y, uint32_t n_rows, uint32_t n,
                           size_t x_stride, float eps, moe_error *err);
int moe_cuda_op_soft_cap(moe_device *device, float cap, float *x, size_t n, moe_error *err);
int moe_cuda_op_clamp(moe_device *device, float limit, float *x, size_t n, moe_error *err);
int moe_cuda_op_scale(moe_device *device, float factor, float *x, size_t n, moe_error *err);
int moe_cuda_op_rope(moe_device *device, const moe_rope *rope, uint32_t n_rows, moe_error *err);
int moe_cuda_op_route(moe_device *device, const moe_route *routes, uint32_t n_routes,
                      uint32_t n_rows, moe_error *err);
/* Bring the weights of a sum, or the angles of a rotary embedding, to the device, unless they are
 * there already. */
int moe_cuda_stage_weights(moe_cuda_device *cuda, const moe_combine *combine, uint32_t n_rows,
                           moe_combine *staged, moe_error *err);
int moe_cuda_stage_angles(moe_cuda_device *cuda, uint32_t n_rows, moe_rope *rope, moe_error *err);
int moe_cuda_op_add(moe_device *device, const float *a, const float *b, float *y, size_t n,
                    moe_error *err);
int moe_cuda_op_combine(moe_device *device, const moe_combine *combine, uint32_t n_rows,
                        moe_error *err);
int moe_cuda_op_sigmoid_scale(moe_device *device, const float *gate, float *x, uint32_t n_rows,
                              uint32_t n, moe_error *err);
int moe_cuda_op_gate(moe_device *device, const moe_gating *gating, size_t n_rows, moe_error *err);
int moe_cuda_op_stream_read(moe_device *device, const moe_stream_read *read, uint32_t n_rows,
                            moe_error *err);
int moe_cuda_op_stream_write(moe_device *device, const moe_stream_write *write, uint32_t n_rows,
                             moe_error *err);
int moe_cuda_op_stream_match(moe_device *device, const moe_stream_match *match, uint32_t n_rows,
                             moe_error *err);
int moe_cuda_op_greatest(moe_device *device, const float *x, uint32_t n_rows, uint32_t n,
                         moe_greatest *out, moe_error *err);

#endif
