/* SPDX-License-Identifier: MIT */
/* A model as a program: for each layer a short list of operations over named values, in the order
 * in which a pass carries them out, and such lists for the parts before and behind the layers.
 * Opening a model makes it from the config and the tensors of the files. Every parameter is then in
 * place and checked, so passes need not read the config (runtime/pass/program_run.h runs the
 * program).
 *
 *    layer   first ........ mixed ....... rest ............ summed ........ end
 *            mixer, + x           router     experts, their sum     shared, + x
 *
 * At `rest` the host needs a result, the router's logits. A device can record the operations before
 * it. A layer without routed experts ends there. */
#ifndef MOE_PROGRAM_PROGRAM_H
#define MOE_PROGRAM_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/device/device.h"
#include "runtime/model/eagle_config.h"
#include "runtime/model/tensor_map.h"

/* Indexers score this many positions at a time, */
#define MOE_INDEX_BLOCK 1024u
/* ... for this many rows of a timeline. */
#define MOE_INDEX_ROWS 8u

/* ---- Values ---- */

/* The values that operations read and write: a vector for each row of a pass. Memory is laid out in
 * this order. */
typedef enum moe_value {
    MOE_VALUE_NONE,
    MOE_VALUE_X,           /* the residual stream, or several beside each other */
    MOE_VALUE_STREAM_NORM, /* several: all of them, normed together */
    MOE_VALUE_STREAM_MIX,  /* products with it; READ makes weights of them, first those of the sum
                            * that is read, then those by which WRITE adds a branch */
    MOE_VALUE_NEXT_MIX,    /* ... for the next layer's router, a guess */
    MOE_VALUE_STREAM_LOW,  /* gates of elements, between their two steps */
    MOE_VALUE_STREAM_GATES,
    MOE_VALUE_READ,           /* what is read of the streams */
    MOE_VALUE_WANTED_STREAMS, /* those of the rows whose logits are wanted */
    MOE_VALUE_NGRAM_ROWS,     /* what the tokens read of a table (runtime/model/ngram_table.h) */
    MOE_VALUE_NGRAM_KEYS,     /* of each stream; then what is added to each */
    MOE_VALUE_NGRAM_VALUES,
    MOE_VALUE_NGRAM_MIXED, /* before the convolution */
    MOE_VALUE_NGRAM_OUT,
    MOE_VALUE_NORM,       /* what the layer's mixer, or its network, reads */
    MOE_VALUE_LAYER_NORM, /* the experts' input, if it is the layer's, normed */
    MOE_VALUE_Q,
    MOE_VALUE_Q_A,      /* MLA: what queries are projected from */
    MOE_VALUE_Q_LATENT, /* MLA: queries of the latent */
    MOE_VALUE_K,
    MOE_VALUE_V,
    MOE_VALUE_GATE, /* of attention's output; joined: before each head's gate is its query */
    MOE_VALUE_ATTENDED,
    MOE_VALUE_VALUES,     /* MLA: attended, out of the latent's space */
    MOE_VALUE_OUT_LOW,    /* attended, after the first step of a projection in groups */
    MOE_VALUE_BLOCK_K,    /* what a position adds to compressed keys, */
    MOE_VALUE_BLOCK_GATE, /* ... and by which weights */
    /* Of indexers (runtime/pass/position_index.h): */
    MOE_VALUE_INDEX_Q,
    MOE_VALUE_INDEX_WEIGHTS,
    MOE_VALUE_INDEX_K,
    MOE_VALUE_INDEX_GATE,     /* of keys in pools */
    MOE_VALUE_INDEXED_K,      /* keys, each with its index key */
    MOE_VALUE_INDEX_BLOCK,    /* index keys of a block of positions */
    MOE_VALUE_INDEX_PRODUCTS, /* with them; a device that chooses has scores there */
    MOE_VALUE_INDEX_CHOSEN,   /* uint32_t: where the chosen positions are stored */
    MOE_VALUE_GROUP_Q, /* where groups of heads attend each to its own choice: a group's queries, */
    MOE_VALUE_GROUP_OUT, /* ... and what it attended */
    /* Of layers with a state (runtime/device/delta_ops.h): */
    MOE_VALUE_PROJECTED, /* older files: all parts of a row, in an order of their own */
    MOE_VALUE_MIXED,     /* before the convolution: with the gates, all that advances a state */
    MOE_VALUE_STATE_GATES,
    MOE_VALUE_OUT_GATE,
    MOE_VALUE_STATE_OUT,
    MOE_VALUE_PART_Q,
    MOE_VALUE_PART_K,
    MOE_VALUE_PART_V,
    MOE_VALUE_DECAY_LOW, /* of channels: decays and gates are projected in two steps */
    MOE_VALUE_GATE_LOW,
    MOE_VALUE_BETA,
    MOE_VALUE_ALPHA,
    MOE_VALUE_IN_GATE,
    MOE_VALUE_CONVOLVED, /* of all tokens that advance states, as the four that follow */
    MOE_VALUE_STEPS,
    MOE_VALUE_STEP_LOW,
    MOE_VALUE_SCAN_K,
    MOE_VALUE_SCAN_Q,
    MOE_VALUE_LATENT, /* what latent experts read */
    MOE_VALUE_LATENT_SUM,
    MOE_VALUE_BRANCH, /* what a mixer or a network adds to x */
    MOE_VALUE_SHARED,
    MOE_VALUE_SHARED_GATE,
    MOE_VALUE_ROUTER_LOGITS,
    MOE_VALUE_NEXT_LOGITS, /* of the next layer's router, a guess */
    MOE_VALUE_RANK_OUT,    /* the experts' outputs: of each row one for each rank */
    /* Of drafting layers: */
    MOE_VALUE_HIDDEN, /* the hidden state that the layer goes on from */
    MOE_VALUE_EMBEDDED,
    MOE_VALUE_HIDDEN_NORM,
    MOE_VALUE_JOINED,
    MOE_VALUE_FEATURES, /* EAGLE-3: the model's stream at three depths, side by side */
    MOE_VALUE_TAPPED_A, /* ... at each of them */
    MOE_VALUE_TAPPED_B,
    MOE_VALUE_TAPPED_C,
    MOE_VALUE_ONES,     /* a norm's weight */
    MOE_VALUE_WANTED,   /* x of the rows whose logits are wanted; has no memory of its own */
    MOE_VALUE_SELECTED, /* ... normed: n rows take the last n places, so that one copy returns them
                         * and the logits behind them */
    MOE_VALUE_LOGITS,   /* directly behind them */
    MOE_VALUE_GREATEST, /* moe_greatest, which are as large as two floats */
    MOE_VALUES
} moe_value;

/* How many vectors of a value there are. */
typedef enum moe_value_rows {
    MOE_ROWS_OF_PASS,
    MOE_ROWS_OF_STATES, /* all of a pass, or one draft with its ancestors */
    MOE_ROWS_OF_RANKS,  /* rows times experts used */
    MOE_ROWS_OF_LOGITS, /* rows of logits at a time */
    MOE_ROWS_ONCE       /* one, whatever the pass */
} moe_value_rows;

typedef struct moe_value_info {
    const char *name;
    moe_value_rows rows;
} moe_value_info;

const moe_value_info *moe_value_info_of(moe_value value);

/* ---- Operations ---- */

typedef enum moe_op_kind {
    MOE_OP_EMBED,
    MOE_OP_NORM,
    MOE_OP_LINEAR,
    MOE_OP_HEAD_LINEAR, /* a matrix for each head */
    MOE_OP_ROPE,
    MOE_OP_CLAMP,
    MOE_OP_SCALE,
    MOE_OP_SOFT_CAP,
    MOE_OP_ADD,
    MOE_OP_COPY,
    MOE_OP_READ,    /* of `each` streams their weighted sum */
    MOE_OP_WRITE,   /* a branch to each of `each` streams */
    MOE_OP_LOOK_UP, /* the rows of a table that tokens choose */
    MOE_OP_MATCH,   /* values by how keys match the streams */
    MOE_OP_GATE,
    MOE_OP_KV_STORE,
    MOE_OP_COMPRESS, /* stores compressed keys, of blocks that end with rows of the pass; and
                      * those of its indexer */
    MOE_OP_POOL,     /* the keys of pools that rows of the pass end are stored */
    MOE_OP_CHOOSE,   /* an indexer chooses positions */
    MOE_OP_ATTEND,
    MOE_OP_STATES,   /* advances states by the operations that follow (moe_op.u.states) */
    MOE_OP_CONVOLVE, /* this and the next five only there */
    MOE_OP_DELTA_RULE,
    MOE_OP_STATE_SPACE,
    MOE_OP_CHANNEL_RULE,
    MOE_OP_SCAN,
    MOE_OP_NGRAM_CONVOLVE,
    MOE_OP_NETWORK, /* that every row passes through */
    MOE_OP_ROUTE,
    MOE_OP_EXPERTS,
    MOE_OP_COMBINE,
    MOE_OP_SELECT, /* finds the rows whose logits are wanted */
    /* Of the operations that fused ones stand for (moe_op.fused): */
    MOE_OP_ADD_NORM, /* [COMBINE,] ADD, [SELECT,] NORM of the sum */
    MOE_OP_HEADS,    /* [NORM, NORM,] ROPE, ROPE of queries and keys, KV_STORE */
    MOE_OPS
} moe_op_kind;

/* Tensors are those of the layer (moe_layer_tensor), or: */
enum moe_program_tensor {
    MOE_TENSOR_NONE = -1,
    MOE_TENSOR_TOKEN_EMBEDDING = MOE_LAYER_TENSOR_COUNT,
    MOE_TENSOR_OUTPUT_NORM,
    MOE_TENSOR_OUTPUT_NORM_BIAS,
    MOE_TENSOR_OUTPUT,
    MOE_TENSOR_OUTPUT_BIAS,
    MOE_TENSOR_ONES,                                             /* as many ones as a norm needs */
    MOE_TENSOR_STREAMS,                                          /* + moe_streams_tensor */
    MOE_TENSOR_DRAFT = MOE_TENSOR_STREAMS + MOE_STREAMS_TENSORS, /* + moe_draft_tensor */
};

/* Vectors in a value: of row r the i-th begins `at` floats behind (r * each + i) * stride. */
typedef struct moe_operand {
    moe_value value;
    uint32_t at;
    uint32_t stride; /* at least `at` and the vector's length */
} moe_operand;

typedef struct moe_op_output {
    moe_operand to;
    int tensor, bias;
    uint32_t first, n; /* rows of the matrix */
} moe_op_output;

#define MOE_MOST_OUTPUTS 4u

/* An operation reads and writes `each` vectors of n floats of a row. Each kind states its operands
 * and numbers; all others are 0, and tensors MOE_TENSOR_NONE. */
typedef struct moe_op {
    moe_op_kind kind;
    uint32_t layer;   /* whose tensors and cache these are; n_layer: of no layer */
    bool if_choosing; /* only in passes with a row that sees more positions than it attends to */
    uint32_t n, each;
    int tensor, bias; /* of the layer, or of the model */
    moe_operand x;    /* read */
    moe_operand y;    /* written, perhaps in place */
    moe_operand z;    /* ADD: the other summand; GATE: the gates; KV_STORE: the values; WRITE: the
                       * branch; READ: gates of elements; MATCH: the streams, normed */
    float factor;     /* EMBED, SCALE (or by `tensor`); CLAMP, SOFT_CAP, CHANNEL_RULE: the limit;
                       * ATTEND: of q.k */
    uint64_t forms;   /* MOE_FORM_*: what a device must have for it */
    /* With n_fused - 1 operations behind it this one is `fused`, for devices that have its form
     * (program_fuse.c). 0: it stands alone. */
    moe_op_kind fused;
    uint32_t n_fused;
    union {
        struct {
            bool mean; /* the mean is taken off */
            float eps;
            uint32_t weight_at; /* floats */
        } norm;
        struct {
            moe_op_output outputs[MOE_MOST_OUTPUTS];
            uint32_t n_outputs;
        } linear;
        struct {
            uint32_t n_rot;
            bool interleaved;
            bool window; /* by the angles of layers with a window */
            bool back;   /* the other way round */
        } rope;
        struct {
            moe_gating_kind kind;
            bool one; /* a vector has one gate */
        } gate;
        struct {
            uint32_t n_kv, v_dim;
            uint32_t window, chunk; /* 0: none */
            float cap;              /* 0: none */
            bool scales_rows;       /* by position */
            moe_indexer_kind indexer;
            uint32_t rate; /* of compressed keys beside the window's; 0: none */
        } attend;          /* `tensor`: sinks */
        struct {
            moe_operand weights; /* READ: in, products; behind those of the sum WRITE's */
            /* READ: `bias` is added to products times `tensor` */
            float eps, magnitude, write_eps;
            uint32_t mixings; /* 0: streams are not mixed */
            /* READ, not 0: by attention to the first so many streams, with scores by `tensor`;
             * the weights are written. WRITE without weights adds to the first, or begins it anew
             * and keeps what it was as this stream. */
            uint32_t n_recalled, begins;
        } streams;         /* READ, WRITE */
        uint32_t n_out;    /* HEAD_LINEAR: floats of a head's product */
        moe_operand match; /* MATCH: the values */
        bool side;         /* KV_STORE: an index key, beside keys and values */
        struct {
            uint32_t n_step; /* operations that follow */
            bool of_ngrams;  /* they advance the state of the table's convolution */
        } states;            /* STATES */
        struct {
            moe_activation activation;
            uint32_t n_inner;
            bool no_gate;       /* up takes the place of the gate's matrix, too */
            bool scales_inputs; /* weights multiply inputs, not outputs */
        } experts; /* and NETWORK, whose `tensor` is its gate's, behind which are up and down */
    } u;
} moe_op;

/* A value that an operation writes: `each` vectors of n floats of every row. */
typedef struct moe_op_written {
    moe_operand to;
    uint32_t n, each;
} moe_op_written;

/* Returns how many values these are. */
uint32_t moe_op_written_by(const moe_op *op, moe_op_written written[MOE_MOST_OUTPUTS]);

/* A range of a program's operations. */
typedef struct moe_span {
    uint32_t first, end;
} moe_span;

typedef struct moe_program_layer {
    uint32_t first, mixed, rest, summed, end;
    moe_span ahead; /* the layer's router on the stream of the layer before, into NEXT_LOGITS */
} moe_program_layer;

typedef struct moe_program {
    const moe_model_config *config; /* outlives the program */
    moe_op *ops; /* a model's: front, layers and back, one after the other; the rest */
    uint32_t n_ops;
    moe_span front;              /* from tokens to x; of a drafting layer with its joining */
    moe_span features;           /* EAGLE-3: from the model's features to a hidden state */
    moe_program_layer *layers;   /* [n_layer] */
    moe_span back;               /* from x to logits */
    size_t n_floats[MOE_VALUES]; /* of a row; 0: the program does not use the value */
} moe_program;

/* Makes a model's program, and the map of the tensors that its operations use. A tensor that is
 * missing, of a wrong shape, of an unsupported type or beyond its file is an error that names it,
 * the layer and the operation; a tensor that no operation uses is one, too. An operation that does
 * not fit its inputs is MOE_ERR_INTERNAL. After an error, program and map are empty. */
int moe_program_build(moe_program *program, moe_tensor_map *map, const moe_model_config *config,
                      const moe_gguf *gguf, moe_error *err);
/* Makes the map alone. */
int moe_tensor_map_build(moe_tensor_map *map, const moe_model_config *config, const moe_gguf *gguf,
                         moe_error *err);
/* Makes the program of a drafting layer, as a model of one layer whose front joins hidden states
 * and tokens. config: in, the model's; out, that of a model of this layer alone. The map's
 * output_norm is the layer's own; token_embedding and output are absent unless the layer brings its
 * own. */
int moe_program_build_draft(moe_program *program, moe_tensor_map *map, moe_model_config *config,
                            const moe_gguf *gguf, moe_error *err);
/* Makes the program of an EAGLE-3 head, whose layer reads twice the width. token_embedding, output
 * and rope_freqs are absent unless it brings its own. */
int moe_program_build_eagle(moe_program *program, moe_tensor_map *map,
                            const moe_eagle_config *eagle, const moe_gguf *gguf, moe_error *err);
void moe_program_free(moe_program *program);

/* Writes the program as text for people, equal layers once. layer: the one to write, or UINT32_MAX
 * for all. The caller frees *text. */
int moe_program_print(const moe_program *program, uint32_t layer, char **text, moe_error *err);
/* The operation in a few words, for messages. */
void moe_program_name_op(const moe_program *program, const moe_op *op, char *text, size_t size);

#endif
