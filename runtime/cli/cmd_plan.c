/* SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <moe/model_file.h>
#include <moe/moe.h>
#include <moe/speed.h>

#include "cli_drive_speed.h"
#include "cli_engine.h"
#include "cli_format.h"
#include "cli_json.h"
#include "cli_plan_hits.h"
#include "cli_plan_workers.h"
#include "commands.h"

static void print_row(const char *what, uint64_t bytes, const char *note)
{
    char size[CLI_FORMAT_SIZE];
    printf("%-20s%12s  %s\n", what, cli_format_bytes(size, bytes), note);
}

static void print_slots(const char *what, uint64_t bytes, uint64_t slots, uint64_t experts)
{
    char note[128];
    snprintf(note, sizeof note, "%" PRIu64 " of %" PRIu64 " experts", slots, experts);
    print_row(what, bytes, note);
}

static void print_hits(const moe_memory_plan *plan)
{
    if (plan->expert_slots < plan->experts) {
        printf("%-20s%11.0f%%  %s\n", "expected hits", 100 * plan->expected_hit_rate,
               plan->hit_rate_is_calibrated ? "if the calibration's hottest experts stay"
                                            : "at least: no locality assumed, no calibration");
    }
}

static void print_session_rows(const moe_memory_plan *plan)
{
    char note[128];
    print_row("resident weights", plan->resident, "");
    if (plan->context < plan->context_most) {
        snprintf(note, sizeof note, "one session of %u tokens, not the model's %" PRIu64 " (-c)",
                 plan->context, plan->context_most);
    } else {
        snprintf(note, sizeof note, "one session of %u tokens", plan->context);
    }
    print_row("KV cache", plan->kv_cache - plan->layer_states, note);
    if (plan->kv_windowed > 0) {
        print_row("  behind windows", plan->kv_windowed,
                  "part of it, no larger for a longer context");
    }
    if (plan->layer_states > 0) {
        print_row("recurrent layers", plan->layer_states, "the same session, of any length");
    }
}

/* Prints the memory of sessions' states, which is always in RAM. */
static void print_session_state(const moe_memory_plan *plan)
{
    print_row("session", plan->session_state, "its logits, sampler and tokens");
}

/* Prints how much of the experts' memory sessions take. */
static void print_parallel(const moe_memory_plan *plan)
{
    char note[128];
    if (plan->sessions > 1) {
        snprintf(note, sizeof note,
                 "%" PRIu64 " of them, all full: %" PRIu64 " of %" PRIu64 " experts stay",
                 plan->sessions, plan->sessions_slots, plan->experts);
        print_row("sessions", plan->sessions_bytes, note);
    }
}

static const char *budget_note(const moe_memory_plan *plan)
{
    return plan->budget_is_default ? "what the machine and its control group leave"
                                   : "--host-memory";
}

static void print_table(const moe_memory_plan *plan, bool fits)
{
    print_row("budget", plan->budget, budget_note(plan));
    print_row("process", plan->process, "");
    print_session_rows(plan);
    print_session_state(plan);
    print_row("scratch", plan->scratch, "");
    if (plan->row_table > 0) {
        char size[CLI_FORMAT_SIZE], note[96];
        snprintf(note, sizeof note, "part of it, of a table of %s that stays on disk",
                 cli_format_bytes(size, plan->row_table));
        print_row("  rows", plan->row_cache, note);
    }
    if (fits) {
        print_slots("expert cache", plan->expert_cache, plan->expert_slots, plan->experts);
        if (plan->low_bit_slots > 0) {
            print_slots("low-bit copies", plan->low_bit_cache, plan->low_bit_slots, plan->experts);
        }
        print_parallel(plan);
        print_hits(plan);
        print_row("total", plan->total, "");
    }
    print_row("floor", plan->floor, "the least that works");
}

/* Prints the experts in both tiers together: an expert needs one slot, on the device or in RAM. */
static void print_in_memory(const moe_memory_plan *plan)
{
    printf("experts in memory       %" PRIu64 " of %" PRIu64 ", on the device or in RAM\n",
           plan->experts_in_memory, plan->experts);
}

static void print_cards(const moe_memory_plan *plan)
{
    for (uint64_t k = 0; plan->cards > 1 && k < plan->cards; k++) {
        char name[32];
        snprintf(name, sizeof name, "  on card %" PRIu64, k + 1);
        print_row(name, plan->card_cache[k], "");
    }
}

/* For a device with its own memory: prints a table for each tier. */
static void print_tiers(const moe_memory_plan *plan, bool fits)
{
    print_row("device budget", plan->device_budget, "");
    print_session_rows(plan);
    print_row("device scratch", plan->device_scratch, "");
    if (fits) {
        print_slots("device experts", plan->expert_cache, plan->expert_slots, plan->experts);
        print_cards(plan);
        print_parallel(plan);
        print_hits(plan);
        print_row("device total", plan->device_total, "");
    }
    print_row("device floor", plan->device_floor, "the least that works");
    print_row("host budget", plan->budget, budget_note(plan));
    print_row("process", plan->process, "");
    print_session_state(plan);
    print_row("host scratch", plan->scratch, "");
    if (plan->device_in_host > 0) {
        print_row("simulated device", plan->device_in_host, "its memory is this machine's");
    }
    if (fits) {
        print_slots("host experts", plan->host_cache, plan->host_slots, plan->experts);
        print_in_memory(plan);
        print_row("host total", plan->total, "");
    }
    print_row("host floor", plan->floor, "the least that works");
}

/* Measured or given rates, and the speed that follows from them. */
typedef struct expectation {
    moe_speed_rates rates;
    moe_speed_estimate estimate;
    moe_trace *trace;   /* a recorded routing; NULL: none, so there is no range */
    cli_plan_hits hits; /* hit rates in the device's slots on that routing */
    /* Tokens/s. low: with the hits of the worst quarter; high: with those of the best quarter, and
     * on a device with memory of its own, if all reads and moves overlap with computing. Both are
     * widened by the spread of the measured tokens. */
    double low, high;
} expectation;

/* A prompt as long as the context: its number of panels, and the most bytes that they read (each
 * panel reads every expert that is not in memory once). */
typedef struct longest_prompt {
    uint64_t n_panels, bytes; /* 0: there are no panels, or they read nothing */
} longest_prompt;

static longest_prompt longest_prompt_of(const moe_memory_plan *plan)
{
    const uint64_t in_memory = plan->experts_in_memory;
    longest_prompt p = {0};
    if (plan->panel_rows > 0 && plan->experts > in_memory) {
        p.n_panels = (plan->context + plan->panel_rows - 1) / plan->panel_rows;
        p.bytes = p.n_panels * (plan->expert_bytes / plan->experts * (plan->experts - in_memory));
    }
    return p;
}

static void print_panels(const moe_memory_plan *plan, double disk_bytes_per_s)
{
    const longest_prompt p = longest_prompt_of(plan);
    char size[CLI_FORMAT_SIZE], rows[32];
    if (p.n_panels == 0) {
        return;
    }
    snprintf(rows, sizeof rows, "%u tokens", plan->context);
    printf("%-20s%12s  %" PRIu64 " panel%s of up to %" PRIu64 " tokens, reads at most %s",
           "a prompt of", rows, p.n_panels, p.n_panels > 1 ? "s" : "", plan->panel_rows,
           cli_format_bytes(size, p.bytes));
    if (disk_bytes_per_s > 0) {
        printf(", %.1f s of disk", (double)p.bytes / disk_bytes_per_s);
    }
    putchar('\n');
}

static void print_part(const char *what, uint64_t bytes, double s, double bytes_per_s)
{
    char size[CLI_FORMAT_SIZE];
    if (bytes > 0 && bytes_per_s > 0) {
        printf("%-20s%9.2f ms  %s a token at %.2f GB/s\n", what, 1e3 * s,
               cli_format_bytes(size, bytes), 1e-9 * bytes_per_s);
    } else if (bytes > 0) {
        printf("%-20s%12s  %s a token; not measured\n", what, "", cli_format_bytes(size, bytes));
    }
}

/* The hit rate is a lower bound, and so is a speed computed from it; without all rates the speed is
 * an upper bound. */
static void print_speed(const moe_memory_plan *plan, const expectation *e)
{
    const moe_speed_estimate *s = &e->estimate;
    print_panels(plan, e->rates.disk_bytes_per_s);
    print_part("disk", s->disk_bytes, s->disk_s, e->rates.disk_bytes_per_s);
    print_part("link", s->link_bytes, s->link_s, e->rates.link_bytes_per_s);
    if (s->compute_s > 0) {
        printf("%-20s%9.2f ms  a token, without waiting for experts\n", "computing",
               1e3 * s->compute_s);
    }
    if (s->tokens_per_s <= 0) {
        printf("%-20s%12s  not measured: --measure, or --disk GB/S\n", "expected speed", "");
        return;
    }
    const char *note = !s->complete ? "at most: without what is not measured"
                       : plan->expert_slots < plan->experts
                           ? "with the expected hits, without speculation or prefetch"
                           : "without speculation";
    if (e->trace != NULL && plan->expert_slots < plan->experts) {
        printf("%-20s%11.0f%%  on that routing, %.0f to %.0f by quarters\n", "hits",
               100 * e->hits.middle, 100 * e->hits.low, 100 * e->hits.high);
        note = s->complete ? "with those hits, without speculation or prefetch" : note;
    }
    printf("%-20s%8.2f t/s  %s\n", "expected speed", s->tokens_per_s, note);
    if (e->high > 0) {
        printf(
            "%-20s%8.2f t/s  to %.2f: worst quarter to best, and how far measured tokens differ\n",
            "  from", e->low, e->high);
    }
}

static void put_speed(struct json_object *object, const expectation *e)
{
    cli_json_u64(object, "token_disk_bytes", e->estimate.disk_bytes);
    cli_json_u64(object, "token_link_bytes", e->estimate.link_bytes);
    cli_json_real(object, "disk_bytes_per_s", e->rates.disk_bytes_per_s);
    cli_json_real(object, "link_bytes_per_s", e->rates.link_bytes_per_s);
    cli_json_real(object, "compute_seconds", e->estimate.compute_s);
    cli_json_real(object, "disk_seconds", e->estimate.disk_s);
    cli_json_real(object, "wait_seconds_per_expert", e->rates.wait_s_per_expert);
    cli_json_real(object, "measured_spread", e->rates.spread);
    cli_json_put(object, "speed_is_complete", json_object_new_boolean(e->estimate.complete));
    cli_json_real(object, "expected_tokens_per_s", e->estimate.tokens_per_s);
    if (e->trace != NULL) {
        cli_json_real(object, "simulated_hit_rate", e->hits.middle);
        cli_json_real(object, "expected_tokens_per_s_low", e->low);
        cli_json_real(object, "expected_tokens_per_s_high", e->high);
    }
}

/* ---- The speed that follows ---- */

/* Returns the plan's estimate with these hit rates in the device's slots and in any memory. */
static moe_speed_estimate estimate_with(const moe_memory_plan *plan, const moe_speed_rates *rates,
                                        double hits, double memory_hits)
{
    moe_memory_plan with_hits = *plan;
    moe_speed_estimate estimate = {.struct_size = sizeof estimate};
    with_hits.expected_hit_rate = hits;
    with_hits.expected_memory_hit_rate = memory_hits;
    moe_plan_speed(&with_hits, rates, &estimate);
    return estimate;
}

/* Fills in the figures that follow from rates and trace. */
static int estimate(expectation *e, const cli_options *options, const moe_memory_plan *plan)
{
    cli_plan_hits in_memory = {0};
    if (e->trace == NULL) {
        moe_plan_speed(plan, &e->rates, &e->estimate);
        return CLI_EXIT_OK;
    }
    const uint64_t slots = plan->has_device_memory ? plan->experts_in_memory : plan->expert_slots;
    int code = cli_plan_hits_of(&e->hits, e->trace, options, plan->expert_slots, plan);
    code =
        code == CLI_EXIT_OK ? cli_plan_hits_of(&in_memory, e->trace, options, slots, plan) : code;
    if (code != CLI_EXIT_OK) {
        return code;
    }
    e->estimate = estimate_with(plan, &e->rates, e->hits.middle, in_memory.middle);
    const moe_speed_estimate worst = estimate_with(plan, &e->rates, e->hits.low, in_memory.low);
    const moe_speed_estimate best = estimate_with(plan, &e->rates, e->hits.high, in_memory.high);
    const double moving_s = best.disk_s > best.link_s ? best.disk_s : best.link_s;
    const double overlapped_s = moving_s > best.compute_s ? moving_s : best.compute_s;
    const double most = plan->has_device_memory ? 1 / overlapped_s : best.tokens_per_s;
    e->low = worst.complete ? worst.tokens_per_s / (1 + e->rates.spread) : 0;
    e->high = best.complete ? most * (1 + e->rates.spread) : 0;
    return CLI_EXIT_OK;
}

/* Takes another speed of the disk. The share of a read that hides behind computing stays; what a
 * request costs beyond its bytes does not depend on the disk's speed. */
static void set_disk_speed(moe_speed_rates *rates, double bytes_per_s)
{
    if (rates->wait_s_per_expert < 0.0) {
        rates->wait_s_per_expert *= rates->disk_bytes_per_s / bytes_per_s;
    }
    rates->disk_bytes_per_s = bytes_per_s;
}

/* Measures this engine without workers, and on the recorded routing where tokens can be made to
 * follow it. */
static int measure(const moe_engine_options *engine_options, const cli_options *options,
                   const moe_memory_plan *plan, moe_speed_rates *rates, moe_error *err)
{
    moe_engine_options alone = *engine_options;
    moe_lab_options lab = *engine_options->lab;
    lab.route_trace = plan->has_device_memory ? NULL : options->trace;
    alone.lab = &lab;
    alone.n_workers = alone.worker_key_bytes = 0;
    alone.worker_timeout = 0;
    int status = moe_speed_measure(&alone, rates, err);
    if (status == MOE_ERR_MISMATCH && lab.route_trace != NULL) { /* as of imported traces */
        lab.route_trace = NULL;
        status = moe_speed_measure(&alone, rates, err);
    }
    return status;
}

/* Rates that are not given stay unknown. */
static int expect_speed(moe_engine_options *engine_options, const cli_options *options,
                        const moe_memory_plan *plan, expectation *e)
{
    moe_error err = {""};
    *e = (expectation){.rates = {.struct_size = sizeof e->rates},
                       .estimate = {.struct_size = sizeof e->estimate}};
    cli_progress progress;
    int status = MOE_OK;
    int code = cli_plan_trace(&e->trace, options, plan);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    if (options->measure && options->model_is_header) { /* there are no weights for measuring */
        code = cli_drive_speed(options->model, &e->rates.disk_bytes_per_s);
        if (code != CLI_EXIT_OK) {
            return code;
        }
    } else if (options->measure) {
        cli_progress_start(&progress, options, "measuring");
        cli_engine_show(engine_options, &progress);
        status = measure(engine_options, options, plan, &e->rates, &err);
        cli_progress_end(&progress);
    }
    if (options->disk_speed > 0) {
        set_disk_speed(&e->rates, 1e9 * options->disk_speed);
    }
    return status == MOE_OK ? estimate(e, options, plan) : cli_report(status, &err);
}

/* ---- Another machine ---- */

/* Plans and estimates for the changed machine. *plan: its plan. */
static int expect_change(moe_engine_options engine_options, const cli_options *options,
                         const expectation *now, moe_memory_plan *plan, expectation *then)
{
    cli_what_if change;
    moe_error err = {""};
    int code = cli_what_if_read(&change, options->what_if);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    engine_options.progress = NULL; /* of measuring, which has ended */
    engine_options.pass_progress = NULL;
    if (change.host_memory > 0) {
        engine_options.host_memory = change.host_memory;
        engine_options.overcommit_memory = true;
    }
    if (change.device_memory > 0) {
        engine_options.device_memory = change.device_memory;
    }
    int status = moe_plan_memory(&engine_options, plan, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    *then = *now;
    if (change.disk > 0) {
        set_disk_speed(&then->rates, change.disk);
    }
    then->rates.link_bytes_per_s = change.link > 0 ? change.link : now->rates.link_bytes_per_s;
    return estimate(then, options, plan);
}

static void print_change(const cli_options *options, const expectation *now,
                         const moe_memory_plan *plan, const expectation *then)
{
    printf("\nwhat if %s\n", options->what_if);
    printf("%-20s%12s  %" PRIu64 " of %" PRIu64 "\n", "experts in memory", "",
           plan->has_device_memory ? plan->experts_in_memory : plan->expert_slots, plan->experts);
    print_speed(plan, then);
    if (now->estimate.complete && then->estimate.complete) {
        printf("%-20s%8.2f      times as fast as now\n", "",
               then->estimate.tokens_per_s / now->estimate.tokens_per_s);
    }
}

/* ---- What would be faster ---- */

#define MEMORY_STEP (UINT64_C(8) << 30)

/* The gains of a second drive and of more memory. */
typedef struct advice {
    /* Tokens/s with a copy of the model on a drive as fast as this one; 0: nothing is read, or the
     * drive's speed is not known. */
    double second_drive;
    uint64_t bytes;     /* how much more memory; 0: more would not help */
    uint64_t in_memory; /* experts in memory with these bytes more */
    double more_memory; /* tokens/s with these bytes more; 0: nothing is read, and computing was not
                         * measured */
} advice;

/* Tokens/s with these rates; 0: not known. */
static double speed_of(const expectation *e, const moe_speed_rates *rates,
                       const cli_options *options, const moe_memory_plan *plan)
{
    expectation then = *e;
    then.rates = *rates;
    return estimate(&then, options, plan) == CLI_EXIT_OK ? then.estimate.tokens_per_s : 0;
}

/* Tries 8, 16, 32... GiB more memory, until all experts are in memory, or up to four times the
 * memory. */
static void advise_memory(advice *a, moe_engine_options *engine_options, const cli_options *options,
                          const moe_memory_plan *plan, const expectation *e)
{
    moe_memory_plan more = {.struct_size = sizeof more};
    for (uint64_t bytes = MEMORY_STEP; more.experts_in_memory < plan->experts &&
                                       (bytes == MEMORY_STEP || bytes <= 3 * plan->budget);
         bytes *= 2) {
        engine_options->host_memory = plan->budget + bytes;
        engine_options->overcommit_memory = true;
        if (moe_plan_memory(engine_options, &more, NULL) != MOE_OK ||
            more.experts_in_memory <= plan->experts_in_memory) {
            return;
        }
        a->bytes = bytes;
        a->in_memory = more.experts_in_memory;
        a->more_memory = speed_of(e, &e->rates, options, &more);
    }
}

/* These changes only save the drive's time: advises nothing if the drive's time is not known. */
static advice advise(const moe_engine_options *engine_options, const cli_options *options,
                     const moe_memory_plan *plan, const expectation *e)
{
    advice a = {0};
    moe_speed_rates two_drives = e->rates;
    moe_engine_options changed = *engine_options;
    changed.progress = NULL; /* of measuring, which has ended */
    changed.pass_progress = NULL;
    if (e->estimate.disk_bytes > 0 && e->rates.disk_bytes_per_s > 0) {
        set_disk_speed(&two_drives, 2 * e->rates.disk_bytes_per_s);
        a.second_drive = speed_of(e, &two_drives, options, plan);
        advise_memory(&a, &changed, options, plan, e);
    }
    return a;
}

static void print_advice(const advice *a, const moe_memory_plan *plan)
{
    char more[CLI_FORMAT_SIZE], words[CLI_FORMAT_SIZE + 8], speed[32];
    if (a->second_drive > 0) {
        printf("%-20s%8.2f t/s  as fast as this one, with a copy of the model (--model-copy)\n",
               "a second drive", a->second_drive);
    }
    if (a->bytes > 0) {
        snprintf(words, sizeof words, "%s more", cli_format_bytes(more, a->bytes));
        snprintf(speed, sizeof speed, "%.2f t/s", a->more_memory);
        printf("%-20s%12s  %" PRIu64 " of %" PRIu64 " experts in memory%s\n", words,
               a->more_memory > 0 ? speed : "", a->in_memory, plan->experts,
               a->more_memory > 0 ? "" : ": the drive is not waited for");
    }
}

static void put_advice(struct json_object *object, const advice *a)
{
    if (a->second_drive > 0) {
        cli_json_real(object, "second_drive_tokens_per_s", a->second_drive);
    }
    if (a->bytes > 0) {
        cli_json_u64(object, "more_memory_bytes", a->bytes);
        cli_json_u64(object, "more_memory_experts", a->in_memory);
        cli_json_real(object, "more_memory_tokens_per_s", a->more_memory);
    }
}

static void put_cards(struct json_object *object, const moe_memory_plan *plan)
{
    struct json_object *cards = json_object_new_array();
    for (uint64_t k = 0; k < plan->cards; k++) {
        json_object_array_add(cards, json_object_new_uint64(plan->card_cache[k]));
    }
    cli_json_put(object, "card_cache_bytes", cards);
}

static int print_json(const moe_memory_plan *plan, bool fits, const expectation *e, const advice *a,
                      const moe_memory_plan *other, const expectation *then,
                      const cli_plan_workers *workers)
{
    struct json_object *object = json_object_new_object();
    cli_json_put(object, "fits", json_object_new_boolean(fits));
    cli_json_u64(object, "budget_bytes", plan->budget);
    cli_json_put(object, "budget_is_default", json_object_new_boolean(plan->budget_is_default));
    cli_json_u64(object, "process_bytes", plan->process);
    cli_json_u64(object, "resident_bytes", plan->resident);
    cli_json_u64(object, "kv_cache_bytes", plan->kv_cache);
    cli_json_u64(object, "kv_windowed_bytes", plan->kv_windowed);
    cli_json_u64(object, "layer_states_bytes", plan->layer_states);
    cli_json_u64(object, "session_bytes", plan->session_state);
    cli_json_u64(object, "sessions", plan->sessions);
    if (fits) {
        cli_json_u64(object, "sessions_bytes", plan->sessions_bytes);
        cli_json_u64(object, "sessions_slots", plan->sessions_slots);
    }
    cli_json_u64(object, "scratch_bytes", plan->scratch);
    cli_json_u64(object, "row_cache_bytes", plan->row_cache);
    cli_json_u64(object, "row_table_bytes", plan->row_table);
    cli_json_u64(object, "floor_bytes", plan->floor);
    cli_json_u64(object, "expert_cache_bytes", plan->expert_cache);
    cli_json_u64(object, "expert_slots", plan->expert_slots);
    cli_json_u64(object, "low_bit_cache_bytes", plan->low_bit_cache);
    cli_json_u64(object, "low_bit_slots", plan->low_bit_slots);
    cli_json_u64(object, "prefill_chunk", plan->prefill_chunk);
    cli_json_u64(object, "panel_rows", plan->panel_rows);
    cli_json_u64(object, "longest_prompt_panels", longest_prompt_of(plan).n_panels);
    cli_json_u64(object, "longest_prompt_bytes", longest_prompt_of(plan).bytes);
    cli_json_u64(object, "experts", plan->experts);
    cli_json_real(object, "expected_hit_rate", plan->expected_hit_rate);
    cli_json_put(object, "hit_rate_is_calibrated",
                 json_object_new_boolean(plan->hit_rate_is_calibrated));
    cli_json_u64(object, "expert_bytes", plan->expert_bytes);
    if (fits) {
        put_speed(object, e);
        put_advice(object, a);
    }
    if (workers->estimate.workers > 0) {
        cli_plan_workers_put(object, workers);
    }
    if (fits && other->experts > 0) {
        struct json_object *what_if = json_object_new_object();
        cli_json_u64(what_if, "expert_slots", other->expert_slots);
        put_speed(what_if, then);
        cli_json_put(object, "what_if", what_if);
    }
    cli_json_u64(object, "total_bytes", plan->total);
    cli_json_u64(object, "context", plan->context);
    cli_json_u64(object, "context_most", plan->context_most);
    if (plan->has_device_memory) {
        cli_json_u64(object, "device_budget_bytes", plan->device_budget);
        cli_json_u64(object, "device_scratch_bytes", plan->device_scratch);
        cli_json_u64(object, "device_floor_bytes", plan->device_floor);
        cli_json_u64(object, "device_total_bytes", plan->device_total);
        cli_json_u64(object, "host_cache_bytes", plan->host_cache);
        cli_json_u64(object, "host_slots", plan->host_slots);
        cli_json_u64(object, "experts_in_memory", plan->experts_in_memory);
        cli_json_u64(object, "device_in_host_bytes", plan->device_in_host);
        put_cards(object, plan);
    }
    return cli_json_print(object, stdout);
}

/* ---- A family that does not run ---- */

static void print_missing(const moe_file_summary *s)
{
    char note[160];
    char size[CLI_FORMAT_SIZE];
    print_row("resident weights", s->resident_bytes, "");
    snprintf(note, sizeof note, "%" PRIu64 " of at most %s; a token uses %u in each of %u layers",
             (uint64_t)s->n_expert * s->n_layer_moe,
             cli_format_bytes(size, s->largest_expert_bytes), s->n_expert_used, s->n_layer_moe);
    print_row("experts", s->expert_bytes, note);
    printf("%-20s%12s  %s\n", "KV cache", "", "not known for this family");
}

static int print_missing_json(const moe_file_summary *s)
{
    struct json_object *object = json_object_new_object();
    cli_json_put(object, "fits", json_object_new_boolean(false));
    cli_json_put(object, "runnable", json_object_new_boolean(false));
    cli_json_text(object, "why_not", s->why_not);
    cli_json_u64(object, "resident_bytes", s->resident_bytes);
    cli_json_u64(object, "expert_bytes", s->expert_bytes);
    cli_json_u64(object, "experts", (uint64_t)s->n_expert * s->n_layer_moe);
    cli_json_u64(object, "largest_expert_bytes", s->largest_expert_bytes);
    cli_json_u64(object, "context_most", s->context_train);
    return cli_json_print(object, stdout);
}

/* Prints what the header says, if the engine knows the family by name. */
static int plan_missing(const cli_options *options)
{
    moe_file *file = NULL;
    moe_file_summary summary = {.struct_size = sizeof summary};
    if (moe_file_open(&file, options->model, NULL) != MOE_OK) {
        return CLI_EXIT_OK; /* the caller reports why */
    }
    moe_file_get_summary(file, &summary);
    int code = CLI_EXIT_OK;
    if (!summary.runnable && summary.expert_bytes > 0) {
        if (options->json) {
            code = print_missing_json(&summary);
        } else {
            print_missing(&summary);
        }
    }
    moe_file_close(&file);
    return code;
}

static int print_plan(const cli_options *options, const moe_engine_options *engine_options,
                      const moe_memory_plan *plan, bool fits, const expectation *expected,
                      const moe_memory_plan *other, const expectation *then,
                      const cli_plan_workers *workers)
{
    const advice a = fits ? advise(engine_options, options, plan, expected) : (advice){0};
    if (options->json) {
        return print_json(plan, fits, expected, &a, other, then, workers);
    }
    (plan->has_device_memory ? print_tiers : print_table)(plan, fits);
    if (fits) {
        print_speed(plan, expected);
        print_advice(&a, plan);
    }
    if (other->experts > 0) {
        print_change(options, expected, other, then);
    }
    if (workers->estimate.workers > 0) {
        cli_plan_workers_print(workers);
    }
    return CLI_EXIT_OK;
}

/* Asks the workers, once the rates of this machine are known. */
static int ask_workers(cli_plan_workers *workers, const cli_options *options,
                       const moe_engine_options *engine_options, const moe_memory_plan *plan,
                       const expectation *expected)
{
    moe_engine_options asking = *engine_options;
    asking.progress = NULL; /* of measuring, which has ended */
    asking.pass_progress = NULL;
    if (options->model_is_header) {
        return cli_fail(CLI_EXIT_FAILURE, "--workers: workers know a model by its weights, and "
                                          "only its header is here: download it first");
    }
    return cli_plan_workers_ask(workers, &asking, plan, &expected->rates);
}

/* Fails if the budget is below the floor or the model cannot run, but first prints as much of the
 * plan as there is. */
int cmd_plan(const cli_options *given)
{
    cli_options speculating = *given; /* as run would speculate, since this plan is for run */
    const cli_options *options = &speculating;
    cli_speculate_by_default(&speculating);
    cli_engine_settings settings;
    moe_memory_plan plan = {.struct_size = sizeof plan};
    moe_error err = {""};
    int code = cli_engine_options(&settings, options, options->context);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    settings.options.sessions = (uint32_t)options->bench_parallel;
    int status = moe_plan_memory(&settings.options, &plan, &err);
    if (status != MOE_OK && status != MOE_ERR_BUDGET) {
        code = status == MOE_ERR_UNSUPPORTED ? plan_missing(options) : CLI_EXIT_OK;
        return code == CLI_EXIT_OK ? cli_report(status, &err) : code;
    }
    bool fits = status == MOE_OK;
    expectation expected = {.trace = NULL}, then = {.trace = NULL};
    moe_memory_plan other = {.struct_size = sizeof other};
    if (fits) {
        code = expect_speed(&settings.options, options, &plan, &expected);
    }
    if (code == CLI_EXIT_OK && fits && options->what_if != NULL) {
        code = expect_change(settings.options, options, &expected, &other, &then);
    }
    cli_plan_workers workers = {.n = 0};
    if (code == CLI_EXIT_OK && fits && settings.options.n_workers > 0) {
        code = ask_workers(&workers, options, &settings.options, &plan, &expected);
    }
    if (code == CLI_EXIT_OK) {
        code =
            print_plan(options, &settings.options, &plan, fits, &expected, &other, &then, &workers);
    }
    cli_plan_workers_free(&workers);
    moe_trace_close(&expected.trace);
    return status == MOE_OK || code != CLI_EXIT_OK ? code : cli_report(status, &err);
}
