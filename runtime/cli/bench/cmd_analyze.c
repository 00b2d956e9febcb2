/* SPDX-License-Identifier: MIT */
/* analyze: measures a routing trace, independent of any cache. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <moe/moe.h>
#include <moe/trace.h>

#include "cli_engine.h"
#include "cli_json.h"
#include "cli_trace.h"
#include "bench_commands.h"

/* Numbers of experts whose coverage is printed: 1, 2, 4, ... and all. */
static uint32_t next_coverage(uint32_t n, uint32_t n_expert)
{
    return n < n_expert && 2 * n > n_expert ? n_expert : 2 * n;
}

/* ---- For people ---- */

static void print_heading(const moe_trace_info *info)
{
    printf("rows: %" PRIu64 " in %" PRIu64 " passes, %u sequence%s\n", info->n_rows, info->n_passes,
           info->n_sequences, info->n_sequences == 1 ? "" : "s");
    printf("layers: %u of %u experts, %u used%s\n", info->n_layer, info->n_expert,
           info->n_expert_used, info->has_gates ? ", with gates" : "");
}

static void print_overlap(const moe_layer_analysis *mean)
{
    printf("\noverlap with the token before, by distance (mean over layers)\n");
    for (int d = 0; d < MOE_ANALYSIS_DISTANCES; d++) {
        printf("%8d", d + 1);
    }
    printf("%14s%10s\n", "independent", "uniform");
    for (int d = 0; d < MOE_ANALYSIS_DISTANCES; d++) {
        printf("%8.3f", mean->overlap[d]);
    }
    printf("%14.3f%10.3f\n", mean->overlap_independent, mean->overlap_uniform);
}

static void print_unique(const moe_analysis *a, double load_share)
{
    printf("\ndistinct experts a layer for tokens in a row\n%8s%12s%14s%12s%14s\n", "tokens",
           "measured", "independent", "uniform", "T(n)/T(1)");
    for (uint32_t b = 0; b < MOE_ANALYSIS_TOKENS; b++) {
        printf("%8u%12.2f%14.2f%12.2f%14.3f\n", b + 1, a->mean.unique[b],
               a->mean.unique_independent[b], a->mean.unique_uniform[b],
               moe_analysis_amdahl(a, load_share, b + 1));
    }
    printf("T(n)/T(1) by Amdahl's law, loading routed weights being %g of a pass\n", load_share);
}

static void print_layers(const moe_analysis *a)
{
    printf("\n%6s%10s%12s%14s%12s\n", "layer", "overlap", "skewness", "concentration", "unique 4");
    for (uint32_t layer = 0; layer < a->info.n_layer; layer++) {
        const moe_layer_analysis *l = &a->layers[layer];
        printf("%6u%10.3f%12.3f%14.2f%12.2f\n", layer, l->overlap[0], l->skewness, l->concentration,
               l->unique[3]);
    }
    printf("%6s%10.3f%12.3f%14.2f%12.2f\n", "mean", a->mean.overlap[0], a->mean.skewness,
           a->mean.concentration, a->mean.unique[3]);
}

static void print_coverage(const moe_analysis *a)
{
    printf("\nshare of choices on the experts of a layer chosen most\n");
    for (uint32_t n = 1; n <= a->info.n_expert; n = next_coverage(n, a->info.n_expert)) {
        printf("%6u: %.3f\n", n, a->coverage[n - 1]);
    }
}

/* ---- For programs ---- */

static void print_csv_number(const char *layer, const char *measure, unsigned index, double value)
{
    printf("%s,%s,%u,%.6f\n", layer, measure, index, value);
}

static void print_csv_layer(const char *name, const moe_layer_analysis *l)
{
    for (unsigned d = 0; d < MOE_ANALYSIS_DISTANCES; d++) {
        print_csv_number(name, "overlap", d + 1, l->overlap[d]);
    }
    print_csv_number(name, "overlap_independent", 1, l->overlap_independent);
    print_csv_number(name, "overlap_uniform", 1, l->overlap_uniform);
    for (unsigned b = 0; b < MOE_ANALYSIS_TOKENS; b++) {
        print_csv_number(name, "unique", b + 1, l->unique[b]);
        print_csv_number(name, "unique_independent", b + 1, l->unique_independent[b]);
        print_csv_number(name, "unique_uniform", b + 1, l->unique_uniform[b]);
    }
    print_csv_number(name, "skewness", 0, l->skewness);
    print_csv_number(name, "concentration", 0, l->concentration);
}

static void print_csv(const moe_analysis *a, double load_share)
{
    puts("layer,measure,index,value");
    for (uint32_t layer = 0; layer < a->info.n_layer; layer++) {
        char name[16];
        snprintf(name, sizeof name, "%u", layer);
        print_csv_layer(name, &a->layers[layer]);
    }
    print_csv_layer("mean", &a->mean);
    for (uint32_t n = 1; n <= a->info.n_expert; n++) {
        print_csv_number("mean", "coverage", n, a->coverage[n - 1]);
    }
    for (uint32_t b = 1; b <= MOE_ANALYSIS_TOKENS; b++) {
        print_csv_number("mean", "amdahl", b, moe_analysis_amdahl(a, load_share, b));
    }
}

static void put_list(struct json_object *object, const char *key, const double *values, size_t n)
{
    struct json_object *list = json_object_new_array();
    for (size_t i = 0; i < n; i++) {
        cli_json_append(list, json_object_new_double(values[i]));
    }
    cli_json_put(object, key, list);
}

static struct json_object *layer_json(const moe_layer_analysis *l)
{
    struct json_object *object = json_object_new_object();
    put_list(object, "overlap", l->overlap, MOE_ANALYSIS_DISTANCES);
    cli_json_real(object, "overlap_independent", l->overlap_independent);
    cli_json_real(object, "overlap_uniform", l->overlap_uniform);
    put_list(object, "unique", l->unique, MOE_ANALYSIS_TOKENS);
    put_list(object, "unique_independent", l->unique_independent, MOE_ANALYSIS_TOKENS);
    put_list(object, "unique_uniform", l->unique_uniform, MOE_ANALYSIS_TOKENS);
    cli_json_real(object, "skewness", l->skewness);
    cli_json_real(object, "concentration", l->concentration);
    return object;
}

static int print_json(const moe_analysis *a, double load_share)
{
    struct json_object *object = json_object_new_object();
    struct json_object *layers = json_object_new_array();
    double amdahl[MOE_ANALYSIS_TOKENS];
    cli_json_u64(object, "n_tokens", a->info.n_rows);
    cli_json_u64(object, "n_passes", a->info.n_passes);
    cli_json_u64(object, "n_sequences", a->info.n_sequences);
    cli_json_u64(object, "n_layer", a->info.n_layer);
    cli_json_u64(object, "n_expert", a->info.n_expert);
    cli_json_u64(object, "n_expert_used", a->info.n_expert_used);
    cli_json_put(object, "mean", layer_json(&a->mean));
    for (uint32_t layer = 0; layer < a->info.n_layer; layer++) {
        cli_json_append(layers, layer_json(&a->layers[layer]));
    }
    cli_json_put(object, "layers", layers);
    put_list(object, "coverage", a->coverage, a->info.n_expert);
    for (uint32_t b = 0; b < MOE_ANALYSIS_TOKENS; b++) {
        amdahl[b] = moe_analysis_amdahl(a, load_share, b + 1);
    }
    cli_json_real(object, "load_share", load_share);
    put_list(object, "amdahl", amdahl, MOE_ANALYSIS_TOKENS);
    return cli_json_print(object, stdout);
}

/* Writes the heat map of which experts of a layer are chosen together: counts divided by those of
 * equally likely pairs; the diagonal is left out. */
static int write_gnuplot(const moe_analysis *a, const cli_options *options)
{
    FILE *data = cli_output_create(options, ".dat");
    if (data == NULL) {
        return CLI_EXIT_FAILURE;
    }
    uint32_t n = a->info.n_expert;
    double used = a->layers[a->pair_layer].unique[0];
    double expected = (double)a->info.n_rows * used * (used - 1) / ((double)n * (n - 1.0));
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < n; j++) {
            double count = i == j ? 0 : a->pairs[(size_t)i * n + j];
            fprintf(data, "%s%.4f", j == 0 ? "" : " ", expected > 0 ? count / expected : 0);
        }
        fputc('\n', data);
    }
    int code = cli_output_close(data, options, ".dat");
    FILE *script = code == CLI_EXIT_OK ? cli_output_create(options, ".gp") : NULL;
    if (script == NULL) {
        return CLI_EXIT_FAILURE;
    }
    fprintf(script,
            "set title 'layer %u: pairs of experts chosen together, times the expectation'\n"
            "set xlabel 'expert'\nset ylabel 'expert'\nset size square\n"
            "set xrange [-0.5:%.1f]\nset yrange [-0.5:%.1f]\n"
            "plot '%s.dat' matrix with image notitle\n",
            a->pair_layer, n - 0.5, n - 0.5, options->output);
    return cli_output_close(script, options, ".gp");
}

static int print(const moe_analysis *a, const cli_options *options, unsigned format)
{
    switch (format) {
    case CLI_FORMAT_CSV:
        print_csv(a, options->load_share);
        return CLI_EXIT_OK;
    case CLI_FORMAT_JSON:
        return print_json(a, options->load_share);
    case CLI_FORMAT_GNUPLOT:
        return write_gnuplot(a, options);
    default:
        print_heading(&a->info);
        print_overlap(&a->mean);
        print_unique(a, options->load_share);
        print_layers(a);
        print_coverage(a);
        return CLI_EXIT_OK;
    }
}

static int save(const moe_trace *trace, const cli_options *options)
{
    moe_error err = {""};
    int status = moe_trace_save(trace, options->export_path, MOE_TRACE_AUTO,
                                (uint32_t)options->expert_bytes, &err);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

int cmd_analyze(const cli_options *options)
{
    moe_trace *trace = NULL;
    moe_analysis *analysis = NULL;
    moe_error err = {""};
    unsigned format = cli_output_format(options);
    int code = cli_trace_open(&trace, options, "analyze");
    if (code == CLI_EXIT_OK && options->export_path != NULL) {
        code = save(trace, options);
    }
    if (code == CLI_EXIT_OK) {
        int status = moe_analyze(&analysis, trace, (uint32_t)options->pair_layer, &err);
        code = status == MOE_OK ? print(analysis, options, format) : cli_report(status, &err);
    }
    moe_analysis_free(&analysis);
    moe_trace_close(&trace);
    return code;
}
