/* SPDX-License-Identifier: MIT */
/* A model as a program: for each layer a short list of operations over named values, in the order
 * in which a pass carries them out, and such lists for the parts before and behind the layers.
 * Opening a model makes its program from the config and the tensors of the files. Every parameter
 * is then resolved and checked, so passes need not read the config. runtime/pass/program_run.h runs
 * the program.
 *
 *    layer   first ........ mixed ....... rest ............ summed ........ end
 *            mixer, + x           router     experts, their sum     shared, + x
 *
 * At `rest` the host needs a result: the router's logits. A device can record the operations before
 * `rest`. A layer without routed experts ends at `rest`. */
#ifndef MOE_PROGRAM_PROGRAM_H
#define MOE_PROGRAM_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/device/device.h"
#include "runtime/model/eagle_config.h"
#include "runtime/model/tensor_map.h"

/* Indexers score this many positions at a time ... */
#define MOE_INDEX_BLOCK 1024u
/* ... for this many rows of a timeline. */
#define MOE_INDEX_ROWS 8u

/* ---- Values ---- */

/* The values that operations read and write: a vector for each row of a pass. Memory is laid out in
 * this order. */
typedef enum moe_value {
    MOE_VALUE_NONE,
    MOE_VALUE_X,           /* the residual stream, or several beside each other */
    MOE_VALUE_STREAM_NORM, /* with several streams: all of them, normed together */
    /* Products with these. READ turns them into weights: first those of the sum that is read,
     * then those by which WRITE adds a branch. */
    MOE_VALUE_STREAM_MIX,
    MOE_VALUE_NEXT_MIX,   /* the same for the router of the next layer, a guess */
    MOE_VALUE_STREAM_LOW, /* gates of elements, between the two steps of their projection */
    MOE_VALUE_STREAM_GATES,
    MOE_VALUE_READ,           /* what a branch reads of the streams */
    MOE_VALUE_WANTED_STREAMS, /* the streams of the rows whose logits are wanted */
    /* The rows that tokens read of a table (runtime/model/ngram_table.h). */
    MOE_VALUE_NGRAM_ROWS,
    MOE_VALUE_NGRAM_KEYS, /* keys of each stream; afterwards, what is added to each stream */
    MOE_VALUE_NGRAM_VALUES,
    MOE_VALUE_NGRAM_MIXED, /* before the convolution */
    MOE_VALUE_NGRAM_OUT,
    MOE_VALUE_NORM,       /* what the layer's mixer, or its network, reads */
    MOE_VALUE_LAYER_NORM, /* the normed input of the layer, if the experts read that */
    MOE_VALUE_Q,
    MOE_VALUE_Q_A,      /* MLA: what queries are projected from */
    MOE_VALUE_Q_LATENT, /* MLA: queries in the latent's space */
    MOE_VALUE_K,
    MOE_VALUE_V,
    MOE_VALUE_GATE, /* of attention's output; if joined, each head's query precedes its gate */
    MOE_VALUE_ATTENDED,
    MOE_VALUE_VALUES,     /* MLA: what was attended, mapped out of the latent's space */
    MOE_VALUE_OUT_LOW,    /* what was attended, after the first step of a projection in groups */
    MOE_VALUE_BLOCK_K,    /* what a position adds to compressed keys, ... */
    MOE_VALUE_BLOCK_GATE, /* ... and the gates that weigh it */
    /* Of indexers (runtime/pass/position_index.h): */
    MOE_VALUE_INDEX_Q,
    MOE_VALUE_INDEX_WEIGHTS,
    MOE_VALUE_INDEX_K,
    MOE_VALUE_INDEX_GATE,     /* gates of keys in pools */
    MOE_VALUE_INDEXED_K,      /* the layer's keys, each followed by its index key */
    MOE_VALUE_INDEX_BLOCK,    /* index keys of a block of positions */
    MOE_VALUE_INDEX_PRODUCTS, /* products of queries with these; on a device that chooses: scores */
    MOE_VALUE_INDEX_CHOSEN,   /* uint32_t: where the chosen positions are stored */
    /* For attention by groups of heads, each to its own choice: a group's queries, ... */
    MOE_VALUE_GROUP_Q,
    MOE_VALUE_GROUP_OUT, /* ... and what the group attended */
    /* Of layers with a state (runtime/device/delta_ops.h): */
    MOE_VALUE_PROJECTED, /* older files: all parts of a row, in an order of their own */
    /* Before the convolution; together with the gates, all that advances a state. */
    MOE_VALUE_MIXED,
    MOE_VALUE_STATE_GATES,
    MOE_VALUE_OUT_GATE,
    MOE_VALUE_STATE_OUT,
    MOE_VALUE_PART_Q,
    MOE_VALUE_PART_K,
    MOE_VALUE_PART_V,
    MOE_VALUE_DECAY_LOW, /* decays of channels: decays and gates are projected in two steps */
    MOE_VALUE_GATE_LOW,
    MOE_VALUE_BETA,
    MOE_VALUE_ALPHA,
    MOE_VALUE_IN_GATE,
    MOE_VALUE_CONVOLVED, /* this and the next four: for all tokens that advance states */
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
    MOE_VALUE_TAPPED_A, /* this and the next two: the stream at each depth */
    MOE_VALUE_TAPPED_B,
    MOE_VALUE_TAPPED_C,
    MOE_VALUE_ONES,   /* a norm's weight */
    MOE_VALUE_WANTED, /* x of the rows whose logits are wanted; has no memory of its own */
    /* WANTED after the norm. n rows take the last n places, directly before LOGITS, so that one
     * copy returns both. */
    MOE_VALUE_SELECTED,
    MOE_VALUE_LOGITS,   /* directly behind SELECTED */
    MOE_VALUE_GREATEST, /* moe_greatest, as large as two floats */
    MOE_VALUES
} moe_value;

/* How many vectors of a value there are. */
typedef enum moe_value_rows {
    MOE_ROWS_OF_PASS,
    MOE_ROWS_OF_STATES, /* the rows of a pass, or of one draft with its ancestors */
    MOE_ROWS_OF_RANKS,  /* rows times experts used */
    MOE_ROWS_OF_LOGITS, /* MOE_LOGIT_ROWS at most */
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
    MOE_OP_READ,    /* the weighted sum of `each` streams */
    MOE_OP_WRITE,   /* adds a branch to each of `each` streams */
    MOE_OP_LOOK_UP, /* copies the rows of a table that tokens choose */
    MOE_OP_MATCH,   /* scales values by how well keys match the streams */
    MOE_OP_GATE,
    MOE_OP_KV_STORE,
    /* Stores the compressed keys of blocks that end with a row of the pass, also the indexer's. */
    MOE_OP_COMPRESS,
    MOE_OP_POOL,   /* stores the keys of pools that end with a row of the pass */
    MOE_OP_CHOOSE, /* an indexer chooses positions */
    MOE_OP_ATTEND,
    MOE_OP_STATES,   /* advances states by the operations that follow (moe_op.u.states) */
    MOE_OP_CONVOLVE, /* this and the next five stand only behind STATES */
    MOE_OP_DELTA_RULE,
    MOE_OP_STATE_SPACE,
    MOE_OP_CHANNEL_RULE,
    MOE_OP_SCAN,
    MOE_OP_NGRAM_CONVOLVE,
    MOE_OP_NETWORK, /* a network that every row passes through */
    MOE_OP_ROUTE,
    MOE_OP_EXPERTS,
    MOE_OP_COMBINE,
    MOE_OP_SELECT, /* finds the rows whose logits are wanted */
    /* Names of fused sequences (moe_op.fused): */
    MOE_OP_ADD_NORM, /* [COMBINE,] ADD, [SELECT,] NORM of the sum */
    MOE_OP_HEADS,    /* [NORM, NORM,] ROPE, ROPE of queries and keys, KV_STORE */
    MOE_OPS
} moe_op_kind;

/* The tensor of an operation is a moe_layer_tensor, or one of these: */
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

/* Vectors in a value: vector i of row r begins at float (r * each + i) * stride + at. */
typedef struct moe_operand {
    moe_value value;
    uint32_t at;
    uint32_t stride; /* at least `at` plus the vector's length */
} moe_operand;

typedef struct moe_op_output {
    moe_operand to;
    int tensor, bias;
    uint32_t first, n; /* rows of the matrix that give this output */
} moe_op_output;

#define MOE_MOST_OUTPUTS 4u

/* An operation reads and writes, for each row, `each` vectors of n floats. Each kind of operation
 * states its operands and numbers; all others are 0, and its other tensors MOE_TENSOR_NONE. */
typedef struct moe_op {
    moe_op_kind kind;
    uint32_t layer; /* the layer that tensors and cache belong to; n_layer: none */
    /* Carried out only in passes with a row that sees more positions than it attends to. */
    bool if_choosing;
    uint32_t n, each;
    int tensor, bias; /* of the layer, or of the model */
    moe_operand x;    /* read */
    moe_operand y;    /* written, perhaps in place */
    moe_operand z;    /* ADD: the other summand; GATE: the gates; KV_STORE: the values; WRITE: the
                       * branch; READ: gates of elements; MATCH: the streams, normed */
    /* EMBED, SCALE: the factor (unless SCALE has a `tensor`). CLAMP, SOFT_CAP, CHANNEL_RULE: the
     * limit. ATTEND: the factor of q.k. */
    float factor;
    uint64_t forms; /* MOE_FORM_*: what a device needs to carry it out */
    /* The sequence that begins here, for devices that have its form (program_fuse.c). n_fused: its
     * number of operations; 0: none begins here. */
    moe_op_kind fused;
    uint32_t n_fused;
    union {
        struct {
            bool mean; /* LayerNorm: subtracts the mean */
            float eps;
            uint32_t weight_at; /* where the weight begins in its tensor, in floats */
        } norm;
        struct {
            moe_op_output outputs[MOE_MOST_OUTPUTS];
            uint32_t n_outputs;
        } linear;
        struct {
            uint32_t n_rot;
            bool interleaved;
            bool window; /* uses the angles of layers with a window */
            bool back;   /* turns backwards */
        } rope;
        struct {
            moe_gating_kind kind;
            bool one; /* a vector has a single gate */
        } gate;
        struct {
            uint32_t n_kv, v_dim;
            uint32_t window, chunk; /* 0: none */
            float cap;              /* 0: none */
            bool scales_rows;       /* scales queries by position */
            moe_indexer_kind indexer;
            uint32_t rate; /* of compressed keys beside the window's; 0: none */
        } attend;          /* `tensor`: sinks */
        struct {
            /* READ: in, products; out, weights of the sum, then those of WRITE. */
            moe_operand weights;
            /* READ: a product is multiplied by `tensor`, then `bias` is added. */
            float eps, magnitude, write_eps;
            uint32_t mixings; /* 0: streams are not mixed */
            /* READ, if n_recalled is not 0: attends to the first n_recalled streams, with scores by
             * `tensor`, and writes the weights. WRITE without weights adds the branch to the first
             * stream; or, if `begins` is not 0, copies the first stream to the stream `begins`, and
             * replaces it by the branch. */
            uint32_t n_recalled, begins;
        } streams;         /* READ, WRITE */
        uint32_t n_out;    /* HEAD_LINEAR: floats of a head's product */
        moe_operand match; /* MATCH: the values */
        bool side;         /* KV_STORE: an index key, beside keys and values */
        struct {
            uint32_t n_step; /* the operations behind it that advance the states */
            bool of_ngrams;  /* they advance the state of the table's convolution */
        } states;            /* STATES */
        struct {
            moe_activation activation;
            uint32_t n_inner;
            bool no_gate;       /* there is no gate matrix; `up` stands in its place, too */
            bool scales_inputs; /* the router's weights multiply inputs, not outputs */
        } experts; /* and NETWORK, whose `tensor` is the gate matrix, followed by up and down */
    } u;
} moe_op;

/* A value that an operation writes: `each` vectors of n floats of every row. */
typedef struct moe_op_written {
    moe_operand to;
    uint32_t n, each;
} moe_op_written;

/* Lists the values that an operation writes, and returns their number. */
uint32_t moe_op_written_by(const moe_op *op, moe_op_written written[MOE_MOST_OUTPUTS]);

/* A range of a program's operations. */
typedef struct moe_span {
    uint32_t first, end;
} moe_span;

typedef struct moe_program_layer {
    uint32_t first, mixed, rest, summed, end;
    moe_span ahead; /* the layer's router on the stream of the layer before; writes NEXT_LOGITS */
} moe_program_layer;

typedef struct moe_program {
    const moe_model_config *config; /* outlives the program */
    moe_op *ops; /* a model's front, layers and back, one after the other, then all else */
    uint32_t n_ops;
    /* From tokens to x; for a drafting layer also the joining of its inputs. */
    moe_span front;
    moe_span features;           /* EAGLE-3: from the model's features to a hidden state */
    moe_program_layer *layers;   /* [n_layer] */
    moe_span back;               /* from x to logits */
    size_t n_floats[MOE_VALUES]; /* of a row; 0: the program does not use the value */
} moe_program;

/* Makes a model's program, and the map of the tensors that its operations use. A tensor that is
 * missing, of a wrong shape, of an unsupported type or beyond the end of its file is an error; the
 * message names the tensor, the layer and the operation. A tensor that no operation uses is an
 * error, too. MOE_ERR_INTERNAL: an operation does not fit its inputs. After an error, program and
 * map are empty. */
int moe_program_build(moe_program *program, moe_tensor_map *map, const moe_model_config *config,
                      const moe_gguf *gguf, moe_error *err);
/* Makes only the map. */
int moe_tensor_map_build(moe_tensor_map *map, const moe_model_config *config, const moe_gguf *gguf,
                         moe_error *err);
/* Makes the program of a drafting layer, as a model of one layer whose front joins hidden states
 * and tokens. config: in, the model's; out, the config of this one layer. The map's output_norm is
 * the layer's own. token_embedding and output are absent unless the layer brings its own. */
int moe_program_build_draft(moe_program *program, moe_tensor_map *map, moe_model_config *config,
                            const moe_gguf *gguf, moe_error *err);
/* Makes the program of an EAGLE-3 head, whose layer reads twice the stream's width.
 * token_embedding, output and rope_freqs are absent unless the head brings its own. */
int moe_program_build_eagle(moe_program *program, moe_tensor_map *map,
                            const moe_eagle_config *eagle, const moe_gguf *gguf, moe_error *err);
void moe_program_free(moe_program *program);

/* Writes the program as text for people; equal layers are written once. layer: the layer to write;
 * UINT32_MAX: all. The caller frees *text. */
int moe_program_print(const moe_program *program, uint32_t layer, char **text, moe_error *err);
/* The operation in a few words, for messages. */
void moe_program_name_op(const moe_program *program, const moe_op *op, char *text, size_t size);

#endif
