/* SPDX-License-Identifier: MIT */
#include "runtime/program/program.h"

static const moe_value_info values[MOE_VALUES] = {
    [MOE_VALUE_NONE] = {"nothing", MOE_ROWS_OF_PASS},
    [MOE_VALUE_X] = {"x", MOE_ROWS_OF_PASS},
    [MOE_VALUE_STREAM_NORM] = {"stream_norm", MOE_ROWS_OF_PASS},
    [MOE_VALUE_STREAM_MIX] = {"stream_mix", MOE_ROWS_OF_PASS},
    [MOE_VALUE_NEXT_MIX] = {"next_mix", MOE_ROWS_OF_PASS},
    [MOE_VALUE_STREAM_LOW] = {"stream_low", MOE_ROWS_OF_PASS},
    [MOE_VALUE_STREAM_GATES] = {"stream_gates", MOE_ROWS_OF_PASS},
    [MOE_VALUE_READ] = {"read", MOE_ROWS_OF_PASS},
    [MOE_VALUE_WANTED_STREAMS] = {"wanted_streams", MOE_ROWS_OF_LOGITS},
    [MOE_VALUE_NGRAM_ROWS] = {"ngram_rows", MOE_ROWS_OF_PASS},
    [MOE_VALUE_NGRAM_KEYS] = {"ngram_keys", MOE_ROWS_OF_PASS},
    [MOE_VALUE_NGRAM_VALUES] = {"ngram_values", MOE_ROWS_OF_PASS},
    [MOE_VALUE_NGRAM_MIXED] = {"ngram_mixed", MOE_ROWS_OF_PASS},
    [MOE_VALUE_NGRAM_OUT] = {"ngram_out", MOE_ROWS_OF_PASS},
    [MOE_VALUE_NORM] = {"norm", MOE_ROWS_OF_PASS},
    [MOE_VALUE_LAYER_NORM] = {"layer_norm", MOE_ROWS_OF_PASS},
    [MOE_VALUE_Q] = {"q", MOE_ROWS_OF_PASS},
    [MOE_VALUE_Q_A] = {"q_a", MOE_ROWS_OF_PASS},
    [MOE_VALUE_Q_LATENT] = {"q_latent", MOE_ROWS_OF_PASS},
    [MOE_VALUE_K] = {"k", MOE_ROWS_OF_PASS},
    [MOE_VALUE_V] = {"v", MOE_ROWS_OF_PASS},
    [MOE_VALUE_GATE] = {"gate", MOE_ROWS_OF_PASS},
    [MOE_VALUE_ATTENDED] = {"attended", MOE_ROWS_OF_PASS},
    [MOE_VALUE_VALUES] = {"values", MOE_ROWS_OF_PASS},
    [MOE_VALUE_OUT_LOW] = {"out_low", MOE_ROWS_OF_PASS},
    [MOE_VALUE_BLOCK_K] = {"block_k", MOE_ROWS_OF_PASS},
    [MOE_VALUE_BLOCK_GATE] = {"block_gate", MOE_ROWS_OF_PASS},
    [MOE_VALUE_INDEX_Q] = {"index_q", MOE_ROWS_OF_PASS},
    [MOE_VALUE_INDEX_WEIGHTS] = {"index_weights", MOE_ROWS_OF_PASS},
    [MOE_VALUE_INDEX_K] = {"index_k", MOE_ROWS_OF_PASS},
    [MOE_VALUE_INDEX_GATE] = {"index_gate", MOE_ROWS_OF_PASS},
    [MOE_VALUE_INDEXED_K] = {"indexed_k", MOE_ROWS_OF_PASS},
    [MOE_VALUE_INDEX_BLOCK] = {"index_block", MOE_ROWS_ONCE},
    [MOE_VALUE_INDEX_PRODUCTS] = {"index_products", MOE_ROWS_ONCE},
    [MOE_VALUE_INDEX_CHOSEN] = {"chosen_positions", MOE_ROWS_OF_PASS},
    [MOE_VALUE_GROUP_Q] = {"group_q", MOE_ROWS_OF_PASS},
    [MOE_VALUE_GROUP_OUT] = {"group_out", MOE_ROWS_OF_PASS},
    [MOE_VALUE_PROJECTED] = {"projected", MOE_ROWS_OF_PASS},
    [MOE_VALUE_MIXED] = {"mixed", MOE_ROWS_OF_PASS},
    [MOE_VALUE_STATE_GATES] = {"state_gates", MOE_ROWS_OF_PASS},
    [MOE_VALUE_OUT_GATE] = {"out_gate", MOE_ROWS_OF_PASS},
    [MOE_VALUE_STATE_OUT] = {"state_out", MOE_ROWS_OF_PASS},
    [MOE_VALUE_PART_Q] = {"part_q", MOE_ROWS_OF_PASS},
    [MOE_VALUE_PART_K] = {"part_k", MOE_ROWS_OF_PASS},
    [MOE_VALUE_PART_V] = {"part_v", MOE_ROWS_OF_PASS},
    [MOE_VALUE_DECAY_LOW] = {"decay_low", MOE_ROWS_OF_PASS},
    [MOE_VALUE_GATE_LOW] = {"gate_low", MOE_ROWS_OF_PASS},
    [MOE_VALUE_BETA] = {"beta", MOE_ROWS_OF_PASS},
    [MOE_VALUE_ALPHA] = {"alpha", MOE_ROWS_OF_PASS},
    [MOE_VALUE_IN_GATE] = {"in_gate", MOE_ROWS_OF_PASS},
    [MOE_VALUE_CONVOLVED] = {"convolved", MOE_ROWS_OF_STATES},
    [MOE_VALUE_STEPS] = {"steps", MOE_ROWS_OF_STATES},
    [MOE_VALUE_STEP_LOW] = {"step_low", MOE_ROWS_OF_STATES},
    [MOE_VALUE_SCAN_K] = {"scan_k", MOE_ROWS_OF_STATES},
    [MOE_VALUE_SCAN_Q] = {"scan_q", MOE_ROWS_OF_STATES},
    [MOE_VALUE_LATENT] = {"latent", MOE_ROWS_OF_PASS},
    [MOE_VALUE_LATENT_SUM] = {"latent_sum", MOE_ROWS_OF_PASS},
    [MOE_VALUE_BRANCH] = {"branch", MOE_ROWS_OF_PASS},
    [MOE_VALUE_SHARED] = {"shared", MOE_ROWS_OF_PASS},
    [MOE_VALUE_SHARED_GATE] = {"shared_gate", MOE_ROWS_OF_PASS},
    [MOE_VALUE_ROUTER_LOGITS] = {"router_logits", MOE_ROWS_OF_PASS},
    [MOE_VALUE_NEXT_LOGITS] = {"next_logits", MOE_ROWS_OF_PASS},
    [MOE_VALUE_RANK_OUT] = {"outputs", MOE_ROWS_OF_RANKS},
    [MOE_VALUE_HIDDEN] = {"hidden", MOE_ROWS_OF_PASS},
    [MOE_VALUE_EMBEDDED] = {"embedded", MOE_ROWS_OF_PASS},
    [MOE_VALUE_HIDDEN_NORM] = {"hidden_norm", MOE_ROWS_OF_PASS},
    [MOE_VALUE_JOINED] = {"joined", MOE_ROWS_OF_PASS},
    [MOE_VALUE_FEATURES] = {"features", MOE_ROWS_OF_PASS},
    [MOE_VALUE_TAPPED_A] = {"tapped_a", MOE_ROWS_OF_PASS},
    [MOE_VALUE_TAPPED_B] = {"tapped_b", MOE_ROWS_OF_PASS},
    [MOE_VALUE_TAPPED_C] = {"tapped_c", MOE_ROWS_OF_PASS},
    [MOE_VALUE_ONES] = {"ones", MOE_ROWS_ONCE},
    [MOE_VALUE_WANTED] = {"wanted", MOE_ROWS_OF_LOGITS},
    [MOE_VALUE_SELECTED] = {"selected", MOE_ROWS_OF_LOGITS},
    [MOE_VALUE_LOGITS] = {"logits", MOE_ROWS_OF_LOGITS},
    [MOE_VALUE_GREATEST] = {"greatest", MOE_ROWS_OF_LOGITS},
};

const moe_value_info *moe_value_info_of(moe_value value)
{
    return &values[value];
}

uint32_t moe_op_written_by(const moe_op *op, moe_op_written written[MOE_MOST_OUTPUTS])
{
    for (uint32_t i = 0; op->kind == MOE_OP_LINEAR && i < op->u.linear.n_outputs; i++) {
        const moe_op_output *out = &op->u.linear.outputs[i];
        written[i] = (moe_op_written){out->to, out->n, 1};
    }
    if (op->kind == MOE_OP_LINEAR || op->y.value == MOE_VALUE_NONE) {
        return op->kind == MOE_OP_LINEAR ? op->u.linear.n_outputs : 0;
    }
    uint32_t n = op->kind == MOE_OP_HEAD_LINEAR ? op->u.n_out
                 : op->kind == MOE_OP_ATTEND    ? op->u.attend.v_dim
                 : op->kind == MOE_OP_STATES    ? op->y.stride
                                                : op->n;
    written[0] = (moe_op_written){op->y, n, op->kind == MOE_OP_READ ? 1 : op->each};
    return 1;
}
