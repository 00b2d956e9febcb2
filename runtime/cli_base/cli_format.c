/* SPDX-License-Identifier: MIT */
#include "cli_format.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

static const char *format_scaled(char out[CLI_FORMAT_SIZE], uint64_t value, unsigned step,
                                 const char *const *units, size_t n_units)
{
    size_t unit = 0;
    double scaled = (double)value;
    while (scaled >= step && unit + 1 < n_units) {
        scaled /= step;
        unit++;
    }
    if (unit == 0) {
        snprintf(out, CLI_FORMAT_SIZE, "%" PRIu64 "%s", value, units[0]);
    } else {
        snprintf(out, CLI_FORMAT_SIZE, "%.*f%s",
                 scaled < 10    ? 2
                 : scaled < 100 ? 1
                                : 0,
                 scaled, units[unit]);
    }
    return out;
}

const char *cli_format_bytes(char out[CLI_FORMAT_SIZE], uint64_t bytes)
{
    static const char *const units[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
    return format_scaled(out, bytes, 1024, units, sizeof units / sizeof units[0]);
}

const char *cli_format_opening(char out[4 * CLI_FORMAT_SIZE], const moe_engine_stats *stats)
{
    char bytes[CLI_FORMAT_SIZE];
    snprintf(out, 4 * CLI_FORMAT_SIZE,
             "(%.2f s until the plan, %.2f s for memory, %.2f s for %s of resident weights)",
             cli_seconds(stats->open_plan_ns), cli_seconds(stats->open_memory_ns),
             cli_seconds(stats->open_weights_ns),
             cli_format_bytes(bytes, stats->open_weights_bytes));
    return out;
}

const char *cli_format_count(char out[CLI_FORMAT_SIZE], uint64_t count)
{
    static const char *const units[] = {"", " K", " M", " B", " T"};
    return format_scaled(out, count, 1000, units, sizeof units / sizeof units[0]);
}

double cli_seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

double cli_per_second(uint64_t tokens, uint64_t ns)
{
    return ns == 0 ? 0 : (double)tokens / cli_seconds(ns);
}

uint64_t cli_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t cli_peak_rss_bytes(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024 : 0;
}
