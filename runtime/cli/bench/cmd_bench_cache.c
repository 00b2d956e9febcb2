/* SPDX-License-Identifier: MIT */
/* bench cache: cache sizes x policies on the engine itself. Experts are loaded on demand only (no
 * prefetch), so hits are the policy's own. The routing is the same in all runs. It is recorded
 * once, in a run that is not counted. The simulator then computes Belady's bound from it, and the
 * hits of the policy, which the engine's hits must equal. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <moe/model_file.h>
#include <moe/moe.h>
#include <moe/trace.h>

#include "cli_bench_run.h"
#include "cli_engine.h"
#include "cli_interrupt.h"
#include "cli_json.h"
#include "cli_sweep_model.h"
#include "cli_trace.h"
#include "bench_commands.h"

enum { CACHE, POLICY };
enum {
    DECODE_PER_S,
    HIT_PERCENT,
    REGRET,
    MIB_PER_TOKEN,
    STALL_MS,
    STALL_PERCENT,
    CPU_S_PER_GB,
    SIMULATED_PERCENT,
    SLOTS,
    POLICY_FAULTS,
    CACHED_PERCENT,
    HOW,
    HASH,
    N_MEASURES
};
static const cli_measure measures[N_MEASURES] = {
    [DECODE_PER_S] = {"tokens_per_s", 2, false},
    [HIT_PERCENT] = {"hit_percent", 2, false},
    [REGRET] = {"regret_points", 2, false},
    [MIB_PER_TOKEN] = {"mib_per_token", 3, false},
    [STALL_MS] = {"stall_ms_per_token", 3, false},
    [STALL_PERCENT] = {"stall_percent", 1, false},
    [CPU_S_PER_GB] = {"cpu_s_per_gb", 3, false},
    [SIMULATED_PERCENT] = {"simulated_hit_percent", 2, true},
    [SLOTS] = {"slots", 0, true},
    [POLICY_FAULTS] = {"policy_faults", 0, true},
    [CACHED_PERCENT] = {"file_cached_percent", 2, true},
    [HOW] = {"how", CLI_MEASURE_TEXT, true},
    [HASH] = {"tokens_xxh128", CLI_MEASURE_TEXT, true},
};

typedef struct cache_bench {
    cli_sweep_model model; /* first member: the sweep's user pointer is this struct */
    moe_trace *trace;      /* of the routing; NULL before the first run */
    bool has_classes;      /* experts of several sizes: the simulator then gives no bound */
} cache_bench;

/* ---- The routing ---- */

static int read_trace(cache_bench *b, const char *path)
{
    moe_trace_open_options options;
    moe_error err = {""};
    moe_trace_open_options_init(&options);
    options.path = path;
    options.format = MOE_TRACE_JSONL;
    int status = moe_trace_open(&b->trace, &options, &err);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

static int record_trace(cache_bench *b)
{
    char path[] = P_tmpdir "/moe-offload-routing-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0) {
        return cli_fail(CLI_EXIT_FAILURE, "%s: %s", path, strerror(errno));
    }
    close(fd);
    cli_bench_run *run = &b->model.run;
    cli_bench_outcome out;
    run->options = *b->model.sweep.options;
    run->options.prefetch = MOE_SWITCH_OFF;
    run->options.trace = path;
    int code = cli_bench_run_once(run, &out);
    code = code == CLI_EXIT_OK ? read_trace(b, path) : code;
    unlink(path);
    return code;
}

/* The hit rate of decoding, in percent; NAN if the simulator does not apply. */
static double simulate(const cache_bench *b, const char *policy, uint64_t slots)
{
    moe_simulation simulation;
    moe_simulation_result result = {.struct_size = sizeof result};
    moe_trace_info info = {.struct_size = sizeof info};
    moe_trace_get_info(b->trace, &info);
    moe_simulation_init(&simulation);
    simulation.policy = policy;
    simulation.n_slots = (uint32_t)slots;
    simulation.warm_up = info.n_passes - b->model.run.n_decode;
    bool ok = !b->has_classes && slots > 0 && info.n_passes > b->model.run.n_decode &&
              moe_simulate(b->trace, &simulation, &result, NULL) == MOE_OK;
    return ok ? 100 * result.hit_rate : NAN;
}

/* ---- A measurement ---- */

static int run(cli_sweep *s, const char *const *values, size_t repetition, cli_measured *results)
{
    (void)repetition;
    cache_bench *b = s->user;
    cli_bench_run *r = &b->model.run;
    cli_bench_outcome out = {.hit_rate = NAN};
    int code = b->trace != NULL ? CLI_EXIT_OK : record_trace(b);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    r->options = *s->options;
    r->options.prefetch = MOE_SWITCH_OFF;
    r->options.policy = values[POLICY];
    r->options.expert_cache = (cli_size){.share = cli_number_of(values[CACHE]) / 100};
    code = cli_bench_run_once(r, &out);
    results[DECODE_PER_S].number = out.decode_per_s;
    results[HIT_PERCENT].number = 100 * out.hit_rate;
    results[REGRET].number = simulate(b, "belady", out.slots) - 100 * out.hit_rate;
    results[MIB_PER_TOKEN].number = out.bytes_read / 1048576;
    results[STALL_MS].number = 1000 * out.stall_s;
    results[STALL_PERCENT].number = 100 * out.stall_share;
    results[CPU_S_PER_GB].number = out.cpu_s_per_gb;
    results[POLICY_FAULTS].number = (double)out.policy_faults;
    /* The simulator has no calibration, so it cannot reproduce a policy that uses one. */
    bool knows_more =
        s->options->calibration != NULL && strcmp(s->options->calibration, "none") != 0;
    results[SIMULATED_PERCENT].number = knows_more ? NAN : simulate(b, values[POLICY], out.slots);
    results[SLOTS].number = (double)out.slots;
    results[CACHED_PERCENT].number = out.cached_share >= 0 ? 100 * out.cached_share : NAN;
    snprintf(results[HOW].text, CLI_SWEEP_TEXT, "%s", out.how);
    snprintf(results[HASH].text, CLI_SWEEP_TEXT, "%s", out.hash);
    return code;
}

/* ---- Options ---- */

static int add_axes(cli_sweep *s)
{
    static const cli_axis cache = {.name = "expert_cache",
                                   .option = "--expert-cache",
                                   .is_number = true,
                                   .wants = "percentages such as 25%",
                                   .is_valid = cli_is_share};
    static const cli_axis policy = {.name = "policy", .option = "--policy"};
    char all[1024] = "";
    for (uint32_t i = 0; moe_policy_name(i) != NULL; i++) {
        size_t size = strlen(all);
        if ((moe_policy_needs(i) & (MOE_POLICY_NEEDS_HOTNESS | MOE_POLICY_NEEDS_FUTURE)) == 0) {
            snprintf(all + size, sizeof all - size, "%s%s", size > 0 ? "," : "",
                     moe_policy_name(i));
        }
    }
    int code = cli_sweep_add_axis(s, &cache, s->options->cache_sizes, "15%,25%,50%,100%");
    return code == CLI_EXIT_OK ? cli_sweep_add_axis(s, &policy, s->options->policies, all) : code;
}

static int describe(cache_bench *b)
{
    const cli_options *o = b->model.sweep.options;
    moe_file *file = NULL;
    moe_file_summary summary = {.struct_size = sizeof summary};
    moe_error err = {""};
    char text[64];
    int code = cli_sweep_model_describe(&b->model);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    int status = moe_file_open(&file, o->model, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    moe_file_get_summary(file, &summary);
    moe_file_close(&file);
    b->has_classes = summary.smallest_expert_bytes != summary.largest_expert_bytes;
    snprintf(text, sizeof text, "%u", (unsigned)o->threads);
    cli_json_text(b->model.sweep.identity, "threads", o->threads > 0 ? text : "cores");
    cli_json_text(b->model.sweep.identity, "prefetch", "off");
    return CLI_EXIT_OK;
}

int cmd_bench_cache(const cli_options *options)
{
    unsigned format = cli_output_format(options);
    int code = CLI_EXIT_OK;
    if (options->prompt_file == NULL && options->route_trace == NULL) {
        code = cli_fail(CLI_EXIT_USAGE, "bench cache: give a text with -f FILE or a recorded "
                                        "routing with --route-trace FILE: routing of random "
                                        "tokens says little about caches");
    }
    cache_bench *b = code == CLI_EXIT_OK ? calloc(1, sizeof *b) : NULL;
    if (b == NULL) {
        return code != CLI_EXIT_OK ? code : cli_fail(CLI_EXIT_FAILURE, "out of memory");
    }
    b->model.sweep = (cli_sweep){.bench = "cache",
                                 .options = options,
                                 .measures = measures,
                                 .n_measures = N_MEASURES,
                                 .plotted = "hit_percent",
                                 .run = run,
                                 .same = "tokens_xxh128",
                                 .user = b,
                                 .format = format};
    cli_interrupt_install();
    code = add_axes(&b->model.sweep);
    code = code == CLI_EXIT_OK ? describe(b) : code;
    code = code == CLI_EXIT_OK ? cli_sweep_run(&b->model.sweep) : code;
    moe_trace_close(&b->trace);
    cli_sweep_model_close(&b->model);
    free(b);
    return code;
}
