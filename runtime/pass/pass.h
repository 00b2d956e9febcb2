/* SPDX-License-Identifier: MIT */
/* One pass of the model over some rows. A row is one token of one session's timeline at its
 * position, or a node of a tree of tokens that continues the timeline (moe_kv_row's path). What a
 * row sees is in the cache already or among the pass's rows, in any order; the pages of the
 * positions where rows are stored are writable. */
#ifndef MOE_PASS_PASS_H
#define MOE_PASS_PASS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "offload/layer_plan.h"
#include "runtime/device/device.h"
#include "runtime/model/model_config.h"

/* Logits are computed and handed over this many rows at a time. */
#define MOE_LOGIT_ROWS 32u

/* Device and host memory of a pass, sized once for the largest one. */
typedef struct moe_pass_buffers {
    uint32_t max_rows;
    uint8_t *arena; /* device */
    size_t arena_bytes;
    float *x;               /* [rows][n_embd]: the residual stream */
    float *norm;            /* [rows][n_embd] */
    float *q;               /* [rows][n_head][q dim] */
    float *q_latent;        /* MLA: [rows][n_head][head_dim_k], else q */
    float *q_a;             /* MLA with q_lora: [rows][q_lora_rank] */
    float *k;               /* [rows][n_head_kv][head_dim_k] */
    float *v;               /* [rows][n_head_kv][head_dim_v] */
    float *attention;       /* [rows][n_head][head_dim_v] */
    float *values;          /* MLA: [rows][n_head][v_head_dim], else attention */
    float *branch;          /* [rows][n_embd]: what attention or the experts add to x */
    float *shared;          /* [rows][n_embd] */
    float *shared_gate;     /* [rows] */
    float *router_logits;   /* [rows][n_expert] */
    float *foretold_logits; /* likewise, of the next layer's router */
    float *rank_out;        /* [rows * n_expert_used][n_embd] */
    float *selected;        /* [MOE_LOGIT_ROWS][n_embd]: n rows take the last n places, so that they
                               and the logits behind them come back in one copy */
    float *logits;          /* [MOE_LOGIT_ROWS][n_vocab], directly behind them */
    float *greatest;        /* [MOE_LOGIT_ROWS]: moe_greatest, which are as large as two */
    /* Host */
    float *selected_host; /* [MOE_LOGIT_ROWS][n_embd], of the link's host memory if there is one */
    float *logits_host;   /* [MOE_LOGIT_ROWS][n_vocab], behind them */
    size_t logits_bytes;  /* of both */
    float *rope_cos;      /* [rows][n_rot / 2] */
    float *rope_sin;
    uint32_t *chosen;      /* [rows][n_expert_used] */
    float *chosen_weights; /* [rows][n_expert_used] */
    float *router_probs;   /* [rows][n_expert]; NULL until an observer wants them */
    float *gates;          /* [n_expert]: of the plan, the weights its rows mix each with, summed */
    uint32_t *predicted;   /* [rows][n_expert_used]: the next layer's, foretold */
    float *predicted_weights;
    moe_layer_plan plan;
    moe_layer_plan next_plan;      /* of the prediction */
    uint32_t *n_rows_of;           /* [n_expert] */
    uint32_t *positions;           /* [n_expert] */
    bool *was_predicted;           /* [n_expert] of the layer at work */
    uint32_t predicted_layer;      /* the layer that was_predicted is about; UINT32_MAX: none */
    uint32_t foretold_layer;       /* the layer that predicted is about; UINT32_MAX: none */
    moe_expert_work *works;        /* [n_expert] */
    struct moe_expert_view *views; /* [n_expert] */
    uint32_t *host_positions;      /* [n_expert]: what the host computes of the layer at work */
    struct moe_expert_view *host_views;
} moe_pass_buffers;

/* Called with the logits of the row that asked for them, in row order; false ends the pass's output
 * (the pass itself has been computed). */
typedef bool (*moe_row_logits_fn)(uint32_t row, const float *logits, void *user);

/* Likewise, in place of them: the greatest of the row's logits, and its probability. */
typedef bool (*moe_row_greatest_fn)(uint32_t row, const moe_greatest *greatest, void *user);

typedef enum moe_pass_kind {
    MOE_PASS_EXACT,
    MOE_PASS_LOSSY, /* an expert budget or buddies may change what the routers chose */
    MOE_PASS_DRAFT  /* only resident experts; nothing moves on its behalf, nothing is counted */
} moe_pass_kind;

/* Which token a row of a pass is. */
typedef struct moe_row_id {
    uint64_t sequence; /* number of its session, in the order of their creation, from 0 */
    uint32_t position;
} moe_row_id;

/* Rows of a pass that are one sequence's, in the order of its tokens, for layers that keep a state:
 * what such a layer starts from and leaves behind. A state is of the moe_state_pool's layout and is
 * of all layers; a pass never writes to the one that it starts from, so a pass that failed or was
 * a draft leaves nothing behind. */
typedef struct moe_state_run {
    uint32_t first_row;
    uint32_t n_rows;
    uint32_t n_logged; /* rows of the log between `from` and the first row: a draft's ancestors */
    const void *from;  /* device: the state before all of them; NULL: of an empty sequence */
    void *to;          /* device: out, the state after the last row; NULL: not wanted */
    /* Device: inputs of rows since `from`, from row 0 on; the rows of this pass are added behind
     * the n_logged. NULL: not wanted, and n_logged is 0. */
    void *log;
} moe_state_run;

typedef struct moe_runner moe_runner;

typedef struct moe_pass {
    moe_pass_kind kind;
    uint32_t n_rows;
    const int32_t *tokens;     /* [n_rows] */
    const moe_kv_row *kv_rows; /* [n_rows] */
    const moe_row_id *row_ids; /* [n_rows]: for hooks; NULL in a draft */
    /* [n_state_runs], of every row just one; not looked at where no layer has a state. */
    const moe_state_run *state_runs;
    uint32_t n_state_runs;
    const uint32_t *depths; /* [n_rows] in its session's tree of drafted tokens; NULL: all 0 */
    bool rehearses;         /* it will be run again: only hooks that ask for rehearsals take part */
    /* Not NULL: computes the routed experts of a layer from the router's logits, instead of the
     * host's routing. For a pass that is being recorded as a whole. */
    int (*serve_layer)(void *serve_user, moe_runner *runner, uint32_t layer, moe_error *err);
    void *serve_user;
    const uint32_t *logit_rows; /* [n_logit_rows], ascending: rows whose logits are wanted */
    uint32_t n_logit_rows;
    moe_row_logits_fn on_logits;
    moe_row_greatest_fn on_greatest; /* not NULL: on_logits is not called, no logits come back */
    void *user;
    /* Asked between layers and while experts are waited for; true cancels. */
    bool (*is_cancelled)(void *cancel_user);
    void *cancel_user;
} moe_pass;

/* Bytes that the buffers will take, on the device and on the host. */
uint64_t moe_pass_buffers_device_bytes(const moe_model_config *config, uint32_t max_rows);
uint64_t moe_pass_buffers_host_bytes(const moe_model_config *config, uint32_t max_rows);
int moe_pass_buffers_init(moe_pass_buffers *buffers, moe_device *device,
                          const moe_model_config *config, uint32_t max_rows, moe_error *err);
/* Allocates router_probs, if that has not been done. */
int moe_pass_buffers_need_probs(moe_pass_buffers *buffers, uint32_t n_expert, moe_error *err);
void moe_pass_buffers_free(moe_pass_buffers *buffers, moe_device *device);

/* The sizes that a device must reserve scratch for. */
void moe_pass_device_limits(const moe_model_config *config, uint32_t max_rows,
                            moe_device_limits *limits);

int moe_pass_run(moe_runner *runner, const moe_pass *pass, moe_error *err);
/* A draft: layers and logits, and no trace of it but provisional keys and values. */
int moe_pass_run_draft(moe_runner *runner, const moe_pass *pass, moe_error *err);
/* A pass as far as the last layer: hidden states in buffers->x, keys and values in the cache. */
int moe_pass_run_layers(moe_runner *runner, const moe_pass *pass, moe_error *err);

/* Its parts. What the device is given again and again in the pass is made known to it: *inputs must
 * live until the end of the step. After a failure the step needs its end, too. */
int moe_pass_begin_step(moe_runner *runner, const moe_pass *pass, moe_step_inputs *inputs,
                        moe_error *err);
/* status: what became of the step; returned, unless it is MOE_OK and ending fails. */
int moe_pass_end_step(moe_runner *runner, int status, moe_error *err);
/* The layers, within the step. */
int moe_pass_queue_layers(moe_runner *runner, const moe_pass *pass, moe_error *err);
/* The logits of some rows as far as buffers->logits. n: up to MOE_LOGIT_ROWS. */
int moe_pass_queue_logits(moe_runner *runner, const uint32_t *rows, uint32_t n, moe_error *err);
/* What has been queued comes back and is handed over, as logits or as their greatest: rows first ..
 * first + n of pass->logit_rows. *done: the receiver wants no more. MOE_ERR_FORMAT, and none
 * of them is handed over, where one is not finite (finite.h). */
int moe_pass_hand_over(moe_runner *runner, const moe_pass *pass, uint32_t first, uint32_t n,
                       bool *done, moe_error *err);

/* The two blocks of a layer: each reads buffers->x, and adds its output to it. */
int moe_attention_block(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err);
/* The second in two: what waits for no routing, as far as the router's logits (of a dense
 * layer all of it), and the rest (of a dense layer nothing). */
int moe_feed_forward_begin(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                           moe_error *err);
int moe_feed_forward_end(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err);
/* The layer's experts by the choices in the buffers, whose sum goes to buffers->branch; the next
 * layer is not looked ahead to, and no hook is called. */
int moe_feed_forward_serve(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                           moe_error *err);
/* For a layer that the device has carried out alone, whose choices as edited are in the buffers:
 * the store is told as by the second part. All of its experts are resident. */
int moe_feed_forward_note(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err);
/* The log is told what the device refuses to record. */
void moe_pass_tell_refusal(const moe_runner *runner, const char *consequence,
                           const moe_error *reason);

#endif
