/* SPDX-License-Identifier: MIT */
/* The sizes of recurrent layers. Layers with heads use Mamba's metadata keys: state_size is the
 * width of a head's keys, group_count the number of key heads, time_step_rank the number of heads
 * (in a selective scan: the width that time steps are projected from), and inner_size the width of
 * all heads' values together. */
#include <inttypes.h>
#include <math.h>

#include "runtime/base/error.h"
#include "runtime/model/config_reader.h"

static uint32_t read_size(moe_config_reader *r, const char *suffix, uint32_t least, uint32_t most)
{
    uint32_t value = moe_config_need_u32(r, suffix);
    if (r->status == MOE_OK && (value < least || value > most)) {
        r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                             "key '%s' is %" PRIu32 "; supported are %" PRIu32 " to %" PRIu32,
                             r->key, value, least, most);
    }
    return value;
}

static void read_heads(moe_config_reader *r, moe_recurrence *c)
{
    c->conv_kernel = read_size(r, "ssm.conv_kernel", 1, MOE_RECURRENCE_MAX_KERNEL);
    c->key_dim = read_size(r, "ssm.state_size", 1, MOE_RECURRENCE_MAX_DIM);
    c->n_key_head = read_size(r, "ssm.group_count", 1, MOE_CONFIG_MAX_HEADS);
    c->n_head = read_size(r, "ssm.time_step_rank", 1, MOE_CONFIG_MAX_HEADS);
    uint32_t inner = read_size(r, "ssm.inner_size", 1, MOE_CONFIG_MAX_DIMENSION);
    if (r->status != MOE_OK) {
        return;
    }
    c->value_dim = inner / c->n_head;
    if (c->n_head % c->n_key_head != 0 || inner % c->n_head != 0 || c->value_dim == 0 ||
        c->value_dim > MOE_RECURRENCE_MAX_DIM) {
        r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                             "keys '%s.ssm.inner_size' (%" PRIu32 "), '.time_step_rank' (%" PRIu32
                             ") and '.group_count' (%" PRIu32 ") do not make heads of 1 to %u "
                             "elements in equal groups",
                             r->family->architecture, inner, c->n_head, c->n_key_head,
                             MOE_RECURRENCE_MAX_DIM);
        return;
    }
    c->conv_channels = 2 * c->n_key_head * c->key_dim + inner;
    c->n_gates = c->kind == MOE_RECURRENCE_SPACE ? c->n_head : 2 * c->n_head;
    c->in_groups = c->kind == MOE_RECURRENCE_DELTA &&
                   moe_gguf_find_tensor(r->gguf, "blk.0.ssm_in.weight") != NULL;
}

/* In a selective scan there are no groups: all channels have the same k and q. */
static void read_scan(moe_config_reader *r, moe_recurrence *c)
{
    c->conv_kernel = read_size(r, "ssm.conv_kernel", 1, MOE_RECURRENCE_MAX_KERNEL);
    c->key_dim = read_size(r, "ssm.state_size", 1, MOE_RECURRENCE_MAX_DIM);
    c->step_rank = read_size(r, "ssm.time_step_rank", 1, MOE_CONFIG_MAX_DIMENSION);
    c->value_dim = read_size(r, "ssm.inner_size", 1, MOE_CONFIG_MAX_DIMENSION);
    c->n_head = 1;
    c->n_key_head = 1;
    c->conv_channels = c->value_dim;
}

static void read_decay_bound(moe_config_reader *r, moe_recurrence *c)
{
    if (!moe_config_bool(r, "kda.safe_gate", true) && r->status == MOE_OK) {
        r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                             "key '%s' is false; supported are decays with a lower bound", r->key);
    }
    if (moe_config_require(r, "kda.gate_lower_bound")) {
        c->decay_bound = moe_config_f32(r, "kda.gate_lower_bound", 0);
    }
    if (r->status == MOE_OK && !(c->decay_bound < 0 && isfinite(c->decay_bound))) {
        r->status = moe_fail(r->err, MOE_ERR_FORMAT, "key '%s' is %g, not below 0", r->key,
                             (double)c->decay_bound);
    }
}

/* Decays of channels: the number of recurrent heads is that of attention's heads. */
static void read_channels(moe_config_reader *r, const moe_model_config *config, moe_recurrence *c)
{
    c->conv_kernel = read_size(r, "ssm.conv_kernel", 1, MOE_RECURRENCE_MAX_KERNEL);
    c->key_dim = read_size(r, "kda.head_dim", 1, MOE_RECURRENCE_MAX_DIM);
    c->value_dim = c->key_dim;
    c->n_head = config->n_head;
    c->n_key_head = config->n_head;
    c->conv_channels = 3 * c->n_head * c->key_dim;
    c->n_gates = c->n_head + c->n_head * c->key_dim;
    if ((r->family->keys & MOE_KEY_DECAY_BOUND) != 0) {
        read_decay_bound(r, c);
    }
}

void moe_config_read_recurrence(moe_config_reader *r, moe_model_config *config)
{
    moe_recurrence *c = &config->recurrence;
    c->kind = r->family->recurrence;
    if (c->kind == MOE_RECURRENCE_DELTA || c->kind == MOE_RECURRENCE_SPACE) {
        read_heads(r, c);
    } else if (c->kind == MOE_RECURRENCE_CHANNELS) {
        read_channels(r, config, c);
    } else if (c->kind == MOE_RECURRENCE_SCAN) {
        read_scan(r, c);
    } else if (c->kind == MOE_RECURRENCE_CONVOLUTION) {
        /* With a kernel of one weight for each channel there would be no state. */
        c->conv_kernel = read_size(r, "shortconv.l_cache", 2, MOE_RECURRENCE_MAX_KERNEL);
        c->conv_channels = config->n_embd;
    }
}
