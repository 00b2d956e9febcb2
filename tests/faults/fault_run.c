/* SPDX-License-Identifier: MIT */
#include "tests/faults/fault_run.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_ARGUMENTS 40
#define MAX_TEXT      (1u << 22)
#define LOOK_MS       500
#define PATIENCE_MS                                                                                \
    150000 /* of sleep without a call; a program that waits for a processor does not sleep */
#define MOST_TICKS 60000 /* of processors' time */

uint64_t fault_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

char *fault_contents(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    *size = 0;
    if (file == NULL) {
        return NULL;
    }
    char *bytes = malloc(MAX_TEXT);
    *size = fread(bytes, 1, MAX_TEXT - 1, file);
    fclose(file);
    bytes[*size] = '\0';
    return realloc(bytes, *size + 1);
}

static const char *word_of(const workplace *w, const char *word)
{
    if (strcmp(word, "SECONDS") == 0) { /* few where something hangs: it is over by an error */
        return w->page->profile == PROFILE_HANG ? "0.4" : "200";
    }
    return strcmp(word, "MODEL") == 0  ? w->model
           : strcmp(word, "OUT") == 0  ? w->out
           : strcmp(word, "CAL") == 0  ? w->cal
           : strcmp(word, "LONG") == 0 ? w->long_path
           : strcmp(word, "TEXT") == 0 ? FAULT_PROMPT
                                       : word;
}

/* In the child; does not return. */
static void execute(const workplace *w, const scenario *s, uint64_t seed, int terminal)
{
    static char words[1024], number[32];
    char *argv[MAX_ARGUMENTS];
    int n = 0;
    int text = open(w->text_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int err = terminal >= 0 ? terminal : open(w->err_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int none = open("/dev/null", O_RDONLY);
    dup2(none, 0);
    dup2(text, 1);
    dup2(err, 2);
    close_range(3, ~0u, 0);
    snprintf(number, sizeof number, "%llu", (unsigned long long)seed);
    if (s->arguments == NULL) {
        argv[n++] = (char *)w->api;
        argv[n++] = (char *)w->model;
        argv[n++] = (char *)w->cal;
        argv[n++] = (char *)w->folder;
        argv[n++] = number;
    } else {
        argv[n++] = (char *)w->command;
        snprintf(words, sizeof words, "%s", s->arguments);
        for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " ")) {
            argv[n++] = (char *)word_of(w, word);
        }
        if (w->tells && s->writes_tokens) {
            argv[n++] = "--json";
        }
    }
    argv[n] = NULL;
    setenv("LD_PRELOAD", w->preload, 1);
    setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1); /* or freed memory counts as used */
    setenv("FAULT_PAGE", w->page_path, 1);
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
        o->err[o->n_err] = '\0';
        timeout_ms = 0;
    }
}

/* Processors' time of the child, in ticks; *sleeps: none of its threads runs or could run. */
static uint64_t ticks_of(pid_t child, bool *sleeps)
{
    char path[320];
    uint64_t ticks = 0;
    struct dirent *entry;
    snprintf(path, sizeof path, "/proc/%d/task", (int)child);
    DIR *list = opendir(path);
    *sleeps = list != NULL;
    while (list != NULL && (entry = readdir(list)) != NULL) {
        size_t size;
        unsigned long long user = 0, system = 0;
        snprintf(path, sizeof path, "/proc/%d/task/%.16s/stat", (int)child, entry->d_name);
        char *stat = entry->d_name[0] == '.' ? NULL : fault_contents(path, &size);
        const char *state = stat != NULL ? strrchr(stat, ')') : NULL;
        if (state != NULL &&
            sscanf(state, ") %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu %llu", &user,
                   &system) == 2) {
            ticks += user + system;
            *sleeps = *sleeps && state[2] != 'R';
        }
        free(stat);
    }
    if (list != NULL) {
        closedir(list);
    }
    return ticks;
}

typedef struct watch {
    uint64_t looked_ms, moved_ms, n_calls, ticks;
} watch;

/* Whether the child has slept for long without a call, or has run for very long. */
static bool hangs(pid_t child, const fault_page *page, uint64_t now, watch *seen)
{
    bool sleeps;
    uint64_t n_calls = 0;
    if (now < seen->looked_ms + LOOK_MS) {
        return false;
    }
    seen->looked_ms = now;
    for (int class = 0; class < FAULT_CLASSES; class ++) {
        n_calls += page->n_calls[class];
    }
    uint64_t ticks = ticks_of(child, &sleeps);
    if (!sleeps || n_calls != seen->n_calls || ticks != seen->ticks) {
        seen->moved_ms = now;
    }
    seen->n_calls = n_calls;
    seen->ticks = ticks;
    return now > seen->moved_ms + PATIENCE_MS || ticks > MOST_TICKS;
}

static void await(const workplace *w, pid_t child, int terminal, uint64_t interrupt_ms, outcome *o)
{
    uint64_t begin = fault_now_ms();
    watch seen = {.looked_ms = begin, .moved_ms = begin};
    while (waitpid(child, &o->status, WNOHANG) == 0) {
        uint64_t ms = fault_now_ms() - begin;
        if (interrupt_ms > 0 && ms >= interrupt_ms && !o->asked) {
            o->asked = true;
            kill(child, SIGINT);
        }
        if (hangs(child, w->page, begin + ms, &seen)) {
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

outcome fault_run(const workplace *w, const scenario *s, uint64_t seed, bool on_terminal,
                  uint64_t interrupt_ms)
{
    outcome o = {0};
    int master = -1, slave = -1;
    unlink(w->out);
    if (on_terminal && openpty(&master, &slave, NULL, NULL, NULL) != 0) {
        master = slave = -1;
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        execute(w, s, seed, slave);
    }
    if (slave >= 0) {
        close(slave);
    }
    await(w, child, master, interrupt_ms, &o);
    if (master >= 0) {
        close(master);
    } else {
        o.err = fault_contents(w->err_path, &o.n_err);
    }
    o.text = fault_contents(w->text_path, &o.n_text);
    o.file = s->writes_file ? fault_contents(w->out, &o.n_file) : NULL;
    return o;
}

void fault_release(outcome *o)
{
    free(o->text);
    free(o->file);
    free(o->err);
}
