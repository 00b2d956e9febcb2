/* SPDX-License-Identifier: MIT */
#include "cli_plan_hits.h"

#include <stdlib.h>
#include <string.h>

#include "cli_engine.h"

int cli_plan_trace(moe_trace **trace, const cli_options *options, const moe_memory_plan *plan)
{
    moe_trace_open_options open_options;
    moe_trace_info info = {.struct_size = sizeof info};
    moe_error err = {""};
    *trace = NULL;
    if (options->trace == NULL) {
        return CLI_EXIT_OK;
    }
    moe_trace_open_options_init(&open_options);
    open_options.path = options->trace;
    int status = moe_trace_open(trace, &open_options, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    moe_trace_get_info(*trace, &info);
    /* The trace also counts layers without experts; the plan does not. */
    if (plan->experts % info.n_expert == 0 && plan->experts / info.n_expert <= info.n_layer &&
        info.n_passes >= 4) {
        return CLI_EXIT_OK;
    }
    moe_trace_close(trace);
    return cli_fail(
        CLI_EXIT_FAILURE,
        "--trace %s: the routing of another model, or of fewer than four passes: record "
        "one with 'moe-offload run --trace' and this model",
        options->trace);
}

/* Simulates and counts hits and accesses after this many passes. */
static int count(const moe_trace *trace, const cli_options *options, uint64_t slots,
                 uint64_t warm_up, moe_simulation_result *result)
{
    moe_simulation simulation;
    moe_error err = {""};
    moe_simulation_init(&simulation);
    simulation.policy = options->policy != NULL ? options->policy : simulation.policy;
    simulation.n_slots = (uint32_t)slots;
    simulation.warm_up = warm_up;
    result->struct_size = sizeof *result;
    int status = moe_simulate(trace, &simulation, result, &err);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

int cli_plan_hits_of(cli_plan_hits *hits, const moe_trace *trace, const cli_options *options,
                     uint64_t slots, const moe_memory_plan *plan)
{
    moe_simulation_result after[3];
    moe_trace_info info = {.struct_size = sizeof info};
    *hits = (cli_plan_hits){1, 1, 1};
    if (slots >= plan->experts) {
        return CLI_EXIT_OK;
    }
    moe_trace_get_info(trace, &info);
    for (uint64_t q = 0; q < 3; q++) {
        int code = count(trace, options, slots, (q + 1) * info.n_passes / 4, &after[q]);
        if (code != CLI_EXIT_OK) {
            return code;
        }
    }
    hits->middle = after[0].hit_rate;
    hits->high = 0;
    for (int q = 0; q < 3; q++) {
        const uint64_t n_hits = after[q].hits - (q < 2 ? after[q + 1].hits : 0);
        const uint64_t n_misses = after[q].misses - (q < 2 ? after[q + 1].misses : 0);
        const double rate = (double)n_hits / (double)(n_hits + n_misses);
        hits->low = rate < hits->low ? rate : hits->low;
        hits->high = rate > hits->high ? rate : hits->high;
    }
    return CLI_EXIT_OK;
}

/* ---- --what-if ---- */

/* Reads a speed, "7GB/s" or "7", in 10^9 bytes/s. */
static bool read_speed(const char *text, double *bytes_per_s)
{
    char *end;
    *bytes_per_s = 1e9 * strtod(text, &end);
    return end != text && (*end == '\0' || strcmp(end, "GB/s") == 0) && *bytes_per_s > 0 &&
           *bytes_per_s <= 1e15;
}

static bool read_bytes(const char *text, uint64_t *bytes)
{
    cli_size size = {0};
    bool is_size = cli_size_parse(text, &size) && size.bytes > 0;
    *bytes = size.bytes;
    return is_size;
}

static bool read_part(cli_what_if *change, const char *name, const char *value)
{
    return (strcmp(name, "host-memory") == 0 && read_bytes(value, &change->host_memory)) ||
           (strcmp(name, "device-memory") == 0 && read_bytes(value, &change->device_memory)) ||
           (strcmp(name, "disk") == 0 && read_speed(value, &change->disk)) ||
           (strcmp(name, "link") == 0 && read_speed(value, &change->link));
}

int cli_what_if_read(cli_what_if *change, const char *text)
{
    *change = (cli_what_if){0};
    for (const char *at = text;; at++) {
        char part[64];
        const size_t size = strcspn(at, ",");
        const size_t name = strcspn(at, "=,");
        if (size >= sizeof part || name == size) {
            break;
        }
        memcpy(part, at, size);
        part[size] = part[name] = '\0';
        if (!read_part(change, part, part + name + 1)) {
            break;
        }
        at += size;
        if (*at == '\0') {
            return CLI_EXIT_OK;
        }
    }
    return cli_fail(
        CLI_EXIT_USAGE,
        "plan: --what-if must be some of host-memory=64G, device-memory=24G, disk=7GB/s "
        "and link=25GB/s, with commas between, not '%s'",
        text);
}
