/* SPDX-License-Identifier: MIT */
/* bench io: measures the storage, before any model computes: I/O engines x blocks x depths on
 * random ranges as long as the model's experts' parts, beside fio if it is installed. In a
 * repetition all engines read the same ranges; fio chooses its own, of one size. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>
#include <moe/lab.h>
#include <moe/model_file.h>
#include <moe/moe.h>

#include "cli_copies.h"
#include "cli_engine.h"
#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_json.h"
#include "cli_program.h"
#include "cli_sweep.h"
#include "cli_trace.h"
#include "bench_commands.h"

#define PAGE 4096u

enum { IO, BLOCK, DEPTH, DRIVE };
enum { GB_PER_S, CPU_S_PER_GB, SECONDS, READS, CACHED_PERCENT, HOW, N_MEASURES };
static const cli_measure measures[N_MEASURES] = {
    {"gb_per_s", 3, false}, {"cpu_s_per_gb", 4, false},       {"seconds", 4, true},
    {"reads", 0, true},     {"file_cached_percent", 2, true}, {"how", CLI_MEASURE_TEXT, false},
};

typedef struct io_bench {
    cli_sweep sweep;
    const char *path;
    cli_copies copies;
    uint64_t range_min, range_max;
} io_bench;

/* The files that a measurement reads. Drive 0 has the file, drive 1 and following have copies. */
typedef struct drive_list {
    const char *paths[1 + CLI_MOST_COPIES];
    size_t n;
} drive_list;

/* The drives of an axis value: "all", or a drive's number. Without copies the sweep has no such
 * axis. */
static drive_list drives_of(const io_bench *b, const char *const *values)
{
    drive_list all = {.paths = {b->path}, .n = 1};
    for (size_t i = 0; i < b->copies.n; i++) {
        all.paths[all.n++] = b->copies.list[i];
    }
    if (b->copies.n == 0 || strcmp(values[DRIVE], "all") == 0) {
        return all;
    }
    return (drive_list){.paths = {all.paths[strtoul(values[DRIVE], NULL, 10)]}, .n = 1};
}

static bool is_drive(const char *value)
{
    return strcmp(value, "all") == 0 || cli_is_count(value) || strcmp(value, "0") == 0;
}

static bool is_engine(const char *value)
{
    static const char *const names[] = {"auto", "uring", "threads", "sync", "fio"};
    size_t i = 0;
    while (i < sizeof names / sizeof names[0] && strcmp(value, names[i]) != 0) {
        i++;
    }
    return i < sizeof names / sizeof names[0];
}

/* ---- The ranges ---- */

/* "1M-6M", or "2M" for ranges of one length. */
static int read_range(io_bench *b, const char *text)
{
    char first[32];
    size_t size = strcspn(text, "-");
    double smallest = NAN;
    double largest = NAN;
    if (size > 0 && size < sizeof first) {
        memcpy(first, text, size);
        first[size] = '\0';
        smallest = cli_number_of(first);
        largest = text[size] == '-' ? cli_number_of(text + size + 1) : smallest;
    }
    if (!(smallest >= 1 && largest >= smallest && largest <= 1 << 30)) {
        return cli_fail(CLI_EXIT_USAGE,
                        "bench io: --range must be a size like 2M or two like "
                        "1M-6M, up to 1G, not '%s'",
                        text);
    }
    b->range_min = (uint64_t)smallest;
    b->range_max = (uint64_t)largest;
    return CLI_EXIT_OK;
}

/* Ranges as the engine reads them: an expert is one range in each of its three tensors. */
static int ranges_of_model(io_bench *b)
{
    moe_file *file = NULL;
    moe_file_summary summary = {.struct_size = sizeof summary};
    moe_error err = {""};
    int status = moe_file_open(&file, b->path, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    moe_file_get_summary(file, &summary);
    for (uint64_t i = 0; i < summary.n_tensors; i++) {
        moe_file_tensor tensor = {.struct_size = sizeof tensor};
        if (moe_file_get_tensor(file, i, &tensor) != MOE_OK || tensor.kind != MOE_KIND_EXPERT) {
            continue;
        }
        uint64_t bytes = tensor.n_dims == 3 && tensor.dims[2] > 0 ? tensor.n_bytes / tensor.dims[2]
                                                                  : tensor.n_bytes;
        b->range_min = b->range_min == 0 || bytes < b->range_min ? bytes : b->range_min;
        b->range_max = bytes > b->range_max ? bytes : b->range_max;
    }
    moe_file_close(&file);
    return b->range_max > 0
               ? CLI_EXIT_OK
               : cli_fail(CLI_EXIT_FAILURE,
                          "%s has no experts: say how long ranges are: --range 1M-6M", b->path);
}

/* ---- fio ---- */

static bool fio_is_installed(void)
{
    static const char *const version[] = {"fio", "--version", NULL};
    return cli_program_run(version, NULL, NULL, NULL) == 0;
}

/* The block size that the engines use: limited to the ranges' length. */
static uint64_t fio_block(const io_bench *b, const char *block)
{
    uint64_t mean = (b->range_min + b->range_max) / 2;
    uint64_t bytes = (uint64_t)cli_number_of(block);
    bytes = mean < bytes ? mean : bytes;
    return bytes < PAGE ? PAGE : bytes / PAGE * PAGE;
}

static double number_in(struct json_object *object, const char *key)
{
    struct json_object *value = NULL;
    return object != NULL && json_object_object_get_ex(object, key, &value)
               ? json_object_get_double(value)
               : NAN;
}

static int read_fio(const cli_buffer *output, uint64_t block, const char *depth,
                    cli_measured *results)
{
    char size[CLI_FORMAT_SIZE];
    struct json_object *jobs = NULL;
    struct json_object *read = NULL;
    /* fio may print notes before the JSON object. */
    const char *begin = output->data != NULL ? strchr(output->data, '{') : NULL;
    struct json_object *all = begin != NULL ? json_tokener_parse(begin) : NULL;
    struct json_object *job = all != NULL && json_object_object_get_ex(all, "jobs", &jobs)
                                  ? json_object_array_get_idx(jobs, 0)
                                  : NULL;
    bool found = job != NULL && json_object_object_get_ex(job, "read", &read);
    double seconds = number_in(job, "job_runtime") / 1000;
    double gb = found ? number_in(read, "io_bytes") / 1e9 : NAN;
    results[GB_PER_S].number = gb / seconds;
    results[CPU_S_PER_GB].number =
        (number_in(job, "usr_cpu") + number_in(job, "sys_cpu")) / 100 * seconds / gb;
    results[SECONDS].number = seconds;
    results[READS].number = found ? number_in(read, "total_ios") : NAN;
    results[CACHED_PERCENT].number = NAN;
    json_object_put(all);
    snprintf(results[HOW].text, CLI_SWEEP_TEXT, "fio, %s x %s", depth,
             cli_format_bytes(size, block));
    return isfinite(results[GB_PER_S].number) && results[GB_PER_S].number > 0
               ? CLI_EXIT_OK
               : cli_fail(CLI_EXIT_FAILURE, "fio's result could not be read; leave it out: "
                                            "--io uring,threads");
}

/* Escapes ':' in file names, because fio separates file names by ':'. */
static void fio_filename(char *out, size_t size, const drive_list *drives)
{
    size_t n = (size_t)snprintf(out, size, "--filename=");
    for (size_t i = 0; i < drives->n; i++) {
        if (i > 0 && n + 2 < size) {
            out[n++] = ':';
        }
        for (const char *c = drives->paths[i]; *c != '\0' && n + 3 < size; c++) {
            if (*c == ':') {
                out[n++] = '\\';
            }
            out[n++] = *c;
        }
    }
    out[n] = '\0';
}

static int run_fio(const io_bench *b, const char *const *values, uint64_t seed,
                   cli_measured *results)
{
    const cli_options *o = b->sweep.options;
    char filename[4200], block[32], depth[32], bytes[40], random[40], runtime[40];
    uint64_t block_bytes = fio_block(b, values[BLOCK]);
    drive_list drives = drives_of(b, values);
    fio_filename(filename, sizeof filename, &drives);
    snprintf(block, sizeof block, "--bs=%" PRIu64, block_bytes);
    snprintf(depth, sizeof depth, "--iodepth=%s", values[DEPTH]);
    snprintf(bytes, sizeof bytes, "--io_size=%" PRIu64, o->bench_bytes.bytes);
    snprintf(random, sizeof random, "--randseed=%" PRIu64, seed + 1);
    snprintf(runtime, sizeof runtime, "--runtime=%.0fms", 1000 * o->bench_seconds);
    const char *argv[20] = {"fio", "--name=read", filename, "--readonly", "--rw=randread"};
    size_t n = 5;
    argv[n++] = "--ioengine=io_uring";
    argv[n++] = "--norandommap";
    argv[n++] = "--output-format=json";
    argv[n++] = o->buffered_io ? "--direct=0" : "--direct=1";
    argv[n++] = block;
    argv[n++] = depth;
    argv[n++] = bytes;
    argv[n++] = random;
    if (o->bench_seconds > 0) {
        argv[n++] = runtime;
    }
    if (!o->plain_buffers) {
        argv[n++] = "--fixedbufs=1";
        argv[n++] = "--registerfiles=1";
    }
    /* With this setting, fio's malloc() asks for huge pages, as the buffers of the library do. */
    const char *pages = o->small_pages ? NULL : "GLIBC_TUNABLES=glibc.malloc.hugetlb=1";
    cli_buffer output = {0};
    int status = cli_program_run(argv, pages, NULL, &output);
    int code = status == 0 ? read_fio(&output, block_bytes, values[DEPTH], results)
                           : cli_fail(CLI_EXIT_FAILURE,
                                      "fio failed (%d); leave it out: --io "
                                      "uring,threads",
                                      status);
    cli_buffer_free(&output);
    return code;
}

/* ---- A measurement ---- */

static int run(cli_sweep *s, const char *const *values, size_t repetition, cli_measured *results)
{
    const io_bench *b = s->user;
    const cli_options *o = s->options;
    uint64_t seed = (o->seed < 0 ? 0 : (uint64_t)o->seed) + repetition;
    if (strcmp(values[IO], "fio") == 0) {
        return run_fio(b, values, seed, results);
    }
    moe_storage_test test;
    moe_storage_speed speed = {.struct_size = sizeof speed};
    moe_error err = {""};
    moe_storage_test_init(&test);
    if (cli_io_kind(&test.io, values[IO]) != CLI_EXIT_OK) {
        return CLI_EXIT_USAGE;
    }
    drive_list drives = drives_of(b, values);
    test.path = drives.paths[0];
    test.copies = drives.paths + 1;
    test.n_copies = drives.n - 1;
    test.buffered = o->buffered_io;
    test.registered = !o->plain_buffers;
    test.small_pages = o->small_pages;
    test.block_bytes = (uint32_t)cli_number_of(values[BLOCK]);
    test.depth = (uint32_t)cli_number_of(values[DEPTH]);
    test.range_min_bytes = b->range_min;
    test.range_max_bytes = b->range_max;
    test.total_bytes = o->bench_bytes.bytes;
    test.max_seconds = o->bench_seconds;
    test.seed = seed;
    int status = moe_storage_measure(&test, &speed, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    results[GB_PER_S].number = speed.bytes_per_s / 1e9;
    results[CPU_S_PER_GB].number = speed.cpu_s_per_gb;
    results[SECONDS].number = speed.seconds;
    results[READS].number = (double)speed.n_reads;
    results[CACHED_PERCENT].number = speed.cached_share >= 0 ? 100 * speed.cached_share : NAN;
    snprintf(results[HOW].text, CLI_SWEEP_TEXT, "%s", speed.how);
    return CLI_EXIT_OK;
}

/* The share of fio's speed with the same block and depth in the same repetition. */
static double share_of_fio(const cli_sweep *s, const char *const *values, size_t repetition)
{
    const char *theirs_at[CLI_SWEEP_AXES];
    memcpy(theirs_at, values, s->n_axes * sizeof *theirs_at);
    theirs_at[IO] = "fio";
    const char *theirs = cli_sweep_find(s, theirs_at, repetition, "gb_per_s");
    const char *ours = cli_sweep_find(s, values, repetition, "gb_per_s");
    return theirs != NULL && ours != NULL ? 100 * strtod(ours, NULL) / strtod(theirs, NULL) : NAN;
}

/* ---- Options ---- */

static int add_axes(io_bench *b)
{
    cli_sweep *s = &b->sweep;
    const cli_options *o = s->options;
    static const cli_axis io = {.name = "io",
                                .option = "--io",
                                .wants = "auto, uring, threads, sync or fio",
                                .is_valid = is_engine};
    static const cli_axis block = {.name = "block",
                                   .option = "--block",
                                   .is_number = true,
                                   .wants = "sizes such as 256K, whole 4K up to 64M",
                                   .is_valid = cli_is_block};
    static const cli_axis depth = {.name = "depth",
                                   .option = "--depth",
                                   .is_number = true,
                                   .wants = "numbers from 1 to 1024",
                                   .is_valid = cli_is_count};
    static const cli_axis drive = {.name = "drive",
                                   .option = "--model-copy",
                                   .wants = "copies of the file",
                                   .is_valid = is_drive};
    bool has_fio = fio_is_installed();
    int code = cli_sweep_add_axis(s, &io, o->io, has_fio ? "uring,threads,fio" : "uring,threads");
    for (size_t i = 0; i < s->axes[IO].n && code == CLI_EXIT_OK; i++) {
        if (!has_fio && strcmp(s->axes[IO].values[i], "fio") == 0) {
            code = cli_fail(CLI_EXIT_FAILURE, "bench io: --io fio: fio is not installed");
        }
    }
    code = code == CLI_EXIT_OK ? cli_sweep_add_axis(s, &block, o->blocks, "256K,1M,4M") : code;
    code = code == CLI_EXIT_OK ? cli_sweep_add_axis(s, &depth, o->depths, "4,16") : code;
    if (code == CLI_EXIT_OK && b->copies.n > 0) { /* each drive alone, then all together */
        char values[4 * CLI_MOST_COPIES] = "0";
        for (size_t i = 1, n = 1; i <= b->copies.n; i++) {
            n += (size_t)snprintf(values + n, sizeof values - n,
                                  i < b->copies.n ? ",%zu" : ",%zu,all", i);
        }
        code = cli_sweep_add_axis(s, &drive, NULL, values);
    }
    return code;
}

static int describe(io_bench *b)
{
    const cli_options *o = b->sweep.options;
    char text[128], a[CLI_FORMAT_SIZE], z[CLI_FORMAT_SIZE];
    int code = cli_sweep_identify(&b->sweep, b->path, o->model != NULL);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    struct json_object *identity = b->sweep.identity;
    snprintf(text, sizeof text, "%" PRIu64 " to %" PRIu64 " bytes at random offsets", b->range_min,
             b->range_max);
    cli_json_text(identity, "ranges", text);
    snprintf(text, sizeof text, "%s a measurement", cli_format_bytes(a, o->bench_bytes.bytes));
    if (o->bench_seconds > 0) {
        snprintf(text, sizeof text, "%s a measurement, at most %g s",
                 cli_format_bytes(z, o->bench_bytes.bytes), o->bench_seconds);
    }
    cli_json_text(identity, "amount", text);
    cli_json_text(identity, "page cache",
                  o->buffered_io ? "read through it; dropped before each measurement "
                                   "(posix_fadvise), so what is read twice is read once"
                                 : "past it (O_DIRECT), and dropped before each measurement "
                                   "(posix_fadvise)");
    snprintf(text, sizeof text, "%s, %s", o->plain_buffers ? "not registered" : "registered",
             o->small_pages ? "small pages" : "huge pages");
    cli_json_text(identity, "buffers", text);
    snprintf(text, sizeof text, "%" PRId64 ", plus the repetition", o->seed < 0 ? 0 : o->seed);
    cli_json_text(identity, "seed", text);
    return CLI_EXIT_OK;
}

static int prepare(io_bench *b)
{
    const cli_options *o = b->sweep.options;
    if (o->model == NULL && o->io_file == NULL) {
        return cli_fail(CLI_EXIT_USAGE,
                        "bench io: say what to read: -m FILE, a model, or --file FILE");
    }
    b->path = o->model != NULL ? o->model : o->io_file;
    b->sweep.format = cli_output_format(o);
    int code = o->io_range != NULL ? read_range(b, o->io_range)
               : o->model != NULL  ? ranges_of_model(b)
                                   : read_range(b, "1M-6M");
    code = code == CLI_EXIT_OK ? cli_copies_read(&b->copies, &o->model_copies) : code;
    code = code == CLI_EXIT_OK ? add_axes(b) : code;
    return code == CLI_EXIT_OK ? describe(b) : code;
}

int cmd_bench_io(const cli_options *options)
{
    io_bench *b = calloc(1, sizeof *b);
    if (b == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory");
    }
    b->sweep = (cli_sweep){.bench = "io",
                           .options = options,
                           .measures = measures,
                           .n_measures = N_MEASURES,
                           .plotted = "gb_per_s",
                           .run = run,
                           .derived = "percent_of_fio",
                           .derive = share_of_fio,
                           .user = b};
    cli_interrupt_install();
    int code = prepare(b);
    code = code == CLI_EXIT_OK ? cli_sweep_run(&b->sweep) : code;
    cli_sweep_close(&b->sweep);
    free(b);
    return code;
}
