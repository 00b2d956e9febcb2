/* SPDX-License-Identifier: MIT */
/* One pass of the model over some rows. A row is one token of one session's timeline at its
 * position, or a node of a token tree that continues the timeline (moe_kv_row's path). All that a
 * row sees is in the cache already or among the pass's rows, in any order. The pages of the
 * positions where rows are stored must be writable. */
#ifndef MOE_PASS_PASS_H
#define MOE_PASS_PASS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "cpu/kernels/vector_ops.h"
#include "offload/expert_store.h"
#include "offload/layer_plan.h"
#include "runtime/device/device.h"
#include "runtime/program/program.h"

/* Logits are computed and returned this many rows at a time, or all if passes have fewer. */
#define MOE_LOGIT_ROWS 32u
/* So many rows' embeddings of n-grams go to the device at a time. */
#define MOE_NGRAM_ROWS_AT_A_TIME 16u
/* The most rows in a log of recurrent layers' inputs (moe_state_run). */
#define MOE_MOST_LOGGED 64u

/* Device and host memory of a pass, sized once for the largest one. */
typedef struct moe_pass_buffers {
    uint32_t max_rows;
    uint8_t *arena; /* device */
    size_t arena_bytes;
    float *values[MOE_VALUES]; /* device: the values that the program's operations read and write */
    /* Host */
    float *index_host;    /* [MOE_INDEX_BLOCK][max(index_dim, MOE_INDEX_ROWS * index_heads)] */
    float *index_factors; /* [MOE_INDEX_ROWS][index_heads] */
    float *ngram_host;    /* [MOE_NGRAM_ROWS_AT_A_TIME][moe_ngram_floats()], or NULL */
    /* [2][max_rows][n_rot / 2]: cosines and sines of the pools that rows end, for their means */
    float *index_angles;
    moe_kv_row *index_rows; /* [moe_choosing_groups()][rows] */
    /* [MOE_INDEX_ROWS][n_index_scores]: scores of positions or, for each group of heads, of
     * blocks; grows */
    float *index_scores;
    uint32_t *index_order;     /* [n_index_scores] */
    moe_vector_kernels vector; /* the host's, for stored keys and their scores */
    uint32_t n_index_scores;
    float *block_rows;         /* for compressed_keys.c: k, gates and sum of a block */
    moe_kv_row *block_kv_rows; /* [rows] */
    uint32_t *block_path;      /* [n_block_path]: grows */
    size_t n_block_path;
    float *rope_back;     /* [rows][n_rot / 2]: the negated sines, which turn backwards */
    float *selected_host; /* [MOE_LOGIT_ROWS][n_embd]; in the link's host memory if there is one */
    float *logits_host;   /* [MOE_LOGIT_ROWS][n_vocab]; follows selected_host */
    size_t logits_bytes;  /* of selected_host and logits_host together */
    float *rope_cos;      /* [rows][n_rot / 2] */
    float *rope_sin;
    float *window_cos; /* [rows][window_n_rot / 2], for layers with a window; or NULL */
    float *window_sin;
    float *temperatures; /* [rows]: scales of queries, for layers with scales_queries */
    /* [rows * n_expert_used]: factors of experts' inputs, in the plan's order */
    float *input_scales;
    /* [rows][n_expert_used]: weights of outputs, where the routers' weights scale the inputs */
    float *output_weights;
    uint32_t *chosen;      /* [rows][n_expert_used] */
    float *chosen_weights; /* [rows][n_expert_used] */
    float *router_probs;   /* [rows][n_expert]; NULL until an observer wants them */
    /* [n_expert]: for each of the plan's experts, the sum of its rows' weights */
    float *gates;
    uint32_t *predicted; /* [rows][n_expert_used]: choices predicted for the next layer */
    float *predicted_weights;
    moe_layer_plan plan;
    moe_layer_plan next_plan; /* plan of the predicted choices */
    uint32_t *n_rows_of;      /* [n_expert] */
    uint32_t *positions;      /* [n_expert] */
    /* [n_expert]: whether an expert of predicted_layer was predicted */
    bool *was_predicted;
    uint32_t predicted_layer;      /* the layer of was_predicted; UINT32_MAX: none */
    uint32_t routed_ahead_layer;   /* the layer that `predicted` is for; UINT32_MAX: none */
    moe_expert_work *works;        /* [n_expert] */
    struct moe_expert_view *views; /* [n_expert] */
    uint8_t *tiers;                /* [n_expert]: the tier that has each of the plan's experts */
    /* [n_expert]: which of the plan's experts are computed on the host */
    bool *on_host;
    /* [n_expert]: entries that could be computed there, by ascending number of rows */
    uint32_t *host_positions;
    uint32_t *host_rows; /* [n_expert]: the number of rows of each of these entries */
} moe_pass_buffers;

/* The number of rows of values whose size is MOE_ROWS_OF_STATES. */
static inline size_t moe_delta_scratch_rows(const moe_pass_buffers *buffers)
{
    return buffers->max_rows > MOE_MOST_LOGGED ? buffers->max_rows : MOE_MOST_LOGGED;
}

/* Called with the logits of each row that wants them, and the normed hidden state that they are
 * computed from, in row order. False ends the pass's output (the pass itself has been computed). */
typedef bool (*moe_row_logits_fn)(uint32_t row, const float *hidden, const float *logits,
                                  void *user);

/* Called instead of moe_row_logits_fn, with the greatest of the row's logits and its
 * probability. */
typedef bool (*moe_row_greatest_fn)(uint32_t row, const moe_greatest *greatest, void *user);

typedef enum moe_pass_kind {
    MOE_PASS_EXACT,
    MOE_PASS_LOSSY, /* lossy modes may change what the routers chose */
    MOE_PASS_DRAFT  /* only resident experts; moves nothing, counts nothing */
} moe_pass_kind;

/* Says which token of which session a row of a pass is. */
typedef struct moe_row_id {
    uint64_t sequence; /* number of its session, in order of creation, from 0 */
    uint32_t position;
} moe_row_id;

/* For layers that keep a state: the rows of a pass that belong to one sequence, in the order of its
 * tokens, with the state that they start from and the one that they leave. A state has the
 * moe_state_pool's layout and covers all layers. A pass never writes to the state that it starts
 * from, so a failed pass or a draft changes no sequence. */
typedef struct moe_state_run {
    uint32_t first_row;
    uint32_t n_rows;
    /* Logged rows between `from` and the first row: ancestors of a draft's rows. */
    uint32_t n_logged;
    uint32_t log_first; /* the first of these rows in the log */
    const void *from;   /* device: the state before all of them; NULL: of an empty sequence */
    void *to;           /* device, out: the state after the last row; NULL: not wanted */
    /* Device. The log holds the inputs of the rows since `from`, from log_first on. The pass
     * appends its own rows behind the n_logged earlier ones. NULL: no log is wanted, and n_logged
     * is 0. */
    void *log;
} moe_state_run;

typedef struct moe_runner moe_runner;

/* The body of a kind of operation (program_run.h). */
typedef struct moe_run moe_run;
typedef int (*moe_op_body)(const moe_run *run, const moe_op *op, moe_error *err);

/* How a chunk of a panel goes through a layer: at once, or as one of a block of chunks
 * (panel_block.h), whose experts are computed between two parts of the layer. */
typedef enum moe_panel_part {
    MOE_PANEL_LAYER,
    MOE_PANEL_MIX,     /* the operations up to the routing */
    MOE_PANEL_EXPERTS, /* some experts of all rows of the block */
    MOE_PANEL_REST     /* the operations from the experts' sum on */
} moe_panel_part;

typedef struct moe_panel_block moe_panel_block;

/* A panel has more rows than a pass. All of them go through a layer before any goes on to the next,
 * so that a layer's experts are moved once for all rows. The panel is computed in chunks: one chunk
 * through one layer at a time. Between two chunks nothing of the panel is in the pass's buffers. */
typedef struct moe_panel_chunk {
    uint32_t layer;
    moe_panel_part part;
    moe_panel_block *block; /* NULL: the chunk takes the layer at once */
    uint32_t first, n_rows; /* the chunk's first row, and the rows of the whole panel */
    float *x; /* host, in and out: [rows of the chunk][floats of x], the residual stream */
    /* Host: [rows of the chunk][moe_most_chosen()], in and out: the positions that the last indexer
     * has chosen for the rows; NULL if no later layer uses them. */
    uint32_t *chosen;
} moe_panel_chunk;

typedef struct moe_pass {
    moe_pass_kind kind;
    uint32_t n_rows;
    const int32_t *tokens;     /* [n_rows] */
    const moe_kv_row *kv_rows; /* [n_rows] */
    const moe_row_id *row_ids; /* [n_rows]: for hooks; NULL in a draft */
    /* [n_state_runs]; each row is in exactly one. Not used if no layer has a state. */
    const moe_state_run *state_runs;
    uint32_t n_state_runs;
    const uint32_t *depths; /* [n_rows] in its session's token tree; NULL: all 0 */
    /* Not NULL: the rows are a chunk of a panel, which goes through one layer. */
    const moe_panel_chunk *panel;
    bool rehearses; /* the pass will be run again: only hooks that ask for rehearsals take part */
    /* Not NULL: called after each operation of a layer, and of the front, has been queued. */
    int (*after_op)(void *after_user, moe_runner *runner, uint32_t layer, const moe_op *op,
                    moe_error *err);
    void *after_user;
    const uint32_t *logit_rows; /* [n_logit_rows], ascending: rows whose logits are wanted */
    uint32_t n_logit_rows;
    moe_row_logits_fn on_logits;
    moe_row_greatest_fn on_greatest; /* not NULL: replaces on_logits, and no logits are returned */
    void *user;
    /* Called between layers and during waits for experts; true cancels. */
    bool (*is_cancelled)(void *cancel_user);
    void *cancel_user;
} moe_pass;

/* Whether a row of the pass sees more positions than it attends to (position_index.h). */
static inline bool moe_pass_chooses(const moe_model_config *config, const moe_pass *pass)
{
    bool chooses = false;
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        chooses = chooses || moe_position_chooses(config, pass->kv_rows[r].position);
    }
    return chooses;
}

/* Bytes that the buffers of a program will take, on the device and on the host. */
uint64_t moe_pass_buffers_device_bytes(const moe_program *program, uint32_t max_rows);
uint64_t moe_pass_buffers_host_bytes(const moe_program *program, uint32_t max_rows);
int moe_pass_buffers_init(moe_pass_buffers *buffers, moe_device *device, const moe_program *program,
                          uint32_t max_rows, moe_error *err);
/* Allocates router_probs, unless that has been done. */
int moe_pass_buffers_need_probs(moe_pass_buffers *buffers, uint32_t n_expert, moe_error *err);
void moe_pass_buffers_free(moe_pass_buffers *buffers, moe_device *device);

/* The sizes that a device must reserve scratch for. */
void moe_pass_device_limits(const moe_program *program, uint32_t max_rows,
                            moe_device_limits *limits);

int moe_pass_run(moe_runner *runner, const moe_pass *pass, moe_error *err);
/* Whether passes on this runner can be panels. They can if a layer passes only the residual stream
 * to the next one, and no hook must see all layers of a pass one after another. */
bool moe_panel_is_possible(const moe_runner *runner);
/* Runs one chunk of pass->panel through its layer. Computes the front before the first layer, and
 * the logits after the last. */
int moe_panel_run_chunk(moe_runner *runner, const moe_pass *pass, moe_error *err);
/* Counts slots at the time when a panel begins a layer and keeps every expert that it still
 * needs. */
typedef struct moe_panel_slots {
    /* Slots missing on the device for those of the layer's experts that are not there yet. */
    uint32_t lacks;
    uint32_t spare; /* slots that files are read into and whose contents are no longer needed */
} moe_panel_slots;
moe_panel_slots moe_panel_count_slots(const moe_runner *runner, uint32_t layer);
/* Runs a draft: layers and logits. It changes nothing but provisional keys and values. */
int moe_pass_run_draft(moe_runner *runner, const moe_pass *pass, moe_error *err);
/* Runs a pass up to the last layer: hidden states in x, keys and values in the cache. */
int moe_pass_run_layers(moe_runner *runner, const moe_pass *pass, moe_error *err);

/* Begins the device's step: gives the device the inputs that many operations use. *inputs must live
 * until the end of the step. Also end the step if this call fails. */
int moe_pass_begin_step(moe_runner *runner, const moe_pass *pass, moe_step_inputs *inputs,
                        moe_error *err);
/* Ends the step, and returns its result `status`; if that is MOE_OK, returns an error of the
 * ending. */
int moe_pass_end_step(moe_runner *runner, int status, moe_error *err);
/* Some of a pass's layers: first .. end - 1. */
typedef struct moe_pass_part {
    uint32_t first, end;
    /* True: the front of the first layer, which has routed experts, has been computed: x and norm
     * are its results, and its keys and values are in the cache. False: x is the result of the
     * layer before. */
    bool begun;
} moe_pass_part;

/* Runs some layers of a pass whose earlier layers have been computed. If the last layer is among
 * them, computes the logits, too. */
int moe_pass_resume(moe_runner *runner, const moe_pass *pass, const moe_pass_part *part,
                    moe_error *err);
int moe_pass_queue_layer(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err);
/* Computes a layer's routed experts from the router's logits, without the host. *mixed: out, the
 * weights of the experts' outputs, in device memory. */
typedef int (*moe_serve_layer_fn)(void *user, moe_runner *runner, uint32_t layer,
                                  const float **mixed, moe_error *err);
/* Queues a pass all of whose rows have logits, from layer `first` on (0: from the tokens), as one
 * run of operations. The device does them without the host, so that they can be recorded. Call
 * within the step. */
int moe_pass_queue_whole(moe_runner *runner, const moe_pass *pass, uint32_t first,
                         moe_serve_layer_fn serve, void *user, moe_error *err);
/* After the last layer: checks that rows without logits are finite, computes the logits that the
 * pass wants, MOE_LOGIT_ROWS at a time, and passes them on. */
int moe_pass_finish(moe_runner *runner, const moe_pass *pass, moe_error *err);
/* Computes the logits of some rows into LOGITS. n: up to MOE_LOGIT_ROWS. */
int moe_pass_queue_logits(moe_runner *runner, const uint32_t *rows, uint32_t n, moe_error *err);
/* Fetches the queued results of rows first .. first + n - 1 of pass->logit_rows and passes them to
 * the receiver: all logits, or the greatest. *done: the receiver wants no more. MOE_ERR_FORMAT if a
 * value is not finite (finite.h); then none of these rows is passed on. */
int moe_pass_hand_over(moe_runner *runner, const moe_pass *pass, uint32_t first, uint32_t n,
                       bool *done, moe_error *err);

/* Computes the layer's experts and their sum (BRANCH). The choices are taken from the buffers,
 * where they are put in order (moe_order_choice()). Does not prefetch for the next layer and calls
 * no hook. */
int moe_layer_serve(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err);
/* Computes the experts of the choices in the buffers into RANK_OUT, and nothing else. The choices
 * are in order; MOE_PLAN_NO_EXPERT marks a rank without an expert. */
int moe_layer_compute(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err);
/* Call for a layer that the device has carried out alone, with its edited choices in the buffers.
 * Updates the store as the layer's second part would. played: NULL: all of the layer's experts are
 * resident. */
int moe_layer_note(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                   const moe_played_layer *played, moe_error *err);
/* Logs why the device refuses to record something, and what follows from it. */
void moe_pass_tell_refusal(const moe_runner *runner, const char *consequence,
                           const moe_error *reason);

#endif
