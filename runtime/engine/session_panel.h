/* SPDX-License-Identifier: MIT */
/* Long prompts as panels (runtime/pass/panel.c). A session with more tokens to evaluate than a pass
 * has rows gets a panel of as many of them as there is memory for. Each step carries out a few
 * chunks of it through a layer each, so that other sessions go on meanwhile. Its tokens count as
 * evaluated once the last chunk has left the last layer. */
#ifndef MOE_ENGINE_SESSION_PANEL_H
#define MOE_ENGINE_SESSION_PANEL_H

#include "runtime/engine/engine_state.h"

/* Decides how many rows a panel of this engine has at most (plan.panel_rows): as many as
 * options.panel asks for, or as many as a share of the memory for experts holds.
 * MOE_ERR_UNSUPPORTED: the options ask for panels and the model cannot have them. */
int moe_panel_plan(moe_engine *engine, uint32_t asked, moe_error *err);
/* The session of the list that has a panel under way, or for which one was begun now; or NULL. */
moe_session *moe_panel_find(moe_engine *engine, moe_session *const *sessions, size_t n);
/* Whether the session waits for the panel of another one: its prompt is too long for one pass. */
bool moe_panel_is_awaited(const moe_session *session);
/* Whether all chunks have been carried out. */
bool moe_panel_is_done(const moe_engine *engine);
/* next_chunk() returns the chunk to carry out next; go_on() notes that it was carried out, and its
 * n_rows. */
moe_panel_chunk moe_panel_next_chunk(moe_engine *engine);
void moe_panel_go_on(moe_engine *engine, uint32_t n_rows);
/* Forgets the panel and returns its memory. */
void moe_panel_drop(moe_engine *engine);
/* Forgets the panel if it is this session's, because the session's timeline is about to change. */
void moe_panel_leave(moe_session *session);

#endif
