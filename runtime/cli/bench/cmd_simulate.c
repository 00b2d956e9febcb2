/* SPDX-License-Identifier: MIT */
/* simulate: a trace x policies x sizes x ways to split the slots. It always computes Belady's bound
 * for each size and split, so that it can print regrets. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/moe.h>
#include <moe/trace.h>

#include "cli_engine.h"
#include "cli_json.h"
#include "cli_plot_style.h"
#include "cli_trace.h"
#include "bench_commands.h"

#define MAX_POLICIES  64
#define MAX_SIZES     64
#define NAME_SIZE     512
#define DEFAULT_SIZES "5%,10%,25%,50%"

enum { SPLIT_GLOBAL, SPLIT_PER_LAYER, SPLIT_BOTH };

typedef struct cache_size {
    double share; /* or */
    uint32_t n_slots;
} cache_size;

typedef struct sweep {
    const cli_options *options;
    moe_trace *trace;
    moe_trace_info info;
    char policies[MAX_POLICIES][NAME_SIZE];
    size_t n_policies;
    cache_size sizes[MAX_SIZES];
    size_t n_sizes;
    bool splits[2]; /* [SPLIT_GLOBAL], [SPLIT_PER_LAYER] */
    int32_t lookahead;
} sweep;

/* One line of the result. */
typedef struct sweep_row {
    const char *policy;
    bool per_layer;
    double share;  /* of all slots that could be used */
    double regret; /* Belady's hit rate minus this one; with prefetch not a bound, printed anyway */
    moe_simulation_result result;
} sweep_row;

/* ---- Options ---- */

/* Calls take() with each part of a comma-separated list. */
static int each_part(const char *list, const char *option, sweep *s,
                     int (*take)(sweep *s, const char *part))
{
    while (true) {
        char part[NAME_SIZE];
        size_t size = strcspn(list, ",");
        if (size == 0 || size >= sizeof part) {
            return cli_fail(CLI_EXIT_USAGE, "simulate: %s: an empty or overlong part in the list",
                            option);
        }
        memcpy(part, list, size);
        part[size] = '\0';
        int code = take(s, part);
        if (code != CLI_EXIT_OK || list[size] == '\0') {
            return code;
        }
        list += size + 1;
    }
}

static int take_policy(sweep *s, const char *name)
{
    if (s->n_policies == MAX_POLICIES) {
        return cli_fail(CLI_EXIT_USAGE, "simulate: --policy: at most %d of them", MAX_POLICIES);
    }
    snprintf(s->policies[s->n_policies++], NAME_SIZE, "%s", name);
    return CLI_EXIT_OK;
}

/* Takes all policies that the trace allows. */
static int take_all_policies(sweep *s)
{
    int code = CLI_EXIT_OK;
    for (uint32_t i = 0; moe_policy_name(i) != NULL && code == CLI_EXIT_OK; i++) {
        uint32_t needs = moe_policy_needs(i);
        if (((needs & MOE_POLICY_NEEDS_HOTNESS) == 0 || s->options->calibrate_percent > 0) &&
            ((needs & MOE_POLICY_NEEDS_GATES) == 0 || s->info.has_gates)) {
            code = take_policy(s, moe_policy_name(i));
        }
    }
    return code;
}

static int take_size(sweep *s, const char *text)
{
    char *end;
    double number = strtod(text, &end);
    bool is_share = strcmp(end, "%") == 0;
    bool valid = end != text && (is_share ? number > 0 && number <= 100
                                          : *end == '\0' && number >= 1 && number <= 4e9 &&
                                                number == (double)(uint32_t)number);
    if (!valid || s->n_sizes == MAX_SIZES) {
        return cli_fail(CLI_EXIT_USAGE,
                        "--expert-cache must be a list of at most %d percentages or numbers of "
                        "slots like 5%%,10%%,512, not '%s'",
                        MAX_SIZES, text);
    }
    s->sizes[s->n_sizes++] =
        is_share ? (cache_size){number / 100, 0} : (cache_size){0, (uint32_t)number};
    return CLI_EXIT_OK;
}

static int read_lookahead(sweep *s)
{
    const char *text = s->options->lookahead;
    s->lookahead = MOE_LOOKAHEAD_NONE;
    if (text == NULL) {
        return CLI_EXIT_OK;
    }
    if (strcmp(text, "recorded") == 0) {
        s->lookahead = MOE_LOOKAHEAD_RECORDED;
        return CLI_EXIT_OK;
    }
    char *end;
    long n = strtol(text, &end, 10);
    if (end == text || *end != '\0' || n < 0 || n > 31) {
        return cli_fail(CLI_EXIT_USAGE,
                        "simulate: --lookahead must be a number from 0 to 31, or 'recorded', not "
                        "'%s'",
                        text);
    }
    s->lookahead = (int32_t)n;
    return CLI_EXIT_OK;
}

static int read_sweep(sweep *s)
{
    const cli_options *o = s->options;
    const char *policies = o->policies == NULL ? "all" : o->policies;
    s->splits[SPLIT_GLOBAL] = o->split != SPLIT_PER_LAYER;
    s->splits[SPLIT_PER_LAYER] = o->split != SPLIT_GLOBAL;
    int code = strcmp(policies, "all") == 0 ? take_all_policies(s)
                                            : each_part(policies, "--policy", s, take_policy);
    if (code == CLI_EXIT_OK) {
        code = each_part(o->cache_sizes == NULL ? DEFAULT_SIZES : o->cache_sizes, "--expert-cache",
                         s, take_size);
    }
    return code;
}

/* ---- Running ---- */

static int simulate_one(const sweep *s, const char *policy, cache_size size, bool per_layer,
                        moe_simulation_result *result)
{
    const cli_options *o = s->options;
    moe_error err = {""};
    moe_simulation simulation;
    moe_simulation_init(&simulation);
    simulation.policy = policy;
    simulation.cache_share = size.share;
    simulation.n_slots = size.n_slots;
    simulation.per_layer = per_layer;
    simulation.is_sequential = o->order == 1;
    simulation.seed = o->seed < 0 ? 0 : (uint64_t)o->seed;
    simulation.calibration = o->calibrate_percent / 100;
    simulation.warm_up = o->warm_up;
    simulation.prefetch_recall = o->prefetch_recall;
    if (strcmp(policy, "belady") != 0) { /* Belady's bound needs no forecasts */
        simulation.lookahead = s->lookahead;
        simulation.lookahead_stands = o->lookahead_stands;
        simulation.lookahead_recall = o->lookahead_recall;
        simulation.lookahead_recall_wrong = o->lookahead_recall_wrong;
        simulation.host_slots = (uint32_t)o->host_slots; /* nor can it use them */
    }
    simulation.tiers = (moe_tier_use)o->tiers;
    simulation.link_bytes_per_s = o->link_bandwidth;
    simulation.link_latency_s = o->link_latency;
    simulation.expert_bytes = o->expert_bytes;
    simulation.bytes_per_s = o->disk_bandwidth;
    simulation.latency_s = o->disk_latency;
    simulation.depth = (uint32_t)o->io_depth;
    simulation.compute_s = o->compute_time;
    result->struct_size = sizeof *result;
    int status = moe_simulate(s->trace, &simulation, result, &err);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

/* Runs all policies with slots of this size; regret is against Belady's bound. */
static int run_policies(const sweep *s, cache_size size, bool per_layer, sweep_row *rows,
                        size_t *n_rows, cli_progress *progress)
{
    const size_t n_splits = (size_t)s->splits[SPLIT_GLOBAL] + s->splits[SPLIT_PER_LAYER];
    const double n_all = (double)(s->n_policies * s->n_sizes * n_splits);
    moe_simulation_result bound = {.struct_size = sizeof bound};
    int code = simulate_one(s, "belady", size, per_layer, &bound);
    for (size_t p = 0; p < s->n_policies && code == CLI_EXIT_OK; p++) {
        sweep_row *row = &rows[*n_rows];
        row->policy = s->policies[p];
        row->per_layer = per_layer;
        code = simulate_one(s, row->policy, size, per_layer, &row->result);
        row->regret = bound.hit_rate - row->result.hit_rate;
        row->share = size.share > 0 ? size.share
                                    : (double)row->result.n_slots /
                                          ((double)s->info.n_layer * s->info.n_expert);
        *n_rows += code == CLI_EXIT_OK;
        cli_progress_show(progress, (double)*n_rows / n_all);
    }
    return code;
}

static int run_sweep(const sweep *s, sweep_row *rows, size_t *n_rows)
{
    cli_progress progress;
    int code = CLI_EXIT_OK;
    *n_rows = 0;
    cli_progress_start(&progress, s->options, "simulating");
    for (size_t z = 0; z < s->n_sizes; z++) {
        for (int split = 0; split < SPLIT_BOTH && code == CLI_EXIT_OK; split++) {
            if (s->splits[split]) {
                code =
                    run_policies(s, s->sizes[z], split == SPLIT_PER_LAYER, rows, n_rows, &progress);
            }
        }
    }
    cli_progress_end(&progress);
    return code;
}

/* ---- Printing ---- */

static const char *split_name(const sweep_row *row)
{
    return row->per_layer ? "per-layer" : "global";
}

static double per_token(const sweep_row *row, double total)
{
    return total / (double)row->result.n_tokens;
}

static double share_of(uint64_t part, uint64_t whole)
{
    return whole == 0 ? 0 : (double)part / (double)whole;
}

static void print_table(const sweep *s, const sweep_row *rows, size_t n_rows)
{
    printf("%" PRIu64 " tokens in %" PRIu64 " passes, %u layers, %u of %u experts\n\n",
           s->info.n_rows, s->info.n_passes, s->info.n_layer, s->info.n_expert_used,
           s->info.n_expert);
    printf("%-14s %-10s %7s %8s %8s %8s %12s %12s\n", "policy", "split", "slots", "cache %",
           "hit %", "regret", "MiB/token", "stall ms/tok");
    for (size_t i = 0; i < n_rows; i++) {
        const sweep_row *row = &rows[i];
        printf("%-14s %-10s %7u %8.2f %8.2f %8.2f %12.2f %12.3f\n", row->policy, split_name(row),
               row->result.n_slots, 100 * row->share, 100 * row->result.hit_rate, 100 * row->regret,
               row->result.bytes_per_token / 1048576, 1e3 * per_token(row, row->result.stall_s));
    }
    for (size_t i = 0; i < n_rows && s->options->host_slots > 0; i++) {
        const moe_simulation_result *r = &rows[i].result;
        if (i == 0) {
            printf("\nhost memory, %" PRIu64 " slots\n%-14s %7s %8s %12s %12s %12s\n",
                   s->options->host_slots, "policy", "slots", "hit %", "MiB/token", "saved/token",
                   "of hits, %");
        }
        printf("%-14s %7u %8.2f %12.2f %12.2f %12.2f\n", rows[i].policy, r->n_slots,
               100 * share_of(r->host_hits, r->misses), r->disk_bytes_per_token / 1048576,
               per_token(&rows[i], (double)r->demoted),
               100 * share_of(r->demoted_hits, r->host_hits));
    }
    for (size_t i = 0; i < n_rows; i++) {
        if (rows[i].result.policy_faults > 0) {
            printf("\n%s, %u slots: %" PRIu64 " nominations could not be evicted (policy faults)\n",
                   rows[i].policy, rows[i].result.n_slots, rows[i].result.policy_faults);
        }
    }
}

static void print_csv(const sweep_row *rows, size_t n_rows)
{
    puts("policy,split,slots,cache_share,hits,misses,hit_rate,regret,evictions,prefetches,"
         "prefetches_used,prefetches_wasted,extra_waves,bytes_per_token,stall_s_per_token,"
         "total_s_per_token,policy_faults,host_hits,host_misses,demoted,demoted_hits,"
         "disk_bytes_per_token");
    for (size_t i = 0; i < n_rows; i++) {
        const sweep_row *row = &rows[i];
        const moe_simulation_result *r = &row->result;
        printf("%s,%s,%u,%.6f,%" PRIu64 ",%" PRIu64 ",%.6f,%.6f,%" PRIu64 ",%" PRIu64 ",%" PRIu64
               ",%" PRIu64 ",%" PRIu64 ",%.1f,%.9f,%.9f,%" PRIu64 ",%" PRIu64 ",%" PRIu64
               ",%" PRIu64 ",%" PRIu64 ",%.1f\n",
               row->policy, split_name(row), r->n_slots, row->share, r->hits, r->misses,
               r->hit_rate, row->regret, r->evictions, r->prefetches, r->prefetches_used,
               r->prefetches_wasted, r->extra_waves, r->bytes_per_token, per_token(row, r->stall_s),
               per_token(row, r->total_s), r->policy_faults, r->host_hits, r->host_misses,
               r->demoted, r->demoted_hits, r->disk_bytes_per_token);
    }
}

static int print_json(const sweep *s, const sweep_row *rows, size_t n_rows)
{
    struct json_object *object = json_object_new_object();
    struct json_object *list = json_object_new_array();
    cli_json_u64(object, "n_tokens", s->info.n_rows);
    cli_json_u64(object, "n_passes", s->info.n_passes);
    cli_json_u64(object, "n_layer", s->info.n_layer);
    cli_json_u64(object, "n_expert", s->info.n_expert);
    cli_json_u64(object, "n_expert_used", s->info.n_expert_used);
    for (size_t i = 0; i < n_rows; i++) {
        const moe_simulation_result *r = &rows[i].result;
        struct json_object *row = json_object_new_object();
        cli_json_text(row, "policy", rows[i].policy);
        cli_json_text(row, "split", split_name(&rows[i]));
        cli_json_u64(row, "slots", r->n_slots);
        cli_json_real(row, "cache_share", rows[i].share);
        cli_json_u64(row, "hits", r->hits);
        cli_json_u64(row, "misses", r->misses);
        cli_json_real(row, "hit_rate", r->hit_rate);
        cli_json_real(row, "regret", rows[i].regret);
        cli_json_u64(row, "evictions", r->evictions);
        cli_json_u64(row, "prefetches", r->prefetches);
        cli_json_u64(row, "prefetches_used", r->prefetches_used);
        cli_json_u64(row, "prefetches_wasted", r->prefetches_wasted);
        cli_json_u64(row, "extra_waves", r->extra_waves);
        cli_json_u64(row, "policy_faults", r->policy_faults);
        cli_json_real(row, "bytes_per_token", r->bytes_per_token);
        cli_json_u64(row, "host_hits", r->host_hits);
        cli_json_u64(row, "host_misses", r->host_misses);
        cli_json_u64(row, "demoted", r->demoted);
        cli_json_u64(row, "demoted_hits", r->demoted_hits);
        cli_json_real(row, "disk_bytes_per_token", r->disk_bytes_per_token);
        cli_json_real(row, "stall_s_per_token", per_token(&rows[i], r->stall_s));
        cli_json_real(row, "total_s_per_token", per_token(&rows[i], r->total_s));
        cli_json_append(list, row);
    }
    cli_json_put(object, "results", list);
    return cli_json_print(object, stdout);
}

static void write_point(FILE *data, const sweep_row *row, double hit_rate)
{
    fprintf(data, "%.4f %.4f %.4f %.4f\n", 100 * row->share, 100 * hit_rate, 100 * row->regret,
            row->result.bytes_per_token / 1048576);
}

/* Writes a block of data, and its curve in the script. policy: NULL for Belady's bound, which
 * follows from the regret of every row. */
static void write_curve(const sweep *s, const sweep_row *rows, size_t n_rows, const char *policy,
                        int split, unsigned index, FILE *data, FILE *script)
{
    const char *name = policy != NULL ? policy : "belady (the bound)";
    const bool is_split = s->splits[SPLIT_GLOBAL] && s->splits[SPLIT_PER_LAYER];
    fprintf(script, "%s    '%s.dat' index %u using 1:2 with linespoints title '%s%s'",
            index == 0 ? "" : ", \\\n", s->options->output, index, name,
            !is_split                  ? ""
            : split == SPLIT_PER_LAYER ? ", per layer"
                                       : ", global");
    fprintf(data, "# %s, %s: cache %%, hit %%, regret %%, MiB per token\n", name,
            split == SPLIT_PER_LAYER ? "per-layer" : "global");
    for (size_t i = 0; i < n_rows; i++) {
        const sweep_row *row = &rows[i];
        if (row->per_layer == (split == SPLIT_PER_LAYER) &&
            row->policy == (policy != NULL ? policy : s->policies[0])) {
            write_point(data, row, row->result.hit_rate + (policy != NULL ? 0 : row->regret));
        }
    }
    fprintf(data, "\n\n");
}

static bool has_belady(const sweep *s)
{
    size_t p = 0;
    while (p < s->n_policies && strcmp(s->policies[p], "belady") != 0) {
        p++;
    }
    return p < s->n_policies;
}

static void write_head(const sweep *s, FILE *script)
{
    fprintf(script,
            "set terminal svg size 900,540 dynamic background '#ffffff'\nset output '%s.svg'\n",
            s->options->output);
    cli_plot_style(script);
    fprintf(script,
            "set title '%" PRIu64 " tokens, %u layers, %u of %u experts' noenhanced\n"
            "set xlabel 'experts in memory (%% of all)'\nset ylabel 'hit rate (%%)'\n"
            "set yrange [0:100]\nplot \\\n",
            s->info.n_rows, s->info.n_layer, s->info.n_expert_used, s->info.n_expert);
}

/* Writes a block of data by size for each policy and split. The script draws each as a line, beside
 * Belady's bound, into PREFIX.svg. */
static int write_gnuplot(const sweep *s, const sweep_row *rows, size_t n_rows)
{
    FILE *data = cli_output_create(s->options, ".dat");
    FILE *script = data == NULL ? NULL : cli_output_create(s->options, ".gp");
    if (script == NULL) {
        if (data != NULL) {
            fclose(data);
        }
        return CLI_EXIT_FAILURE;
    }
    write_head(s, script);
    unsigned index = 0;
    for (int split = 0; split < SPLIT_BOTH; split++) {
        for (size_t p = 0; s->splits[split] && p < s->n_policies; p++) {
            write_curve(s, rows, n_rows, s->policies[p], split, index++, data, script);
        }
        if (s->splits[split] && !has_belady(s)) {
            write_curve(s, rows, n_rows, NULL, split, index++, data, script);
        }
    }
    fputc('\n', script);
    int code = cli_output_close(data, s->options, ".dat");
    int script_code = cli_output_close(script, s->options, ".gp");
    return code == CLI_EXIT_OK ? script_code : code;
}

static int print(const sweep *s, unsigned format, const sweep_row *rows, size_t n_rows)
{
    switch (format) {
    case CLI_FORMAT_CSV:
        print_csv(rows, n_rows);
        return CLI_EXIT_OK;
    case CLI_FORMAT_JSON:
        return print_json(s, rows, n_rows);
    case CLI_FORMAT_GNUPLOT:
        return write_gnuplot(s, rows, n_rows);
    default:
        print_table(s, rows, n_rows);
        return CLI_EXIT_OK;
    }
}

int cmd_simulate(const cli_options *options)
{
    unsigned format = cli_output_format(options);
    size_t n_rows = 0;
    sweep_row *rows = NULL;
    sweep *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory");
    }
    s->options = options;
    int code = cli_trace_open(&s->trace, options, "simulate");
    if (code == CLI_EXIT_OK) {
        s->info.struct_size = sizeof s->info;
        moe_trace_get_info(s->trace, &s->info);
        code = read_lookahead(s);
    }
    if (code == CLI_EXIT_OK) {
        code = read_sweep(s);
    }
    if (code == CLI_EXIT_OK) {
        rows = calloc(2 * s->n_policies * s->n_sizes, sizeof *rows);
        code = rows == NULL ? cli_fail(CLI_EXIT_FAILURE, "out of memory")
                            : run_sweep(s, rows, &n_rows);
    }
    if (code == CLI_EXIT_OK) {
        code = print(s, format, rows, n_rows);
    }
    moe_trace_close(&s->trace);
    free(rows);
    free(s);
    return code;
}
