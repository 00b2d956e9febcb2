/* SPDX-License-Identifier: MIT */
/* cli_report_predict(): replays the recorded routing in the simulator, with the measured speeds of
 * drive and processor. The cost of a read beside its bytes (or the drive's speed during the run) is
 * fitted so that the first run's simulated time equals the measured one. The other runs then show
 * how good the predictions are. */
#include <math.h>
#include <string.h>

#include "cli_engine.h"
#include "cli_format.h"
#include "cli_report.h"

const char *const cli_report_policies[CLI_REPORT_POLICIES] = {"lfru", "lru", "s3-fifo", "arc",
                                                              "belady"};

#define PIECE_BYTES 1048576.0
#define PIECES      16 /* pieces that the engine has in flight */

/* A machine, as the simulator models it. */
typedef struct machine {
    uint64_t slots;
    double bytes_per_s, latency_s, compute_s; /* compute_s: time of a token */
} machine;

static double expert_bytes(const cli_report_data *r)
{
    return (double)r->plan.expert_bytes / (double)r->plan.experts;
}

double cli_report_memory(const cli_report_data *r, uint64_t slots)
{
    return (double)(r->plan.total - r->plan.expert_cache) + (double)slots * expert_bytes(r);
}

/* If all experts fit, no pass waits for experts once all have been read. */
static void keep_all(const cli_report_data *r, const machine *m, moe_simulation_result *result)
{
    result->hit_rate = 1;
    result->stall_s = 0;
    result->n_tokens = r->n_ids - r->n_warm_up;
    result->total_s = (double)result->n_tokens * m->compute_s;
}

static int simulate(const cli_report_data *r, const char *policy, const machine *m,
                    moe_simulation_result *result)
{
    if (m->slots >= r->plan.experts) {
        keep_all(r, m, result);
        return CLI_EXIT_OK;
    }
    const double pieces = 3 * fmax(1, ceil(expert_bytes(r) / 3 / PIECE_BYTES));
    moe_simulation simulation;
    moe_error err = {""};
    moe_simulation_init(&simulation);
    simulation.policy = policy;
    simulation.n_slots = (uint32_t)m->slots;
    simulation.warm_up = r->n_warm_up;
    simulation.expert_bytes = (uint64_t)expert_bytes(r);
    simulation.bytes_per_s = m->bytes_per_s;
    simulation.latency_s = m->latency_s;
    simulation.depth = (uint32_t)fmax(1, floor(PIECES / pieces));
    simulation.compute_s = m->compute_s / r->model.n_layer_moe;
    result->struct_size = sizeof *result;
    int status = moe_simulate(r->trace, &simulation, result, &err);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

static double tokens_per_s(const moe_simulation_result *result)
{
    return result->total_s > 0 ? (double)result->n_tokens / result->total_s : 0;
}

/* Returns the computing time of the run that misses least. In other runs reads also take the
 * processor's time, which counts as a read's cost. */
static const cli_report_range *computing(const cli_report_data *r)
{
    return &r->runs[r->n_runs - 1].compute_s;
}

/* Predicts with the slowest, the middle and the fastest measurements of drive and processor. Widens
 * the range by the error of the predictions for the measured runs. */
static int predict(const cli_report_data *r, uint64_t slots, double drives, double processors,
                   cli_report_range *speed, moe_simulation_result *middle)
{
    const cli_report_range *disk = &r->disk_bytes_per_s;
    const cli_report_range *compute = computing(r);
    const machine machines[] = {
        {slots, drives * r->drive_times * disk->low, r->read_latency_s, compute->high / processors},
        {slots, drives * r->drive_times * disk->middle, r->read_latency_s,
         compute->middle / processors},
        {slots, drives * r->drive_times * disk->high, r->read_latency_s,
         compute->low / processors}};
    double speeds[3] = {0};
    int code = CLI_EXIT_OK;
    for (int i = 0; i < 3 && code == CLI_EXIT_OK; i++) {
        moe_simulation_result result;
        code = simulate(r, cli_report_policies[0], &machines[i], &result);
        speeds[i] = code == CLI_EXIT_OK ? tokens_per_s(&result) : 0;
        if (i == 1) {
            *middle = result;
        }
    }
    *speed = (cli_report_range){speeds[0] * (1 - r->error), speeds[1], speeds[2] * (1 + r->error)};
    return code;
}

/* Simulates the first run with this latency and a drive this many times as fast as measured.
 * *is_faster: the simulation is faster than the run was. */
static int try_drive(const cli_report_data *r, double latency_s, double times, bool *is_faster)
{
    const cli_report_run *run = &r->runs[0];
    const machine m = {run->slots, times * r->disk_bytes_per_s.middle, latency_s,
                       computing(r)->middle};
    moe_simulation_result result;
    int code = simulate(r, cli_report_policies[0], &m, &result);
    *is_faster = code == CLI_EXIT_OK && tokens_per_s(&result) > run->tokens_per_s;
    return code;
}

/* Fits latency or speed by bisection: the time grows with the latency, and falls with the drive's
 * speed. */
static int fit_drive(cli_report_data *r)
{
    bool is_faster;
    r->drive_times = 1;
    int code = try_drive(r, 0, 1, &is_faster);
    const bool is_latency = is_faster;
    double low = is_latency ? 0 : 1, high = is_latency ? 0.1 : 100;
    for (int i = 0; i < 40 && code == CLI_EXIT_OK; i++) {
        const double middle = (low + high) / 2;
        code =
            is_latency ? try_drive(r, middle, 1, &is_faster) : try_drive(r, 0, middle, &is_faster);
        *(is_faster == is_latency ? &low : &high) = middle;
    }
    *(is_latency ? &r->read_latency_s : &r->drive_times) = low;
    return code;
}

static int fill_size(const cli_report_data *r, uint64_t slots, cli_report_size *size)
{
    moe_simulation_result result;
    const machine any = {slots, r->disk_bytes_per_s.middle, 0, 0};
    size->slots = slots;
    size->memory = cli_report_memory(r, slots);
    int code = predict(r, slots, 1, 1, &size->tokens_per_s, &result);
    size->wait_s = result.stall_s / (double)result.n_tokens;
    size->compute_s = (result.total_s - result.stall_s) / (double)result.n_tokens;
    for (int p = 0; p < CLI_REPORT_POLICIES && code == CLI_EXIT_OK; p++) {
        code = simulate(r, cli_report_policies[p], &any, &result);
        size->hit_rate[p] = result.hit_rate;
    }
    return code;
}

static int fill_sizes(cli_report_data *r)
{
    static const int percents[] = {5, 10, 15, 20, 25, 30, 40, 50, 60, 70, 80, 90, 100};
    const uint64_t least = 2 * (uint64_t)r->model.n_expert_used;
    int code = CLI_EXIT_OK;
    for (size_t i = 0; i < sizeof percents / sizeof *percents && code == CLI_EXIT_OK; i++) {
        const uint64_t slots = r->plan.experts * (uint64_t)percents[i] / 100;
        if (slots >= least) {
            code = fill_size(r, slots, &r->sizes[r->n_sizes]);
            r->n_sizes += code == CLI_EXIT_OK;
        }
    }
    return code == CLI_EXIT_OK ? fill_size(r, r->plan.expert_slots, &r->here) : code;
}

/* ---- What would help ---- */

static int advise(cli_report_data *r, const char *what, uint64_t slots, double drives,
                  double processors)
{
    moe_simulation_result result;
    cli_report_advice *a = &r->advice[r->n_advice];
    int code = predict(r, slots, drives, processors, &a->tokens_per_s, &result);
    snprintf(a->what, sizeof a->what, "%s", what);
    a->times =
        r->here.tokens_per_s.middle > 0 ? a->tokens_per_s.middle / r->here.tokens_per_s.middle : 0;
    r->n_advice += code == CLI_EXIT_OK;
    return code;
}

static int advise_all(cli_report_data *r)
{
    const uint64_t all = r->plan.experts, now = r->plan.expert_slots;
    const double fixed = (double)(r->plan.total - r->plan.expert_cache);
    const double twice = (2 * (double)r->plan.budget - fixed) / expert_bytes(r);
    const uint64_t more = twice < (double)all ? (uint64_t)twice : all;
    char what[160], size[CLI_FORMAT_SIZE];
    int code = CLI_EXIT_OK;
    if (now < all && more < all) {
        snprintf(what, sizeof what, "twice the memory (%s)",
                 cli_format_bytes(size, 2 * r->plan.budget));
        code = advise(r, what, more, 1, 1);
    }
    if (now < all && code == CLI_EXIT_OK) {
        snprintf(what, sizeof what, "memory for all experts (%s)",
                 cli_format_bytes(size, (uint64_t)cli_report_memory(r, all)));
        code = advise(r, what, all, 1, 1);
    }
    if (now < all && code == CLI_EXIT_OK) {
        code =
            advise(r, "a second drive as fast, with a copy of the model (--model-copy)", now, 2, 1);
    }
    return code == CLI_EXIT_OK
               ? advise(r, "a processor and memory that compute twice as fast", now, 1, 2)
               : code;
}

static double largest_error(const cli_report_data *r)
{
    double error = 0;
    for (size_t i = 0; i < r->n_runs; i++) {
        const cli_report_run *run = &r->runs[i];
        error = fmax(error, fabs(run->tokens_per_s / run->predicted.middle - 1));
    }
    return fmin(error, 1);
}

int cli_report_predict(cli_report_data *r)
{
    moe_simulation_result result;
    int code = fit_drive(r);
    for (size_t i = 0; i < r->n_runs && code == CLI_EXIT_OK; i++) {
        code = predict(r, r->runs[i].slots, 1, 1, &r->runs[i].predicted, &result);
    }
    r->error = largest_error(r);
    code = code == CLI_EXIT_OK ? fill_sizes(r) : code;
    return code == CLI_EXIT_OK ? advise_all(r) : code;
}
