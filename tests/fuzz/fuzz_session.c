/* SPDX-License-Identifier: MIT */
/* Saved sessions of a small model, with checksums that are always right (trusting_hash.c). A
 * session that is accepted must say sane things of itself, and go on. */
#include <stdbool.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/fuzz/tiny_model.h"

static moe_engine *engine;

static void close_engine(void)
{
    moe_engine_close(&engine);
}

static void use(moe_session *session)
{
    int32_t taken[8];
    moe_session *fork = NULL;
    moe_error err = {""};
    size_t n = moe_session_n_tokens(session);
    fuzz_expect(n <= 128 && moe_session_n_pending(session) <= n);
    fuzz_expect(moe_session_take(session, taken, 8) <= 8);
    for (size_t i = 0; i < n; i++) {
        int32_t token = moe_session_tokens(session)[i];
        fuzz_expect(token >= 0 && token < 5);
    }
    if (moe_session_fork(&fork, session, &err) == MOE_OK) {
        fuzz_expect(moe_session_truncate(fork, n / 2, &err) == MOE_OK);
        moe_session_close(&fork);
    }
    /* Keys, values and logits may be anything, so the step may fail; it must say why. */
    err.message[0] = '\0';
    if (!moe_session_is_full(session) && (n > 0 || moe_session_n_pending(session) > 0)) {
        int status = moe_step(engine, &session, 1, &err);
        fuzz_expect(status == MOE_OK || err.message[0] != '\0');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fuzz_file file;
    if (engine == NULL) {
        engine = fuzz_tiny_engine();
        atexit(close_engine);
    }
    moe_session *session = NULL;
    moe_error err = {""};
    if (moe_session_load(&session, engine, fuzz_file_write(&file, data, size), &err) == MOE_OK) {
        use(session);
    } else {
        fuzz_expect(session == NULL && err.message[0] != '\0');
    }
    moe_session_close(&session);
    return 0;
}
