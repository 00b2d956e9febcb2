/* SPDX-License-Identifier: MIT */
/* Writes every row's routing to a file (see moe_engine_options.trace_path). A row's lists are
 * gathered layer by layer and written when its pass has succeeded. */
#ifndef MOE_ENGINE_TRACE_RECORDER_H
#define MOE_ENGINE_TRACE_RECORDER_H

#include "runtime/pass/route_observer.h"

typedef struct moe_trace_recorder moe_trace_recorder;

/* Creates the file and attaches itself to the engine. */
int moe_trace_recorder_open(moe_trace_recorder **out, moe_engine *engine, const char *path,
                            bool with_gates, moe_error *err);
void moe_trace_recorder_close(moe_trace_recorder **recorder);

#endif
