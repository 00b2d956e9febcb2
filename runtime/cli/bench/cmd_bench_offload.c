/* SPDX-License-Identifier: MIT */
/* bench offload: one model under cache sizes x policies x threads x I/O engines x blocks x depths x
 * prefetch. Every run opens the model again, evaluates the same prompt and decodes greedily; all
 * runs must write the same tokens, or the command fails. Before each run the model is dropped from
 * the page cache, and experts are read past it (O_DIRECT) if the file system allows. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/moe.h>

#include "cli_bench_run.h"
#include "cli_interrupt.h"
#include "cli_sweep_model.h"
#include "cli_trace.h"
#include "bench_commands.h"

enum { CACHE, POLICY, THREADS, IO, BLOCK, DEPTH, PREFETCH };
enum {
    PROMPT_PER_S,
    DECODE_PER_S,
    HIT_PERCENT,
    MIB_PER_TOKEN,
    STALL_MS,
    STALL_PERCENT,
    READ_GB_PER_S,
    CPU_S_PER_GB,
    PREFETCHES,
    PREFETCHES_USED,
    CACHED_PERCENT,
    HOW,
    HASH,
    N_MEASURES
};
static const cli_measure measures[N_MEASURES] = {
    [PROMPT_PER_S] = {"prompt_tokens_per_s", 2, true},
    [DECODE_PER_S] = {"tokens_per_s", 2, false},
    [HIT_PERCENT] = {"hit_percent", 2, false},
    [MIB_PER_TOKEN] = {"mib_per_token", 3, false},
    [STALL_MS] = {"stall_ms_per_token", 3, false},
    [STALL_PERCENT] = {"stall_percent", 1, false},
    [READ_GB_PER_S] = {"read_gb_per_s", 3, false},
    [CPU_S_PER_GB] = {"cpu_s_per_gb", 3, false},
    [PREFETCHES] = {"prefetches", 0, true},
    [PREFETCHES_USED] = {"prefetches_used", 0, true},
    [CACHED_PERCENT] = {"file_cached_percent", 2, true},
    [HOW] = {"how", CLI_MEASURE_TEXT, true},
    [HASH] = {"tokens_xxh128", CLI_MEASURE_TEXT, true},
};

static const char *const switches[] = {"auto", "on", "off"};

static unsigned switch_of(const char *text)
{
    unsigned i = 0;
    while (i < 3 && strcmp(text, switches[i]) != 0) {
        i++;
    }
    return i;
}

static bool is_switch(const char *text)
{
    return switch_of(text) < 3;
}

static bool is_io(const char *text)
{
    return strcmp(text, "auto") == 0 || strcmp(text, "uring") == 0 ||
           strcmp(text, "threads") == 0 || strcmp(text, "sync") == 0;
}

static bool is_threads(const char *text)
{
    return strcmp(text, "cores") == 0 || cli_is_count(text);
}

static int add_axes(cli_sweep *s)
{
    static const cli_axis axes[] = {
        {.name = "expert_cache",
         .option = "--expert-cache",
         .is_number = true,
         .wants = "percentages such as 25%",
         .is_valid = cli_is_share},
        {.name = "policy", .option = "--policy"},
        {.name = "threads",
         .option = "-t",
         .wants = "numbers from 1 to 1024, or cores",
         .is_valid = is_threads},
        {.name = "io",
         .option = "--io",
         .wants = "auto, uring, threads or sync",
         .is_valid = is_io},
        {.name = "block",
         .option = "--block",
         .is_number = true,
         .wants = "sizes such as 256K, whole 4K up to 64M",
         .is_valid = cli_is_block},
        {.name = "depth",
         .option = "--depth",
         .is_number = true,
         .wants = "numbers from 1 to 1024",
         .is_valid = cli_is_count},
        {.name = "prefetch",
         .option = "--prefetch",
         .wants = "auto, on or off",
         .is_valid = is_switch},
    };
    const cli_options *o = s->options;
    const char *const lists[] = {o->cache_sizes, o->policies, o->thread_counts, o->io,
                                 o->blocks,      o->depths,   o->prefetches};
    static const char *const standard[] = {
        "15%,25%,50%,100%", "lfru", "cores", "auto", "1M", "16", "auto"};
    int code = CLI_EXIT_OK;
    for (size_t i = 0; i < sizeof axes / sizeof axes[0] && code == CLI_EXIT_OK; i++) {
        code = cli_sweep_add_axis(s, &axes[i], lists[i], standard[i]);
    }
    return code;
}

static int run(cli_sweep *s, const char *const *values, size_t repetition, cli_measured *results)
{
    (void)repetition;
    cli_sweep_model *m = s->user;
    cli_bench_outcome out = {.hit_rate = NAN};
    m->run.options = *s->options;
    cli_options *o = &m->run.options;
    o->expert_cache = (cli_size){.share = cli_number_of(values[CACHE]) / 100};
    o->policy = values[POLICY];
    o->threads =
        strcmp(values[THREADS], "cores") == 0 ? 0 : (uint64_t)cli_number_of(values[THREADS]);
    o->io = values[IO];
    o->io_block = (cli_size){.bytes = (uint64_t)cli_number_of(values[BLOCK])};
    /* The sync engine reads one piece at a time at any depth. */
    bool is_sync = strcmp(values[IO], "sync") == 0;
    o->engine_depth = is_sync ? 1 : (uint64_t)cli_number_of(values[DEPTH]);
    o->prefetch = switch_of(values[PREFETCH]);
    int code = cli_bench_run_once(&m->run, &out);
    results[PROMPT_PER_S].number = out.prompt_per_s;
    results[DECODE_PER_S].number = out.decode_per_s;
    results[HIT_PERCENT].number = 100 * out.hit_rate;
    results[MIB_PER_TOKEN].number = out.bytes_read / 1048576;
    results[STALL_MS].number = 1000 * out.stall_s;
    results[STALL_PERCENT].number = 100 * out.stall_share;
    results[READ_GB_PER_S].number = out.read_bytes_per_s / 1e9;
    results[CPU_S_PER_GB].number = out.cpu_s_per_gb;
    results[PREFETCHES].number = (double)out.prefetches;
    results[PREFETCHES_USED].number = (double)out.prefetches_used;
    results[CACHED_PERCENT].number = out.cached_share >= 0 ? 100 * out.cached_share : NAN;
    snprintf(results[HOW].text, CLI_SWEEP_TEXT, "%s", out.how);
    snprintf(results[HASH].text, CLI_SWEEP_TEXT, "%s", out.hash);
    return code;
}

int cmd_bench_offload(const cli_options *options)
{
    cli_sweep_model *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory");
    }
    m->sweep = (cli_sweep){.bench = "offload",
                           .options = options,
                           .measures = measures,
                           .n_measures = N_MEASURES,
                           .plotted = "tokens_per_s",
                           .run = run,
                           .same = "tokens_xxh128",
                           .user = m};
    cli_interrupt_install();
    m->sweep.format = cli_output_format(options);
    int code = add_axes(&m->sweep);
    code = code == CLI_EXIT_OK ? cli_sweep_model_describe(m) : code;
    code = code == CLI_EXIT_OK ? cli_sweep_run(&m->sweep) : code;
    cli_sweep_model_close(m);
    free(m);
    return code;
}
