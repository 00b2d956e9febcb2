/* SPDX-License-Identifier: MIT */
/* Between the router and the layer's plan: what speculation makes of the routers' choices in the
 * pass's buffers. Without speculation, and in exact passes, the choices stay as they are. */
#ifndef MOE_ENGINE_ROUTE_EDITING_H
#define MOE_ENGINE_ROUTE_EDITING_H

#include "offload/expert_store.h"
#include "runtime/pass/pass_hooks.h"
#include "runtime/pass/route_edit.h"

typedef struct moe_route_editor {
    moe_pass_hook hook;
    moe_mixing_rule *mixing; /* [n_layer] */
    float *bias;             /* what their selection_bias points to, [n_layer][n_expert] or NULL */
    bool *resident;          /* [n_expert] of the layer at work */
} moe_route_editor;

/* Of an engine whose weights are loaded. Adds its hook to the engine's runner. */
int moe_route_editor_open(moe_route_editor **out, struct moe_engine *engine, moe_error *err);
void moe_route_editor_close(moe_route_editor **editor);

/* What the hook does after routing. A draft: foresight is told, then only resident experts stand. A
 * lossy pass: budget, buddies. An exact one: foresight is scored. Here
 * with these experts resident ([n_expert]; of no meaning to a draft), not those that are now. */
void moe_edit_routes_by(struct moe_engine *engine, const moe_pass *pass, uint32_t layer,
                        const bool *resident);
/* Of a draft's row: foresight is told what its router chose, [n_used], and reads begin. Nothing
 * without foresight. */
void moe_edit_foresee(struct moe_engine *engine, const moe_pass *pass, uint32_t layer, uint32_t row,
                      const uint32_t *experts);
/* To routes->resident: the experts of the layer that a draft may use now. */
void moe_edit_find_residents(struct moe_engine *engine, uint32_t layer);

#endif
