/* SPDX-License-Identifier: MIT */
/* Long prompts as panels (runtime/pass/panel.c). Sessions that have more tokens to evaluate than a
 * pass has rows share a panel, with as many of these tokens as there is memory for. Sessions that
 * get long prompts while a panel is under way join the next panel. Each step takes a few chunks of
 * the panel through one layer each, so that other sessions continue meanwhile. All rows of a chunk
 * belong to one session. The panel's tokens count as evaluated once the last chunk has left the
 * last layer. */
#ifndef MOE_ENGINE_SESSION_PANEL_H
#define MOE_ENGINE_SESSION_PANEL_H

#include "runtime/engine/engine_state.h"

/* Decides how many rows a panel of this engine has at most (panel_rows): as many as
 * options.panel asks for, or as many as a share of the memory for experts holds.
 * MOE_ERR_UNSUPPORTED: the options ask for panels and the model cannot have them. */
int moe_panel_plan(moe_engine *engine, uint32_t asked, moe_error *err);
/* Whether one of these sessions has rows in the current panel. If there is no panel, first begins
 * one for the sessions with long prompts. */
bool moe_panel_find(moe_engine *engine, moe_session *const *sessions, size_t n);
/* Whether the session has rows in the panel that is under way. */
bool moe_panel_has(const moe_engine *engine, const moe_session *session);
/* Whether the session waits for the next panel: its prompt is too long for one pass. */
bool moe_panel_is_awaited(const moe_session *session);
/* Whether all chunks have been carried out. */
bool moe_panel_is_done(const moe_engine *engine);
/* Returns the prompt to which the next chunk belongs. */
moe_panel_prompt *moe_panel_at_work(const moe_engine *engine);
/* moe_panel_next_chunk() returns the next chunk; moe_panel_go_on() notes that the chunk, of n_rows
 * rows, was carried out. */
moe_panel_chunk moe_panel_next_chunk(moe_engine *engine);
void moe_panel_go_on(moe_engine *engine, uint32_t n_rows);
/* Forgets the panel and returns its memory. */
void moe_panel_drop(moe_engine *engine);
/* Takes the session out of the panel, because its timeline is about to change. */
void moe_panel_leave(moe_session *session);

#endif
