/* SPDX-License-Identifier: MIT */
/* The memory budget limits what the process takes, and the plan gives the figure: runs the command
 * under several budgets until its expert cache has filled, and reads the peak of its resident set
 * from the kernel. Usage: test_memory_budget COMMAND MODEL.gguf. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB 1048576.0
/* What a plan sets aside for tables, stacks and a session's small things. */
#define SUNDRY (4 << 20)

static const char *command;
static const char *model;
/* A simulated device's memory is the process's too, so its plan must hold likewise. Without
 * computing on the host, whose buffers are planned for a whole chunk and seldom needed in full. */
static const char *const devices[] = {"cpu", "sim:memory=12M,link=8GB/s"};

typedef struct outcome {
    int exit_code;
    uint64_t peak_bytes;
    char out[8192]; /* both streams */
} outcome;

static void run(outcome *o, const char *const *arguments)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(open("/dev/null", O_RDONLY), 0);
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        execv(command, (char *const *)(uintptr_t)arguments);
        _exit(127);
    }
    close(ends[1]);
    size_t n = 0;
    char rest[4096];
    for (ssize_t got = 1; got > 0;) {
        size_t room = sizeof o->out - 1 - n;
        got = room > 0 ? read(ends[0], o->out + n, room) : read(ends[0], rest, sizeof rest);
        n += room > 0 && got > 0 ? (size_t)got : 0;
    }
    o->out[n] = '\0';
    close(ends[0]);
    int status;
    struct rusage usage;
    assert_int_equal(wait4(child, &status, 0, &usage), child);
    o->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    o->peak_bytes = (uint64_t)usage.ru_maxrss * 1024;
}

/* A number of the plan's JSON. */
static uint64_t field(const outcome *o, const char *name)
{
    const char *at = strstr(o->out, name);
    if (at == NULL) {
        fail_msg("no %s in: %s", name, o->out);
        return 0;
    }
    return strtoull(strchr(at, ':') + 1, NULL, 10);
}

static void plan(outcome *o, const char *device, const char *budget)
{
    const char *const arguments[] = {"moe-offload", "plan",
                                     "-m",          model,
                                     "-c",          "256",
                                     "-b",          "64",
                                     "-t",          "2",
                                     "--json",      "--device",
                                     device,        budget == NULL ? NULL : "--host-memory",
                                     budget,        NULL};
    run(o, arguments);
}

static void generate(outcome *o, const char *device, const char *budget)
{
    static char prompt[2048];
    for (size_t n = strlen(prompt); n < 500; n = strlen(prompt)) {
        snprintf(prompt + n, sizeof prompt - n, "Once upon %zu times there was a bird. ", n);
    }
    const char *const arguments[] = {"moe-offload",   "run",    "-m", model,          "-c",
                                     "256",           "-b",     "64", "-t",           "2",
                                     "--quiet",       "--temp", "0",  "--ignore-eos", "-p",
                                     prompt,          "-n",     "-1", "--device",     device,
                                     "--host-memory", budget,   NULL};
    run(o, arguments);
}

static uint64_t floor_bytes(const char *device)
{
    static outcome o;
    plan(&o, device, NULL);
    assert_int_equal(o.exit_code, 0);
    return field(&o, "\"floor_bytes\"");
}

static void check_budget(const char *device, const char *budget)
{
    static outcome planned, ran;
    plan(&planned, device, budget);
    generate(&ran, device, budget);
    if (ran.exit_code != 0) {
        fail_msg("--host-memory %s: exit %d: %s", budget, ran.exit_code, ran.out);
    }
    double total = (double)field(&planned, "\"total_bytes\"");
    double ceiling = (double)field(&planned, "\"budget_bytes\"");
    double peak = (double)ran.peak_bytes;
    print_message("%s: budget %.1f MiB, plan %.1f, peak %.1f (%llu of %llu experts)\n", device,
                  ceiling / MIB, total / MIB, peak / MIB,
                  (unsigned long long)field(&planned, "\"expert_slots\""),
                  (unsigned long long)field(&planned, "\"experts\""));
    assert_true(total <= ceiling);
    assert_true(peak <= ceiling);
    double tolerance = 0.02 * peak > 3 * MIB ? 0.02 * peak : 3 * MIB;
    /* A greedy session does not touch its sampler. */
    double session = (double)field(&planned, "\"session_bytes\"");
    assert_true(total - peak <= tolerance + SUNDRY + session);
}

/* Many sessions share the budget with the expert slots: the peak is below it also where they do not
 * fit, which is told. */
static void many_sessions(void **state)
{
    (void)state;
    static const struct {
        const char *device, *sessions, *tokens, *budget;
        int exit_code;
    } runs[] = {
        {"cpu", "1", "100", "48M", 0},
        {"cpu", "16", "100", "48M", 0},
        {"cpu", "64", "100", "80M", 0},
        {"cpu", "256", "100", "48M", 1},
        {"cpu", "32", "400", "40M", 1},
        {"cpu", "32", "400", "84M", 0},
        {"sim:memory=26M,link=20GB/s", "16", "100", "64M", 0},
        {"sim:memory=26M,link=20GB/s", "256", "100", "64M", 1},
    };
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        static outcome o;
        const char *const arguments[] = {"moe-offload",
                                         "bench",
                                         "decode",
                                         "-m",
                                         model,
                                         "-p",
                                         runs[i].tokens,
                                         "-n",
                                         "4",
                                         "-b",
                                         "256",
                                         "-t",
                                         "2",
                                         "--repeat",
                                         "1",
                                         "--parallel",
                                         runs[i].sessions,
                                         "--device",
                                         runs[i].device,
                                         "--host-compute",
                                         runs[i].device[0] == 'c' ? "auto" : "off",
                                         "--host-memory",
                                         runs[i].budget,
                                         NULL};
        run(&o, arguments);
        double ceiling = strtod(runs[i].budget, NULL) * MIB;
        print_message("%.3s: %s sessions of %s tokens: exit %d, peak %.1f of %.1f MiB\n",
                      runs[i].device, runs[i].sessions, runs[i].tokens, o.exit_code,
                      (double)o.peak_bytes / MIB, ceiling / MIB);
        if (o.exit_code != runs[i].exit_code) {
            fail_msg("%s", o.out);
        }
        assert_true((double)o.peak_bytes <= ceiling);
        assert_true(o.exit_code == 0 || strstr(o.out, "(--host-memory)") != NULL);
    }
}

static void stays_below(void **state)
{
    (void)state;
    /* The process itself differs by up to half a MiB from run to run. */
    const double factors[] = {1.04, 1.3, 1.6};
    for (size_t d = 0; d < sizeof devices / sizeof devices[0]; d++) {
        uint64_t least = floor_bytes(devices[d]);
        for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
            char budget[32];
            snprintf(budget, sizeof budget, "%lluK",
                     (unsigned long long)((double)least * factors[i] / 1024.0));
            check_budget(devices[d], budget);
        }
    }
}

/* Refused before anything is loaded, with the least that would do. */
static void below_the_floor(void **state)
{
    (void)state;
    uint64_t least = floor_bytes("cpu");
    char budget[32], needed[32];
    snprintf(budget, sizeof budget, "%lluK", (unsigned long long)(least * 8 / 10 / 1024));
    static outcome o;
    generate(&o, "cpu", budget);
    assert_int_equal(o.exit_code, 1);
    /* The process itself differs by fractions of a MiB from run to run. */
    bool named = false;
    for (int off = -1; off <= 1; off++) {
        snprintf(needed, sizeof needed, ", %.0f MiB", (double)least / MIB + off);
        named |= strstr(o.out, needed) != NULL;
    }
    if (!named || strstr(o.out, "below the least that works") == NULL) {
        fail_msg("%s", o.out);
    }
    assert_true(o.peak_bytes < least);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: test_memory_budget COMMAND MODEL.gguf\n");
        return 2;
    }
    command = argv[1];
    model = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_sessions),
        cmocka_unit_test(stays_below),
        cmocka_unit_test(below_the_floor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
