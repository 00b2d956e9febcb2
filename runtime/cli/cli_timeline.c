/* SPDX-License-Identifier: MIT */
#include "cli_timeline.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli_engine.h"
#include "cli_format.h"

struct cli_timeline {
    FILE *file;
    const char *path;
    uint64_t opened_ns, begun_ns;
    uint64_t n_tokens; /* sampled so far */
    moe_engine_stats before;
};

int cli_timeline_open(cli_timeline **out, const char *path)
{
    struct stat state;
    if (stat(path, &state) == 0 && !S_ISREG(state.st_mode)) {
        return cli_fail(CLI_EXIT_FAILURE, "--timeline: %s is not a regular file", path);
    }
    cli_timeline *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory");
    }
    t->file = fopen(path, "we");
    if (t->file == NULL) {
        free(t);
        return cli_fail(CLI_EXIT_FAILURE, "--timeline: %s: %s", path, strerror(errno));
    }
    t->path = path;
    t->opened_ns = cli_now_ns();
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
          "{\"ph\": \"M\", \"pid\": 1, \"name\": \"process_name\", \"args\": {\"name\": "
          "\"moe-offload\"}},\n"
          "{\"ph\": \"M\", \"pid\": 1, \"tid\": 1, \"name\": \"thread_name\", \"args\": {\"name\": "
          "\"steps\"}}",
          t->file);
    *out = t;
    return CLI_EXIT_OK;
}

void cli_timeline_begin(cli_timeline *t, const moe_engine *engine)
{
    if (t != NULL) {
        t->before.struct_size = sizeof t->before;
        moe_engine_get_stats(engine, &t->before);
        t->begun_ns = cli_now_ns();
    }
}

static double microseconds(uint64_t ns)
{
    return 1e-3 * (double)ns;
}

static void slice(const cli_timeline *t, const char *name, uint64_t from_ns, uint64_t ns)
{
    fprintf(t->file,
            ",\n{\"ph\": \"X\", \"pid\": 1, \"tid\": 1, \"ts\": %.3f, \"dur\": %.3f, \"name\": "
            "\"%s\"",
            microseconds(from_ns), microseconds(ns), name);
}

static void counter(const cli_timeline *t, const char *name, uint64_t at_ns, double value)
{
    fprintf(t->file,
            ",\n{\"ph\": \"C\", \"pid\": 1, \"ts\": %.3f, \"name\": \"%s\", \"args\": "
            "{\"value\": %.6g}}",
            microseconds(at_ns), name, value);
}

/* Ends the step's slice. A step waits and computes several times in turn; the slice shows the sum
 * of the waiting, then the sum of the computing. */
void cli_timeline_end(cli_timeline *t, const moe_engine *engine, size_t n_sampled)
{
    moe_engine_stats after = {.struct_size = sizeof after};
    char name[64];
    if (t == NULL) {
        return;
    }
    const uint64_t ns = cli_now_ns() - t->begun_ns;
    const uint64_t from = t->begun_ns - t->opened_ns;
    moe_engine_get_stats(engine, &after);
    const uint64_t waited = after.expert_wait_ns - t->before.expert_wait_ns;
    const uint64_t wait_ns = waited < ns ? waited : ns;
    const uint64_t n_read = after.bytes_read_disk - t->before.bytes_read_disk;
    t->n_tokens += n_sampled;
    if (n_sampled == 0) {
        snprintf(name, sizeof name, "prompt");
    } else if (n_sampled == 1) {
        snprintf(name, sizeof name, "token %" PRIu64, t->n_tokens);
    } else {
        snprintf(name, sizeof name, "tokens %" PRIu64 " to %" PRIu64, t->n_tokens - n_sampled + 1,
                 t->n_tokens);
    }
    slice(t, name, from, ns);
    fprintf(t->file,
            ", \"args\": {\"rows\": %" PRIu64 ", \"expert_hits\": %" PRIu64
            ", \"expert_misses\": %" PRIu64 ", \"bytes_read_disk\": %" PRIu64 "}}",
            after.prompt_tokens + after.decode_tokens - t->before.prompt_tokens -
                t->before.decode_tokens,
            after.expert_hits - t->before.expert_hits,
            after.expert_misses - t->before.expert_misses, n_read);
    if (wait_ns > 0) {
        slice(t, "waiting for experts", from, wait_ns);
        fputc('}', t->file);
    }
    slice(t, "computing", from + wait_ns, ns - wait_ns);
    fputc('}', t->file);
    counter(t, "MB read from the drive in a step", from, 1e-6 * (double)n_read);
    counter(t, "experts that a step missed", from,
            (double)(after.expert_misses - t->before.expert_misses));
}

int cli_timeline_close(cli_timeline **timeline, int code)
{
    cli_timeline *t = *timeline;
    if (t == NULL) {
        return code;
    }
    fputs("\n]}\n", t->file);
    const bool failed = ferror(t->file) != 0;
    if (fclose(t->file) != 0 || failed) {
        int told = cli_fail(CLI_EXIT_FAILURE, "--timeline: %s could not be written: %s", t->path,
                            strerror(errno));
        code = code == CLI_EXIT_OK ? told : code;
    }
    free(t);
    *timeline = NULL;
    return code;
}
