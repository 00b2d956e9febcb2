/* SPDX-License-Identifier: MIT */
/* What tests of panels share. */
#ifndef MOE_TESTS_PANEL_FIXTURE_H
#define MOE_TESTS_PANEL_FIXTURE_H

#include "runtime/engine/engine_state.h"

enum { MOST_LONG = 600, N_SHORT = 9, N_WRITTEN = 12, CONTEXT = 2048, MANY = 1000000, KIB = 1024 };

extern const char *model_path;
extern uint32_t n_long; /* rows of a long prompt: MOST_LONG, fewer in a small test */

/* argv[1]: the model. */
void panel_fixture_open(int argc, char **argv);

/* What the engine has read of experts, and moved over a link. */
typedef struct traffic {
    uint64_t read, moved;
} traffic;

/* Which experts a prompt uses: those that an engine with room for all of them then has. */
typedef struct used_experts {
    traffic bytes;
    uint8_t *is; /* [n_all] */
    uint32_t n, n_all;
} used_experts;

moe_engine_options options_of(uint32_t chunk, uint32_t panel, double share);
void prompt_of(moe_engine *engine, uint32_t n, uint32_t seed, int32_t *prompt);
moe_session *fed_session(moe_engine *engine, uint32_t n, uint32_t seed);
void step(moe_engine *engine, moe_session *const *sessions, size_t n);
traffic traffic_of(moe_engine *engine);
traffic evaluate(moe_engine *engine, uint32_t n, uint32_t seed);
void check_returned(moe_engine *engine);
uint8_t *tiers_of(const moe_engine *engine, uint32_t *n);
used_experts used_by(uint32_t n, uint32_t seed, const char *device);
void write_alone(moe_engine *engine, uint32_t n, uint32_t seed, int32_t *out);
float *logits_behind(moe_engine *engine, moe_session *session);

#endif
