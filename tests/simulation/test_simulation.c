/* SPDX-License-Identifier: MIT */
/* Runs the simulation of a world (world.h) for many seeds, or one seed again.
 *
 *   test_simulation [--seeds FROM-TO] [--seconds N] [--jobs N] [--state FILE] [--failures N]
 *   test_simulation --seed N [--trace] [--shrink]
 *                   [--ops N] [--skip A,B,..] [--without KIND,..] [--schedule N] [--calm]
 *
 * A seed that fails is told in one line, with the command that repeats it; the exit status is 1.
 * --shrink looks for a smaller run that fails in the same way. --state goes on where an earlier run
 * with the same file has stopped, and adds to its counts; what was under way when it was killed is
 * run and counted again. --failures: ends after so many; 1. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/moe_assert.h"
#include "tests/simulation/world.h"

#define CHUNK        200u
#define MAX_JOBS     64u
#define SEED_SECONDS 60u
#define SAVE_SECONDS 5.0
#define SCHEDULES    40u

static const char *program;

static void at_signal(int number)
{
    if (sim_is_running()) {
        sim_fail(number == SIGALRM ? "no end in %u s" : "signal %d",
                 number == SIGALRM ? SEED_SECONDS : (unsigned)number);
    }
    _exit(3);
}

static void catch_signals(void)
{
    static uint8_t stack[65536];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&other, NULL);
    struct sigaction action = {.sa_handler = at_signal, .sa_flags = SA_ONSTACK | SA_NODEFER};
    const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGALRM};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        sigaction(numbers[i], &action, NULL);
    }
}

/* In place of the library's: the run ends, and the program goes on. */
_Noreturn void moe_assert_failed(const char *file, int line, const char *condition)
{
    const char *name = strrchr(file, '/');
    sim_fail("%s:%d: assertion failed: %.180s", name != NULL ? name + 1 : file, line, condition);
}

static sim_result run(const sim_plan *plan)
{
    sim_result result;
    sim_settings settings = sim_world_begin(plan);
    alarm(SEED_SECONDS);
    sim_run(&settings, sim_world_script, settings.user, &result);
    return result;
}

static sim_plan plan_of(uint64_t seed)
{
    return (sim_plan){.seed = seed, .schedule = seed};
}

static void print_command(const sim_plan *plan)
{
    printf("    %s --seed %llu", program, (unsigned long long)plan->seed);
    if (plan->schedule != plan->seed) {
        printf(" --schedule %llu", (unsigned long long)plan->schedule);
    }
    if (plan->n_ops != 0) {
        printf(" --ops %u", plan->n_ops);
    }
    const char *before = " --skip ";
    for (uint32_t i = 0; i < SIM_MAX_OPS; i++) {
        if (plan->skipped[i] != 0 && (plan->n_ops == 0 || i < plan->n_ops)) {
            printf("%s%u", before, i);
            before = ",";
        }
    }
    before = " --without ";
    for (uint32_t f = 0; f < sim_n_faults; f++) {
        if ((plan->without >> f & 1) != 0) {
            printf("%s%s", before, sim_fault_names[f]);
            before = ",";
        }
    }
    printf("%s --trace\n", plan->calm ? " --calm" : "");
}

static void print_failure(const sim_plan *plan, const sim_result *result)
{
    printf("seed %llu: event %llu: %s (operation %u)\n", (unsigned long long)plan->seed,
           (unsigned long long)result->n_events, result->what, sim_world_op());
    print_command(plan);
    fflush(stdout);
}

/* ---- Shrinking ---- */

/* What a failure is called up to its first number: numbers change when a run shrinks. */
static bool is_same(const char *a, const char *b)
{
    if (strstr(a, "assertion failed") != NULL) {
        return strcmp(a, b) == 0;
    }
    while (*a == *b && *a != '\0' && (*a < '0' || *a > '9')) {
        a++;
        b++;
    }
    return *a == *b || (*a >= '0' && *a <= '9' && *b >= '0' && *b <= '9');
}

/* Tries the plan in several orders of events; keeps the one that fails. */
static bool still_fails(sim_plan *plan, const char *what, sim_result *result)
{
    sim_plan tried = *plan;
    for (uint32_t i = 0; i < SCHEDULES; i++) {
        tried.schedule = i == 0 ? plan->schedule : plan->seed * 1000 + i;
        *result = run(&tried);
        if (result->failed && is_same(what, result->what)) {
            *plan = tried;
            return true;
        }
    }
    return false;
}

static void shrink(sim_plan *best, const char *what)
{
    sim_result result;
    sim_plan tried = *best;
    tried.n_ops = sim_world_op() + 1;
    if (tried.n_ops < SIM_MAX_OPS && still_fails(&tried, what, &result)) {
        *best = tried;
    }
    for (uint32_t f = 0; f < sim_n_faults; f++) {
        tried = *best;
        tried.without |= 1u << f;
        if (still_fails(&tried, what, &result)) {
            *best = tried;
        }
    }
    uint32_t n = best->n_ops != 0 ? best->n_ops : SIM_MAX_OPS;
    for (uint32_t size = n / 2; size > 0; size /= 2) {
        for (uint32_t first = 0; first < n; first += size) {
            tried = *best;
            memset(tried.skipped + first, 1, size < n - first ? size : n - first);
            if (memcmp(tried.skipped, best->skipped, SIM_MAX_OPS) != 0 &&
                still_fails(&tried, what, &result)) {
                *best = tried;
            }
        }
    }
    tried = *best;
    tried.calm = true;
    if (still_fails(&tried, what, &result)) {
        *best = tried;
    }
    result = run(best);
    printf("smallest: ");
    print_failure(best, &result);
}

/* ---- Many seeds ---- */

typedef struct shared_counts {
    _Atomic uint64_t next, n_seeds, n_events, n_failed, n_opened, n_checks;
    _Atomic uint64_t at[MAX_JOBS]; /* where each job is */
    _Atomic bool stop;
} shared_counts;

typedef struct job_settings {
    uint64_t from, to;
    double seconds;
    uint32_t n_jobs, most_failures;
    const char *state;
    uint32_t without;
} job_settings;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void load_state(const char *path, shared_counts *c)
{
    unsigned long long next, n_seeds, n_events, n_checks;
    FILE *file = path != NULL ? fopen(path, "r") : NULL;
    if (file != NULL) {
        if (fscanf(file, "next %llu seeds %llu events %llu checks %llu", &next, &n_seeds, &n_events,
                   &n_checks) == 4) {
            c->next = next;
            c->n_seeds = n_seeds;
            c->n_events = n_events;
            c->n_checks = n_checks;
        }
        fclose(file);
    }
}

static void save_state(const char *path, const shared_counts *c, const job_settings *j)
{
    uint64_t next = c->next <= j->to ? c->next : j->to + 1;
    for (uint32_t i = 0; i < j->n_jobs; i++) {
        next = c->at[i] < next ? c->at[i] : next;
    }
    char temporary[1024];
    snprintf(temporary, sizeof temporary, "%s.new", path != NULL ? path : "");
    FILE *file = path != NULL ? fopen(temporary, "w") : NULL;
    if (file != NULL) {
        fprintf(file, "next %llu seeds %llu events %llu checks %llu\n", (unsigned long long)next,
                (unsigned long long)c->n_seeds, (unsigned long long)c->n_events,
                (unsigned long long)c->n_checks);
        fclose(file);
        (void)rename(temporary, path);
    }
}

static void work(shared_counts *c, const job_settings *j, uint32_t number, double end)
{
    double saved = now_s();
    while (!c->stop) {
        uint64_t first = atomic_fetch_add(&c->next, CHUNK);
        c->at[number] = first;
        if (number == 0 && now_s() > saved + SAVE_SECONDS) {
            save_state(j->state, c, j);
            saved = now_s();
        }
        for (uint64_t seed = first; seed < first + CHUNK && seed <= j->to; seed++) {
            sim_plan plan = plan_of(seed);
            plan.without = j->without;
            sim_result result = run(&plan);
            c->n_seeds++;
            c->n_events += result.n_events;
            c->n_opened += sim_world_op() > 0;
            c->n_checks += sim_world_checks();
            if (result.failed) {
                print_failure(&plan, &result);
                if (++c->n_failed >= j->most_failures) {
                    c->stop = true;
                }
            }
            if (c->stop) {
                return;
            }
            if (now_s() > end) {
                c->stop = true;
            }
        }
        if (first + CHUNK > j->to) {
            break;
        }
    }
    c->at[number] = UINT64_MAX;
}

static int run_many(const job_settings *j)
{
    shared_counts *c =
        mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (c == MAP_FAILED) {
        return 2;
    }
    c->next = j->from;
    load_state(j->state, c);
    uint64_t n_before = c->n_events;
    double begin = now_s(), end = j->seconds > 0 ? begin + j->seconds : begin + 1e9;
    for (uint32_t i = 0; i < j->n_jobs; i++) {
        c->at[i] = c->next;
    }
    fflush(stdout);
    int broken = 0;
    if (j->n_jobs == 1) {
        work(c, j, 0, end);
    }
    for (uint32_t i = 0; i < j->n_jobs && j->n_jobs > 1; i++) {
        if (fork() == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            work(c, j, i, end);
            fflush(stdout);
            _exit(0);
        }
    }
    for (uint32_t i = 0; i < j->n_jobs && j->n_jobs > 1; i++) {
        int status;
        broken |= wait(&status) > 0 && (!WIFEXITED(status) || WEXITSTATUS(status) != 0);
    }
    save_state(j->state, c, j);
    double took = now_s() - begin;
    printf("%llu seeds, %llu events, %llu checks between events, %llu failures; "
           "%.0f events a second\n",
           (unsigned long long)c->n_seeds, (unsigned long long)c->n_events,
           (unsigned long long)c->n_checks, (unsigned long long)c->n_failed,
           (double)(c->n_events - n_before) / took);
    return c->n_failed > 0 || broken != 0;
}

/* ---- The command line ---- */

static uint32_t parse_faults(const char *text)
{
    uint32_t bits = 0;
    for (uint32_t f = 0; f < sim_n_faults; f++) {
        const char *at = strstr(text, sim_fault_names[f]);
        size_t n = strlen(sim_fault_names[f]);
        bits |= at != NULL && (at[n] == ',' || at[n] == '\0') && (at == text || at[-1] == ',')
                    ? 1u << f
                    : 0;
    }
    return bits;
}

static void parse_skipped(const char *text, uint8_t *skipped)
{
    while (*text != '\0') {
        char *end;
        unsigned long i = strtoul(text, &end, 10);
        if (i < SIM_MAX_OPS) {
            skipped[i] = 1;
        }
        text = *end == ',' ? end + 1 : "";
    }
}

static int usage(void)
{
    fprintf(stderr, "usage: test_simulation [--seeds FROM-TO] [--seconds N] [--jobs N] "
                    "[--state FILE] [--failures N]\n"
                    "       test_simulation --seed N [--trace] [--shrink] [--ops N] [--skip A,..] "
                    "[--without KIND,..] [--schedule N] [--calm]\n");
    return 2;
}

typedef struct command_line {
    job_settings many;
    sim_plan plan;
    bool one, shrinks, scheduled;
} command_line;

static bool take_flag(command_line *c, const char *name)
{
    bool *flag = strcmp(name, "--trace") == 0    ? &c->plan.trace
                 : strcmp(name, "--shrink") == 0 ? &c->shrinks
                 : strcmp(name, "--calm") == 0   ? &c->plan.calm
                                                 : NULL;
    if (flag != NULL) {
        *flag = true;
    }
    return flag != NULL;
}

/* False when there is no such option. */
static bool take_option(command_line *c, const char *name, const char *value)
{
    const unsigned long long number = strtoull(value, NULL, 10);
    job_settings *j = &c->many;
    const char *dash = strchr(value, '-');
    if (strcmp(name, "--seed") == 0) {
        c->one = true;
        c->plan.seed = number;
    } else if (strcmp(name, "--seeds") == 0) {
        j->from = number;
        j->to = dash != NULL ? strtoull(dash + 1, NULL, 10) : number;
    } else if (strcmp(name, "--seconds") == 0) {
        j->seconds = strtod(value, NULL);
    } else if (strcmp(name, "--jobs") == 0) {
        j->n_jobs = number >= 1 && number <= MAX_JOBS ? (uint32_t)number : 1;
    } else if (strcmp(name, "--failures") == 0) {
        j->most_failures = (uint32_t)number;
    } else if (strcmp(name, "--state") == 0) {
        j->state = value;
    } else if (strcmp(name, "--ops") == 0) {
        c->plan.n_ops = (uint32_t)number;
    } else if (strcmp(name, "--skip") == 0) {
        parse_skipped(value, c->plan.skipped);
    } else if (strcmp(name, "--without") == 0) {
        j->without = c->plan.without = parse_faults(value);
    } else if (strcmp(name, "--schedule") == 0) {
        c->plan.schedule = number;
        c->scheduled = true;
    } else {
        return false;
    }
    return true;
}

static int run_one(command_line *c)
{
    sim_result result = run(&c->plan);
    if (!result.failed) {
        printf("seed %llu: %llu events, nothing fails\n", (unsigned long long)c->plan.seed,
               (unsigned long long)result.n_events);
        return 0;
    }
    print_failure(&c->plan, &result);
    if (c->shrinks) {
        char what[sizeof result.what];
        memcpy(what, result.what, sizeof what);
        c->plan.trace = false;
        shrink(&c->plan, what);
    }
    return 1;
}

int main(int argc, char **argv)
{
    command_line c = {.many = {.from = 1, .n_jobs = 1, .most_failures = 1}};
    program = argv[0];
    for (int i = 1; i < argc; i++) {
        if (take_flag(&c, argv[i])) {
            continue;
        }
        if (i + 1 == argc || !take_option(&c, argv[i], argv[i + 1])) {
            return usage();
        }
        i++;
    }
    if (c.many.to == 0) {
        c.many.to = c.many.seconds > 0 ? UINT64_MAX / 2 : 1000;
    }
    c.plan.schedule = c.scheduled ? c.plan.schedule : c.plan.seed;
    sim_world_prepare();
    catch_signals();
    return c.one ? run_one(&c) : run_many(&c.many);
}
