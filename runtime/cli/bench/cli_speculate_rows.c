/* SPDX-License-Identifier: MIT */
#include "cli_speculate_rows.h"

#include <math.h>
#include <stdio.h>

#define ACCEPTED_POSITIONS 8
#define NAME_SIZE          48

/* part / whole, or 0 if the whole is 0. */
static double share_of(uint64_t part, uint64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : (double)NAN;
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100.0 * part / whole : 0;
}

/* sum += after - before, over n consecutive counters. */
static void add_counts(uint64_t *sum, const uint64_t *before, const uint64_t *after, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        sum[i] += after[i] - before[i];
    }
}

static void add_foresight(moe_speculation_stats *s, const moe_speculation_stats *b,
                          const moe_speculation_stats *a)
{
    s->foresight_asked += a->foresight_asked - b->foresight_asked;
    s->foresight_right += a->foresight_right - b->foresight_right;
    s->bytes_foresight += a->bytes_foresight - b->bytes_foresight;
    s->verify_bytes_ready += a->verify_bytes_ready - b->verify_bytes_ready;
    s->verify_bytes_loading += a->verify_bytes_loading - b->verify_bytes_loading;
    s->verify_bytes_queued += a->verify_bytes_queued - b->verify_bytes_queued;
    s->verify_bytes_predicted += a->verify_bytes_predicted - b->verify_bytes_predicted;
    s->verify_bytes_missed += a->verify_bytes_missed - b->verify_bytes_missed;
    add_counts(s->foresight_asked_of, b->foresight_asked_of, a->foresight_asked_of,
               MOE_FORESIGHT_LAYERS);
    add_counts(s->foresight_right_of, b->foresight_right_of, a->foresight_right_of,
               MOE_FORESIGHT_LAYERS);
    add_counts(s->foresight_picks_at, b->foresight_picks_at, a->foresight_picks_at,
               MOE_DRAFT_POSITIONS);
    add_counts(s->foresight_right_at, b->foresight_right_at, a->foresight_right_at,
               MOE_DRAFT_POSITIONS);
}

void cli_speculate_add_stats(moe_engine_stats *sum, const moe_engine_stats *before,
                             const moe_engine_stats *after)
{
    const moe_speculation_stats *a = &after->speculation, *b = &before->speculation;
    moe_speculation_stats *s = &sum->speculation;
    sum->passes += after->passes - before->passes;
    sum->expert_hits += after->expert_hits - before->expert_hits;
    sum->expert_misses += after->expert_misses - before->expert_misses;
    sum->bytes_demand += after->bytes_demand - before->bytes_demand;
    sum->bytes_prefetch += after->bytes_prefetch - before->bytes_prefetch;
    sum->bytes_moved_link += after->bytes_moved_link - before->bytes_moved_link;
    sum->bytes_read_disk += after->bytes_read_disk - before->bytes_read_disk;
    sum->expert_wait_ns += after->expert_wait_ns - before->expert_wait_ns;
    s->drafted += a->drafted - b->drafted;
    s->accepted += a->accepted - b->accepted;
    s->modelled_cost += a->modelled_cost - b->modelled_cost;
    s->modelled_plain_cost += a->modelled_plain_cost - b->modelled_plain_cost;
    s->emitted += a->emitted - b->emitted;
    s->sequences += a->sequences - b->sequences;
    s->draft_passes += a->draft_passes - b->draft_passes;
    s->draft_ns += a->draft_ns - b->draft_ns;
    s->verify_ns += a->verify_ns - b->verify_ns;
    add_foresight(s, b, a);
    add_counts(s->drafted_at, b->drafted_at, a->drafted_at, MOE_DRAFT_POSITIONS);
    add_counts(s->accepted_at, b->accepted_at, a->accepted_at, MOE_DRAFT_POSITIONS);
    s->utility_mean = a->utility_mean; /* a mean over the whole run so far */
    s->utility_worst = a->utility_worst;
    sum->lossy = after->lossy;
}

static void add_byte_cells(cli_bench_table *table, const moe_engine_stats *s, double tokens)
{
    const moe_speculation_stats *p = &s->speculation;
    double mib = 1048576.0 * tokens;
    cli_bench_real(table, "misses_per_token", 3, (double)s->expert_misses / tokens);
    cli_bench_real(table, "demand_mib_per_token", 4, (double)s->bytes_demand / mib);
    cli_bench_real(table, "prefetch_mib_per_token", 4, (double)s->bytes_prefetch / mib);
    cli_bench_real(table, "foresight_mib_per_token", 4, (double)p->bytes_foresight / mib);
    cli_bench_real(table, "link_mib_per_token", 4, (double)s->bytes_moved_link / mib);
    cli_bench_real(table, "disk_mib_per_token", 4, (double)s->bytes_read_disk / mib);
}

/* For the bytes that verification needed and that were not in memory when the draft began: the
 * shares that were loaded, or on their way, when verification requested them. */
static void add_foresight_cells(cli_bench_table *table, const moe_speculation_stats *p)
{
    uint64_t hidden = p->verify_bytes_ready + p->verify_bytes_loading;
    uint64_t needed =
        hidden + p->verify_bytes_queued + p->verify_bytes_predicted + p->verify_bytes_missed;
    cli_bench_real(table, "foreseen_percent", 1, share_of(p->foresight_right, p->foresight_asked));
    cli_bench_real(table, "hidden_percent", 1, share_of(hidden, needed));
    cli_bench_real(table, "hidden_ready_percent", 1, share_of(p->verify_bytes_ready, needed));
}

void cli_speculate_add_cells(cli_bench_table *table, const moe_engine_stats *s, double tokens,
                             double seconds)
{
    const moe_speculation_stats *p = &s->speculation;
    const moe_lossy_stats *l = &s->lossy;
    cli_bench_real(table, "tau", 3,
                   p->sequences > 0 ? (double)p->emitted / (double)p->sequences : 1);
    cli_bench_real(table, "utility", 4, p->utility_mean);
    cli_bench_real(table, "utility_worst", 4, p->utility_worst);
    cli_bench_real(table, "accepted_percent", 1, percent((double)p->accepted, (double)p->drafted));
    cli_bench_real(table, "draft_passes_per_token", 3, (double)p->draft_passes / tokens);
    cli_bench_real(table, "experts_per_pass", 1,
                   (double)(s->expert_hits + s->expert_misses) / (double)s->passes);
    add_byte_cells(table, s, tokens);
    cli_bench_real(table, "wait_percent", 1, percent(1e-9 * (double)s->expert_wait_ns, seconds));
    cli_bench_real(table, "draft_percent", 1, percent(1e-9 * (double)p->draft_ns, seconds));
    add_foresight_cells(table, p);
    cli_bench_real(table, "replaced_percent", 2,
                   percent((double)(l->replaced + l->dropped), (double)l->picks));
    cli_bench_real(table, "kl_nats", 5, l->mean_kl);
    cli_bench_real(table, "mass_kept_percent", 2, 100.0 * l->mass_kept);
    cli_bench_real(table, "output_error", 5, l->output_error);
    for (int i = 0; i < ACCEPTED_POSITIONS; i++) {
        char name[NAME_SIZE];
        snprintf(name, sizeof name, "accepted_at_%d", i + 1);
        cli_bench_real(table, name, 3,
                       p->drafted_at[i] > 0 ? (double)p->accepted_at[i] / (double)p->drafted_at[i]
                                            : 0);
    }
}

/* ---- Recall ---- */

void cli_speculate_widen(cli_speculate_extent *extent, const moe_speculation_stats *s)
{
    for (size_t l = 0; l < MOE_FORESIGHT_LAYERS; l++) {
        if (s->foresight_asked_of[l] > 0 && l >= extent->n_layers) {
            extent->n_layers = l + 1;
        }
    }
    for (size_t i = 0; i < MOE_DRAFT_POSITIONS; i++) {
        if (s->foresight_picks_at[i] > 0 && i >= extent->n_positions) {
            extent->n_positions = i + 1;
        }
    }
}

static void add_recall(cli_bench_table *table, const moe_speculation_stats *s,
                       const cli_speculate_extent *extent, const char *prefix, bool detail)
{
    char name[NAME_SIZE];
    for (size_t l = 0; l < extent->n_layers; l++) {
        snprintf(name, sizeof name, "%slayer_%zu", prefix, l);
        cli_bench_real(table, name, 1,
                       share_of(s->foresight_right_of[l], s->foresight_asked_of[l]));
        if (detail) {
            cli_bench_detail(table);
        }
    }
    for (size_t i = 0; i < extent->n_positions; i++) {
        snprintf(name, sizeof name, "%sposition_%zu", prefix, i);
        cli_bench_real(table, name, 1,
                       share_of(s->foresight_right_at[i], s->foresight_picks_at[i]));
        if (detail) {
            cli_bench_detail(table);
        }
    }
}

void cli_speculate_add_recall(cli_bench_table *table, const moe_speculation_stats *stats,
                              const cli_speculate_extent *extent)
{
    add_recall(table, stats, extent, "foreseen_", true);
}

void cli_speculate_add_recall_cells(cli_bench_table *table, const moe_speculation_stats *stats,
                                    const cli_speculate_extent *extent)
{
    add_recall(table, stats, extent, "", false);
}
