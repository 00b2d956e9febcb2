/* SPDX-License-Identifier: MIT */
#include "cli_bench_run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include <moe/lab.h>
#include <moe/moe.h>

#include "cli_engine.h"
#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_prompt.h"

double cli_bench_cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static int step_until(moe_engine *engine, moe_session *session, size_t n_tokens)
{
    while (moe_session_n_tokens(session) < n_tokens) {
        moe_error err = {""};
        int status = moe_step(engine, &session, 1, &err);
        if (status != MOE_OK || cli_interrupted()) {
            return status == MOE_OK ? CLI_EXIT_INTERRUPTED : cli_report(status, &err);
        }
    }
    return CLI_EXIT_OK;
}

static int feed_random(const cli_bench_run *run, moe_session *session, uint32_t n_vocab)
{
    uint64_t state = run->options.seed < 0 ? 0 : (uint64_t)run->options.seed;
    for (size_t i = 0; i < run->n_prompt; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        int32_t token = (int32_t)((state >> 33) % n_vocab);
        moe_error err = {""};
        int status = moe_session_feed(session, &token, 1, &err);
        if (status != MOE_OK) {
            return cli_report(status, &err);
        }
    }
    return CLI_EXIT_OK;
}

static int feed_text(const cli_bench_run *run, const moe_engine *engine, moe_session *session)
{
    int32_t *tokens = NULL;
    size_t n = 0;
    moe_error err = {""};
    int code = cli_prompt_tokens(engine, &run->options, run->text, &tokens, &n);
    if (code == CLI_EXIT_OK && n < run->n_prompt) {
        code = cli_fail(CLI_EXIT_FAILURE, "%s has %zu tokens: -p %zu or less, or a longer text",
                        run->options.prompt_file, n, n);
    } else if (code == CLI_EXIT_OK) {
        int status = moe_session_feed(session, tokens, run->n_prompt, &err);
        code = status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
    }
    moe_free(tokens);
    return code;
}

static int measure(const cli_bench_run *run, moe_engine *engine, moe_session *session,
                   cli_bench_outcome *out)
{
    moe_engine_stats before = {.struct_size = sizeof before};
    moe_engine_stats after = {.struct_size = sizeof after};
    uint64_t start = cli_engine_now_ns(engine);
    int code = step_until(engine, session, run->n_prompt + 1);
    uint64_t prompted = cli_engine_now_ns(engine);
    double cpu = cli_bench_cpu_seconds();
    moe_engine_get_stats(engine, &before);
    if (code == CLI_EXIT_OK) {
        code = step_until(engine, session, run->n_prompt + 1 + run->n_decode);
    }
    uint64_t ns = cli_engine_now_ns(engine) - prompted;
    cpu = cli_bench_cpu_seconds() - cpu;
    moe_engine_get_stats(engine, &after);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    double tokens = (double)run->n_decode;
    double hits = (double)(after.expert_hits - before.expert_hits);
    double misses = (double)(after.expert_misses - before.expert_misses);
    double bytes = (double)(after.bytes_read_disk - before.bytes_read_disk);
    double wait_s = cli_seconds(after.expert_wait_ns - before.expert_wait_ns);
    out->prompt_per_s = cli_per_second(run->n_prompt, prompted - start);
    out->decode_per_s = cli_per_second(run->n_decode, ns);
    out->hit_rate = hits + misses > 0 ? hits / (hits + misses) : NAN;
    out->bytes_read = bytes / tokens;
    out->stall_s = wait_s / tokens;
    out->stall_share = ns > 0 ? wait_s / cli_seconds(ns) : NAN;
    out->read_bytes_per_s = ns > 0 ? bytes / cli_seconds(ns) : NAN;
    out->cpu_s_per_gb = bytes > 0 ? cpu * 1e9 / bytes : NAN;
    out->prefetches = after.prefetches - before.prefetches;
    out->prefetches_used = after.prefetches_used - before.prefetches_used;
    out->policy_faults = after.policy_faults;
    cli_hash_tokens(moe_session_tokens(session) + run->n_prompt, run->n_decode, out->hash);
    return CLI_EXIT_OK;
}

int cli_bench_run_once(const cli_bench_run *run, cli_bench_outcome *out)
{
    moe_engine *engine = NULL;
    moe_session *session = NULL;
    moe_session_options session_options;
    moe_engine_info info = {.struct_size = sizeof info};
    moe_error err = {""};
    int status = moe_file_cache_drop(run->options.model, &out->cached_share, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    /* Disables what the run did not ask for: a sidecar found beside the model, warm slots. */
    cli_options options = run->options;
    options.quiet = true;
    options.calibration = options.calibration != NULL ? options.calibration : "none";
    options.warm_start = MOE_SWITCH_OFF;
    int code = cli_engine_open(&engine, &options, run->n_prompt + run->n_decode + 2);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    moe_engine_get_info(engine, &info);
    snprintf(out->how, sizeof out->how, "%s", info.io);
    out->slots = info.memory.expert_slots;
    moe_session_options_init(&session_options);
    session_options.sampling.temperature = 0;
    status = moe_session_create(&session, engine, &session_options, &err);
    if (status != MOE_OK) {
        code = cli_report(status, &err);
    } else if (run->text != NULL) {
        code = feed_text(run, engine, session);
    } else {
        code = feed_random(run, session, info.n_vocab);
    }
    code = code == CLI_EXIT_OK ? measure(run, engine, session, out) : code;
    moe_session_close(&session);
    moe_engine_close(&engine);
    return code;
}
