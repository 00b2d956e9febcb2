/* SPDX-License-Identifier: MIT */
/* Runs the command, and the program of the API, again and again while system calls go wrong
 * (fault_preload.c), and compares each run with one where nothing did: the text is the same, or its
 * beginning and an error; no signal ends it; it does not hang. Prints a table.
 *
 * fault_hunt COMMAND API-PROGRAM PRELOAD MODEL SECONDS [SEED] [PROFILE [SCENARIO [KEPT-TEXT]]]
 *
 * A run that went wrong is told with its seed, scenario and profile: with these three arguments and
 * 0 seconds it is made again, alone. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <moe/model_file.h>
#include <moe/moe.h>

#include "tests/faults/fault_page.h"

#define MAX_ARGUMENTS 40
#define MAX_TEXT      (1u << 22)
#define PATIENCE_MS   120000
#define PROMPT        "the cat and the dog went out"

typedef struct scenario {
    const char *name;
    const char *arguments; /* words; those in capitals are replaced */
    bool writes_file;      /* OUT, which is the same where the command succeeds */
    bool has_sidecar;      /* checksums: reads may lie */
} scenario;

#define RUN "run -m MODEL -p TEXT -n 24 --ignore-eos --temp 0 --io-timeout SECONDS "

static const scenario scenarios[] = {
    {"run", RUN "--calibration none --expert-cache 50%", false, false},
    {"run-threads", RUN "--calibration none --io threads --expert-cache 50%", false, false},
    {"run-sync", RUN "--calibration none --io sync --expert-cache 60%", false, false},
    {"run-sidecar", RUN "--calibration CAL --speculate self --expert-cache 60%", false, true},
    {"run-all", RUN "--calibration CAL --warm-start on -b 3", false, true},
    {"run-trace", RUN "--calibration none --expert-cache 50% --trace OUT", true, false},
    {"logits",
     "logits -m MODEL -p TEXT --calibration none --expert-cache 50% --io-timeout SECONDS "
     "-o OUT",
     true, false},
    {"perplexity",
     "perplexity -m MODEL -f LONG -c 32 --calibration none --expert-cache 50% "
     "--io-timeout SECONDS",
     false, false},
    {"tokenize", "tokenize -m MODEL -p TEXT --json", false, false},
    {"inspect", "inspect -m MODEL --json", false, false},
    {"calibrate", "calibrate -m MODEL -f LONG -n 96 -o OUT --io-timeout SECONDS", true, false},
    {"api", NULL, false, true},
    {"verify", "verify -m MODEL --calibration CAL --quiet --io-timeout SECONDS", false, false},
};
#define N_SCENARIOS (sizeof scenarios / sizeof scenarios[0])

typedef struct outcome {
    int status; /* of waitpid() */
    bool hung;
    bool asked; /* SIGINT was sent */
    size_t n_text, n_file, n_err;
    char *text, *file, *err;
} outcome;

typedef struct hunt {
    const char *command, *api, *preload, *model;
    char folder[64];
    char page_path[96], out[96], cal[96], text_path[96], err_path[96], long_path[96];
    fault_page *page;
    uint64_t n_calls[N_SCENARIOS][FAULT_CLASSES];
    outcome clean[N_SCENARIOS];
    uint64_t n_runs, n_right, n_errors, n_interrupted;
    uint64_t n_wrong, n_crashes, n_hangs, n_codes, n_silent, n_gave_up, n_leaks;
    uint64_t n_api_runs;
} hunt;

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static char *contents(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    *size = 0;
    if (file == NULL) {
        return NULL;
    }
    char *bytes = malloc(MAX_TEXT);
    *size = fread(bytes, 1, MAX_TEXT, file);
    fclose(file);
    return realloc(bytes, *size + 1);
}

static const char *word_of(const hunt *h, const char *word)
{
    if (strcmp(word, "SECONDS") ==
        0) { /* not so few that a busy machine looks like a disk that hangs */
        return fault_profile_is_mild(h->page->profile) ? "60" : "0.4";
    }
    return strcmp(word, "MODEL") == 0  ? h->model
           : strcmp(word, "OUT") == 0  ? h->out
           : strcmp(word, "CAL") == 0  ? h->cal
           : strcmp(word, "LONG") == 0 ? h->long_path
           : strcmp(word, "TEXT") == 0 ? PROMPT
                                       : word;
}

/* In the child; does not return. */
static void execute(const hunt *h, const scenario *s, uint64_t seed, int terminal)
{
    static char words[1024], number[32];
    char *argv[MAX_ARGUMENTS];
    int n = 0;
    int text = open(h->text_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int err = terminal >= 0 ? terminal : open(h->err_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int none = open("/dev/null", O_RDONLY);
    dup2(none, 0);
    dup2(text, 1);
    dup2(err, 2);
    close_range(3, ~0u, 0);
    snprintf(number, sizeof number, "%llu", (unsigned long long)seed);
    if (s->arguments == NULL) {
        argv[n++] = (char *)h->api;
        argv[n++] = (char *)h->model;
        argv[n++] = (char *)h->cal;
        argv[n++] = (char *)h->folder;
        argv[n++] = number;
    } else {
        argv[n++] = (char *)h->command;
        snprintf(words, sizeof words, "%s", s->arguments);
        for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " ")) {
            argv[n++] = (char *)word_of(h, word);
        }
    }
    argv[n] = NULL;
    setenv("LD_PRELOAD", h->preload, 1);
    setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1); /* or freed memory counts as used */
    setenv("FAULT_PAGE", h->page_path, 1);
    execv(argv[0], argv);
    _exit(127);
}

/* What a terminal shows is read, or the command would wait for it. */
static void drain(int terminal, outcome *o, int timeout_ms)
{
    char bytes[4096];
    struct pollfd p = {.fd = terminal, .events = POLLIN};
    for (int i = 0; terminal >= 0 && i < 100 && poll(&p, 1, timeout_ms) > 0; i++) {
        ssize_t n = read(terminal, bytes, sizeof bytes);
        if (n <= 0) {
            return;
        }
        o->err = realloc(o->err, o->n_err + (size_t)n + 1);
        memcpy(o->err + o->n_err, bytes, (size_t)n);
        o->n_err += (size_t)n;
        timeout_ms = 0;
    }
}

static void await(pid_t child, int terminal, uint64_t interrupt_ms, outcome *o)
{
    uint64_t begin = now_ms();
    while (waitpid(child, &o->status, WNOHANG) == 0) {
        uint64_t ms = now_ms() - begin;
        if (interrupt_ms > 0 && ms >= interrupt_ms && !o->asked) {
            o->asked = true;
            kill(child, SIGINT);
        }
        if (ms > PATIENCE_MS) {
            o->hung = true;
            kill(child, SIGKILL);
            waitpid(child, &o->status, 0);
            break;
        }
        if (terminal >= 0) {
            drain(terminal, o, 1);
        } else {
            nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
        }
    }
    drain(terminal, o, 0);
}

static outcome run(hunt *h, const scenario *s, uint64_t seed, bool on_terminal,
                   uint64_t interrupt_ms)
{
    outcome o = {0};
    int master = -1, slave = -1;
    unlink(h->out);
    if (on_terminal && openpty(&master, &slave, NULL, NULL, NULL) != 0) {
        master = slave = -1;
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        execute(h, s, seed, slave);
    }
    if (slave >= 0) {
        close(slave);
    }
    await(child, master, interrupt_ms, &o);
    if (master >= 0) {
        close(master);
    } else {
        o.err = contents(h->err_path, &o.n_err);
    }
    o.text = contents(h->text_path, &o.n_text);
    o.file = s->writes_file ? contents(h->out, &o.n_file) : NULL;
    return o;
}

static void release(outcome *o)
{
    free(o->text);
    free(o->file);
    free(o->err);
}

/* What is wrong with the outcome; NULL: nothing. */
static const char *judge(hunt *h, size_t index, fault_profile profile, const outcome *o)
{
    const scenario *s = &scenarios[index];
    const outcome *clean = &h->clean[index];
    if (o->hung) {
        h->n_hangs++;
        return "hang";
    }
    if (WIFSIGNALED(o->status)) {
        if (o->asked && WTERMSIG(o->status) == SIGINT) {
            h->n_interrupted++; /* before it was ready to take it */
            return NULL;
        }
        h->n_crashes++;
        return "crash";
    }
    int code = WEXITSTATUS(o->status);
    if (code != 0 && code != 1 && !(code == 130 && o->asked)) {
        h->n_codes++;
        return "exit code";
    }
    if (o->n_text > clean->n_text || memcmp(o->text, clean->text, o->n_text) != 0 ||
        (code == 0 && o->n_text != clean->n_text)) {
        h->n_wrong++;
        return "wrong bytes";
    }
    if (code == 0 && s->writes_file &&
        (o->n_file != clean->n_file || memcmp(o->file, clean->file, o->n_file) != 0)) {
        h->n_wrong++;
        return "wrong file";
    }
    if (code == 1 && (o->n_err == 0 || memmem(o->err, o->n_err, "moe-offload: ", 13) == NULL)) {
        h->n_silent++;
        return "fails without a word";
    }
    if (code == 1 && fault_profile_is_mild(profile)) {
        h->n_gave_up++;
        return "gives up";
    }
    h->n_right += code == 0;
    h->n_errors += code == 1;
    h->n_interrupted += code == 130;
    return NULL;
}

static void judge_api(hunt *h, const outcome *o, const char **wrong)
{
    *wrong = o->hung                                                 ? "hang"
             : WIFSIGNALED(o->status)                                ? "crash"
             : WEXITSTATUS(o->status) > 1                            ? "exit code"
             : h->page->n_wrong > 0                                  ? "wrong tokens"
             : h->page->n_leaks > 0                                  ? "leak"
             : h->page->n_gave_up > 0 || WEXITSTATUS(o->status) == 1 ? "gives up"
                                                                     : NULL;
    h->n_hangs += o->hung;
    h->n_crashes += !o->hung && WIFSIGNALED(o->status);
    h->n_codes += !WIFSIGNALED(o->status) && WEXITSTATUS(o->status) > 1;
    h->n_api_runs += h->page->n_runs;
    h->n_errors += h->page->n_failed;
    h->n_right += h->page->n_runs - h->page->n_failed;
    h->n_wrong += h->page->n_wrong;
    h->n_leaks += h->page->n_leaks;
    h->n_gave_up += h->page->n_gave_up;
    h->page->n_runs = h->page->n_failed = h->page->n_wrong = h->page->n_gave_up = 0;
    h->page->n_leaks = 0;
}

/* Where the text of a wrong run is kept, or NULL. */
static const char *kept_path;

static bool one_run(hunt *h, uint64_t seed, int profile_asked, int scenario_asked)
{
    uint64_t mixed = (seed + 1) * 0x9e3779b97f4a7c15u;
    mixed ^= mixed >> 29;
    size_t index = scenario_asked >= 0 ? (size_t)scenario_asked : (mixed >> 8) % N_SCENARIOS;
    fault_profile profile = profile_asked >= 0 ? (fault_profile)profile_asked
                                               : (fault_profile)((mixed >> 24) % FAULT_PROFILES);
    const scenario *s = &scenarios[index];
    if (profile == PROFILE_LIE && !s->has_sidecar) {
        profile = PROFILE_DISK;
    }
    uint64_t interrupt_ms = (mixed >> 40) % 8 == 0 ? 1 + (mixed >> 44) % 60 : 0;
    bool on_terminal = (mixed >> 52) % 4 == 0;
    if (s->arguments == NULL) {
        interrupt_ms = 0;
        on_terminal = false;
    }
    fault_page_set(h->page, profile, seed, h->n_calls[index]);
    h->page->armed = 1;
    outcome o = run(h, s, seed, on_terminal, interrupt_ms);
    h->page->armed = 0;
    const char *wrong;
    if (s->arguments == NULL) {
        judge_api(h, &o, &wrong);
    } else {
        h->n_runs++;
        wrong = judge(h, index, profile, &o);
    }
    if (wrong != NULL && kept_path != NULL) {
        FILE *kept = fopen(kept_path, "wb");
        fwrite(o.text, 1, o.n_text, kept);
        fclose(kept);
    }
    if (wrong != NULL) {
        printf("%s: seed %llu profile %d (%s) scenario %zu (%s), status 0x%x: %.*s\n", wrong,
               (unsigned long long)seed, profile, fault_profile_names[profile], index, s->name,
               (unsigned)o.status, (int)(o.n_err < 300 ? o.n_err : 300), o.err);
        fflush(stdout);
    }
    release(&o);
    return wrong == NULL;
}

static bool make_clean(hunt *h)
{
    for (size_t i = 0; i < N_SCENARIOS; i++) {
        if (scenarios[i].arguments == NULL) {
            continue;
        }
        fault_page_set(h->page, PROFILE_NTH, 0, NULL);
        h->page->loaded = 0;
        h->page->armed = 1;
        h->clean[i] = run(h, &scenarios[i], 0, false, 0);
        h->page->armed = 0;
        if (!WIFEXITED(h->clean[i].status) || WEXITSTATUS(h->clean[i].status) != 0 ||
            h->page->loaded != 1) {
            printf("without faults, %s: status 0x%x: %.*s\n", scenarios[i].name,
                   (unsigned)h->clean[i].status, (int)h->clean[i].n_err, h->clean[i].err);
            return false;
        }
        for (int class = 0; class < FAULT_CLASSES; class ++) {
            h->n_calls[i][class] = h->page->n_calls[class];
        }
        if (strcmp(scenarios[i].name, "calibrate") == 0) {
            continue;
        }
    }
    return true;
}

/* Reads may lie about the model's weights, which have checksums; not about its header. */
static bool find_weights(hunt *h)
{
    moe_file *file;
    moe_file_summary summary = {.struct_size = sizeof summary};
    struct stat about;
    uint64_t from = UINT64_MAX;
    if (stat(h->model, &about) != 0 || moe_file_open(&file, h->model, NULL) != MOE_OK) {
        return false;
    }
    moe_file_get_summary(file, &summary);
    for (uint64_t i = 0; i < summary.n_tensors; i++) {
        moe_file_tensor tensor = {.struct_size = sizeof tensor};
        moe_file_get_tensor(file, i, &tensor);
        from = tensor.offset < from ? tensor.offset : from;
    }
    moe_file_close(&file);
    h->page->lie_inode = about.st_ino;
    h->page->lie_from = from;
    return true;
}

/* The text to be calibrated on, and the sidecar that other scenarios use. */
static bool prepare(hunt *h)
{
    scenario calibrate = {"calibrate", "calibrate -m MODEL -f LONG -n 400 -o CAL", false, false};
    snprintf(h->folder, sizeof h->folder, "/tmp/moe-faults-XXXXXX");
    if (mkdtemp(h->folder) == NULL) {
        return false;
    }
    snprintf(h->page_path, sizeof h->page_path, "%s/page", h->folder);
    snprintf(h->out, sizeof h->out, "%s/out", h->folder);
    snprintf(h->cal, sizeof h->cal, "%s/cal.gguf", h->folder);
    snprintf(h->text_path, sizeof h->text_path, "%s/text", h->folder);
    snprintf(h->err_path, sizeof h->err_path, "%s/err", h->folder);
    snprintf(h->long_path, sizeof h->long_path, "%s/long", h->folder);
    FILE *file = fopen(h->long_path, "w");
    for (int i = 0; file != NULL && i < 40; i++) {
        fprintf(file, "the cat and the dog went out, and day %d was good.\n", i * i);
    }
    h->page = file != NULL && fclose(file) == 0 ? fault_page_create(h->page_path) : NULL;
    if (h->page == NULL || !find_weights(h)) {
        return false;
    }
    outcome o = run(h, &calibrate, 0, false, 0);
    bool good = WIFEXITED(o.status) && WEXITSTATUS(o.status) == 0;
    release(&o);
    return good && make_clean(h);
}

static void print_table(const hunt *h)
{
    uint64_t sum = 0;
    printf("%-11s", "faults");
    for (int kind = 0; kind < FAULT_KINDS; kind++) {
        printf("%10s", fault_kind_names[kind]);
    }
    printf("\n");
    for (int class = 0; class < FAULT_CLASSES; class ++) {
        printf("%-11s", fault_class_names[class]);
        for (int kind = 0; kind < FAULT_KINDS; kind++) {
            uint64_t n = h->page->n_faults[class][kind];
            sum += n;
            printf("%10llu", (unsigned long long)n);
        }
        printf("\n");
    }
    printf("%llu faults in %llu runs of the command and %llu of the library: %llu right, %llu "
           "errors, %llu interrupted\n",
           (unsigned long long)sum, (unsigned long long)h->n_runs,
           (unsigned long long)h->n_api_runs, (unsigned long long)h->n_right,
           (unsigned long long)h->n_errors, (unsigned long long)h->n_interrupted);
    printf("wrong bytes %llu, crashes %llu, hangs %llu, leaks %llu, other exit codes %llu, silent "
           "failures %llu, gave up %llu\n",
           (unsigned long long)h->n_wrong, (unsigned long long)h->n_crashes,
           (unsigned long long)h->n_hangs, (unsigned long long)h->n_leaks,
           (unsigned long long)h->n_codes, (unsigned long long)h->n_silent,
           (unsigned long long)h->n_gave_up);
}

static void clean_up(const hunt *h)
{
    char path[400];
    struct dirent *entry;
    DIR *list = opendir(h->folder);
    while (list != NULL && (entry = readdir(list)) != NULL) {
        snprintf(path, sizeof path, "%s/%s", h->folder, entry->d_name);
        unlink(path);
    }
    if (list != NULL) {
        closedir(list);
    }
    rmdir(h->folder);
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: fault_hunt COMMAND API-PROGRAM PRELOAD MODEL SECONDS [SEED] "
                        "[PROFILE [SCENARIO]]\n");
        return 2;
    }
    static hunt h;
    h.command = argv[1];
    h.api = argv[2];
    h.preload = argv[3];
    h.model = argv[4];
    uint64_t seed = argc > 6 ? strtoull(argv[6], NULL, 10) : 1;
    int profile = argc > 7 ? atoi(argv[7]) : -1;
    int index = argc > 8 ? atoi(argv[8]) : -1;
    kept_path = argc > 9 ? argv[9] : NULL;
    if (!prepare(&h)) {
        printf("cannot begin\n");
        return 1;
    }
    uint64_t end = now_ms() + strtoull(argv[5], NULL, 10) * 1000;
    bool good = true;
    do {
        good = one_run(&h, seed++, profile, index) && good;
    } while (now_ms() < end);
    printf("seeds to %llu\n", (unsigned long long)seed - 1);
    print_table(&h);
    clean_up(&h);
    return good ? 0 : 1;
}
