/* SPDX-License-Identifier: MIT */
/* Parking: if memory is short for one session, another session that waits moves its KV pages and
 * states to a file until it is used again (moe_engine_options.park_folder).
 *
 *    not parked --(memory is short; it has waited longest)--> parked: pages in a file
 *         ^                                                       |
 *         +------(moe_park_wake(): read back, or, if the file--+
 *                 cannot be read or is damaged, evaluated anew)
 *
 * A session's tokens, sampler and logits stay in memory. The file has a checksum, and no name, so
 * that it ends with the process. */
#ifndef MOE_SESSION_PARK_H
#define MOE_SESSION_PARK_H

#include "runtime/engine/session_format.h"

/* Checks that a file in the folder can be written, and lets sessions be parked there. folder: NULL
 * for none, or a path, which the function copies. */
int moe_park_open(moe_engine *engine, const char *folder, moe_error *err);

/* moe_park_add() puts a new session on the engine's list; moe_park_remove() takes a session that
 * ends off the list and removes its file. */
void moe_park_add(moe_session *session);
void moe_park_remove(moe_session *session);

/* Marks sessions that are used now: none of them is parked before the next call. */
void moe_park_use(moe_engine *engine, moe_session *const *sessions, size_t n);
/* Parks the session that has waited longest. False: there is none, or its file cannot be written,
 * which it logs. */
bool moe_park_one(moe_engine *engine);
/* ---- For session_wake.c ---- */

/* Writes pages and states with a checksum, or reads them into memory that is reserved for them. */
int moe_park_transfer(moe_session_file *file, moe_session *session);
/* Frees pages and states. The number of the first page of each group stays known. */
void moe_park_give_up(moe_session *session);
void moe_park_drop_file(moe_session *session);
void moe_park_tell(const moe_engine *engine, const char *what, const moe_session *session,
                   const char *why);

#endif
