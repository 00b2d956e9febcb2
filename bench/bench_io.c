/* SPDX-License-Identifier: MIT */
/* How fast ranges of a file are read, and what that costs the processor. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "bench/io_bench.h"

static const char usage[] =
    "usage: bench_io -m FILE [options]\n"
    "  --io auto|uring|threads|sync   engine (auto)\n"
    "  --block BYTES --depth N        blocks in flight (the reader's defaults)\n"
    "  --range MIN-MAX                bytes of a range (1048576-6291456)\n"
    "  --bytes N --seconds S          stop after so many bytes (1 GiB), or so long\n"
    "  --seed N                       of the random ranges (1)\n"
    "  --buffered                     without O_DIRECT\n"
    "  --plain-buffers                buffers not registered with the kernel\n"
    "  --small-pages                  buffers of 4 KiB pages\n"
    "  --sweep                        block sizes x depths x engines, a table\n"
    "  --json                         one JSON object a measurement\n";

typedef struct arguments {
    moe_io_bench_options bench;
    bool sweep;
    bool json;
} arguments;

static const char *const kind_names[] = {"auto", "uring", "threads", "sync"};

static bool parse_kind(const char *text, moe_io_kind *kind)
{
    for (int i = 0; i < 4; i++) {
        if (strcmp(text, kind_names[i]) == 0) {
            *kind = (moe_io_kind)i;
            return true;
        }
    }
    return false;
}

static bool parse_u64(const char *text, uint64_t *value)
{
    char *end;
    *value = strtoull(text, &end, 10);
    return end != text && *end == '\0' && *text != '-';
}

static bool parse_range(const char *text, moe_io_bench_options *bench)
{
    char first[32];
    const char *dash = strchr(text, '-');
    if (dash == NULL || (size_t)(dash - text) >= sizeof first) {
        return false;
    }
    memcpy(first, text, (size_t)(dash - text));
    first[dash - text] = '\0';
    return parse_u64(first, &bench->range_min_bytes) &&
           parse_u64(dash + 1, &bench->range_max_bytes);
}

enum { OPT_IO = 256, OPT_BLOCK, OPT_DEPTH, OPT_RANGE, OPT_BYTES, OPT_SECONDS, OPT_SEED };

static bool parse_value(arguments *a, int option, const char *text)
{
    uint64_t value = 0;
    switch (option) {
    case 'm':
        a->bench.path = text;
        return true;
    case OPT_IO:
        return parse_kind(text, &a->bench.kind);
    case OPT_RANGE:
        return parse_range(text, &a->bench);
    case OPT_SECONDS:
        a->bench.max_seconds = strtod(text, NULL);
        return a->bench.max_seconds > 0;
    case OPT_BLOCK:
    case OPT_DEPTH:
        if (!parse_u64(text, &value) || value == 0 || value > UINT32_MAX) {
            return false;
        }
        *(option == OPT_BLOCK ? &a->bench.block_bytes : &a->bench.depth) = (uint32_t)value;
        return true;
    case OPT_BYTES:
        return parse_u64(text, &a->bench.total_bytes);
    case OPT_SEED:
        return parse_u64(text, &a->bench.seed);
    default:
        return false;
    }
}

static bool parse(arguments *a, int argc, char **argv)
{
    int buffered = 0;
    int plain = 0;
    int small = 0;
    int sweep = 0;
    int json = 0;
    const struct option options[] = {
        {"io", required_argument, NULL, OPT_IO},
        {"block", required_argument, NULL, OPT_BLOCK},
        {"depth", required_argument, NULL, OPT_DEPTH},
        {"range", required_argument, NULL, OPT_RANGE},
        {"bytes", required_argument, NULL, OPT_BYTES},
        {"seconds", required_argument, NULL, OPT_SECONDS},
        {"seed", required_argument, NULL, OPT_SEED},
        {"buffered", no_argument, &buffered, 1},
        {"plain-buffers", no_argument, &plain, 1},
        {"small-pages", no_argument, &small, 1},
        {"sweep", no_argument, &sweep, 1},
        {"json", no_argument, &json, 1},
        {NULL, 0, NULL, 0},
    };
    a->bench.seed = 1;
    int option;
    while ((option = getopt_long(argc, argv, "m:", options, NULL)) != -1) {
        if (option == '?' || (option != 0 && !parse_value(a, option, optarg))) {
            return false;
        }
    }
    a->bench.buffered = buffered;
    a->bench.plain_buffers = plain;
    a->bench.small_pages = small;
    a->sweep = sweep;
    a->json = json;
    return a->bench.path != NULL && optind == argc;
}

static int measure(const arguments *a, moe_io_bench_result *r)
{
    moe_error err;
    if (moe_io_bench_run(r, &a->bench, &err) != MOE_OK) {
        fprintf(stderr, "bench_io: %s\n", err.message);
        return 1;
    }
    if (a->json) {
        printf("{\"reader\": \"%s\", \"huge_pages\": %s, \"seed\": %llu, \"seconds\": %.4f, "
               "\"bytes_read\": %llu, \"n_ranges\": %llu, \"n_reads\": %llu, "
               "\"gb_per_s\": %.4f, \"cpu_s_per_gb\": %.5f}\n",
               r->reader, a->bench.small_pages ? "false" : "true",
               (unsigned long long)a->bench.seed, r->seconds,
               (unsigned long long)r->stats.bytes_read, (unsigned long long)r->n_ranges,
               (unsigned long long)r->stats.n_reads, moe_io_bench_gb_per_s(r),
               moe_io_bench_cpu_s_per_gb(r));
    } else {
        printf("%-60s %7.3f GB/s  %7.4f CPU-s/GB\n", r->reader, moe_io_bench_gb_per_s(r),
               moe_io_bench_cpu_s_per_gb(r));
    }
    fflush(stdout);
    return 0;
}

static int sweep(arguments *a)
{
    static const uint32_t blocks[] = {256u << 10, 512u << 10, 1u << 20, 2u << 20, 4u << 20};
    static const uint32_t depths[] = {4, 8, 16, 32};
    for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; b++) {
        for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++) {
            for (int kind = MOE_IO_URING; kind <= MOE_IO_THREADS; kind++) {
                moe_io_bench_result r;
                a->bench.kind = (moe_io_kind)kind;
                a->bench.block_bytes = blocks[b];
                a->bench.depth = depths[d];
                if (measure(a, &r) != 0) {
                    return 1;
                }
            }
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    arguments a = {0};
    if (!parse(&a, argc, argv)) {
        fputs(usage, stderr);
        return 2;
    }
    struct utsname machine;
    if (!a.json && uname(&machine) == 0) {
        printf("%s, seed %llu, Linux %s %s\n", a.bench.path, (unsigned long long)a.bench.seed,
               machine.release, machine.machine);
    }
    moe_io_bench_result result;
    return a.sweep ? sweep(&a) : measure(&a, &result);
}
