/* SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include <json-c/json.h>
#include <moe/workers.h>

#include "cli_format.h"
#include "cli_generate.h"
#include "cli_json.h"
#include "cli_hash.h"

static const char *const stop_words[] = {
    [CLI_STOP_LENGTH] = "length",   [CLI_STOP_END] = "end",
    [CLI_STOP_CONTEXT] = "context", [CLI_STOP_INTERRUPTED] = "interrupted",
    [CLI_STOP_FAILED] = "failed",
};

static const char *const stop_reasons[] = {
    [CLI_STOP_LENGTH] = "-n reached",    [CLI_STOP_END] = "end of the text",
    [CLI_STOP_CONTEXT] = "context full", [CLI_STOP_INTERRUPTED] = "interrupted",
    [CLI_STOP_FAILED] = "failed",
};

static void put_workers_json(struct json_object *object, const moe_engine *engine,
                             const moe_engine_stats *s)
{
    cli_json_u64(object, "workers", s->workers);
    cli_json_u64(object, "workers_ready", s->workers_ready);
    cli_json_u64(object, "worker_jobs", s->worker_jobs);
    cli_json_u64(object, "worker_experts", s->worker_experts);
    cli_json_u64(object, "worker_rows", s->worker_rows);
    cli_json_u64(object, "worker_bytes_sent", s->worker_bytes_sent);
    cli_json_u64(object, "worker_bytes_received", s->worker_bytes_received);
    cli_json_real(object, "worker_wait_seconds", cli_seconds(s->worker_wait_ns));
    cli_json_u64(object, "worker_experts_lost", s->worker_experts_lost);
    cli_json_u64(object, "workers_lost", s->workers_lost);
    struct json_object *list = json_object_new_array();
    for (uint32_t i = 0; i < s->workers; i++) {
        moe_worker_info info = {.struct_size = sizeof info};
        struct json_object *worker = json_object_new_object();
        (void)moe_engine_get_worker(engine, i, &info, NULL);
        cli_json_text(worker, "address", info.name);
        cli_json_put(worker, "ready", json_object_new_boolean(info.ready != 0));
        cli_json_u64(worker, "experts", info.experts);
        cli_json_u64(worker, "slots", info.slots);
        cli_json_u64(worker, "jobs", info.jobs);
        cli_json_u64(worker, "computed", info.computed);
        cli_json_u64(worker, "lost", info.lost);
        cli_json_append(list, worker);
    }
    cli_json_put(object, "worker_list", list);
}

static void put_expert_json(struct json_object *object, const moe_engine_info *info,
                            const moe_engine_stats *stats)
{
    cli_json_u64(object, "expert_evictions", stats->expert_evictions);
    cli_json_u64(object, "expert_slots", stats->expert_slots);
    cli_json_real(object, "expert_wait_seconds", cli_seconds(stats->expert_wait_ns));
    cli_json_u64(object, "bytes_demand", stats->bytes_demand);
    cli_json_u64(object, "bytes_prefetch", stats->bytes_prefetch);
    cli_json_u64(object, "prefetches", stats->prefetches);
    cli_json_u64(object, "prefetches_used", stats->prefetches_used);
    cli_json_u64(object, "prefetches_wasted", stats->prefetches_wasted);
    cli_json_u64(object, "prefetches_cancelled", stats->prefetches_cancelled);
    cli_json_u64(object, "predicted_experts", stats->predicted_experts);
    cli_json_u64(object, "predicted_right", stats->predicted_right);
    cli_json_u64(object, "bytes_disk_demand", stats->bytes_disk_demand);
    cli_json_u64(object, "bytes_disk_prefetch", stats->bytes_disk_prefetch);
    cli_json_u64(object, "host_hits", stats->host_hits);
    cli_json_u64(object, "host_misses", stats->host_misses);
    cli_json_u64(object, "host_computed", stats->host_computed);
    cli_json_u64(object, "host_slots", stats->host_slots);
    cli_json_u64(object, "experts_demoted", stats->experts_demoted);
    cli_json_u64(object, "demotions_lost", stats->demotions_lost);
    cli_json_u64(object, "demoted_hits", stats->demoted_hits);
    cli_json_u64(object, "bytes_demoted", stats->bytes_demoted);
    cli_json_u64(object, "read_in_place", stats->read_in_place);
    cli_json_u64(object, "bytes_in_place", stats->bytes_in_place);
    cli_json_real(object, "oracle_seconds", cli_seconds(stats->oracle_ns));
    cli_json_put(object, "simulated", json_object_new_boolean(info->device_simulated));
    cli_json_text(object, "policy", info->policy);
    cli_json_text(object, "io", info->io);
    cli_json_u64(object, "memory_budget_bytes", info->memory.budget);
}

static void put_counts(struct json_object *object, const char *name, const uint64_t *counts,
                       size_t n)
{
    struct json_object *array = json_object_new_array();
    for (size_t i = 0; i < n; i++) {
        json_object_array_add(array, json_object_new_uint64(counts[i]));
    }
    cli_json_put(object, name, array);
}

/* Layers without experts, and layers that the model does not have, request no experts. */
static size_t n_layers_of(const moe_speculation_stats *s)
{
    size_t n = MOE_FORESIGHT_LAYERS;
    while (n > 0 && s->foresight_asked_of[n - 1] == 0) {
        n--;
    }
    return n;
}

static void put_speculation_json(struct json_object *object, const moe_speculation_stats *s)
{
    cli_json_u64(object, "drafted", s->drafted);
    cli_json_u64(object, "accepted", s->accepted);
    cli_json_u64(object, "verify_passes", s->passes);
    cli_json_u64(object, "draft_passes", s->draft_passes);
    cli_json_u64(object, "draft_passes_recorded", s->draft_passes_recorded);
    cli_json_u64(object, "draft_recordings", s->draft_recordings);
    cli_json_u64(object, "draft_moves", s->draft_moves);
    cli_json_real(object, "tokens_per_verification",
                  s->sequences > 0 ? (double)s->emitted / (double)s->sequences : 1.0);
    cli_json_real(object, "draft_seconds", cli_seconds(s->draft_ns));
    cli_json_real(object, "verify_seconds", cli_seconds(s->verify_ns));
    put_counts(object, "drafted_by", s->drafted_by, MOE_DRAFT_KINDS);
    cli_json_u64(object, "drafted_by_head", s->drafted_by_head);
    cli_json_u64(object, "accepted_by_head", s->accepted_by_head);
    put_counts(object, "accepted_by", s->accepted_by, MOE_DRAFT_KINDS);
    put_counts(object, "drafted_at", s->drafted_at, MOE_DRAFT_POSITIONS);
    put_counts(object, "accepted_at", s->accepted_at, MOE_DRAFT_POSITIONS);
    cli_json_u64(object, "foresight_asked", s->foresight_asked);
    cli_json_u64(object, "foresight_right", s->foresight_right);
    put_counts(object, "foresight_asked_of", s->foresight_asked_of, n_layers_of(s));
    put_counts(object, "foresight_right_of", s->foresight_right_of, n_layers_of(s));
    put_counts(object, "foresight_picks_at", s->foresight_picks_at, MOE_DRAFT_POSITIONS);
    put_counts(object, "foresight_right_at", s->foresight_right_at, MOE_DRAFT_POSITIONS);
    cli_json_u64(object, "verify_bytes_ready", s->verify_bytes_ready);
    cli_json_u64(object, "verify_bytes_loading", s->verify_bytes_loading);
    cli_json_u64(object, "verify_bytes_queued", s->verify_bytes_queued);
    cli_json_u64(object, "verify_bytes_predicted", s->verify_bytes_predicted);
    cli_json_u64(object, "verify_bytes_missed", s->verify_bytes_missed);
    cli_json_u64(object, "bytes_foresight", s->bytes_foresight);
    cli_json_u64(object, "cut_by_budget", s->cut_by_budget);
    cli_json_u64(object, "lookahead_passes", s->lookahead_passes);
    cli_json_u64(object, "lookahead_tokens", s->lookahead_tokens);
    cli_json_u64(object, "lookahead_stood", s->lookahead_stood);
    cli_json_u64(object, "lookahead_named", s->lookahead_named);
    cli_json_u64(object, "lookahead_used", s->lookahead_used);
    cli_json_real(object, "lookahead_seconds", cli_seconds(s->lookahead_ns));
    cli_json_real(object, "lookahead_hidden_seconds", cli_seconds(s->lookahead_hidden_ns));
    cli_json_real(object, "utility", s->utility);
    cli_json_real(object, "utility_mean", s->utility_mean);
    cli_json_real(object, "utility_worst", s->utility_worst);
}

void cli_put_lossy_json(struct json_object *object, const moe_lossy_stats *l)
{
    bool measured = l->compared > 0;
    cli_json_u64(object, "lossy_picks", l->picks);
    cli_json_u64(object, "lossy_replaced", l->replaced);
    cli_json_u64(object, "lossy_dropped", l->dropped);
    cli_json_u64(object, "lossy_compared", l->compared);
    if (measured) {
        cli_json_u64(object, "lossy_agreed", l->agreed);
    } else {
        cli_json_null(object, "lossy_agreed");
    }
    cli_json_real(object, "lossy_mean_kl", measured ? l->mean_kl : NAN);
    cli_json_real(object, "lossy_max_kl", measured ? l->max_kl : NAN);
    cli_json_real(object, "lossy_mass_kept", l->mass_kept);
    cli_json_put(object, "lossy_output_error", json_object_new_double(l->output_error));
    cli_json_u64(object, "low_bit_picks", l->low_bit_picks);
    cli_json_u64(object, "low_bit_experts", l->low_bit_experts);
    cli_json_u64(object, "low_bit_hits", l->low_bit_hits);
    cli_json_u64(object, "low_bit_misses", l->low_bit_misses);
    cli_json_u64(object, "low_bit_bytes", l->low_bit_bytes);
    cli_json_u64(object, "low_bit_slots", l->low_bit_slots);
    cli_json_real(object, "low_bit_mass", l->low_bit_mass);
}

static int print_json(const moe_engine *engine, const moe_engine_info *info,
                      const moe_engine_stats *stats, const cli_answer *answer, uint64_t seed,
                      uint64_t load_ns)
{
    char hash[CLI_HASH_HEX_SIZE];
    char fingerprint[CLI_FORMAT_SIZE];
    cli_hash_tokens((const int32_t *)answer->tokens.data, cli_answer_n_tokens(answer), hash);
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, info->fingerprint);
    struct json_object *object = json_object_new_object();
    cli_json_u64(object, "prompt_tokens", answer->prompt_tokens);
    cli_json_real(object, "prompt_seconds", cli_seconds(answer->prompt_ns));
    cli_json_real(object, "prompt_tokens_per_s",
                  cli_per_second(answer->prompt_tokens, answer->prompt_ns));
    cli_json_u64(object, "decode_tokens", cli_answer_n_tokens(answer));
    cli_json_real(object, "decode_seconds", cli_seconds(answer->decode_ns));
    cli_json_real(object, "decode_tokens_per_s",
                  cli_per_second(answer->decode_steps, answer->decode_ns));
    cli_json_text(object, "stop", stop_words[answer->stop]);
    cli_json_text(object, "tokens_xxh128", hash);
    cli_json_text(object, "reasoning", answer->reasoning.size > 0 ? answer->reasoning.data : "");
    cli_json_u64(object, "seed", seed);
    cli_json_real(object, "load_seconds", cli_seconds(load_ns));
    cli_json_real(object, "open_plan_seconds", cli_seconds(stats->open_plan_ns));
    cli_json_real(object, "open_memory_seconds", cli_seconds(stats->open_memory_ns));
    cli_json_real(object, "open_weights_seconds", cli_seconds(stats->open_weights_ns));
    cli_json_u64(object, "open_weights_bytes", stats->open_weights_bytes);
    cli_json_u64(object, "passes", stats->passes);
    cli_json_u64(object, "passes_recorded", stats->passes_recorded);
    cli_json_u64(object, "passes_missed", stats->passes_missed);
    cli_json_u64(object, "passes_resumed", stats->passes_resumed);
    cli_json_u64(object, "expert_hits", stats->expert_hits);
    cli_json_u64(object, "expert_misses", stats->expert_misses);
    cli_json_u64(object, "bytes_read_disk", stats->bytes_read_disk);
    cli_json_u64(object, "bytes_moved_link", stats->bytes_moved_link);
    put_expert_json(object, info, stats);
    cli_json_u64(object, "disk_retries", stats->disk_retries);
    cli_json_u64(object, "expert_failures", stats->expert_failures);
    cli_json_u64(object, "expert_timeouts", stats->expert_timeouts);
    cli_json_u64(object, "policy_faults", stats->policy_faults);
    cli_json_u64(object, "rows_taken", stats->rows_taken);
    cli_json_u64(object, "rows_waited", stats->rows_waited);
    cli_json_real(object, "rows_wait_seconds", cli_seconds(stats->rows_wait_ns));
    cli_json_u64(object, "rows_read", stats->rows_read);
    cli_json_u64(object, "rows_bytes_disk", stats->rows_bytes_disk);
    cli_json_u64(object, "rows_failed", stats->rows_failed);
    put_workers_json(object, engine, stats);
    put_speculation_json(object, &stats->speculation);
    cli_json_put(object, "lossy", json_object_new_boolean(stats->lossy.picks > 0));
    cli_json_put(object, "lossy_on", json_object_new_boolean(stats->lossy.on));
    cli_put_lossy_json(object, &stats->lossy);
    cli_json_u64(object, "resident_bytes", stats->resident_bytes_now);
    cli_json_u64(object, "peak_rss_bytes", cli_peak_rss_bytes());
    cli_json_text(object, "device", info->device);
    cli_json_text(object, "kernels", info->kernels);
    cli_json_u64(object, "threads", info->n_threads);
    cli_json_u64(object, "context", info->context);
    cli_json_text(object, "model_fingerprint", fingerprint);
    return cli_json_print(object, stderr);
}

static void print_faults(const moe_engine_stats *stats)
{
    if (stats->disk_retries + stats->expert_failures + stats->expert_timeouts > 0) {
        fprintf(stderr,
                "disk: %" PRIu64 " reads made again, %" PRIu64 " experts not read, %" PRIu64
                " waits timed out\n",
                stats->disk_retries, stats->expert_failures, stats->expert_timeouts);
    }
    if (stats->rows_failed > 0) {
        fprintf(stderr, "row table: %" PRIu64 " rows not read\n", stats->rows_failed);
    }
    if (stats->policy_faults > 0) {
        fprintf(stderr, "policy: %" PRIu64 " nominations that could not be evicted\n",
                stats->policy_faults);
    }
}

/* Prints statistics that only the overlap baseline, and a device with its own memory, have. */
static void print_tiers(const moe_engine_info *info, const moe_engine_stats *stats)
{
    char link_bytes[CLI_FORMAT_SIZE];
    if (stats->oracle_ns > 0) {
        fprintf(stderr,
                "baseline overlap: knows by an oracle what comes; the oracle's %.2f s are in no "
                "figure above\n",
                cli_seconds(stats->oracle_ns));
    }
    if (!info->memory.has_device_memory) {
        return;
    }
    fprintf(stderr,
            "device: %s; %s over the link; of its misses %" PRIu64 " found in host memory (%" PRIu64
            " computed there), %" PRIu64 " read\n",
            info->device, cli_format_bytes(link_bytes, stats->bytes_moved_link), stats->host_hits,
            stats->host_computed, stats->host_misses);
    if (stats->experts_demoted > 0) {
        fprintf(stderr,
                "evicted experts: %" PRIu64
                " copied back to host memory (%s), and found there %" PRIu64 " times\n",
                stats->experts_demoted, cli_format_bytes(link_bytes, stats->bytes_demoted),
                stats->demoted_hits);
    }
    if (info->device_simulated) {
        fputs("all times and speeds are simulated: no such device was there\n", stderr);
    }
}

static double percent_of(uint64_t part, uint64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0.0;
}

static void print_lookahead(const moe_speculation_stats *s)
{
    if (s->lookahead_passes == 0) {
        return;
    }
    fprintf(stderr, "lookahead: %.0f %% of the experts that a draft named were used",
            percent_of(s->lookahead_used, s->lookahead_named));
    if (s->lookahead_tokens > 0) {
        fprintf(stderr, ", %.0f %% of its tokens came",
                percent_of(s->lookahead_stood, s->lookahead_tokens));
    }
    fprintf(stderr, "; %" PRIu64 " passes in %.1f s, of which %.1f s while waiting for experts\n",
            s->lookahead_passes, cli_seconds(s->lookahead_ns), cli_seconds(s->lookahead_hidden_ns));
}

static void print_speculation(const moe_speculation_stats *s)
{
    if (s->drafted == 0) {
        return;
    }
    fprintf(stderr,
            "speculation: %" PRIu64 " of %" PRIu64
            " drafted tokens accepted (%.0f %%), %.2f tokens a verification",
            s->accepted, s->drafted, percent_of(s->accepted, s->drafted),
            (double)s->emitted / (double)s->sequences);
    if (s->draft_passes > 0) {
        fprintf(stderr,
                "; %" PRIu64 " draft passes, which foresaw %.0f %% of the experts asked for",
                s->draft_passes, percent_of(s->foresight_right, s->foresight_asked));
    }
    uint64_t hidden = s->verify_bytes_ready + s->verify_bytes_loading;
    uint64_t needed =
        hidden + s->verify_bytes_queued + s->verify_bytes_predicted + s->verify_bytes_missed;
    if (needed > 0) {
        fprintf(stderr,
                "; of what verification had to bring, %.0f %% was there when it asked and %.0f %% "
                "on its way",
                percent_of(s->verify_bytes_ready, needed),
                percent_of(s->verify_bytes_loading, needed));
    }
    fprintf(stderr, "\n");
}

void cli_print_lossy(const moe_lossy_stats *l)
{
    if (l->picks == 0) {
        return;
    }
    fprintf(stderr, "LOSSY%s: %.1f %% of the routers' choices replaced, %.1f %% dropped; ",
            l->on ? "" : " (turned off by the quality limit)", percent_of(l->replaced, l->picks),
            percent_of(l->dropped, l->picks));
    if (l->low_bit_slots > 0) {
        fprintf(stderr, "%.1f %% by low-bit copies (%.1f %% of the router's weight); ",
                percent_of(l->low_bit_picks, l->picks), 100 * l->low_bit_mass);
    }
    if (l->compared == 0) {
        fputs("divergence from the exact pass: not measured\n", stderr);
        return;
    }
    fprintf(stderr,
            "on %" PRIu64 " position%s compared with the exact pass: KL %.4f (worst %.3f), "
            "same token %.1f %%\n",
            l->compared, l->compared == 1 ? "" : "s", l->mean_kl, l->max_kl,
            percent_of(l->agreed, l->compared));
}

static void print_workers(const moe_engine *engine, const moe_engine_stats *s)
{
    char sent[CLI_FORMAT_SIZE];
    char received[CLI_FORMAT_SIZE];
    if (s->workers == 0) {
        return;
    }
    fprintf(stderr,
            "workers: %u of %u answer; %" PRIu64 " experts computed there (%" PRIu64
            " rows), in %" PRIu64 " jobs; %s sent, %s received, %.2f s waited",
            s->workers_ready, s->workers, s->worker_experts, s->worker_rows, s->worker_jobs,
            cli_format_bytes(sent, s->worker_bytes_sent),
            cli_format_bytes(received, s->worker_bytes_received), cli_seconds(s->worker_wait_ns));
    if (s->workers_lost > 0) {
        fprintf(stderr, "; left out %" PRIu64 " times, %" PRIu64 " experts computed here instead",
                s->workers_lost, s->worker_experts_lost);
    }
    fprintf(stderr, "\n");
    for (uint32_t i = 0; i < s->workers; i++) {
        moe_worker_info info = {.struct_size = sizeof info};
        (void)moe_engine_get_worker(engine, i, &info, NULL);
        if (info.ready != 0) {
            fprintf(stderr, "  %s: has %" PRIu64 " experts, computed %" PRIu64 "\n", info.name,
                    info.experts, info.computed);
        } else {
            fprintf(stderr, "  %s: does not answer; computed %" PRIu64 "\n", info.name,
                    info.computed);
        }
    }
}

static void print_text(const moe_engine *engine, const moe_engine_info *info,
                       const moe_engine_stats *stats, const cli_answer *answer)
{
    char read_bytes[CLI_FORMAT_SIZE];
    char rss[CLI_FORMAT_SIZE];
    fprintf(stderr, "prompt: %" PRIu64 " tokens in %.2f s, %.1f tokens/s\n", answer->prompt_tokens,
            cli_seconds(answer->prompt_ns),
            cli_per_second(answer->prompt_tokens, answer->prompt_ns));
    fprintf(stderr, "decode: %zu tokens in %.2f s, %.1f tokens/s (%s)\n",
            cli_answer_n_tokens(answer), cli_seconds(answer->decode_ns),
            cli_per_second(answer->decode_steps, answer->decode_ns), stop_reasons[answer->stop]);
    fprintf(stderr, "experts: %" PRIu64 " found in memory, %" PRIu64 " read (%s); peak memory %s\n",
            stats->expert_hits, stats->expert_misses,
            cli_format_bytes(read_bytes, stats->bytes_read_disk),
            cli_format_bytes(rss, cli_peak_rss_bytes()));
    fprintf(stderr,
            "cache: %" PRIu64 " slots, %s; %" PRIu64 " evicted; %" PRIu64 " of %" PRIu64
            " read-aheads used; %.2f s waited\n",
            stats->expert_slots, info->policy, stats->expert_evictions, stats->prefetches_used,
            stats->prefetches, cli_seconds(stats->expert_wait_ns));
    if (stats->rows_taken > 0) {
        fprintf(stderr,
                "row table: %" PRIu64 " rows, %" PRIu64 " read (%s); %" PRIu64
                " waited for, %.2f s\n",
                stats->rows_taken, stats->rows_read,
                cli_format_bytes(read_bytes, stats->rows_bytes_disk), stats->rows_waited,
                cli_seconds(stats->rows_wait_ns));
    }
    print_workers(engine, stats);
    print_faults(stats);
    print_tiers(info, stats);
    print_speculation(&stats->speculation);
    print_lookahead(&stats->speculation);
}

int cli_print_statistics(const moe_engine *engine, const cli_options *options,
                         const cli_answer *answer, uint64_t seed, uint64_t load_ns)
{
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_info(engine, &info);
    moe_engine_get_stats(engine, &stats);
    if (options->json) {
        return print_json(engine, &info, &stats, answer, seed, load_ns);
    }
    if (!options->quiet) {
        print_text(engine, &info, &stats, answer);
    }
    cli_print_lossy(&stats.lossy); /* a reader of the text must know, even with --quiet */
    if (!options->quiet) {
        char opening[4 * CLI_FORMAT_SIZE];
        fprintf(stderr, "loaded in %.2f s %s; %u threads; %s; seed %" PRIu64 "\n",
                cli_seconds(load_ns), cli_format_opening(opening, &stats), info.n_threads,
                info.kernels, seed);
    }
    return CLI_EXIT_OK;
}
