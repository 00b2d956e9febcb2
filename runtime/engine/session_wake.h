/* SPDX-License-Identifier: MIT */
/* Brings parked sessions (session_park.h) back before they are used. */
#ifndef MOE_SESSION_WAKE_H
#define MOE_SESSION_WAKE_H

#include "runtime/engine/engine_state.h"

/* Marks the sessions as used, and restores each to its state before it was parked. MOE_ERR_BUDGET,
 * MOE_ERR_MEMORY: memory is short; the remaining sessions are still parked. */
int moe_park_wake(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err);

#endif
