/* SPDX-License-Identifier: MIT */
/* How an engine reads its files outside of passes: the header, the calibration, and weights. */
#include "runtime/base/error.h"
#include "runtime/engine/engine_parts.h"

#define MAX_IO_TIMEOUT 86400.0 /* s */

int moe_engine_check_timeout(const moe_engine_options *o, moe_error *err)
{
    return o->io_timeout >= 0.0 && o->io_timeout <= MAX_IO_TIMEOUT
               ? MOE_OK
               : moe_fail(err, MOE_ERR_ARGUMENT,
                          "an I/O time-out of %g s; use more than 0, up to %g", o->io_timeout,
                          MAX_IO_TIMEOUT);
}

/* A waiting reader calls this to learn whether to continue. */
static bool opening_is_cancelled(void *user)
{
    const moe_engine *engine = user;
    return engine->progress != NULL && !engine->progress(0.0, engine->user);
}

void moe_engine_set_reading(moe_engine *engine, const moe_engine_options *o)
{
    engine->reading = (moe_model_reader_options){.io = o->io,
                                                 .buffered = o->buffered_io,
                                                 .io_timeout_ns = (uint64_t)(o->io_timeout * 1e9),
                                                 .is_cancelled = opening_is_cancelled,
                                                 .cancel_user = engine,
                                                 .log = o->log,
                                                 .user = o->user};
}
