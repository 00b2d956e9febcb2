/* SPDX-License-Identifier: MIT */
/* The product's recurrent layers in the place of the toy: what test_recurrent_layers.c does to
 * sessions is done to models that have them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "toy_recurrence.h"

static char *const *models;

const bool toy_is_real = true;
uint32_t toy_layers;
uint32_t toy_fails_in;

const char *toy_model(bool all_layers)
{
    return models[!all_layers];
}

const char *toy_draft_model(void)
{
    return models[2];
}

int toy_take_models(int n, char *const *names)
{
    models = names;
    return n == 3;
}

void toy_check_states(const moe_session *session)
{
    assert_true(moe_state_table_check(&session->states, session->n_evaluated));
}
