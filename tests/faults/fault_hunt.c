/* SPDX-License-Identifier: MIT */
/* Runs the command, and the program of the API, again and again while system calls go wrong
 * (fault_preload.c), and compares each run with one where nothing did: the tokens are the same, or
 * the first of them and an error; no signal ends it; it does not hang. Prints a table.
 *
 * fault_hunt COMMAND API-PROGRAM PRELOAD MODEL HOW-LONG [SEED] [PROFILE [SCENARIO [KEPT-TEXT]]]
 *
 * HOW-LONG: seconds, or with an x before it a number of seeds. A run that went wrong is told with
 * its seed, profile and scenario: with these three arguments and x1 it is made again, alone. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <moe/model_file.h>
#include <moe/moe.h>

#include "tests/faults/fault_run.h"
#include "tests/faults/fault_text.h"

#define SEEDS_TOLD 250u /* how far a long run has come */

/* FAULT_TEXT_TOKENS of them. */
#define RUN "run -m MODEL -p TEXT -n 24 --ignore-eos --temp 0 --io-timeout SECONDS "

static const scenario scenarios[] = {
    {"run", RUN "--calibration none --expert-cache 50%", .writes_tokens = true},
    {"run-threads", RUN "--calibration none --io threads --expert-cache 50%",
     .writes_tokens = true},
    {"run-sync", RUN "--calibration none --io sync --expert-cache 60%", .writes_tokens = true},
    {"run-sidecar", RUN "--calibration CAL --speculate self --expert-cache 60%",
     .has_sidecar = true, .writes_tokens = true},
    {"run-all", RUN "--calibration CAL --warm-start on -b 3", .has_sidecar = true,
     .writes_tokens = true},
    {"run-trace", RUN "--calibration none --expert-cache 50% --trace OUT", .writes_file = true,
     .writes_tokens = true},
    {"logits",
     "logits -m MODEL -p TEXT --calibration none --expert-cache 50% --io-timeout SECONDS "
     "-o OUT",
     .writes_file = true},
    {.name = "perplexity",
     .arguments = "perplexity -m MODEL -f LONG -c 32 --calibration none --expert-cache 50% "
                  "--io-timeout SECONDS"},
    {.name = "tokenize", .arguments = "tokenize -m MODEL -p TEXT --json"},
    {.name = "inspect", .arguments = "inspect -m MODEL --json"},
    {"calibrate", "calibrate -m MODEL -f LONG -n 96 -o OUT --io-timeout SECONDS",
     .writes_file = true},
    {.name = "api", .has_sidecar = true},
    {.name = "verify",
     .arguments = "verify -m MODEL --calibration CAL --quiet --io-timeout SECONDS"},
};
#define N_SCENARIOS (sizeof scenarios / sizeof scenarios[0])

typedef struct hunt {
    workplace at;
    char sums_path[96]; /* checksums, which the command keeps beside the model */
    char *sums;
    size_t n_sums;
    fault_text expected; /* of scenarios that write tokens */
    uint64_t n_calls[N_SCENARIOS][FAULT_CLASSES];
    outcome clean[N_SCENARIOS];
    uint64_t n_runs, n_right, n_errors, n_interrupted;
    uint64_t n_wrong, n_crashes, n_hangs, n_codes, n_silent, n_gave_up, n_leaks;
    uint64_t n_api_runs, n_told;
} hunt;

/* By the hash that the run tells of them, and by the text of so many. */
static const char *judge_tokens(hunt *h, const outcome *o, int code)
{
    bool knows;
    const char *told = o->err != NULL ? o->err : "";
    const char *wrong = fault_text_judge(&h->expected, o->text, o->n_text, told, code != 1, &knows);
    h->n_told += knows;
    return wrong == NULL && h->at.tells && code == 0 && !knows ? "no statistics" : wrong;
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
    const char *wrong = s->writes_tokens ? judge_tokens(h, o, code) : NULL;
    if (o->n_text > clean->n_text || memcmp(o->text, clean->text, o->n_text) != 0 ||
        (code == 0 && o->n_text != clean->n_text)) {
        wrong = "wrong bytes";
    }
    if (wrong != NULL) {
        h->n_wrong++;
        return wrong;
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
    *wrong = o->hung                                                    ? "hang"
             : WIFSIGNALED(o->status)                                   ? "crash"
             : WEXITSTATUS(o->status) > 1                               ? "exit code"
             : h->at.page->n_wrong > 0                                  ? "wrong tokens"
             : h->at.page->n_leaks > 0                                  ? "leak"
             : h->at.page->n_gave_up > 0 || WEXITSTATUS(o->status) == 1 ? "gives up"
                                                                        : NULL;
    h->n_hangs += o->hung;
    h->n_crashes += !o->hung && WIFSIGNALED(o->status);
    h->n_codes += !WIFSIGNALED(o->status) && WEXITSTATUS(o->status) > 1;
    h->n_api_runs += h->at.page->n_runs;
    h->n_errors += h->at.page->n_failed;
    h->n_right += h->at.page->n_runs - h->at.page->n_failed;
    h->n_wrong += h->at.page->n_wrong;
    h->n_leaks += h->at.page->n_leaks;
    h->n_gave_up += h->at.page->n_gave_up;
    h->at.page->n_runs = h->at.page->n_failed = h->at.page->n_wrong = h->at.page->n_gave_up = 0;
    h->at.page->n_leaks = 0;
}

/* Beside the model are the checksums that earlier runs have made, or none. */
static void lay_sums(const hunt *h, bool there)
{
    unlink(h->sums_path);
    FILE *file = there && h->n_sums > 0 ? fopen(h->sums_path, "wb") : NULL;
    if (file != NULL) {
        fwrite(h->sums, 1, h->n_sums, file);
        fclose(file);
    }
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
    h->at.tells = !on_terminal && (mixed >> 56) % 2 == 0;
    lay_sums(h, (mixed >> 57) % 2 == 0);
    fault_page_set(h->at.page, profile, seed, h->n_calls[index]);
    h->at.page->armed = s->arguments != NULL; /* the program of the API does it itself */
    outcome o = fault_run(&h->at, s, seed, on_terminal, interrupt_ms);
    h->at.page->armed = 0;
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
    fault_release(&o);
    return wrong == NULL;
}

static bool make_clean(hunt *h)
{
    for (size_t i = 0; i < N_SCENARIOS; i++) {
        if (scenarios[i].arguments == NULL) {
            continue;
        }
        fault_page_set(h->at.page, PROFILE_NTH, 0, NULL);
        h->at.tells = true;
        h->at.page->loaded = 0;
        h->at.page->armed = 1;
        h->clean[i] = fault_run(&h->at, &scenarios[i], 0, false, 0);
        h->at.page->armed = 0;
        if (!WIFEXITED(h->clean[i].status) || WEXITSTATUS(h->clean[i].status) != 0 ||
            h->at.page->loaded != 1) {
            printf("without faults, %s: status 0x%x: %.*s\n", scenarios[i].name,
                   (unsigned)h->clean[i].status, (int)h->clean[i].n_err, h->clean[i].err);
            return false;
        }
        for (int class = 0; class < FAULT_CLASSES; class ++) {
            h->n_calls[i][class] = h->at.page->n_calls[class];
        }
        bool knows = true;
        if (scenarios[i].writes_tokens &&
            (fault_text_judge(&h->expected, h->clean[i].text, h->clean[i].n_text, h->clean[i].err,
                              true, &knows) != NULL ||
             !knows)) {
            printf("without faults, %s: not the library's tokens\n", scenarios[i].name);
            return false;
        }
    }
    h->sums = fault_contents(h->sums_path, &h->n_sums);
    return true;
}

/* Reads may lie about the model's weights, which have checksums; not about its header. */
static bool find_weights(hunt *h)
{
    moe_file *file;
    moe_file_summary summary = {.struct_size = sizeof summary};
    struct stat about;
    uint64_t from = UINT64_MAX;
    if (stat(h->at.model, &about) != 0 || moe_file_open(&file, h->at.model, NULL) != MOE_OK) {
        return false;
    }
    moe_file_get_summary(file, &summary);
    for (uint64_t i = 0; i < summary.n_tensors; i++) {
        moe_file_tensor tensor = {.struct_size = sizeof tensor};
        moe_file_get_tensor(file, i, &tensor);
        from = tensor.offset < from ? tensor.offset : from;
    }
    moe_file_close(&file);
    h->at.page->lie_inode = about.st_ino;
    h->at.page->lie_from = from;
    return true;
}

static bool copy_file(const char *from, const char *to)
{
    struct stat about;
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ssize_t n = 1;
    off_t left = in >= 0 && fstat(in, &about) == 0 ? about.st_size : 0;
    for (; left > 0 && n > 0 && out >= 0; left -= n) {
        n = sendfile(out, in, NULL, (size_t)left);
    }
    close(in);
    return close(out) == 0 && left == 0;
}

/* The text to be calibrated on, and the sidecar that other scenarios use. */
static bool prepare(hunt *h, const char *model)
{
    scenario calibrate = {.name = "calibrate",
                          .arguments = "calibrate -m MODEL -f LONG -n 400 -o CAL"};
    snprintf(h->at.folder, sizeof h->at.folder, "/tmp/moe-faults-XXXXXX");
    if (mkdtemp(h->at.folder) == NULL) {
        return false;
    }
    snprintf(h->at.page_path, sizeof h->at.page_path, "%s/page", h->at.folder);
    snprintf(h->at.out, sizeof h->at.out, "%s/out", h->at.folder);
    snprintf(h->at.cal, sizeof h->at.cal, "%s/cal.gguf", h->at.folder);
    snprintf(h->at.text_path, sizeof h->at.text_path, "%s/text", h->at.folder);
    snprintf(h->at.err_path, sizeof h->at.err_path, "%s/err", h->at.folder);
    snprintf(h->at.long_path, sizeof h->at.long_path, "%s/long", h->at.folder);
    snprintf(h->at.model, sizeof h->at.model, "%s/model.gguf", h->at.folder);
    snprintf(h->sums_path, sizeof h->sums_path, "%s/model.moe-sums", h->at.folder);
    FILE *file = fopen(h->at.long_path, "w");
    for (int i = 0; file != NULL && i < 40; i++) {
        fprintf(file, "the cat and the dog went out, and day %d was good.\n", i * i);
    }
    h->at.page = file != NULL && fclose(file) == 0 ? fault_page_create(h->at.page_path) : NULL;
    if (h->at.page == NULL || !copy_file(model, h->at.model) || !find_weights(h) ||
        !fault_text_make(&h->expected, h->at.model, FAULT_PROMPT)) {
        return false;
    }
    outcome o = fault_run(&h->at, &calibrate, 0, false, 0);
    bool good = WIFEXITED(o.status) && WEXITSTATUS(o.status) == 0;
    fault_release(&o);
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
            uint64_t n = h->at.page->n_faults[class][kind];
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
    printf("the tokens of %llu runs of the command were compared by their hash\n",
           (unsigned long long)h->n_told);
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
    DIR *list = opendir(h->at.folder);
    while (list != NULL && (entry = readdir(list)) != NULL) {
        snprintf(path, sizeof path, "%s/%s", h->at.folder, entry->d_name);
        unlink(path);
    }
    if (list != NULL) {
        closedir(list);
    }
    rmdir(h->at.folder);
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: fault_hunt COMMAND API-PROGRAM PRELOAD MODEL SECONDS|xSEEDS [SEED] "
                        "[PROFILE [SCENARIO]]\n");
        return 2;
    }
    static hunt h;
    h.at.command = argv[1];
    h.at.api = argv[2];
    h.at.preload = argv[3];
    uint64_t seed = argc > 6 ? strtoull(argv[6], NULL, 10) : 1;
    int profile = argc > 7 ? atoi(argv[7]) : -1;
    int index = argc > 8 ? atoi(argv[8]) : -1;
    kept_path = argc > 9 ? argv[9] : NULL;
    if (!prepare(&h, argv[4])) {
        printf("cannot begin\n");
        return 1;
    }
    bool counts = argv[5][0] == 'x';
    uint64_t how_many = strtoull(argv[5] + counts, NULL, 10);
    uint64_t end = fault_now_ms() + how_many * 1000, last = seed + how_many;
    bool good = true;
    do {
        good = one_run(&h, seed, profile, index) && good;
        if (seed++ % SEEDS_TOLD == 0) {
            printf("seeds to %llu\n", (unsigned long long)seed - 1);
            fflush(stdout);
        }
    } while (counts ? seed < last : fault_now_ms() < end);
    printf("seeds to %llu\n", (unsigned long long)seed - 1);
    print_table(&h);
    clean_up(&h);
    return good ? 0 : 1;
}
