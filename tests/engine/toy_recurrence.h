/* SPDX-License-Identifier: MIT */
/* A recurrent mixer for tests, in the place of the product's. Its state begins with two numbers
 * that the test can compute from the tokens alone: how many there were, and a checksum of them. The
 * rest depends on all hidden states so far, and so does what the layer adds to the stream.
 *
 * Linked with the wraps of tests/engine/meson.build: models that are opened while toy_layers is not
 * 0 have recurrent layers where its bits are set. */
#ifndef MOE_TESTS_TOY_RECURRENCE_H
#define MOE_TESTS_TOY_RECURRENCE_H

#include "runtime/engine/engine_state.h"

/* real_recurrence.c has the product's own layers in its place, and nothing of it fails on request.
 */
const char *toy_model(bool all_layers); /* a folder of tests/oracle */
const char *toy_draft_model(void);      /* ... with the same vocabulary */
/* What the command names: these three folders, or none for the toy; 0: it is something else. */
int toy_take_models(int n, char *const *names);
extern const bool toy_is_real;

extern uint32_t toy_layers;   /* bit l: layer l is recurrent */
extern uint32_t toy_fails_in; /* calls until the mixer fails once; 0: never */

/* That every layer's state of the session is that of its first n_evaluated tokens. */
void toy_check_states(const moe_session *session);

#endif
