/* SPDX-License-Identifier: MIT */
/* Writes every row's routing to a file (see moe_lab_options.trace_path). A row's lists are
 * gathered layer by layer and written when its pass has succeeded. */
#ifndef MOE_LAB_TRACE_RECORDER_H
#define MOE_LAB_TRACE_RECORDER_H

#include "runtime/draft/speculation.h"
#include "runtime/pass/pass.h"

typedef struct moe_trace_recorder moe_trace_recorder;

/* Creates the file and adds an observer to the runner. speculation: NULL without; its forecasts are
 * recorded, too. */
int moe_trace_recorder_open(moe_trace_recorder **out, moe_runner *runner,
                            const moe_speculation *speculation, const char *path, bool with_gates,
                            moe_error *err);
void moe_trace_recorder_close(moe_trace_recorder **recorder);

#endif
