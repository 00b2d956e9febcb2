/* SPDX-License-Identifier: MIT */
/* How an engine's files are read outside of passes: header, calibration, weights. */
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/engine/engine_internal.h"

#define MAX_IO_TIMEOUT 86400.0 /* s */

static const struct {
    const char *name;
    moe_io_kind kind;
} io_kinds[] = {
    {"auto", MOE_IO_AUTO},
    {"uring", MOE_IO_URING},
    {"threads", MOE_IO_THREADS},
    {"sync", MOE_IO_SYNC},
};

bool moe_find_io_kind(const char *name, moe_io_kind *kind)
{
    for (size_t i = 0; i < sizeof io_kinds / sizeof io_kinds[0]; i++) {
        if (strcmp(name != NULL ? name : "auto", io_kinds[i].name) == 0) {
            *kind = io_kinds[i].kind;
            return true;
        }
    }
    return false;
}

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
    engine->reading = (moe_model_reader_options){.buffered = o->buffered_io,
                                                 .io_timeout_ns = (uint64_t)(o->io_timeout * 1e9),
                                                 .is_cancelled = opening_is_cancelled,
                                                 .cancel_user = engine,
                                                 .log = o->log,
                                                 .user = o->user};
    (void)moe_find_io_kind(o->io, &engine->reading.io);
}
