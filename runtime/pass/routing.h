/* SPDX-License-Identifier: MIT */
/* Routers: they choose a layer's experts, and predict the next layer's. */
#ifndef MOE_PASS_ROUTING_H
#define MOE_PASS_ROUTING_H

#include <moe/status.h>
#include <moe/types.h>

#include "runtime/device/device.h"
#include "runtime/pass/pass.h"

/* Describes how the layer's router chooses from buffers->router_logits. The caller sets where the
 * results go. */
moe_route moe_route_of_layer(const moe_runner *runner, uint32_t layer);

/* Chooses experts by the router's logits, or by the layer's table; the choice is in the buffers.
 * with_next: also runs the next layer's router, if that saves a round trip to the device. */
int moe_route_layer(moe_runner *runner, const moe_pass *pass, uint32_t layer, bool with_next,
                    moe_error *err);

/* Puts each row's experts and their weights in ascending order of the experts' numbers, dropped
 * ranks last: in this order their outputs are added. */
void moe_order_choice(moe_runner *runner, uint32_t n_rows);

/* Runs the next layer's router on this layer's hidden state, unless that has been done, and
 * prefetches the experts that it names, the most wanted first. The hidden state lacks the output of
 * this layer's experts, so this is a guess. It decides which bytes move early, never what is
 * computed. For a panel it prefetches every expert that two rows want, because nearly all of them
 * will be used. */
int moe_predict_next_layer(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                           moe_error *err);

/* Call before a pass. Requests the experts of layers with a table (moe_layer_kind.by_table): there
 * the pass's tokens alone determine the experts. */
void moe_request_by_table(moe_runner *runner, const moe_pass *pass);

/* Compares the prediction for this layer, if there was one, with its actual plan. */
void moe_score_prediction(moe_runner *runner, uint32_t layer);

#endif
