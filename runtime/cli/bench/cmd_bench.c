/* SPDX-License-Identifier: MIT */
/* bench decode: two phases, timed separately. In the prompt phase a pass only has sequences that
 * have not yet sampled, so no decoding is counted in it. In the decode phase every pass has one row
 * of each sequence. With forced tokens the model still chooses, which takes the same time; its
 * choice is recorded and replaced by the forced token. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>
#include <moe/lab.h>
#include <moe/machine.h>
#include <moe/moe.h>

#include "cli_bench_run.h"
#include "cli_bench_tokens.h"
#include "cli_engine.h"
#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_json.h"
#include "cli_hash.h"
#include "bench_commands.h"

#define DEFAULT_DECODE 128

typedef struct bench {
    moe_engine *engine;
    const cli_options *options;
    moe_engine_info info;
    size_t n_sequences;
    size_t n_prompt;
    size_t n_decode;
    moe_session **sessions; /* [n_sequences] */
    moe_session **active;   /* [n_sequences] those of one pass */
    cli_bench_tokens tokens;
    int32_t *chosen; /* [n_decode + 1] the model's choices in the first sequence */
    size_t n_chosen;
    double open_s;        /* time to open the engine, including resident weights */
    double first_token_s; /* from then to the first token chosen, in the first repetition */
    double *prompt_speed; /* [repeat] tokens per second, all sequences together */
    double *decode_speed; /* [repeat] */
    double *bound_share;  /* [repeat] share of what memory bandwidth allows; one sequence */
    double *prompt_cpu_s; /* [repeat] CPU time of the process, all sequences together */
    double *decode_cpu_s; /* [repeat] */
    double *sorted;       /* [repeat] */
    double bandwidth;     /* bytes per second, the last measured */
    /* Hash of the model's choices in the first sequence, in the first repetition. */
    char tokens_xxh128[CLI_HASH_HEX_SIZE];
} bench;

typedef struct spread {
    double median;
    double smallest;
    double largest;
} spread;

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return a < b ? -1 : a > b;
}

/* values: [repeat], whose order is kept. */
static spread spread_of(const bench *b, const double *values)
{
    size_t n = b->options->bench_repeat;
    memcpy(b->sorted, values, n * sizeof *values);
    qsort(b->sorted, n, sizeof *values, compare_doubles);
    values = b->sorted;
    double median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
    return (spread){median, values[0], values[n - 1]};
}

static moe_sampling sampling_of(const bench *b)
{
    moe_sampling sampling;
    moe_sampling_init(&sampling);
    if (b->tokens.source != CLI_BENCH_SAMPLED) {
        sampling.temperature = 0;
    }
    return sampling;
}

static int step(bench *b, moe_session *const *sessions, size_t n)
{
    moe_error err = {""};
    int status = moe_step(b->engine, sessions, n, &err);
    if (cli_interrupted()) {
        return CLI_EXIT_INTERRUPTED;
    }
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

/* Takes the tokens that the sessions sampled in the last step; keeps those of the first session. */
static void take_chosen(bench *b)
{
    for (size_t i = 0; i < b->n_sequences; i++) {
        int32_t token;
        while (moe_session_take(b->sessions[i], &token, 1) > 0) {
            if (i == 0 && b->n_chosen <= b->n_decode) {
                b->chosen[b->n_chosen++] = token;
            }
        }
    }
}

static int start_over(bench *b)
{
    moe_error err = {""};
    moe_sampling sampling = sampling_of(b);
    b->n_chosen = 0;
    for (size_t i = 0; i < b->n_sequences; i++) {
        int status = moe_session_truncate(b->sessions[i], 0, &err);
        if (status == MOE_OK) {
            sampling.seed = b->tokens.seed + i;
            status = moe_session_set_sampling(b->sessions[i], &sampling, &err);
        }
        if (status == MOE_OK) {
            status = moe_session_feed(b->sessions[i], cli_bench_tokens_of(&b->tokens, i),
                                      b->n_prompt, &err);
        }
        if (status != MOE_OK) {
            return cli_report(status, &err);
        }
    }
    return CLI_EXIT_OK;
}

static int run_prompts(bench *b)
{
    for (;;) {
        size_t n = 0;
        for (size_t i = 0; i < b->n_sequences; i++) {
            if (moe_session_n_tokens(b->sessions[i]) == b->n_prompt) {
                b->active[n++] = b->sessions[i];
            }
        }
        if (n == 0) {
            return CLI_EXIT_OK;
        }
        int code = step(b, b->active, n);
        if (code != CLI_EXIT_OK) {
            return code;
        }
    }
}

/* Replaces the model's own choice by the i-th forced token. */
static int force_tokens(bench *b, size_t i)
{
    moe_error err = {""};
    for (size_t s = 0; s < b->n_sequences; s++) {
        const int32_t *forced = cli_bench_tokens_of(&b->tokens, s) + b->n_prompt;
        int status = moe_session_truncate(b->sessions[s], b->n_prompt + i, &err);
        if (status == MOE_OK) {
            status = moe_session_feed(b->sessions[s], forced + i, 1, &err);
        }
        if (status != MOE_OK) {
            return cli_report(status, &err);
        }
    }
    return CLI_EXIT_OK;
}

static int decode_one(bench *b, size_t i)
{
    int code = CLI_EXIT_OK;
    take_chosen(b);
    if (cli_bench_tokens_forced(&b->tokens)) {
        code = force_tokens(b, i);
    }
    return code == CLI_EXIT_OK ? step(b, b->sessions, b->n_sequences) : code;
}

static int run_repetition(bench *b, size_t repetition)
{
    int code = start_over(b);
    uint64_t start = cli_engine_now_ns(b->engine);
    double cpu_start = cli_bench_cpu_seconds();
    if (code == CLI_EXIT_OK) {
        code = run_prompts(b);
    }
    uint64_t prompted = cli_engine_now_ns(b->engine);
    double cpu_prompted = cli_bench_cpu_seconds();
    for (size_t i = 0; i < b->n_decode && code == CLI_EXIT_OK; i++) {
        code = decode_one(b, i);
    }
    uint64_t end = cli_engine_now_ns(b->engine);
    b->prompt_cpu_s[repetition] = cpu_prompted - cpu_start;
    b->decode_cpu_s[repetition] = cli_bench_cpu_seconds() - cpu_prompted;
    b->prompt_speed[repetition] = cli_per_second(b->n_sequences * b->n_prompt, prompted - start);
    b->decode_speed[repetition] = cli_per_second(b->n_sequences * b->n_decode, end - prompted);
    take_chosen(b);
    if (code == CLI_EXIT_OK && repetition == 0) {
        b->first_token_s = cli_seconds(prompted - start);
        cli_hash_tokens(b->chosen, b->n_chosen, b->tokens_xxh128);
    }
    return code;
}

/* Returns the bytes of keys and values that a decoded token reads on average: those of all
 * positions up to its own. */
static double kv_bytes_read(const bench *b)
{
    double depth = (double)b->n_prompt + ((double)b->n_decode + 1) / 2;
    return depth * (double)b->info.kv_bytes_per_token;
}

/* Measures the bound for decoding one sequence beside every repetition: on a shared machine the
 * memory's speed changes within minutes. */
static int compare_with_bound(bench *b, size_t repetition)
{
    moe_error err = {""};
    int status = moe_engine_measure_bandwidth(b->engine, &b->bandwidth, &err);
    if (status == MOE_ERR_BUDGET || status == MOE_ERR_UNSUPPORTED) {
        return CLI_EXIT_OK; /* the bound is not reported */
    }
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    b->bound_share[repetition] = b->decode_speed[repetition] *
                                 ((double)b->info.active_bytes + kv_bytes_read(b)) / b->bandwidth;
    return CLI_EXIT_OK;
}

static int run_all(bench *b)
{
    cli_progress progress;
    int code = CLI_EXIT_OK;
    cli_progress_start(&progress, b->options, "measuring");
    for (size_t i = 0; i < b->options->bench_repeat && code == CLI_EXIT_OK; i++) {
        code = run_repetition(b, i);
        if (code == CLI_EXIT_OK && b->n_sequences == 1 && b->n_decode > 0) {
            code = compare_with_bound(b, i);
        }
        cli_progress_show(&progress, (double)(i + 1) / (double)b->options->bench_repeat);
    }
    cli_progress_end(&progress);
    return code;
}

static int create_sessions(bench *b)
{
    moe_session_options session_options;
    moe_error err = {""};
    moe_session_options_init(&session_options);
    session_options.sampling = sampling_of(b);
    for (size_t i = 0; i < b->n_sequences; i++) {
        int status = moe_session_create(&b->sessions[i], b->engine, &session_options, &err);
        if (status != MOE_OK) {
            return cli_report(status, &err);
        }
    }
    return CLI_EXIT_OK;
}

static bool allocate(bench *b)
{
    size_t repeat = b->options->bench_repeat;
    b->sessions = calloc(b->n_sequences, sizeof(moe_session *));
    b->active = calloc(b->n_sequences, sizeof(moe_session *));
    b->chosen = calloc(b->n_decode + 1, sizeof *b->chosen);
    b->sorted = calloc(repeat, sizeof *b->sorted);
    b->prompt_speed = calloc(repeat, sizeof *b->prompt_speed);
    b->decode_speed = calloc(repeat, sizeof *b->decode_speed);
    b->bound_share = calloc(repeat, sizeof *b->bound_share);
    b->prompt_cpu_s = calloc(repeat, sizeof *b->prompt_cpu_s);
    b->decode_cpu_s = calloc(repeat, sizeof *b->decode_cpu_s);
    return b->sessions != NULL && b->active != NULL && b->chosen != NULL && b->sorted != NULL &&
           b->prompt_speed != NULL && b->decode_speed != NULL && b->bound_share != NULL &&
           b->prompt_cpu_s != NULL && b->decode_cpu_s != NULL;
}

static void release(bench *b)
{
    for (size_t i = 0; b->sessions != NULL && i < b->n_sequences; i++) {
        moe_session_close(&b->sessions[i]);
    }
    free(b->sessions);
    free(b->active);
    free(b->chosen);
    free(b->sorted);
    cli_bench_tokens_free(&b->tokens);
    free(b->prompt_speed);
    free(b->decode_speed);
    free(b->bound_share);
    free(b->prompt_cpu_s);
    free(b->decode_cpu_s);
}

/* The values of all repetitions in order, so that the first, which begins with nothing in memory,
 * can be distinguished. */
static struct json_object *runs_json(const bench *b, const double *values)
{
    struct json_object *runs = json_object_new_array();
    for (size_t i = 0; i < b->options->bench_repeat; i++) {
        cli_json_append(runs, json_object_new_double(values[i]));
    }
    return runs;
}

static struct json_object *spread_json(const bench *b, const char *test, size_t n, const spread *s,
                                       const double *speeds, const double *cpu_s)
{
    struct json_object *object = json_object_new_object();
    cli_json_text(object, "test", test);
    cli_json_u64(object, "tokens", n);
    cli_json_real(object, "tokens_per_s_median", s->median);
    cli_json_real(object, "tokens_per_s_min", s->smallest);
    cli_json_real(object, "tokens_per_s_max", s->largest);
    cli_json_put(object, "tokens_per_s_runs", runs_json(b, speeds));
    cli_json_put(object, "cpu_s_runs", runs_json(b, cpu_s));
    return object;
}

/* Returns the machine's description, or NULL. */
static struct json_object *describe_machine(const cli_options *options)
{
    char *json = NULL;
    if (moe_machine_describe(options->model, &json, NULL) != MOE_OK) {
        return NULL;
    }
    struct json_object *machine = json_tokener_parse(json);
    moe_free(json);
    return machine;
}

static int print_json(const bench *b, const spread *prompt, const spread *decode,
                      struct json_object *machine)
{
    char fingerprint[CLI_FORMAT_SIZE];
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(b->engine, &stats);
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, b->info.fingerprint);
    struct json_object *object = json_object_new_object();
    struct json_object *results = json_object_new_array();
    cli_json_append(
        results, spread_json(b, "prompt", b->n_prompt, prompt, b->prompt_speed, b->prompt_cpu_s));
    if (b->n_decode > 0) {
        cli_json_append(results, spread_json(b, "decode", b->n_decode, decode, b->decode_speed,
                                             b->decode_cpu_s));
    }
    cli_json_text(object, "bench", "decode");
    cli_json_text(object, "library", moe_version());
    cli_json_text(object, "model", b->options->model);
    cli_json_text(object, "model_fingerprint", fingerprint);
    cli_json_text(object, "family", b->info.family);
    cli_json_u64(object, "n_parameters", b->info.n_parameters);
    cli_json_text(object, "device", b->info.device);
    cli_json_text(object, "kernels", b->info.kernels);
    cli_json_u64(object, "threads", b->info.n_threads);
    cli_json_u64(object, "context", b->info.context);
    cli_json_u64(object, "parallel", b->n_sequences);
    cli_json_u64(object, "repeat", b->options->bench_repeat);
    cli_json_u64(object, "seed", b->options->seed < 0 ? 0 : (uint64_t)b->options->seed);
    cli_json_text(object, "tokens_from", cli_bench_source_name(b->tokens.source));
    if (b->tokens.path != NULL) {
        cli_json_text(object, "tokens_file", b->tokens.path);
    }
    cli_json_put(object, "forced", json_object_new_boolean(cli_bench_tokens_forced(&b->tokens)));
    cli_json_real(object, "open_s", b->open_s);
    cli_json_real(object, "first_token_s", b->first_token_s);
    cli_json_put(object, "results", results);
    if (b->bandwidth > 0) {
        spread share = spread_of(b, b->bound_share);
        cli_json_u64(object, "active_bytes_per_token", b->info.active_bytes);
        cli_json_u64(object, "kv_bytes_read_per_token", (uint64_t)kv_bytes_read(b));
        cli_json_real(object, "memory_read_bytes_per_s", b->bandwidth);
        cli_json_real(object, "decode_share_of_bound", share.median);
    }
    cli_json_text(object, "tokens_xxh128", b->tokens_xxh128);
    cli_json_u64(object, "expert_hits", stats.expert_hits);
    cli_json_u64(object, "expert_misses", stats.expert_misses);
    cli_json_u64(object, "expert_evictions", stats.expert_evictions);
    cli_json_u64(object, "policy_faults", stats.policy_faults);
    cli_json_u64(object, "bytes_demand", stats.bytes_demand);
    cli_json_u64(object, "bytes_prefetch", stats.bytes_prefetch);
    cli_json_u64(object, "bytes_read_disk", stats.bytes_read_disk);
    cli_json_u64(object, "bytes_moved_link", stats.bytes_moved_link);
    cli_json_u64(object, "peak_rss_bytes", cli_peak_rss_bytes());
    cli_json_put(object, "machine", machine);
    return cli_json_print(object, stdout);
}

static const char *machine_text(struct json_object *machine, const char *group, const char *key)
{
    struct json_object *object = NULL;
    struct json_object *value = NULL;
    if (machine == NULL || !json_object_object_get_ex(machine, group, &object) ||
        !json_object_object_get_ex(object, key, &value) || value == NULL) {
        return "?";
    }
    return json_object_get_string(value);
}

static int print_table(const bench *b, const spread *prompt, const spread *decode,
                       struct json_object *machine)
{
    char count[CLI_FORMAT_SIZE];
    char rss[CLI_FORMAT_SIZE];
    char tokens[300];
    printf("machine: %s, %s cores, %s\n", machine_text(machine, "cpu", "model"),
           machine_text(machine, "cpu", "usable_cores"), machine_text(machine, "system", "kernel"));
    printf("model:   %s, %s, fingerprint %016" PRIx64 "\n", b->info.family,
           cli_format_count(count, b->info.n_parameters), b->info.fingerprint);
    printf("run:     %u threads, %s, %zu in parallel, %" PRIu64 " times\n", b->info.n_threads,
           b->info.kernels, b->n_sequences, b->options->bench_repeat);
    cli_bench_tokens_describe(&b->tokens, tokens, sizeof tokens);
    printf("tokens:  %s\n", tokens);
    moe_engine_stats stats = {.struct_size = sizeof stats};
    char opening[4 * CLI_FORMAT_SIZE];
    moe_engine_get_stats(b->engine, &stats);
    printf("open:    %.2f s %s, first token %.3f s later\n\n", b->open_s,
           cli_format_opening(opening, &stats), b->first_token_s);
    printf("%-10s%8s%12s%12s%12s\n", "test", "tokens", "median t/s", "min", "max");
    printf("%-10s%8zu%12.2f%12.2f%12.2f\n", "prompt", b->n_prompt, prompt->median, prompt->smallest,
           prompt->largest);
    if (b->n_decode > 0) {
        printf("%-10s%8zu%12.2f%12.2f%12.2f\n", "decode", b->n_decode, decode->median,
               decode->smallest, decode->largest);
    }
    if (b->bandwidth > 0) {
        spread share = spread_of(b, b->bound_share);
        char active[CLI_FORMAT_SIZE];
        char kv[CLI_FORMAT_SIZE];
        printf("\nbound: a token reads %s of weights and %s of keys and values, memory gives %.1f "
               "GB/s (%u threads reading); decode reaches %.0f %%\n",
               cli_format_bytes(active, b->info.active_bytes),
               cli_format_bytes(kv, (uint64_t)kv_bytes_read(b)), b->bandwidth / 1e9,
               b->info.n_threads, 100 * share.median);
    }
    printf("\n%s %s\npeak memory %s\n",
           cli_bench_tokens_forced(&b->tokens) ? "tokens the model would choose" : "tokens",
           b->tokens_xxh128, cli_format_bytes(rss, cli_peak_rss_bytes()));
    json_object_put(machine);
    return CLI_EXIT_OK;
}

static int measure(bench *b)
{
    b->info.struct_size = sizeof b->info;
    moe_engine_get_info(b->engine, &b->info);
    if (!allocate(b)) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for %zu sequences of %zu tokens",
                        b->n_sequences, b->n_prompt);
    }
    int code = cli_bench_tokens_read(&b->tokens, b->options, b->n_sequences, b->n_prompt,
                                     b->n_decode, b->info.n_vocab);
    if (code == CLI_EXIT_OK) {
        code = create_sessions(b);
    }
    if (code == CLI_EXIT_OK) {
        code = run_all(b);
    }
    if (code != CLI_EXIT_OK) {
        return code;
    }
    spread prompt = spread_of(b, b->prompt_speed);
    spread decode = spread_of(b, b->decode_speed);
    struct json_object *machine = describe_machine(b->options);
    return b->options->json ? print_json(b, &prompt, &decode, machine)
                            : print_table(b, &prompt, &decode, machine);
}

int cmd_bench_decode(const cli_options *options)
{
    bench b;
    memset(&b, 0, sizeof b);
    b.options = options;
    b.n_sequences = options->bench_parallel;
    b.n_prompt = options->bench_prompt;
    b.n_decode = options->predict < 0 ? DEFAULT_DECODE : (size_t)options->predict;
    uint64_t needed = b.n_prompt + b.n_decode + 1;
    if (options->context != 0 && options->context < needed) {
        return cli_fail(CLI_EXIT_USAGE,
                        "bench decode: -c %" PRIu64 " does not hold -p %zu and -n %zu: it needs "
                        "%" PRIu64,
                        options->context, b.n_prompt, b.n_decode, needed);
    }
    cli_interrupt_install();
    uint64_t start = cli_now_ns();
    int code =
        cli_engine_open(&b.engine, options, options->context == 0 ? needed : options->context);
    b.open_s = cli_seconds(cli_now_ns() - start);
    if (code == CLI_EXIT_OK) {
        code = measure(&b);
    }
    release(&b);
    moe_engine_close(&b.engine);
    return code;
}
