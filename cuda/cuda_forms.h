/* SPDX-License-Identifier: MIT */
/* The forms of operations that GPUs carry out. Each list takes a macro that turns a name into a
 * bit. */
#ifndef MOE_CUDA_CUDA_FORMS_H
#define MOE_CUDA_CUDA_FORMS_H

#include "runtime/device/device.h"

/* clang-format off */
#define MOE_CUDA_EACH_FORM(F) \
    (F(EMBED) | F(GATHER) | F(RMS_NORM) | F(MEAN_NORM) | F(LINEAR) | F(HEAD_LINEAR) |           \
     F(ROPE) | F(ROPE_BACK) | F(WINDOW_ROPE) | F(CLAMP) | F(SCALE) | F(SOFT_CAP) | F(ADD) |     \
     F(COPY) | F(STREAMS) | F(STREAM_GATES) | F(STREAM_RECALL) | F(NGRAMS) | F(GATE) |          \
     F(GATE_PLAIN) | F(GATE_SOFTPLUS) | F(GATE_ROW) | F(KV_STORE) | F(CHOOSE) |                 \
     F(CHOOSE_POOLS) | F(ATTEND) | F(ATTEND_CAPPED) | F(ATTEND_WINDOW) | F(ATTEND_CHUNK) |      \
     F(ATTEND_SINKS) | F(ATTEND_SCALED) | F(SHORT_CONV) | F(DELTA_RULE) | F(STATE_SPACE) |      \
     F(CHANNEL_RULE) | F(SELECTIVE_SCAN) | F(ROUTE) | F(ROUTE_SPARSE_MIXER) |                   \
     F(ROUTE_SQRT_SOFTPLUS) | F(ROUTE_SCALES) | F(EXPERTS) | F(EXPERTS_CLAMPED) |               \
     F(EXPERTS_LIMITED) | F(EXPERTS_SILU_CLAMPED) | F(EXPERTS_GELU) | F(EXPERTS_RELU) |         \
     F(EXPERTS_SITU) | F(EXPERTS_ONE_MATRIX) | F(EXPERTS_BIASES) | F(EXPERTS_X_SCALES) |        \
     F(COMBINE) | F(APART) | F(ADD_NORM) | F(HEADS))

/* The forms that recordings can hold, too. They only launch kernels, and these kernels' arguments
 * are the same in each step or lie in the step's inputs. */
#define MOE_CUDA_EACH_RECORDED(F) \
    (F(EMBED) | F(GATHER) | F(RMS_NORM) | F(MEAN_NORM) | F(LINEAR) | F(HEAD_LINEAR) | F(ROPE) | \
     F(CLAMP) | F(SCALE) | F(SOFT_CAP) | F(ADD) | F(COPY) | F(STREAMS) | F(STREAM_GATES) |      \
     F(STREAM_RECALL) | F(GATE) | F(GATE_PLAIN) | F(GATE_SOFTPLUS) | F(GATE_ROW) |              \
     F(KV_STORE) | F(ATTEND) | F(ATTEND_CAPPED) | F(ATTEND_WINDOW) | F(ATTEND_CHUNK) |          \
     F(ATTEND_SINKS) | F(ROUTE) | F(EXPERTS) | F(EXPERTS_CLAMPED) | F(EXPERTS_BIASES) |         \
     F(COMBINE) | F(ADD_NORM) | F(HEADS))
/* clang-format on */

#define MOE_CUDA_FORM_BIT(form) MOE_FORM_BIT(MOE_FORM_##form)
#define MOE_CUDA_FORMS          MOE_CUDA_EACH_FORM(MOE_CUDA_FORM_BIT)
#define MOE_CUDA_RECORDED_FORMS MOE_CUDA_EACH_RECORDED(MOE_CUDA_FORM_BIT)

#endif
