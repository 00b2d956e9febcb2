/* SPDX-License-Identifier: MIT */
/* bench offload: one model under cache sizes x policies x I/O engines x prefetch. Every run opens
 * the model anew, evaluates the same random prompt and decodes greedily; all runs must write the
 * same tokens, or the command fails. Experts are read past the page cache (O_DIRECT) where the file
 * system lets them, so every run starts cold. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <json-c/json.h>
#include <moe/moe.h>

#include "cli_engine.h"
#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_json.h"
#include "cli_sha256.h"
#include "cli_trace.h"
#include "commands.h"

#define MAX_PARTS      16
#define NAME_SIZE      256
#define DEFAULT_DECODE 64

typedef struct part_list {
    char parts[MAX_PARTS][NAME_SIZE];
    size_t n;
} part_list;

typedef struct outcome {
    double share;
    const char *policy;
    const char *io;
    const char *prefetch;
    char how[128]; /* what I/O it came to */
    double prompt_per_s, decode_per_s;
    double hit_rate, mib_per_token, wait_share;
    double cpu_seconds_per_gb; /* of everything, computing included */
    uint64_t prefetches, prefetches_used;
    char sha256[CLI_SHA256_HEX_SIZE];
} outcome;

typedef struct sweep {
    cli_options options; /* of the run at hand */
    const cli_options *given;
    part_list sizes, policies, ios, prefetches;
    size_t n_prompt, n_decode;
    outcome *outcomes;
    size_t n_outcomes;
} sweep;

static int split(part_list *list, const char *text, const char *option)
{
    for (;;) {
        size_t size = strcspn(text, ",");
        if (size == 0 || size >= NAME_SIZE || list->n == MAX_PARTS) {
            return cli_fail(CLI_EXIT_USAGE, "bench offload: %s: 1 to %d parts between commas",
                            option, MAX_PARTS);
        }
        memcpy(list->parts[list->n], text, size);
        list->parts[list->n++][size] = '\0';
        if (text[size] == '\0') {
            return CLI_EXIT_OK;
        }
        text += size + 1;
    }
}

static int parse_share(const char *text, double *share)
{
    char *end;
    double percent = strtod(text, &end);
    if (end == text || strcmp(end, "%") != 0 || !(percent > 0 && percent <= 100)) {
        return cli_fail(CLI_EXIT_USAGE,
                        "bench offload: --expert-cache wants percentages such as 25%%, not '%s'",
                        text);
    }
    *share = percent / 100;
    return CLI_EXIT_OK;
}

static int parse_switch(const char *text, unsigned *value)
{
    static const char *const words[] = {"auto", "on", "off"};
    for (unsigned i = 0; i < 3; i++) {
        if (strcmp(text, words[i]) == 0) {
            *value = i;
            return CLI_EXIT_OK;
        }
    }
    return cli_fail(CLI_EXIT_USAGE, "bench offload: --prefetch wants auto, on or off, not '%s'",
                    text);
}

static int read_lists(sweep *s)
{
    const cli_options *o = s->given;
    double share;
    unsigned word;
    int code = split(&s->sizes, o->cache_sizes != NULL ? o->cache_sizes : "15%,25%,50%,100%",
                     "--expert-cache");
    if (code == CLI_EXIT_OK) {
        code = split(&s->policies, o->policies != NULL ? o->policies : "lfru", "--policy");
    }
    if (code == CLI_EXIT_OK) {
        code = split(&s->ios, o->io != NULL ? o->io : "auto", "--io");
    }
    if (code == CLI_EXIT_OK) {
        code = split(&s->prefetches, o->prefetches != NULL ? o->prefetches : "auto", "--prefetch");
    }
    for (size_t i = 0; i < s->sizes.n && code == CLI_EXIT_OK; i++) {
        code = parse_share(s->sizes.parts[i], &share);
    }
    for (size_t i = 0; i < s->prefetches.n && code == CLI_EXIT_OK; i++) {
        code = parse_switch(s->prefetches.parts[i], &word);
    }
    return code;
}

static double cpu_seconds(void)
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

static int feed_random(const sweep *s, moe_session *session, uint32_t n_vocab)
{
    uint64_t state = s->given->seed < 0 ? 0 : (uint64_t)s->given->seed;
    for (size_t i = 0; i < s->n_prompt; i++) {
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

/* Decoding is what is counted; the prompt has warmed the cache as prompts do. */
static int measure_session(sweep *s, moe_engine *engine, moe_session *session, outcome *out)
{
    moe_engine_stats before = {.struct_size = sizeof before};
    moe_engine_stats after = {.struct_size = sizeof after};
    uint64_t start = cli_engine_now_ns(engine);
    int code = step_until(engine, session, s->n_prompt + 1);
    uint64_t prompted = cli_engine_now_ns(engine);
    double cpu = cpu_seconds();
    moe_engine_get_stats(engine, &before);
    if (code == CLI_EXIT_OK) {
        code = step_until(engine, session, s->n_prompt + 1 + s->n_decode);
    }
    uint64_t end = cli_engine_now_ns(engine);
    moe_engine_get_stats(engine, &after);
    double hits = (double)(after.expert_hits - before.expert_hits);
    double misses = (double)(after.expert_misses - before.expert_misses);
    double bytes = (double)(after.bytes_read_disk - before.bytes_read_disk);
    out->prompt_per_s = cli_per_second(s->n_prompt, prompted - start);
    out->decode_per_s = cli_per_second(s->n_decode, end - prompted);
    out->hit_rate = hits + misses > 0 ? hits / (hits + misses) : 0;
    out->mib_per_token = bytes / 1048576.0 / (double)s->n_decode;
    out->wait_share =
        (double)(after.expert_wait_ns - before.expert_wait_ns) / (double)(end - prompted);
    out->cpu_seconds_per_gb = bytes > 0 ? (cpu_seconds() - cpu) * 1e9 / bytes : 0;
    out->prefetches = after.prefetches - before.prefetches;
    out->prefetches_used = after.prefetches_used - before.prefetches_used;
    if (code == CLI_EXIT_OK) {
        cli_sha256_tokens(moe_session_tokens(session) + s->n_prompt, s->n_decode, out->sha256);
    }
    return code;
}

static int run_one(sweep *s, outcome *out)
{
    moe_engine *engine = NULL;
    moe_session *session = NULL;
    moe_session_options session_options;
    moe_engine_info info;
    moe_error err = {""};
    int code = cli_engine_open(&engine, &s->options, s->n_prompt + s->n_decode + 2);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    moe_engine_get_info(engine, &info);
    snprintf(out->how, sizeof out->how, "%s", info.io);
    moe_session_options_init(&session_options);
    session_options.sampling.temperature = 0;
    int status = moe_session_create(&session, engine, &session_options, &err);
    code = status == MOE_OK ? feed_random(s, session, info.n_vocab) : cli_report(status, &err);
    if (code == CLI_EXIT_OK) {
        code = measure_session(s, engine, session, out);
    }
    moe_session_close(&session);
    moe_engine_close(&engine);
    return code;
}

static int check_same_text(const sweep *s)
{
    const outcome *last = &s->outcomes[s->n_outcomes - 1];
    if (strcmp(last->sha256, s->outcomes[0].sha256) != 0) {
        return cli_fail(
            CLI_EXIT_FAILURE,
            "the run with %.0f%%, %s, %s, prefetch %s wrote other tokens than the first",
            100 * last->share, last->policy, last->io, last->prefetch);
    }
    return CLI_EXIT_OK;
}

static int run_all(sweep *s)
{
    size_t n = s->sizes.n * s->policies.n * s->ios.n * s->prefetches.n;
    s->outcomes = calloc(n, sizeof *s->outcomes);
    if (s->outcomes == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for %zu runs", n);
    }
    int code = CLI_EXIT_OK;
    for (size_t i = 0; i < n && code == CLI_EXIT_OK; i++) {
        outcome *out = &s->outcomes[i];
        size_t rest = i;
        out->prefetch = s->prefetches.parts[rest % s->prefetches.n];
        rest /= s->prefetches.n;
        out->io = s->ios.parts[rest % s->ios.n];
        rest /= s->ios.n;
        out->policy = s->policies.parts[rest % s->policies.n];
        (void)parse_share(s->sizes.parts[rest / s->policies.n], &out->share);
        s->options = *s->given;
        s->options.quiet = true;
        s->options.expert_cache.share = out->share;
        s->options.policy = out->policy;
        s->options.io = out->io;
        (void)parse_switch(out->prefetch, &s->options.prefetch);
        code = run_one(s, out);
        s->n_outcomes = i + 1;
        if (code == CLI_EXIT_OK) {
            code = check_same_text(s);
        }
    }
    return code;
}

static void print_rows(const sweep *s, FILE *file, const char *format)
{
    for (size_t i = 0; i < s->n_outcomes; i++) {
        const outcome *o = &s->outcomes[i];
        fprintf(file, format, 100 * o->share, o->policy, o->io, o->prefetch, o->prompt_per_s,
                o->decode_per_s, 100 * o->hit_rate, o->mib_per_token, 100 * o->wait_share,
                o->cpu_seconds_per_gb, o->prefetches, o->prefetches_used);
    }
}

static void print_table(const sweep *s)
{
    printf("%s%s; %zu prompt tokens, %zu decoded; %s\n\n", s->given->model,
           s->given->route_trace != NULL ? " with a replayed routing (its text means nothing)" : "",
           s->n_prompt, s->n_decode, s->outcomes[0].how);
    printf("%8s %-13s %-8s %-8s %10s %10s %7s %10s %7s %9s %9s %7s\n", "cache %", "policy", "io",
           "prefetch", "prompt t/s", "decode t/s", "hit %", "MiB/token", "wait %", "CPU-s/GB",
           "ahead", "used");
    print_rows(s, stdout,
               "%8.1f %-13s %-8s %-8s %10.2f %10.2f %7.2f %10.2f %7.1f %9.3f %9" PRIu64 " %7" PRIu64
               "\n");
    printf("\nall runs wrote the same tokens: %s\n", s->outcomes[0].sha256);
}

#define COLUMNS                                                                                    \
    "cache_percent,policy,io,prefetch,prompt_tokens_per_s,decode_tokens_per_s,hit_percent,"        \
    "mib_per_token,wait_percent,cpu_seconds_per_gb,prefetches,prefetches_used"
#define CSV_ROW "%.3f,%s,%s,%s,%.4f,%.4f,%.4f,%.4f,%.3f,%.5f,%" PRIu64 ",%" PRIu64 "\n"

static int print_json(const sweep *s)
{
    struct json_object *object = json_object_new_object();
    struct json_object *runs = json_object_new_array();
    for (size_t i = 0; i < s->n_outcomes; i++) {
        const outcome *o = &s->outcomes[i];
        struct json_object *run = json_object_new_object();
        cli_json_real(run, "cache_share", o->share);
        cli_json_text(run, "policy", o->policy);
        cli_json_text(run, "io", o->how);
        cli_json_text(run, "prefetch", o->prefetch);
        cli_json_real(run, "prompt_tokens_per_s", o->prompt_per_s);
        cli_json_real(run, "decode_tokens_per_s", o->decode_per_s);
        cli_json_real(run, "hit_rate", o->hit_rate);
        cli_json_real(run, "mib_per_token", o->mib_per_token);
        cli_json_real(run, "wait_share", o->wait_share);
        cli_json_real(run, "cpu_seconds_per_gb", o->cpu_seconds_per_gb);
        cli_json_u64(run, "prefetches", o->prefetches);
        cli_json_u64(run, "prefetches_used", o->prefetches_used);
        cli_json_append(runs, run);
    }
    cli_json_text(object, "bench", "offload");
    cli_json_text(object, "model", s->given->model);
    cli_json_text(object, "route_trace",
                  s->given->route_trace != NULL ? s->given->route_trace : "");
    cli_json_u64(object, "prompt_tokens", s->n_prompt);
    cli_json_u64(object, "decode_tokens", s->n_decode);
    cli_json_text(object, "tokens_sha256", s->outcomes[0].sha256);
    cli_json_put(object, "runs", runs);
    return cli_json_print(object, stdout);
}

/* decode speed over cache size, a curve a policy. */
static int write_gnuplot(const sweep *s)
{
    FILE *data = cli_output_create(s->given, ".dat");
    if (data == NULL) {
        return CLI_EXIT_FAILURE;
    }
    fprintf(data, "# " COLUMNS "\n");
    print_rows(s, data, CSV_ROW);
    int code = cli_output_close(data, s->given, ".dat");
    FILE *plot = code == CLI_EXIT_OK ? cli_output_create(s->given, ".gp") : NULL;
    if (plot == NULL) {
        return CLI_EXIT_FAILURE;
    }
    fprintf(plot, "set datafile separator ','\nset xlabel 'expert cache, %% of all experts'\n"
                  "set ylabel 'decode, tokens/s'\nset y2label 'hit rate, %%'\nset y2tics\nplot ");
    for (size_t i = 0; i < s->policies.n; i++) {
        fprintf(plot,
                "%s'%s.dat' using (strcol(2) eq '%s' ? $1 : 1/0):6 with linespoints title '%s', "
                "'' using (strcol(2) eq '%s' ? $1 : 1/0):7 axes x1y2 with points title '%s, hits'",
                i == 0 ? "" : ", \\\n", s->given->output, s->policies.parts[i],
                s->policies.parts[i], s->policies.parts[i], s->policies.parts[i]);
    }
    fputc('\n', plot);
    return cli_output_close(plot, s->given, ".gp");
}

static int print_results(const sweep *s, unsigned format)
{
    switch (format) {
    case CLI_FORMAT_CSV:
        puts(COLUMNS);
        print_rows(s, stdout, CSV_ROW);
        return CLI_EXIT_OK;
    case CLI_FORMAT_JSON:
        return print_json(s);
    case CLI_FORMAT_GNUPLOT:
        return write_gnuplot(s);
    default:
        print_table(s);
        return CLI_EXIT_OK;
    }
}

int cmd_bench_offload(const cli_options *options)
{
    unsigned format;
    sweep *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory");
    }
    s->given = options;
    s->n_prompt = options->bench_prompt;
    s->n_decode = options->predict < 1 ? DEFAULT_DECODE : (size_t)options->predict;
    int code = cli_output_format(options, "bench offload", &format);
    if (code == CLI_EXIT_OK) {
        code = read_lists(s);
    }
    cli_interrupt_install();
    if (code == CLI_EXIT_OK) {
        code = run_all(s);
    }
    if (code == CLI_EXIT_OK) {
        code = print_results(s, format);
    }
    free(s->outcomes);
    free(s);
    return code;
}
